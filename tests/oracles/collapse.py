"""Attention networks in arbitrary precision, written from the textbook formula alone."""

import jax
import mpmath as mp
import numpy as np


def matrix(array):
    """An mpmath matrix with exactly the numbers of a floating-point array."""
    array = np.asarray(array, dtype=np.float64)
    return mp.matrix(array.tolist() if array.ndim == 2 else [[value] for value in array.tolist()])


def attention(params, x, spec, scale=None, mask=None):
    """Σ_h P_h E_h V_h W_O,h + b_O on mpmath matrices, P_h of Q_h (E_h K_h)ᵀ α; `params` has the layer in NumPy.

    E_h is the identity where there is no rank. Rows of E_h that sum to 1 but for their rounding are made to.
    """
    n = x.rows
    width = spec.head_width // 2 if spec.weights == "differential" else spec.head_width
    root = mp.sqrt(width)
    scale = spec.scale if scale is None else scale
    alpha = mp.mpf(scale) if scale is not None else root if sized_by(spec) == "unit" else 1 / root
    out = mp.zeros(n, spec.d_model)
    ones = mp.ones(n, 1)
    queries, keys = (
        [
            x * matrix(w[h]) + (ones * matrix(b[h]).T if spec.bias else mp.zeros(n, spec.head_width))
            for h in range(spec.heads)
        ]
        for w, b in ((params.query, params.query_bias), (params.key, params.key_bias))
    )
    if spec.qk_norm == "rms_joint":
        queries, keys = jointly(queries, spec), jointly(keys, spec)
    for h, (query, key) in enumerate(zip(queries, keys, strict=True)):
        value = x * matrix(params.value[h])
        if spec.bias:
            value += ones * matrix(params.value_bias[h]).T
        if spec.rank is not None:
            e = averages(matrix(params.parts["pool"][h]))
            key, value = e * key, e * value
        pairs = [(query, key)]
        if spec.weights == "differential":
            pairs = [(query[:, :width], key[:, :width]), (query[:, width:], key[:, width:])]
        kinds = []
        for query, key in pairs:
            query, key = (
                turned_and_sized(each, gain[h] if spec.qk_norm else None, spec)
                for each, gain in ((query, params.parts.get("query_norm")), (key, params.parts.get("key_norm")))
            )
            sink = params.parts["sink"][h] if spec.weights == "softmax_sink" else None
            kinds.append(weights(query * key.T * alpha, spec, mask, sink))
        p = kinds[0]
        if spec.weights == "differential":
            p = p - mp.mpf(float(params.parts["subtracted"][h])) * kinds[1]
        mixed = p * value
        if spec.output_gate is not None:
            gate = x * matrix(params.parts["output_gate"][h])
            for i in range(n):
                for k in range(mixed.cols):
                    mixed[i, k] *= logistic(gate[i, k if gate.cols > 1 else 0])
        out += mixed * matrix(params.output[h])
    return out + ones * matrix(params.output_bias).T if spec.bias else out


def logistic(x):
    """1/(1 + e^−x)."""
    return 1 / (1 + mp.exp(-x))


def weights(logits, spec, mask, sink):
    """The attention matrix of one head's logits, row by row; Sinkhorn's column by column as well."""
    n = logits.rows
    p = mp.zeros(n, logits.cols)
    for i in range(n):
        seen = [j for j in range(logits.cols) if mask is None or mask[i][j]]
        seen = [j for j in seen if spec.window is None or abs(i - j) <= spec.window]
        if spec.scale_law == "log_tokens":
            logits[i, :] *= mp.log(len(seen))
        if spec.soft_cap is not None:
            for j in seen:
                logits[i, j] = spec.soft_cap * mp.tanh(logits[i, j] / spec.soft_cap)
        if spec.top_k is not None:
            seen = sorted(seen, key=lambda j, i=i: logits[i, j])[-spec.top_k :]
        powers = {j: mp.exp(logits[i, j]) for j in seen}
        extra = {"softmax_plus_one": 1, "softmax_sink": mp.exp(float(sink)) if sink is not None else 0}
        total = mp.fsum(powers.values()) + extra.get(spec.weights, 0)
        for j in seen:
            p[i, j] = logistic(logits[i, j] - mp.log(logits.cols)) if spec.weights == "sigmoid" else powers[j] / total
    for step in range(1, spec.sinkhorn_steps if spec.weights == "sinkhorn" else 1):
        for k in range(n):
            line = p[:, k] if step % 2 else p[k, :]
            total = mp.fsum(line)
            for m in range(n):
                at = (m, k) if step % 2 else (k, m)
                p[at] /= total
    return p


