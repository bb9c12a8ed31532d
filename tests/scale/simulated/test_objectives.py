"""Simulated means and the typical scale: exact integrals and published values in standard errors, plain rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rc_jax import scale
from rc_jax.scale import quadrature
from rc_jax.scale.simulated import objectives as expected
from rc_jax.scale.simulated import random_rows
from rc_jax.scale.simulated.score_distribution import quantile, score_difference, score_law
from tests.oracles.scale import drawn_rows

CRITICAL = float(np.sqrt(2 * np.log(1024)))


def z(mean, error, expected, rounding=0.0):
    """Distance in standard errors, after the rounding of the published figure."""
    return np.maximum(np.abs(np.asarray(mean) - np.asarray(expected)) - rounding, 0) / np.asarray(error)


def probabilities(scores, alpha):
    weights = np.exp(alpha * (scores - scores.max(-1, keepdims=True)))
    return weights / weights.sum(-1, keepdims=True)


def plain(scores, alpha):
    """α(1 − Σp²) in numpy, nothing clever."""
    p = probabilities(scores, alpha)
    return alpha * (1 - (p * p).sum(-1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "dim"),
    [
        (161, None),
        (16, 3.0),
        *(
            pytest.param(n, dim, marks=pytest.mark.slow)
            for n, dim in ((2, None), (160, None), (512, None), (2**20, None), (2**16, 128.0))
        ),
    ],
)
def test_means_are_those_of_an_integral(key, n, dim):
    """From nearly linear to beyond the critical scale; whole rows, and long ones that are drawn in part."""
    unit = np.sqrt(2 * np.log(n)) * (1 if dim is None else np.sqrt(dim))
    alpha = np.asarray([0.35, 0.5, 0.7, 1.0, 1.5], np.float32) * np.float32(unit)
    exact = [a * (1 - quadrature.participation(a, n, dim)) for a in alpha.astype(float)]
    mean, error = scale.expected_objective(key, alpha, n, dim, samples=4096)
    rounding = 4e-6 * np.asarray(exact)  # of float32, where the standard error is less
    assert (z(mean, error, exact, rounding) < 5).all()
    assert (error < 2e-2 * mean).all()


@pytest.mark.slow
def test_what_long_rows_leave_out_is_below_1e_4(x64, key, monkeypatch):
    """With a level that only 16 scores exceed, four times fewer than in use, against the integral."""
    monkeypatch.setattr(random_rows, "DRAWN", 16)
    jax.clear_caches()
    alpha = CRITICAL * np.asarray([0.35, 0.5, 0.7, 1.0])
    exact = [a * (1 - quadrature.participation(a, 1024)) for a in alpha]
    mean, error = scale.expected_objective(key, alpha, 1024, samples=20_000)
    jax.clear_caches()
    assert (z(mean, error, exact) < 5).all()
    assert (np.asarray(error)[:2] < 1e-4 * np.asarray(exact)[:2]).all()


def mean_score(alpha, n):
    """E Σ p s = n ∫ E[s e^{x + αs} g] φ^{n−1} dx over n normal scores, g = exp(−e^{x + αs}), φ = E g."""
    s, x = np.linspace(-12, 12, 2001), np.arange(-12 * alpha - 40, 12 * alpha + 8, 0.1)
    weights = stats.norm.pdf(s) / stats.norm.pdf(s).sum()
    z = np.minimum(x[:, None] + alpha * s, 6.5)
    inner = (weights * s * np.exp(z - np.exp(z))).sum(1)
    gone = np.minimum((weights * -np.expm1(-np.exp(z))).sum(1), 1 - 1e-15)
    return n * 0.1 * (inner * np.exp((n - 1) * np.log1p(-gone))).sum()


def test_integrals_agree_with_one_another_and_with_rows_of_two():
    """α(1 − E Σp²) = E Σ p s for Gaussian scores; for two scores, Σp² by the law of their difference."""
    for n in (2, 100, 10**6):
        alpha = 0.8 * np.sqrt(2 * np.log(n))
        left = alpha * (1 - quadrature.participation(alpha, n))
        assert left == pytest.approx(mean_score(alpha, n), rel=1e-9)
    gap = np.linspace(-12, 12, 4001)
    weights = stats.norm.pdf(gap / np.sqrt(2)) / np.sqrt(2) * (gap[1] - gap[0])
    two = (weights * (1 + np.tanh(gap) ** 2) / 2).sum()
    assert quadrature.participation(2.0, 2) == pytest.approx(two, rel=1e-9)


@pytest.mark.parametrize(
    ("power", "published"),
    [(7, 0.28435), (10, 0.23553), pytest.param(13, 0.20505, marks=pytest.mark.slow), (16, 0.18379)],
)
def test_participation_at_the_critical_scale(key, power, published):
    n = 2**power
    critical = float(np.sqrt(2 * np.log(n)))
    assert quadrature.participation(critical, n) == pytest.approx(published, abs=5e-6)
    if power == 13:  # one simulation; others above
        mean, error = scale.expected_objective(key, critical, n, samples=20_000)
        assert z(1 - mean / critical, error / critical, published) < 5


@pytest.mark.slow
def test_integration_by_parts(key):
    """α(1 − E Σp²) = E Σ p h(s), h = s or (d − 3)s/(1 − s²), the right side from plain draws of numpy."""
    rng = np.random.default_rng(1)
    for n, dim in ((64, None), (64, 16)):
        scores = drawn_rows(rng, 2000, n, dim)
        force = scores if dim is None else (dim - 3) * scores / (1 - scores**2)
        alpha = np.asarray([0.5, 2.0, 6.0, 20.0]) * (1 if dim is None else np.sqrt(dim))
        other = np.stack([(probabilities(scores, a) * force).sum(-1) for a in alpha])
        mean, error = scale.expected_objective(key, alpha.astype(np.float32), n, dim, samples=2048)
        combined = np.hypot(error, other.std(1) / np.sqrt(other.shape[1]))
        assert (z(mean, combined, other.mean(1)) < 5).all()


@pytest.mark.slow
def test_no_finite_maximiser_and_a_plateau(key):
    """The mean rises up to twenty critical scales, towards the mean of the largest score; so it does for cosines."""
    mean, error = scale.expected_objective(key, CRITICAL * jnp.asarray([0.5, 1, 2, 4, 8, 20]), 1024, samples=4096)
    assert (jnp.diff(mean) > -5 * jnp.hypot(error[1:], error[:-1])).all()
    assert (jnp.diff(mean[:5]) > 0).all()
    largest = quadrature.mean_largest(1024)
    assert mean[-1] < largest + 5 * error[-1]
    assert mean[-1] > largest - 0.05
    mean, _ = scale.expected_objective(key, jnp.asarray([20.0, 35, 50, 100, 200, 400]), 1024, dim=128, samples=4096)
    assert (jnp.diff(mean) > 0).all()


@pytest.mark.slow
def test_means_at_any_large_scale(key):
    """The density of the difference of the two largest scores at 0 is the limit: for Gaussian scores E max s."""
    alpha = jnp.asarray([1e4, 1e6, 1e30, 3e38], jnp.float32)
    largest = quadrature.mean_largest(100)
    assert largest == pytest.approx(2.507594, abs=1e-6)
    mean, error = scale.expected_objective(key, alpha, 100)
    assert (z(mean, error, largest) < 5).all()
    assert (error < 4e-3).all()
    mean, error = scale.expected_objective(key, alpha[2:], 64, 3.0)
    assert (z(mean, error, 32.0) < 5).all()  # uniform scores: n(n − 1)∫f²F^(n−2) = n/2
    assert (error < 0.2).all()
    mean, error = scale.typical_objective(key, alpha, 100)
    np.testing.assert_allclose(mean[2:] / alpha[2:], mean[1] / alpha[1], rtol=1e-4)
    np.testing.assert_allclose(error[2:] / alpha[2:], error[1] / alpha[1], rtol=1e-4)


@pytest.mark.slow
def test_standard_errors_are_honest_and_small(key):
    """Over 200 repetitions the spread of means is the stated one; plain rows would need ten times as many."""
    alpha = jnp.asarray([1.7, 3.3, 6.6])

    def again(i):
        return scale.expected_objective(jax.random.fold_in(key, i), alpha, 256, samples=32)

    mean, error = (np.asarray(each, float) for each in jax.jit(lambda: jax.lax.map(again, jnp.arange(200)))())
    exact = [a * (1 - quadrature.participation(a, 256)) for a in np.asarray(alpha, float)]
    spread, stated = mean.std(0, ddof=1), np.sqrt((error**2).mean(0))
    assert (np.abs(mean.mean(0) - exact) < 5 * spread / np.sqrt(200)).all()
    assert (np.abs(spread / stated - 1) < 5 / np.sqrt(400)).all()
    rows = drawn_rows(np.random.default_rng(3), 4000, 256)
    ordinary = np.stack([plain(rows, a) for a in np.asarray(alpha, float)])
    assert (ordinary.var(1) / 32 > 10 * spread**2).all()


def test_standard_errors_of_two_scores(key):
    """Small scales too: of 200 means few are over three errors off, and plain rows need five times as many."""
    alpha = jnp.asarray([0.1, 0.5])

    def again(i):
        return scale.expected_objective(jax.random.fold_in(key, i), alpha, 2, samples=64)

    mean, error = (np.asarray(each, float) for each in jax.jit(lambda: jax.lax.map(again, jnp.arange(200)))())
    exact = [a * (1 - quadrature.participation(a, 2)) for a in np.asarray(alpha, float)]
    assert (np.mean(z(mean, error, exact) > 3, axis=0) < 0.04).all()
    rows = drawn_rows(np.random.default_rng(3), 4000, 2)
    ordinary = np.stack([plain(rows, a) for a in np.asarray(alpha, float)])
    assert (ordinary.var(1) / 64 > 5 * mean.var(0, ddof=1)).all()


@pytest.mark.slow
def test_memory_grows_neither_with_rows_nor_with_their_length(key):
    """2²⁰ scores times 2²⁰ rows, compiled but not run, need the memory of 2¹⁰ times 64."""

    def memory(n, samples):
        analysis = (
            expected._simulated.lower(key, jnp.ones(3), None, jnp.asarray(n, jnp.float32), jnp.asarray(samples), False)
            .compile()
            .memory_analysis()
        )
        assert analysis is not None
        return analysis.temp_size_in_bytes

    small, large = memory(2**10, 64), memory(2**20, 2**20)
    assert large <= 1.01 * small
    assert large < 2e6


@pytest.mark.slow
@pytest.mark.parametrize(
    "dim", [None, 3.0, *(pytest.param(dim, marks=pytest.mark.slow) for dim in (4.0, 128.0, 4096.0))]
)
def test_quantiles_against_scipy(dtype, dim):
    n = 2**20
    law = score_law(jnp.asarray(n, dtype), None if dim is None else jnp.asarray(dim, dtype))
    levels = np.linspace(-0.7, -np.log(n) - 15, 200)
    y = quantile(law, jnp.asarray(levels, dtype))
    scores = np.asarray(score_difference(law, y, jnp.zeros_like(y)), float)
    if dim is None:
        exact, rate = stats.norm.isf(np.exp(levels)), 0.1
    else:
        power = (dim - 1) / 2
        exact, rate = 1 - 2 * stats.beta.ppf(np.exp(levels), power, power), 0.1 / np.sqrt(dim)
    assert np.abs(scores - exact).max() < (30 * rate * 2e-6 if dtype == "float32" else 1e-6 * rate)


@pytest.mark.parametrize(("n", "dim"), [(1024, None), pytest.param(256, 64, marks=pytest.mark.slow)])
def test_typical_scale_is_where_the_mean_logarithm_peaks(key, n, dim):
    """At the scale found, the slope of the mean logarithm over other draws is zero within standard errors."""
    samples = 512
    optimum = scale.typical_optimum(key, n, dim, samples=samples)
    alpha = float(optimum.scale)
    scores = drawn_rows(np.random.default_rng(2), 2000, n, dim)
    high, low = np.log(plain(scores, 1.001 * alpha)), np.log(plain(scores, 0.999 * alpha))
    slope = (high - low) / 0.002
    curvature = (high + low - 2 * np.log(plain(scores, alpha))).mean() / 1e-6
    error = np.hypot(slope.std() / np.sqrt(len(slope)), curvature * optimum.standard_error / alpha)
    assert optimum.converged
    assert abs(slope.mean()) < 5 * error
    assert z(optimum.value, 1, np.log(plain(scores, alpha)).mean()) < 5 * high.std() / np.sqrt(len(slope))
    critical = np.sqrt(2 * np.log(n)) * (1 if dim is None else np.sqrt(dim))
    assert 0.7 < alpha / critical < 1.5
    assert scale.optimal_scale(n, dim) < alpha
    assert scale.typical_scale(key, n, dim, samples=samples) == optimum.scale


@pytest.mark.slow
def test_typical_objective_against_plain_rows(key):
    """Far below, near and far above its peak; there it is the value of the optimum, over the same rows."""
    optimum = scale.typical_optimum(key, 1024, samples=2048)
    alpha = np.asarray([0.5 * CRITICAL, 0.7 * CRITICAL, optimum.scale, 2 * CRITICAL], np.float32)
    mean, error = scale.typical_objective(key, alpha, 1024, samples=2048)
    scores = drawn_rows(np.random.default_rng(3), 4000, 1024)
    values = np.log(np.stack([plain(scores, each) for each in alpha]))
    assert (z(mean, np.hypot(error, values.std(axis=1) / np.sqrt(4000)), values.mean(axis=1)) < 5).all()
    assert (error < 0.02).all()
    assert mean[2] == pytest.approx(float(optimum.value), abs=1e-5)


@pytest.mark.slow
def test_typical_scales_and_their_errors_over_keys(key):
    """The spread over 64 keys is the stated standard error."""

    def again(i):
        optimum = scale.typical_optimum(jax.random.fold_in(key, i), 128, samples=128)
        return optimum.scale, optimum.standard_error

    means, error = (np.asarray(each, float) for each in jax.jit(lambda: jax.lax.map(again, jnp.arange(64)))())
    assert abs(means.std(ddof=1) / np.sqrt((error**2).mean()) - 1) < 5 / np.sqrt(128)
    assert (error < 0.1).all()


@pytest.mark.slow
def test_typical_scale_of_a_million_scores(key):
    """Between the critical scale and 1.2 times it, for long rows and for cosines nearly Gaussian."""
    one = scale.typical_optimum(key, 2**20)
    two = scale.typical_optimum(key, 2**20, 4096)
    assert one.converged and two.converged
    assert 1 < one.scale / np.sqrt(2 * np.log(2**20)) < 1.2
    assert two.scale / 64 == pytest.approx(float(one.scale), rel=0.03)


@pytest.mark.parametrize(("dim", "power"), [(3.0, 1.0), (5.0, 0.5), (8.0, 2 / 7)])
def test_typical_scale_of_more_cosines_than_few_dimensions_have_room_for(key, dim, power):
    """The optimum grows as n^(2/(d−1)): the nearest keys are that close, and rows look alike in that unit."""
    few, many = (scale.typical_optimum(key, n, dim, samples=16) for n in (10**6, 10**15))
    assert few.converged and many.converged and np.isfinite(many.value)
    assert np.log(many.scale / few.scale) / np.log(1e9) == pytest.approx(power, abs=0.005)


@pytest.mark.slow
def test_dimension_is_traced(key):
    count = 0

    @jax.jit
    def traced(dim):
        nonlocal count
        count += 1
        return scale.expected_objective(key, 5.0, 16, dim=dim, samples=40)[0]

    assert traced(8.0) != traced(64.0)
    assert count == 1
    one = scale.expected_objective(key, 2.0, 16, samples=40)[0]
    many = scale.expected_objective(key, jnp.asarray([1.0, 2.0]), 16, samples=40)[0]
    assert many[1] == pytest.approx(float(one), rel=1e-6)


@pytest.mark.slow
def test_derivatives_in_forward_mode(x64):
    """In α and in the dimension, against differences over the same rows; the loop over rows has no reverse."""
    key = jax.random.key(0)
    functions = {
        2.0: lambda alpha: scale.expected_objective(key, alpha, 64, samples=64)[0],
        9.0: lambda dim: scale.expected_objective(key, 6.0, 64, dim, samples=64)[0],
        10.0: lambda dim: scale.typical_scale(key, 64, dim, samples=64),
    }
    for at, function in functions.items():
        near, far = (function(at + step) - function(at - step) for step in (1e-3, 2e-3))
        assert abs(jax.jacfwd(function)(at) / ((8 * near - far) / 12e-3) - 1) < 1e-6
        with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
            jax.grad(function)(at)
