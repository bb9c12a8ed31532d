"""Summaries of a stream of vectors, in double precision on the host: moments, and sketches for quantiles.

Two streams are put together by merging their summaries, component by component.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

MAGNITUDE = np.int64(2**63 - 1)  # every bit but the sign
# Both signs of all exponents of a double: with this capacity mantissa bits are all that is ever dropped.
EXPONENTS = 4096
MANTISSA = 52


class Moments(NamedTuple):
    """Mean, variance and range of a stream of vectors: every field has one entry per component.

    `finite` and `nonfinite` count the samples; `squares` is the sum of squared deviations from `mean`. Without a
    finite sample `mean` is 0 and the range is empty (`minimum` = inf, `maximum` = -inf).
    """

    finite: Int[np.ndarray, "component"]
    nonfinite: Int[np.ndarray, "component"]
    mean: Float[np.ndarray, "component"]
    squares: Float[np.ndarray, "component"]
    minimum: Float[np.ndarray, "component"]
    maximum: Float[np.ndarray, "component"]

    @classmethod
    def of(cls, values: Float[np.ndarray, "sample component"]) -> "Moments":
        """The moments of one block of samples, in two passes; non-finite entries are counted and otherwise left out."""
        finite = np.isfinite(values)
        counts = finite.sum(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):  # a sum past 1.8e308 is reported as infinite
            mean = np.where(finite, values, 0.0).sum(axis=0) / np.maximum(counts, 1)
            squares = np.square(np.where(finite, values - mean, 0.0)).sum(axis=0)
        minimum = np.where(finite, values, np.inf).min(axis=0, initial=np.inf)
        maximum = np.where(finite, values, -np.inf).max(axis=0, initial=-np.inf)
        return cls(counts, len(values) - counts, mean, squares, minimum, maximum)

    def merged(self, other: "Moments") -> "Moments":
        """The moments of two streams put together.

        M = M_a + M_b + δ² n_a n_b / (n_a + n_b), with δ the difference of the means and M the sums of squares.
        Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
        (1979).
        """
        finite = self.finite + other.finite
        share = other.finite / np.maximum(finite, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            shift = other.mean - self.mean
            mean = self.mean + shift * share
            weight = self.finite * share  # 0 where one of them has no sample, however far its mean is from 0
            squares = self.squares + other.squares + np.where(weight > 0, shift * shift * weight, 0)
        minimum, maximum = np.minimum(self.minimum, other.minimum), np.maximum(self.maximum, other.maximum)
        return Moments(finite, self.nonfinite + other.nonfinite, mean, squares, minimum, maximum)


class Sketch(NamedTuple):
    """A histogram of one component whose bins are floating-point numbers with their last bits dropped.

    Read as an integer, the bits of a non-negative double grow with the number. So dropping the last `level` bits gives
    bins of equal relative width 2^(level-52), a logarithmic histogram without a logarithm. Negative numbers mirror it.

    A sketch starts at level 0, where a bin is a number and nothing is lost. It drops one more bit only when the
    occupied bins outgrow `capacity`. The level is then the smallest at which all samples fit. It does not depend on
    their order or on how they were split: sketches of the same samples are equal, bit for bit.

    Dropping resolution uniformly to stay within a budget is due to UDDSketch (Epicoco et al., IEEE Access 8, 2020),
    logarithmic bins with a guaranteed relative error to DDSketch (Masson, Rim and Lee, VLDB 2019). Exact order
    independence is this package's own observation.

    Attributes:
        bins: the occupied bins in increasing order.
        counts: how many samples each holds.
        level: the bits dropped.
    """

    bins: Int[np.ndarray, "bin"]
    counts: Int[np.ndarray, "bin"]
    level: int

    @classmethod
    def of(cls, values: Float[np.ndarray, "sample"], limit: int) -> "Sketch":
        """The sketch of one block of samples, in at most `limit` bins; non-finite samples are left out."""
        values = values[np.isfinite(values)] + 0.0  # -0.0 becomes 0.0
        bits = values.view(np.int64)
        bins, counts = np.unique(np.where(bits >= 0, bits, ~(bits & MAGNITUDE)), return_counts=True)
        return _fit(cls(bins, counts, 0), limit)

    def merged(self, other: "Sketch", limit: int) -> "Sketch":
        """The sketch of two streams put together."""
        level = max(self.level, other.level)
        bins = np.concatenate([self.bins >> (level - self.level), other.bins >> (level - other.level)])
        return _fit(_gather(bins, np.concatenate([self.counts, other.counts]), level), limit)

    def relative_error(self) -> float:
        """The largest relative distance of an order statistic from the middle of its bin: 2^(level-53), or 0."""
        return 2.0 ** (self.level - MANTISSA - 1) if self.level else 0.0

    def quantile(self, q: Float[np.ndarray, "*shape"], minimum: float, maximum: float) -> Float[np.ndarray, "*shape"]:
        """Quantiles by linear interpolation between order statistics, as `numpy.quantile` does; nan without a sample.

        An order statistic is taken for the middle of its bin, at level 0 the number itself, and kept in the range.
        """
        if not len(self.bins):
            return np.full(q.shape, np.nan)
        magnitude = np.where(self.bins >= 0, self.bins, ~self.bins) << self.level
        middle = (magnitude + ((1 << self.level) >> 1)).view(np.float64)
        values = np.clip(np.where(self.bins >= 0, middle, -middle), minimum, maximum)
        # The order statistics on both sides of each position.
        position = q * float(self.counts.sum() - 1)
        below = np.floor(position)
        cumulative = np.cumsum(self.counts)
        low, high = (values[np.searchsorted(cumulative, rank, side="right")] for rank in (below, np.ceil(position)))
        return np.asarray(low + (high - low) * (position - below))


EMPTY = Sketch(np.empty(0, np.int64), np.empty(0, np.int64), 0)


def capacity(components: int) -> int:
    """Bins allowed per component: 16 384 while that stays within 16 MiB in all, never fewer than 4 096 (64 KiB)."""
    return int(np.clip(2**20 // max(components, 1), EXPONENTS, 4 * EXPONENTS))


def sketches_of(rows: Float[np.ndarray, "sample component"], limit: int) -> tuple[Sketch, ...]:
    """A sketch of each component."""
    return tuple(Sketch.of(column, limit) for column in np.ascontiguousarray(rows.T))


def merge_sketches(a: Sequence[Sketch], b: Sequence[Sketch], limit: int) -> tuple[Sketch, ...]:
    """The merged sketches of each component."""
    return tuple(one.merged(other, limit) for one, other in zip(a, b, strict=True))


def to_arrays(moments: Moments, sketches: Sequence[Sketch]) -> dict[str, np.ndarray]:
    """Moments and sketches as plain arrays, which `from_arrays` reads back."""
    return {
        **moments._asdict(),
        "bins": np.concatenate([sketch.bins for sketch in sketches]),
        "counts": np.concatenate([sketch.counts for sketch in sketches]),
        "lengths": np.array([len(sketch.bins) for sketch in sketches]),
        "levels": np.array([sketch.level for sketch in sketches]),
    }


def from_arrays(arrays: Mapping[str, np.ndarray]) -> tuple[Moments, tuple[Sketch, ...]]:
    """The moments and sketches that `to_arrays` wrote."""
    cuts = np.cumsum(arrays["lengths"])[:-1]
    pieces = zip(np.split(arrays["bins"], cuts), np.split(arrays["counts"], cuts), arrays["levels"], strict=True)
    sketches = tuple(Sketch(bins, counts, int(level)) for bins, counts, level in pieces)
    return Moments(*(np.asarray(arrays[name]) for name in Moments._fields)), sketches


def _fit(sketch: Sketch, limit: int) -> Sketch:
    while len(sketch.bins) > limit:
        sketch = _gather(sketch.bins >> 1, sketch.counts, sketch.level + 1)
    return sketch


def _gather(bins: Int[np.ndarray, "bin"], counts: Int[np.ndarray, "bin"], level: int) -> Sketch:
    """Sort, and add up the counts of equal bins."""
    if not len(bins):
        return Sketch(bins, counts, level)
    order = np.argsort(bins, kind="stable")  # merges presorted runs in linear time
    bins, counts = bins[order], counts[order]
    first = np.flatnonzero(np.diff(bins, prepend=bins[0] - 1))
    return Sketch(bins[first], np.add.reduceat(counts, first), level)
