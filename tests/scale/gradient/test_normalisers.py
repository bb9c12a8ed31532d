"""Sparsemax, 1.5-entmax and powers: against bisection, autodiff, scale invariance, simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rc_jax import scale
from tests.oracles import scale as oracle

RNG = np.random.default_rng(0)
SCORES = {
    "equal": [0.5] * 6,
    "tie": [2.0, 2.0, -1.0, 2.0, 0.0, 1.0],
    "random": RNG.normal(size=6).tolist(),
    "peaked": [9.0, 0.0, -1.0, 1.0, 1.0, 2.0],
}


@pytest.mark.parametrize("name", SCORES)
def test_thresholds_by_bisection(dtype, name):
    scores = jnp.asarray(SCORES[name], dtype)
    for alpha in (0.05, 1.0, 4.0):
        for function, power in ((scale.sparsemax, 1), (scale.entmax15, 2)):
            got = function(scores, alpha)
            assert got.dtype == dtype
            exact = oracle.threshold_weights(np.asarray(scores, float), alpha, power)
            np.testing.assert_allclose(got, exact, atol=16 * float(jnp.finfo(dtype).eps))


def test_many_scores_add_up_to_one():
    scores = jax.random.normal(jax.random.key(0), (2, 20_000))
    for function in (scale.sparsemax, scale.entmax15):
        p = function(scores, jnp.asarray([0.001, 3.0]))
        np.testing.assert_allclose(p.sum(-1), 1, atol=1e-5)
        assert (p >= 0).all()


def test_jacobians_are_of_the_stated_form(x64):
    scores = jnp.asarray(SCORES["random"])
    for alpha in (0.4, 2.0):
        for function, slope in (
            (scale.sparsemax, lambda p: (p > 0).astype(float)),
            (scale.entmax15, np.sqrt),
            (lambda s, a: jax.nn.softmax(a * s), lambda p: p),
        ):
            jacobian = jax.jacobian(function)(scores, alpha)
            g = slope(np.asarray(function(scores, alpha)))
            np.testing.assert_allclose(jacobian, alpha * (np.diag(g) - np.outer(g, g) / g.sum()), atol=1e-13)


def power_weights(scores, power):
    raised = jnp.abs(scores) ** power
    return raised / raised.sum()


@pytest.mark.parametrize("power", [1.0, 6.0, 7.5])
def test_power_gradient_is_half_the_sum_of_the_jacobian(x64, power):
    scores = jnp.asarray(SCORES["random"])
    jacobian = jax.jacobian(power_weights)(scores, power)
    assert scale.power_gradient_norm(scores, power) == pytest.approx(float(jnp.abs(jacobian).sum() / 2), rel=1e-12)


@settings(deadline=None, max_examples=15)
@given(st.floats(-30, 30).filter(lambda t: abs(t) > 1e-3))
def test_scale_invariance(t):
    """J(ts) = J(s)/t."""
    scores = jnp.asarray(SCORES["random"], jnp.float32)
    moved, size = jnp.float32(t) * scores, float(scale.power_gradient_norm(scores))
    assert scale.power_gradient_norm(moved) == pytest.approx(size / abs(t), rel=1e-5)


def test_extreme_rows():
    assert scale.power_gradient_norm(jnp.asarray([1e30, 1.0])) == 0
    assert np.isnan(scale.power_gradient_norm(jnp.zeros(3)))
    assert np.isfinite(jax.jit(jax.grad(scale.power_gradient_norm))(jnp.asarray([1.0, 0.0, 2.0]))).all()


def test_scores_near_the_largest_number_and_powers_past_int32():
    got = scale.power_gradient_norm(jnp.asarray([9e37, -9e37]))  # 6 · 2 · (1/2)(1/2)/|s|
    np.testing.assert_allclose(got * jnp.float32(9e37), 3, rtol=1e-6)
    assert scale.power_gradient_norm(jnp.asarray([1.0, 2.0]), 2**40) == 0


@pytest.mark.slow
def test_annealed_power_gradient(x64):
    """Moments by quadrature, the value for six in closed form, and simulation of many keys in standard errors."""
    moments = {k: oracle.absolute_moment(k) for k in (5, 6, 11)}
    exact = 6 * (moments[5] / moments[6] - moments[11] / (1000 * moments[6] ** 2))
    assert scale.annealed_power_gradient(1000.0) == pytest.approx(exact, rel=1e-10)
    single = scale.annealed_power_gradient(jnp.float32(1000))
    assert single.dtype == jnp.float32 and single == pytest.approx(exact, rel=1e-5)
    assert scale.annealed_power_gradient(1e15) == pytest.approx(3.2 * np.sqrt(2 / np.pi), rel=1e-12)
    scores = jnp.asarray(np.random.default_rng(1).normal(size=(100, 65536)))
    values = np.asarray(scale.power_gradient_norm(scores))
    error = values.std(ddof=1) / 10
    assert abs(values.mean() - scale.annealed_power_gradient(65536.0)) < 5 * error + 0.5 * 81.7 / 65536
    assert error < 0.003


@pytest.mark.slow
def test_derivatives_are_finite_at_ties():
    for function in (scale.sparsemax, scale.entmax15):
        slopes = jax.jit(jax.jacrev(function, (0, 1)))
        for name in ("equal", "tie", "peaked"):
            assert all(np.isfinite(part).all() for part in slopes(jnp.asarray(SCORES[name]), 1.0))
