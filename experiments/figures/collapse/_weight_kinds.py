"""The kinds of weights that `weight_normalisation` compares, and what theory says of a row of each."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rc_jax import attention, sparsity
from rc_jax.attention import elu_plus_one
from rc_jax.attention.specification import assemble
from rc_jax.collapse import output_size

KINDS: dict[str, dict[str, Any]] = {
    "softmax": {"weights": "softmax"},
    "l2": {"weights": "l2"},
    "signed": {"weights": "signed"},
    "relu²/Σ": {"weights": "relu_squared"},
    "relu²/n": {"weights": "relu_squared_mean"},
    "identity": {"weights": "identity"},
    "linear": {"weights": "linear"},  # its features are elu + 1
    "decay": {"weights": "decay", "causal": True},
    "gated decay": {"weights": "gated_decay", "causal": True},
    "channel decay": {"weights": "channel_decay", "causal": True},
}
MAPS: dict[str, dict[str, Any]] = {
    f"linear, {name}": {"weights": "linear", "feature_map": name}
    for name in ("softplus", "exp", "relu", "squared_relu")
}
Layer = tuple[attention.AttentionParams, attention.AttentionSpec]
FROM_SCORES = ("softmax", "l2", "signed", "relu²/Σ", "relu²/n", "identity")
ONE_HEAD = "identity, 1 head"
PREDICTED = (*FROM_SCORES, "linear", "decay")
# t X has t^k times the output, so that tokens may be brought back to size between layers without any other effect
HOMOGENEOUS = ("relu²/Σ", "relu²/n", "identity", "decay", ONE_HEAD)


def draw(key: Array, d_model: int, heads: int, dtype: str) -> dict[str, Layer]:
    """One layer of every kind and feature map, all with the same projections."""
    layer = functools.partial(attention.AttentionSpec, d_model=d_model, heads=heads)
    shared = attention.init(key, layer(weights="gated_decay", causal=True), dtype=dtype)
    layers = {}
    for name, options in (KINDS | MAPS).items():
        spec = layer(**options)
        own = attention.init(key, spec, dtype=dtype).parts  # what else it draws is never computed
        layers[name] = shared.with_parts(**{name: own[name] for name in own if name == "decay"}), spec
    whole = {
        name: jnp.swapaxes(getattr(shared, name), 0, 1).reshape(1, d_model, d_model)
        for name in ("query", "key", "value")
    }
    whole["output"] = shared.output.reshape(1, d_model, d_model)
    layers[ONE_HEAD] = assemble(whole), layer(heads=1, weights="identity")
    return layers


def spread(params: attention.AttentionParams, x: Array) -> Array:
    """γ of every head and row: the length of u = α W_K W_Qᵀ x_i, α the default scale."""
    u = jnp.einsum("hdk,hek,ie->hid", params.key, params.query, x, precision="highest")
    return jnp.linalg.norm(u, axis=-1) / params.key.shape[-1] ** 0.5


def predicted_square(kind: str, params: attention.AttentionParams, x: Array, n: Array) -> Array:
    """Mean square of the output's entries for queries x and n tokens, averaged over rows and heads.

    The layer's weights are N(0, 1/fan_in).
    """
    d = x.shape[1]
    if kind == "decay":  # Σ a² of the last row, (1 / n S²)
        return jnp.mean(1 / (n * jnp.square(sparsity.decay(params.parts["decay"], n))))
    if kind == "linear":
        query, key = (_features(x, weight) for weight in (params.query, params.key))
        mean, square = jnp.mean(key), jnp.mean(jnp.square(key))
        slope = jnp.mean(jnp.where(key > 1, 1, key))  # elu' = 1 above 0, elu + 1 below
        uneven = jnp.sum(jnp.square(query), axis=-1) / jnp.square(jnp.sum(query, axis=-1))
        return jnp.mean(jnp.square(slope / mean) * uneven / d + (1 + (square / mean**2 - 1) * uneven) / n)
    return jnp.mean(output_size.output_mean_square(KINDS[kind]["weights"], spread(params, x), tokens=n, d_model=d))


def predicted_sparsity(kind: str, params: attention.AttentionParams, x: Array) -> Array:
    """S of a row, averaged over rows and heads: of the kernel alone, because a row's norm cancels."""
    gamma = spread(params, x)
    if kind in ("softmax", "l2"):
        return jnp.mean(sparsity.exponential(gamma))
    if kind == "signed":
        _, second, size = output_size.kernel_moments(kind, gamma, 1)
        return jnp.mean(size / jnp.sqrt(second))
    closed = sparsity.identity if kind == "identity" else sparsity.relu_squared
    return jnp.mean(closed(jnp.zeros_like(gamma), gamma))


def _features(x: Array, weight: Array) -> Array:
    """The features elu + 1 of every token's queries or keys."""
    return elu_plus_one(jnp.einsum("nd,hdk->hnk", x, weight, precision="highest"))


def distances(x: jax.Array) -> dict[str, jax.Array]:
    """Logarithms of the distance to equal tokens and to parallel ones, relative to the tokens; how many matter."""
    squares = jnp.sum(jnp.square(x))
    dead = squares == 0
    x = x / jnp.where(dead, jnp.nan, jnp.sqrt(squares))
    gram = jnp.matmul(x, x.T, precision="highest")

    # Power iteration for the direction that all tokens share, and what of the tokens lies beside it.
    def power(_: jax.Array, u: jax.Array) -> jax.Array:
        u = jnp.matmul(gram, u, precision="highest")
        return u / jnp.linalg.norm(u)

    start = gram[:, jnp.argmax(jnp.diagonal(gram))]
    top = jax.lax.fori_loop(0, 50, power, start / jnp.linalg.norm(start))
    off_line = x - top[:, None] * jnp.matmul(top, x, precision="highest")[None]
    norms = jnp.diagonal(gram)
    return {
        "residual": jnp.log(jnp.linalg.norm(x - jnp.mean(x, axis=0, keepdims=True))),
        "line": jnp.log(jnp.linalg.norm(off_line)),
        "tokens": 1 / jnp.sum(jnp.square(norms)),
    }
