"""Entropy of softmax in the annealed approximation, in closed form, and the scale that gives it a prescribed value."""

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments, stable
from rc_jax._numerics.dtypes import as_common, common_with_dim
from rc_jax._numerics.roots import implicit_root
from rc_jax.scale.closed_forms.annealed import concentration
from rc_jax.special import bessel_ratio, log_bessel_ie, log_hyp0f1


@arguments.guard(alpha=arguments.positive, n=arguments.bounded(2), dim=arguments.bounded(3))
def annealed_entropy(alpha: ArrayLike, n: ArrayLike, dim: ArrayLike | None = None) -> Float[Array, "..."]:
    """Shannon entropy of softmax over n random scores at scale α, in the annealed approximation, in nats.

    Formula: H = log n + log M(α) − αM′(α)/M(α), M(α) = E e^{αs}. Gaussian scores: log n − α²/2. Cosines in d
    dimensions: M = ₀F₁(; d/2; α²/4) and M′/M = I_{d/2}(α)/I_{d/2−1}(α). Right for many keys as long as it is positive:
    for Gaussian scores up to α = √(2 log n); beyond, a few keys carry the row and the value is too low or negative.

    Args:
        alpha: α > 0, the factor on scores of unit variance (Gaussian) or on cosines.
        n: number of scores, at least 2; need not be whole.
        dim: None for Gaussian scores, or the dimension d ≥ 3 of vectors whose cosines are the scores; may be traced.

    Returns:
        H, in the arguments' dtype, their shapes broadcast; for cosines with an absolute error of a few roundings of
        the sizes of log n and of log M(α) − α.

    Source: Su Jianlin, kexue.fm/archives/8823 (the question); the closed forms are this package's own.

    Example:
        >>> from rc_jax.scale import annealed_entropy
        >>> print(f"{annealed_entropy(2.0, 1024):.4f}")  # log 1024 - 2
        4.9315
    """
    dtype, (alpha, n), dim = common_with_dim(dim, alpha=alpha, n=n)
    return (jnp.log(n) - entropy_loss(alpha, dim)).astype(dtype)


@arguments.guard(alpha=arguments.positive, n=arguments.bounded(2), dim=arguments.bounded(3))
def annealed_renyi_entropy(alpha: ArrayLike, n: ArrayLike, dim: ArrayLike | None = None) -> Float[Array, "..."]:
    """Rényi's entropy of order 2 of softmax over n random scores, in the annealed approximation, in nats.

    Formula: R = log n − (log M(2α) − 2 log M(α)); Gaussian scores: log n − α². At the annealed optimum α* of
    `optimal_scale` it is log(1 + 2α*²). Right for Gaussian scores up to α = √(2 log n)/2. Arguments as
    `annealed_entropy`.

    Source: this package's own.

    Example:
        >>> from rc_jax.scale import annealed_renyi_entropy
        >>> print(f"{annealed_renyi_entropy(2.0, 1024):.4f}")  # log 1024 - 4
        2.9315
    """
    dtype, (alpha, n), dim = common_with_dim(dim, alpha=alpha, n=n)
    return (jnp.log(n) - concentration(alpha, dim)).astype(dtype)


@arguments.guard(lam=arguments.positive)
def entropy_loss_per_dimension(lam: ArrayLike) -> Float[Array, "..."]:
    """The entropy below log n that logits λ q·k cost, per dimension of vectors of length √d, for many dimensions.

    Formula: (log n − H)/d → ½ log((1 + √(1 + 4λ²))/2) as d → ∞ at fixed λ: λ²/2 for small λ, half the logarithm of the
    golden ratio, 0.2406, at λ = 1, and ½ log λ for large λ. Annealed: it needs log n above d times this.

    Args:
        lam: λ > 0, the factor on the inner product; 1/√d in ordinary attention. Any shape.

    Returns:
        The loss, nats per dimension, in lam's dtype and shape.

    Source: this package's own, for the constant 0.24 of Su Jianlin, kexue.fm/archives/8823.

    Example:
        >>> from rc_jax.scale import entropy_loss_per_dimension
        >>> print(f"{entropy_loss_per_dimension(1.0):.4f}")
        0.2406
    """
    dtype, (lam,) = as_common(lam=lam)
    root = stable.hypot(jnp.ones_like(lam), 2 * lam)
    excess = lam * (2 * lam / (1 + root))  # (root − 1)/2 without cancellation
    return (jnp.log1p(excess) / 2).astype(dtype)


