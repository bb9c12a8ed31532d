"""Rows of scores: the check of the argument, and scaled scores relative to their largest."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import converted, working_dtype


def _logits(name: str, value: Any) -> None:
    """Finite numbers, or −inf for a key that a mask hides; every row has a finite score."""
    numbers = arguments.at_hand(value)
    if numbers is None:
        return
    hidden = numbers == -np.inf
    if hidden.all(axis=-1).any():
        raise ValueError(f"`{name}` must have a finite score in every row, got a row of -inf")
    arguments.real(name, np.where(hidden, numbers.dtype.type(0), numbers))


_ROWS = arguments.float_array("...", "score", score=2)
score_rows = (_ROWS, arguments.real)
logit_rows = (_ROWS, _logits)


def shifted(scores: jax.Array, alpha: ArrayLike) -> tuple[jax.Array, jax.Array, jax.Array]:
    """α(s − max s), with the derivative of αs up to a constant; where the (first) largest score is; and α, broadcast.

    −inf stays −inf, without a derivative.
    """
    scores = jnp.asarray(scores)
    working = working_dtype(scores.dtype)
    batch, given = scores.shape[:-1], np.shape(alpha)
    try:
        shape = np.broadcast_shapes(batch, given)
    except ValueError:
        raise ValueError(f"`alpha` must broadcast with the leading axes {batch} of `scores`, got {given}") from None
    alpha = jnp.broadcast_to(converted("alpha", alpha, working), shape)
    scores = scores.astype(working)
    # The largest score of a row is a constant, and so is a hidden one: neither has a derivative.
    is_top = jax.nn.one_hot(scores.argmax(-1), scores.shape[-1], dtype=bool)
    largest = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    full = (*shape, scores.shape[-1])
    below = jnp.broadcast_to(scores - largest, full)
    hidden = jnp.isneginf(below)
    logits = jnp.where(hidden, -jnp.inf, alpha[..., None] * jnp.where(hidden, 0, below))
    return logits, jnp.broadcast_to(is_top, full), alpha


def top_and_tail(scores: jax.Array, alpha: ArrayLike) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Exponential of the largest αs relative to itself (1, but with its derivative), the other αs, and α, broadcast.

    The largest leaves −inf among the others.
    """
    logits, is_top, alpha = shifted(scores, alpha)
    top = jnp.exp(jnp.where(is_top, logits, 0).sum(-1))
    return top, jnp.where(is_top, -jnp.inf, logits), alpha
