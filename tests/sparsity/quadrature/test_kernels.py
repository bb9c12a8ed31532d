"""Closed forms for Gaussian keys against mpmath, against Monte Carlo, and at their ends."""

import chex
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import sparsity
from tests.oracles import sparsity as oracle

KERNELS = {
    "exponential": (lambda beta, gamma: sparsity.exponential(gamma), mp.exp, jnp.exp, ()),
    "identity": (sparsity.identity, lambda x: x, lambda x: x, (0,)),
    "relu_squared": (sparsity.relu_squared, lambda x: max(x, mp.mpf(0)) ** 2, lambda x: jax.nn.relu(x) ** 2, (0,)),
}
RATIOS = [1e4, 100, 12, 3, 1, 0.3, 1e-3, 0, -1e-3, -0.3, -1, -1.5, -2, -3, -6, -20, -100, -1e3, -1e4]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("beta", "gamma"), [(0.0, 1.0), (0.7, 0.4), (-1.3, 0.9), (-6.0, 1.5), (2.0, 3.0), (1e-3, 0.01)]
)
def test_closed_forms_against_quadrature_of_the_definition(name, beta, gamma, dtype):
    closed, exact_kernel, _, kinks = KERNELS[name]
    beta, gamma = (np.asarray(v, dtype) for v in (beta, gamma))
    exact = oracle.gaussian(exact_kernel, float(beta), float(gamma), kinks)
    measured = closed(beta, gamma)
    condition = 1 + float(beta / gamma) ** 2 + float(gamma) ** 2  # of S in its arguments
    assert measured.dtype == dtype
    assert abs(float(measured) - exact) <= 4 * float(jnp.finfo(dtype).eps) * condition * exact


@pytest.mark.parametrize("ratio", RATIOS)
def test_log_relu_squared_to_rounding_with_gradient(ratio, dtype):
    eps = float(jnp.finfo(dtype).eps)
    r = jnp.asarray(ratio, dtype)
    exact = oracle.log_relu_squared_textbook(float(r))
    assert abs(float(sparsity.log_relu_squared(r, jnp.ones_like(r))) - exact) <= 4 * eps * max(1, abs(exact))
    by_beta, by_gamma = jax.grad(sparsity.log_relu_squared, (0, 1))(r, jnp.ones_like(r))
    slope = oracle.slope(oracle.log_relu_squared_textbook, float(r))
    assert abs(float(by_beta) - slope) <= 20 * eps * abs(slope)
    assert abs(float(by_gamma) + slope * float(r)) <= 20 * eps * abs(slope * float(r))


@pytest.mark.slow
def test_far_ends_of_the_gradient_in_single_precision():
    slope = jax.vmap(jax.grad(sparsity.log_relu_squared), (0, None))(
        jnp.array([-1e9, -1e18, 1e9, 1e18]), jnp.float32(1)
    )
    np.testing.assert_allclose(slope, [5e8, 5e17, 4e-27, 0], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [3.0, 0.0, -0.5, -4.0, -50.0])
def test_second_derivative_of_log_relu_squared(ratio, x64):
    second = jax.grad(jax.grad(sparsity.log_relu_squared))(jnp.asarray(ratio), jnp.asarray(1.0))
    with mp.workdps(60):
        exact = mp.diff(oracle.log_relu_squared_textbook, mp.mpf(ratio), 2, h=mp.mpf(10) ** -20)
    assert abs(float(second) - exact) <= 1e-13 * abs(exact)


def test_relu_squared_underflows_to_zero_with_finite_gradients():
    beta = jnp.array([-10.0, -20.0, -40.0, -1e4, -1e18], jnp.float32)
    value = sparsity.relu_squared(beta, 1.0)
    assert value[0] > 0 and np.all(value[2:] == 0)
    by_beta, by_gamma = jax.vmap(jax.grad(sparsity.relu_squared, (0, 1)), (0, None))(beta, jnp.float32(1))
    assert np.all(np.isfinite(by_beta)) and np.all(np.isfinite(by_gamma)) and np.all(by_beta >= 0)


def test_published_values_of_relu_squared(x64):
    assert abs(sparsity.relu_squared(0.0, 2.5) - 6**-0.5) < 1e-15
    assert abs(sparsity.relu_squared(-2.0, 1.0) - 0.072) < 5e-4


@pytest.mark.parametrize("ratio", RATIOS)
def test_identity_gradient(ratio, dtype):
    eps = float(jnp.finfo(dtype).eps)
    r = jnp.asarray(ratio, dtype)

    def exact(x):
        return (mp.sqrt(2 / mp.pi) * mp.exp(-x * x / 2) + x * mp.erf(x / mp.sqrt(2))) / mp.sqrt(1 + x * x)

    slope = oracle.slope(exact, float(r))
    measured = jax.grad(sparsity.identity)(r, jnp.ones_like(r))
    assert abs(float(measured) - slope) <= 20 * eps * abs(slope) + float(jnp.finfo(dtype).tiny)


def test_identity_is_even_and_never_below_its_infimum(dtype):
    half = np.linspace(0, 30, 201)[1:].astype(dtype)
    beta = np.concatenate([-half[::-1], np.zeros(1, dtype), half])
    value = np.asarray(sparsity.identity(beta, 1.7))
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(value, value[::-1], rtol=4 * eps)
    assert np.min(value) == value[200] and abs(float(value[200]) - np.sqrt(2 / np.pi)) <= 2 * eps


