"""The decision rule: a verdict from measured values, their standard errors and the intervals that they should lie in.

A value inside its interval by two standard errors agrees; a value outside by more than three differs; any other is
undecided, so that noise never helps. A NaN or an empty array anywhere in what a row reads, or a sample that an ensemble
left out, leaves the row not run.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from experiments.ledger.intervals import Interval, stretches


class Verdict(enum.StrEnum):
    """The outcome of a row: the first three of published statements, the next two of ours."""

    AGREES = "agrees"
    IN_PART = "agrees in part"
    DIFFERS = "differs"
    HELD = "held"
    FAILED = "failed"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"


SYMBOL = {
    Verdict.AGREES: "✓",
    Verdict.IN_PART: "◐",
    Verdict.DIFFERS: "≠",
    Verdict.HELD: "●",
    Verdict.FAILED: "✗",
    Verdict.UNDECIDED: "~",
    Verdict.NOT_RUN: "?",
}


# What a statement needs of its points. "all": one that differs contradicts it. "parts": they are its parts, or cases of
# our reading, and some that agree beside others that differ agree in part. "some": it says can or may; one that agrees
# is enough.
NEEDS = ("all", "parts", "some")


@dataclass(frozen=True)
class Points:
    """The points of one row: for each a value, its standard error, the ends of its interval, and whether it decides."""

    values: np.ndarray
    errors: np.ndarray
    low: np.ndarray
    high: np.ndarray
    asked: np.ndarray
    labels: Sequence[Any]

    @classmethod
    def of(cls, measured: ArrayLike, interval: Interval, error: ArrayLike, where: Any, applies: Any) -> "Points":
        """Every argument with one number for each point.

        Raises:
            ValueError: the arguments do not fit together.
        """
        values = np.asarray(measured, float).reshape(-1)
        labels = list(where) if where is not None else [""] if values.size == 1 else []
        if len(labels) != values.size:
            raise ValueError(f"`where` must have one label for each of {values.size} points, got {len(labels)}")
        low, high = (np.broadcast_to(np.asarray(end, float), values.shape) for end in interval)
        if not (low <= high).all():
            ends = f"{np.ravel(interval[0])} … {np.ravel(interval[1])}"
            raise ValueError(f"`interval` must not be empty or NaN, got {ends}")
        errors = np.broadcast_to(np.asarray(error, float), values.shape)
        if (errors < 0).any():
            raise ValueError(f"`standard_error` must be >= 0, got {errors.min()}")
        asked = np.ones(values.size, bool) if applies is None else np.asarray(applies, bool)
        if asked.shape != values.shape:
            raise ValueError(f"`applies` must have one flag for each of {values.size} points, got {asked.size}")
        return cls(values, errors, low, high, asked, labels)

    @property
    def inside(self) -> np.ndarray:
        """The points inside their intervals by two standard errors."""
        reach = 2 * self.errors
        return (self.values - reach >= self.low) & (self.values + reach <= self.high) & self.asked

    @property
    def outside(self) -> np.ndarray:
        """The points outside their intervals by more than three standard errors."""
        reach = 3 * self.errors
        return ((self.values + reach < self.low) | (self.values - reach > self.high)) & self.asked

    def verdict(self, needs: str) -> Verdict:
        """The verdict of all points together, by what the statement `NEEDS`.

        Points that neither agree nor differ leave a statement undecided unless another decides it.
        """
        if needs == "some" and (self.inside.any() or not self.outside[self.asked].all()):
            return Verdict.AGREES if self.inside.any() else Verdict.UNDECIDED
        if self.outside.any() and (needs == "all" or not self.inside.any()):
            return Verdict.DIFFERS
        if not (self.inside | self.outside)[self.asked].all():
            return Verdict.UNDECIDED
        return Verdict.IN_PART if self.outside.any() else Verdict.AGREES

    def unread(self, reads: Sequence[ArrayLike], left_out: ArrayLike) -> str:
        """The reason why the points, or arrays behind them, cannot be judged; empty where there is none."""
        values, arrays = self.values[self.asked], [np.asarray(array) for array in reads]
        if not values.size or any(array.size == 0 for array in arrays):
            return "no sample"
        if not np.isfinite(values).all() or not np.isfinite(self.errors[self.asked]).all():
            return "a number is not finite" if np.isfinite(values).any() else "no finite number"
        if any(bool(np.isnan(array).any()) for array in arrays if array.dtype.kind in "fc"):
            return "a number that it reads is not known"
        count = int(np.sum(np.asarray(left_out)))
        return f"{count} samples are not finite" if count else ""

    def holds(self) -> str:
        """Text: where a row of several points holds."""
        if self.values.size == 1:
            return ""
        text = f"holds at {self.inside.sum()} of {self.asked.sum()} points"
        return text + (f": {stretches(self.inside, self.labels)}" if 0 < self.inside.sum() < self.asked.sum() else "")

    def summary(self) -> str | float:
        """The measured number, or the least and the largest of several; those that are not finite do not count."""
        finite = self.values[self.asked & np.isfinite(self.values)]
        if not finite.size:
            return math.nan
        low, high = float(finite.min()), float(finite.max())
        return low if low == high else f"{low:.4g} … {high:.4g}"
