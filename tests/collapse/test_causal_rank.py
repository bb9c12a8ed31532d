"""Smallest singular values of causal matrices: against the matrices, and the growth against an unscaled recursion."""

import fractions

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from rc_jax.collapse import causal_rank


def test_uniform_rows_against_the_matrix(x64):
    """What the form leaves out is less than 0.5/n."""
    for n in (64, 512):
        least = np.linalg.svd(np.tri(n) / np.arange(1, n + 1)[:, None], compute_uv=False)[-1]
        assert abs(least / float(causal_rank.uniform_smallest_singular_value(float(n))) - 1) < 0.5 / n


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9])
def test_decays_against_the_matrix(rate):
    n = np.arange(400)
    weights = np.tril(float(rate) ** np.abs(n[:, None] - n))
    least = np.linalg.svd(weights / weights.sum(axis=1, keepdims=True), compute_uv=False)[-1]
    assert float(causal_rank.decay_smallest_singular_value(rate)) == pytest.approx(least, rel=1e-3)


def test_growth_against_the_column_in_exact_fractions(x64):
    """The length of a column of 60 entries, without bringing it back to 1 in between."""
    normals = np.random.default_rng(0).normal(size=(2, 60))
    column, gamma = [fractions.Fraction(1)], 0.7
    for noise, score in normals.T:
        length = fractions.Fraction(float(sum(x * x for x in column)) ** 0.5)
        factor = fractions.Fraction(np.expm1(gamma**2) ** 0.5 * noise)
        column.append(-(sum(column) + factor * length) * fractions.Fraction(np.exp(gamma**2 / 2 - gamma * score)))
    expected = 0.5 * np.log(float(sum(x * x for x in column))) / 60
    got = causal_rank.causal_softmax_growth(gamma, jnp.asarray(normals))
    assert float(got) == pytest.approx(expected, rel=1e-12)


def test_growth_is_the_square_of_small_deviations(x64, key):
    normals = jax.random.normal(key, (32, 2, 20_000), "float64")
    rates = np.asarray(jax.vmap(lambda each: causal_rank.causal_softmax_growth(0.1, each))(normals)) / 0.1**2
    assert abs(rates.mean() - 1) < 5 * rates.std(ddof=1) / 32**0.5 + 0.1**2


@pytest.mark.slow
@pytest.mark.parametrize(("gamma", "rate", "excess"), [(0.25, 0.064, -0.002), (0.5, 0.218, 0.018), (1.0, 0.599, 0.251)])
def test_growth_against_matrices(x64, key, gamma, rate, excess):
    """Good for small γ only: the table of the docstring, from fewer draws of shorter matrices."""
    rng, falls = np.random.default_rng(0), []
    for _ in range(24):
        weights = np.tril(np.exp(gamma * rng.normal(size=(200, 200))))
        inverse = scipy.linalg.solve_triangular(weights / weights.sum(axis=1, keepdims=True), np.eye(200), lower=True)
        falls.append(np.log(np.linalg.norm(inverse, 2) / np.linalg.norm(inverse[:100, :100], 2)) / 100)
    assert np.mean(falls) == pytest.approx(rate, abs=4 * np.std(falls) / 24**0.5)
    growth = causal_rank.causal_softmax_growth(gamma, jax.random.normal(key, (2, 40_000), "float64"))
    assert float(growth) - rate == pytest.approx(excess, abs=0.015)


def test_arguments():
    with pytest.raises(ValueError, match="rate"):
        causal_rank.decay_smallest_singular_value(1.0)
    with pytest.raises(ValueError, match="normals"):
        causal_rank.causal_softmax_growth(1.0, jnp.ones((3, 5)))
