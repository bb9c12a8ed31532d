"""Streaming moments against NumPy's two-pass ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rc_jax.ensemble.summaries import Moments

EPS = np.finfo(np.float64).eps


def nothing(components):
    return Moments.of(np.empty((0, components)))


def merged(values, cuts):
    total = nothing(values.shape[1])
    for block in np.split(values, cuts):
        total = total.merged(Moments.of(block))
    return total


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 200), max_size=6).map(sorted))
def test_any_split_gives_numpys_numbers(seed, cuts):
    values = np.random.default_rng(seed).normal(size=(200, 3)) * [1, 1e-9, 1e6] + [0, 1, 1e6]
    total = merged(values, cuts)
    np.testing.assert_allclose(total.mean, values.mean(0), rtol=200 * EPS, atol=200 * EPS)
    np.testing.assert_allclose(total.squares / 199, values.var(0, ddof=1), rtol=1e-6)
    np.testing.assert_array_equal(total.minimum, values.min(0))
    np.testing.assert_array_equal(total.maximum, values.max(0))
    np.testing.assert_array_equal(total.finite, 200)


def test_a_large_offset_does_not_cancel():
    """The textbook E x² − (E x)² has no correct digit here."""
    values = 1e9 + np.random.default_rng(0).normal(size=(10_000, 1))
    total = merged(values, range(100, 10_000, 100))
    np.testing.assert_allclose(total.squares / 9_999, values.var(0, ddof=1), rtol=1e-7)


def test_nonfinite_entries_are_counted_and_left_out():
    values = np.random.default_rng(0).normal(size=(50, 3))
    values[[3, 40], 0], values[7, 0], values[:, 1] = np.nan, np.inf, -np.inf
    total = merged(values, [10, 30])
    np.testing.assert_array_equal(total.nonfinite, [3, 50, 0])
    np.testing.assert_array_equal(total.finite, [47, 0, 50])
    finite = values[np.isfinite(values[:, 0]), 0]
    np.testing.assert_allclose(total.mean[0], finite.mean(), rtol=50 * EPS)
    np.testing.assert_allclose(total.squares[0] / 46, finite.var(ddof=1), rtol=50 * EPS)
    assert total.maximum[0] == finite.max()


@pytest.mark.parametrize("size", [1.0, 1e200])
def test_nothing_is_neutral(size):
    some = Moments.of(size + np.random.default_rng(0).normal(size=(9, 2)))
    for total in (nothing(2).merged(some), some.merged(nothing(2))):
        for one, other in zip(total, some, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("size", [1e200, 1.7e308])
def test_overflow_is_infinite_without_a_warning(size):
    total = merged(np.array([[size], [-size], [size]]), [1])
    assert np.isinf(total.squares[0]) or np.isnan(total.squares[0])
    assert total.maximum[0] == size
