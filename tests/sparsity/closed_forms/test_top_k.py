"""Top-k attention with a share of the keys kept: many digits, limits, drawn keys, and rows of the layer."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import sparsity

SHARES = [1e-30, 1e-8, 1e-3, 0.1, 0.49, 0.5, 0.7, 0.99, 1.0]
GAMMAS = [0.0, 0.3, 1.0, 4.0, 9.0]


def exact(gamma, share):
    """By the closed form in 60 digits, the quantile by Newton."""
    with mp.workdps(60):
        gamma, share = mp.mpf(gamma), mp.mpf(share)
        if share == 1:
            return mp.exp(-(gamma**2) / 2)
        start = mp.sqrt(max(-2 * mp.log(share), 0.1)) if share < 0.3 else mp.mpf(0.5 - share) * 2.5
        z = mp.findroot(lambda z: mp.log(mp.ncdf(-z)) - mp.log(share), start)
        return mp.exp(-(gamma**2) / 2) * mp.ncdf(gamma - z) / mp.sqrt(mp.ncdf(2 * gamma - z))


def test_against_many_digits(dtype):
    gamma, share = np.asarray(GAMMAS, dtype)[:, None], np.asarray(SHARES, dtype)
    measured = sparsity.top_share_exponential(gamma, share)
    assert measured.dtype == dtype and measured.shape == (len(GAMMAS), len(SHARES))
    eps = float(jnp.finfo(dtype).eps)
    for i, g in enumerate(gamma[:, 0]):
        for j, k in enumerate(share):
            true = float(exact(float(g), float(k)))
            condition = 2 + float(g) ** 2 + abs(np.log(k)) + (1 - k) ** -0.5 * (k > 0.5) if k < 1 else 2 + float(g) ** 2
            assert abs(float(measured[i, j]) - true) <= 20 * eps * condition * true, (g, k)
    np.testing.assert_allclose(measured[0], np.sqrt(share), rtol=40 * eps)
    np.testing.assert_allclose(measured[:, -1], sparsity.exponential(gamma[:, 0]), rtol=4 * eps)


@pytest.mark.slow
def test_it_is_the_quadrature_of_its_step(x64):
    share = jnp.array([0.3, 0.01])
    cut = -jax.scipy.special.ndtri(share)
    for gamma in (0.5, 2.0):
        for index in range(2):
            place = 0.2 + gamma * cut[index]
            estimate = sparsity.from_kernel_with_error(
                lambda x, place=place: jnp.where(x > place, jnp.exp(x), 0), 0.2, gamma, kinks=jnp.array([place])
            )
            assert abs(estimate.value - sparsity.top_share_exponential(gamma, share[index])) <= estimate.error + 1e-14


def test_nothing_is_left_where_squares_overflow():
    s = sparsity.top_share_exponential(1e30, jnp.asarray([1e-8, 0.1, 0.9, 1.0]))
    np.testing.assert_array_equal(s, 0)


@pytest.mark.slow
def test_gradients(x64):
    by_gamma, by_share = jax.grad(sparsity.top_share_exponential, (0, 1)), 1e-6
    for gamma, share in ((0.7, 0.2), (3.0, 1e-4), (1.0, 0.8)):
        slopes = by_gamma(gamma, share)
        for slope, step in zip(slopes, ((by_share, 0.0), (0.0, by_share * share)), strict=True):
            high = exact(gamma + step[0], share + step[1]) - exact(gamma - step[0], share - step[1])
            assert abs(float(slope) - float(high / (2 * sum(step)))) < 1e-8 * abs(float(slope))
    assert np.isfinite(jax.grad(sparsity.top_share_exponential)(0.5, 1.0))


@pytest.mark.parametrize("share", [1e-8, 0.3, 0.5, 0.9, 1.0])
def test_gradients_of_equal_logits(dtype, share):
    """S = √κ at γ = 0, up to κ = 1, where the slope in κ is 0 as soon as logits differ."""
    share, eps = jnp.asarray(share, dtype), float(jnp.finfo(dtype).eps)
    slopes = jax.jit(jax.grad(sparsity.top_share_exponential, (0, 1)))(jnp.zeros((), dtype), share)
    np.testing.assert_allclose(slopes, [0, 0.5 / np.sqrt(share)], rtol=40 * eps, atol=4 * eps)
    assert jax.grad(sparsity.top_share_exponential, 1)(0.5, 1.0) == 0


@pytest.mark.slow
def test_against_drawn_keys(x64):
    draws = np.sort(np.random.default_rng(1).normal(size=(200, 20_000)), axis=1)[:, -2000:]
    weights = np.concatenate([np.exp(0.8 * draws), np.zeros((200, 18_000))], axis=1)
    rows = weights.mean(1) / np.sqrt((weights**2).mean(1))
    error = rows.std(ddof=1) / np.sqrt(200)
    assert abs(rows.mean() - float(sparsity.top_share_exponential(0.8, 0.1))) < 5 * error + 1e-5
