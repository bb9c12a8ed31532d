"""Exact means over random rows of scores by quadrature: no sampling, and no formula of the closed forms.

1/Z² = ∫ e^{2x} exp(−e^x Z) dx turns the mean over n independent scores into a product of means over one:
E Σp² = n ∫ E[e^{2(x + αs)} g] φ^{n−1} dx with g = exp(−e^{x + αs}) and φ = E g.
The integrand is smooth on the scale of 1 in x and in αs, so trapezoidal sums converge exponentially.
"""

import numpy as np
import scipy

STEP = 0.2
_BEYOND = 40.0  # integrals end where n scores have a tail of e^−40


def _wide(n: int | float) -> np.ndarray:
    """Places from where normal scores have no weight to where none of n scores is."""
    return np.linspace(-9, max(11.0, (2 * (np.log(n) + _BEYOND)) ** 0.5), 200_001)


def participation(alpha: float, n: int | float, dim: int | float | None = None) -> float:
    """Mean of Σp² for p = softmax(αs) over n independent scores.

    Memory grows like α²: for normal scores it is several gigabytes at α = 100.

    Args:
        alpha: α > 0.
        n: number of scores, at least 2.
        dim: None for standard normal scores, or the dimension d ≥ 3 of vectors whose cosines are the scores.

    Returns:
        E Σp², to about ten digits.

    Source: Derrida (1981) for the random-energy model; the integral is this package's own.

    Example:
        >>> from rc_jax.scale import quadrature
        >>> print(f"{quadrature.participation(1e-6, 10):.4f}")  # even weights
        0.1000
    """
    n = float(n)  # NumPy has no logarithm of a large integer
    # Nodes y, evenly apart: s = y for normal scores, tanh y for cosines, out to where n scores have no tail left.
    if dim is None:
        ends = np.sqrt(2 * (np.log(n) + _BEYOND))
    else:
        power = (np.log(n) + _BEYOND) / (dim - 1)
        ends = power + np.log1p(np.sqrt(-np.expm1(-2 * power)))
    count = int(2 * ends * max(alpha / STEP, 40 / ends)) + 1
    y = np.linspace(-ends, ends, count)
    s, log_density = (y, -y * y / 2) if dim is None else (np.tanh(y), -(dim - 1) * np.log(np.cosh(y)))
    weights = np.exp(log_density)
    weights /= weights.sum()
    # φ^(n−1), formed from 1 − φ, over all x where it is not 0 and something has weight
    x = np.arange(-alpha * s[-1] - 40, -alpha * s[0] + 8, STEP)
    z = np.minimum(x[:, None] + alpha * s[None], 6.5)  # exp(−e^6.5) is 0 to any digit that is kept
    gone = np.minimum((weights * -np.expm1(-np.exp(z))).sum(1), 1)
    with np.errstate(divide="ignore"):
        rest = np.exp((n - 1) * np.log1p(-gone))
    used = (rest > 1e-30) & (n * gone > 1e-12)
    z, rest = z[used], rest[used]
    return float((n * STEP * rest * (weights * np.exp(2 * z - np.exp(z))).sum(1)).sum())


def mean_largest(n: int | float) -> float:
    """Mean of the largest of n standard normal scores.

    Formula: ∫ x n ρ(x) F(x)^{n−1} dx, with ρ the density of a score and F its distribution function.

    Source: David and Nagaraja (2003).

    Example:
        >>> from rc_jax.scale import quadrature
        >>> print(f"{quadrature.mean_largest(2):.4f}")  # 1/√π
        0.5642
    """
    n = float(n)
    x = _wide(n)
    log_density = scipy.stats.norm.logpdf(x) + (n - 1) * scipy.stats.norm.logcdf(x)
    return float(scipy.integrate.simpson(x * n * np.exp(log_density), x=x))


def tie_density(n: int | float, dim: int | float | None = None) -> float:
    """Density at 0 of the difference of the two largest of n independent scores.

    Formula: n(n − 1) ∫ ρ(x)² F(x)^{n−2} dx; for standard normal scores it equals `mean_largest`, by parts.
    `dim` as in `participation`.

    Source: David and Nagaraja (2003).

    Example:
        >>> from rc_jax.scale import quadrature
        >>> print(f"{quadrature.tie_density(64, 3):.3f}")  # uniform scores: n/2
        32.000
    """
    n = float(n)
    if dim is None:
        y = _wide(n)
        log_squared, above = 2 * scipy.stats.norm.logpdf(y), scipy.stats.norm.logsf(y)
    else:  # s = tanh y, and (1 − s)/2 = 1/(1 + e^{2y}) has a beta law
        half = (dim - 1) / 2
        least = scipy.stats.beta.ppf(np.exp(-_BEYOND) / n, half, half)
        y = np.linspace(-1, 1, 200_001) * (np.log1p(-least) - np.log(least)) / 2
        rest, other = scipy.special.expit(-2 * y), scipy.special.expit(2 * y)
        log_density = (half - 1) * (np.log(rest) + np.log(other)) - scipy.special.betaln(half, half)
        log_squared = 2 * (log_density - np.log(2) - np.log(np.cosh(y)))
        above = np.log(scipy.stats.beta.cdf(rest, half, half))
    log_below = np.log1p(-np.minimum(np.exp(above), 1 - 1e-15))
    return float(n * (n - 1) * scipy.integrate.simpson(np.exp(log_squared + (n - 2) * log_below), x=y))
