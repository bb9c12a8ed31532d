"""From scores to weights: every row of scores becomes a row of weights over the tokens that it may see.

softmax       e^s / Σ e^s                      positive, rows sum to 1
relu_squared  max(s, 0)² / Σ max(s, 0)²        non-negative, rows sum to 1; a row without a positive score is 0
power6        s⁶ / Σ s⁶                        non-negative, rows sum to 1; a row of zero scores is 0
identity      s / m, m tokens seen             signed, rows do not sum to 1 (linear attention without features)
linear        s / Σ s, s = φ(q)·φ(k)           positive, rows sum to 1, φ = elu + 1 (Katharopoulos et al. 2020)
decay         λ^|i−j| / Σ λ^|i−j|              positive, rows sum to 1, blind to the scores
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Rows = Float[Array, "head token column"]
Mask = Bool[Array, "#head token column"]


def softmax(scores: Rows, mask: Mask | None) -> Rows:
    """e^s over its row sum, shifted by the row maximum."""
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1)


def relu_squared(scores: Rows, mask: Mask | None) -> Rows:
    """max(s, 0)² over its row sum."""
    return _over_sum(jnp.square(_to_unit(jax.nn.relu(scores), mask)))


def power6(scores: Rows, mask: Mask | None) -> Rows:
    """s⁶ over its row sum; the scale of the scores drops out."""
    return _over_sum(_to_unit(scores, mask) ** 6)


def identity(scores: Rows, mask: Mask | None) -> Rows:
    """The scores themselves, over the number of tokens seen."""
    if mask is None:
        return scores / scores.shape[-1]
    seen = jnp.sum(mask, axis=-1, keepdims=True).astype(scores.dtype)
    return jnp.where(mask, scores, 0) / seen


def linear(scores: Rows, mask: Mask | None) -> Rows:
    """Non-negative similarities over their row sum."""
    return _over_sum(_to_unit(scores, mask))


def decay(rate: Float[Array, " head"], n: int, mask: Mask | None) -> Rows:
    """λ^|i−j| over its row sum, one λ in [0, 1] per head; 0⁰ = 1."""
    index = jnp.arange(n)
    distance = jnp.abs(index[:, None] - index[None, :]).astype(rate.dtype)
    exponent = jnp.log(rate)[:, None, None] * jnp.where(distance == 0, 1, distance)[None]
    return softmax(jnp.where(distance[None] == 0, 0, exponent), mask)


def largest(scores: Rows, mask: Mask | None, k: int) -> Bool[Array, "head token column"]:
    """True at the k largest scores of each row among those that it sees, and at what equals the last of them."""
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    if k >= scores.shape[-1]:
        return scores > -jnp.inf
    last = jax.lax.top_k(jax.lax.stop_gradient(scores), k)[0][..., -1:]
    return (scores >= last) & (scores > -jnp.inf)


def features(x: Float[Array, "head token width"]) -> Float[Array, "head token width"]:
    """The positive feature map elu(x) + 1 of linear attention (Katharopoulos et al. 2020, eq. 7)."""
    return jax.nn.elu(x) + 1


def _to_unit(scores: Rows, mask: Mask | None) -> Rows:
    """Rows divided by their largest magnitude, so that powers neither overflow nor underflow; hidden entries 0."""
    if mask is not None:
        scores = jnp.where(mask, scores, 0)
    largest = jnp.max(jnp.abs(scores), axis=-1, keepdims=True)
    return scores / jax.lax.stop_gradient(jnp.where(largest > 0, largest, 1))


def _over_sum(weights: Rows) -> Rows:
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1)


FROM_SCORES: dict[str, Callable[[Rows, Mask | None], Rows]] = {
    "softmax": softmax,
    "relu_squared": relu_squared,
    "power6": power6,
    "identity": identity,
    "linear": linear,
}
