"""One layer of attention in NumPy and double precision, from the formulas of the papers alone; draws to try it on."""

import types

import jax.numpy as jnp
import numpy as np

from rc_jax.attention.specification import assemble, shapes

N = 7
GAP = np.subtract.outer(np.arange(N), np.arange(N))
EDGES = np.random.default_rng(5).random((N, N)) < 0.3
GRAPH = EDGES | EDGES.T | (GAP == 0)
FEATURES = {
    "elu": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
    "relu": lambda x: np.maximum(x, 0),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "exp": np.exp,
    "squared_relu": lambda x: np.maximum(x, 0) ** 2,
}


def draw(spec, dtype="float64", tokens=N):
    """Parameters and tokens from NumPy: a compiled draw for every shape would cost more than the tests."""
    rng = np.random.default_rng(0)
    params = {name: 0.3 * rng.normal(size=shape) for name, shape in shapes(spec).items()}
    if "decay" in params:
        params["decay"] = rng.uniform(0.3, 1, size=params["decay"].shape)
    params = assemble({name: jnp.asarray(value, dtype) for name, value in params.items()})
    return params, jnp.asarray(rng.normal(size=(tokens, spec.d_model)), dtype)


def doubles(params):
    """The parameters as NumPy's float64."""
    if isinstance(params, types.SimpleNamespace):
        return params
    arrays = params._asdict() | params.parts
    del arrays["parts"]
    return types.SimpleNamespace(**{k: None if leaf is None else np.asarray(leaf, float) for k, leaf in arrays.items()})


def visible(spec, n=N, mask=None):
    """True at (i, j) where token i sees token j, by the masks of the specification and one more."""
    gap = np.subtract.outer(np.arange(n), np.arange(n))
    seen = (gap >= 0) | (not spec.causal)
    if spec.window is not None:
        seen = seen & (abs(gap) <= spec.window)
    return seen if mask is None else seen & mask


def projections(params, x):
    """Queries, keys and values of every head: x W + b."""
    params, x = doubles(params), np.asarray(x, float)
    biases = (0 if b is None else b[:, None] for b in (params.query_bias, params.key_bias, params.value_bias))
    weights = (params.query, params.key, params.value)
    return [np.einsum("nd,hdk->hnk", x, w) + b for w, b in zip(weights, biases, strict=True)]


def normalised(rows, gain, spec):
    """RMSNorm of each head or of all heads together, LayerNorm, or length 1; then gains."""
    if spec.qk_norm == "unit":
        return rows / np.linalg.norm(rows, axis=-1, keepdims=True) * gain[:, None]
    if spec.qk_norm == "layer":
        rows = rows - rows.mean(axis=-1, keepdims=True)
    whole = np.concatenate(list(rows), axis=1)[None] if spec.qk_norm == "rms_joint" else rows
    return rows / np.sqrt((whole**2).mean(axis=-1, keepdims=True) + spec.qk_norm_epsilon) * gain[:, None]


def rotated(rows, rotary):
    """Pairs of features as complex numbers, times e^{ipω}, ω = base^(−2i/width)."""
    index = np.arange(0, rows.shape[-1], 2)
    phases = np.exp(1j * np.arange(rows.shape[1])[:, None] * float(rotary.base) ** (-index / rows.shape[-1]))
    z = (rows[..., 0::2] + 1j * rows[..., 1::2]) * phases
    return np.stack([z.real, z.imag], axis=-1).reshape(rows.shape)


def queries_and_keys(params, x, spec):
    """Both norms with a mean come before the rotation (Qwen3), the unit norm after it (nGPT); E multiplies keys."""
    params, (query, key, _) = doubles(params), projections(params, x)
    if spec.rank is not None:
        key = params.pool @ key
    both = []
    gains = (getattr(params, name, None) for name in ("query_norm", "key_norm"))
    for rows, gain in zip((query, key), gains, strict=True):
        if spec.weights == "differential":  # the first halves of all heads, then the second ones
            rows = np.concatenate(np.split(rows, 2, axis=-1))
        if spec.qk_norm in ("rms", "rms_joint", "layer"):
            rows = normalised(rows, gain, spec)
        if spec.rotary is not None:
            rows = rotated(rows, spec.rotary)
        if spec.qk_norm == "unit":
            rows = normalised(rows, gain, spec)
        both.append(rows)
    return both


