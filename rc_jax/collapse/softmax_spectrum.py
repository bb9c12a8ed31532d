"""Closed forms for the spectrum of softmax of independent Gaussian logits: how attention collapses in width.

P is n × n, its rows softmax of iid N(0, γ²) logits. An entry is e^a/(n e^{γ²/2}) to leading order: mean 1/n, variance
v/n with v = (e^{γ²} − 1)/n. So P is the outlier 11ᵀ/n plus noise whose squared singular values fill [0, 4v]
(Marchenko–Pastur, square case), until single weights grow larger than the noise is as a whole.
"""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common
from rc_jax._numerics.stable import expm1_ratio, log_expm1_ratio


@arguments.guard(gamma=arguments.bounded(0))
def gaussian_squared_norm(gamma: ArrayLike) -> Float[Array, "..."]:
    """‖P‖_F² of softmax of iid N(0, γ²) logits as n → ∞: e^{γ²}, whatever n is.

    Each of n rows has Σp² → E e^{2a}/(n (E e^a)²) = e^{γ²}/n. At finite n the typical value is smaller, for the mean of
    e^{2a} comes from logits near 2γ², and the largest of n² is near 2γ√(log n): γ must stay below √(log n).

    Args:
        gamma: γ ≥ 0, standard deviation of the logits.

    Returns:
        The squared Frobenius norm, in the argument's dtype and shape.

    Source: Nait Saada et al. 2025, "Mind the gap".

    Example:
        >>> print(f"{gaussian_squared_norm(1.0):.4f}")
        2.7183
    """
    dtype, (gamma,) = as_common(gamma=gamma)
    return jnp.exp(jnp.square(gamma)).astype(dtype)


@arguments.guard(gamma=arguments.bounded(0), n=arguments.bounded(2))
def gaussian_first_singular_value(gamma: ArrayLike, n: ArrayLike) -> Float[Array, "..."]:
    """Largest singular value of softmax of n × n iid N(0, γ²) logits: 1/√(1 − v) while v < ½, and 2√v from there.

    v = (e^{γ²} − 1)/n. It tends to 1 as n → ∞ (published); 1/√(1 − v) is how. Rows sum to 1, so P = 11ᵀ/n + Z with
    Z1 = 0 and P Pᵀ = uuᵀ + ZZᵀ, u = 1/√n. An eigenvalue λ outside the spectrum of ZZᵀ solves uᵀ(λ − ZZᵀ)⁻¹u = 1, and
    the left side is the Stieltjes transform of the Marchenko–Pastur law, (λ − √(λ² − 4vλ))/(2vλ): λ = 1/(1 − v).
    At v = ½ it meets the edge 4v of the noise, and nothing stands out any more.

    Args:
        gamma: γ ≥ 0, standard deviation of the logits.
        n: number of tokens, at least 2; need not be whole.

    Returns:
        The singular value, in the arguments' dtype, their shapes broadcast.

    Source: the limit Nait Saada et al. 2025; the form at finite n is this package's own.

    Example:
        >>> print(f"{gaussian_first_singular_value(1.0, 1024):.6f}")
        1.000840
    """
    dtype, (gamma, n) = as_common(gamma=gamma, n=n)
    root = _root_of_variance(gamma, n)
    inside = root < 0.5**0.5
    outlier = jax.lax.rsqrt(1 - jnp.square(jnp.where(inside, root, 0)))
    return jnp.where(inside, outlier, 2 * root).astype(dtype)


@arguments.guard(gamma=arguments.bounded(0), n=arguments.bounded(2))
def gaussian_second_singular_value(gamma: ArrayLike, n: ArrayLike) -> Float[Array, "..."]:
    """Second singular value of softmax of n × n iid N(0, γ²) logits as n → ∞: 2√((e^{γ²} − 1)/n).

    The edge of the noise. It is the limit at fixed γ. At finite n the largest weight passes it as soon as γ is about
    (1 − 1/√2)√(log n): see `gaussian_spiked_singular_value`.

    Args, errors: as in `gaussian_first_singular_value`.

    Source: Nait Saada et al. 2025, "Mind the gap".

    Example:
        >>> print(f"{gaussian_second_singular_value(1.0, 1024):.5f}")
        0.08193
    """
    dtype, (gamma, n) = as_common(gamma=gamma, n=n)
    return (2 * _root_of_variance(gamma, n)).astype(dtype)


@arguments.guard(gamma=arguments.bounded(0), n=arguments.bounded(2))
def gaussian_spiked_singular_value(gamma: ArrayLike, n: ArrayLike) -> Float[Array, "..."]:
    """Second singular value at finite n: the largest weight as a spike in the noise, θ + v/θ where θ > √v, else 2√v.

    v = (e^{γ²} − 1)/n. θ is the median of the largest weight less the mean weight 1/n. That median is E/(n − 1 + E),
    E = e^{γm − γ²/2}, with m the median of the largest of n² normal numbers. A matrix of one entry θ added to
    noise of edge 2√v has the singular value θ + v/θ once θ > √v (Benaych-Georges & Nadakuditi 2012). With
    γ = β√(log n), θ grows as n^{2β − β²/2 − 1} and √v as n^{(β² − 1)/2}: they meet at β = 1 − 1/√2 = 0.293. At n = 1024
    that is γ = 0.77, and at γ = 1 the limit holds from n = 5·10⁴ on. NaN for γ > √(log n), where many weights are large
    at once and v is not what it typically is; the form is rough from about half of that.

    Args, errors: as in `gaussian_first_singular_value`.

    Source: this package's own result.

    Example:
        >>> print(f"{gaussian_spiked_singular_value(1.0, 1024):.4f}")
        0.0930
    """
    dtype, (gamma, n) = as_common(gamma=gamma, n=n)
    root, log_excess = _root_of_variance(gamma, n), _log_excess(gamma, n)
    log_root = jnp.log(jnp.where(gamma > 0, root, 1))
    some = log_excess > 0
    above = jnp.expm1(jnp.where(some, log_excess, 1))
    log_spike = jnp.log(above) + jnp.log1p(-1 / n) - jnp.log(n + above)
    gap = jnp.where(some & (log_spike > log_root) & (gamma > 0), log_spike - log_root, 0)
    value = 2 * root * jnp.cosh(gap)
    return jnp.where(jnp.square(gamma) <= jnp.log(n), value, jnp.nan).astype(dtype)


