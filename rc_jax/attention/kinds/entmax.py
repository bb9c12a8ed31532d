"""Weights of which some are exactly 0: projections onto the simplex, and softpick."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from rc_jax.attention.kinds.record import Kind, Parts, Rows, Seen, of_each_head, shown

_FAR = -1.25  # below −1 relative to the largest score nothing has weight, so that it need not be told apart


def sparsemax(scores: Rows, seen: Seen, parts: Parts) -> Rows:
    """max(s − τ, 0) with row sum 1."""
    return sparsemax_weights(_below_largest(scores, seen))


def entmax15(scores: Rows, seen: Seen, parts: Parts) -> Rows:
    """max(s/2 − τ, 0)² with row sum 1."""
    return jnp.square(entmax15_root(_below_largest(scores, seen)))


def asentmax15(scores: Rows, seen: Seen, parts: Parts) -> Rows:
    """1.5-entmax of (δ + β (log m)^γ) s, m the number of tokens that a row sees."""
    delta, beta, gamma = (parts[name][:, None, None] for name in ("length_offset", "length_slope", "length_power"))
    log_seen = jnp.log(jnp.sum(seen, axis=-1, keepdims=True).astype(scores.dtype))
    # A row of one token has log m = 0, whose power has no derivative, and weight 1 whatever the factor.
    power = jnp.where(log_seen > 0, jnp.where(log_seen > 0, log_seen, 1) ** gamma, 0)
    return entmax15((delta + beta * power) * scores, seen, parts)


def softpick(scores: Rows, seen: Seen, parts: Parts) -> Rows:
    """max(e^s − 1, 0) over the row sum of |e^s − 1|: no weight for scores below 0; a row of zero scores is 0."""
    # Shifted by the largest of the scores and 0, so that no power overflows.
    scores = shown(scores, seen, 0)
    top = jax.lax.stop_gradient(jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), 0))
    # e^(s − m) − e^(−m) = e^(s − m) (1 − e^(−s)), and e^(−m) (e^s − 1) where s < 0.
    above, below = jnp.maximum(scores, 0), jnp.minimum(scores, 0)
    size = jnp.where(scores > 0, -jnp.exp(above - top) * jnp.expm1(-above), -jnp.exp(-top) * jnp.expm1(below))
    total = jnp.sum(size, axis=-1, keepdims=True)
    return jnp.where(scores > 0, size, 0) / jnp.where(total > 0, total, 1)


def _below_largest(scores: Rows, seen: Seen) -> Rows:
    """Scores less the largest of their row, at most far enough below it to have no weight."""
    scores = shown(scores, seen, -jnp.inf)
    below = scores - jnp.max(scores, axis=-1, keepdims=True)
    return jnp.where(below > 2 * _FAR, below, 2 * _FAR)


@jax.jit
def sparsemax_weights(logits: Array) -> Array:
    """max(t − τ, 0) for logits t whose largest is 0."""
    falling = _falling(logits)
    count = _counts(falling)
    sums = jnp.cumsum(falling, -1)
    size = (1 + count * falling > sums).sum(-1, keepdims=True)
    total = jnp.take_along_axis(sums, size - 1, -1)
    threshold = (total - 1) / size.astype(logits.dtype)
    p = jnp.maximum(logits - threshold, 0)
    return jnp.maximum(logits - threshold - (p.sum(-1, keepdims=True) - 1) / size.astype(logits.dtype), 0)


@jax.jit
def entmax15_root(logits: Array) -> Array:
    """max(t/2 − τ, 0), the square root of 1.5-entmax, for logits t whose largest is 0."""
    half = logits / 2
    falling = _falling(half)
    count = _counts(falling)
    mean, square = jnp.cumsum(falling, -1) / count, jnp.cumsum(falling * falling, -1) / count
    radicand = 1 / count - (square - mean * mean)
    thresholds = mean - jnp.where(radicand > 0, jnp.sqrt(jnp.where(radicand > 0, radicand, 1)), 0)
    size = (thresholds <= falling).sum(-1, keepdims=True)
    threshold = jnp.take_along_axis(thresholds, size - 1, -1)
    root = jnp.maximum(half - threshold, 0)
    excess = ((root * root).sum(-1, keepdims=True) - 1) / (2 * root.sum(-1, keepdims=True))
    return jnp.maximum(half - threshold - excess, 0)  # one Newton step takes away the rounding of the running sums


def _falling(logits: Array) -> Array:
    """Sorted from the largest down; scores too far down to have weight are all alike."""
    return -jnp.sort(-jnp.maximum(logits, _FAR), axis=-1)


def _counts(falling: Array) -> Array:
    return jnp.broadcast_to(jnp.arange(1, falling.shape[-1] + 1).astype(falling.dtype), falling.shape)


def _length_law(spec: Any, dtype: DTypeLike) -> dict[str, Array]:
    return dict.fromkeys(_LENGTH, jnp.ones(spec.heads, dtype))


_LENGTH = ("length_offset", "length_slope", "length_power")
ENTMAX = (
    Kind("sparsemax", sparsemax, "one", shift_invariant=True, increasing=True, sparse=True),
    Kind("entmax15", entmax15, "one", shift_invariant=True, increasing=True, sparse=True),
    Kind(
        "asentmax15", asentmax15, "one", shift_invariant=True, increasing=True, sparse=True,
        shapes=of_each_head(*_LENGTH), start=_length_law,
    ),
    Kind("softpick", softpick, "any", sparse=True),
)  # fmt: skip
