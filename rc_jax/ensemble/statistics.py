"""Statistics of a stream of pytrees: mergeable, and writable as plain arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Shaped

from rc_jax._numerics import arguments
from rc_jax._numerics.jax_names import PyTree
from rc_jax.ensemble import summaries
from rc_jax.ensemble.summaries import Moments, Sketch


@dataclass(frozen=True)
class Layout:
    """The structure of one sample: a tree, and the shape of each of its leaves."""

    tree: Any
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, sample: PyTree) -> "Layout":
        """The layout of a pytree of arrays (or of anything with a shape)."""
        leaves, tree = jax.tree.flatten(sample)
        return cls(tree, tuple(np.shape(leaf) for leaf in leaves))

    @property
    def sizes(self) -> list[int]:
        """Numbers in each leaf."""
        return [int(np.prod(shape)) for shape in self.shapes]

    def flat(self, samples: PyTree) -> Float[np.ndarray, "sample component"]:
        """Samples stacked along the leading axis of every leaf, as one double-precision matrix."""
        leaves = [np.asarray(leaf).astype(np.float64) for leaf in jax.tree.leaves(samples)]
        return np.concatenate(
            [leaf.reshape(len(leaf), size) for leaf, size in zip(leaves, self.sizes, strict=True)], axis=1
        )

    def unflat(self, values: Shaped[np.ndarray, "*lead component"]) -> PyTree:
        """The inverse of `flat` on the last axis: a tree of leaves, each with the leading axes of `values`."""
        pieces = np.split(values, np.cumsum(self.sizes)[:-1], axis=-1)
        lead = values.shape[:-1]
        return self.tree.unflatten(
            [piece.reshape(lead + shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
        )


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of `count` samples; each field has the structure of one sample, with NumPy leaves in float64.

    A component is one number of a sample. Samples where it is not finite are counted in `nonfinite` and left out of
    every other statistic of that component; look there before you trust a mean.

    Example:
        >>> import jax
        >>> from rc_jax import ensemble
        >>> stats = ensemble.run(lambda key: {"x": jax.random.uniform(key)}, jax.random.key(0), 1000)
        >>> stats.count, bool(abs(stats.mean["x"] - 0.5) < 5 * stats.standard_error["x"])
        (1000, True)
        >>> stats.quantile([0.1, 0.5, 0.9])["x"].shape
        (3,)
    """

    count: int
    layout: Layout
    moments: Moments
    sketches: tuple[Sketch, ...]

    @classmethod
    def of(cls, samples: PyTree) -> "Statistics":
        """Statistics of samples stacked along the leading axis of every leaf."""
        layout = Layout.of(jax.tree.map(lambda leaf: leaf[0], samples))
        rows = layout.flat(samples)
        sketches = summaries.sketches_of(rows, summaries.capacity(rows.shape[1]))
        return cls(len(rows), layout, Moments.of(rows), sketches)

    @property
    def mean(self) -> PyTree:
        """Arithmetic mean of the finite samples; nan where there is none."""
        return self._of_finite(self.moments.mean)

    @property
    def variance(self) -> PyTree:
        """Unbiased variance, Σ(x − mean)²/(n − 1) over the n finite samples; nan for n < 2."""
        return self.layout.unflat(self._variance())

    @property
    def standard_error(self) -> PyTree:
        """Standard error of `mean`, √(variance/n); nan for n < 2."""
        return self.layout.unflat(np.sqrt(self._variance() / np.maximum(self.moments.finite, 1)))

    @property
    def minimum(self) -> PyTree:
        """Smallest finite sample; nan where there is none."""
        return self._of_finite(self.moments.minimum)

    @property
    def maximum(self) -> PyTree:
        """Largest finite sample; nan where there is none."""
        return self._of_finite(self.moments.maximum)

    @property
    def nonfinite(self) -> PyTree:
        """Number of samples that were infinite or not a number (integers)."""
        return self.layout.unflat(self.moments.nonfinite)

    @arguments.guard(q=arguments.bounded(0, 1))
    def quantile(self, q: Any) -> PyTree:
        """Quantiles of the finite samples, interpolated linearly between order statistics.

        Exact (those of `numpy.quantile`) until a component has taken more distinct values than a sketch has bins, at
        least 4 096 and up to 16 384; after that each order statistic is known to the relative error that
        `quantile_error` reports. Does not depend on chunks, devices or the order of merging.

        Args:
            q: Probabilities in [0, 1], any shape; its axes lead in the result.

        Raises:
            ValueError: `q` leaves [0, 1].
        """
        q = np.asarray(q, np.float64)
        columns = [
            sketch.quantile(q, low, high)
            for sketch, low, high in zip(self.sketches, self.moments.minimum, self.moments.maximum, strict=True)
        ]
        return self.layout.unflat(np.stack(columns, axis=-1))

    @property
    def quantile_error(self) -> PyTree:
        """Bound on the relative error of the order statistics behind `quantile`: 0 where they are exact."""
        return self.layout.unflat(np.array([sketch.relative_error() for sketch in self.sketches]))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything but the layout as plain arrays, ready for `numpy.savez`; `from_arrays` reads them back."""
        return {"count": np.array(self.count), **summaries.to_arrays(self.moments, self.sketches)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], like: PyTree) -> "Statistics":
        """The statistics that `to_arrays` wrote; `like` is one sample (or its `jax.eval_shape`).

        Raises:
            ValueError: the arrays do not have as many components as `like`.
        """
        layout = Layout.of(like)
        components = len(arrays["levels"])
        if components != sum(layout.sizes):
            raise ValueError(f"`like` must have {components} components, as the arrays have, got {sum(layout.sizes)}")
        return cls(int(arrays["count"]), layout, *summaries.from_arrays(arrays))

    def _of_finite(self, values: np.ndarray) -> PyTree:
        return self.layout.unflat(np.where(self.moments.finite > 0, values, np.nan))

    def _variance(self) -> np.ndarray:
        finite = self.moments.finite
        return np.where(finite > 1, self.moments.squares / np.maximum(finite - 1, 1), np.nan)


@arguments.guard(a=arguments.instance(Statistics), b=arguments.instance(Statistics))
def merge(a: Statistics, b: Statistics) -> Statistics:
    """The statistics of two disjoint ensembles of the same observables, as if they had been run as one.

    Counts, range and quantiles are those of the union exactly, mean and variance to rounding.

    Raises:
        TypeError: `a` or `b` is not what `run` returns.
        ValueError: the two have different observables.

    Example:
        >>> import jax
        >>> from rc_jax import ensemble
        >>> halves = [ensemble.run(jax.random.normal, jax.random.key(seed), 500) for seed in (1, 2)]
        >>> ensemble.merge(*halves).count
        1000
    """
    if a.layout != b.layout:
        of_a, of_b = (layout.tree.unflatten(layout.shapes) for layout in (a.layout, b.layout))
        raise ValueError(f"`b` must have the observables of `a`, {of_a}, got {of_b}")
    sketches = summaries.merge_sketches(a.sketches, b.sketches, summaries.capacity(len(a.sketches)))
    return Statistics(a.count + b.count, a.layout, a.moments.merged(b.moments), sketches)
