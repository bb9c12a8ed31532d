"""Cross-entropy, on which a classifier is trained, and accuracy, by which it is judged."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Integer

from rc_jax._numerics import arguments


def _check_pair(logits: Array, labels: Array) -> None:
    for name, value, kind in (("logits", logits, jnp.floating), ("labels", labels, jnp.integer)):
        if not isinstance(value, jax.Array | np.ndarray) or not jnp.issubdtype(value.dtype, kind):
            expected = "a floating-point array" if kind is jnp.floating else "an array of integers"
            raise TypeError(f"`{name}` must be {expected}, got {arguments.describe(value)}")
    if logits.ndim == 0 or logits.shape[:-1] != labels.shape:
        raise ValueError(
            "`labels` must have the shape of `logits` without the last axis, "
            f"{logits.shape[:-1]}, got {arguments.describe(labels)} for {arguments.describe(logits)}"
        )
    known = arguments.on_host(labels)
    if known is not None and known.size and not (known.min() >= 0 and known.max() < logits.shape[-1]):
        wrong = known[(known < 0) | (known >= logits.shape[-1])].flat[0]
        raise ValueError(f"`labels` must be 0 … {logits.shape[-1] - 1}, got {wrong}")


def cross_entropy(logits: Float[Array, "*batch label"], labels: Integer[Array, "*batch"]) -> Float[Array, ""]:
    """Mean of −log softmax(logits)[label], in nats.

    Args:
        logits: one row for each answer.
        labels: the right ones, 0 … labels − 1.

    Raises:
        ValueError: labels that are none (where they are known, not traced; else the result is NaN).

    Example:
        >>> import jax.numpy as jnp
        >>> print(f"{cross_entropy(jnp.zeros((3, 4)), jnp.array([0, 1, 2])):.4f}")  # log 4
        1.3863
    """
    _check_pair(logits, labels)
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels)
    # A factor, so that the gradient is NaN as well.
    return jnp.mean(losses * jnp.where(arguments.among(labels, logits.shape[-1]), jnp.ones_like(losses), jnp.nan))


def accuracy(logits: Float[Array, "*batch label"], labels: Integer[Array, "*batch"]) -> Float[Array, ""]:
    """Share of answers whose largest logit is the label's; where several are largest, the first of them counts.

    It is NaN where a logit is NaN.

    Args:
        logits: one row for each answer.
        labels: the right ones, 0 … labels − 1.

    Raises:
        ValueError: labels that are none (where they are known, not traced; else the result is NaN).

    Example:
        >>> import jax.numpy as jnp
        >>> print(accuracy(jnp.array([[1.0, 0.0], [3.0, 2.0]]), jnp.array([0, 1])))
        0.5
    """
    _check_pair(logits, labels)
    right = (jnp.argmax(logits, axis=-1) == jnp.asarray(labels).astype(int)).astype(logits.dtype)
    known = arguments.among(labels, logits.shape[-1]) & ~jnp.isnan(logits).any(axis=-1)
    return jnp.mean(jnp.where(known, right, jnp.nan))
