"""The figure `fixed_mean`: shares of gamma features by their distribution function, and decay's bound by hand."""

import numpy as np
import pytest
from scipy import stats

from experiments.figures.sparsity import fixed_mean
from experiments.ledger import judged
from tests.experiments import smoke_data


@pytest.mark.parametrize("noise", [1.0, 10.0])
def test_share_near_the_median_by_the_distribution_function(noise):
    law = stats.gamma(noise**-2.0, scale=noise**2)
    low, high = law.median() - 0.1 * noise, law.median() + 0.1 * noise
    drawn = fixed_mean._near_median(np.random.default_rng(0), noise, 2**16)
    assert drawn == pytest.approx(law.cdf(high) - law.cdf(low), abs=0.01)


def test_sparsity_of_two_decaying_weights_by_hand():
    assert fixed_mean._sparsity(np.array([1.0, 0.5])) == pytest.approx(0.75 / 0.625**0.5)


def test_sparsity_of_the_exponential_by_its_closed_form():
    gamma = np.array([0.05, 1.0, 5.0, 50.0])
    for beta in (-4.0, 0.0, 4.0):
        found = fixed_mean._exponential(beta, gamma)
        np.testing.assert_allclose(np.log(found[:3]), -(gamma[:3] ** 2) / 2, rtol=1e-9, atol=1e-12)
        assert found[3] == 0  # e^(−1250)


def test_a_bias_can_help_or_not():
    """A kernel whose sparsity rises as the mean falls is not helped by a bias. One that heeds the mean is not exp."""
    data = smoke_data.load("fixed_mean")

    def verdict(**changed):
        claims = judged(fixed_mean.ROWS, data | changed)
        return {claim.key: claim.verdict.value for claim in claims}["fixed-key-bias"]

    assert verdict() == "agrees"
    assert verdict(relu=data["relu"][::-1]) == "differs"
    assert verdict(exp=np.maximum(data["relu"], 1e-9)) == "differs"
