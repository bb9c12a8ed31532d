"""An ensemble and its statistics by component, with one rule for samples that are not finite."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rc_jax import ensemble


class Drawn(NamedTuple):
    """Statistics of an ensemble, each with the structure of one sample.

    Mean, its standard error, the smallest and the largest sample are NaN in a component of which a sample is not
    finite: a mean of the others would say nothing of it, and the ledger calls a row that reads NaN not measured.
    `left_out` counts those samples, and quantiles are of the others.
    """

    samples: Any
    mean: Any
    standard_error: Any
    minimum: Any
    maximum: Any
    left_out: Any

    def quantile(self, levels: Sequence[float]) -> Any:
        """Quantiles of the finite samples, the levels leading; NaN where there is none."""
        return jax.tree.map(lambda samples: _quantile(samples, levels), self.samples)


def draw(fn: Callable[[jax.Array], Any], key: jax.Array, count: int, **options: Any) -> Drawn:
    """`ensemble.run(fn, key, count, **options)` with its statistics."""
    return statistics(ensemble.run(fn, key, count, **options))


def statistics(samples: Any) -> Drawn:
    """The statistics of samples along the leading axis of every leaf."""
    known = jax.tree.map(lambda each: np.where(np.isfinite(each), each, np.nan), samples)

    def of(function: Callable[[np.ndarray], Any]) -> Any:
        return jax.tree.map(function, known)

    return Drawn(
        samples=samples,
        mean=of(lambda each: each.mean(axis=0)),
        standard_error=of(lambda each: each.std(axis=0, ddof=1) / len(each) ** 0.5),
        minimum=of(lambda each: each.min(axis=0)),
        maximum=of(lambda each: each.max(axis=0)),
        left_out=of(lambda each: np.isnan(each).sum(axis=0)),
    )


def _quantile(samples: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    finite = np.isfinite(samples)
    if finite.all():
        return np.quantile(samples, levels, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a component without a finite sample
        return np.nanquantile(np.where(finite, samples, np.nan), levels, axis=0)
