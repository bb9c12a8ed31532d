import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import sparsity
from tests.oracles import sparsity as oracle

ORDERS = (0, 2, 8, 30, 64)
BETA, GAMMA = np.meshgrid([-12.0, -3.0, -0.5, 0.0, 2.0, 30.0], [0.3, 1.0, 3.0, 30.0], indexing="ij")


def _polynomial(order):
    return lambda x: mp.fsum(x**k / mp.factorial(k) for k in range(order + 1))


def _moments(beta, gamma, order):
    """S from the 2K Gaussian moments of x, to 60 digits; for even orders."""
    with mp.workdps(60 + order):
        moments = [mp.mpf(1), mp.mpf(beta)]
        for k in range(2, 2 * order + 1):
            moments.append(mp.mpf(beta) * moments[-1] + (k - 1) * mp.mpf(gamma) ** 2 * moments[-2])
        c = [1 / mp.factorial(k) for k in range(order + 1)]
        first = mp.fsum(c[k] * moments[k] for k in range(order + 1))
        second = mp.fsum(c[j] * c[k] * moments[j + k] for j in range(order + 1) for k in range(order + 1))
        return float(first / mp.sqrt(second))


def test_even_orders_against_gaussian_moments(dtype):
    """Every β and γ keeps its digits, also where powers reach 30^64 and where e^x is a small difference of them."""
    for order in ORDERS:
        measured = sparsity.taylor_exponential(jnp.asarray(BETA, dtype), jnp.asarray(GAMMA, dtype), order)
        beta, gamma = (np.asarray(jnp.asarray(v, dtype), float) for v in (BETA, GAMMA))
        exact = np.vectorize(_moments)(beta, gamma, order)
        assert measured.dtype == dtype
        np.testing.assert_allclose(measured, exact, rtol=400 * jnp.finfo(dtype).eps, err_msg=f"K = {order}")


@pytest.mark.parametrize(("order", "beta", "gamma"), [(4, -3.0, 1.5), (7, -3.0, 1.5), (7, 2.0, 0.4)])
def test_against_quadrature(order, beta, gamma, x64):
    kinks = [sparsity.taylor_zero(order)] if order % 2 else []
    exact = float(oracle.gaussian(_polynomial(order), beta, gamma, kinks))
    assert abs(float(sparsity.taylor_exponential(beta, gamma, order)) - exact) <= 1e-13


def test_odd_orders_against_the_packages_quadrature(x64):
    for order in (3, 21):
        kernel = lambda x: jnp.polyval(jnp.asarray([1 / math.factorial(k) for k in range(order, -1, -1)]), x)  # noqa: E731, B023
        beta, gamma = jnp.asarray([-6.0, -1.0, 0.0, 3.0]), jnp.asarray([2.0, 0.5, 1.0, 2.0])
        exact = sparsity.from_kernel(kernel, beta, gamma, kinks=(sparsity.taylor_zero(order),))
        np.testing.assert_allclose(sparsity.taylor_exponential(beta, gamma, order), exact, rtol=1e-10)


def test_it_is_between_identity_and_softmax(dtype):
    """Order 1 is the identity kernel of mean 1 + β; many orders are the exponential, whatever β."""
    beta, gamma = jnp.asarray([-2.0, -1.0, 0.0, 3.0], dtype), jnp.asarray([0.5, 1.0, 2.0, 1.5], dtype)
    first = sparsity.taylor_exponential(beta, gamma, 1)
    np.testing.assert_allclose(first, sparsity.identity(beta + 1, gamma), rtol=20 * jnp.finfo(dtype).eps)
    many = sparsity.taylor_exponential(beta, gamma, 64)
    np.testing.assert_allclose(many, sparsity.exponential(gamma), rtol=100 * jnp.finfo(dtype).eps)


def test_gradients(x64):
    """Against differences of values that the tests above hold to quadrature; and finite far away."""
    beta, gamma = jnp.asarray([0.0, -3.0, 4.0, -3.0, -40.0, 1e4, 2.0]), jnp.asarray([1.0, 1.5, 0.7, 1.5, 5.0, 1e2, 0.0])
    order, step = jnp.asarray([4, 7, 7, 10, 63, 64, 5]), 1e-5
    s = sparsity.taylor_exponential
    by_beta, by_gamma = jax.grad(lambda b, g: jnp.sum(s(b, g, order)), (0, 1))(beta, gamma)
    assert np.all(np.isfinite(by_beta)) and np.all(np.isfinite(by_gamma))
    ends = [s(beta + db, gamma + dg, order) for db, dg in ((step, 0), (-step, 0), (0, step))]
    np.testing.assert_allclose(by_beta, (ends[0] - ends[1]) / (2 * step), atol=1e-9)
    slope = (ends[2] - s(beta, jnp.maximum(gamma - step, 0), order)) / (2 * step)
    np.testing.assert_allclose(by_gamma[:-1], slope[:-1], atol=1e-9)


def test_no_spread_is_uniform_and_extremes_are_finite():
    beta, gamma = jnp.asarray([0.0, -40.0, 0.0, -1e4, 1e4, 2.0]), jnp.asarray([1e-3, 5.0, 1e4, 1e2, 1.0, 0.0])
    for order in (3, 64):
        measured = sparsity.taylor_exponential(beta, gamma, order)
        assert np.all((measured > 0) & (measured < 1 + 1e-5)) and abs(measured[-1] - 1) < 1e-6


def test_zeros(x64):
    for order in (1, 3, 15, 63):
        zero = sparsity.taylor_zero(order)
        with mp.workdps(60):
            below, above = (_polynomial(order)(mp.mpf(zero) * (1 + s)) for s in (1e-13, -1e-13))
        assert below < 0 < above
    w = float(mp.lambertw(mp.exp(-1)))
    assert abs(sparsity.taylor_zero(63) / 63 + w) < 0.02 < abs(sparsity.taylor_zero(15) / 15 + w) < 0.1


def test_shapes_and_traces():
    assert sparsity.taylor_exponential(jnp.zeros((3, 1)), 1.0, jnp.arange(2)).shape == (3, 2)
    assert jax.jit(lambda g, k: sparsity.taylor_exponential(0.0, g, k))(1.0, 4) < 1
    assert sparsity.taylor_exponential(0, jnp.ones(6, jnp.bfloat16), 2).dtype == jnp.bfloat16


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    with pytest.raises(ValueError, match="`gamma` must be >= 0, got -1"):
        sparsity.taylor_exponential(0.0, -1.0, 2)
    with pytest.raises(TypeError, match=r"`order` must be an integer or an array of them, got 2\.0"):
        sparsity.taylor_exponential(0.0, 1.0, 2.0)
    with pytest.raises(ValueError, match="`order` must be >= 0 and <= 64, got 65"):
        sparsity.taylor_exponential(0.0, 1.0, 65)
    with pytest.raises(ValueError, match="`beta` must be finite"):
        sparsity.taylor_exponential(float("nan"), 1.0, 2)
    with pytest.raises(ValueError, match="`order` must be an odd integer below 64, got 4"):
        sparsity.taylor_zero(4)
