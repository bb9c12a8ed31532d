"""The stationarity of softmax's annealed gradient: one function whose root is the best scale.

Let C(α) = log M(2α) − 2 log M(α) and T = αC′(α). The maximum of α(1 − e^C/n) is where C + log(1 + T) = log n. For
Gaussian scores C = α² and T = 2α². For cosines C′ = 2(r(2α) − r(α)), with the ratio r = I_{v+1}/I_v of Bessel
functions of order v = d/2 − 1.

C and T come from Debye's uniform expansion, in which S(x) = √(x² + v²):

    log M(x) = S − v − v log((S + v)/2v) − ½ log(S/v) + Σ_k S^{−k} P_k(v²/S²) − Σ_k v^{−k} P_k(1).

Where √(v² + α²) is small the expansion is taken LIFT orders higher, and the stable recurrence leads down from there.
All differences are formed before they are rounded. So C and T keep their digits from α ≪ 1, where they vanish, to
α ≫ d², where log M(2α) and 2 log M(α) agree to the last digit. Squares are of ratios, so that nothing overflows.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rc_jax.special.debye import SHIFT, TERMS, correction_at_zero, corrections, corrections_written_out

FAR = 36  # Debye's expansion is good to rounding where √(v² + α²) is larger
FEW_TERMS = 5  # so many of its terms are enough there in single precision
LIFT = 20  # orders by which v is raised elsewhere
UNROLLED = 4  # steps down that share one logarithm in the search

Pair = tuple[jax.Array, jax.Array]
Sums = Callable[[Pair, Pair], tuple[Pair, Pair]]


def stationarity(
    log_alpha: jax.Array, dim: jax.Array | None, origin: jax.Array | None, terms: int = TERMS
) -> jax.Array:
    """C + log(1 + T), which is log n at the optimum, from the first `terms` terms of Debye's expansion.

    `origin` is `debye_at_origin(dim)`, which does not depend on α: a search computes it once.
    """
    alpha = jnp.exp(log_alpha)
    if dim is None or origin is None:
        return alpha * alpha + jnp.log1p(2 * alpha * alpha)
    v, near, order = _orders(alpha, dim)
    sums = functools.partial(_sums_written_out, terms=terms)
    state = _by_debye(alpha, order, jnp.where(near, correction_at_zero(1 / order), origin), sums)
    c, t = jax.lax.cond(near.any(), lambda: _recur_down(alpha, v, near, UNROLLED, *state), lambda: state[:2])
    return c + jnp.log1p(t)


def differentiable_stationarity(log_alpha: jax.Array, log_n: jax.Array, dim: jax.Array | None) -> jax.Array:
    """C + log(1 + T) − log n in loops, which stay small programs however often they are differentiated."""
    alpha = jnp.exp(log_alpha)
    if dim is None:
        return alpha * alpha + jnp.log1p(2 * alpha * alpha) - log_n
    v, near, order = _orders(alpha, dim)
    c, t = _recur_down(alpha, v, near, 1, *_by_debye(alpha, order, debye_at_origin(2 * order + 2), _sums_in_a_loop))
    return c + jnp.log1p(t) - log_n


def debye_at_origin(dim: jax.Array) -> jax.Array:
    """Σ_k v^{−k} P_k(1), Stirling's series; where v is small, by the recurrence of log Γ from v + SHIFT down."""
    v = dim / 2 - 1

    def down(i: jax.Array, total: jax.Array) -> jax.Array:
        order = v + i.astype(v.dtype)
        return total + (1 - (order + 0.5) * jnp.log1p(1 / order))

    small = v < SHIFT
    lifted = jax.lax.fori_loop(0, SHIFT, down, jnp.zeros_like(v))
    return correction_at_zero(1 / jnp.where(small, v + SHIFT, v)) + jnp.where(small, lifted, 0)


