"""The best scale of given rows: brute force over a fine grid, two scores exactly, several maxima, ties, derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from rc_jax import scale

TWO = 2 * optimize.brentq(lambda x: x * np.tanh(x) - 0.5, 0.1, 2, xtol=1e-15)


def brute(scores):
    """Largest α(1 − Σp²) over a grid in log α as fine as 1e-3, in float64."""
    scores = np.sort(np.asarray(scores, float))[::-1]
    gap, reach = scores[0] - scores[1], scores[0] - scores[-1]
    alpha = np.exp(np.arange(np.log(0.5 / reach), np.log(40 / gap), 1e-3))
    rest = np.exp(alpha[:, None] * (scores[1:] - scores[0]))
    total = rest.sum(1)
    value = alpha * (2 * total + np.maximum(total**2 - (rest**2).sum(1), 0)) / (1 + total) ** 2
    return alpha[value.argmax()], value.max()


def test_two_scores_have_their_closed_form(dtype):
    gaps = jnp.asarray([1e-6, 0.01, 1.0, 30.0, 1e4], dtype)
    scores = jnp.stack([jnp.zeros_like(gaps), -gaps], 1)
    optimum = scale.per_sample_optimum(scores)
    precision = 20 * float(jnp.finfo(dtype).eps) ** 0.5 if dtype == "float32" else 1e-7
    np.testing.assert_allclose(optimum.scale, TWO / np.asarray(gaps, float), rtol=precision)
    np.testing.assert_allclose(optimum.value, TWO / np.asarray(gaps, float) / 2 / np.cosh(TWO / 2) ** 2, rtol=1e-5)
    assert optimum.converged.all()
    assert pytest.approx(1.543, abs=5e-4) == TWO


@pytest.mark.slow
def test_random_rows_against_brute_force():
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(60, 48)), jnp.float32)
    optimum = scale.per_sample_optimum(scores)
    exact = np.array([brute(row) for row in scores])
    assert optimum.converged.all()
    np.testing.assert_allclose(optimum.value, exact[:, 1], rtol=1e-5)
    np.testing.assert_allclose(optimum.scale, exact[:, 0], rtol=2e-3)
    np.testing.assert_allclose(scale.gradient_norm(scores, optimum.scale), optimum.value, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("gap", "crowd"), [(0.02, 1000), (0.7, 1000), (0.45, 1000), (0.53, 47)])
def test_the_higher_of_two_maxima(gap, crowd):
    """A near tie far above a crowd: one maximum while the crowd counts, another when only the two are left."""
    scores = np.concatenate([[0, -gap], np.full(crowd, -3.0)])
    alpha, value = brute(scores)
    optimum = scale.per_sample_optimum(jnp.asarray(scores, jnp.float32))
    assert optimum.value == pytest.approx(value, rel=1e-5)
    assert optimum.scale == pytest.approx(alpha, rel=3e-3)


@pytest.mark.parametrize("hidden", [pytest.param(-1e20, marks=pytest.mark.slow), np.finfo(np.float32).min, -np.inf])
def test_hidden_scores_change_nothing(hidden, dtype):
    rows = np.full((2, 403), hidden)
    rows[0, :2], rows[1, :-1] = [0, -1], [0, -1, *[-11.0] * 400]
    optimum = scale.per_sample_optimum(jnp.asarray(rows, dtype))
    exact = np.array([brute(row[row > -20]) for row in rows])
    assert optimum.converged.all()
    np.testing.assert_allclose(optimum.value, exact[:, 1], rtol=1e-5)
    np.testing.assert_allclose(optimum.scale, exact[:, 0], rtol=2e-3)
    assert jax.grad(lambda rows: scale.per_sample_scale(rows).sum())(jnp.asarray(rows, dtype))[1, -1] == 0
    assert np.isnan(scale.per_sample_scale(jnp.asarray([1.0, -np.inf, -np.inf], dtype)))  # one score has no gradient


def test_many_crowds_do_not_hide_the_highest_maximum(x64):
    """Rows with up to five local maxima of nearly one height, against a fine grid."""
    draw = np.random.default_rng(4)
    rows = []
    for _ in range(10):
        depths = np.cumsum(draw.uniform(0.5, 3, 3)) * np.array([1, 3, 9])
        sizes = np.exp(draw.uniform(1, 2.5, 3) * np.arange(1, 4)).astype(int)
        row = np.concatenate([[0, -draw.uniform(0.05, 1)], np.repeat(-1 - depths, np.minimum(sizes, 1500))])
        rows.append(np.append(row, np.full(4600 - row.size, -np.inf)))
    optimum = scale.per_sample_optimum(jnp.asarray(np.stack(rows)))
    for row, found in zip(rows, optimum.value, strict=True):
        assert found == pytest.approx(brute(row[np.isfinite(row)])[1], rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(-300, 300), min_size=6, max_size=6, unique=True), st.integers(-3, 3))
def test_nothing_on_a_grid_is_higher(whole, power):
    scores = jnp.asarray(np.asarray(whole, np.float32) * np.float32(10.0**power))
    optimum = scale.per_sample_optimum(scores)
    assert optimum.converged
    assert optimum.value >= brute(scores)[1] * (1 - 1e-5)
    shifted = scale.per_sample_optimum(scores[::-1])
    np.testing.assert_allclose(shifted.value, optimum.value, rtol=1e-6)


def test_slope_is_a_sum_over_pairs():
    """d/dα α(1 − Σp²) = Σ_{i≠j} p_i p_j (1 − 2(p_i + p_j) x tanh x), x = α(s_i − s_j)/2: positive below 1.543/range."""
    scores, alpha = np.random.default_rng(3).normal(size=7), 1.3
    p = np.exp(alpha * scores) / np.exp(alpha * scores).sum()
    x = alpha * (scores[:, None] - scores) / 2
    pairs = p[:, None] * p * (1 - 2 * (p[:, None] + p) * x * np.tanh(x))
    np.fill_diagonal(pairs, 0)
    with jax.enable_x64(True):
        slope = jax.grad(lambda alpha: scale.gradient_norm(jnp.asarray(scores), alpha))(alpha)
    assert pairs.sum() == pytest.approx(float(slope), rel=1e-12)


def test_shared_largest_scores_want_an_infinite_scale():
    optimum = scale.per_sample_optimum(jnp.asarray([[1.0, 1.0, 0.0], [2.0, 2.0, 2.0], [1.0, 0.5, 0.5]]))
    assert np.isinf(optimum.scale[:2]).all() and np.isinf(optimum.value[:2]).all()
    assert np.isfinite(optimum.scale[2]) and optimum.converged.all()


@pytest.mark.slow
def test_derivatives_in_the_scores(x64):
    """Of the scale, and of the gradient's size there, which was constant to JAX."""
    scores = jnp.asarray(np.random.default_rng(1).normal(size=6))
    for of in (scale.per_sample_scale, lambda scores: scale.per_sample_optimum(scores).value):
        slopes = jax.grad(of)(scores)
        for i in range(6):
            step = jnp.zeros(6).at[i].set(1e-3)
            near, far = (of(scores + size * step) - of(scores - size * step) for size in (1, 2))
            assert slopes[i] == pytest.approx(float(8 * near - far) / 12e-3, rel=1e-7, abs=1e-7)
        assert slopes.sum() == pytest.approx(0, abs=1e-9)  # adding a constant changes nothing


