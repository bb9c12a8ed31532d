"""The scale that an entropy implies: recovered from simulated logits, and its quadrature against sampling."""

import numpy as np
import pytest
from scipy import integrate, stats

from rc_jax import diagnostics, scale
from rc_jax.diagnostics.implied_scale import entropy_scale, mean_entropy, optimal_scale
from tests.diagnostics import dense


def entropies(weights):
    return -np.sum(weights * np.log(np.maximum(weights, 1e-300)), axis=-1)


@pytest.mark.parametrize("n, alpha", [(2, 0.5), (2, 8.0), (64, 1.0), (64, 4.0), (1024, 2.5)])
def test_mean_entropy_is_that_of_sampled_rows(n, alpha):
    sampled = entropies(dense.gaussian(0, (200_000 // n, n), alpha))
    error = sampled.std() / np.sqrt(sampled.size)
    assert abs(sampled.mean() - mean_entropy(alpha, np.array([float(n)]))[0]) < 5 * error


def test_two_keys_by_one_integral():
    """With two keys p = 1/(1 + e^{−αd}), d normal of variance 2."""

    def integrand(d):
        p = 1 / (1 + np.exp(-1.5 * d))
        return -(p * np.log(p) + (1 - p) * np.log(1 - p)) * stats.norm.pdf(d, scale=2**0.5)

    exact = integrate.quad(integrand, -12, 12, epsabs=1e-13)[0]
    assert np.isclose(mean_entropy(1.5, np.array([2.0]))[0], exact, rtol=1e-10)


def test_small_scales_are_annealed():
    n = np.array([1e5])
    assert np.isclose(np.log(1e5) - mean_entropy(0.5, n)[0], 0.125, rtol=1e-4)
    assert np.isclose(entropy_scale(np.log(n) - 0.125, n.astype(int))[0], 0.5, rtol=1e-3)
    assert np.isclose(scale.fixed_entropy_scale(1e5, float(np.log(1e5) - 0.125)), 0.5, rtol=1e-3)


@pytest.mark.parametrize("keys", [np.full(3, 17), np.arange(2, 400)], ids=["full", "causal"])
def test_the_table_inverts_the_mean(keys):
    alphas = np.geomspace(0.003, 24, 31)
    means = np.array([mean_entropy(alpha, keys.astype(float)).mean() for alpha in alphas])
    assert np.allclose(entropy_scale(means, keys), alphas, rtol=3e-4)
    ends = entropy_scale(np.array([0.0, np.log(keys).mean(), 10.0]), keys)
    assert ends.tolist() == [np.inf, 0, 0]


@pytest.mark.parametrize("n", [2, 64, 10**6])
def test_sharp_rows_have_a_scale_that_grows_as_one_over_the_entropy(n):
    """Far beyond the table: against the mean at α = 60, and no entropy that is smaller has a smaller scale."""
    mean = mean_entropy(60.0, np.array([float(n)]))
    assert np.isclose(entropy_scale(mean, np.array([n]))[0], 60, rtol=0.01)
    falling = np.geomspace(mean[0], 1e-30, 40)
    products = falling * entropy_scale(falling, np.array([n]))
    assert (np.abs(products / products[0] - 1) < 0.1).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("alpha", [0.3, 1.0, 3.0])
def test_a_known_scale_is_recovered_from_weights(alpha, causal):
    """32 heads of 48 tokens: the mean over heads is α within standard errors, of which there is no bias to speak of."""
    weights = dense.gaussian(1, (32, 48, 48), alpha, causal).astype(np.float32)
    diagnosis = diagnostics.attention(weights)["entropy_scale"]
    assert abs(diagnosis.mean() - alpha) < 5 * diagnosis.std() / np.sqrt(diagnosis.size)
    assert diagnosis.std() < 0.1 * alpha


def test_the_best_scale_on_the_host_is_that_of_the_package():
    assert np.isclose(optimal_scale(np.full(3, 1024)), float(scale.optimal_scale_exact(1024.0)), rtol=1e-6)
