"""The annealed optimum: published values, arbitrary precision, closed form, ranges, derivatives, traces."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from jax import export

from rc_jax import scale
from rc_jax._numerics import roots
from rc_jax.scale.closed_forms import annealed, stationarity
from tests.oracles import scale as oracle

GRID = 40 * np.arange(1, 501)
SLOPE = jax.jit(jax.grad(scale.optimal_scale))
SLOPE_IN_DIM = jax.jit(jax.jacrev(scale.optimal_scale, 1))
OBJECTIVE_SLOPE = jax.jit(jax.vmap(jax.grad(scale.annealed_objective), (0, 0, None)))


def log_one_minus_slope(log_alpha, log_n, dim):
    """log(1 − f′(α)) for f the annealed objective: zero at its maximum, rising, and nearly linear in log n.

    f′ = 1 − e^{C − log n}(1 + αC′) with C = `annealed.concentration`; C′ comes from automatic differentiation.
    """
    value, slope = jax.jvp(lambda u: annealed.concentration(jnp.exp(u), dim), (log_alpha,), (jnp.ones_like(log_alpha),))
    return value + jnp.log1p(slope) - log_n


def test_gaussian_optimum_is_lamberts(x64):
    n = np.concatenate([GRID, [2, 3, 7, 1e6, 1e9, 1e15]]).astype(float)
    optimum = scale.optimise_scale(n)
    assert optimum.converged.all()
    np.testing.assert_allclose(optimum.scale, scale.optimal_scale_exact(n), rtol=1e-13)


@pytest.mark.parametrize("n", ["2", "128", "1024", "20000", "1e30"])
def test_both_gaussian_forms_match_bisection(dtype, n):
    exact = float(oracle.gaussian_scale(n))
    eps = float(jnp.finfo(dtype).eps)
    assert scale.optimal_scale_exact(float(n)) == pytest.approx(exact, rel=8 * eps)
    assert scale.optimal_scale(float(n)) == pytest.approx(exact, rel=16 * eps)


def test_lamberts_form_holds_to_the_largest_numbers(x64):
    assert scale.optimal_scale_exact(1e300) == pytest.approx(float(oracle.gaussian_scale("1e300")), rel=1e-14)
    assert scale.optimal_scale(1e300) == pytest.approx(float(oracle.gaussian_scale("1e300")), rel=1e-14)


def test_published_gaussian_values(x64):
    np.testing.assert_allclose(scale.optimal_scale(np.array([128, 1024, 20000])), [1.7109, 2.1465, 2.6782], atol=5e-5)
    assert scale.fit_coefficient(GRID.astype(float), scale.optimal_scale(GRID), "sqrt_log") == pytest.approx(
        0.84135, abs=5e-6
    )


@pytest.mark.parametrize(("dim", "coefficient"), [(32, 2.304), (64, 2.707), (128, 3.4877), (256, 4.704), (512, 6.493)])
def test_published_cosine_coefficients(x64, dim, coefficient):
    got = scale.fit_coefficient(GRID.astype(float), scale.optimal_scale(GRID, dim), "log")
    assert got == pytest.approx(coefficient, abs=5e-5 if dim == 128 else 5e-4)


@pytest.mark.parametrize(
    ("n", "dim"),
    [
        *((2, 3), (10**9, 8), (1000, 128)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((3, 4), (1000, 3), (50, 5), (20000, 128), (10**9, 1024), (2, 65536), (1000, 65536))
        ),
    ],
)
def test_cosine_optimum_matches_arbitrary_precision(dtype, n, dim):
    got = scale.optimise_scale(float(n), dim)
    exact = oracle.cosine_scale(n, dim, got.scale)
    rounding = float(jnp.finfo(dtype).eps) * (4 + 2 * np.log(n))
    assert got.converged
    assert abs(float(mp.mpf(float(got.scale)) / exact) - 1) < 4 * rounding


@pytest.mark.slow
def test_an_integrated_density_gives_the_same_optimum(x64):
    got = scale.optimal_scale(300.0, 8)
    assert got == pytest.approx(float(oracle.cosine_scale(300, 8, got, moment=oracle.moment)), rel=1e-12)


def test_three_dimensions_in_the_limit(dtype):
    """M(2α)/M(α)² = α coth α in three dimensions, so that α* = n/2 for many keys."""
    n = jnp.asarray([1e3, 1e5, 1e6, 1e9], dtype)
    np.testing.assert_allclose(scale.optimal_scale(n, 3), n / 2, rtol=64 * float(jnp.finfo(dtype).eps))
    alpha = jnp.asarray([1e-2, 1.0, 30.0], dtype)
    expected = jnp.log(alpha / jnp.tanh(alpha))
    np.testing.assert_allclose(scale.log_concentration(alpha, 3), expected, rtol=1e-2 if dtype == "float32" else 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [None, 8, *(pytest.param(dim, marks=pytest.mark.slow) for dim in (3, 128, 65536))])
def test_it_is_a_maximum_of_the_objective(x64, dim):
    n = jnp.asarray([2.0, 40.0, 1e4, 1e9])
    optimum = scale.optimise_scale(n, dim)
    assert optimum.converged.all()
    slope = OBJECTIVE_SLOPE(optimum.scale, n, dim)
    assert jnp.abs(slope).max() < 1e-12
    np.testing.assert_array_equal(optimum.value, scale.annealed_objective(optimum.scale, n, dim))
    for factor in (0.5, 0.99, 1.01, 2.0):
        assert (scale.annealed_objective(factor * optimum.scale, n, dim) < optimum.value).all()


@pytest.mark.parametrize("dim", [None, *(pytest.param(dim, marks=pytest.mark.slow) for dim in (3.0, 128.0, 65536.0))])
def test_derivatives_match_differences(x64, dim):
    for n in (5.0, 1e3, 1e9):
        step = 1e-4
        up, down = scale.optimal_scale(n * (1 + step), dim), scale.optimal_scale(n * (1 - step), dim)
        slope = SLOPE(n, dim)
        assert slope == pytest.approx(float((up - down) / (2 * step * n)), rel=1e-6)
        if dim == 3:
            assert slope == pytest.approx(0.5, rel=0.1 if n < 10 else 1e-6)
        elif dim:
            up, down = scale.optimal_scale(n, dim * (1 + step)), scale.optimal_scale(n, dim * (1 - step))
            assert SLOPE_IN_DIM(n, dim) == pytest.approx(float((up - down) / (2 * step * dim)), rel=1e-6)
    curve = jax.grad(jax.grad(scale.optimal_scale))
    if dim is None:
        assert curve(1e3) == pytest.approx(float(jax.grad(jax.grad(scale.optimal_scale_exact))(1e3)), rel=1e-12)


def test_scales_too_large_for_their_dtype_are_not_found():
    optimum = scale.optimise_scale(np.float32(2e38), 3)
    assert not optimum.converged and np.isnan(optimum.scale) and np.isnan(optimum.value)


@pytest.mark.slow
def test_second_derivatives_are_small_programs():
    """They compile in seconds: a limit on their number of operations stands for one on time."""
    assert str(jax.make_jaxpr(jax.hessian(scale.optimal_scale, (0, 1)))(1024.0, 128.0)).count(" = ") < 6000


@pytest.mark.slow
def test_second_derivatives_match_differences(x64):
    hessian = jax.hessian(scale.optimal_scale, (0, 1))
    n, dim, step = 1024.0, 128.0, 1e-4
    slopes = jax.jit(jax.jacrev(scale.optimal_scale, (0, 1)))
    differences = [
        [(float(up) - float(down)) / (2 * step * size) for up, down in zip(slopes(*more), slopes(*less), strict=True)]
        for more, less, size in (
            ((n * (1 + step), dim), (n * (1 - step), dim), n),
            ((n, dim * (1 + step)), (n, dim * (1 - step)), dim),
        )
    ]
    np.testing.assert_allclose(np.asarray(jax.jit(hessian)(n, dim)), differences, rtol=1e-6)


def test_stable_from_small_to_large_dimensions(dtype):
    n = jnp.asarray([2.0, 10.0, 1e3, 1e9], dtype)
    dims = [3, 4, 7.5, 100, 5000, 65536]
    optima = [scale.optimise_scale(n, dim) for dim in dims]
    assert all(f.converged.all() for f in optima)
    # above a few dimensions α*/√d → the Gaussian optimum
    ratio = optima[-1].scale[:3] / 256.0
    np.testing.assert_allclose(ratio, scale.optimal_scale(n[:3]), rtol=1e-3)


@pytest.mark.slow
def test_one_trace_for_every_n_and_every_dimension():
    """The first call compiles; later ones, other in kind and value, do not."""
    n = jnp.asarray(GRID, jnp.float32)
    scale.optimal_scale(n, 32)
    scale.optimal_scale(n)
    lowered = []

    def listen(event, _, **about):
        if event.endswith("jaxpr_to_mlir_module_duration") and about.get("fun_name") == "jit(_optimize)":
            lowered.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    for dim in (64.0, np.float32(128), jnp.asarray(256)):
        scale.optimal_scale(n, dim)
    scale.optimal_scale(GRID)
    scale.optimal_scale(n + 1)
    assert not lowered
    scale.optimal_scale(jnp.arange(3.0, 40.0))  # another shape, of no other test, is another program
    assert lowered


@pytest.mark.slow
def test_batches_agree_with_single_calls(x64):
    n = jnp.asarray([2.0, 40.0, 1e4, 1e9])
    whole = scale.optimal_scale(n, 128)
    np.testing.assert_allclose(whole, jax.vmap(scale.optimal_scale, (0, None))(n, 128), rtol=1e-13)
    np.testing.assert_allclose(whole[3], scale.optimal_scale(1e9, 128), rtol=1e-13)
    assert jax.eval_shape(scale.optimal_scale, n[:, None], jnp.asarray([3.0, 128.0])).shape == (4, 2)


@pytest.mark.slow
def test_one_pass_is_the_stationarity_that_differentiation_finds(x64):
    """On both sides of every change of form: α or √(v² + α²) at 36, v at 36, and far from them."""
    alpha, dim = np.meshgrid([1e-2, 1.0, 12.0, 35.9, 36.1, 150.0, 1e6], [3, 3.5, 5, 34, 73.9, 74.1, 1e3, 65536])
    u, dim = jnp.log(alpha.ravel()), jnp.asarray(dim.ravel())
    expected = log_one_minus_slope(u, jnp.zeros_like(u), dim)
    np.testing.assert_allclose(
        stationarity.stationarity(u, dim, stationarity.debye_at_origin(dim)), expected, rtol=1e-11, atol=1e-14
    )
    u = jnp.asarray([-3.0, 0.0, 1.0])
    expected = log_one_minus_slope(u, jnp.zeros_like(u), None)
    np.testing.assert_allclose(stationarity.stationarity(u, None, None), expected, rtol=1e-14)


@pytest.mark.parametrize("dim", [3, 128, *(pytest.param(dim, marks=pytest.mark.slow) for dim in (5, 20, 70))])
def test_stationarity_matches_arbitrary_precision(dtype, dim):
    alpha = jnp.asarray([0.5, 5.0, 20.0, 40.0, 100.0], dtype)
    dims = jnp.full_like(alpha, dim)
    got = stationarity.stationarity(jnp.log(alpha), dims, stationarity.debye_at_origin(dims))
    for a, value in zip(jnp.exp(jnp.log(alpha)), got, strict=True):
        with mp.workdps(40):
            exact = oracle.cosine_stationarity(mp.mpf(float(a)), dim)
        assert abs(float(value - float(exact))) < 24 * float(jnp.finfo(dtype).eps) * max(1, float(exact))


@pytest.mark.slow
def test_every_search_ends_at_the_optimum(x64):
    """In double precision by the differentiated stationarity, in single precision by the double one."""
    rng = np.random.default_rng(0)
    n, dim = (np.exp(rng.uniform(*np.log(ends), 4000)).astype("float32") for ends in ([2, 1e9], [3, 65536]))
    wide = [jnp.asarray(x, "float64") for x in (n, dim)]
    double, single = scale.optimise_scale(*wide), scale.optimise_scale(n, dim)
    assert double.converged.all() and single.converged.all()
    assert single.scale.dtype == "float32"

    @jax.jit
    def off(u):
        residual = functools.partial(log_one_minus_slope, log_n=jnp.log(wide[0]), dim=wide[1])
        value, slope = jax.jvp(residual, (u,), (jnp.ones_like(u),))
        return value / slope

    allowed = 4 * (4 + 2 * np.log(n.astype(float)))
    # the differentiated form is itself off by as much as 2.3 of what is allowed, where α is near 16 + d/2
    assert (jnp.abs(off(jnp.log(double.scale))) < 4 * allowed * np.finfo("float64").eps).all()
    error = np.asarray(single.scale, "float64") / double.scale - 1
    assert (np.abs(error) < allowed * np.finfo("float32").eps).all()


def test_gaussian_searches_end_and_scales_reach_an_eighth_of_the_largest_number(dtype):
    n = np.geomspace(2, 1e30, 500).astype(dtype)
    optimum = scale.optimise_scale(n)
    assert optimum.converged.all()
    np.testing.assert_allclose(optimum.scale, scale.optimal_scale_exact(n), rtol=16 * float(np.finfo(dtype).eps))
    n = np.asarray([1e18, 1e19, 2e19, 1e25, 4e37], dtype)
    optimum = scale.optimise_scale(n, 3)
    assert optimum.converged.all()
    np.testing.assert_allclose(optimum.scale, n / 2, rtol=100 * float(np.finfo(dtype).eps))


def test_secants_find_roots_from_wrong_slopes_and_say_where_they_fail(x64):
    root_at = jnp.asarray([-7.0, 0.0, 0.3, 40.0])
    solve = jax.jit(lambda slope: roots.rising_root_by_secants(lambda u: jnp.arctan(u - root_at), jnp.ones(4), slope))
    for slope in (0.05, 1.0, 30.0):
        u, _, converged = solve(jnp.full(4, slope))
        assert converged.all()
        np.testing.assert_allclose(u, root_at, atol=1e-14)
    u, _, converged = jax.jit(lambda u: roots.rising_root_by_secants(lambda u: u**3 + u, u, u))(
        jnp.asarray([jnp.nan, 1.0])
    )
    assert converged.tolist() == [False, True]


def test_objective_needs_no_moment_to_be_representable(dtype):
    assert scale.annealed_objective(1e-3, 2, 65536) == pytest.approx(5e-4, rel=1e-5)
    assert np.isfinite(scale.annealed_objective(3e3, 1e9, 65536 * 16))
    assert scale.annealed_objective(100.0, 1e9) == -np.inf  # the value itself is −1e4335
    exact = [2 * (1 - np.exp(4) / 64), 0.5 * (1 - np.exp(0.25) / 64)]
    got = scale.annealed_objective(jnp.asarray([2.0, 0.5], dtype), 64)
    np.testing.assert_allclose(got, exact, rtol=32 * float(jnp.finfo(dtype).eps))


def test_many_keys_leave_the_objective_its_slope_in_their_number(dtype):
    n = jnp.asarray([1e3, 1e9, 1e15], dtype)
    exact = 2 * np.exp(4) / np.asarray(n, float) ** 2  # of 2(1 − e⁴/n)
    rounding = 4 * float(jnp.finfo(dtype).eps) * np.log(1e15)
    slopes = [
        jax.vmap(jax.grad(lambda n: scale.annealed_objective(2.0, n)))(n),
    ]
    np.testing.assert_allclose(slopes[0], exact, rtol=rounding)


def test_laws_are_fitted_in_closed_form(x64):
    n = jnp.asarray([10.0, 100.0, 1000.0])
    alpha = 2.5 * jnp.log(n)
    assert scale.fit_coefficient(n, alpha, "log") == pytest.approx(2.5)
    assert scale.relative_residual(n, alpha, "log") == pytest.approx(0, abs=1e-15)
    phi = jnp.sqrt(jnp.log(n))
    fit, *_ = np.linalg.lstsq(np.asarray(phi)[:, None], np.asarray(alpha), rcond=None)
    assert scale.fit_coefficient(n, alpha, "sqrt_log") == pytest.approx(fit[0])
    misfit = np.linalg.norm(alpha - fit[0] * phi) / np.linalg.norm(alpha)
    assert scale.relative_residual(n, alpha, "sqrt_log") == pytest.approx(misfit)


def test_traced_n_below_two_gives_nan():
    assert np.isnan(jax.jit(scale.optimal_scale)(1.0))
    assert np.isnan(jax.jit(scale.optimal_scale_exact)(1.0))


@pytest.mark.parametrize("dim", [None, 128.0])
def test_derivatives_lower_for_every_platform(dim):
    slope = jax.jit(lambda n: jax.jacrev(scale.optimal_scale)(n, dim))
    lowered = export.export(slope, platforms=("cpu", "cuda", "tpu"))(jax.ShapeDtypeStruct((4,), jnp.float32))
    assert lowered.platforms == ("cpu", "cuda", "tpu")


@pytest.mark.parametrize("v", [0.5, 3.0, 1e3, 1e8])
def test_leading_terms_of_debye_keep_their_digits(dtype, v):
    """C, T and the ratios from S(α) and S(2α), where α is far below v, beside it and far above it."""
    alpha = np.asarray(v * np.logspace(-3, 3, 25), dtype)
    v = np.asarray(v, dtype)
    s_one, s_two = np.hypot(alpha, v), np.hypot(2 * alpha, v)
    got = stationarity._leading(*map(jnp.asarray, (alpha, np.full_like(alpha, v), s_one, s_two)))
    with mp.workdps(60):
        want = []
        for a in map(mp.mpf, alpha.astype(float).tolist()):
            order = mp.mpf(float(v))
            one, two = mp.sqrt(a**2 + order**2), mp.sqrt(4 * a**2 + order**2)
            ratio = ((one + order) / (2 * order)) ** 2 / ((two + order) / (2 * order))
            t = two - 2 * one + order
            want.append([t + order * mp.log(ratio), t, a / (order + one), 2 * a / (order + two)])
    np.testing.assert_allclose(np.transpose(got), np.array(want, float), rtol=16 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e20])
def test_a_misfit_does_not_depend_on_the_size(size):
    n = np.array([10.0, 100.0], np.float32)
    np.testing.assert_allclose(
        float(scale.relative_residual(n, np.full(2, size, np.float32), "log")), 0.316228, rtol=1e-4
    )


@pytest.mark.parametrize(("alpha", "n"), [(1e-8, 2), (1e-5, 3), (0.1, 1e8), (0.5, 1e6), (2.0, 1000.0)])
def test_the_second_derivative_of_the_annealed_objective(dtype, alpha, n):
    """−(6α + 4α³) e^(α²)/n; by way of log α it is a difference of two numbers that are 1/α times as large."""
    second = jax.grad(jax.grad(scale.annealed_objective))(jnp.asarray(alpha, dtype), jnp.asarray(n, dtype))
    right = -(6 * alpha + 4 * alpha**3) * np.exp(alpha**2) / n
    assert second == pytest.approx(right, rel=2e-6)
