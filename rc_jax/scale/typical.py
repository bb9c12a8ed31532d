"""The scale that is best for a typical draw of scores, by simulation: the maximiser of the mean logarithm."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from rc_jax import _checks
from rc_jax.scale.gradient import log_gradient_norm
from rc_jax.scale.random_scores import draw
from rc_jax.scale.root import rising_root
from rc_jax.special.inputs import as_common

BATCH = 32
checked = _checks.guard(
    key=_checks.random_key, n=_checks.integer(2), dim=_checks.bounded(3), samples=_checks.integer(2)
)


class TypicalOptimum(NamedTuple):
    """A maximiser found by simulation, its standard error, the maximum, and whether the search ended."""

    scale: Float[Array, ""]
    standard_error: Float[Array, ""]
    value: Float[Array, ""]
    converged: Bool[Array, ""]


@checked
def typical_scale(key: Array, n: int, dim: ArrayLike | None = None, samples: int = 256) -> Float[Array, ""]:
    """The scale α that maximises the mean logarithm of the softmax gradient of n random scores.

    Formula: argmax_α E log[α(1 − Σp²)], p = softmax(αs); finite, near √(2 log n) for Gaussian scores. The mean is over
    `samples` draws, all held in memory (samples × n numbers), the same at every α.

    Args:
        key: one typed key; sample i uses `fold_in(key, i)`.
        n: number of scores, at least 2.
        dim: None for Gaussian scores, or the dimension d ≥ 3 of the vectors whose cosines are the scores. Its dtype,
            where it has one, is the working precision. May be traced.
        samples: number of independent draws, at least 2.

    Returns:
        The maximiser, NaN where `typical_optimum` says that the search did not end.

    Raises:
        TypeError: if `key` is not a typed key, or n or samples not an integer.
        ValueError: if n < 2, dim < 3 or samples < 2.

    Source: this package's own, for the gradient of Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> import jax
        >>> from rc_jax.scale import typical_scale
        >>> print(2 < typical_scale(jax.random.key(0), 64, samples=64) < 4)  # √(2 log 64) = 2.88
        True
    """
    found = typical_optimum(key, n, dim, samples)
    return jnp.where(found.converged, found.scale, jnp.nan)


@checked
def typical_optimum(key: Array, n: int, dim: ArrayLike | None = None, samples: int = 256) -> TypicalOptimum:
    """`typical_scale` with its standard error (first order in 1/√samples), the maximum (nats) and the search's end.

    Raises:
        TypeError: if `key` is not a typed key, or n or samples not an integer.
        ValueError: if n < 2, dim < 3 or samples < 2.

    Source: this package's own.

    Example:
        >>> import jax
        >>> from rc_jax.scale import typical_optimum
        >>> print(typical_optimum(jax.random.key(0), 64, samples=64).converged)
        True
    """
    if dim is None:
        return TypicalOptimum(*_typical(key, None, jnp.zeros(()).dtype, n, samples))
    dtype, (dim,) = as_common(dim=dim)
    if jnp.ndim(dim):
        raise ValueError(f"`dim` must be a scalar, got shape {jnp.shape(dim)}")
    scale, error, value, converged = _typical(key, dim, dim.dtype, n, samples)
    return TypicalOptimum(scale.astype(dtype), error.astype(dtype), value.astype(dtype), converged)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _typical(
    key: jax.Array, dim: jax.Array | None, dtype: jnp.dtype, n: int, samples: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(samples))
    scores = jax.vmap(lambda key: draw(key, n, dim, dtype))(keys)

    def each(u: jax.Array) -> jax.Array:
        one = functools.partial(log_gradient_norm, alpha=jnp.exp(u))
        return jax.lax.map(one, scores, batch_size=min(BATCH, samples))

    def slopes(u: jax.Array) -> jax.Array:
        return jax.jvp(each, (u,), (jnp.ones_like(u),))[1]

    start = jnp.full((), 0.5 * np.log(2 * np.log(n)), dtype)
    u, converged = rising_root(lambda u: -slopes(u).mean(), start if dim is None else start + 0.5 * jnp.log(dim))
    bend = jax.jvp(lambda u: slopes(u).mean(), (u,), (jnp.ones_like(u),))[1]
    scale = jnp.exp(u)
    error = scale * slopes(u).std(ddof=1) / samples**0.5 / -bend
    return scale, error, each(u).mean(), converged
