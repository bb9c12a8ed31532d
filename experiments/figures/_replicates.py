"""Training figures share a training, statistics over seeds, and marks for replicates that stopped."""

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from experiments.lib import style
from rc_jax import training


def train(*args: Any, **kwargs: Any) -> training.Training:
    """`training.train` with a progress bar where somebody looks."""
    return training.train(*args, **{"progress": sys.stderr.isatty()} | kwargs)


def seed_band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Smallest, median and largest over the seeds (first axis) that finished; NaN where no seed did."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmin(values, axis=0), np.nanmedian(values, axis=0), np.nanmax(values, axis=0)


def mean_and_error(values: ArrayLike, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds and its standard error; NaN where a seed stopped."""
    samples = np.asarray(values, float)
    return samples.mean(axis=axis), samples.std(axis=axis, ddof=1) / samples.shape[axis] ** 0.5


def mark_failed(ax: Axes, x: ArrayLike, failed: ArrayLike, **options: Any) -> None:
    """A × at the top edge of the panel for each x at which a replicate stopped."""
    at = np.asarray(x, float)[np.asarray(failed, bool)]
    if at.size:
        appearance = {
            "color": style.colour("published"),
            "marker": "x",
            "linestyle": "none",
            "clip_on": False,
            "zorder": 5,
        }
        label = "stopped: not finite"
        ax.plot(at, np.full(at.shape, 0.98), transform=ax.get_xaxis_transform(), label=label, **appearance | options)


def failures(failed: np.ndarray, names: Sequence[str]) -> str:
    """The settings that had replicates which stopped, for the note of a row; empty if all finished."""
    counts = (np.asarray(failed) >= 0).sum(axis=0)
    return ", ".join(
        f"{name}: {count} of {len(failed)} stopped" for name, count in zip(names, counts, strict=True) if count
    )
