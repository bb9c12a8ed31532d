"""Weights that are powers of the scores, or the scores themselves."""

import jax
import jax.numpy as jnp

from rc_jax.attention.kinds.record import Kind, Parts, Rows, Seen, over_sum, shown, to_unit


def relu_squared(scores: Rows, seen: Seen, parts: Parts) -> Rows:
    """max(s, 0)² over its row sum; a row without a positive score is 0."""
    return over_sum(jnp.square(to_unit(jax.nn.relu(scores), seen)))


def relu_squared_mean(scores: Rows, seen: Seen, parts: Parts) -> Rows:
    """max(s, 0)² over the number of tokens seen."""
    return identity(jnp.square(jax.nn.relu(scores)), seen, parts)


def power6(scores: Rows, seen: Seen, parts: Parts) -> Rows:
    """s⁶ over its row sum; the scale of the scores drops out, and a row of zero scores is 0."""
    return over_sum(to_unit(scores, seen) ** 6)


def identity(scores: Rows, seen: Seen, parts: Parts) -> Rows:
    """The scores themselves, over the number of tokens seen."""
    return shown(scores, seen, 0) / jnp.sum(seen, axis=-1, keepdims=True).astype(scores.dtype)


POWERS = (
    Kind("relu_squared", relu_squared, "any", increasing=True, sparse=True),
    Kind("relu_squared_mean", relu_squared_mean, "any", increasing=True, sparse=True),
    Kind("power6", power6, "any"),
    Kind("identity", identity, "any"),
)
