"""Coefficients of Debye's uniform expansion of log I_v, exact, made once from their recurrence (DLMF 10.41.9).

With S = √(v² + x²), p = v/S and t = 1/S,

    log I_v(x) = S + v log(x/(v + S)) − ½ log(2πS) + Σ_k t^k P_k(p²),

uniformly in x > 0. The series is asymptotic in 1/v, so every function here is first shifted upwards by `SHIFT` orders,
where `TERMS` terms leave less than 1e-14, and brought back by the downward recurrence, which is stable.
"""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import polynomial

SHIFT = 16
TERMS = 12


@functools.cache
def coefficients() -> tuple[tuple[Fraction, ...], ...]:
    """Row k − 1 holds P_k: log(1 + Σ U_k(p)/v^k) = Σ_k (p/v)^k P_k(p²), degree k in p²."""
    # U_{k+1} = ½p²(1 − p²) U_k' + ⅛ ∫₀^p (1 − 5t²) U_k dt, polynomials of fractions from the constant up.
    half, eighth = Fraction(1, 2), Fraction(1, 8)
    of_slope, of_integrand = np.array([0, 0, half, 0, -half]), np.array([eighth, 0, -5 * eighth])
    u = [np.array([Fraction(1)])]
    for _ in range(TERMS):
        integral = polynomial.polyint(polynomial.polymul(of_integrand, u[-1]))
        u.append(polynomial.polyadd(polynomial.polymul(of_slope, polynomial.polyder(u[-1])), integral))
    # The logarithm's L_k, from k U_k = Σ_j j L_j U_{k−j}.
    log = u[:1]
    for k in range(1, TERMS + 1):
        products = [Fraction(j, k) * polynomial.polymul(log[j], u[k - j]) for j in range(1, k)]
        log.append(functools.reduce(polynomial.polysub, products, u[k]))
    return tuple(tuple(log[k][k : 3 * k + 1 : 2]) for k in range(1, TERMS + 1))


def corrections(t: jax.Array, p2: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Σ_k t^k P_k(p²), and Σ_k t^k p^{1−k} d/dp[p^k P_k(p²)], −x/S² times which is the first's x-derivative.

    Horner's rule in t and in p², one loop step a coefficient: written out, and differentiated twice, the same sums
    take a compiler minutes.
    """
    # One row for each coefficient, highest k first; `last` marks the end of a polynomial P_k.
    table = [(k, m, c) for k, row in enumerate(coefficients(), start=1) for m, c in enumerate(row)][::-1]
    value = jnp.asarray([float(c) for _, _, c in table], t.dtype)
    slope = jnp.asarray([float((k + 2 * m) * c) for k, m, c in table], t.dtype)
    last = jnp.asarray([m == 0 for _, m, _ in table])
    coefficient = jnp.stack([value, slope], axis=-1).reshape((-1, 2) + (1,) * t.ndim)
    t, p2 = jnp.broadcast_to(t, (2, *t.shape)), jnp.broadcast_to(p2, (2, *t.shape))

    # Horner's rule: inner sums in p² are added to the outer one in t where they end.
    def step(
        carry: tuple[jax.Array, jax.Array], at: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        total, inner = carry
        c, end = at
        inner = inner * p2 + c
        return (jnp.where(end, (total + inner) * t, total), jnp.where(end, 0, inner)), None

    zero = jnp.zeros_like(t)
    both = jax.lax.scan(step, (zero, zero), (coefficient, last))[0][0]
    return both[0], both[1]


@functools.partial(jax.jit, static_argnames="terms")  # traced once, however often it is used
def corrections_written_out(t: jax.Array, p2: jax.Array, terms: int = TERMS) -> tuple[jax.Array, jax.Array]:
    """The same two sums, or their first terms, without a loop: one kernel, fast, and not meant to be differentiated."""
    value, slope = jnp.zeros_like(t), jnp.zeros_like(t)
    for k, row in reversed(list(enumerate(coefficients()[:terms], start=1))):
        inner, inner_slope = jnp.zeros_like(t), jnp.zeros_like(t)
        for m, c in reversed(list(enumerate(row))):
            inner, inner_slope = inner * p2 + float(c), inner_slope * p2 + float((k + 2 * m) * c)
        value, slope = (value + inner) * t, (slope + inner_slope) * t
    return value, slope


def correction_at_zero(t: jax.Array) -> jax.Array:
    """Σ_k t^k P_k(1), the first of `corrections` at x = 0: Stirling's series, odd powers only."""
    odd = [float(sum(row)) for row in coefficients()][::2]
    total = jnp.zeros_like(t)
    for c in reversed(odd):
        total = total * t * t + c
    return total * t
