"""Softmax with one more logit, whose weight goes nowhere: the size of its Jacobian, and the scale that maximises it."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common
from rc_jax.scale.closed_forms.annealed import at_least_two

_HALVINGS = 64  # of a bracket whose ends differ by a factor below 2⁸, down to the rounding of double precision


@arguments.guard(alpha=arguments.positive, n=at_least_two, sink=arguments.real)
def sink_objective(alpha: ArrayLike, n: ArrayLike, sink: ArrayLike = 0.0) -> Float[Array, "..."]:
    """Mean gradient of e^{αs_i}/(e^b + Σ e^{αs_j}) with n Gaussian scores, numerator and denominator averaged apart.

    Half the sum of |∂p_i/∂s_j| is α(ρ(1 + ρ)/2 − Σp²), with ρ = Σp the share of the n keys; at ρ = 1 it is the measure
    α(1 − Σp²) of softmax. Annealed, ρ = sigmoid(log n + α²/2 − b) and Σp² = ρ² e^{α²}/n.

    Args:
        alpha: α > 0.
        n: number of keys, at least 2.
        sink: the logit b; 0 is softmax off by one, −∞ would be softmax.

    Returns:
        The objective, in the arguments' dtype, their shapes broadcast.

    Raises:
        TypeError: if an argument is not real.
        ValueError: if α <= 0, n < 2, or the shapes do not broadcast.

    Source: the measure is Su Jianlin's (kexue.fm/archives/9812); for these weights it is this package's own.

    Example:
        >>> from rc_jax.scale import annealed_objective, sink_objective
        >>> print(f"{sink_objective(2.0, 1024):.4f} {annealed_objective(2.0, 1024):.4f}")
        1.8930 1.8934
    """
    dtype, (alpha, n, sink) = as_common(alpha=alpha, n=n, sink=sink)
    log_share = _log_share(alpha, n, sink)
    share, squares = jnp.exp(log_share), jnp.exp(2 * log_share + jnp.square(alpha) - jnp.log(n))
    return (alpha * (share * (1 + share) / 2 - squares)).astype(dtype)


@arguments.guard(n=at_least_two, sink=arguments.real)
def sink_scale(n: ArrayLike, sink: ArrayLike = 0.0) -> Float[Array, "..."]:
    """The scale α* that maximises `sink_objective`.

    With b = 0 it is `optimal_scale_exact` to order 1/n. A sink that holds a share of the row, b = log n + β, moves it
    up, because a larger α lifts the keys above the sink; α*/√(log n) → 1 all the same.

    Args:
        n: number of keys, at least 2, any shape; need not be whole.
        sink: the logit b; broadcasts with n.

    Returns:
        α*, in the arguments' floating dtype. It has no derivative.

    Raises:
        TypeError: if an argument is not real.
        ValueError: if n < 2, or the shapes do not broadcast.

    Source: this package's own.

    Example:
        >>> from rc_jax.scale import optimal_scale_exact, sink_scale
        >>> import math
        >>> print(f"{sink_scale(1024):.4f} {sink_scale(1024, math.log(1024)):.4f} {optimal_scale_exact(1024):.4f}")
        2.1467 2.2277 2.1465
    """
    dtype, (n, sink) = as_common(n=n, sink=sink)
    return _scale(n, sink).astype(dtype)


def _log_share(alpha: Array, n: Array, sink: Array) -> Array:
    """Logarithm of ρ, which may underflow."""
    return jax.nn.log_sigmoid(jnp.log(n) + jnp.square(alpha) / 2 - sink)


def _share_and_rest(alpha: Array, n: Array, sink: Array) -> tuple[Array, Array]:
    """Logarithm of ρ, and the factor (1 + ρ)/2 − Σp²/ρ of α ρ; e^{α²} may overflow."""
    log_share = _log_share(alpha, n, sink)
    collisions = jnp.exp(log_share + jnp.square(alpha) - jnp.log(n))
    return log_share, (1 + jnp.exp(log_share)) / 2 - collisions


@jax.jit
def _scale(n: Array, sink: Array) -> Array:
    """Bisection of the sign of the slope of the objective's logarithm, positive at first and negative in the end."""

    def log_objective(alpha: Array) -> Array:
        log_share, rest = _share_and_rest(alpha, n, sink)
        return jnp.sum(jnp.log(alpha) + log_share + jnp.log(rest))

    # At the upper end e^{α²} > n (1 + ρ)/(2ρ), where the objective is negative and its logarithm has no slope.
    ends = jnp.full_like(n, 0.05), jnp.sqrt(jnp.log(n) + jnp.maximum(sink, 0) + 2)

    def halve(_: Array | int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = (ends[0] + ends[1]) / 2
        rising = (_share_and_rest(middle, n, sink)[1] > 0) & (jax.grad(log_objective)(middle) > 0)
        return jnp.where(rising, middle, ends[0]), jnp.where(rising, ends[1], middle)

    low, high = jax.lax.fori_loop(0, _HALVINGS, halve, ends)
    return jnp.where(n >= 2, (low + high) / 2, jnp.nan)
