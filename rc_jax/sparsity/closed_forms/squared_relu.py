"""The squared-ReLU kernel under Gaussian keys, where the textbook closed form loses every digit in the far tail.

With r = β/γ the sparsity is S = m₂/√m₄, m_k(r) = E max(r + ε, 0)^k. For r ≥ 0 the closed forms are sums of positive
terms. For r < 0 they cancel; there, with t = −r, s = √(1 + t²), u = v/s,

    m_k = φ(t) ∫₀^∞ u^k e^{−u²/2 − tu} du = φ(t) s^{−k−1} I_k,    I_k = ∫₀^∞ v^k e^{−v²/2s² − tv/s} dv,

so the Gaussian enters only as its logarithm, and the I_k are integrals of positive functions that keep their shape
for all t (half a Gaussian at t = 0, an exponential at t = ∞). A fixed double-exponential rule does them all.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.stats import norm
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments, stable
from rc_jax._numerics.dtypes import as_common

_STEP = np.arange(-3.5, 4.2, 0.085)
_NODES = np.exp(_STEP - np.exp(-_STEP))  # v = e^{y − e^{−y}} turns the half line into a rapidly decaying integrand
_WEIGHTS = _NODES * (1 + np.exp(-_STEP)) * 0.085


@arguments.guard(gamma=arguments.positive)
def relu_squared(beta: ArrayLike, gamma: ArrayLike) -> Float[Array, "..."]:
    r"""Sparsity of squared-ReLU attention, f(x) = max(x, 0)².

    S = m₂/√m₄ with, for γ = 1, m₂ = (β² + 1)Φ + βφ and m₄ = (β⁴ + 6β² + 3)Φ + (β³ + 5β)φ, where Φ and φ are the normal
    distribution function and density at β. Only β/γ matters: 1/√6 at β = 0, 1 as β/γ → ∞, and 0 as β/γ → −∞,
    where S falls like e^{−β²/4γ²}. Far in that tail S underflows to 0 with a finite gradient; `log_relu_squared` does
    not.

    Args:
        beta: Mean β = q·μ of the logits of one row; any shape that broadcasts with `gamma`.
        gamma: Their standard deviation γ = σ‖q‖ > 0.

    Returns:
        S, in the broadcast shape; a pure number.

    Source: Su Jianlin, kexue.fm/archives/9889, the squared-ReLU kernel; the evaluation for β < 0 is this package's own.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.relu_squared(0.0, 1.0):.6f} {sparsity.relu_squared(-2.0, 1.0):.4f}")
        0.408248 0.0720
    """
    dtype, (beta, gamma) = as_common(beta=beta, gamma=gamma, positive=("gamma",))
    return _sparsity(beta, gamma).astype(dtype)


@arguments.guard(gamma=arguments.positive)
def log_relu_squared(beta: ArrayLike, gamma: ArrayLike) -> Float[Array, "..."]:
    r"""Logarithm of `relu_squared`, accurate to rounding where S itself underflows.

    log S → −r²/4 − ½ log|r| + ½ log(1/6) − ¼ log 2π as r = β/γ → −∞. Finite, with its gradient, as long as r² is.

    Args:
        beta: Mean β = q·μ of the logits of one row; any shape that broadcasts with `gamma`.
        gamma: Their standard deviation γ = σ‖q‖ > 0.

    Returns:
        log S in nats, in the broadcast shape.

    Source: this package's own evaluation of the kernel of Su Jianlin, kexue.fm/archives/9889.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.log_relu_squared(-1e4, 1.0):.6g}")
        -2.5e+07
    """
    dtype, (beta, gamma) = as_common(beta=beta, gamma=gamma, positive=("gamma",))
    return _log_sparsity(beta, gamma).astype(dtype)


@jax.custom_jvp
def _log_sparsity(beta: Array, gamma: Array) -> Array:
    return jnp.where(gamma > 0, _of_ratio(beta / gamma), jnp.nan)


@jax.jit
def _of_ratio(ratio: Array) -> Array:
    second, fourth, _ = _right(ratio)
    inverse_length, tail = _tail(ratio)
    left = -jnp.square(ratio) / 4 - math.log(2 * math.pi) / 4 + jnp.log(inverse_length) / 2
    left += jnp.log(tail[..., 2]) - jnp.log(tail[..., 4]) / 2
    return jnp.where(ratio < 0, left, jnp.log(second) - jnp.log(fourth) / 2)


@_log_sparsity.defjvp
def _log_sparsity_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return _log_sparsity(*primals), _slope(*primals, *tangents, jnp.ones_like(primals[0]))


@jax.custom_jvp
def _sparsity(beta: Array, gamma: Array) -> Array:
    return jnp.exp(_log_sparsity(beta, gamma))


@_sparsity.defjvp
def _sparsity_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    beta, gamma = primals
    value = _sparsity(beta, gamma)
    beta = jnp.maximum(beta, -100 * gamma)  # beyond, S is 0, and so is its slope: nothing else may overflow
    return value, _slope(beta, gamma, *tangents, value)


@jax.jit
def _slope(beta: Array, gamma: Array, by_beta: Array, by_gamma: Array, factor: Array) -> Array:
    """A factor times the differential of log S. As m_k' = k·m_{k−1}, d log S/dr = 2(m₁/m₂ − m₃/m₄).

    For r ≥ 0 that difference is expanded into positive terms D = m₁m₄ − m₂m₃, and dr = (γ dβ − β dγ)/γ² is written with
    c = γ/√(β² + γ²), s = β/√(β² + γ²): as c → 0 neither 1/γ² overflows nor D underflows.
    """
    ratio = beta / gamma
    second, fourth, difference = _right(ratio)
    inverse_length, tail = _tail(ratio)
    left = 2 * (tail[..., 1] / tail[..., 2] - tail[..., 3] / tail[..., 4]) / inverse_length
    left = factor * left * (by_beta - jnp.where(ratio < 0, ratio, 0) * by_gamma) / gamma
    sine, cosine, inverse = direction(jnp.maximum(beta, 0), gamma)
    right = factor * 2 * cosine * difference / (second * fourth) * (cosine * by_beta - sine * by_gamma) * inverse
    return jnp.where(ratio < 0, left, right)


def _right(ratio: Array) -> tuple[Array, Array, Array]:
    """For r ≥ 0, with g = 1/√(1+r²) and b = rg: g²m₂, g⁴m₄ and g³(m₁m₄ − m₂m₃), each a sum of positive terms."""
    clipped = jnp.where(ratio < 0, 0, jnp.minimum(ratio, _largest(ratio)))  # not clip: it halves the gradient at 0
    g = 1 / stable.hypot(jnp.ones_like(clipped), clipped)
    b = clipped * g
    below, density = norm.cdf(clipped), norm.pdf(clipped)
    second = below + b * g * density
    fourth = (b**4 + 6 * b**2 * g**2 + 3 * g**4) * below + b * g * (b**2 + 5 * g**2) * density
    difference = 2 * b**3 * below**2 + (5 * b**2 * g + g**3) * below * density + 3 * b * g**2 * density**2
    return second, fourth, difference


def _tail(ratio: Array) -> tuple[Array, Array]:
    """For r = −t < 0: 1/s and the integrals I₀ … I₄ on a last axis."""
    t = jnp.where(ratio < 0, jnp.minimum(-ratio, _largest(ratio)), 0)
    inverse_length = 1 / stable.hypot(jnp.ones_like(t), t)
    nodes = jnp.asarray(_NODES, ratio.dtype).reshape((1,) * ratio.ndim + (-1,))
    moments = jnp.asarray(_WEIGHTS[:, None] * _NODES[:, None] ** np.arange(5), ratio.dtype)
    exponent = jnp.square(inverse_length[..., None] * nodes) / 2 + (t * inverse_length)[..., None] * nodes
    return inverse_length, jnp.matmul(jnp.exp(-exponent), moments, precision="highest")


def _largest(ratio: Array) -> float:
    """The |r| from which r² overflows."""
    return float(jnp.finfo(ratio.dtype).max) ** 0.5 / 2


def direction(beta: jax.Array, gamma: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """β/h, γ/h and 1/h of h = √(β² + γ²), from values over the larger of the two, so that no square is lost."""
    size = lax.stop_gradient(jnp.maximum(jnp.abs(beta), gamma))
    beta, gamma = beta / size, gamma / size
    length = jnp.sqrt(jnp.square(beta) + jnp.square(gamma))
    return beta / length, gamma / length, 1 / length / size