@arguments.guard(sigma=arguments.bounded(0), n=arguments.bounded(2))
def least_entropy(sigma: ArrayLike, n: ArrayLike) -> Float[Array, "..."]:
    """The least Shannon entropy of softmax over n logits whose norm about their mean is σ.

    Formula: log(1 + (n − 1)β) + σ√(n(n − 1)) β/(1 + (n − 1)β), β = e^{−σ√(n/(n − 1))}, attained by one logit ahead of
    n − 1 equal ones.

    Args:
        sigma: σ ≥ 0, norm of the logits less their mean.
        n: number of logits, at least 2; need not be whole.

    Returns:
        The entropy in nats, in the arguments' dtype, their shapes broadcast.

    Source: Zhai et al. (2023), theorem on attention entropy.

    Example:
        >>> from rc_jax.scale.closed_forms.entropy import least_entropy
        >>> print(f"{least_entropy(0.0, 8):.4f}")  # log 8
        2.0794
    """
    dtype, (sigma, n) = as_common(sigma=sigma, n=n)
    lead = sigma * jnp.sqrt(n / (n - 1))
    others = jnp.exp(jnp.log(n - 1) - lead)
    kept = jnp.where(others > 0, lead, 0)  # an infinite score of others that have no weight
    return (jnp.log1p(others) + kept * others / (1 + others)).astype(dtype)


@arguments.guard(n=arguments.bounded(2), entropy=arguments.positive, dim=arguments.bounded(3))
def fixed_entropy_scale(n: ArrayLike, entropy: ArrayLike, dim: ArrayLike | None = None) -> Float[Array, "..."]:
    """The scale α at which softmax over n random scores has a given Shannon entropy H, in the annealed approximation.

    Formula: the root of `annealed_entropy`(α, n) = H; Gaussian scores: α = √(2(log n − H)). Differentiable
    to any order.

    Args:
        n: number of scores, at least 2; need not be whole.
        entropy: H in nats, between 0 and log n, both excluded.
        dim: None for Gaussian scores, or the dimension d ≥ 3 of vectors whose cosines are the scores; may be traced.

    Returns:
        α, in the arguments' dtype, their shapes broadcast; NaN where traced arguments have H ≤ 0 or
        H ≥ log n.

    Source: this package's own.

    Example:
        >>> from rc_jax.scale import fixed_entropy_scale
        >>> print(f"{fixed_entropy_scale(1024, 4.9315):.4f}")
        2.0000
    """
    dtype, (n, entropy), dim = common_with_dim(dim, n=n, entropy=entropy)
    loss = jnp.where(entropy > 0, jnp.log(n) - entropy, -1)
    values = arguments.on_host(loss)
    if values is not None and (values <= 0).any():
        raise ValueError("`entropy` must be below log n, the entropy of a uniform row")
    return _scale_of_loss(loss, dim).astype(dtype)


def entropy_loss(alpha: jax.Array, dim: jax.Array | None) -> jax.Array:
    """αM′/M − log M for arrays of one shape and dtype: rises with α from zero.

    For large α both terms are nearly α. With L = log(e^{−α}M), a function of u = log α, it is L′(u) − L, both small.
    """
    if dim is None:
        return alpha * alpha / 2
    order = dim / 2 - 1
    large = alpha > order + 16
    low, high = jnp.where(large, 1, alpha), jnp.where(large, alpha, order + 17)
    small_form = low * bessel_ratio(order, low) - log_hyp0f1(dim / 2, low * low / 4)
    u = jnp.log(high)
    value, slope = jax.jvp(lambda u: log_bessel_ie(order, jnp.exp(u)) - order * u, (u,), (jnp.ones_like(u),))
    return jnp.where(large, slope - value - order * math.log(2) - gammaln(dim / 2), small_form)


@jax.jit
def _scale_of_loss(loss: jax.Array, dim: jax.Array | None) -> jax.Array:
    """The scale at which `entropy_loss` has a given value; NaN where that is not positive."""
    inside = loss > 0
    loss = jnp.where(inside, loss, 1)
    if dim is None:
        return jnp.where(inside, jnp.sqrt(2 * loss), jnp.nan)
    u, converged = implicit_root(_excess, jnp.log(2 * loss * dim) / 2, loss, dim)
    return jnp.where(inside & converged, jnp.exp(u), jnp.nan)


def _excess(u: jax.Array, loss: jax.Array, dim: jax.Array) -> jax.Array:
    """Zero at the scale e^u that has the loss, and nearly linear in u."""
    return jnp.log(entropy_loss(jnp.exp(u), dim)) - jnp.log(loss)
