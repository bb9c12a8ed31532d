"""Plain rows of scores in numpy, and integrals over the law of their largest: what simulations are held against."""

import numpy as np
from scipy import integrate, stats

BATCH = 4_000_000  # scores held at once


def mean_largest(n: int) -> float:
    """E max of n standard normal scores."""
    x = np.linspace(-9, 11, 200_001)
    return float(integrate.simpson(x * n * np.exp(stats.norm.logpdf(x) + (n - 1) * stats.norm.logcdf(x)), x=x))


def tie_density(n: int, dim: int | None = None) -> float:
    """Density at 0 of the difference of the two largest of n scores, n(n − 1) ∫ ρ² F^(n−2)."""
    if dim is None:
        y = np.linspace(-9, 11, 200_001)
        twice, above = 2 * stats.norm.logpdf(y), stats.norm.logsf(y)
    else:  # s = tanh y
        half = (dim - 1) / 2
        y = np.linspace(-1, 1, 200_001) * np.arctanh(stats.beta.isf(1e-15, half, half) * 2 - 1)
        place = (1 + np.tanh(y)) / 2
        twice = 2 * (stats.beta.logpdf(place, half, half) - np.log(2) - np.log(np.cosh(y)))
        above = np.log(stats.beta.sf(place, half, half))
    below = np.log1p(-np.minimum(np.exp(above), 1 - 1e-15))
    return float(n * (n - 1) * integrate.simpson(np.exp(twice + (n - 2) * below), x=y))


def weighted_force(
    rng: np.random.Generator, alpha: np.ndarray, n: int, dim: int | None, samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error of Σ p h(s) over plain rows: h = s, or (d − 3)s/(1 − s²) for cosines."""
    batches = []
    done = 0
    while done < samples:
        take = min(samples - done, max(BATCH // n, 1))
        s = rng.normal(size=(take, n))
        if dim is not None:
            s = s / np.sqrt(s**2 + rng.chisquare(dim - 1, size=s.shape))
        force = s if dim is None else (dim - 3) * s / (1 - s * s)
        top = s.max(1, keepdims=True)
        weights = [np.exp(a * (s - top)) for a in alpha]
        batches.append([(w * force).sum(1) / w.sum(1) for w in weights])
        done += take
    values = np.concatenate(batches, axis=1)
    return values.mean(1), values.std(1, ddof=1) / np.sqrt(samples)
