"""log ₀F₁(; b; z) and the ratio that is its derivative: every sum below has positive terms, so nothing cancels.

₀F₁(; d/2; α²/4) is the moment generating function, at α, of one coordinate of a random unit vector in d dimensions.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common
from rc_jax.special.debye import SHIFT, correction_at_zero, corrections

SERIES_TERMS = 14


@arguments.guard(b=arguments.bounded(0.5), z=arguments.bounded(0))
def log_hyp0f1(b: ArrayLike, z: ArrayLike) -> Float[Array, "..."]:
    """Logarithm of the confluent hypergeometric limit function ₀F₁(; b; z), for b ≥ ½ and z ≥ 0.

    Formula: log Σ_k z^k / (k! (b)_k). Relative error: about 1e-14 in float64 and 1e-6 in float32, for any z up to the
    square root of the largest number, b from ½ to 1e9, the neighbourhood of z = 0 included.

    Derivatives of every order are right in both arguments: d/dz is ₀F₁(; b+1; z)/(b ₀F₁(; b; z)), and d/db goes through
    the algorithm itself.

    Args:
        b: parameter, dimensionless; half the dimension when used for a sphere.
        z: argument, same shape as b or broadcastable to it.

    Returns:
        The logarithm (nats), in the arguments' dtype; NaN where traced arguments leave the domain.

    Source: recurrence DLMF 16.3.6 (₀F₁ contiguous relation) upon Debye's expansion DLMF 10.41.3.

    Example:
        >>> from rc_jax.special import log_hyp0f1
        >>> print(f"{log_hyp0f1(1.5, 1.0):.4f}")  # log(sinh(2)/2)
        0.5952
    """
    dtype, (b, z) = as_common(b=b, z=z)
    return _log_hyp0f1(b, z).astype(dtype)


@jax.custom_jvp
def _log_hyp0f1(b: jax.Array, z: jax.Array) -> jax.Array:
    return recur(b, z, jnp.ones_like(z))[1]


def _log_hyp0f1_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    """The ratio for z, itself differentiable without cancellation; the algorithm's own derivative for b, if b moves."""
    (b, z), (b_dot, z_dot) = primals, tangents
    one = jnp.ones_like(z)
    ratio, out = recur(b, z, one)
    dot = jnp.zeros_like(out)
    if not isinstance(z_dot, SymbolicZero):
        dot = dot + ratio / b * z_dot
    if not isinstance(b_dot, SymbolicZero):
        dot = dot + jax.jvp(lambda b: recur(b, z, one)[1], (b,), (b_dot,))[1]
    return out, dot


_log_hyp0f1.defjvp(_log_hyp0f1_jvp, symbolic_zeros=True)


@jax.jit
def recur(b: jax.Array, z: jax.Array, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The ratio ₀F₁(b+1)/₀F₁(b) and log ₀F₁(b) at z times a factor: from b + SHIFT down to b, positive terms only.

    The product is never formed: of two numbers as large as b it could overflow.
    """
    inside = (b >= 0.5) & (z >= 0)
    b, z = jnp.where(inside, b, 1), jnp.where(inside, z, 1)

    def down(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        ratio, log = carry
        c = b + (SHIFT - 1 - i).astype(b.dtype)
        step = z / c * (factor / (c + 1)) * ratio
        return 1 / (1 + step), log + jnp.log1p(step)

    ratio, log = jax.lax.fori_loop(0, SHIFT, down, _at_high_order(b + SHIFT, z, factor))
    return jnp.where(inside, ratio, jnp.nan), jnp.where(inside, log, jnp.nan)


def _at_high_order(b: jax.Array, z: jax.Array, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same pair by Debye's expansion, for b ≥ SHIFT + ½; the logarithm is taken relative to z = 0."""
    v = b - 1
    relative = z / v * (factor / v)
    unit = jax.lax.stop_gradient(jnp.maximum(v, jnp.sqrt(z) * jnp.sqrt(factor)))  # keeps squares in range
    s = unit * jnp.sqrt(v / unit * (v / unit) + 4 * (z / unit) * (factor / unit))
    # the leading term is S − v − v log((S + v)/2v) with S = s, in forms that vanish with z
    t, p = 1 / s, v / s
    p2 = p * p
    excess = 2 * (z / v * (factor / (s + v)))  # (S − v)/2v
    correction, slope = corrections(t, p2)
    ratio = 2 * (b / v) * (v / (s + v) - p2 / v * (0.5 + slope))
    leading = 4 * (z / (s + v) * factor) - v * jnp.log1p(excess) - jnp.log1p(4 * relative) / 4
    expansion = leading + correction - correction_at_zero(1 / v)
    small = z / b * factor < 0.1
    return ratio, jnp.where(small, jnp.log1p(_series(b, jnp.where(small, z, 0) * factor)), expansion)


def _series(b: jax.Array, z: jax.Array) -> jax.Array:
    """₀F₁ − 1 by its power series, for z < b/10."""
    total = jnp.zeros_like(z)
    for k in range(SERIES_TERMS, 0, -1):
        total = z / (k * (b + (k - 1))) * (1 + total)
    return total
