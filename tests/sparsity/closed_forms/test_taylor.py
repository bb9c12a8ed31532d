import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import sparsity

CASES = [  # (β, γ, K)
    *((beta, gamma, order) for beta in (-12, -0.5, 2, 30) for gamma in (0.3, 1, 30) for order in (0, 2, 30, 64)),
    *((beta, gamma, order) for beta in (-6, -1, 0, 3) for gamma in (0.5, 2) for order in (1, 3, 21, 63)),
    (-12.0013, 1.3598, 53), (-10.969, 0.00306, 33), (-18.7288, 0.0457, 63), (-28.607, 5.4, 64), (-37, 0.1, 63),
    (50, 3, 63), (-64, 0.5, 63), (-40, 5, 63), (0, 1e4, 63), (1e4, 1, 64), (-1e4, 100, 63), (-1e4, 100, 3),
]  # fmt: skip


def _padded(*columns):
    """Columns repeated to one length: all tests share a program."""
    return tuple(np.resize(column, 128) for column in columns)


def _coefficients(order):
    return [1 / mp.factorial(k) for k in range(order + 1)]


def _half_moments(beta, gamma, low, order):
    """E[x^k; x > low] of x = β + γε, k = 0 … order, by parts."""
    z = (low - beta) / gamma
    bell, moments = mp.npdf(z), [mp.ncdf(-z)]
    for k in range(1, order + 1):
        before = (k - 1) * gamma**2 * moments[k - 2] if k > 1 else 0
        moments.append(beta * moments[-1] + before + gamma * low ** (k - 1) * bell)
    return moments


@functools.cache
def _exact(beta, gamma, order):
    """S from the Gaussian moments of the powers of x, on either side of the zero, with enough digits to cancel."""
    with mp.workdps(200):
        beta, gamma, c = mp.mpf(beta), mp.mpf(gamma), _coefficients(order)
        low = mp.mpf(-1000) * (abs(beta) + gamma + 1)
        full = _half_moments(beta, gamma, low, 2 * order)
        first = mp.fdot(c, full[: order + 1])
        if order % 2:
            first = 2 * mp.fdot(c, _half_moments(beta, gamma, _zero(order), order)) - first
        second = mp.fsum(c[i] * c[j] * full[i + j] for i in range(order + 1) for j in range(order + 1))
        return float(first / mp.sqrt(second))


@functools.cache
def _zero(order):
    c = _coefficients(order)
    return mp.findroot(lambda x: _polynomial(c, x), (-order, 0), solver="anderson", tol=1e-300, maxsteps=500)


