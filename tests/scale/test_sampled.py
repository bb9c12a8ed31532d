"""Simulated scales: reference values in standard errors, identities, and independent draws with plain arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import scale
from rc_jax.scale.random_scores import draw

CRITICAL = float(np.sqrt(2 * np.log(1024)))


def z(mean, error, expected, rounding=0.0):
    """Distance in standard errors, after the rounding of the published figure."""
    return np.maximum(np.abs(np.asarray(mean) - np.asarray(expected)) - rounding, 0) / np.asarray(error)


def plain(scores, alpha):
    """α(1 − Σp²) in numpy, nothing clever."""
    weights = np.exp(alpha * (scores - scores.max(-1, keepdims=True)))
    p = weights / weights.sum(-1, keepdims=True)
    return alpha * (1 - (p * p).sum(-1))


def test_expected_gradient_of_gaussian_scores(key):
    """Values at α/α_c = ½, 0.7, 1, 2 for 1024 scores, found by integrating E log Z."""
    alpha = CRITICAL * jnp.asarray([0.5, 0.7, 1.0, 2.0])
    mean, error = scale.expected_objective(key, alpha, 1024, samples=1024)
    assert (z(mean, error, [1.822, 2.381, 2.837, 3.175], 5e-4) < 5).all()
    assert (error < 0.03 * mean).all()
    assert (jnp.diff(mean) > 0).all()
    assert (mean < 3.248).all()  # E max


@pytest.mark.parametrize(("power", "participation"), [(7, 0.284), (10, 0.235), (13, 0.194)])
def test_participation_at_the_critical_scale(key, power, participation):
    n = 2**power
    critical = float(np.sqrt(2 * np.log(n)))
    mean, error = scale.expected_objective(key, critical, n, samples=512)
    assert z(1 - mean / critical, error / critical, participation, 5e-4) < 5


@pytest.mark.parametrize(
    ("fraction", "ratio", "rounding"), [(0.35, 1.03, 0.005), (0.45, 1.21, 0.005), (0.5, 1.48, 0.005), (0.6, 3.1, 0.05)]
)
def test_where_the_annealed_participation_fails(key, fraction, ratio, rounding):
    alpha = fraction * CRITICAL
    mean, error = scale.expected_objective(key, alpha, 1024, samples=1024)
    annealed = 1 - scale.annealed_objective(alpha, 1024) / alpha
    true = 1 - mean / alpha
    assert z(annealed / true, annealed / true**2 * error / alpha, ratio, rounding) < 5


def test_integration_by_parts(key):
    """α(1 − E Σp²) = E Σ p s for Gaussian scores, the right side from other draws and plain arithmetic."""
    scores = np.random.default_rng(1).normal(size=(2000, 64))
    for alpha in (0.5, 2.0, 6.0):
        weights = np.exp(alpha * scores)
        other = (weights * scores).sum(-1) / weights.sum(-1)
        mean, error = scale.expected_objective(key, alpha, 64, samples=2048)
        combined = np.hypot(float(error), other.std() / np.sqrt(len(other)))
        assert z(mean, combined, other.mean()) < 5


def test_cosine_objective_has_no_finite_maximiser(key):
    alpha = jnp.asarray([20.0, 50.0, 100.0, 200.0, 400.0])
    mean, _ = scale.expected_objective(key, alpha, 1024, dim=128, samples=128)
    assert (jnp.diff(mean) > 0).all()


@pytest.mark.parametrize("dim", [3, 8, 128])
def test_cosines_have_their_moments(key, dim):
    scores = np.asarray(draw(key, 200_000, dim, jnp.float32), float)
    for power, expected in ((2, 1 / dim), (4, 3 / (dim * (dim + 2)))):
        moment = scores**power
        assert z(moment.mean(), moment.std() / np.sqrt(len(scores)), expected) < 5
    assert z(scores.mean(), scores.std() / np.sqrt(len(scores)), 0) < 5


@pytest.mark.parametrize(("n", "dim"), [(1024, None), (256, 64)])
def test_typical_scale_is_where_the_mean_logarithm_peaks(key, n, dim):
    """At the scale found, the slope of the mean logarithm over other draws is zero within standard errors."""
    samples = 512
    found = scale.typical_optimum(key, n, dim, samples=samples)
    alpha = float(found.scale)
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(samples, n))
    if dim:
        scores = scores / np.sqrt(scores**2 + rng.chisquare(dim - 1, size=scores.shape))
    slope = (np.log(plain(scores, 1.001 * alpha)) - np.log(plain(scores, 0.999 * alpha))) / 0.002
    assert found.converged
    assert abs(slope.mean()) < 5 * np.sqrt(2) * slope.std() / np.sqrt(samples)
    critical = np.sqrt(2 * np.log(n)) * (1 if dim is None else np.sqrt(dim))
    assert 0.7 < alpha / critical < 1.5
    assert scale.optimal_scale(n, dim) < alpha
    assert scale.typical_scale(key, n, dim, samples=samples) == found.scale


def test_typical_scales_from_two_keys_agree(key):
    one = scale.typical_optimum(key, 128, samples=512)
    two = scale.typical_optimum(jax.random.fold_in(key, 1), 128, samples=512)
    assert one.scale != two.scale
    assert abs(one.scale - two.scale) < 5 * np.hypot(one.standard_error, two.standard_error)
    assert one.standard_error < 0.1


def test_dimension_is_traced_and_batches_are_of_one_piece(key):
    count = 0

    @jax.jit
    def traced(dim):
        nonlocal count
        count += 1
        return scale.expected_objective(key, 5.0, 16, dim=dim, samples=40)[0], scale.typical_scale(key, 16, dim, 40)

    assert traced(8.0) != traced(64.0)
    assert count == 1
    one = scale.expected_objective(key, 2.0, 16, samples=40)[0]
    many = scale.expected_objective(key, jnp.asarray([1.0, 2.0]), 16, samples=40)[0]
    assert many[1] == pytest.approx(float(one), rel=1e-6)


def test_results_follow_the_input_dtype(x64, key):
    assert scale.expected_objective(key, jnp.float32(2), 8, samples=8)[0].dtype == jnp.float32
    assert scale.expected_objective(key, 2.0, 8, samples=8)[1].dtype == jnp.float64
    assert scale.typical_scale(key, 8, jnp.float32(4), 8).dtype == jnp.float32


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"key": 0}, TypeError, "`key` must be one typed key"),
        ({"n": 1}, ValueError, "`n` must be an integer >= 2, got 1"),
        ({"n": 8.0}, TypeError, "`n` must be an integer >= 2"),
        ({"dim": 2}, ValueError, "`dim` must be >= 3"),
        ({"dim": "8"}, TypeError, "`dim` must be a real number"),
        ({"samples": 1}, ValueError, "`samples` must be an integer >= 2"),
    ],
)
def test_bad_input_is_refused_by_name(key, arguments, error, message):
    with pytest.raises(error, match=message):
        scale.expected_objective(**({"key": key, "alpha": 1.0, "n": 8} | arguments))
    with pytest.raises(error, match=message):
        scale.typical_scale(**({"key": key, "n": 8} | arguments))


def test_non_positive_scales_and_many_dimensions_are_refused(key):
    with pytest.raises(ValueError, match="`alpha` must be > 0"):
        scale.expected_objective(key, -1.0, 8)
    with pytest.raises(ValueError, match="`dim` must be a scalar"):
        scale.typical_scale(key, 8, jnp.asarray([4.0, 5.0]))
    with pytest.raises(ValueError, match="`dim` must be a scalar"):
        scale.expected_objective(key, 1.0, 8, jnp.asarray([4.0, 5.0]))