def sized_by(spec):
    """How queries and keys are normalised: cosines are products of unit vectors."""
    return "unit" if spec.scores == "cosine" else spec.qk_norm


def jointly(heads, spec):
    """Queries or keys of all heads, each token over the root mean square of what all its heads have together."""
    out = [mp.zeros(head.rows, head.cols) for head in heads]
    for i in range(heads[0].rows):
        squares = mp.fsum(head[i, c] ** 2 for head in heads for c in range(head.cols))
        root = mp.sqrt(squares / (len(heads) * heads[0].cols) + mp.mpf(spec.qk_norm_epsilon))
        for head, sized_head in zip(heads, out, strict=True):
            for c in range(head.cols):
                sized_head[i, c] = head[i, c] / root
    return out


def turned_and_sized(x, gain, spec):
    """Queries or keys, token by token: normalised and rotated by their positions, unit vectors the other way round."""
    out = mp.zeros(x.rows, x.cols)
    for position in range(x.rows):
        row = [x[position, c] for c in range(x.cols)]
        if sized_by(spec) in ("rms", "layer"):
            row = sized(row, gain, spec)
        if spec.qk_norm == "rms_joint":  # the rest is done
            row = [v * g for v, g in zip(row, matrix(gain), strict=True)]
        if spec.rotary is not None:
            row = rotated(row, position, spec.rotary)
        if sized_by(spec) == "unit":
            row = sized(row, gain, spec)
        for c, value in enumerate(row):
            out[position, c] = value
    return out


def sized(row, gain, spec):
    """One vector over its length or root mean square."""
    width = len(row)
    if sized_by(spec) == "unit":
        over, root = row, mp.sqrt(mp.fsum(v**2 for v in row))
    else:
        mean = mp.fsum(row) / width if spec.qk_norm == "layer" else 0
        over = [v - mean for v in row]
        root = mp.sqrt(mp.fsum(v**2 for v in over) / width + mp.mpf(spec.qk_norm_epsilon))
    gain = [mp.mpf(1)] * width if gain is None else matrix(gain)
    return [v / root * g for v, g in zip(over, gain, strict=True)]


def rotated(row, position, rotary):
    """Pairs (2i, 2i + 1) of the first features rotated by the angle position · base^(−2i/width)."""
    assert rotary.scaling is None
    width = rotary.width or len(row)
    row, factor = list(row), mp.mpf(rotary.attention_factor or 1)
    for i in range(0, width, 2):
        angle = position * mp.mpf(rotary.base) ** (-mp.mpf(i) / width)
        cos, sin = mp.cos(angle), mp.sin(angle)
        row[i], row[i + 1] = row[i] * cos - row[i + 1] * sin, row[i] * sin + row[i + 1] * cos
    return [factor * v for v in row]


def averages(e):
    """The rows over their sums where those are 1 to rounding."""
    for i in range(e.rows):
        total = mp.fsum(e[i, j] for j in range(e.cols))
        if abs(total - 1) < 1e-5:
            for j in range(e.cols):
                e[i, j] /= total
    return e


