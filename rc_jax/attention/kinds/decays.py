"""Weights that read features of queries and keys, or the distance between tokens, in place of scores.

The weights of gates and of channels are products of factors ≤ 1 from the key's token to the query's. They are carried
from row to row, in n sequential steps: as quotients of products from the first token on they would overflow, and as
differences of sums of logarithms they would lose digits in long rows.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rc_jax._numerics.dtypes import working_dtype
from rc_jax.attention.kinds.record import Inputs, Kind, Parts, Rows, Seen, of_each_head, over_sum, to_unit
from rc_jax.attention.kinds.softmax import softmax


def elu_plus_one(x: Array) -> Array:
    """One more than x above 0, e^x below: jax.nn.elu(x) + 1 would cancel to 0 far below."""
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x)))


# What queries and keys of linear attention pass through, each without a negative value.
FEATURES: dict[str, Callable[[Array], Array]] = {
    "elu": elu_plus_one,  # Katharopoulos et al. 2020, eq. 7
    "relu": jax.nn.relu,
    "softplus": jax.nn.softplus,
    "exp": jnp.exp,
    "squared_relu": lambda x: jnp.square(jax.nn.relu(x)),
}


def feature_scores(inputs: Inputs, parts: Parts, *, feature_map: str) -> Rows:
    """Σ_c φ(q_i)_c φ(k_j)_c, or its logarithm where φ is exp."""
    if feature_map == "exp":
        return log_products(inputs.query, inputs.key)
    query, key = FEATURES[feature_map](inputs.query), FEATURES[feature_map](inputs.key)
    return jnp.einsum("hik,hjk->hij", query, key, precision=inputs.precision)


def channel_scores(inputs: Inputs, parts: Parts, *, feature_map: str) -> Rows:
    """Σ_c φ(q_i)_c φ(k_j)_c λ_c^(i−j) for j ≤ i and 0 above, or its logarithm where φ is exp."""
    if feature_map == "exp":
        return log_products(inputs.query, inputs.key, parts["decay"])
    query, key = FEATURES[feature_map](inputs.query), FEATURES[feature_map](inputs.key)
    return channel_products(query, key, parts["decay"], inputs.precision)


def linear(scores: Rows, seen: Seen, parts: Parts, *, feature_map: str = "elu") -> Rows:
    """Non-negative similarities over their row sum: softmax of their logarithms where these are given."""
    if feature_map == "exp":
        return softmax(scores, seen, parts)
    return over_sum(to_unit(scores, seen))


def distances(inputs: Inputs, parts: Parts) -> Rows:
    """|i − j| log λ, with one λ in (0, 1] for each head."""
    rate, n = parts["decay"], inputs.tokens.shape[0]
    index, fade = jnp.arange(n), jnp.log(rate.astype(working_dtype(rate.dtype)))
    return fade[:, None, None] * jnp.abs(index[:, None] - index[None, :]).astype(fade.dtype)[None]


def gate_sums(inputs: Inputs, parts: Parts) -> Rows:
    """Σ_{t=j+1..i} log λ_t for j ≤ i, λ_t = 1/(1 + e^(−x_t·w − b))."""
    logits = jnp.einsum("nd,hd->hn", inputs.tokens, parts["gate"], precision=inputs.precision)
    logits = logits + parts["gate_bias"][:, None]
    steps = jax.nn.log_sigmoid(logits.astype(working_dtype(logits.dtype)))
    index = jnp.arange(logits.shape[1])

    # Row i of the exponents is the row before plus log λ_i.
    def row(exponents: Array, token: tuple[Array, Array]) -> tuple[Array, Array]:
        i, step = token
        exponents = jnp.where((index < i)[None], exponents + step[:, None], 0)
        return exponents, exponents

    exponents = jax.lax.scan(row, jnp.zeros_like(steps), (index, steps.T))[1]
    return jnp.swapaxes(exponents, 0, 1)


def channel_products(
    query: Float[Array, "head token width"],
    key: Float[Array, "head token width"],
    rate: Float[Array, "head width"],
    precision: str,
) -> Rows:
    """Σ_c q_ic k_jc λ_c^(i−j) for j ≤ i, one λ in (0, 1] for each channel; 0 above the diagonal."""
    query, key, fade = (array.astype(working_dtype(rate.dtype)) for array in (query, key, rate))
    index = jnp.arange(query.shape[1])

    # Row i carries k_jc λ_c^(i−j) for j ≤ i, and 0 beyond.
    def row(faded: Array, token: tuple[Array, Array]) -> tuple[Array, Array]:
        i, query_row = token
        faded = jnp.where((index == i)[None, :, None], key, fade[:, None] * faded)
        return faded, jnp.einsum("hk,hjk->hj", query_row, faded, precision=precision)

    rows = jax.lax.scan(row, jnp.zeros_like(key), (index, jnp.swapaxes(query, 0, 1)))[1]
    return jnp.swapaxes(rows, 0, 1).astype(rate.dtype)


def log_products(
    query: Float[Array, "head token width"],
    key: Float[Array, "head column width"],
    rate: Float[Array, "head width"] | None = None,
) -> Rows:
    """The logarithm of Σ_c e^(q_ic + k_jc) λ_c^max(i−j, 0), in float32 at least; without a rate λ = 1.

    Products of exponentials are never taken, so neither size nor distance of queries and keys matters. A few rows at a
    time, so that there are never more than 8·head·column·width numbers, and once more where there is a gradient.
    """
    query, key = (array.astype(working_dtype(key.dtype)) for array in (query, key))
    fade = None if rate is None else jnp.log(rate.astype(key.dtype))[:, None]
    index = jnp.arange(key.shape[1])

    def row(token: tuple[Array, Array]) -> Array:
        i, query_row = token
        logs = query_row[:, None] + key
        if fade is not None:
            logs = logs + fade * jnp.maximum(i - index, 0).astype(key.dtype)[None, :, None]
        return jax.nn.logsumexp(logs, axis=-1)

    tokens = jnp.arange(query.shape[1]), jnp.swapaxes(query, 0, 1)
    rows = jax.lax.map(jax.checkpoint(row, prevent_cse=False), tokens, batch_size=8)
    return jnp.swapaxes(rows, 0, 1)


def _log2_rates(spec: Any, dtype: DTypeLike) -> Array:
    """log₂(1 − λ) of the heads at the start (Sun et al. 2023, "Retentive network", eq. 8)."""
    return -5 - jnp.arange(spec.heads).astype(dtype)


def _head_rates(spec: Any, dtype: DTypeLike) -> dict[str, Array]:
    log_rate = _log2_rates(spec, dtype)
    return {"decay": 1 - jnp.maximum(jnp.exp2(log_rate), jnp.finfo(log_rate.dtype).eps / 2)}


def _gate_biases(spec: Any, dtype: DTypeLike) -> dict[str, Array]:
    log_rate = _log2_rates(spec, dtype)
    return {"gate_bias": jnp.log1p(-jnp.exp2(log_rate)) - math.log(2) * log_rate}


def _channel_rates(spec: Any, dtype: DTypeLike) -> dict[str, Array]:
    spread = 1 - jnp.exp2(-jnp.linspace(1, 8, spec.head_width).astype(dtype))
    return {"decay": jnp.broadcast_to(spread[None], (spec.heads, spec.head_width))}


def _needs_causal(spec: Any) -> tuple[str, str] | None:
    return None if spec.causal else ("causal", f"be True when weights={spec.kind.name!r}")


DECAYS = (
    Kind(
        "linear", linear, "any", increasing=True, reads="features", own_scores=feature_scores, options=("feature_map",),
    ),
    Kind(
        "channel_decay", linear, "any", reads="features", own_scores=channel_scores, options=("feature_map",),
        shapes=lambda spec: {"decay": (spec.heads, spec.head_width)}, start=_channel_rates, refuses=_needs_causal,
    ),
    Kind(
        "decay", softmax, "one", reads="distance", own_scores=distances,
        shapes=of_each_head("decay"), start=_head_rates,
    ),
    Kind(
        "gated_decay", softmax, "one", reads="distance", own_scores=gate_sums,
        shapes=lambda spec: {"gate": (spec.heads, spec.d_model), "gate_bias": (spec.heads,)}, start=_gate_biases,
        refuses=_needs_causal,
    ),
)  # fmt: skip
