"""Times of calls taken in turns, so that a slow minute hits all of them alike."""

import time
from collections.abc import Callable, Mapping

import jax
import numpy as np

from experiments.figures._medians import error_by_quartiles

MOST = 400  # rounds


def quartiles(calls: Mapping[str, Callable[[], jax.Array]], seconds: float, least: int) -> dict[str, np.ndarray]:
    """Quartiles of each call's seconds and the number of rounds, over about `seconds` and at least `least` rounds.

    Each call is compiled first.
    """
    for call in calls.values():
        call().block_until_ready()
    times: dict[str, list[float]] = {name: [] for name in calls}
    names, deadline = list(calls), time.perf_counter() + seconds
    for turn in range(MOST):
        if turn >= least and time.perf_counter() > deadline:
            break
        for name in names if turn % 2 == 0 else reversed(names):
            before = time.perf_counter()
            calls[name]().block_until_ready()
            times[name].append(time.perf_counter() - before)
    return {name: np.append(np.quantile(taken, (0.25, 0.5, 0.75)), len(taken)) for name, taken in times.items()}


def log_error(taken: np.ndarray) -> np.ndarray:
    """Standard error of the logarithm of a median, from what `quartiles` gives (…, 4)."""
    low, median, high, count = np.moveaxis(taken, -1, 0)
    return error_by_quartiles(low, high, count) / median
