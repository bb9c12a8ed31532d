"""One scale for a decoder: products of whole numbers, and typical rows of all lengths by simulation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import scale


@pytest.mark.parametrize("length", [2, 3, 10, 1000])
def test_geometric_mean(dtype, length):
    """(L!)^(1/(L − 1)) by whole numbers."""
    exact = math.exp(math.log(math.factorial(length)) / (length - 1))
    got = scale.effective_keys(jnp.asarray(length, dtype))
    assert got.dtype == dtype
    assert got == pytest.approx(exact, rel=8 * float(jnp.finfo(dtype).eps))


def test_two_rows_are_two_keys_in_both_precisions(dtype):
    """Not a rounding less, which closed forms refuse; the derivative is that of the formula."""
    two = jnp.asarray(2, dtype)
    keys = scale.effective_keys(two)
    assert keys >= 2 and keys == pytest.approx(2, rel=8 * float(jnp.finfo(dtype).eps))
    slope = jax.grad(scale.effective_keys)(two)
    assert slope == pytest.approx(2 * (1.5 - np.euler_gamma - math.log(2)), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [None, 64])
def test_one_scale_serves_typical_rows_of_all_lengths(x64, dim):
    """The α of n_g keys against the best single one of all rows: mean log gradient on a grid, rows drawn anew.

    The squares of the rows' own optima average to about the square of that α, and the loss beside the best single one
    is far below what any other choice of α loses to the rows' own.
    """
    length = 400
    lengths = np.unique(np.geomspace(2, length, 24).round()).astype(int)
    # Each of these rows stands for those nearer to it than to its neighbours.
    edges = np.concatenate([[1.5], (lengths[1:] + lengths[:-1]) / 2, [length + 0.5]])
    weights = np.diff(edges) / (length - 1)
    factors = np.linspace(0.6, 1.5, 37)
    chosen = scale.typical_scale(jax.random.key(0), round(float(scale.effective_keys(length))), dim, samples=2048)
    curves = np.array(
        [
            scale.typical_objective(jax.random.key(n), factors * chosen, n, dim, samples=1024)[0]
            for n in map(int, lengths)
        ]
    )
    mean = weights @ curves
    assert abs(factors[mean.argmax()] - 1) <= 0.05
    at_chosen = mean[np.argmin(abs(factors - 1))]
    assert mean.max() - at_chosen < 0.002
    assert 0.002 < weights @ curves.max(axis=1) - at_chosen < 0.03


def test_the_longest_rows_have_a_geometric_mean():
    for length in (1e29, 1e31, 1e38):
        np.testing.assert_allclose(
            float(scale.effective_keys(np.float32(length))), np.float32(length) / np.e, rtol=3e-5
        )
    assert np.isfinite(float(jax.grad(scale.effective_keys)(1e38)))
