"""What a classifier is trained for and judged by."""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Integer

from rc_jax import _checks


def _check_pair(logits: Array, labels: Array) -> None:
    _checks.float_array(*(f"axis{index}" for index in range(logits.ndim)))("logits", logits)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"`labels` must be integers, got {_checks.describe(labels)}")
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"`labels` must have the shape of `logits` without the last axis, {logits.shape[:-1]}, got {labels.shape}"
        )


def cross_entropy(logits: Float[Array, "*batch label"], labels: Integer[Array, "*batch"]) -> Float[Array, ""]:
    """Mean of −log softmax(logits)[label], in nats.

    Args:
        logits: one row for each answer.
        labels: the right ones, 0 … labels − 1.

    Raises:
        TypeError: `logits` not floating-point, or `labels` not integers.
        ValueError: shapes that do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> print(f"{cross_entropy(jnp.zeros((3, 4)), jnp.array([0, 1, 2])):.4f}")  # log 4
        1.3863
    """
    _check_pair(logits, labels)
    return jnp.mean(optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels))


def accuracy(logits: Float[Array, "*batch label"], labels: Integer[Array, "*batch"]) -> Float[Array, ""]:
    """Share of answers whose largest logit is the label's; where several are largest, the first of them counts.

    Args:
        logits: one row for each answer.
        labels: the right ones.

    Raises:
        TypeError: `logits` not floating-point, or `labels` not integers.
        ValueError: shapes that do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> print(accuracy(jnp.array([[1.0, 0.0], [3.0, 2.0]]), jnp.array([0, 1])))
        0.5
    """
    _check_pair(logits, labels)
    return jnp.mean((jnp.argmax(logits, axis=-1) == labels).astype(logits.dtype))
