"""One scale for all rows of a decoder, whose row i sees i keys: the number of keys to choose it for."""

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common


@arguments.guard(length=arguments.bounded(2))
def effective_keys(length: ArrayLike) -> Float[Array, "..."]:
    """The number of keys for which to choose one scale for all rows 2 … L of a decoder: their geometric mean.

    Formula: n_g = (L!)^(1/(L − 1)), so that log n_g is the mean of log 2 … log L; about L/e. The typical optimum of a
    row of i keys is near √(2 log i), whose square is linear in log i. One scale for all rows has the mean of these
    squares, 2 log n_g. (Row 1 has one key and no gradient.) For the annealed optimum it is a choice, not a maximum: the
    annealed gradient of short rows is negative where annealing fails, and its sum asks for the smaller harmonic mean.

    Args:
        length: L, the longest row, at least 2, any shape; need not be whole.

    Returns:
        n_g, in the dtype and shape of `length`.

    Source: this package's own, for the proposal n = L/2 of Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> from rc_jax import scale
        >>> keys = scale.effective_keys(1024)
        >>> print(f"{scale.effective_keys(3):.4f} {keys:.1f} {scale.optimal_scale(keys):.4f}")  # √(2 · 3) first
        2.4495 380.5 1.9472
    """
    dtype, (length,) = as_common(length=length)
    some = jnp.where(length < 1e30, length, 2)  # beyond, log L! may have no place, and L/e has every digit
    keys = jnp.exp(gammaln(some + 1) / (some - 1))
    keys = keys + lax.stop_gradient(jnp.maximum(2 - keys, 0))  # rounding alone takes it below 2, its value at L = 2
    return jnp.where(length < 1e30, keys, length / jnp.e).astype(dtype)
