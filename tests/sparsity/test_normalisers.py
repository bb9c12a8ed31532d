"""Closed forms of current models' rows: against quadrature, converged Sinkhorn scaling, brute force and real layers."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import scale, sparsity
from tests.oracles.sparsity import ratio_estimate


@pytest.mark.parametrize(("gamma", "lam", "rho"), [(1.0, 0.8, 0.0), (0.3, 1.0, 0.5), (2.0, 0.2, -0.4), (1.5, 0.0, 0.0)])
def test_differential_by_a_grid(x64, gamma, lam, rho):
    """E|X − λY| and E(X − λY)² by the trapezoidal rule in two dimensions, whose kink costs h²."""
    at = np.linspace(-9 - gamma, 9 + gamma, 1601)
    bell = np.exp(-(at**2) / 2)
    weight = np.outer(bell, bell) / bell.sum() ** 2
    first, second = np.exp(gamma * at)[:, None], np.exp(gamma * (rho * at[:, None] + math.sqrt(1 - rho**2) * at[None]))
    a = (first - lam * second) * math.exp(-(gamma**2) / 2)
    expected = (weight * abs(a)).sum() / math.sqrt((weight * a**2).sum())
    assert abs(float(sparsity.differential(gamma, lam, rho)) / expected - 1) < 1e-4


@pytest.mark.parametrize("rho", [-1.0, 0.0, 0.99])
def test_differential_of_nearly_equal_rows(rho):
    """γ and 1 − λ near 0 cancel in the closed form, and λ beyond the root of the range overflows it."""
    mp.mp.dps = 40
    for gamma in (1e-6, 1e-3, 0.5, 2.0):
        for lam in (0.9, 1 - 2**-20, 1.0, 1 + 2**-20, 1.9, 2.5, 1e20):
            value = sparsity.differential(np.float32(gamma), np.float32(lam), np.float32(rho))
            g, times, r = (mp.mpf(float(np.float32(each))) for each in (gamma, lam, rho))
            sigma = g * mp.sqrt(2 * (1 - r))
            upper, lower = ((-mp.log(times) / sigma + sign * sigma / 2) / mp.sqrt(2) for sign in (1, -1))
            first = mp.erf(upper) - times * mp.erf(lower)
            second = (1 + times**2) * mp.exp(g**2) - 2 * times * mp.exp(r * g**2)
            assert abs(float(value) / float(first / mp.sqrt(second)) - 1) < 2e-6, (gamma, lam)


@pytest.mark.parametrize("lam", [0.0, 0.8, 1.0, 1.3, 3.0])
def test_differential_has_derivatives_everywhere(x64, lam):
    step, at = 1e-6, (1.0, lam, 0.3)
    slopes = jax.grad(sparsity.differential, argnums=(0, 1, 2))(*map(jnp.asarray, at))
    for place, slope in enumerate(slopes):
        after, before = (list(at) for _ in range(2))
        after[place] += step
        before[place] -= step * (lam > 0)  # λ is no less than 0
        quotient = (sparsity.differential(*after) - sparsity.differential(*before)) / (after[place] - before[place])
        assert abs(float(slope - quotient)) < 3e-6, place


@pytest.mark.parametrize("lam", [0.5, 2.0])
def test_differential_of_equal_scores_has_second_derivatives(x64, lam):
    """At ρ = 1, where the root of two terms becomes a line; by differences below it."""
    last, near = (jax.hessian(lambda rho: sparsity.differential(1.0, lam, rho))(rho) for rho in (1.0, 1 - 1e-6))
    assert abs(float(last - near)) < 1e-3
    rhos = 1 - 1e-4 * np.arange(3)
    values = [float(sparsity.differential(1.0, lam, rho)) for rho in rhos]
    assert abs(float(last) - (values[0] - 2 * values[1] + values[2]) / 1e-8) < 0.02 * abs(float(last))


def test_differential_at_its_ends(x64):
    gamma = jnp.asarray([0.1, 1.0, 3.0])
    np.testing.assert_allclose(sparsity.differential(gamma, 0.0), sparsity.exponential(gamma), rtol=1e-12)
    np.testing.assert_allclose(sparsity.differential(gamma, 0.7, 1.0), sparsity.exponential(gamma), rtol=1e-12)
    # Equal softmaxes subtracted: normal differences at small γ, lognormal tails of both signs at large γ.
    assert abs(float(sparsity.differential(1e-4, 1.0)) - math.sqrt(2 / math.pi)) < 1e-7
    far = sparsity.differential(6.0, 0.8) / sparsity.exponential(6.0)
    assert abs(float(far) - 1.8 / math.sqrt(1.64)) < 1e-4
    assert bool(jnp.isnan(sparsity.differential(1.0, 1.0, 1.0)))


def test_differential_has_all_of_its_range():
    """Far out S is (1 + λ)/√(1 + λ²) e^{−γ²/2}, also where e^{γ²} is too large for single precision."""
    for rho in (-1.0, -0.3, 0.0, 0.3):
        far = sparsity.differential(jnp.asarray([10.0, 12.0], "float32"), 0.8, rho)
        np.testing.assert_allclose(far, 1.8 / np.sqrt(1.64) * np.exp([-50.0, -72.0]), rtol=2e-5)
        assert sparsity.differential(jnp.float32(1e30), 0.8, rho) == 0
    slopes = jax.grad(sparsity.differential, (0, 2))(jnp.float32(1.0), 0.8, 0.0)
    step = 1e-2
    ends = [float(sparsity.differential(1.0, 0.8, rho)) for rho in (-step, step)]
    assert np.all(np.isfinite(slopes)) and abs(float(slopes[1]) - (ends[1] - ends[0]) / (2 * step)) < 1e-3


def test_differential_keeps_its_digits(dtype):
    """Against 50 digits, also where two softmaxes nearly agree: (1 − λ)² + 2λ(1 − e^{(ρ − 1)γ²}) has no difference."""
    eps = jnp.finfo(dtype).eps
    gammas, lams, rhos = (np.asarray(each, dtype) for each in ([1e-3, 0.1, 3], [1e-3, 0.8, 1, 4], [-1, 0, 0.9, 0.9999]))
    with mp.workdps(50):
        for gamma in gammas:
            for lam in lams:
                for rho in rhos:
                    g, m, r = mp.mpf(float(gamma)), mp.mpf(float(lam)), mp.mpf(float(rho))
                    sigma = g * mp.sqrt(2 * (1 - r))
                    upper, lower = (mp.erf((-mp.log(m) / sigma + sign * sigma / 2) / mp.sqrt(2)) for sign in (1, -1))
                    exact = (upper - m * lower) / mp.sqrt((1 + m * m) * mp.exp(g * g) - 2 * m * mp.exp(r * g * g))
                    assert abs(float(sparsity.differential(gamma, lam, rho)) / exact - 1) < 60 * eps


@pytest.mark.slow
def test_differential_rows_of_random_numbers(x64):
    rng = np.random.default_rng(0)
    s, t = rng.standard_normal((2, 2_000_000))
    a = np.exp(s - 0.5) - 0.8 * np.exp(t - 0.5)
    value, error = ratio_estimate(a)
    assert abs(float(sparsity.differential(1.0, 0.8)) - value) < 5 * error


def scaled(a):
    """Rows of the doubly stochastic plan of e^{axy} between N(0, 1) and itself, on Gauss–Hermite nodes."""
    at, weight = np.polynomial.hermite_e.hermegauss(80)
    weight = weight / weight.sum()
    logs = a * np.outer(at, at)
    for _ in range(4000):
        logs = logs - np.log((np.exp(logs) * weight).sum(axis=1, keepdims=True))
        logs = logs - np.log((np.exp(logs) * weight[:, None]).sum(axis=0, keepdims=True))
    density = np.exp(logs)
    return at, 1 / np.sqrt((density**2 * weight).sum(axis=1)), weight


def test_sinkhorn_by_scaling_to_convergence(x64):
    for a in (0.4, 2.0):
        at, measured, weight = scaled(a)
        middle = abs(at) < 3
        law = sparsity.sinkhorn(np.full((len(at), 1), a), at[:, None])
        np.testing.assert_allclose(law[middle], measured[middle], rtol=1e-6)
        # Over queries E 1/S² = 1/(1 − ρ²), Mehler's formula.
        rho = (math.sqrt(1 + 4 * a * a) - 1) / (2 * a)
        assert abs(float((weight / np.asarray(law) ** 2).sum()) * (1 - rho**2) - 1) < 1e-8
    # Spread over many coordinates the plan is softmax.
    many = sparsity.sinkhorn(jnp.full(10_000, 0.01), jnp.ones(10_000))
    assert abs(float(many) - float(sparsity.exponential(1.0))) < 1e-3


def test_sinkhorn_keeps_its_digits(dtype):
    """Against 60 digits, from weak couplings to those whose square is out of range."""
    couplings = np.asarray([1e-20, 1e-3, 0.5, 1.0, 1.5, 30.0, 1e4, 1e8, 1e18, 1e25], dtype)
    queries = np.asarray([0.0, 0.7, 3.0], dtype)
    measured = sparsity.sinkhorn(couplings[:, None, None], queries[:, None])
    with mp.workdps(60):
        for a, row in zip(couplings.astype(float), measured, strict=True):
            rho = (mp.sqrt(1 + 4 * mp.mpf(a) ** 2) - 1) / (2 * mp.mpf(a))
            front = mp.sqrt(mp.sqrt(1 - rho**4))
            exact = [float(front * mp.exp(-((rho * x) ** 2) / (2 * (1 + rho**2)))) for x in queries.astype(float)]
            np.testing.assert_allclose(row, exact, rtol=40 * jnp.finfo(dtype).eps)
    slopes = jax.vmap(jax.grad(lambda a: sparsity.sinkhorn(a[None], jnp.ones(1, dtype))))(couplings)
    assert np.all(np.isfinite(slopes))


def test_sigmoid_rows_add_up_to_order_one(x64):
    """With the bias −log n: e^{γ²/2} less at most e^{2γ²}/n, because e^x − e^{2x}/n ≤ n sigmoid(x − log n) ≤ e^x."""
    at, weight = np.polynomial.hermite_e.hermegauss(100)
    weight = weight / weight.sum()
    for gamma in (0.3, 1.0):
        for n in (1e2, 1e4, 1e8):
            total = float((weight * n / (1 + n * np.exp(-gamma * at))).sum())
            assert math.exp(gamma**2 / 2) - math.exp(2 * gamma**2) / n <= total * (1 + 1e-12)
            assert total <= math.exp(gamma**2 / 2) * (1 + 1e-12)
            s = float(sparsity.from_kernel(jax.nn.sigmoid, -math.log(n), gamma))
            assert 0 <= s / math.exp(-(gamma**2) / 2) - 1 < 2 * math.exp(4 * gamma**2) / n


def test_second_derivatives_where_two_parts_are_equal(x64):
    """Places at which an absolute value or a `jnp.hypot` has a derivative of 0: against 40 digits."""

    def by_digits(f, at):
        with mp.workdps(40):
            return float(mp.diff(f, at, 2))

    def of_differential(lam):
        upper, lower = (mp.erf((-mp.log(lam) / mp.sqrt(2) + sign * mp.sqrt(2) / 2) / mp.sqrt(2)) for sign in (1, -1))
        return (upper - lam * lower) / mp.sqrt((1 + lam**2) * mp.e - 2 * lam)

    def of_sinkhorn(a):
        rho = (mp.sqrt(1 + 4 * a**2) - 1) / (2 * a)
        return mp.sqrt(mp.sqrt(1 - rho**4)) * mp.exp(-(rho**2) / (2 * (1 + rho**2)))

    pairs = [
        (lambda lam: sparsity.differential(1.0, lam), of_differential, 1.0),
        (lambda a: sparsity.sinkhorn(a[None], jnp.ones(1)), of_sinkhorn, 0.5),
        (scale.entropy_loss_per_dimension, lambda lam: mp.log((1 + mp.sqrt(1 + 4 * lam**2)) / 2) / 2, 0.5),
        (lambda m: sparsity.nonnegative_linear_iid(jnp.ones(1), m, 1.0), lambda m: 1 / mp.sqrt(1 + m**-2), 1.0),
    ]
    for ours, exact, at in pairs:
        assert float(jax.grad(jax.grad(ours))(at)) == pytest.approx(by_digits(exact, at), rel=1e-4)


def test_the_derivative_by_the_correlation_at_its_end(x64):
    """S = (1 − λ) e^{−γ²/2}/√((1 − λ)² + 2λγ²(1 − ρ)) next to ρ = 1, where two scores are nearly one."""
    slope = jax.grad(lambda rho: sparsity.differential(1.0, 0.5, rho))(1.0)
    assert float(slope) == pytest.approx(2 * math.exp(-0.5), rel=1e-9)