@arguments.guard(gamma=arguments.bounded(0), n=arguments.bounded(2))
def gaussian_stable_rank(gamma: ArrayLike, n: ArrayLike, *, centred: bool = False) -> Float[Array, "..."]:
    """Stable rank ‖·‖_F²/s₁² of softmax of n × n iid N(0, γ²) logits: e^{γ²}/s₁², and n/4 once 11ᵀ/n is removed.

    With the outlier: s₁ from `gaussian_first_singular_value`, so e^{γ²} as n → ∞ (published), however large n is.
    Without it (`centred`) the squared singular values follow the Marchenko–Pastur law of mean v and edge 4v, which
    leaves a quarter of n, less what the largest weights take where γ is not small.

    Args, errors: as in `gaussian_first_singular_value`; `centred` is a Python bool.

    Source: Nait Saada et al. 2025; the forms at finite n are this package's own.

    Example:
        >>> print(f"{gaussian_stable_rank(1.0, 1024):.3f}, {gaussian_stable_rank(1.0, 1024, centred=True):.0f}")
        2.714, 256
    """
    dtype, (wide, tokens) = as_common(gamma=gamma, n=n)
    if centred:
        return (tokens / 4).astype(dtype)
    square, root = jnp.square(wide), _root_of_variance(wide, tokens)
    inside = root < 0.5**0.5
    merged = tokens / (-4 * jnp.expm1(-jnp.where(inside, 1, square)))
    return jnp.where(inside, jnp.exp(square) * (1 - jnp.square(jnp.where(inside, root, 0))), merged).astype(dtype)


@arguments.guard(gamma=arguments.bounded(0), n=arguments.bounded(2), dim=arguments.bounded(1))
def layer_second_singular_value(gamma: ArrayLike, n: ArrayLike, dim: ArrayLike) -> Float[Array, "..."]:
    """Second singular value of a random layer's attention matrix, whose logits have rank d: linear part of softmax.

    One head of width d_head = d_model = d with Gaussian weights, on n tokens of iid N(0, 1) features; logits of
    standard deviation γ. They are S = X W_Q W_Kᵀ Xᵀ γ/√d, not independent, and P ≈ 11ᵀ/n + S/n. By free probability
    the squared singular values of S/n, in units of γ²/d, end at 1/χ(z), χ(z) = z/((1 + z)³ (1 + cz)²), c = d/n, where
    χ is largest: 4c z² + (2 + c) z = 1. So s₂ = γ/√(d χ(z)): 2γ/√n for n ≪ d, the iid law for small γ, but
    (3√3/2) γ/√d for n ≫ d: no longer falling with n.

    Args:
        gamma: γ ≥ 0, standard deviation of the logits; the form is to first order in it.
        n: number of tokens, at least 2; need not be whole.
        dim: d, the width of the layer and of its one head, at least 1.

    Returns:
        The singular value, in the arguments' dtype, their shapes broadcast.

    Source: this package's own result.

    Example:
        >>> print(f"{layer_second_singular_value(0.5, 1e6, 64):.3f}")  # 2.598 · 0.5/8
        0.162
    """
    dtype, (gamma, n, d) = as_common(gamma=gamma, n=n, dim=dim)
    c = d / n
    z = 2 / (2 + c + jnp.sqrt(jnp.square(2 + c) + 16 * c))
    return (gamma * jax.lax.rsqrt(d * z) * (1 + z) * jnp.sqrt(1 + z) * (1 + c * z)).astype(dtype)


@jax.jit
def _root_of_variance(gamma: Array, n: Array) -> Array:
    """√v, v = (e^{γ²} − 1)/n, without overflow of e^{γ²}; γ/√n to first order, with derivatives at γ = 0."""
    square = jnp.square(jnp.minimum(gamma, 1e4))  # √v is above every number there
    return gamma * jnp.exp((log_expm1_ratio(square) - jnp.log(n)) / 2)


def _log_excess(gamma: Array, n: Array) -> Array:
    """Logarithm of E: the median of the largest e^a of n² logits, over its mean e^{γ²/2}."""
    return gamma * _median_of_largest(n) - jnp.square(gamma) / 2


@jax.jit
def _median_of_largest(n: Array) -> Array:
    """The median m of the largest of n² normal numbers, Φ(−m) = 1 − 2^{−1/n²}, by Newton's steps in log Φ(−m).

    Its logarithm has a place for every n. The last step has the derivative in n.
    """
    log_tail = math.log(math.log(2)) - 2 * jnp.log(n) + jnp.log(expm1_ratio(-math.log(2) / n / n))

    def step(_: int | Array, m: Array) -> Array:
        ratio = jax.scipy.special.erfcx(m * 0.5**0.5)
        return m + (jnp.log(ratio / 2) - jnp.square(m) / 2 - log_tail) * (math.pi / 2) ** 0.5 * ratio

    far = -2 * log_tail - math.log(2 * math.pi)
    start = jnp.sqrt(far - jnp.log(far))
    return step(0, jax.lax.stop_gradient(jax.lax.fori_loop(0, 4, step, start)))
