"""The scale that maximises the annealed gradient: one compiled program for every n, and one more for every d."""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common, common_with_dim
from rc_jax._numerics.roots import implicit_root, rising_root_by_secants
from rc_jax.scale.closed_forms.annealed import objective
from rc_jax.scale.closed_forms.stationarity import (
    FEW_TERMS,
    debye_at_origin,
    differentiable_stationarity,
    first_guess,
    stationarity,
)
from rc_jax.scale.results import Optimum
from rc_jax.special import lambert_w0_exp
from rc_jax.special.debye import TERMS


@arguments.guard(n=arguments.bounded(2), dim=arguments.bounded(3))
def optimal_scale(n: ArrayLike, dim: ArrayLike | None = None) -> Float[Array, "..."]:
    """The scale α* that maximises the annealed softmax gradient of n random scores, found by gradient.

    Formula: argmax_α α(1 − M(2α)/(n M(α)²)), see `annealed_objective`. For scores q·k/√d_k with unit-variance
    entries (dim=None) the logits are α* q·k/√d_k; for cosines in d dimensions (dim=d) they are α* cos(q, k).

    The relative error is a few roundings times the conditioning 1 + log n · (d log α*/d log n): below 10 eps where α* ∼
    √(log n), 40 eps at d = 3, n = 1e9, where α* = n/2. α* is differentiable in n and in dim, to any order, by implicit
    differentiation; first and second derivatives compile in seconds, a third in dim takes about ten times as long as a
    second. One program is compiled for each shape of n; dim is traced, so sweeping it compiles nothing. α* must stay
    below an eighth of the largest number of the dtype (4e37 in float32); beyond it is NaN.

    Args:
        n: number of keys, at least 2, any shape; need not be whole.
        dim: None for Gaussian scores, or the dimension d ≥ 3 of the vectors compared; broadcasts with n.

    Returns:
        α*, in the arguments' floating dtype (the default one for integers); NaN where `optimise_scale` says that
        the search did not end.

    Source: Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> from rc_jax.scale import optimal_scale
        >>> print(f"{optimal_scale(1024):.4f} {optimal_scale(1000, dim=128):.3f}")
        2.1465 26.021
    """
    dtype, (n,), dim = common_with_dim(dim, n=n)
    scale, _ = _optimize(n, dim)
    return scale.astype(dtype)


@arguments.guard(n=arguments.bounded(2), dim=arguments.bounded(3))
def optimise_scale(n: ArrayLike, dim: ArrayLike | None = None) -> Optimum:
    """`optimal_scale` with the objective's value there and whether the search ended.

    Source: Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> from rc_jax.scale import optimise_scale
        >>> optimum = optimise_scale(1024)
        >>> print(f"{optimum.scale:.4f} {optimum.value:.4f} {optimum.converged}")
        2.1465 1.9364 True
    """
    dtype, (n,), dim = common_with_dim(dim, n=n)
    scale, converged = _optimize(n, dim)
    value = objective(jnp.log(scale), jnp.log(n), dim)
    return Optimum(scale.astype(dtype), value.astype(dtype), converged)


@arguments.guard(n=arguments.bounded(2))
def optimal_scale_exact(n: ArrayLike) -> Float[Array, "..."]:
    """The scale α* that maximises the annealed softmax gradient of n Gaussian scores, exactly.

    Formula: α* = √(W₀(n√e/2) − ½), the root of e^{α²}(1 + 2α²) = n; α*/√(log n) → 1 as n → ∞.
    W₀ is taken of a logarithm, so nothing overflows for any representable n.

    Args:
        n: number of keys, at least 2, any shape; need not be whole.

    Returns:
        α*, in n's floating dtype (the default one for integers).

    Source: this package's own result, for the objective of Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> from rc_jax.scale import optimal_scale_exact
        >>> print(f"{optimal_scale_exact(1024):.4f}")
        2.1465
    """
    dtype, (n,) = as_common(n=n)
    n = jnp.where(n >= 2, n, jnp.nan)
    return jnp.sqrt(lambert_w0_exp(jnp.log(n) + (0.5 - math.log(2))) - 0.5).astype(dtype)


@jax.jit
def _optimize(n: jax.Array, dim: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """α*, and whether the search succeeded, by the implicit root of `stationarity` = log n in log α."""
    log_n = jnp.log(jnp.where(n >= 2, n, jnp.nan))
    # `_search` makes its own start, so any array of the right shape serves.
    u, converged = implicit_root(differentiable_stationarity, log_n, log_n, dim, search=_search)
    converged &= u < math.log(float(jnp.finfo(u.dtype).max) / 8)
    return jnp.where(converged, jnp.exp(u), jnp.nan), converged


def _search(_: jax.Array, log_n: jax.Array, dim: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Log α*, and whether the search succeeded: the root of log(`stationarity`/log n), nearly linear in log α."""
    u, slope = first_guess(log_n, dim)
    origin = None if dim is None else debye_at_origin(dim)

    def search(u: jax.Array, slope: jax.Array, terms: int, eps: float) -> tuple[jax.Array, jax.Array, jax.Array]:
        residual = lambda u: jnp.log1p((stationarity(u, dim, origin, terms) - log_n) / log_n)  # noqa: E731
        return rising_root_by_secants(residual, u, slope, eps)

    # In double precision a cheaper function that is right to single precision takes most of the steps.
    eps, single = (float(jnp.finfo(kind).eps) for kind in (log_n.dtype, jnp.float32))
    u, slope, converged = search(u, slope, FEW_TERMS, eps if dim is None else single)
    if dim is not None and eps < single:
        u, _, converged = search(u, slope, TERMS, eps)
    return u, converged
