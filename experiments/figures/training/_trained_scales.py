"""Comparisons of trainings at many logit scales, seed by seed."""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

CLOSED = 0.8  # the threshold lies at this share of the way from the first loss to the best one


def threshold(held_out: np.ndarray) -> float:
    """The loss that closes `CLOSED` of the way from the first loss to the lowest last one, means over seeds.

    `held_out` is (mode, seed, scale, record); the lowest is that of all modes and scales.
    """
    first = np.nanmean(held_out[..., 0])
    last = held_out[..., -1].mean(axis=1)
    return float(first - CLOSED * (first - np.nanmin(last)))


def steps_to(level: float, values: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Where curves (…, record) first come down to a level, straight lines between records; infinite where never."""
    under = values <= level
    at = np.argmax(under, axis=-1)
    before = np.maximum(at - 1, 0)
    high, low = (np.take_along_axis(values, index[..., None], -1)[..., 0] for index in (before, at))
    gap = np.where(high > low, high - low, 1.0)
    crossing = step[at] - (step[at] - step[before]) * np.where(high > low, (level - low) / gap, 0.0)
    return np.where(under.any(axis=-1), crossing, np.inf)


@dataclasses.dataclass(frozen=True)
class Pair:
    """The results of one task with one kind of scores; its arrays are (mode, seed, scale, record)."""

    task: str
    scores: str
    data: Mapping[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.data[f"{self.task}_{self.scores}_{name}"]

    @property
    def label(self) -> str:
        """`digits, dot`."""
        return f"{self.task}, {self.scores}"

    def mark(self, which: str) -> float:
        """α of an optimum or of the default."""
        return float(self[f"mark_{which}"])

    def column(self, values: np.ndarray, which: str) -> np.ndarray:
        """The values at a marked α, of (seed, scale); NaN where that α or the grid is not known."""
        distance = np.abs(np.log(self["alphas"] / self.mark(which)))
        return np.full(len(values), np.nan) if np.isnan(distance).any() else values[:, np.argmin(distance)]

    @functools.cached_property
    def last(self) -> np.ndarray:
        """Held-out loss after the last step: (mode, seed, scale)."""
        return self["held_out"][..., -1]

    @functools.cached_property
    def steps(self) -> np.ndarray:
        """Steps to the threshold at fixed scales: (seed, scale)."""
        return steps_to(threshold(self["held_out"]), self["held_out"][0], self["step"])

    @property
    def attention_gradient(self) -> np.ndarray:
        """‖∂W_Q, ∂W_K‖ of the held-out loss before the first step: (seed, scale)."""
        return self["query_key_gradient"][0, :, :, 0]

    def ahead(self, of: str, than: str) -> np.ndarray:
        """Last loss at the marked α `than` less that at the marked α `of`, seed by seed."""
        return self.column(self.last[0], than) - self.column(self.last[0], of)


def pairs_of(data: Mapping[str, np.ndarray]) -> list[Pair]:
    """All that was trained."""
    names = (str(name).partition("_") for name in data["pairs"])
    return [Pair(task, scores, data) for task, _, scores in names]