def _polynomial(coefficients, x):
    """Σ c_k x^k. (mpmath's `polyval` takes coefficients in one order or the other, depending on its version.)"""
    total = mp.mpf(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def test_against_gaussian_moments(dtype):
    """Every β and γ keeps its digits, also where powers reach 30^64 and where e^x is a small difference of them."""
    beta, gamma, order = _padded(*zip(*CASES, strict=True))
    beta, gamma = (jnp.asarray(value.astype(np.float32), dtype) for value in (beta, gamma))
    measured = sparsity.taylor_exponential(beta, gamma, order)[: len(CASES)]
    numbers = zip(*(np.asarray(value, float)[: len(CASES)] for value in (beta, gamma)), order, strict=False)
    exact = [_exact(b, g, int(k)) for b, g, k in numbers]
    assert measured.dtype == dtype and np.all((measured >= 0) & (measured <= 1))
    tolerance = 1e-12 if dtype == jnp.float64 else 1e-4
    np.testing.assert_allclose(measured, exact, rtol=tolerance)


@pytest.mark.slow
def test_few_digits_are_right_where_the_polynomial_is_small(x64):
    """Single against double precision, which the test above holds, where a power is far larger than the polynomial."""
    rng = np.random.default_rng(0)
    order = rng.integers(0, 65, (5, 128))
    beta = rng.uniform(-0.6, 0, (5, 128)) * order + rng.uniform(0, 1, (5, 128))
    gamma = np.exp(rng.uniform(np.log(0.02), np.log(8), (5, 128)))
    beta, gamma = beta.astype(np.float32), gamma.astype(np.float32)
    s = sparsity.taylor_exponential
    measured = jnp.stack([s(*row) for row in zip(beta, gamma, order, strict=True)])
    double = [s(*row) for row in zip(beta.astype(float), gamma.astype(float), order, strict=True)]
    assert measured.dtype == jnp.float32 and np.all((measured >= 0) & (measured <= 1))
    np.testing.assert_allclose(measured, double, rtol=1e-4)


def test_it_is_between_identity_and_softmax(dtype):
    """Order 1 is the identity kernel of mean 1 + β; many orders are the exponential, whatever β."""
    beta, gamma = _padded([-2.0, -1.0, 0.0, 3.0], [0.5, 1.0, 2.0, 1.5])
    beta, gamma = jnp.asarray(beta, dtype), jnp.asarray(gamma, dtype)
    first = sparsity.taylor_exponential(beta, gamma, 1)
    np.testing.assert_allclose(first, sparsity.identity(beta + 1, gamma), rtol=100 * float(jnp.finfo(dtype).eps))
    many = sparsity.taylor_exponential(beta, gamma, 64)
    np.testing.assert_allclose(many, sparsity.exponential(gamma), rtol=100 * float(jnp.finfo(dtype).eps))


@pytest.mark.slow
def test_gradients(dtype):
    """Against differences of values that the tests above hold to moments; and finite wherever there is no spread."""
    beta, gamma, order = _padded(
        [0, -3, 4, -3, -12, 2, -40, 1e4, -1, -1, -1e-30, 0, -1],
        [1, 1.5, 0.7, 1.5, 1.4, 0, 5, 1e2, 0, 1e-12, 1e-30, 0, 0],
        [4, 7, 7, 10, 53, 5, 63, 64, 1, 1, 5, 0, 0],
    )
    beta, gamma, few = jnp.asarray(beta, dtype), jnp.asarray(gamma, dtype), 6
    s = sparsity.taylor_exponential
    value, pull = jax.vjp(lambda b, g: s(b, g, order), beta, gamma)
    by_beta, by_gamma = pull(jnp.ones_like(value))
    assert np.all(np.isfinite(by_beta)) and np.all(np.isfinite(by_gamma)) and np.all((value > 0) & (value <= 1))
    step = 1e-6 if dtype == jnp.float64 else 3e-3
    ends = [s(beta + db, gamma + dg, order) for db, dg in ((step, 0.0), (-step, 0.0), (0.0, step))]
    tolerance = 1e-8 if dtype == jnp.float64 else 3e-4
    np.testing.assert_allclose(by_beta[:few], ((ends[0] - ends[1]) / (2 * step))[:few], atol=tolerance)
    below = s(beta, jnp.maximum(gamma - step, 0), order)
    np.testing.assert_allclose(by_gamma[: few - 1], ((ends[2] - below) / (2 * step))[: few - 1], atol=tolerance)


@pytest.mark.slow
def test_second_derivatives(x64):
    """Also of odd orders, whose magnitude has a corner that moves with β and γ."""
    slope = jax.grad(lambda v: sparsity.taylor_exponential(v[0], v[1], 7))
    both = jax.jit(lambda v: jax.jvp(slope, (v,), (jnp.ones(2),)))
    v, step = jnp.asarray([-2.0, 1.5]), 1e-5
    expected = (both(v + step)[0] - both(v - step)[0]) / (2 * step)
    np.testing.assert_allclose(both(v)[1], expected, atol=1e-8)


def test_no_spread_is_uniform_and_extremes_are_finite():
    beta = [2.0, -1.0, -1.0, 0.0, -40.0, 0.0, -1e4, 1e4, 3e38, -3e38, 0.0]
    gamma = [0.0, 0.0, 0.0, 1e-3, 5.0, 1e4, 1e2, 1.0, 1e38, 0.0, 3e38]
    beta, gamma, order = _padded(np.repeat(beta, 2), np.repeat(gamma, 2), [1, 64])
    measured = sparsity.taylor_exponential(*(jnp.asarray(value, jnp.float32) for value in (beta, gamma)), order)
    assert np.all((measured > 0) & (measured <= 1))
    assert np.all(np.abs(measured[:6] - 1) < 1e-6)  # also where all weights are zero, and so all equal


def test_shapes_and_traces():
    assert sparsity.taylor_exponential(jnp.zeros((64, 1)), 1.0, jnp.arange(2)).shape == (64, 2)
    assert jax.eval_shape(lambda g, k: sparsity.taylor_exponential(0.0, g, k), 1.0, 4).shape == ()
    assert sparsity.taylor_exponential(0, jnp.ones(128, jnp.bfloat16), 2).dtype == jnp.bfloat16


def test_the_order_that_softmax_needs(x64):
    """The least even order from which on S is within 1 % of softmax's, against the law rounded up."""
    gamma, orders = np.array([0.5, 1.0, 2.0, 3.0]), np.arange(0, 63, 2)
    s = sparsity.taylor_exponential(0.0, *(jnp.asarray(each) for each in (np.tile(gamma, 32), np.repeat(orders, 4))))
    far = np.abs(np.asarray(s).reshape(32, 4) / np.exp(-(gamma**2) / 2) - 1) > 0.01
    needed = orders[len(far) - far[::-1].argmax(0)]
    assert np.all(np.abs(needed - 2 * np.ceil(sparsity.taylor_order(gamma) / 2)) <= 2)


def test_orders_out_of_range_that_are_not_at_hand_are_not_numbers():
    traced = [float(jax.jit(sparsity.taylor_exponential)(0.0, 2.0, jnp.asarray(order))) for order in (64, 65, -1)]
    assert np.isfinite(traced[0]) and np.isnan(traced[1:]).all()
    many = sparsity.taylor_exponential(0.0, 2.0, jnp.arange(60, 80))  # too many to be looked at
    assert np.isfinite(many[:5]).all() and np.isnan(many[5:]).all()
