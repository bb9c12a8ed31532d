"""A network in numbers of many digits (MPFR, by gmpy2), token by token from the textbook formulas.

Arrays are NumPy arrays of objects. The result is right to about `digits` digits of the largest number on the way, so a
residual below 10^(−digits) beside tokens of size 1 is the rounding of this reference: `certain` computes twice.
"""

import contextlib

import gmpy2
import jax
import numpy as np

from tests.oracles import own_kinds

mpfr = gmpy2.mpfr
exp, log, sqrt = (np.frompyfunc(f, 1, 1) for f in (gmpy2.exp, gmpy2.log, gmpy2.sqrt))
sign = np.frompyfunc(gmpy2.sign, 1, 1)
tanh, erfc = (np.frompyfunc(f, 1, 1) for f in (gmpy2.tanh, gmpy2.erfc))


@contextlib.contextmanager
def precision(digits):
    """Numbers of so many decimal digits, whose exponents have no practical end."""
    bits = {"precision": int(digits * 3.33) + 16, "emax": gmpy2.get_emax_max(), "emin": gmpy2.get_emin_min()}
    # NumPy takes flags for its own that MPFR raises when a double becomes a number of many digits.
    with gmpy2.context(gmpy2.get_context(), **bits), np.errstate(all="ignore"):
        yield


def exactly(array):
    """The numbers of a floating-point array, without rounding."""
    return None if array is None else np.frompyfunc(lambda v: mpfr(float(v)), 1, 1)(np.asarray(array)).astype(object)


def logistic(x):
    """1/(1 + e^−x)."""
    return 1 / (1 + exp(-x))