@pytest.mark.parametrize("beta", [1.0, -1.0])
def test_limits_of_small_gamma(beta, dtype):
    gamma = jnp.asarray([1e-3, 1e-10, 1e-30], dtype)
    np.testing.assert_allclose(sparsity.identity(beta, gamma), 1, atol=1e-6)
    np.testing.assert_allclose(sparsity.relu_squared(beta, gamma), 1 if beta > 0 else 0, atol=1e-5)
    np.testing.assert_allclose(sparsity.exponential(gamma), 1, atol=1e-6)
    assert sparsity.exponential(0) == 1
    assert np.all(np.isfinite(jax.vmap(jax.grad(sparsity.relu_squared), (None, 0))(jnp.asarray(beta, dtype), gamma)))


@pytest.mark.slow
def test_only_the_query_projection_and_length_matter(x64, key):
    """Keys in 6 dimensions: the weights depend on them through β = q·μ and γ = σ‖q‖ alone."""
    roles = [jax.random.fold_in(key, role) for role in range(3)]
    q, mean = jax.random.normal(roles[0], (6,)), jax.random.normal(roles[1], (6,))
    q = q / jnp.linalg.norm(q)
    keys = mean[None] + 0.8 * jax.random.normal(roles[2], (200_000, 6))
    for closed, _, kernel, _ in KERNELS.values():
        estimate, error = oracle.ratio_estimate(kernel(keys @ q))
        assert abs(estimate - closed(q @ mean, 0.8)) < 5 * error


def test_shapes_dtypes_and_one_trace():
    beta, gamma = jnp.zeros((3, 1)), jnp.ones(4)
    for closed in (sparsity.identity, sparsity.relu_squared, sparsity.log_relu_squared):
        assert closed(beta, gamma).shape == (3, 4)
        assert closed(np.zeros(2, np.int32), 1).shape == (2,)
        assert closed(0.5, 2).dtype == jnp.float32 and closed(0.5, 2).shape == ()
        assert closed(jnp.zeros(2, jnp.bfloat16), 1.0).dtype == jnp.bfloat16
        assert jax.vmap(closed)(jnp.zeros(5), jnp.ones(5)).shape == (5,)
    swept = jax.jit(chex.assert_max_traces(sparsity.relu_squared, n=1))
    for value in (0.1, 0.2, -3.0):
        swept(value, 1.0)


def test_gradients_where_gamma_is_far_below_beta(dtype):
    """1/γ² overflows there; against the leading terms of S = 1 − γ²/2β² and of log S = −2γ²/β²."""
    beta, gamma = jnp.asarray([1.0, 2.0], dtype), jnp.asarray([1e-10, 1e-30], dtype)
    for closed, factor in ((sparsity.identity, 1), (sparsity.relu_squared, 4), (sparsity.log_relu_squared, 4)):
        by_beta, by_gamma = jax.vmap(jax.grad(closed, (0, 1)))(beta, gamma)
        np.testing.assert_allclose(by_gamma, -factor * gamma / beta**2, rtol=1e-6)
        np.testing.assert_allclose(by_beta[0], factor * gamma[0] ** 2 / beta[0] ** 3, rtol=1e-6)
    falling = jax.grad(sparsity.relu_squared, (0, 1))(-beta[0], gamma[1])
    np.testing.assert_array_equal(falling, 0)  # S = 0 with all its derivatives


@pytest.mark.slow
@pytest.mark.usefixtures("as_installed")
def test_lists_work_and_wrong_numbers_on_a_device_give_nan():
    np.testing.assert_allclose(sparsity.exponential([1.0, 2.0]), np.exp([-0.5, -2.0]), rtol=1e-6)
    assert sparsity.decay([0.5], 3).shape == sparsity.identity([1.0], 1.0).shape == (1,)
    assert sparsity.from_kernel(jnp.exp, [0.0, 1.0], 1.0).shape == (2,)
    for closed in (sparsity.identity, sparsity.relu_squared, sparsity.log_relu_squared):
        out = closed(1.0, jnp.linspace(-1, 1, 20))
        assert np.all(np.isnan(out[:10])) and np.all(np.isfinite(out[10:]))
    assert np.all(np.isnan(sparsity.exponential(jnp.full(20, -1.0))))
    assert np.all(np.isnan(sparsity.decay(jnp.full(20, 1.5), 3.0)))
    assert np.all(np.isnan(sparsity.channel_decay(jnp.full((20, 2), -1.0), jnp.full(2, 0.5), 3.0)))


def test_double_precision_holds_what_single_does_not(x64):
    assert sparsity.decay(1, 1e300) == 1
    assert abs(sparsity.identity(0.0, 1e-38) - (2 / np.pi) ** 0.5) < 1e-15
    assert abs(sparsity.relu_squared(0.0, 1e-39) - 6**-0.5) < 1e-15
    with pytest.raises(ValueError, match=r"`gamma` must be at least .* in size, to fit float32, got 1e-39"):
        sparsity.identity(jnp.zeros(2, jnp.float32), 1e-39)
