"""Scores that share a query: integrals over its length, simulation, closed forms, limits, derivatives, bad input."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rc_jax import scale

AVERAGES = ("row", "all")


def over_queries(function, dim):
    """E f(‖q‖²/d): the chi-squared density integrated, the mass beyond it left to the convergence of the integral."""
    half = mp.mpf(dim) / 2
    weight = lambda r: mp.exp((half - 1) * mp.log(r) - r - mp.loggamma(half))  # noqa: E731  r = ‖q‖²/2
    top, spread = half, mp.sqrt(half)
    points = [0, *(max(top + k * spread, mp.mpf(1) / 8) for k in (-4, -1, 1, 4, 12, 30)), mp.inf]
    return mp.quad(lambda r: function(r / half) * weight(r), sorted(set(points)))


def integrated(alpha, n, dim, average):
    """The annealed objective from integrals over ‖q‖, no closed form of a moment."""
    alpha = mp.mpf(alpha)
    if average == "row":
        return alpha * (1 - over_queries(lambda v: mp.exp(alpha**2 * v), dim) / n)
    top = over_queries(lambda v: mp.exp(2 * alpha**2 * v), dim)
    return alpha * (1 - top / (n * over_queries(lambda v: mp.exp(alpha**2 * v / 2), dim) ** 2))


def exact_objective(alpha, n, dim, average):
    """The same with the moments in closed form, for root finding."""
    alpha, dim = mp.mpf(alpha), mp.mpf(dim)
    if average == "row":
        return alpha * (1 - (1 - 2 * alpha**2 / dim) ** (-dim / 2) / mp.mpf(n))
    moment = lambda a: (1 - a * a / dim) ** (-dim / 2)  # noqa: E731
    return alpha * (1 - moment(2 * alpha) / (mp.mpf(n) * moment(alpha) ** 2))


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize(("alpha", "dim"), [(0.4, 3), (1.0, 8), (1.9, 64), (1.2, 128)])
def test_objective_against_integrals(average, alpha, dim):
    with mp.workdps(25):
        assert mp.almosteq(exact_objective(alpha, 50, dim, average), integrated(alpha, 50, dim, average), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("average", AVERAGES)
def test_objective_against_simulated_queries(x64, key, average):
    """Queries and keys drawn: means of what each average is the mean of, in standard errors."""
    n, dim, alpha, samples = 64, 48, 0.8, 100_000  # α² < d/64: the sampled sums have four moments
    query = jax.random.normal(jax.random.fold_in(key, 0), (samples, dim))
    keys = jax.random.normal(jax.random.fold_in(key, 1), (samples, dim))
    if average == "row":
        values = alpha * (1 - jnp.exp(alpha**2 * (query**2).mean(1)) / n)
    else:
        terms = jnp.exp(alpha * (query * keys).sum(1) / dim**0.5), jnp.exp(2 * alpha * (query * keys).sum(1) / dim**0.5)
        one, two = terms[0].mean(), terms[1].mean()
        ratio = two / one**2
        values = alpha * (1 - ratio * (1 + (terms[1] / two - 1) - 2 * (terms[0] / one - 1)) / n)  # to first order
    error = values.std(ddof=1) / samples**0.5
    assert abs(values.mean() - float(exact_objective(alpha, n, dim, average))) < 5 * error


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize(("n", "dim"), [(2, 1), (2, 65536), (50, 3), (1024, 8), (1024, 64), (10**9, 128), (10**300, 2)])
def test_optimum_against_many_digits(x64, average, n, dim):
    got = scale.shared_query_scale(float(n), dim, average)
    with mp.workdps(340 if n > 10**100 else 50):
        # the slope in log(1 − α²/limit): the optimum is close to where the mean becomes infinite
        limit = mp.sqrt(mp.mpf(dim) / (2 if average == "row" else 4))
        gap = 1 - mp.mpf(float(got)) / limit
        at = lambda u: limit * (1 - mp.exp(u))  # noqa: E731
        start = mp.log(gap) if gap > mp.mpf(10) ** -10 else -mp.log(n) / (1 + mp.mpf(dim) / 2)
        slope = lambda u: mp.diff(lambda w: exact_objective(at(w), n, dim, average), u)  # noqa: E731
        exact = at(mp.findroot(slope, start, tol=1e-20))
    assert got == pytest.approx(float(exact), rel=1e-13)


def test_closed_forms_in_one_and_two_dimensions(dtype):
    n = jnp.asarray([2.0, 10.0, 1e3, 1e9], dtype)
    rtol = 16 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(scale.shared_query_scale(n, 1), jnp.sqrt((1 - n ** (-2 / 3)) / 2), rtol=rtol)
    z = (1 + jnp.sqrt(1 + 8 * n)) / 4
    np.testing.assert_allclose(scale.shared_query_scale(n, 2), jnp.sqrt(1 - 1 / z), rtol=rtol)


@pytest.mark.parametrize("average", AVERAGES)
def test_limits(x64, average):
    n = jnp.asarray([2.0, 1e3, 1e9])
    np.testing.assert_allclose(scale.shared_query_scale(n, 1e13, average), scale.optimal_scale_exact(n), rtol=1e-11)
    dims = jnp.asarray([1.0, 3.0, 8.0])
    bound = jnp.sqrt(dims / (2 if average == "row" else 4))
    np.testing.assert_allclose(scale.shared_query_scale(1e300, dims, average), bound, rtol=1e-12)


@settings(deadline=None, max_examples=15)
@given(st.floats(2, 1e9), st.floats(1, 1e5))
def test_a_shared_query_wants_a_smaller_scale(n, dim):
    """Both averages weigh the long queries: below the Gaussian optimum, and more so over all scores at once."""
    n, dim = np.float32(n), np.float32(dim)
    row, both = (scale.shared_query_scale(n, dim, average) for average in AVERAGES)
    assert 0 < both <= row * 1.00001 <= scale.optimal_scale_exact(n) * 1.00003
    assert row < np.sqrt(dim / 2) * 1.00001 and both < np.sqrt(dim) / 2 * 1.00001


@pytest.mark.slow
@pytest.mark.parametrize("average", AVERAGES)
def test_derivatives_match_differences(x64, average):
    at, steps = jnp.asarray([500.0, 20.0]), jnp.asarray([1e-2, 1e-3])
    function = lambda a: scale.shared_query_scale(a[0], a[1], average)  # noqa: E731
    ends = jax.jit(jax.vmap(function))(jnp.concatenate([at[None] + jnp.diag(steps), at[None] - jnp.diag(steps)]))
    reverse, forward = jax.jit(lambda a: (jax.grad(function)(a), jax.jacfwd(function)(a)))(at)
    np.testing.assert_allclose(reverse, (ends[:2] - ends[2:]) / (2 * steps), rtol=1e-8)
    np.testing.assert_allclose(forward, reverse, rtol=1e-12)


def exact_scale(n, dim, average):
    """α* by the stationarity in w = −log(1 − c α²/d), of any n and d: α² = d(1 − e^{−w})/c."""
    most = 2 if average == "row" else 4
    square = lambda w: -dim / most * mp.expm1(-w)  # noqa: E731

    def stationarity(w):
        if average == "row":
            return dim / 2 * w + mp.log1p(dim * mp.expm1(w)) - mp.log(n)
        less = 1 - square(w) / dim
        rise = square(w) * (4 * mp.exp(w) - 2 / less)
        return dim / 2 * w + dim * mp.log(less) + mp.log1p(rise) - mp.log(n)

    low, high = mp.mpf(0), 2 * mp.log(n)
    for _ in range(int(3.3 * mp.mp.dps)):
        middle = (low + high) / 2
        low, high = (middle, high) if stationarity(middle) < 0 else (low, middle)
    return mp.sqrt(square(low))


@pytest.mark.slow
@pytest.mark.parametrize("average", AVERAGES)
def test_derivatives_at_both_ends(dtype, average):
    """Many keys of few dimensions, whose scale has nearly reached its bound, and dimensions that hardly count."""
    slopes = jax.jit(jax.grad(lambda n, dim: scale.shared_query_scale(n, dim, average), (0, 1)))
    ends = [(1e300, 1), (1e28, 1)] if dtype == "float64" else [(1e20, 1)]
    for n, dim in [(1e9, 1), (1e18, 1), (1e18, 4), (50, 3), (1024, 64), (2, 1e4), (2, 1e8), (1024, 1e7), *ends]:
        with mp.workdps(400 if n > 1e100 else 80):
            n, dim = np.asarray(n, dtype), np.asarray(dim, dtype)
            at, tiny = (mp.mpf(float(n)), mp.mpf(float(dim))), mp.mpf(10) ** -20
            for slope, step in zip(slopes(n, dim), ((tiny, 0), (0, tiny)), strict=True):
                high, low = (exact_scale(*(x * (1 + k * h) for x, h in zip(at, step, strict=True)), average)
                             for k in (1, -1))  # fmt: skip
                exact = float((high - low) / (2 * (step[0] * at[0] + step[1] * at[1])))
                assert abs(float(slope) - exact) <= 200 * jnp.finfo(dtype).eps * abs(exact) + 1e-37 * (n > 1e20), (
                    n,
                    dim,
                )


def test_traced_n_below_two_gives_nan():
    assert np.isnan(jax.jit(scale.shared_query_scale)(1.0, 8.0))


@pytest.mark.parametrize("dim", [1.49, 1.5, 1.51])
def test_the_limit_of_more_keys_than_fit_a_square(dim, x64):
    """√d/2, at every n whose logarithm is known: 1e300 and 1e301 were NaN."""
    scales = scale.shared_query_scale(10.0 ** np.arange(290, 308), dim, "all")
    np.testing.assert_allclose(scales, np.sqrt(dim) / 2, rtol=1e-14)
