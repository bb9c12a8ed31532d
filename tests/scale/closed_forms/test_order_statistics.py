"""Order statistics of normal scores: known values and drawn rows."""

import jax
import numpy as np
import pytest
from scipy import integrate, optimize, stats

from rc_jax.scale.closed_forms import order_statistics


def test_two_scores(x64):
    """Their difference is √2 |N(0, 1)|, whose median is 0.953873."""
    assert float(order_statistics.median_gap(2)) == pytest.approx(0.6744897501960817 * 2**0.5, abs=1e-5)


def test_single_precision():
    assert float(order_statistics.median_gap(2)) == pytest.approx(0.6744897501960817 * 2**0.5, abs=5e-5)


@pytest.mark.parametrize(("n", "gap", "digits"), [(10**6, 0.1406282, 1e-4), (10**15, 0.0860717, 1e-6)])
def test_no_digit_of_small_tails_is_lost(n, gap, digits):
    """Where scores of 5, or of 8 in float64, are common: JAX's logarithm of Φ has no digit of the tail left there."""
    with jax.enable_x64(digits < 1e-5):
        assert float(order_statistics.median_gap(n)) == pytest.approx(_median_gap(n), rel=digits)
    assert _median_gap(n) == pytest.approx(gap, rel=1e-6)


def _median_gap(n):
    x = np.linspace(-9, 13, 100_001)

    def beyond(gap):
        log_below = np.log1p(-np.minimum(stats.norm.sf(x - gap), 1 - 1e-16))
        return integrate.simpson(np.exp(np.log(float(n)) + stats.norm.logpdf(x) + (n - 1.0) * log_below), x=x) - 0.5

    return optimize.brentq(beyond, 0, 3)


@pytest.mark.parametrize("n", [8, 64])
def test_median_gap_is_the_middle_of_drawn_rows(n):
    rows = np.sort(np.random.default_rng(n).normal(size=(40_000, n)), axis=1)
    share = np.mean(rows[:, -1] - rows[:, -2] < float(order_statistics.median_gap(n)))
    assert abs(share - 0.5) < 5 * 0.5 / 40_000**0.5


def test_many_scores(x64):
    """Against the density of the largest score, n φ Φⁿ⁻¹, in logarithms with SciPy."""
    for n in (10**10, 10**20):
        x = np.linspace(3, 14, 20_001)
        gap = float(order_statistics.median_gap(n))
        beyond = np.exp(np.log(float(n)) + stats.norm.logpdf(x) + float(n) * stats.norm.logcdf(x - gap))
        assert np.trapezoid(beyond, x) == pytest.approx(0.5, abs=1e-3)


def test_numbers_of_scores_out_of_range():
    with pytest.raises(ValueError, match="`n` must be an integer from 2 to 100000000"):
        order_statistics.median_gap(1)
    with pytest.raises(ValueError, match="`n` must be an integer from 2 to 100000000"):
        order_statistics.median_gap(10**21)
