import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import sparsity
from tests.oracles import sparsity as oracle


def _case(key, d, dtype):
    q, mean, root = (jax.random.fold_in(key, role) for role in range(3))
    root = jax.random.normal(root, (d, d), dtype)
    return jax.random.exponential(q, (4, d), dtype), jax.random.exponential(mean, (d,), dtype), root @ root.T


def test_general_form_against_plain_numpy(dtype, key):
    q, mean, cov = _case(key, 7, dtype)
    exact_q, exact_mean, exact_cov = (np.asarray(v, np.float64) for v in (q, mean, cov))
    spread = np.einsum("bi,ij,bj->b", exact_q, exact_cov, exact_q) / (exact_q @ exact_mean) ** 2
    measured = sparsity.nonnegative_linear(q, mean, cov)
    assert measured.dtype == dtype
    np.testing.assert_allclose(measured, (1 + spread) ** -0.5, rtol=100 * jnp.finfo(dtype).eps)
    one = sparsity.nonnegative_linear(q[0], mean, cov)
    np.testing.assert_allclose(one, measured[0], rtol=8 * jnp.finfo(dtype).eps)


@pytest.mark.slow
def test_against_monte_carlo_of_gamma_features(x64, key):
    """Correlated non-negative features that are not Gaussian: mixtures of independent exponentials."""
    roles = [jax.random.fold_in(key, role) for role in range(3)]
    mix = jax.random.uniform(roles[0], (5, 8))
    features = jax.random.exponential(roles[1], (200_000, 8)) @ mix.T
    q = jax.random.exponential(roles[2], (5,))
    estimate, error = oracle.ratio_estimate(features @ q)
    assert abs(estimate - sparsity.nonnegative_linear(q, mix.sum(1), mix @ mix.T)) < 5 * error


@pytest.mark.slow
def test_iid_form_is_the_general_form(dtype, key):
    q, _, _ = _case(key, 6, dtype)
    general = sparsity.nonnegative_linear(q, jnp.full(6, 0.7, dtype), 0.09 * jnp.eye(6, dtype=dtype))
    np.testing.assert_allclose(sparsity.nonnegative_linear_iid(q, 0.7, 0.3), general, rtol=20 * jnp.finfo(dtype).eps)


def test_no_spread_is_uniform_and_has_gradients():
    q, mean = jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0])
    assert sparsity.nonnegative_linear(q, mean, jnp.zeros((2, 2))) == 1
    grads = jax.grad(sparsity.nonnegative_linear, (0, 1, 2))(q, mean, jnp.zeros((2, 2)))
    assert all(np.all(np.isfinite(g)) for g in grads)
    assert sparsity.nonnegative_linear_iid(q, 1.0, 0.0) == 1


@pytest.mark.slow
def test_scales_of_features_do_not_count(dtype):
    """Against 60 digits: deviations, means and queries of unlike features may be 20 powers of ten apart, or more."""
    q = [[1, 0, 0], [1, 1, 1], [1e-10, 1, 0], [0, 1e-15, 1]]
    mean, deviation = [1e-16, 1, 1e10], [1e-15, 1, 1e-5]
    correlation = [[1, 0.3, -0.2], [0.3, 1, 0.5], [-0.2, 0.5, 1]]
    cov = jnp.asarray(np.outer(deviation, deviation) * correlation, dtype)
    q, mean = jnp.asarray(q, dtype), jnp.asarray(mean, dtype)
    with mp.workdps(60):
        exact = []
        for row in np.asarray(q, float):
            w, m, c = ([mp.mpf(float(v)) for v in np.ravel(value)] for value in (row, mean, cov))
            spread = mp.fsum(w[i] * w[j] * c[3 * i + j] for i in range(3) for j in range(3))
            exact.append(float(1 / mp.sqrt(1 + spread / mp.fdot(w, m) ** 2)))
    run = jax.jit(lambda q, mean, cov: jax.vjp(sparsity.nonnegative_linear, q, mean, cov)[0])
    np.testing.assert_allclose(run(q, mean, cov), exact, rtol=20 * jnp.finfo(dtype).eps)
    mean, cov = jnp.asarray([1e-20, 1], dtype), jnp.diag(jnp.asarray([1e-36, 1], dtype))
    assert abs(sparsity.nonnegative_linear(q[0, :2], mean, cov) - (1 + 1e4) ** -0.5) < 1e-7


