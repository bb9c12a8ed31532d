"""Quantiles from the bit histogram against `numpy.quantile` and against their own stated error."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rc_jax.ensemble import summaries
from rc_jax.ensemble.summaries import Sketch

PROBABILITIES = np.array([0, 0.001, 0.05, 0.25, 0.5, 0.77, 0.95, 0.999, 1])
any_float = st.floats(allow_nan=False, allow_infinity=False)


def sketched(values, limit, cuts=()):
    total = summaries.EMPTY
    for block in np.split(values, cuts):
        total = total.merged(Sketch.of(block, limit), limit)
    return total


def same(a, b):
    return a.level == b.level and np.array_equal(a.bins, b.bins) and np.array_equal(a.counts, b.counts)


@settings(deadline=None, max_examples=100)
@given(arrays(np.float64, st.integers(1, 40), elements=any_float.filter(lambda x: abs(x) < 1e307)))
def test_exact_while_the_bins_suffice(values):
    one = sketched(values, 64)
    got = one.quantile(PROBABILITIES, values.min(), values.max())
    assert one.relative_error() == 0
    scale = np.abs(values).max()
    np.testing.assert_allclose(
        got, np.quantile(values, PROBABILITIES), rtol=1e-14, atol=4 * np.finfo(float).eps * scale
    )


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_splits_and_order_leave_no_trace(data):
    """Also at a tiny capacity, where every merge drops bits."""
    values = data.draw(arrays(np.float64, st.integers(1, 60), elements=any_float))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=5)))
    shuffled = values[data.draw(st.permutations(range(len(values))))]
    whole = sketched(values, 8)
    assert same(whole, sketched(values, 8, cuts))
    assert same(whole, sketched(shuffled, 8, cuts))
    assert len(whole.bins) <= 8 and whole.counts.sum() == len(values)


@pytest.mark.parametrize("name", ["normal", "lognormal", "offset", "cauchy", "negative"])
def test_order_statistics_keep_the_stated_relative_error(name):
    generator = np.random.default_rng(1)
    values = {
        "normal": generator.normal(size=100_000),
        "lognormal": np.exp(20 * generator.normal(size=100_000)),
        "offset": 1e6 + generator.normal(size=100_000),
        "cauchy": generator.standard_cauchy(size=100_000),
        "negative": -np.exp(generator.normal(size=100_000)),
    }[name]
    limit = summaries.capacity(1)
    one = sketched(values, limit, range(1000, 100_000, 1000))
    error = one.relative_error()
    assert 0 < error < (1e-9 if name == "offset" else 1e-2)  # the log-normal one spans 240 octaves
    ordered = np.sort(values)
    ranks = np.arange(0, 100_000, 37)
    got = one.quantile(ranks / 99_999, values.min(), values.max())
    # the rank is recovered from a rounded probability, so allow for one neighbour
    near = np.maximum(np.abs(ordered[ranks]), np.abs(ordered[np.minimum(ranks + 1, 99_999)]))
    gap = np.abs(ordered[np.minimum(ranks + 1, 99_999)] - ordered[ranks])
    assert np.all(np.abs(got - ordered[ranks]) <= error * near + 1e-10 * gap + 1e-300)


def test_every_double_fits_in_the_smallest_capacity():
    """One bin per sign and exponent is the worst there can be: a relative error of one half."""
    exponents = np.arange(-1074, 1024)
    values = np.concatenate([np.ldexp(1.0, exponents), np.ldexp(1.5, exponents), np.ldexp(1.75, exponents)])
    one = sketched(np.concatenate([values, -values]), summaries.EXPONENTS)
    assert one.level <= summaries.MANTISSA and one.relative_error() <= 0.5


def test_zeros_signs_and_nonfinite():
    values = np.array([-0.0, 0.0, -1.0, 1.0, np.nan, np.inf, -np.inf])
    one = sketched(values, 16)
    np.testing.assert_array_equal(one.counts, [1, 2, 1])
    np.testing.assert_array_equal(one.quantile(np.array([0, 0.5, 1.0]), -1.0, 1.0), [-1, 0, 1])
    assert np.isnan(summaries.EMPTY.quantile(np.array(0.5), np.inf, -np.inf))
