"""The annealed mean of softmax's gradient: numerator and denominator averaged apart, for two laws of scores."""

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import common_with_dim
from rc_jax._numerics.stable import expm1
from rc_jax.special import log_bessel_ie, log_hyp0f1


@arguments.guard(alpha=arguments.positive, n=arguments.bounded(2), dim=arguments.bounded(3))
def annealed_objective(alpha: ArrayLike, n: ArrayLike, dim: ArrayLike | None = None) -> Float[Array, "..."]:
    """Mean softmax gradient of n random scores at scale α, in the annealed approximation.

    Formula: α(1 − M(2α)/(n M(α)²)), M(α) = E e^{αs}. Gaussian scores (dim=None): M = e^{α²/2}. Cosines between random
    directions in d dimensions (dim=d): M = ₀F₁(; d/2; α²/4). Evaluated as −α expm1(log M(2α) − 2 log M(α) − log n):
    no moment is ever formed, so only the value itself can overflow (to −inf), where it is that large.
    The approximation fails where a few scores dominate the sum; compare `expected_objective`.

    Args:
        alpha: α > 0, the factor on scores of unit variance (Gaussian) or on cosines.
        n: number of scores, at least 2; need not be whole.
        dim: None for Gaussian scores, or the dimension d ≥ 3 of vectors whose cosines are the scores; may be traced.

    Returns:
        The objective, in the arguments' dtype, their shapes broadcast.

    Source: Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> from rc_jax.scale import annealed_objective
        >>> print(f"{annealed_objective(2.0, 1024):.4f}")  # 2(1 - e^4/1024)
        1.8934
    """
    dtype, (alpha, n), dim = common_with_dim(dim, alpha=alpha, n=n)
    return _objective(alpha, jnp.log(n), dim).astype(dtype)


@arguments.guard(alpha=arguments.positive, dim=arguments.bounded(3))
def log_concentration(alpha: ArrayLike, dim: ArrayLike | None = None) -> Float[Array, "..."]:
    """Logarithm of n times the annealed participation Σp²: log M(2α) − 2 log M(α), in nats.

    Formula: α² for Gaussian scores; for cosines α²/d·(1 + O(α²/d²)) when α is small and ((d−1)/2) log α + const when
    it is large, each without cancellation.

    Args:
        alpha: α > 0.
        dim: None for Gaussian scores, or the dimension d ≥ 3. May be traced.

    Returns:
        The logarithm, in the arguments' dtype, their shapes broadcast. Differentiable to any order in both.

    Source: Su Jianlin, kexue.fm/archives/9812; the large-α form is this package's own.

    Example:
        >>> from rc_jax.scale import log_concentration
        >>> print(f"{log_concentration(1e6, 3):.4f}")  # log(α coth α)
        13.8155
    """
    dtype, (alpha,), dim = common_with_dim(dim, alpha=alpha)
    return concentration(alpha, dim).astype(dtype)


@jax.jit
def concentration(alpha: jax.Array, dim: jax.Array | None) -> jax.Array:
    """`log_concentration` for arrays of one shape and dtype."""
    if dim is None:
        return alpha * alpha
    # by log ₀F₁ for small α; for large α by log(e^{−x}I_v), in which 2α − 2·α has dropped out
    order = dim / 2 - 1
    large = alpha > order + 16
    low, high = jnp.where(large, 1, alpha), jnp.where(large, alpha, order + 17)
    low, high = jnp.stack([2 * low, low]), jnp.stack([2 * high, high])
    b, orders = jnp.stack([dim, dim]) / 2, jnp.stack([order, order])
    moments = log_hyp0f1(b, low * low / 4)
    bessel = log_bessel_ie(orders, high)
    small_form = moments[0] - 2 * moments[1]
    large_form = order * jnp.log(high[1] / 4) - gammaln(dim / 2) + bessel[0] - 2 * bessel[1]
    return jnp.where(large, large_form, small_form)


@jax.jit
def objective(log_alpha: jax.Array, log_n: jax.Array, dim: jax.Array | None) -> jax.Array:
    """The annealed objective in logarithmic variables, for arrays of one shape and dtype."""
    return _objective(jnp.exp(log_alpha), log_n, dim)


@jax.jit
def _objective(alpha: jax.Array, log_n: jax.Array, dim: jax.Array | None) -> jax.Array:
    return -alpha * expm1(concentration(alpha, dim) - log_n)