@pytest.mark.slow
def test_measured_moments_give_the_sparsity_of_the_row(dtype, key):
    """An identity for features of any law: heavy tails, a common shift, repeated features, fewer keys than features."""
    eps = float(jnp.finfo(dtype).eps)
    x, q = (jax.random.normal(jax.random.fold_in(key, role), (40, 12), dtype) for role in range(2))
    q = jnp.abs(q)
    maps = (
        jax.nn.relu,
        jnp.exp,
        lambda x: jnp.exp(3 * x),
        lambda x: 1e4 + jax.nn.relu(x),
        lambda x: jax.nn.relu(x) ** 2,
    )
    for phi in maps:
        for keys in (phi(x), jnp.repeat(phi(x[:, :6]), 2, axis=1), phi(x)[:3]):
            mean, cov = sparsity.feature_moments(keys)
            assert mean.dtype == cov.dtype == dtype and np.array_equal(cov, cov.T)
            row = jnp.matmul(phi(q), keys.T, precision="highest")
            measured = sparsity.nonnegative_linear(phi(q), mean, cov)
            np.testing.assert_allclose(measured, sparsity.sparsity(row), rtol=40 * eps)


@pytest.mark.parametrize("shift", [1e3, 1e6])
def test_a_large_common_mean_costs_no_digits(dtype, shift):
    """In float32 one pass of adding up leaves an error of the mean whose square, .008, is in the covariance."""
    features = jnp.asarray(shift + np.random.default_rng(0).exponential(size=(500, 5)), dtype)
    mean, cov = sparsity.feature_moments(features)
    exact, eps = np.asarray(features, float), float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(mean, [math.fsum(column) / 500 for column in exact.T], rtol=0.8 * eps)
    np.testing.assert_allclose(cov, np.cov(exact.T, bias=True), atol=max(200 * eps, (shift * eps) ** 2 / 7))
    rounded = sparsity.feature_moments(features.astype(jnp.bfloat16))
    assert rounded[0].dtype == rounded[1].dtype == jnp.bfloat16
    gradient = jax.jit(jax.grad(lambda f: jnp.sum(sparsity.feature_moments(f)[1])))(features)
    assert np.all(np.isfinite(gradient))


@pytest.mark.usefixtures("as_installed")
def test_numpy_arrays_of_more_digits_than_jax_keeps():
    features = np.random.default_rng(0).exponential(size=(9, 4))
    mean, cov = sparsity.feature_moments(features)
    assert mean.dtype == cov.dtype == jnp.float32
    assert sparsity.nonnegative_linear(features, mean, cov).shape == (9,)
    assert sparsity.random_projections(jax.random.key(0), 3, 4, dtype=np.float64).dtype == jnp.float32


def test_rates_of_feature_maps(x64):
    """Closed moments of ReLU, exp and relu², and rows of a layer whose d and D are large."""
    for phi, v, level in (
        (jax.nn.relu, np.pi - 1, 0.5),
        (jnp.exp, np.e - 1, 0.5),
        (lambda x: jnp.square(jax.nn.relu(x)), 5, 2),
    ):
        np.testing.assert_allclose(sparsity.feature_map_rates(phi), (v * (1 + v), level), rtol=1e-6)
    random, n, d = np.random.default_rng(0), 256, 64
    x = random.normal(size=(40, n, d))  # layers of n tokens with as many coordinates as features
    q, k = (np.maximum(x @ random.normal(size=(40, d, d)) / d**0.5, 0) for _ in range(2))
    excess = 1 / np.square(sparsity.sparsity(jnp.asarray(q @ np.swapaxes(k, 1, 2)))) - 1
    means = np.asarray(excess).mean(1) * n / (n - 1)
    spread, level = sparsity.feature_map_rates(jax.nn.relu)
    assert abs(means.mean() * d / (spread + level) - 1) < 0.1  # first order in 1/d and 1/D
