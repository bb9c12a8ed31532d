"""Exponential and identity kernels under Gaussian keys: elementary closed forms.

Weights a_j ∝ f(q·k_j) with keys k ~ N(μ, σ²I) depend on the query only through β = q·μ and γ = σ‖q‖, so that
S = E|f(β + γε)| / √E f(β + γε)² with a standard normal ε.
"""

import math

import jax
import jax.numpy as jnp
from jax.scipy import special
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments, stable
from rc_jax._numerics.dtypes import as_common
from rc_jax.sparsity.closed_forms.squared_relu import direction


@arguments.guard(gamma=arguments.bounded(0))
def exponential(gamma: ArrayLike) -> Float[Array, "..."]:
    r"""Sparsity of softmax attention, f = exp: S = e^{−γ²/2}, whatever β is.

    Args:
        gamma: Standard deviation γ = σ‖q‖ ≥ 0 of the logits of one row, in nats; any shape.

    Returns:
        S, in the shape of `gamma`; a pure number.

    Source: Su Jianlin, kexue.fm/archives/9889, the exponential kernel.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.exponential(1.0):.6f}")
        0.606531
    """
    dtype, (gamma,) = as_common(gamma=gamma)
    return jnp.where(gamma >= 0, jnp.exp(-jnp.square(gamma) / 2), jnp.nan).astype(dtype)


@arguments.guard(gamma=arguments.positive)
def identity(beta: ArrayLike, gamma: ArrayLike) -> Float[Array, "..."]:
    r"""Sparsity of attention whose weights are the logits themselves, f(x) = x.

    S = (√(2/π)·γ·e^{−β²/2γ²} + β·erf(β/√2γ)) / √(β² + γ²). Even in β, 1 as γ → 0, and never below √(2/π) = 0.798 (at
    β = 0): linear attention cannot focus.

    Args:
        beta: Mean β = q·μ of the logits of one row; any shape that broadcasts with `gamma`.
        gamma: Their standard deviation γ = σ‖q‖ > 0.

    Returns:
        S, in the broadcast shape; a pure number.

    Source: Su Jianlin, kexue.fm/archives/9889, the identity kernel.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.identity(0.0, 3.0):.6f}")
        0.797885
    """
    dtype, (beta, gamma) = as_common(beta=beta, gamma=gamma, positive=("gamma",))
    return _identity(beta, gamma).astype(dtype)


@jax.custom_jvp
def _identity(beta: Array, gamma: Array) -> Array:
    return jnp.where(gamma > 0, _of_ratio(beta / gamma), jnp.nan)


@jax.jit
def _of_ratio(ratio: Array) -> Array:
    length = stable.hypot(jnp.ones_like(ratio), ratio)
    bell = math.sqrt(2 / math.pi) * jnp.exp(-jnp.square(ratio) / 2)
    value = bell / length + jnp.abs(ratio / length) * special.erf(jnp.abs(ratio) * 0.5**0.5)
    return jnp.where(jnp.isinf(ratio), 1, value)


@_identity.defjvp
def _identity_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return _identity(*primals), _slope(*primals, *tangents)


@jax.jit
def _slope(beta: Array, gamma: Array, by_beta: Array, by_gamma: Array) -> Array:
    """The differential sign(r)·P(χ²₃ ≤ r²)·c·(c dβ − s dγ)/h, with h = √(β² + γ²), c = γ/h, s = β/h and r = β/γ.

    There is no 1/γ² to overflow. In dS/dr = sign(r)·P/(1 + r²)^{3/2} two terms that nearly cancel at both ends are
    summed by hand.
    """
    ratio = beta / gamma
    half_square = jnp.square(jnp.clip(ratio, -100, 100)) / 2
    within = jnp.sign(ratio) * special.gammainc(jnp.full_like(ratio, 1.5), half_square)
    sine, cosine, inverse = direction(beta, gamma)
    return within * cosine * (cosine * by_beta - sine * by_gamma) * inverse
