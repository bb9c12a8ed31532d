"""Standard errors of medians."""

import numpy as np
from numpy.typing import ArrayLike


def error_by_quartiles(low: ArrayLike, high: ArrayLike, count: ArrayLike) -> np.ndarray:
    """Standard error of a median of `count` samples, √(π/2) deviations over √count, as if they were normal.

    Their deviation is the distance of the quartiles over 1.349, so that a few samples far out do not count.
    """
    return np.sqrt(np.pi / 2 / np.asarray(count)) * np.subtract(high, low) / 1.349


def median_error(samples: np.ndarray) -> np.ndarray:
    """Standard error of the medians along the first axis."""
    return error_by_quartiles(*np.quantile(samples, (0.25, 0.75), axis=0), count=len(samples))
