"""The figure `fixed_mean`: shares of gamma features by their distribution function, and decay's bound by hand."""

import numpy as np
import pytest
from scipy import stats

from experiments.figures.sparsity import fixed_mean


@pytest.mark.parametrize("noise", [1.0, 10.0])
def test_share_near_the_median_by_the_distribution_function(noise):
    law = stats.gamma(noise**-2.0, scale=noise**2)
    low, high = law.median() - 0.1 * noise, law.median() + 0.1 * noise
    drawn = fixed_mean._near_median(np.random.default_rng(0), noise, 2**16)
    assert drawn == pytest.approx(law.cdf(high) - law.cdf(low), abs=0.01)


def test_sparsity_of_two_decaying_weights_by_hand():
    assert fixed_mean._sparsity(np.array([1.0, 0.5])) == pytest.approx(0.75 / 0.625**0.5)
