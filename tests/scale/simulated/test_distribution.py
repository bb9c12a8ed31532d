"""Best scales over random rows: against plain rows, the law 1.543 E max s/a of the tail, two scores exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from rc_jax import scale
from rc_jax.scale import quadrature
from tests.oracles.scale import drawn_rows

TWO = 1.5434046384182085


@pytest.mark.slow
@pytest.mark.parametrize(("n", "dim"), [(100, None), pytest.param(600, 8.0, marks=pytest.mark.slow)])
def test_drawn_scales_have_the_law_of_plain_rows(key, n, dim):
    """Kolmogorov–Smirnov against maximisers of numpy's own rows, whole and long ones."""
    drawn = np.asarray(scale.sample_scales(key, n, dim, samples=600))
    rows = drawn_rows(np.random.default_rng(0), 600, n, dim)
    plain = np.asarray(scale.per_sample_scale(jnp.asarray(rows, jnp.float32)))
    grid = np.sort(np.concatenate([drawn, plain]))
    apart = [np.searchsorted(np.sort(each), grid, side="right") / 600 for each in (drawn, plain)]
    assert np.abs(apart[0] - apart[1]).max() < 2.6 * np.sqrt(2 / 600)  # exceeded once in 400 000
    assert np.isfinite(drawn).all()
    assert drawn.dtype == np.float32


@pytest.mark.slow
def test_tail_of_two_scores_is_that_of_a_normal_difference(key):
    """α* = 1.543/abs(s₁ − s₂), so that P(α* > a) = erf(1.543/2a), over eight decades."""
    level = jnp.asarray([0.5, 2, 10, 1e3, 1e5, 1e7], jnp.float32)
    chance, error = scale.scale_tail(key, level, 2, samples=1024)
    exact = 2 * stats.norm.cdf(TWO / np.asarray(level, float) / np.sqrt(2)) - 1
    assert (np.abs(chance - exact) < 5 * error).all()
    assert (error < 0.1 * exact).all()


@pytest.mark.slow
def test_tail_agrees_with_plain_draws_and_with_its_law(key):
    level = jnp.asarray([4.0, 8, 16, 64, 1e3, 1e4, 1e5])
    chance, error = scale.scale_tail(key, level, 64, samples=512)
    drawn = np.asarray(scale.sample_scales(jax.random.fold_in(key, 1), 64, samples=2000))
    share = (drawn[None] > np.asarray(level)[:, None]).mean(1)
    both = np.hypot(error, np.sqrt(share * (1 - share) / drawn.size))
    assert (np.abs(chance - share) < 5 * both)[:4].all()
    law = TWO * quadrature.tie_density(64) / np.asarray(level)
    assert (np.abs(chance - law) < 5 * error)[4:].all()
    assert (error < 0.06 * chance).all()


@pytest.mark.slow
def test_tail_of_cosines_of_a_million(key):
    n, dim = 2**20, 64.0
    law = TWO * quadrature.tie_density(n, 64) / 1e6
    chance, error = scale.scale_tail(key, 1e6, n, dim, samples=512)
    assert abs(chance - law) < 5 * error < 0.3 * law


@pytest.mark.parametrize("n", [2, 100, 10**4])
def test_tie_density_is_the_mean_of_the_largest(n):
    """n(n − 1) ∫ ρ² F^(n−2) = E max s for normal scores, by parts; cosines in three dimensions are uniform."""
    grid = np.linspace(-9, 9, 200_001)
    largest = integrate.simpson(grid * n * stats.norm.pdf(grid) * stats.norm.cdf(grid) ** (n - 1), x=grid)
    assert quadrature.tie_density(n) == pytest.approx(largest, rel=1e-6)
    assert quadrature.mean_largest(n) == pytest.approx(largest, rel=1e-9)
    assert quadrature.tie_density(n, 3) == pytest.approx(n / 2, rel=1e-5)


def test_quadrature_of_more_scores_than_anybody_has():
    """Uniform scores have n/2 at any n; the largest of 10^k normal ones, also between 10^25 and 10^40, rises slowly."""
    for n in (10**12, 10**15, 10**18, 10**25):
        assert quadrature.tie_density(n, 3) == pytest.approx(n / 2, rel=1e-9)
    largest = np.array([quadrature.mean_largest(10**k) for k in range(20, 41)])
    # By the tail's reciprocal, Φ(−x) = e^{−γ}/n, to the next order.
    middle = np.array([-stats.norm.ppf(np.exp(-np.euler_gamma) * 10.0**-k) for k in range(20, 41)])
    np.testing.assert_allclose(largest, middle, rtol=2e-3)
    assert quadrature.participation(1.0, 10**20) == pytest.approx(np.e / 1e20, rel=1e-4)


def test_a_share_of_rows_has_no_derivative(key):
    for place, at in enumerate(((10.0, 50), (10.0, 50, 8.0))):
        of = lambda level, *dim: scale.scale_tail(key, level, 50, *dim, samples=8)[0]  # noqa: E731
        slopes = jax.jacfwd(of, argnums=tuple(range(place + 1)))(*(at[0], *at[2:]))
        assert np.isnan(slopes).all() and 0 <= of(at[0], *at[2:]) <= 1
