"""Modified Bessel functions of the first kind, in logarithms and ratios, for any order and size of argument."""

import functools
import math

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common
from rc_jax.special.debye import SHIFT, corrections
from rc_jax.special.hyp0f1 import recur


@arguments.guard(order=arguments.bounded(-0.5), x=arguments.positive)
def log_bessel_i(order: ArrayLike, x: ArrayLike) -> Float[Array, "..."]:
    """Logarithm of the modified Bessel function I_v(x), for real order v ≥ −½ and x > 0.

    Stable where I_v itself under- or overflows (order 32 767, argument 1e5), as long as v log v and v log x do not.
    Relative error about 1e-14 in float64, absolute where log I_v passes through zero. Derivatives of every order are
    right, in x through the ratio I_{v+1}/I_v, in the order through the algorithm.

    Args:
        order: v, dimensionless.
        x: argument; shapes broadcast.

    Returns:
        log I_v(x) in nats, in the arguments' dtype; NaN where traced arguments leave the domain.

    Source: DLMF 10.39.9, 10.41.3.

    Example:
        >>> from rc_jax.special import log_bessel_i
        >>> print(f"{log_bessel_i(32767, 1e3):.0f}")  # the function itself is 1e-45289
        -104282
    """
    dtype, (v, x) = as_common(order=order, x=x)
    return _inside(v, x > 0, _log_i(v, x, 0)).astype(dtype)


@arguments.guard(order=arguments.bounded(-0.5), x=arguments.positive)
def log_bessel_ie(order: ArrayLike, x: ArrayLike) -> Float[Array, "..."]:
    """Logarithm of the exponentially scaled Bessel function e^{−x} I_v(x), which keeps its digits as x grows.

    Formula: → −½ log(2πx) as x → ∞. Arguments, result and errors as `log_bessel_i`.

    Source: DLMF 10.40.1, 10.41.3.

    Example:
        >>> from rc_jax.special import log_bessel_ie
        >>> print(f"{log_bessel_ie(0.5, 1e8):.4f}")  # -log(2 pi 1e8)/2
        -10.1293
    """
    dtype, (v, x) = as_common(order=order, x=x)
    return _inside(v, x > 0, _log_i(v, x, 1)).astype(dtype)


@arguments.guard(order=arguments.bounded(-0.5), x=arguments.bounded(0))
def bessel_ratio(order: ArrayLike, x: ArrayLike) -> Float[Array, "..."]:
    """Ratio I_{v+1}(x)/I_v(x), in [0, 1): the mean of the cosine under the density ∝ e^{xs}(1−s²)^{v−½}.

    Arguments as `log_bessel_i`, x = 0 included; relative error a few units of rounding.

    Source: DLMF 10.33.1, 10.41.

    Example:
        >>> from rc_jax.special import bessel_ratio
        >>> print(f"{bessel_ratio(0.5, 2.0):.4f}")  # coth(2) - 1/2
        0.5373
    """
    dtype, (v, x) = as_common(order=order, x=x)
    return _inside(v, x >= 0, _ratio(v, x)).astype(dtype)


def _inside(v: jax.Array, x_is_inside: jax.Array, value: jax.Array) -> jax.Array:
    """NaN where a traced argument left the domain; a concrete one was refused before."""
    return jnp.where((v >= -0.5) & x_is_inside, value, jnp.nan)


@jax.jit
def _ratio(v: jax.Array, x: jax.Array) -> jax.Array:
    """Small x: x ρ/(2b). Large x: 1 − H/x, whose derivative does not cancel."""
    large = x > v + SHIFT
    low, high = jnp.where(large, 1, x), jnp.where(large, x, v + (SHIFT + 1))
    b = v + 1
    return jnp.where(large, 1 - _large(v, high)[0] / high, low / (2 * b) * recur(b, low / 2, low / 2)[0])


@functools.partial(jax.jit, static_argnums=2)
def _log_i(v: jax.Array, x: jax.Array, scaled: int) -> jax.Array:
    """log(e^{−x} I_v) if scaled is 1, log I_v if it is 0."""
    large = x > v + SHIFT
    low, high = jnp.where(large, 1, x), jnp.where(large, x, v + (SHIFT + 1))
    b = v + 1
    small_form = recur(b, low / 2, low / 2)[1] + v * (jnp.log(low) - math.log(2)) - gammaln(b) - scaled * low
    return jnp.where(large, _large(v, high)[1] + (1 - scaled) * high, small_form)


@jax.jit
def _large(v: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """H = x(1 − I_{v+1}/I_v) and log(e^{−x} I_v), for x > v + SHIFT: from order v + SHIFT down, no large terms left.

    H_v = x(2(v+1) − H_{v+1})/(2(v+1) + x − H_{v+1}) tends to v + ½ as x grows, where 1 − I_{v+1}/I_v would cancel.
    """

    def down(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        deficit, log = carry
        rest = 2 * (v + (SHIFT - i).astype(v.dtype)) - deficit
        deficit = x / (rest + x) * rest
        return deficit, log - jnp.log1p(-deficit / x)

    deficit, log = jax.lax.fori_loop(0, SHIFT, down, _large_at_high_order(v + SHIFT, x))
    return deficit, log - jnp.log(x) / 2 - 0.5 * math.log(2 * math.pi)


def _large_at_high_order(v: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """H and log(e^{−x} √(2πx) I_v) by Debye's expansion."""
    unit = jax.lax.stop_gradient(x)  # keeps squares in range
    s = unit * jnp.sqrt(v / unit * (v / unit) + x / unit * (x / unit))
    t, p, q = 1 / s, v / s, x / s
    rest = v / (s + x) * v  # S − x
    correction, slope = corrections(t, p * p)
    deficit = x * ((v + rest) / (v + s)) + q * q * (0.5 + slope)
    log = rest - v * jnp.log1p((v + rest) / x) - jnp.log1p(v / x * (v / x)) / 4 + correction
    return deficit, log
