"""The annealed optimum when the scores of a row share their query, as they do in attention."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common
from rc_jax._numerics.roots import implicit_root

Average = Literal["row", "all"]


@arguments.guard(n=arguments.bounded(2), dim=arguments.bounded(1))
def shared_query_scale(n: ArrayLike, dim: ArrayLike, average: Average = "row") -> Float[Array, "..."]:
    """The scale α* that maximises the annealed gradient when the n scores of a row share a query of d normals.

    Given q the scores q·k_j/√d are normal with variance ‖q‖²/d, and the annealed Σp² is e^{α²‖q‖²/d}/n. What is
    averaged over q, before the maximum is sought:

    - `"row"`: that ratio, row by row: α(1 − (1 − 2α²/d)^{−d/2}/n), finite for α² < d/2;
    - `"all"`: numerator and denominator apart, as if every score had its own q: α(1 − M(2α)/(n M(α)²)) with
      M(α) = E e^{αs} = (1 − α²/d)^{−d/2}, finite for α² < d/4.

    Formula: for `"row"`, with z = 1/(1 − 2α²/d), z^{d/2}(1 + d(z − 1)) = n: in
    closed form z = n^{2/3} at d = 1 and (1 + √(1 + 8n))/4 at d = 2. α* tends to `optimal_scale(n)` from below as d → ∞,
    and, at fixed d, to √(d/2) (`"row"`) or √d/2 (`"all"`) as n → ∞, where means over q become infinite.

    Args:
        n: number of keys, at least 2, any shape; need not be whole.
        dim: d ≥ 1, entries of a query; broadcasts with n, may be traced.
        average: `"row"` or `"all"`, as above.

    Returns:
        α*, in the arguments' dtype; NaN where the search did not end. Differentiable in n and dim.

    Source: this package's own result, for the objective of Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> from rc_jax.scale import optimal_scale, shared_query_scale
        >>> print(f"{shared_query_scale(1024, 64):.3f} {shared_query_scale(1024, 8):.3f} {optimal_scale(1024):.3f}")
        2.060 1.610 2.147
    """
    dtype, (n, dim) = as_common(n=n, dim=dim)
    scale, converged = _optimize(n, dim, average)
    return jnp.where(converged, scale, jnp.nan).astype(dtype)


@functools.partial(jax.jit, static_argnames="average")
def _optimize(n: jax.Array, dim: jax.Array, average: str) -> tuple[jax.Array, jax.Array]:
    """The root of the stationarity in t = α²/(1 − c α²/d), c = 2 or 4, which is positive and α² for d → ∞."""
    # the start: the Gaussian optimum, or, where d is below 2 log n, the power of n that few dimensions have
    log_n = jnp.log(jnp.where(n >= 2, n, jnp.nan))
    half = dim / 2
    bend = half if average == "row" else 8 / 9 * half
    start = jnp.log(log_n)
    few = (log_n + half * jnp.log(bend) - jnp.log(2.0 if average == "row" else 4.0).astype(n.dtype)) / (half + 1)
    stationarity = _row if average == "row" else _all
    v, converged = implicit_root(stationarity, jnp.where(dim > 2 * log_n, start, few), log_n, dim)
    # α² = t/(1 + c t/d), in which neither t nor what n adds to a bound is lost
    return jax.lax.rsqrt(jnp.exp(-v) + (2 if average == "row" else 4) / dim), converged


def _exponent(t: jax.Array, dim: jax.Array, average: str) -> jax.Array:
    """Log of n times the annealed Σp², d/2 · log(1 + z) with z = 2t/d, or 1 + z = (1 + 3t/d)²/(1 + 4t/d).

    For t < d/4 it is t · log(1 + z)/(2t/d), of which no derivative in d cancels. There log(1 + z) = 2 artanh w with
    w = z/(2 + z), by 6 terms for float32 and 12 for double precision.
    """
    share = t / dim
    small = share < 0.25
    near, far = jnp.where(small, share, 0), jnp.where(small, 1, share)
    if average == "row":
        z, ratio, large = 2 * near, 1, jnp.log1p(2 * far)
    else:
        part = near / (1 + 4 * near)
        z, ratio, large = part * (2 + 9 * near), 1 + part / 2, 2 * jnp.log1p(3 * far) - jnp.log1p(4 * far)
    w = z / (2 + z)
    series = jnp.zeros_like(w)
    for k in reversed(range(6 if jnp.finfo(w.dtype).bits <= 32 else 12)):
        series = 1 / (2 * k + 1) + jnp.square(w) * series
    return jnp.where(small, t * ratio * (1 - w) * series, dim / 2 * large)


def _row(v: jax.Array, log_n: jax.Array, dim: jax.Array) -> jax.Array:
    """Stationarity, C + log(1 + α dC/dα) = log n with C the exponent: logarithms of both sides, as v = log t."""
    t = jnp.exp(v)
    return jnp.log(_exponent(t, dim, "row") + jnp.log1p(2 * t)) - jnp.log(log_n)


def _all(v: jax.Array, log_n: jax.Array, dim: jax.Array) -> jax.Array:
    """The stationarity for both sums averaged, where α dC/dα = 2t(1 + 6t/d)/(1 + 3t/d)."""
    t = jnp.exp(v)
    slope = 2 * t * (2 - 1 / (1 + 3 * t / dim))
    return jnp.log(_exponent(t, dim, "all") + jnp.log1p(slope)) - jnp.log(log_n)
