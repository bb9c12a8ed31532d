"""Fit a one-parameter law to scales over a range of n, and say how badly it fits."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common

Law = Literal["sqrt_log", "log"]


@arguments.guard(n=arguments.bounded(1, open_low=True))
def fit_coefficient(n: ArrayLike, alpha: ArrayLike, law: Law) -> Float[Array, ""]:
    """Least-squares coefficient c of α ≈ c·φ(n), in closed form.

    Formula: c = Σ αφ / Σ φ², φ = √(log n) for law "sqrt_log" and log n for "log".

    Args:
        n: numbers of keys, all above 1.
        alpha: scales there.
        law: "sqrt_log" or "log".

    Returns:
        c, a scalar in the arguments' dtype.

    Source: Su Jianlin, kexue.fm/archives/9812 (the fits 0.84 and 3.5).

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import fit_coefficient, optimal_scale
        >>> n = 40 * jnp.arange(1, 501)
        >>> print(f"{fit_coefficient(n, optimal_scale(n), 'sqrt_log'):.4f}")
        0.8413
    """
    dtype, phi, scales = _law(n, alpha, law)
    return _least_squares(phi, scales).astype(dtype)


@arguments.guard(n=arguments.bounded(1, open_low=True))
def relative_residual(n: ArrayLike, alpha: ArrayLike, law: Law) -> Float[Array, ""]:
    """Root-mean-square misfit of `fit_coefficient`'s law, relative to the root-mean-square of α.

    Formula: √(Σ(α − cφ)² / Σα²). Arguments and errors as `fit_coefficient`.

    Source: this package's own.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import relative_residual
        >>> n = jnp.array([10.0, 100.0])
        >>> print(relative_residual(n, jnp.log(n), "log") < 1e-6)
        True
    """
    dtype, phi, scales = _law(n, alpha, law)
    largest = jnp.max(jnp.abs(scales))
    scales = scales / jnp.where(largest > 0, largest, 1)  # squares of any size then have a place
    misfit = scales - _least_squares(phi, scales) * phi
    return jnp.sqrt((misfit * misfit).sum() / (scales * scales).sum()).astype(dtype)


def _law(n: ArrayLike, alpha: ArrayLike, law: Law) -> tuple[Any, jax.Array, jax.Array]:
    dtype, (count, scales) = as_common(n=n, alpha=alpha)
    log_n = jnp.log(count)
    return dtype, jnp.sqrt(log_n) if law == "sqrt_log" else log_n, scales


def _least_squares(phi: jax.Array, alpha: jax.Array) -> jax.Array:
    return (alpha * phi).sum() / (phi * phi).sum()
