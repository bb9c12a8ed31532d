"""A contest: ways of computing the same numbers, timed in turns."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

Side = Callable[[], np.ndarray]


@dataclass(frozen=True)
class Contest:
    """What is compared. `baseline` names the side whose time the others' ratios are taken of.

    Each call of a side does `work` units and returns the numbers that all sides share, equal within `tolerance`
    (relative). `floor` is the least time that a call could take on this machine by its roofline, where that is known.
    """

    title: str
    unit: str
    work: int
    sides: Mapping[str, Side]
    baseline: str
    tolerance: float
    floor: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Result:
    """Seconds per call of every side: one row of times a round, in the order of the rounds."""

    contest: Contest
    seconds: Mapping[str, np.ndarray] = field(default_factory=dict)

    def rate(self, side: str) -> np.ndarray:
        """Lower quartile, median and upper quartile of the work done per second."""
        return np.quantile(self.contest.work / self.seconds[side], [0.25, 0.5, 0.75])

    def speedup(self, side: str) -> np.ndarray:
        """Quartiles of the baseline's time over the side's, round by round, so that a slow round cancels."""
        return np.quantile(self.seconds[self.contest.baseline] / self.seconds[side], [0.25, 0.5, 0.75])


def check(contest: Contest) -> None:
    """Call every side once (which compiles it) and compare what they return.

    Raises:
        AssertionError: two sides disagree.
    """
    expected = contest.sides[contest.baseline]()
    for name, side in contest.sides.items():
        np.testing.assert_allclose(
            side(), expected, rtol=contest.tolerance, err_msg=f"{contest.title}: {name} against {contest.baseline}"
        )


def run(contest: Contest, seconds: float, least: int = 5, most: int = 40) -> Result:
    """Check, then time the sides in turns, forwards and backwards by turns, until `seconds` have gone."""
    check(contest)
    times: dict[str, list[float]] = {name: [] for name in contest.sides}
    order, deadline = list(contest.sides), time.perf_counter() + seconds
    for number in range(most):
        if number >= least and time.perf_counter() > deadline:
            break
        for name in order if number % 2 == 0 else reversed(order):
            before = time.perf_counter()
            contest.sides[name]()
            times[name].append(time.perf_counter() - before)
    return Result(contest, {name: np.array(taken) for name, taken in times.items()})