@pytest.mark.parametrize("of", ["scale", "value"])
def test_second_derivatives_in_the_scores(of, x64):
    """In both modes: α* is homogeneous of degree −1, so that the second derivative along the scores is twice it."""
    scores = jnp.asarray([0.3, -1.0, 0.8, 2.0])

    def function(scores):
        return getattr(scale.per_sample_optimum(scores), of)

    slope, step = jax.grad(function), 1e-5 * jnp.eye(4)
    plain = jnp.stack([(slope(scores + e) - slope(scores - e)) / 2e-5 for e in step])
    for hessian in (jax.jacfwd(slope), jax.jacrev(slope), jax.jacfwd(jax.jacfwd(function))):
        np.testing.assert_allclose(hessian(scores), plain, atol=1e-7)
    along = jax.grad(jax.grad(lambda t: function(t * scores)))(1.0)
    assert along == pytest.approx(2 * float(function(scores)), rel=1e-9)


@pytest.mark.slow
def test_batches_agree_with_single_rows():
    scores = jnp.asarray(np.random.default_rng(2).normal(size=(2, 3, 6)), jnp.float32)
    many = scale.per_sample_scale(scores)
    assert scale.per_sample_scale(scores[1, 2]) == pytest.approx(float(many[1, 2]), rel=1e-6)
    assert scale.per_sample_scale(scores[:0]).shape == (0, 3)


def test_rows_of_any_size():
    """α* is inverse to the unit of the scores, from the smallest to the largest numbers of the dtype."""
    row = jnp.asarray([0.3, -0.2, 1.0, 0.9], jnp.float32)
    units = jnp.asarray([1e-36, 1e-30, 1e-20, 1.0, 1e20, 1e30, 1e38], jnp.float32)
    optimum = scale.per_sample_optimum(jnp.concatenate([row[None] * units[:, None], jnp.zeros((1, 4), jnp.float32)]))
    assert optimum.converged.all()
    np.testing.assert_allclose(optimum.scale[:-1] * units, optimum.scale[3], rtol=4e-6)
    np.testing.assert_allclose(optimum.value[:-1] * units, optimum.value[3], rtol=4e-6)
    assert optimum.scale[-1] == np.inf
