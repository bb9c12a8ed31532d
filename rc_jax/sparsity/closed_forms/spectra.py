"""Weights of a continuum of decays: the limit of a mixture of many channels."""

import functools

import numpy as np
import scipy
from jax.typing import ArrayLike
from jaxtyping import Float

from rc_jax._numerics import arguments


@arguments.guard(power=arguments.scalar(arguments.positive), n=arguments.bounded(2))
def decay_spectrum(power: float, n: ArrayLike) -> Float[np.ndarray, "..."]:
    r"""Law for many tokens of S for a continuum of decays of density p(1 − λ)^{p−1}, whose weights are p B(s + 1, p).

    With A = Σ_s (p B(s + 1, p))² over all s, S is √(1 − 2p)/(1 − p) for p < ½, 2/√log n at p = ½,
    Γ(p + 1)/(1 − p) · n^{½−p}/√A up to p = 1, (log n + γ)/√(A n) at p = 1, γ Euler's constant, and p/(p − 1)/√(A n)
    beyond: slow channels slow the focus. What the law leaves out is n^{−|1−2p|} and, beyond ½, n^{−|1−p|} beside 1:
    close to p = ½ and p = 1 it needs many tokens, and is NaN where one of these is more than a half.

    Args:
        power: p > 0, one number; static.
        n: Number of tokens, at least 2; any shape.

    Returns:
        The law's value, in double precision on the host; S tends to it as n → ∞. NaN as said above.

    Source: this package's own.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.decay_spectrum(0.25, 1000):.4f} {sparsity.decay_spectrum(2.0, 1000):.4f}")
        0.9428 0.0587
    """
    p, n = float(power), np.asarray(n, float)
    if p < 0.5:
        law = np.full_like(n, (1 - 2 * p) ** 0.5 / (1 - p))
    elif p == 0.5:
        law = 2 / np.sqrt(np.log(n))
    elif p < 1:
        law = scipy.special.gamma(p + 1) / (1 - p) * n ** (0.5 - p) / _square_sum(p) ** 0.5
    else:
        law = (np.log(n) + np.euler_gamma if p == 1 else p / (p - 1)) / np.sqrt(_square_sum(p) * n)
    exponents = [abs(1 - 2 * p), abs(1 - p) if p > 0.5 else 0]
    least = min(filter(None, exponents), default=np.inf)  # where one is 0 the law is another
    return np.where(n**-least > 0.5, np.nan, law)


@functools.cache
def _square_sum(p: float) -> float:
    """A: the terms up to s = 10⁶, and the tail Γ(p + 1)² ∫ s^{−2p} ds."""
    last = 10**6
    s = np.arange(1, last)
    terms = np.cumprod(np.append(1, s / (p + s))) ** 2  # p B(1, p) = 1; logarithms of Γ lose five digits at large p
    log_tail = 2 * scipy.special.gammaln(p + 1) + (1 - 2 * p) * np.log(last + p / 2)
    return float(np.sum(terms) + np.exp(log_tail) / (2 * p - 1))