def log_residual(x):
    """log of the Frobenius norm of x minus its column means."""
    n = x.rows
    means = [mp.fsum(x[i, j] for i in range(n)) / n for j in range(x.cols)]
    square = mp.fsum((x[i, j] - means[j]) ** 2 for i in range(n) for j in range(x.cols))
    return mp.log(square) / 2 if square else mp.mpf("-inf")


def log_share(x):
    """log of the Frobenius norm of x minus its column means, over that of x."""
    square = mp.fsum(v**2 for v in x)
    return log_residual(x) - mp.log(square) / 2 if square else mp.mpf("-inf")


def log_residuals(params, x, spec, scale=None, mask=None, measure=log_residual):
    """log ‖res‖_F before the first layer and after each one; `params` are stacked NumPy LayerParams."""
    state = matrix(x)
    logs = [measure(state)]
    for index in range(spec.depth):
        state = layer(select(params, index), state, spec.kinds[spec.kind_of(index)], scale, mask)
        logs.append(measure(state))
    return logs


def select(params, index):
    """One layer of stacked parameters."""
    return jax.tree.map(lambda leaf: leaf[index], params)


def layer(params, x, spec, scale=None, mask=None):
    """One layer with its skips, MLP and LayerNorm."""
    branches = [(lambda y: attention(params.attention, y, spec.attention, scale, mask), "attention")]
    if spec.mlp is not None:
        branches.append((lambda y: mlp(params.mlp, y, spec.mlp.activation), "mlp"))
    start = x
    for branch, name in branches:
        norm, out_norm = getattr(params, f"{name}_norm"), getattr(params, f"{name}_out_norm")
        read = start if spec.parallel else x
        out = branch(layer_norm(norm, read, spec) if spec.norm in ("pre", "peri") else read)
        out = layer_norm(out_norm, out, spec) if spec.norm in ("branch", "peri") else out
        out = x + out if spec.skip or (spec.parallel and name == "mlp") else out
        x = layer_norm(norm, out, spec) if spec.norm == "post" else out
    return x


def activation(name, x):
    """An activation function of one mpmath number."""
    if name == "relu":
        return max(x, mp.mpf(0))
    if name == "tanh":
        return mp.tanh(x)
    if name == "silu":
        return x / (1 + mp.exp(-x))
    if name == "gelu":
        return x * mp.ncdf(x)
    return x / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mp.mpf(0.044715) * x**3)))


def mlp(params, x, name):
    """σ(x W₁ + b₁) W₂ + b₂ on an mpmath matrix, or with a gate (σ(x W_g + b_g) ⊙ (x W₁ + b₁)) W₂ + b₂."""
    ones = mp.ones(x.rows, 1)
    hidden = x * matrix(params.weight_in) + ones * matrix(params.bias_in).T
    if params.weight_gate is None:
        hidden = hidden.apply(lambda v: activation(name, v))
    else:
        gate = x * matrix(params.weight_gate) + ones * matrix(params.bias_gate).T
        for i in range(hidden.rows):
            for j in range(hidden.cols):
                hidden[i, j] *= activation(name, gate[i, j])
    return hidden * matrix(params.weight_out) + ones * matrix(params.bias_out).T


def layer_norm(params, x, spec):
    """(x − mean)/√(variance + ε) · scale + shift, row by row; RMSNorm takes nothing off and adds nothing."""
    out = mp.zeros(x.rows, x.cols)
    centred = spec.norm_kind == "layer"
    scale, shift = matrix(params.scale), matrix(params.shift) if centred else mp.zeros(x.cols, 1)
    for i in range(x.rows):
        mean = mp.fsum(x[i, j] for j in range(x.cols)) / x.cols if centred else mp.mpf(0)
        variance = mp.fsum((x[i, j] - mean) ** 2 for j in range(x.cols)) / x.cols
        for j in range(x.cols):
            out[i, j] = (x[i, j] - mean) / mp.sqrt(variance + spec.norm_epsilon) * scale[j] + shift[j]
    return out