def first_guess(log_n: jax.Array, dim: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """A start for log α, right to about one, and the slope of log `stationarity` in log α that it implies.

    α² goes from log n/3 for few keys to log n for many, times d for cosines; in few dimensions α is the power
    n^{2/(d−1)}.
    """
    square = log_n * (1 + log_n) / (3 + log_n)
    # d log α²/d log log n
    growth = 1 + 3 * log_n / (1 + log_n) / (3 + log_n) - log_n / (3 + log_n) * (1 - 1 / (1 + log_n))
    if dim is None:
        return jnp.log(square) / 2, 2 / growth
    y = 4 * square / (dim - 1)
    below = -jnp.expm1(-y)
    return jnp.log(dim / 2) + (y + jnp.log(below)) / 2, 2 * below / (y * growth)


def _orders(alpha: jax.Array, dim: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The order v, where Debye's expansion needs a higher one, and the order at which it is taken."""
    v = dim / 2 - 1
    low, high = jnp.minimum(v, FAR), jnp.minimum(alpha, FAR)
    near = low * low + high * high < FAR * FAR
    return v, near, jnp.where(near, v + LIFT, v)


def _sums_written_out(one: Pair, other: Pair, terms: int) -> tuple[Pair, Pair]:
    """Debye's sums and their slopes at S(α) and at S(2α), from the pairs 1/S and v²/S², as one kernel."""
    return corrections_written_out(*one, terms), corrections_written_out(*other, terms)


def _sums_in_a_loop(one: Pair, other: Pair) -> tuple[Pair, Pair]:
    """The same with all terms in a loop, for a program that is differentiated."""
    value, slope = corrections(jnp.stack([one[0], other[0]]), jnp.stack([one[1], other[1]]))
    return (value[0], slope[0]), (value[1], slope[1])


def _by_debye(alpha: jax.Array, v: jax.Array, origin: jax.Array, sums: Sums) -> tuple[jax.Array, ...]:
    """C, T, r(α) and r(2α) by Debye's expansion at order v: its leading terms, then its corrections."""
    # S(α) and S(2α), in units of the larger of α and v, so that no square overflows.
    unit = jax.lax.stop_gradient(jnp.maximum(alpha, v))
    x, y = alpha / unit, v / unit
    s_one, s_two = unit * jnp.sqrt(x * x + y * y), unit * jnp.sqrt(4 * x * x + y * y)
    c, t, r_one, r_two = _leading(alpha, v, s_one, s_two)

    # The correction to log M(x) is −½ log(S/v) + Σ_k S^{−k} P_k − Σ_k v^{−k} P_k(1), and C has that of 2α less twice
    # that of α. `origin` is the last sum. The roots join to
    #   ½ log(S(α)²/(v S(2α))) = ½ log(1 + α²(S(2α) − 3v)/(v S(2α)(S(2α) + v))).
    inverse_one, inverse_two = 1 / s_one, 1 / s_two
    q_one, q_two = alpha * inverse_one, 2 * alpha * inverse_two  # x/S
    root = jnp.log1p(alpha / v * q_two / 2 * ((s_two - 3 * v) / (s_two + v))) / 2
    (sum_one, slope_one), (sum_two, slope_two) = sums(
        (inverse_one, v * inverse_one * (v * inverse_one)), (inverse_two, v * inverse_two * (v * inverse_two))
    )
    c += root + sum_two - 2 * sum_one + origin

    # Its derivative in x, which corrects r(x), is −(x/S²)(½ + slope); and T = 2α(r(2α) − r(α)).
    lower_one, lower_two = q_one * (0.5 + slope_one), q_two * (0.5 + slope_two)
    t += 2 * q_one * lower_one - q_two * lower_two
    return c, t, r_one - inverse_one * lower_one, r_two - inverse_two * lower_two


def _leading(alpha: jax.Array, v: jax.Array, s_one: jax.Array, s_two: jax.Array) -> tuple[jax.Array, ...]:
    """The leading terms of C, T, r(α) and r(2α), given S(α) and S(2α); differences that would cancel are products."""
    r_one, r_two = alpha / (v + s_one), 2 * alpha / (v + s_two)
    # T = 2α(r(2α) − r(α)) = S(2α) − 2S(α) + v = r(α) r(2α) (v + 2S(α) − S(2α)),   2S(α) − S(2α) = 3v²/(2S(α) + S(2α))
    t = r_one * r_two * (v + 3 * v * (v / (2 * s_one + s_two)))
    # C = T + v log((S(α) + v)²/(2v(S(2α) + v))) = T + v log(1 + excess). Numerator less denominator is
    #   S(α)² − v S(2α) − vT,   S(α)² − v S(2α) = α²(S(2α) − 3v)/(S(2α) + v).
    excess = (r_two / 2 * (alpha * ((s_two - 3 * v) / (s_two + v))) - v / (v + s_two) * t) / (2 * v)
    return t + v * jnp.log1p(excess), t, r_one, r_two


def _recur_down(
    alpha: jax.Array,
    v: jax.Array,
    near: jax.Array,
    unrolled: int,
    c: jax.Array,
    t: jax.Array,
    r1: jax.Array,
    r2: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """C and T at order v: where `near` is true by LIFT steps of recurrence from those at v + LIFT, else unchanged.

    A step leads from order k down to k − 1: r_{k−1} = 1/(2k/x + r_k) and T_{k−1} = (2k − T_k) r_{k−1}(α) r_{k−1}(2α);
    log M falls by log(x/(2k r_{k−1})).
    """

    def steps(count: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        c, t, r1, r2 = state
        product = jnp.ones_like(c)
        for i in range(unrolled):
            double = 2 * (v + (LIFT - i - unrolled * count).astype(v.dtype))
            r1, r2 = 1 / (double / alpha + r1), 1 / (double / (2 * alpha) + r2)
            t = (double - t) * (r1 * r2)
            product = product * (2 * double / alpha * (r1 * r1 / r2))
        return c + jnp.log(product), t, r1, r2

    low_c, low_t, *_ = jax.lax.fori_loop(0, LIFT // unrolled, steps, (c, t, r1, r2))
    return jnp.where(near, low_c, c), jnp.where(near, low_t, t)
