"""The true mean of softmax's gradient, by simulation."""

import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax import _checks
from rc_jax.scale.gradient import gradient_norm
from rc_jax.scale.random_scores import draw
from rc_jax.special.inputs import as_common

BATCH = 32


@_checks.guard(
    key=_checks.random_key,
    alpha=_checks.positive,
    n=_checks.integer(2),
    dim=_checks.bounded(3),
    samples=_checks.integer(2),
)
def expected_objective(
    key: Array, alpha: ArrayLike, n: int, dim: ArrayLike | None = None, samples: int = 1024
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Mean softmax gradient of n random scores at scale α, without the annealed approximation.

    Formula: E α(1 − Σp²), p = softmax(αs), over independent scores s. For Gaussian scores it equals E Σ p s and rises
    with α towards E max s: it has no finite maximiser.

    Args:
        key: one typed key; sample i uses `fold_in(key, i)`, so that every α sees the same scores.
        alpha: α > 0, any shape.
        n: number of scores, at least 2.
        dim: None for Gaussian scores, or the dimension d ≥ 3 of vectors whose cosines are the scores; may be traced.
        samples: number of independent draws, at least 2.

    Returns:
        (mean, standard error), each in alpha's shape and dtype.

    Raises:
        TypeError: if `key` is not a typed key, n or samples not an integer, another argument not real.
        ValueError: if α <= 0, n < 2, dim < 3 or samples < 2.

    Source: this package's own result (Gaussian integration by parts), for the objective of kexue.fm/archives/9812.

    Example:
        >>> import jax
        >>> from rc_jax.scale import expected_objective
        >>> mean, error = expected_objective(jax.random.key(0), 2.0, 64, samples=256)
        >>> print(abs(mean - 1.679) < 5 * error)
        True
    """
    if dim is not None and jnp.ndim(dim):
        raise ValueError(f"`dim` must be a scalar, got shape {jnp.shape(dim)}")
    dtype, (alpha,) = as_common(alpha=alpha)
    mean, error = _expected(key, alpha, dim, n, samples)
    return mean.astype(dtype), error.astype(dtype)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _expected(
    key: jax.Array, alpha: jax.Array, dim: ArrayLike | None, n: int, samples: int
) -> tuple[jax.Array, jax.Array]:
    def one(i: jax.Array) -> jax.Array:
        scores = draw(jax.random.fold_in(key, i), n, dim, alpha.dtype)
        return gradient_norm(scores, alpha)

    values = jax.lax.map(one, jnp.arange(samples), batch_size=min(BATCH, samples))
    return values.mean(0), values.std(0, ddof=1) / samples**0.5