SIGMA = {
    "relu": lambda x: np.maximum(x, mpfr(0)),
    "tanh": tanh,
    "silu": lambda x: x * logistic(x),
    "gelu": lambda x: x / 2 * erfc(-x / gmpy2.sqrt(mpfr(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + tanh(gmpy2.sqrt(2 / gmpy2.const_pi()) * (x + mpfr(0.044715) * x**3))),
}


def standardised(x, epsilon, *, centred):
    """x/√(mean x² + ε) over the last axis, first less its mean if centred."""
    if centred:
        x = x - x.mean(axis=-1, keepdims=True)
    return x / sqrt((x * x).mean(axis=-1, keepdims=True) + mpfr(float(epsilon)))


def over_length(x):
    """Vectors of length 1; zero vectors stay zero."""
    length = sqrt((x * x).sum(axis=-1, keepdims=True))
    return x / np.where(length == 0, mpfr(1), length)


def rotated(x, rotary):
    """Features 2i and 2i + 1 of (head, token, feature) rotated by the angle position · base^(−2i/width)."""
    assert rotary.scaling is None
    x, width = x.copy(), rotary.width or x.shape[-1]
    for position in range(x.shape[1]):
        for i in range(0, width, 2):
            angle = position * mpfr(float(rotary.base)) ** (-mpfr(i) / width)
            cos, sin = gmpy2.cos(angle), gmpy2.sin(angle)
            a, b = x[:, position, i], x[:, position, i + 1]
            x[:, position, i], x[:, position, i + 1] = a * cos - b * sin, a * sin + b * cos
    return x * mpfr(rotary.attention_factor or 1)


def queries_and_keys(x, params, spec):
    """Two lists, the queries and the keys, of (head, token, feature); halves of heads are heads of their own."""
    both = []
    for weight, bias, gain in (
        (params.query, params.query_bias, params.parts.get("query_norm")),
        (params.key, params.key_bias, params.parts.get("key_norm")),
    ):
        rows = np.stack([x @ w for w in exactly(weight)])
        rows = rows + exactly(bias)[:, None] if spec.bias else rows
        gain = exactly(gain)[:, None] if spec.qk_norm else 1
        if spec.rank is not None and weight is params.key:
            rows = np.stack([e @ head for e, head in zip(pools(params), rows, strict=True)])
        if spec.weights == "differential":
            rows = np.concatenate(np.split(rows, 2, axis=-1))
        if spec.qk_norm in ("rms", "layer"):
            rows = gain * standardised(rows, spec.qk_norm_epsilon, centred=spec.qk_norm == "layer")
        if spec.qk_norm == "rms_joint":
            flat = np.moveaxis(rows, 0, 1)
            flat = standardised(flat.reshape(len(flat), -1), spec.qk_norm_epsilon, centred=False).reshape(flat.shape)
            rows = gain * np.moveaxis(flat, 1, 0)
        rows = rows if spec.rotary is None else rotated(rows, spec.rotary)
        rows = gain * over_length(rows) if spec.qk_norm == "unit" else rows
        both.append(over_length(rows) if spec.scores == "cosine" else rows)
    return both


def pools(params):
    """The matrices E (head, rank, token); rows that sum to 1 but for their rounding are made to."""
    e = exactly(params.parts["pool"])
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(abs(total - 1) < 1e-5, total, mpfr(1))


def weights(logits, params, spec, mask):
    """Attention of every head: the law, what is seen, the cap, then the kind of weights.

    Raises:
        NotImplementedError: a kind that has no form here.
    """
    if spec.kind.name not in (*SOFTMAX_FORMS, *OTHER_KINDS):
        raise NotImplementedError(f"`OTHER_KINDS` must have the kind, got {spec.kind.name!r}")
    n, columns = logits.shape[1:]
    seen = np.ones((n, columns), bool)
    if spec.rank is None:
        rows, others = np.indices((n, n))
        seen &= (rows >= others) | (not spec.causal)
        seen &= True if spec.window is None else abs(rows - others) <= spec.window
        seen &= True if mask is None else np.asarray(mask)
    if spec.scale_law == "log_tokens":
        logits = logits * log(exactly(seen.sum(axis=1)))[:, None]
    seen = np.broadcast_to(seen, logits.shape)
    if spec.top_k is not None:  # a cap does not change the order, but its rounding would
        rounding = mpfr(2) ** int(-0.9 * gmpy2.get_context().precision) * abs(logits).max()  # equal logits tie
        cuts = [
            [sorted(row[see])[-min(spec.top_k, see.sum())] for row, see in zip(*head, strict=True)]
            for head in zip(logits, seen, strict=True)
        ]
        seen = seen & (logits >= np.array(cuts, object)[..., None] - rounding)
    if spec.soft_cap is not None:
        cap = mpfr(float(spec.soft_cap))
        logits = cap * tanh(logits / cap)
    if spec.kind.name in OTHER_KINDS:
        parts = {name: exactly(params.parts[name]) for name in spec.kind.shapes(spec)}
        return OTHER_KINDS[spec.kind.name](logits, seen, parts)
    sink = mpfr("-inf")
    if spec.weights == "softmax_plus_one":
        sink = mpfr(0)
    if spec.weights == "softmax_sink":
        sink = exactly(params.parts["sink"])[:, None, None]
    if spec.weights == "sigmoid":
        return np.where(seen, 1 / (1 + columns * exp(-logits)), mpfr(0))
    top = np.maximum(np.where(seen, logits, mpfr("-inf")).max(axis=-1, keepdims=True), sink)
    powers = np.where(seen, exp(logits - top), mpfr(0))
    p = powers / (powers.sum(axis=-1, keepdims=True) + exp(sink - top))
    if spec.weights == "differential":
        first, second = np.split(p, 2)
        return first - exactly(params.parts["subtracted"])[:, None, None] * second
    for step in range(1, spec.sinkhorn_steps if spec.weights == "sinkhorn" else 1):
        p = p / p.sum(axis=-2 if step % 2 else -1, keepdims=True)
    return p


# The kinds that `weights` itself has.
SOFTMAX_FORMS = ("softmax", "softmax_plus_one", "softmax_sink", "sigmoid", "differential", "sinkhorn")


def over(mass, total):
    """Mass over totals; rows of zeros stay zeros."""
    return mass / np.where(total == 0, mpfr(1), total)


def over_sum(mass):
    """Rows over their sums."""
    return over(mass, mass.sum(axis=-1, keepdims=True))


def over_magnitudes(mass, positive=False):
    """Rows over the sums of their magnitudes, and of them the positive entries alone."""
    return over(np.maximum(mass, mpfr(0)) if positive else mass, abs(mass).sum(axis=-1, keepdims=True))


def projected(logits, seen, power):
    """max(s/power − τ, 0)^power with row sums of 1: τ by Newton's steps, which rise to it as the sum is convex in τ."""
    s = np.where(seen, logits, mpfr("-inf")) / power
    cut = s.max(axis=-1, keepdims=True) - 1  # where the sum is at least 1
    last_digits = mpfr(2) ** (4 - gmpy2.get_context().precision)
    for _ in range(200):
        left = np.maximum(s - cut, mpfr(0))
        slope = power * np.where(left > 0, left ** (power - 1), mpfr(0)).sum(axis=-1, keepdims=True)
        step = ((left**power).sum(axis=-1, keepdims=True) - 1) / slope
        if (step <= last_digits * np.maximum(abs(cut), mpfr(1))).all():
            return left**power
        cut = cut + step
    raise AssertionError("Newton's steps have not come to an end")


def _shown(function):
    return lambda logits, seen, parts: function(np.where(seen, logits, mpfr(0)), seen, parts)


def _length_law(seen, parts):
    """δ + β (log m)^γ of every head and row, m tokens seen; δ where m is 1, whose weight is 1 at any factor."""
    offset, slope, power = (parts[f"length_{name}"][:, None, None] for name in ("offset", "slope", "power"))
    count = seen.sum(axis=-1, keepdims=True)
    return offset + slope * np.where(count > 1, log(exactly(np.maximum(count, 2))) ** power, mpfr(0))


OTHER_KINDS = own_kinds.FORMS | {
    "l2": lambda s, seen, parts: over(
        np.where(seen, exp(s), mpfr(0)), sqrt((np.where(seen, exp(2 * s), mpfr(0))).sum(axis=-1, keepdims=True))
    ),
    "signed": _shown(lambda s, seen, parts: over_magnitudes(sign(s) * exp(abs(s)))),
    "relu_squared": _shown(lambda s, seen, parts: over_sum(np.maximum(s, mpfr(0)) ** 2)),
    "relu_squared_mean": _shown(lambda s, seen, parts: np.maximum(s, mpfr(0)) ** 2 / seen.sum(axis=-1, keepdims=True)),
    "power6": _shown(lambda s, seen, parts: over_sum(s**6)),
    "identity": _shown(lambda s, seen, parts: s / seen.sum(axis=-1, keepdims=True)),
    "sparsemax": lambda s, seen, parts: projected(s, seen, 1),
    "entmax15": lambda s, seen, parts: projected(s, seen, 2),
    "asentmax15": lambda s, seen, parts: projected(s * _length_law(seen, parts), seen, 2),
    "softpick": _shown(lambda s, seen, parts: over_magnitudes(exp(s) - 1, positive=True)),
}


def rows(x, params, spec, scale=None, mask=None):
    """The weights of every head."""
    query, key = queries_and_keys(x, params, spec)
    scale = spec.scale if scale is None else scale
    if scale is None:
        root = gmpy2.sqrt(mpfr(query.shape[-1]))
        scale = root if spec.qk_norm == "unit" or spec.scores == "cosine" else 1 / root
        factors = np.full(len(query), scale, object)
    else:
        factors = np.resize(exactly(np.broadcast_to(scale, spec.heads)), len(query))
    logits = np.stack([a * (q @ k.T) for a, q, k in zip(factors, query, key, strict=True)])
    return weights(logits, params, spec, mask)


def attention(params, x, spec, scale, mask):
    """The output of one attention layer."""
    value = np.stack([x @ w for w in exactly(params.value)])
    value = value + exactly(params.value_bias)[:, None] if spec.bias else value
    if spec.rank is not None:
        value = np.stack([e @ head for e, head in zip(pools(params), value, strict=True)])
    out = np.stack([p @ v for p, v in zip(rows(x, params, spec, scale, mask), value, strict=True)])
    if spec.output_gate is not None:
        gates = [x @ g for g in exactly(params.parts["output_gate"])]
        out = out * logistic(np.stack([g if g.ndim == 2 else g[:, None] for g in gates]))
    total = sum(head @ w for head, w in zip(out, exactly(params.output), strict=True))
    return total + exactly(params.output_bias) if spec.bias else total


def mlp(params, x, spec):
    """σ(x W₁ + b₁) W₂ + b₂, or with a gate (σ(x W_g + b_g) ∘ (x W₁ + b₁)) W₂ + b₂."""
    hidden, sigma = x @ exactly(params.weight_in) + exactly(params.bias_in), SIGMA[spec.mlp.activation]
    if spec.mlp.gated:
        hidden = hidden * sigma(x @ exactly(params.weight_gate) + exactly(params.bias_gate))
    else:
        hidden = sigma(hidden)
    return hidden @ exactly(params.weight_out) + exactly(params.bias_out)


def layer(params, x, spec, scale=None, mask=None):
    """One layer with its skips, norms and MLP."""

    def norm(x, weights):
        out = exactly(weights.scale) * standardised(x, spec.norm_epsilon, centred=spec.norm_kind == "layer")
        return out if weights.shift is None else out + exactly(weights.shift)

    branches = [(lambda x: attention(params.attention, x, spec.attention, scale, mask), "attention")]
    if spec.mlp is not None:
        branches.append((lambda x: mlp(params.mlp, x, spec), "mlp"))
    start, outputs = x, []
    for branch, name in branches:
        before, behind = getattr(params, f"{name}_norm"), getattr(params, f"{name}_out_norm")
        read = norm(x, before) if spec.norm in ("pre", "peri") else x
        out = branch(read)
        out = norm(out, behind) if spec.norm in ("branch", "peri") else out
        if spec.parallel and spec.mlp is not None:
            outputs.append(out)
            continue
        x = x + out if spec.skip else out
        x = norm(x, before) if spec.norm == "post" else x
    return sum(outputs, start if spec.skip else mpfr(0)) if outputs else x


def log_residual(x):
    """log ‖res(x)‖_F; −inf where all tokens are equal."""
    difference = x - x.mean(axis=0)
    return gmpy2.log((difference * difference).sum()) / 2


def states(params, x, spec, scale=None, mask=None):
    """The tokens before the first layer and after each one, of stacked parameters."""
    every = [x]
    for index in range(spec.depth):
        weights = jax.tree.map(lambda leaf, index=index: np.asarray(leaf)[index], params)
        every.append(layer(weights, every[-1], spec.kinds[spec.kind_of(index)], scale, mask))
    return every


def log_residuals(params, x, spec, scale=None, mask=None, digits=100):
    """log ‖res‖_F before the first layer and after each one."""
    with precision(digits):
        return np.array([float(log_residual(state)) for state in states(params, exactly(x), spec, scale, mask)])


def certain(params, x, spec, scale=None, mask=None, digits=(300, 360)):
    """`log_residuals`, NaN from the first layer on where two numbers of digits do not agree to nine digits."""
    first, second = (log_residuals(params, x, spec, scale, mask, count) for count in digits)
    with np.errstate(invalid="ignore"):
        agree = (first == second) | (abs(first - second) < 1e-9 * np.maximum(1, abs(second)))
    return np.where(np.logical_and.accumulate(agree), second, np.nan)