def fading(params, spec, n):
    """The logarithm of λ_c^(i−j), (head, i, j, channel), for channels that decay; 0 without."""
    if spec.weights != "channel_decay":
        return 0
    age = np.maximum(np.subtract.outer(np.arange(n), np.arange(n)), 0)[None, :, :, None]
    return age * np.log(np.asarray(params.decay, float))[:, None, None]


def scores(params, x, spec, seen, scale=None):
    """Scaled scores of every query and key; default scales of Vaswani et al. 2017, nGPT and this package's cosines."""
    params, (query, key) = doubles(params), queries_and_keys(params, x, spec)
    width = query.shape[-1]
    default = {"dot": width**-0.5, "cosine": width**0.5, "additive": 1.0}[spec.scores]
    if spec.qk_norm == "unit":
        default = width**0.5
    if scale is None:
        scale = default if spec.scale is None else spec.scale
    scale = np.resize(scale, len(query))[:, None, None]
    if spec.scale_law == "log_tokens":
        scale = scale * np.log(seen.sum(axis=1))[:, None]
    if spec.scores == "cosine":
        query, key = (rows / np.linalg.norm(rows, axis=-1, keepdims=True) for rows in (query, key))
    if spec.weights in ("linear", "channel_decay"):
        query, key = (FEATURES[spec.feature_map](rows) for rows in (query, key))
    if spec.scores == "additive":
        logits = scale * np.einsum("hijk,hk->hij", np.tanh(query[:, :, None] + key[:, None]), params.score_vector)
    else:
        products = query[:, :, None] * key[:, None] * np.exp(fading(params, spec, len(x)))
        logits = products.sum(axis=-1) * (1 if spec.weights in ("linear", "channel_decay") else scale)
    if spec.weights in ("linear", "channel_decay") and spec.feature_map == "exp":
        return np.log(logits)
    if spec.weights == "channel_decay":
        logits = np.tril(logits)
    return logits if spec.soft_cap is None else spec.soft_cap * np.tanh(logits / spec.soft_cap)


def faded(params, x, spec):
    """What decays with distance and is blind to scores: λ^|i−j|, or the gates' products, factor by factor."""
    params, n = doubles(params), len(x)
    mass = np.zeros((spec.heads, n, n))
    gates = None
    if spec.weights == "gated_decay":
        gates = 1 / (
            1 + np.exp(-(np.einsum("nd,hd->hn", np.asarray(x, float), params.gate) + params.gate_bias[:, None]))
        )
    for h, i, j in np.ndindex(mass.shape):
        mass[h, i, j] = params.decay[h] ** abs(i - j) if gates is None else np.prod(gates[h, j + 1 : i + 1])
    return mass


