import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import sparsity
from tests.oracles import sparsity as oracle

LAMBDAS = [1e-6, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6, 1.0]


@pytest.mark.parametrize("lam", LAMBDAS)
@pytest.mark.parametrize("n", [1, 2, 3, 17, 512, 10**5])
def test_against_geometric_sums(lam, n, dtype):
    lam = np.asarray(lam, dtype)
    measured = sparsity.decay(lam, n)
    exact = oracle.decay(float(lam), n)
    assert measured.dtype == dtype
    assert abs(float(measured) - exact) <= 8 * jnp.finfo(dtype).eps * exact


@pytest.mark.parametrize("lam", [0.1, 0.5, 0.9, 0.999, 1 - 1e-5])
@pytest.mark.parametrize("n", [2, 17, 512])
def test_gradient(lam, n, dtype):
    lam = np.asarray(lam, dtype)
    measured = jax.grad(sparsity.decay)(jnp.asarray(lam), jnp.asarray(n, dtype))
    with mp.workdps(60):
        exact = mp.diff(lambda x: oracle.decay(x, n), mp.mpf(float(lam)), h=mp.mpf(10) ** -15)
    assert abs(float(measured) - exact) <= 200 * jnp.finfo(dtype).eps * abs(exact)


def test_it_is_the_sparsity_of_the_weights(x64):
    for lam, n in ((0.8, 5), (0.97, 40), (1.0, 9)):
        weights = lam ** jnp.arange(n, dtype=jnp.float64)
        assert abs(sparsity.decay(lam, n) - sparsity.sparsity(weights)) < 1e-14


def test_no_zero_over_zero_at_lambda_one(dtype):
    n = jnp.asarray([1.0, 2.0, 1e3, 1e9], dtype)
    np.testing.assert_array_equal(sparsity.decay(1.0, n), 1)
    by_lam, by_n = jax.vmap(jax.grad(sparsity.decay, (0, 1)), (None, 0))(jnp.asarray(1, dtype), n)
    np.testing.assert_array_equal(by_lam, 0)
    np.testing.assert_array_equal(by_n, 0)


def test_falls_to_zero_with_length(x64):
    n = jnp.asarray([1e3, 1e6, 1e9, 1e12])
    np.testing.assert_allclose(sparsity.decay(0.9, n), np.sqrt(1.9 / (0.1 * n)), rtol=1e-12)


def test_shapes():
    assert sparsity.decay(jnp.full((3, 1), 0.5), jnp.arange(1, 5)).shape == (3, 4)
    assert jax.jit(jax.vmap(sparsity.decay, (0, None)))(jnp.full(3, 0.5), 7).shape == (3,)
    assert sparsity.decay(jnp.asarray(0.5, jnp.bfloat16), 8).dtype == jnp.bfloat16


def test_bad_input():
    for lam in (0.0, -0.5, 1.1):
        with pytest.raises(ValueError, match="`lam` must be > 0 and <= 1"):
            sparsity.decay(lam, 5)
    with pytest.raises(ValueError, match="`n` must be >= 1, got 0"):
        sparsity.decay(0.5, 0)
    with pytest.raises(TypeError, match="`n` must be a real number"):
        sparsity.decay(0.5, "8")
