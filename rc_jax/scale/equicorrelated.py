"""Logits γ log n times the inner products of equicorrelated tokens: where attention stops averaging everything."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common
from rc_jax._numerics.roots import implicit_root
from rc_jax.scale.results import OutputGram

_BELOW_ONE = arguments.bounded(0, 1, open_high=True)
_two_checked = arguments.guard(rho=_BELOW_ONE, n=arguments.bounded(2))


@arguments.guard(gamma=arguments.bounded(0), rho=_BELOW_ONE, n=arguments.bounded(2))
def outputs(gamma: ArrayLike, rho: ArrayLike, n: ArrayLike) -> OutputGram:
    """Inner products of the outputs of attention on n unit tokens with all inner products ρ (values = tokens).

    Formula: with a = p_ii − p_ij, outputs have the inner product c = ρ + (1 − ρ)(1 − a²)/n, the squared length
    c + (1 − ρ)a² and the cosine c/(c + (1 − ρ)a²). The cosine falls from 1 to ρ near γ = 1/(1 − ρ); the inner product
    is ρ + O(1/n) throughout, and it is the length that shrinks to √ρ where attention averages.

    Args:
        gamma: γ ≥ 0, coefficient of log n.
        rho: ρ in [0, 1), inner product of two different tokens.
        n: number of tokens, at least 2; need not be whole.

    Returns:
        `squared_length`, `inner_product` and `similarity`, in the arguments' dtype, their shapes broadcast.

    Source: this package's own result, in the setting of Chen et al. 2026, arXiv 2510.05554.

    Example:
        >>> from rc_jax.scale.equicorrelated import outputs
        >>> gram = outputs(jax.numpy.array([1.0, 3.0]), 0.5, 1e6)
        >>> print([f"{x:.3f}" for x in gram.similarity], [f"{x:.3f}" for x in gram.inner_product])
        ['1.000', '0.500'] ['0.500', '0.500']
    """
    dtype, (gamma, rho, n) = as_common(gamma=gamma, rho=rho, n=n)
    return OutputGram(*(x.astype(dtype) for x in _outputs(gamma, rho, n)))


@arguments.guard(gamma=arguments.bounded(0), rho=_BELOW_ONE)
def similarity_limit(gamma: ArrayLike, rho: ArrayLike) -> Float[Array, "..."]:
    """Cosine of two output tokens as n → ∞ at fixed γ and ρ: a step.

    Formula: 1 for γ < 1/(1 − ρ), ρ above, 4ρ/(1 + 3ρ) on it, where p_ii = ½. Orthogonal tokens, ρ = 0, are another
    limit: the step is at γ = ½, with ½ on it. γ is compared with the rounded 1/(1 − ρ) of the working dtype, which is
    `critical_gamma`(ρ): of a γ written in another way, such as 10 at ρ = 0.9, rounding decides on which side it lies.

    Args:
        gamma: γ ≥ 0.
        rho: ρ in [0, 1).

    Returns:
        The limit, in the arguments' dtype, their shapes broadcast.

    Source: ρ > 0: Chen et al. 2026, arXiv 2510.05554; the values on the step and ρ = 0: this package's own.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale.equicorrelated import similarity_limit
        >>> print(similarity_limit(jnp.array([1.9, 2.0, 2.1]), 0.5))
        [1.  0.8 0.5]
    """
    dtype, (gamma, rho) = as_common(gamma=gamma, rho=rho)
    step, on_it = _critical_limit(rho), jnp.where(rho > 0, 4 * rho / (1 + 3 * rho), 0.5)
    below_or_above = jnp.where(gamma < step, 1, jnp.where(gamma > step, rho, on_it))
    return jnp.where(jnp.isnan(gamma) | jnp.isnan(rho), jnp.nan, below_or_above).astype(dtype)


@_two_checked
def critical_gamma(rho: ArrayLike, n: ArrayLike | None = None) -> Float[Array, "..."]:
    """The γ at which the cosine of two output tokens is half way down, (1 + ρ)/2.

    Formula: a² = r/(1 + r) with r = ρ + (1 − ρ)/n, and γ = log[(1 + (n − 1)a)/(1 − a)]/((1 − ρ) log n), exactly. For
    n → ∞ at fixed ρ > 0, (1 − ρ)γ = 1 + log(a/(1 − a))/log n + …, a² = ρ/(1 + ρ). For ρ = 0 the limit is ½; it rules as
    long as ρ ≲ 1/n.

    Args:
        rho: ρ in [0, 1).
        n: number of tokens, at least 2, or None for the limit n → ∞: 1/(1 − ρ), ½ at ρ = 0.

    Returns:
        γ, in the arguments' dtype, their shapes broadcast.

    Source: the limit: Chen et al. 2026, arXiv 2510.05554; finite n and ρ = 0: this package's own result.

    Example:
        >>> from rc_jax.scale.equicorrelated import critical_gamma
        >>> print(f"{critical_gamma(0.5, 1024):.3f} {critical_gamma(0.5):.1f} {critical_gamma(0.0, 1e6):.3f}")
        2.090 2.0 0.500
    """
    if n is None:
        dtype, (rho,) = as_common(rho=rho)
        return _critical_limit(rho).astype(dtype)
    dtype, (rho, n) = as_common(rho=rho, n=n)
    n = _at_least_two(n)
    mean_square, a = _half_way(rho, n)
    logit = jnp.log1p((n - 1) * a) + jnp.log1p(a) + jnp.log1p(mean_square)  # 1/(1 − a) = (1 + r)(1 + a)
    return (logit / (1 - rho) / jnp.log(n)).astype(dtype)


@_two_checked
def transition_width(rho: ArrayLike, n: ArrayLike) -> Float[Array, "..."]:
    """Width in γ over which the cosine of two output tokens falls from 1 to ρ, at its slope half way down.

    Formula: (1 − ρ)/|d cos/dγ| at `critical_gamma`; 2/((1 − ρ²)(1 − √(ρ/(1 + ρ))) log n) for large n: the transition
    narrows like 1/((1 − ρ) log n), no faster.

    Args:
        rho: ρ in [0, 1).
        n: number of tokens, at least 2; need not be whole.

    Returns:
        The width in units of γ, in the arguments' dtype, their shapes broadcast.

    Source: this package's own result, in the setting of Chen et al. 2026, arXiv 2510.05554.

    Example:
        >>> from rc_jax.scale.equicorrelated import transition_width
        >>> print(f"{transition_width(0.5, 1024):.3f} {transition_width(0.5, 1e30):.3f}")  # as 1/log n
        0.910 0.091
    """
    dtype, (rho, n) = as_common(rho=rho, n=n)
    n = _at_least_two(n)
    mean_square, a = _half_way(rho, n)
    # With L the squared length of an output, |d cos/da| = 2a(1 − ρ)(1/n + (1 − 1/n) cos)/L and
    # da/dγ = (1 + (n − 1)a)(1 − a)(1 − ρ)(log n)/n. `squared` is nL, `below` is 1 − a.
    squared = n * rho + (1 - rho) * (1 + (n - 1) * (mean_square / (1 + mean_square)))
    slope = 1 / n + (n - 1) / n * ((1 + rho) / 2)
    below = 1 / ((1 + mean_square) * (1 + a))
    ratio = jnp.exp(jnp.log(squared) - jnp.log1p((n - 1) * a) - jnp.log(a))
    return (ratio / (2 * slope * below * (1 - rho) * jnp.log(n))).astype(dtype)


@_two_checked
def optimal_gamma(rho: ArrayLike, n: ArrayLike) -> Float[Array, "..."]:
    """The γ that maximises softmax's gradient on n unit tokens with all inner products ρ.

    Formula: argmax_γ of ½‖J‖₁ = β(1 − p)(1 + p − (1 − p)/(n − 1)) with p = p_ii and β = γ log n. x = (1 − ρ)γ log n is
    the root of 2x p a = 1 + p − (1 − p)/(n − 1), the same for every ρ. p falls like (2 log n)^{−½}: the optimum lies
    below the critical 1/(1 − ρ), by about log(2 log n)/(2(1 − ρ) log n), and has the same limit.

    Args:
        rho: ρ in [0, 1).
        n: number of tokens, at least 2; need not be whole.

    Returns:
        γ, in the arguments' dtype, their shapes broadcast; NaN where the search did not end. Differentiable.

    Source: this package's own result, for the gradient of Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> from rc_jax.scale.equicorrelated import optimal_gamma
        >>> print(f"{optimal_gamma(0.5, 1024):.3f} {optimal_gamma(0.5, 1e30):.3f}")
        1.792 1.933
    """
    dtype, (rho, n) = as_common(rho=rho, n=n)
    return _optimal(rho, n).astype(dtype)


@jax.jit
def _outputs(gamma: jax.Array, rho: jax.Array, n: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Squared length, inner product and cosine, finite with their derivatives wherever n and 1/n are."""
    # a = p_ii − p_ij = (1 − e^{−x})p_ii with x = (1 − ρ)γ log n: no difference of near equals
    logit = _logit(gamma, rho, n)
    a = -jnp.expm1(-(1 - rho) * gamma * jnp.log(n)) * jax.nn.sigmoid(logit)
    below = jax.nn.sigmoid(-logit) / ((n - 1) / n)  # 1 − a
    inner = rho + (1 - rho) * below * (1 + a) / n
    squared = inner + (1 - rho) * a * a
    # the cosine from n times both, over a constant that keeps them and their derivatives in range
    root = jnp.sqrt(n - 1) * a
    size = jax.lax.stop_gradient(jnp.sqrt(n * rho + (1 - rho) * (1 + root * root)))
    common = rho * (n / size / size)
    numerator = common + (1 - rho) * below * (1 + a) / size / size
    denominator = common + (1 - rho) * (1 / size / size + (root / size) ** 2)
    return squared, inner, numerator / denominator


