"""Entropy of softmax: many digits, simulation in standard errors, the limit of many dimensions, the inverse."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import scale
from rc_jax.scale.closed_forms.entropy import least_entropy
from tests.oracles import scale as oracle


@pytest.mark.parametrize("name", oracle.SCORES)
@pytest.mark.parametrize("alpha", [1e-2, 8.0])
def test_entropies_of_given_scores(dtype, name, alpha):
    scores = jnp.asarray(oracle.SCORES[name], dtype)
    exact = oracle.entropies(scores, alpha)
    eps = float(jnp.finfo(dtype).eps)
    tolerance = 8 * (8 + alpha * float(jnp.ptp(scores))) * eps
    for function, value in zip((scale.softmax_entropy, scale.renyi_entropy), exact, strict=True):
        got = function(scores, alpha)
        assert got.dtype == dtype
        assert abs(float(mp.mpf(float(got)) / value) - 1) < tolerance


def test_shapes_broadcast_and_order_of_the_two(key):
    scores = jax.random.normal(key, (3, 1, 7))
    alphas = jnp.asarray([0.5, 4.0])
    shannon, renyi = scale.softmax_entropy(scores, alphas), scale.renyi_entropy(scores, alphas)
    assert shannon.shape == renyi.shape == (3, 2)
    assert (renyi < shannon).all()
    assert shannon[2, 1] == pytest.approx(float(scale.softmax_entropy(scores[2, 0], 4.0)), rel=1e-6)


@pytest.mark.slow
def test_annealed_entropies_against_simulation():
    """Gaussian scores and cosines in numpy; the first correction in 1/n, by the delta method, is taken into account."""
    rng = np.random.default_rng(3)
    n, samples = 4096, 400
    for dim, alpha in ((None, 0.8), (None, 1.0), (32, 5.0)):
        scores = oracle.drawn_rows(rng, samples, n, dim)
        unit = 1.0 if dim is None else dim**0.5
        weights = np.exp(alpha * scores)
        p = weights / weights.sum(1, keepdims=True)
        shannon, renyi = -(p * np.log(p)).sum(1), -np.log((p * p).sum(1))
        square = (alpha / unit) ** 2  # the corrections below are those of Gaussian scores, close enough for cosines
        bias = (square * np.exp(square) - np.expm1(square) / 2) / n
        renyi_bias = (-np.expm1(square) + np.expm1(4 * square) / 2) / n
        for values, annealed, known in (
            (shannon, scale.annealed_entropy(alpha, n, dim), bias),
            (renyi, scale.annealed_renyi_entropy(alpha, n, dim), renyi_bias),
        ):
            error = values.std(ddof=1) / samples**0.5
            assert abs(values.mean() - known - float(annealed)) < 5 * error + 0.25 * abs(known)
            assert error < 0.006


@pytest.mark.parametrize(("dim", "alpha"), [(3, 0.01), (3, 50.0), (8, 3.0), (128, 10.0), (128, 300.0)])
def test_annealed_entropy_of_cosines_in_many_digits(dtype, dim, alpha):
    eps = float(jnp.finfo(dtype).eps)
    exact = float(oracle.entropy_loss(alpha, dim, oracle.moment if dim == 8 else oracle.moment_closed))
    n = 1e4
    assert scale.annealed_entropy(alpha, n, dim) == pytest.approx(np.log(n) - exact, abs=32 * eps * (alpha + 10))
    assert scale.annealed_entropy(alpha, jnp.asarray(n, dtype), dim).dtype == dtype


@pytest.mark.parametrize("lam", [1e-3, 0.125, 1.0, 4.0, 1e4])
def test_loss_per_dimension_is_the_limit_of_many_dimensions(dtype, lam):
    got = scale.entropy_loss_per_dimension(jnp.asarray(lam, dtype))
    with mp.workdps(30):
        exact = mp.log((1 + mp.sqrt(1 + 4 * mp.mpf(float(np.dtype(dtype).type(lam))) ** 2)) / 2) / 2
    assert got.dtype == dtype
    assert got == pytest.approx(float(exact), rel=4 * float(jnp.finfo(dtype).eps))
    if 0.1 < lam < 10 and dtype == "float64":
        gaps = [abs(float(oracle.entropy_loss(lam * dim, dim)) / dim - float(exact)) for dim in (100, 200, 400)]
        assert gaps[0] > gaps[1] > gaps[2]
        assert gaps[2] < 0.004
        assert gaps[1] / gaps[2] == pytest.approx(2, rel=0.1)  # what is left is 1/d


def test_the_two_named_limits(x64):
    assert scale.entropy_loss_per_dimension(1.0) == pytest.approx(float(mp.log(mp.phi) / 2), rel=1e-15)
    assert scale.entropy_loss_per_dimension(1e-8) == pytest.approx(5e-17, rel=1e-12)
    assert jax.grad(scale.entropy_loss_per_dimension)(1e-3) == pytest.approx(1e-3, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [None, 3.0, 4096.0])
def test_fixed_entropy_scale_is_the_inverse(dtype, dim):
    n, wanted = jnp.asarray([50.0, 1e3, 1e6], dtype), jnp.asarray([3.5, 2.0, 0.5], dtype)
    alpha = scale.fixed_entropy_scale(n, wanted, dim)
    assert alpha.dtype == dtype
    loose = float(jnp.finfo(dtype).eps) * (64 + float(alpha.max()))
    np.testing.assert_allclose(scale.annealed_entropy(alpha, n, dim), wanted, atol=16 * loose)


@pytest.mark.slow
def test_derivatives_of_the_inverse(x64):
    """Along one direction in H and d at once, against differences; Gaussian scores in closed form."""
    at, along = np.array([3.0, 64.0]), np.array([0.3, 2.0])
    _, slope = jax.jvp(lambda h, d: scale.fixed_entropy_scale(1e4, h, d), tuple(at), tuple(along))
    up, down = (scale.fixed_entropy_scale(1e4, *(at + step * along)) for step in (1e-4, -1e-4))
    assert slope == pytest.approx(float(up - down) / 2e-4, rel=1e-6)
    assert jax.grad(scale.fixed_entropy_scale, 1)(1e4, 3.0) == pytest.approx(-1 / scale.fixed_entropy_scale(1e4, 3.0))


@pytest.mark.parametrize("dim", [3, 8, 64])
def test_large_scales_keep_their_digits(dtype, dim):
    """log n − H grows like ((d − 1)/2) log α, so that no digit of α itself may be lost on the way."""
    eps = float(jnp.finfo(dtype).eps)
    for alpha in (20.0, 100.0, 1e3, 1e5, 2.0**26):
        exact = float(oracle.cosine_entropy_loss(alpha, dim))
        loose = 16 * eps * (1 + dim) * (1 + np.log(alpha))
        assert scale.annealed_entropy(alpha, jnp.asarray(4.0, dtype), dim) == pytest.approx(
            np.log(4) - exact, abs=loose
        )


def test_fixed_entropy_far_down(dtype):
    """d = 3: log n − H = log 2α − 1 but for e^{−2α}, so that H = 1 gives α = n/2."""
    n = jnp.asarray([1e6, 1e9, 1e15], dtype)
    np.testing.assert_allclose(scale.fixed_entropy_scale(n, 1.0, 3), n / 2, rtol=64 * float(jnp.finfo(dtype).eps))


@pytest.mark.slow
def test_second_derivatives_of_the_inverse(x64):
    """In H, against differences of the first."""
    slope = jax.jacfwd(lambda h: scale.fixed_entropy_scale(1e4, h, 64.0))
    slope, curvature = jax.jit(slope), jax.jit(jax.jacfwd(slope))
    assert curvature(3.0) == pytest.approx(float(slope(3.0 + 1e-5) - slope(3.0 - 1e-5)) / 2e-5, rel=1e-7)


@pytest.mark.slow
def test_traced_values_outside_give_nan():
    assert np.isnan(jax.jit(scale.fixed_entropy_scale)(8.0, -0.5))
    assert np.isnan(jax.jit(scale.fixed_entropy_scale)(8.0, 0.0, 16.0))
    assert np.isnan(jax.jit(scale.fixed_entropy_scale)(8.0, 3.0))
    assert np.isnan(jax.jit(scale.fixed_entropy_scale)(8.0, 3.0, 16.0))


@pytest.mark.parametrize("n", [2, 5])
def test_least_entropy_is_the_minimum_over_logits_of_one_norm(n):
    """One logit ahead attains it; random logits of the same norm do not fall below it."""
    logits = np.random.default_rng(0).normal(size=(1000, n))
    logits -= logits.mean(1, keepdims=True)
    logits *= 3 / np.linalg.norm(logits, axis=1, keepdims=True)
    ahead = np.eye(n)[0] - 1 / n
    ahead *= 3 / np.linalg.norm(ahead)
    entropies = scale.softmax_entropy(jnp.asarray(np.concatenate([[ahead], logits]), jnp.float32), 1.0)
    assert least_entropy(3.0, n) == pytest.approx(float(entropies[0]), rel=1e-5)
    assert (entropies[1:] > entropies[0] * (1 - 1e-5)).all()


def test_least_entropy_of_many_keys_and_of_scores_without_bound():
    n, sigma = 1e15, 90.0
    others = mp.mpf(n - 1) * mp.exp(-sigma * mp.sqrt(mp.mpf(n) / (n - 1)))
    wanted = mp.log1p(others) + sigma * others / (1 + others)
    np.testing.assert_allclose(float(least_entropy(sigma, n)), float(wanted), rtol=1e-4)
    assert float(least_entropy(3e38, 2.0)) == 0
