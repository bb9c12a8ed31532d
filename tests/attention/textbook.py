"""One layer of attention in NumPy and double precision, from the formulas of the papers alone; draws to try it on."""

import types

import jax.numpy as jnp
import numpy as np

from rc_jax.attention.specification import assemble, shapes
from tests.oracles import many_digits

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


def queries_and_keys(params, x, spec):
    """Of every head, after their norm and positions; with a rank, a key for each row of E."""
    with many_digits.precision(30):
        return [np.asarray(rows, float) for rows in many_digits.queries_and_keys(many_digits.exactly(x), params, spec)]


def fading(params, spec, n):
    """The logarithm of λ_c^(i−j), (head, i, j, channel), for channels that decay; 0 without."""
    if spec.weights != "channel_decay":
        return 0
    age = np.maximum(np.subtract.outer(np.arange(n), np.arange(n)), 0)[None, :, :, None]
    return age * np.log(doubles(params).decay)[:, None, None]


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
    """The weights of every head on the tokens, or with a rank on the rows of E."""
    kind = spec.weights
    if spec.kind.reads == "scores" and spec.scores != "additive":
        with many_digits.precision(30):
            return many_digits.rows(many_digits.exactly(x), params, spec, scale, seen).astype(float)
    if kind in ("decay", "gated_decay"):
        mass = np.where(seen, faded(params, x, spec), 0)
        return mass / mass.sum(axis=-1, keepdims=True)
    seen = seen if spec.rank is None else np.ones((len(x), spec.rank), bool)
    if kind in ("linear", "channel_decay") and spec.feature_map == "exp":  # in logarithms, whatever their size
        query, key = queries_and_keys(params, x, spec)
        s = np.logaddexp.reduce(query[:, :, None] + key[:, None] + fading(params, spec, len(x)), axis=-1)
    else:
        s = scores(params, x, spec, seen, scale)
    s = np.where(seen, s, -np.inf)
    if spec.top_k is not None:
        s = np.where(s >= np.sort(s, axis=-1)[..., -min(spec.top_k, len(x)), None], s, -np.inf)
    if kind == "softmax" or spec.feature_map == "exp":
        s = np.exp(s - s.max(axis=-1, keepdims=True))
    mass = np.where(s > -np.inf, s, 0)
    total = mass.sum(axis=-1, keepdims=True)
    return mass / np.where(total > 0, total, 1)


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