def weights(params, x, spec, seen, scale=None):
    """The weights of every head on the tokens, or with a rank on the rows of E: each kind as its paper writes it."""
    params, kind = doubles(params), spec.weights
    if kind in ("decay", "gated_decay"):
        mass = np.where(seen, faded(params, x, spec), 0)
        return mass / mass.sum(axis=-1, keepdims=True)
    if spec.rank is not None:
        seen = np.ones((len(x), spec.rank), bool)
    if kind in ("linear", "channel_decay") and spec.feature_map == "exp":  # in logarithms, whatever their size
        query, key = queries_and_keys(params, x, spec)
        s = np.logaddexp.reduce(query[:, :, None] + key[:, None] + fading(params, spec, len(x)), axis=-1)
        kind = "softmax"
    else:
        s = scores(params, x, spec, seen, scale)
    seen = np.broadcast_to(seen, s.shape)
    if spec.top_k is not None:
        shown = np.where(seen, s, -np.inf)
        seen = seen & (shown >= np.sort(shown, axis=-1)[..., -min(spec.top_k, len(x)), None])
    if kind in ("sparsemax", "entmax15", "asentmax15"):
        if kind == "asentmax15":
            counts = np.log(seen.sum(axis=-1, keepdims=True))
            offset, slope, power = (
                getattr(params, f"length_{name}")[:, None, None] for name in ("offset", "slope", "power")
            )
            s = (offset + slope * np.where(counts > 0, np.where(counts > 0, counts, 1) ** power, 0)) * s
        return projected(np.where(seen, s, -np.inf), 1 if kind == "sparsemax" else 2)
    if kind == "softpick":
        mass = np.where(seen, np.exp(s) - 1, 0)
        return np.maximum(mass, 0) / abs(mass).sum(axis=-1, keepdims=True)
    if kind == "softmax":
        s = s - np.where(seen, s, -np.inf).max(axis=-1, keepdims=True)
    s = np.where(seen, s, 0)
    mass = {
        "relu_squared": lambda: np.maximum(s, 0) ** 2,
        "relu_squared_mean": lambda: np.maximum(s, 0) ** 2,
        "power6": lambda: s**6,
        "identity": lambda: s,
        "linear": lambda: s,
        "channel_decay": lambda: s,
        "signed": lambda: np.sign(s) * np.exp(abs(s)),
        "sigmoid": lambda: 1 / (1 + np.exp(-(s - np.log(s.shape[-1])))),
    }.get(kind, lambda: np.exp(s))()
    mass = np.where(seen, mass, 0)
    return normalisers(params, mass, seen, spec)


def projected(s, power):
    """max(s/power − τ, 0)^power with sums of 1: τ by bisection."""
    s = s / power
    low, high = s.max(axis=-1, keepdims=True) - 1, s.max(axis=-1, keepdims=True)
    for _ in range(80):
        middle = (low + high) / 2
        heavy = (np.maximum(s - middle, 0) ** power).sum(axis=-1, keepdims=True) > 1
        low, high = np.where(heavy, middle, low), np.where(heavy, high, middle)
    return np.maximum(s - low, 0) ** power


def normalisers(params, mass, seen, spec):
    """What rows are divided by: nothing, the tokens seen, their own size, or rows and columns in turn."""
    if spec.weights == "sigmoid":
        return mass
    if spec.weights in ("identity", "relu_squared_mean"):
        return mass / seen.sum(axis=-1, keepdims=True)
    if spec.weights == "sinkhorn":
        for step in range(spec.sinkhorn_steps):
            mass = mass / mass.sum(axis=-1 - step % 2, keepdims=True)
        return mass
    total = abs(mass).sum(axis=-1, keepdims=True)
    if spec.weights == "l2":
        total = np.linalg.norm(mass, axis=-1, keepdims=True)
    if spec.weights == "softmax_plus_one":
        total = total + 1
    if spec.weights == "softmax_sink":
        total = total + np.exp(params.sink)[:, None, None]
    rows = mass / np.where(total > 0, total, 1)
    if spec.weights != "differential":
        return rows
    first, second = np.split(rows, 2)
    return first - params.subtracted[:, None, None] * second


def layer(params, x, spec, seen, scale=None):
    """The weights on the tokens, and the output: heads side by side, times one output matrix."""
    rows, value = weights(params, x, spec, seen, scale), projections(params, x)[2]
    params, x = doubles(params), np.asarray(x, float)
    if spec.rank is not None:
        rows = rows @ params.pool
    heads = rows @ value
    if spec.output_gate is not None:
        logits = [x @ gate for gate in params.output_gate]
        heads = heads / (1 + np.exp(-np.stack(logits).reshape(spec.heads, len(x), -1)))
    out = np.concatenate(list(heads), axis=1) @ params.output.reshape(-1, spec.d_model)
    return rows, out if params.output_bias is None else out + params.output_bias
