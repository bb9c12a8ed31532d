"""The gradient of softmax's cross-entropy by the scores, which stays large where a saturated softmax is wrong."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax.scale.gradient.rows import score_rows, shifted


def _labels(name: str, value: Any) -> None:
    """Whole numbers, or a floating-point array of probabilities."""
    arguments.real(name, value)
    kind = getattr(value, "dtype", None)
    are_indices = isinstance(value, int) if kind is None else jnp.issubdtype(kind, jnp.integer)
    if not are_indices and (kind is None or not jnp.issubdtype(kind, jnp.floating) or not jnp.ndim(value)):
        raise TypeError(
            f"`{name}` must be integers or a floating-point array of probabilities, got {arguments.describe(value)}"
        )


@arguments.guard(scores=score_rows, labels=_labels, alpha=arguments.positive)
def cross_entropy_gradient(
    scores: Float[Array, "... score"], labels: ArrayLike, alpha: ArrayLike = 1.0
) -> Float[Array, "... score"]:
    """Gradient, by the scores, of the cross-entropy −Σ_i y_i log p_i of p = softmax(αs) over the last axis.

    Formula: α(p − y), written as α(p_i Σ_{j≠i} y_j − y_i Σ_{j≠i} p_j), which keeps its digits when p is nearly y. There
    is no factor that vanishes where softmax saturates: on a wrong key Σ|p − y| → 2. That is why the softmax of a loss
    needs no 1/√d, and attention's, whose Jacobian multiplies what comes from above, does.

    Args:
        scores: s, dimensionless; the last axis is the softmax's.
        labels: the right score's index, integers of the shape of `scores` without its last axis; or the probabilities
            y, a floating-point array of the shape of `scores` whose rows add up to 1.
        alpha: α > 0, a scalar or any shape that broadcasts with the leading axes of `scores`.

    Returns:
        The gradient, in the dtype of `scores`; shape of alpha broadcast with `scores.shape[:-1]`, and the scores' axis.
        NaN where a traced index is outside.

    Raises:
        ValueError: an index is outside, or probabilities are negative or do not add up to 1.

    Source: textbook, for instance Goodfellow, Bengio and Courville (2016), section 6.2.2.3; the form that keeps its
        digits is this package's own.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import cross_entropy_gradient
        >>> print(cross_entropy_gradient(jnp.array([0.0, 0.0]), 1))  # (1/2, 1/2) - (0, 1)
        [ 0.5 -0.5]
        >>> print(cross_entropy_gradient(jnp.array([0.0, 60.0]), 1)[1])  # not 1 - 1
        -8.756511e-27
    """
    scores = jnp.asarray(scores)
    given = jnp.asarray(labels)
    are_indices = jnp.issubdtype(given.dtype, jnp.integer)
    shape = scores.shape[:-1] if are_indices else scores.shape
    if given.shape != shape:
        kind = "integers" if are_indices else "probabilities"
        raise ValueError(f"`labels` must be {kind} of shape {shape}, got {arguments.describe(given)}")
    _check_values(labels, scores.shape[-1], are_indices)
    logits, is_top, factor = shifted(scores, alpha)
    return _gradient(logits, is_top, factor, given, are_indices).astype(scores.dtype)


def _check_values(labels: ArrayLike, n: int, are_indices: bool) -> None:
    """Indices inside, or probabilities, as far as their values are known."""
    values = arguments.on_host(labels)
    if values is None:
        return
    if are_indices:
        arguments.bounded(0, n - 1)("labels", values)
        return
    arguments.bounded(0, 1)("labels", values)
    total = values.astype(float).sum(-1)
    if not np.all(np.abs(total - 1) <= 4 * n * float(jnp.finfo(values.dtype).eps)):
        worst = total.flat[np.abs(total - 1).argmax()]
        raise ValueError(f"`labels` must add up to 1 in every row of probabilities, got {worst:g}")


@functools.partial(jax.jit, static_argnums=4)
def _gradient(
    logits: jax.Array, is_top: jax.Array, alpha: jax.Array, labels: jax.Array, are_indices: bool
) -> jax.Array:
    """α(p_i Σ_{j≠i} y_j − y_i Σ_{j≠i} p_j) for labels as indices or as probabilities."""
    n = logits.shape[-1]
    if are_indices:
        y = jax.nn.one_hot(labels, n, dtype=logits.dtype)
        y = jnp.where(((labels >= 0) & (labels < n))[..., None], y, jnp.nan)
    else:
        y = labels.astype(logits.dtype)
    powers = jnp.exp(logits)
    p = powers / powers.sum(-1, keepdims=True)
    right = jax.nn.one_hot(y.argmax(-1), n, dtype=bool)
    y, elsewhere = (jnp.broadcast_to(x, logits.shape) for x in (y, _others(y, right)))
    return alpha[..., None] * (p * elsewhere - y * _others(p, is_top))


def _others(parts: jax.Array, largest: jax.Array) -> jax.Array:
    """For each part the sum of all others; for the largest that sum itself, not what a subtraction leaves."""
    rest = jnp.where(largest, 0, parts).sum(-1, keepdims=True)
    return jnp.where(largest, rest, parts.sum(-1, keepdims=True) - parts)
