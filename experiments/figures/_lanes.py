"""What training figures share: a training that is kept, bands over seeds, paired differences, and lanes that failed."""

import shutil
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike
from scipy import stats

from experiments import style, unfinished
from rc_jax import training


def train(name: str, *args: Any, **kwargs: Any) -> training.Training:
    """`training.train` with a bar in a terminal, taken up where a killed run left it; `name` tells it from others.

    What a crash of the machine has damaged is trained again.
    """
    folder = unfinished.place(name)
    options = {"folder": folder, "progress": sys.stderr.isatty()} | kwargs
    try:
        return training.train(*args, **options)
    except training.Damaged:
        assert folder is not None
        shutil.rmtree(folder)
        return training.train(*args, **options)


def seed_band(values: np.ndarray, axis: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Smallest, median and largest over the seeds that finished; NaN where none did."""
    values = np.asarray(values, float)
    gone = np.isnan(values).all(axis=axis)
    filled = np.where(np.expand_dims(gone, axis), 0.0, values)
    found = (np.nanmin(filled, axis=axis), np.nanmedian(filled, axis=axis), np.nanmax(filled, axis=axis))
    low, middle, high = (np.where(gone, np.nan, each) for each in found)
    return low, middle, high


def mean_and_error(values: np.ndarray, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the seeds that finished and its standard error; of paired differences, give the differences."""
    values = np.asarray(values, float)
    count = np.sum(~np.isnan(values), axis=axis)
    mean, spread = np.full(count.shape, np.nan), np.full(count.shape, np.nan)
    mean = np.divide(np.nansum(values, axis=axis), count, out=mean, where=count > 0)
    squares = np.nansum((values - np.expand_dims(mean, axis)) ** 2, axis=axis)
    error = np.sqrt(np.divide(squares, (count - 1) * count, out=spread, where=count > 1))
    return mean, error


def confidence(values: np.ndarray, axis: int = 0, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Student's interval for the mean over seeds: low and high; NaN where fewer than two seeds finished."""
    mean, error = mean_and_error(values, axis)
    count = np.sum(~np.isnan(np.asarray(values, float)), axis=axis)
    half = stats.t.ppf((1 + level) / 2, np.maximum(count - 1, 1)) * error
    return mean - half, mean + half


def mark_failed(
    ax: Axes, x: ArrayLike, failed: ArrayLike, *, label: str = "stopped: not finite", **kwargs: Any
) -> None:
    """A × at the top edge of the panel for each x at which a lane stopped."""
    at = np.asarray(x, float)[np.asarray(failed, bool)]
    if at.size:
        colour = style.colour("published")
        options = {"color": colour, "marker": "x", "linestyle": "none", "clip_on": False, "zorder": 5, **kwargs}
        ax.plot(at, np.full(at.shape, 0.98), transform=ax.get_xaxis_transform(), label=label, **options)


def failures(failed: np.ndarray, names: Sequence[str]) -> str:
    """Which settings had lanes that stopped, for the note of a claim; empty where all finished."""
    counts = (np.asarray(failed) >= 0).sum(axis=0)
    return ", ".join(
        f"{name}: {count} of {len(failed)} stopped" for name, count in zip(names, counts, strict=True) if count
    )
