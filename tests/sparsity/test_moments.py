"""S from two moments, and at the door."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import sparsity


def test_from_moments(dtype):
    first, second = np.asarray([0.5, 2.0, 0.0], dtype), np.asarray([1.0, 4.0, 3.0], dtype)
    measured = sparsity.from_moments(first, second)
    assert measured.dtype == dtype
    np.testing.assert_allclose(measured, [0.5, 1.0, 0.0])
    draws = np.random.default_rng(0).normal(size=1000).astype(dtype)
    moments = np.mean(np.abs(draws)), np.mean(draws * draws)
    np.testing.assert_allclose(sparsity.from_moments(*moments), sparsity.sparsity(jnp.asarray(draws)), rtol=1e-6)
    assert np.all(sparsity.from_moments(np.ones(3, dtype), np.ones(3, dtype)) == 1)
    assert jax.jit(sparsity.from_moments)(1.0, -1.0) is not None  # a traced number passes the door


@pytest.mark.usefixtures("as_installed")
def test_bad_moments():
    with pytest.raises(ValueError, match="`second` must be > 0, got -1"):
        sparsity.from_moments(0.5, -1.0)
    with pytest.raises(ValueError, match="`second` must be > 0, got 0"):
        sparsity.from_moments(0.0, 0.0)
    with pytest.raises(ValueError, match="`first` must be >= 0"):
        sparsity.from_moments(-0.5, 1.0)
    with pytest.raises(ValueError, match="`second` must be at least `first`², got 1 for first = 2"):
        sparsity.from_moments(jnp.array([0.5, 2.0]), 1.0)
    with pytest.raises(TypeError, match="`first` must be a real number"):
        sparsity.from_moments("1", 1.0)
