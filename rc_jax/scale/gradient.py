"""How much gradient softmax lets through at a given scale, for given scores."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax import _checks
from rc_jax.special.inputs import working_dtype


def _rows(name: str, value: Any) -> None:
    """A finite floating-point array whose last axis holds at least two scores."""
    wanted = "a floating-point array of shape (..., score) with score >= 2"
    if not isinstance(value, jax.Array | np.ndarray) or not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(f"`{name}` must be {wanted}, got {_checks.describe(value)}")
    if value.ndim < 1 or value.shape[-1] < 2:
        raise ValueError(f"`{name}` must be {wanted}, got {_checks.describe(value)}")
    _checks.real(name, value)


@_checks.guard(scores=_rows, alpha=_checks.positive)
def gradient_norm(scores: Float[Array, "... score"], alpha: ArrayLike) -> Float[Array, "..."]:
    """Size of softmax's Jacobian: half the sum of |∂p_i/∂s_j| for p = softmax(αs) over the last axis.

    Formula: ½‖J‖₁ = α(1 − Σ_i p_i²), with 1 − Σp² written as a sum of products of different probabilities, so that it
    keeps its digits when one probability is nearly 1. Unchanged when a constant is added to the scores.

    Args:
        scores: s, dimensionless; the last axis is the softmax's.
        alpha: α > 0, a scalar or any shape that broadcasts with the leading axes of `scores`.

    Returns:
        The norm, in the dtype of `scores`; shape of alpha broadcast with `scores.shape[:-1]`.

    Raises:
        TypeError: if `scores` is not a floating-point array or `alpha` is not real.
        ValueError: if there are fewer than two scores, or α <= 0, or the shapes do not broadcast.

    Source: Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import gradient_norm
        >>> print(gradient_norm(jnp.array([0.0, 0.0]), 2.0))  # p = (1/2, 1/2): 2(1 - 1/2)
        1.0
    """
    top, tail, alpha = _split(scores, alpha)
    rest = jnp.exp(tail)
    t = rest.sum(-1)
    pairs = 2 * top * t + jnp.maximum(t * t - (rest * rest).sum(-1), 0)
    return (alpha * (pairs / (top + t) / (top + t))).astype(scores.dtype)


@_checks.guard(scores=_rows, alpha=_checks.positive)
def log_gradient_norm(scores: Float[Array, "... score"], alpha: ArrayLike) -> Float[Array, "..."]:
    """Logarithm of `gradient_norm`, finite where the norm itself underflows.

    Formula: log α + log(1 − Σ_i p_i²). Arguments, result's shape and errors as `gradient_norm`.

    Raises:
        TypeError: if `scores` is not a floating-point array or `alpha` is not real.
        ValueError: if there are fewer than two scores, or α <= 0, or the shapes do not broadcast.

    Source: Su Jianlin, kexue.fm/archives/9812; in logarithms, this package's own.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import log_gradient_norm
        >>> print(f"{log_gradient_norm(jnp.array([0.0, -1.0]), 1e3):.3f}")  # log(2e3) - 1e3
        -992.399
    """
    top, tail, alpha = _split(scores, alpha)
    log_t = jax.nn.logsumexp(tail, axis=-1)
    share = jnp.exp(tail - log_t[..., None])  # of each score in the tail
    others = jnp.exp(log_t) * jnp.maximum(1 - (share * share).sum(-1), 0)
    log_z = jnp.log(top + jnp.exp(log_t))
    return (jnp.log(alpha) + log_t + jnp.log(2 * top + others) - 2 * log_z).astype(scores.dtype)


def _split(scores: jax.Array, alpha: ArrayLike) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Exponential of the largest αs relative to itself (1, but with its derivative), the other αs, and α, broadcast."""
    scores = jnp.asarray(scores)
    working = working_dtype(scores.dtype)
    batch, given = scores.shape[:-1], jnp.shape(alpha)
    try:
        shape = np.broadcast_shapes(batch, given)
    except ValueError:
        raise ValueError(f"`alpha` must broadcast with the leading axes {batch} of `scores`, got {given}") from None
    alpha = jnp.broadcast_to(jnp.asarray(alpha).astype(working), shape)
    scores = scores.astype(working)
    largest = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    is_top = jax.nn.one_hot(scores.argmax(-1), scores.shape[-1], dtype=bool)
    logits = alpha[..., None] * jnp.broadcast_to(scores - largest, (*shape, scores.shape[-1]))
    is_top = jnp.broadcast_to(is_top, logits.shape)
    top = jnp.exp(jnp.where(is_top, logits, 0).sum(-1))
    return top, jnp.where(is_top, -jnp.inf, logits), alpha