@jax.jit
def _optimal(rho: jax.Array, n: jax.Array) -> jax.Array:
    """γ = x/((1 − ρ) log n) with the root x = e^u of `_stationarity`."""
    log_n = jnp.log(n)
    u, converged = implicit_root(_stationarity, jnp.log(log_n + 0.5), _at_least_two(n))
    return jnp.where(converged, jnp.exp(u) / (1 - rho) / log_n, jnp.nan)


def _stationarity(u: jax.Array, n: jax.Array) -> jax.Array:
    """Log of 2x p a/(1 + p − (1 − p)/(n − 1)) at x = e^u: rises through zero where x(1 − Σp²) is largest."""
    x = jnp.exp(u)
    logit = x - jnp.log(n - 1)
    log_p = jax.nn.log_sigmoid(logit)
    p, rest = jax.nn.sigmoid(logit), jax.nn.sigmoid(-logit)
    return jnp.log(2 * x * -jnp.expm1(-x)) + 2 * log_p - jnp.log1p(p - rest / (n - 1))


def _logit(gamma: jax.Array, rho: jax.Array, n: jax.Array) -> jax.Array:
    """Log p_ii/(1 − p_ii)."""
    n = _at_least_two(n)
    return (1 - rho) * gamma * jnp.log(n) - jnp.log(n - 1)


def _half_way(rho: jax.Array, n: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Squared length r = ρ + (1 − ρ)/n of the mean token, a = p_ii − p_ij where the output's cosine is (1 + ρ)/2."""
    mean_square = rho + (1 - rho) / n
    return mean_square, jnp.sqrt(mean_square / (1 + mean_square))


def _critical_limit(rho: jax.Array) -> jax.Array:
    """`critical_gamma` for n → ∞."""
    return jnp.where(rho == 0, 0.5, 1 / (1 - rho))


def _at_least_two(n: jax.Array) -> jax.Array:
    """n, or NaN below 2, which only a traced n can be."""
    return jnp.where(n >= 2, n, jnp.nan)
