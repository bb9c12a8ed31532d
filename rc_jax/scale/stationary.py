"""What the search for the annealed optimum evaluates: the stationarity of f alone, in one pass, never differentiated.

With C = log M(2α) − 2 log M(α) and T = αC′ the maximum of α(1 − e^C/n) is where C + log(1 + T) = log n. T needs no
derivative: for cosines C′ = 2(r(2α) − r(α)), r = I_{v+1}/I_v, v = d/2 − 1. Everything below is written out without
loops, so that a compiler makes one kernel of it, and in differences that are formed before they are rounded: C and T
keep their digits from α ≪ 1, where they vanish, to α ≫ d², where log M(2α) and 2 log M(α) agree to the last digit.
"""

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln

from rc_jax.special.debye import SHIFT, TERMS, correction_at_zero, corrections_written_out

FAR = 36  # Debye's expansion is good to rounding where √(v² + α²) is larger
FEW = 12  # Debye's expansion cut short is not good for fewer
LIFT = 20  # orders by which v is raised elsewhere
TOGETHER = 4  # steps down in one turn of the loop, under one logarithm


def stationarity(log_alpha: jax.Array, dim: jax.Array | None, origin: jax.Array | None) -> jax.Array:
    """C + log(1 + T), which is log n at the optimum; `annealed.log_one_minus_slope` is this less log n.

    `origin` is `debye_at_origin(dim)`, which a search needs once.
    """
    alpha = jnp.exp(log_alpha)
    if dim is None or origin is None:
        return alpha * alpha + jnp.log1p(2 * alpha * alpha)
    v = dim / 2 - 1
    near = (v < FAR) & (alpha < FAR) & (v * v + alpha * alpha < FAR * FAR)

    def lifted() -> tuple[jax.Array, jax.Array]:
        order = jnp.where(near, v + LIFT, v)
        c, t, *ratios = _by_debye(alpha, order, jnp.where(near, correction_at_zero(1 / order), origin))
        low_c, low_t = _down(alpha, v, c, t, *ratios)
        return jnp.where(near, low_c, c), jnp.where(near, low_t, t)

    # two programs, for the ratios, which only the first needs, would otherwise double the work
    c, t = jax.lax.cond(near.any(), lifted, lambda: _by_debye(alpha, v, origin)[:2])
    return c + jnp.log1p(t)


def debye_at_origin(dim: jax.Array | None) -> jax.Array | None:
    """The sum of Debye's terms at α = 0: Stirling's formula for log Γ(v) less log Γ(v)."""
    if dim is None:
        return None
    v = dim / 2 - 1
    small = v < SHIFT
    series = correction_at_zero(1 / jnp.where(small, SHIFT, v))

    def plain() -> jax.Array:
        low = jnp.where(small, v, 1)
        return (low - 0.5) * jnp.log(low) - low + 0.5 * math.log(2 * math.pi) - gammaln(low)

    return jnp.where(small, jax.lax.cond(small.any(), plain, lambda: series), series)


def approximate_stationarity(log_alpha: jax.Array, dim: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """The same to a few per cent in three dimensions and 1/d³ in many, and its slope; exact for Gaussian scores.

    For few dimensions the ratio r is taken as x/(v + ½ + √(x² + (v + 3/2)²)), right in its first term for small and in
    two for large x; otherwise Debye's expansion is cut short.
    """
    alpha = jnp.exp(log_alpha)
    if dim is None:
        square = alpha * alpha
        return square + jnp.log1p(2 * square), 2 * square + 4 * square / (1 + 2 * square)
    v = dim / 2 - 1
    few = v < FEW
    a, b = jnp.where(few, v + 0.5, v), jnp.where(few, v + 1.5, v)
    c, t, s1, s2 = _leading(alpha, a, b)
    rise1, rise2 = s1 - b * b / s1, s2 - b * b / s2  # dS/d log α
    rest = 3 * b * b / (2 * s1 + s2)
    growth = 2 - rise1 / (a + s1) - rise2 / (a + s2) - rest / (a + rest) * ((2 * rise1 + rise2) / (2 * s1 + s2))
    bend = growth * t  # dT/d log α
    high = jnp.where(few, FEW, v)
    more_c, more_t, *_ = _corrections(alpha, high, s1, s2, correction_at_zero(1 / high), 2)
    half1, half2 = alpha / s1 * (alpha / s1), 2 * alpha / s2 * (alpha / s2)
    more_bend = 2 * (half1 * (1 - rise1 / s1) - half2 * (1 - rise2 / s2))
    c, t, bend = c + jnp.where(few, 0, more_c), t + jnp.where(few, 0, more_t), bend + jnp.where(few, 0, more_bend)
    return c + jnp.log1p(t), t + bend / (1 + t)


def first_guess(log_n: jax.Array, dim: jax.Array | None) -> jax.Array:
    """Start at log α right to about one: α² from log n/3 to log n, times d; for few d the power n^{2/(d−1)}."""
    square = log_n * (1 + log_n) / (3 + log_n)
    if dim is None:
        return jnp.log(square) / 2
    y = 4 * square / (dim - 1)
    return jnp.log(dim / 2) + (y + jnp.log(-jnp.expm1(-y))) / 2


def _leading(alpha: jax.Array, a: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
    """C and T of log M(x) = S − b − a log((a + S)/(a + b)), S = √(x² + b²), that is of r = x/(a + S); S(α), S(2α)."""
    s1, s2 = jnp.sqrt(alpha * alpha + b * b), jnp.sqrt(4 * alpha * alpha + b * b)
    rest = 3 * b * b / (2 * s1 + s2)  # 2S(α) − S(2α)
    difference = alpha / (s1 + b) * (2 * alpha / (s2 + b)) * (b + rest)  # S(2α) − 2S(α) + b
    excess = (alpha / (a + s2) * alpha * ((s2 - 3 * b) / (s2 + b)) - a / (a + s2) * difference) / (a + b)
    t = alpha / (a + s1) * (2 * alpha / (a + s2)) * (a + rest)
    return difference + a * jnp.log1p(excess), t, s1, s2


def _by_debye(alpha: jax.Array, v: jax.Array, origin: jax.Array) -> tuple[jax.Array, ...]:
    """C, T, r(α) and r(2α) by Debye's expansion."""
    c, t, s1, s2 = _leading(alpha, v, v)
    more_c, more_t, half1, half2 = _corrections(alpha, v, s1, s2, origin, TERMS)
    return c + more_c, t + more_t, alpha * (1 / (s1 + v) - half1), 2 * alpha * (1 / (s2 + v) - half2)


def _corrections(
    alpha: jax.Array, v: jax.Array, s1: jax.Array, s2: jax.Array, origin: jax.Array, terms: int
) -> tuple[jax.Array, ...]:
    """What Debye's expansion adds to C, to T and, times −x, to r(α) and r(2α)."""
    t1, t2 = 1 / s1, 1 / s2
    sum1, slope1 = corrections_written_out(t1, v * t1 * (v * t1), terms)
    sum2, slope2 = corrections_written_out(t2, v * t2 * (v * t2), terms)
    half1, half2 = (0.5 + slope1) * t1 * t1, (0.5 + slope2) * t2 * t2
    root = jnp.log1p(alpha * alpha * ((s2 - 3 * v) / (s2 + v)) / (v * s2)) / 2  # ½ log(S(α)²/(v S(2α)))
    return root + sum2 - 2 * sum1 + origin, 2 * alpha * alpha * (half1 - 2 * half2), half1, half2


def _down(
    alpha: jax.Array, v: jax.Array, c: jax.Array, t: jax.Array, r1: jax.Array, r2: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """C and T at order v from those at v + LIFT: r_{k−1} = 1/(2k/x + r_k), T_{k−1} = (2k − T_k) r_{k−1}(α) r_{k−1}(2α).

    Here k is the order from which the step leads down; log M falls by log(x/(2k r_{k−1})).
    """

    def steps(count: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        c, t, r1, r2 = state
        product = jnp.ones_like(c)
        for i in range(TOGETHER):
            double = 2 * (v + (LIFT - i - TOGETHER * count).astype(v.dtype))
            r1, r2 = 1 / (double / alpha + r1), 1 / (double / (2 * alpha) + r2)
            t = (double - t) * (r1 * r2)
            product = product * (2 * double / alpha * (r1 * r1 / r2))
        return c + jnp.log(product), t, r1, r2

    return jax.lax.fori_loop(0, LIFT // TOGETHER, steps, (c, t, r1, r2))[:2]
