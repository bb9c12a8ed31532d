"""Bessel and Lambert functions against arbitrary precision, over the whole range that attention needs."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import special
from tests.oracles import special as oracle

DIMENSIONS = (1, 2, 3, 4, 5, 8, 32, 128, 1024, 65536)
ARGUMENTS = (2.0**-10, 0.125, 1.0, 3.0, 17.0, 100.0, 3e3, 1e5)  # x²/4 is exact, in float32 too


@functools.cache
def reference(order: float, x: float) -> oracle.Bessel:
    return oracle.bessel(order, x)


def grid(dtype):
    """Every order beside every argument."""
    order = np.repeat([d / 2 - 1 for d in DIMENSIONS], len(ARGUMENTS)).astype(dtype)
    return order, np.tile(ARGUMENTS, len(DIMENSIONS)).astype(dtype)


def units(got, exact, scale=None):
    """Error in units of rounding, relative to the exact value or to `scale` where terms of that size cancel."""
    eps = float(np.finfo(got.dtype).eps)
    floor = mp.mpf(10) ** -30
    scale = [abs(e) for e in exact] if scale is None else scale
    return (
        np.array([float(abs(mp.mpf(float(g)) - e) / (s + floor)) for g, e, s in zip(got, exact, scale, strict=True)])
        / eps
    )


def points(dtype):
    order, x = grid(dtype)
    return order, x, [reference(float(v), float(a)) for v, a in zip(order, x, strict=True)]


def test_log_hyp0f1_and_its_derivatives_are_right_to_rounding(dtype):
    order, x, exact = points(dtype)
    b, z = jnp.asarray(order) + 1, jnp.asarray(x) ** 2 / 4
    value = jax.jit(special.log_hyp0f1)(b, z)
    in_b, in_z = jax.jit(jax.vmap(jax.grad(special.log_hyp0f1, argnums=(0, 1))))(b, z)
    second = jax.jit(jax.vmap(jax.grad(jax.grad(special.log_hyp0f1, argnums=1), argnums=1)))(b, z)
    assert value.dtype == dtype
    assert units(value, [e.log_hyp0f1 for e in exact]).max() < 10
    assert units(in_z, [e.hyp0f1_z for e in exact]).max() < 10
    assert units(second, [e.hyp0f1_zz for e in exact]).max() < 64
    assert units(in_b, [e.hyp0f1_b for e in exact]).max() < 64


def test_log_bessel_and_ratio_are_right(dtype):
    order, x, exact = points(dtype)
    terms = [abs(e.log_i) + abs(v) * abs(mp.log(a / 2)) + a + 1 for e, v, a in zip(exact, order, x, strict=True)]
    scaled = [e.log_i - mp.mpf(float(a)) for e, a in zip(exact, x, strict=True)]
    assert units(special.log_bessel_i(order, x), [e.log_i for e in exact], terms).max() < 10
    assert units(special.log_bessel_ie(order, x), scaled, terms).max() < 10
    assert units(special.bessel_ratio(order, x), [e.ratio for e in exact]).max() < 10
    slope = jax.jit(jax.vmap(jax.grad(special.bessel_ratio, argnums=1)))(order, x)
    assert (
        units(
            slope, [e.ratio_x for e in exact], [abs(e.ratio_x) + e.ratio / x for e, x in zip(exact, x, strict=True)]
        ).max()
        < 128
    )


@pytest.mark.slow
def test_derivatives_of_log_bessel(dtype):
    order, x, exact = points(dtype)
    in_order, in_x = jax.jit(jax.vmap(jax.grad(special.log_bessel_i, argnums=(0, 1))))(order, x)
    first = [mp.mpf(float(v)) / mp.mpf(float(a)) + e.ratio for e, v, a in zip(exact, order, x, strict=True)]
    sizes = [abs(mp.mpf(float(v))) / mp.mpf(float(a)) + e.ratio for e, v, a in zip(exact, order, x, strict=True)]
    assert units(in_x, first, sizes).max() < 64
    sizes = [1 + abs(mp.log(a / 2)) + mp.log(1 + v + 1) for v, a in zip(order, x, strict=True)]
    assert units(in_order, [e.log_i_order for e in exact], sizes).max() < 128


@pytest.mark.slow
def test_scaled_log_bessel_keeps_its_digits(x64):
    """At order ½ the function is elementary: log((1 − e^{−2x})/√(2πx))."""
    x = jnp.logspace(1.5, 12, 50)
    exact = -0.5 * jnp.log(2 * jnp.pi * x)
    assert jnp.abs(special.log_bessel_ie(0.5, x) - exact).max() < 64 * jnp.finfo(x.dtype).eps
    slope = jax.jit(jax.vmap(jax.grad(special.log_bessel_ie, argnums=1), (None, 0)))(0.5, x)
    assert jnp.abs(slope * x * 2 + 1).max() < 1e-13


def test_orders_and_arguments_whose_squares_overflow():
    """log I_v(v) → v(√2 − log(1 + √2)) and I_{v+1}(v)/I_v(v) → √2 − 1 for large v; log I_v(x) → x for larger x."""
    v = jnp.asarray([1e20, 1e30], jnp.float32)
    np.testing.assert_allclose(special.log_bessel_i(v, v), 0.5328399753535 * v, rtol=2e-5)  # two terms 90 v cancel
    np.testing.assert_allclose(special.bessel_ratio(v, v), 2**0.5 - 1, rtol=1e-6)
    np.testing.assert_allclose(special.log_bessel_i(1.0, v), v, rtol=1e-6)
    np.testing.assert_allclose(special.log_hyp0f1(v, v), 1, rtol=1e-6)


def test_arguments_whose_half_underflows():
    x = np.float32(2e-38)
    for order in (0.0, 0.5, 1.0):
        for function in (special.log_bessel_i, special.log_bessel_ie):
            exact = order * (np.log(float(x)) - np.log(2)) - float(mp.loggamma(order + 1))
            np.testing.assert_allclose(function(np.float32(order), x), exact, rtol=1e-6, atol=1e-6)


def test_elementary_orders(dtype):
    z = jnp.linspace(0, 50, 200, dtype=dtype)
    root = 2 * jnp.sqrt(z)
    eps = float(jnp.finfo(dtype).eps)
    assert (jnp.abs(special.log_hyp0f1(0.5, z) - jnp.log(jnp.cosh(root))) / (1 + root)).max() < 10 * eps
    assert special.log_hyp0f1(1.5, 0.0) == 0
    assert special.bessel_ratio(3.0, 0.0) == 0
    assert jax.grad(special.log_hyp0f1, argnums=1)(1.5, 0.0) == pytest.approx(1 / 1.5, rel=4 * eps)
    assert jax.grad(special.bessel_ratio, argnums=1)(3.0, 0.0) == pytest.approx(1 / 8, rel=4 * eps)


def test_the_order_has_a_true_derivative_not_zero(x64):
    exact = reference(63.0, 100.0).hyp0f1_b
    assert jax.grad(special.log_hyp0f1)(64.0, 2500.0) == pytest.approx(float(exact), rel=1e-13)
    assert jax.jvp(special.log_hyp0f1, (64.0, 2500.0), (1.0, 0.0))[1] == pytest.approx(float(exact), rel=1e-13)


@pytest.mark.slow
def test_reverse_forward_and_batched_derivatives_agree(x64):
    b, z = jnp.asarray([1.5, 64.0]), jnp.asarray([2.0, 900.0])
    forward = jax.jit(jax.vmap(jax.jacfwd(special.log_hyp0f1, argnums=(0, 1))))(b, z)
    reverse = jax.jit(jax.vmap(jax.jacrev(special.log_hyp0f1, argnums=(0, 1))))(b, z)
    for one, other in zip(forward, reverse, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)
    mixed = jax.jit(jax.vmap(jax.hessian(special.log_hyp0f1, argnums=(0, 1))))(b, z)
    np.testing.assert_allclose(mixed[0][1], mixed[1][0], rtol=1e-11)


def lambert_arguments(dtype):
    near = -np.exp(-1) + 0.3 * np.logspace(-16, -1, 50)
    big = np.logspace(-30, 30 if dtype == "float32" else 300, 120)
    x = np.concatenate([near, -0.9 * np.logspace(-30, -0.5, 40), big]).astype(dtype)
    return x[x.astype(float) > -0.36787944117144232]


def test_lambert_w_and_two_derivatives(dtype):
    x = lambert_arguments(dtype)
    value = jax.jit(special.lambert_w0)(x)
    first = jax.jit(jax.vmap(jax.grad(special.lambert_w0)))(x)
    second = jax.jit(jax.vmap(jax.grad(jax.grad(special.lambert_w0))))(x)
    exact = [oracle.lambert_w0(float(a)) for a in x]
    assert units(value, [e[0] for e in exact]).max() < 4
    assert units(first, [e[1] for e in exact], [abs(e[1]) + 1e-36 for e in exact]).max() < 8
    held = [i for i, e in enumerate(exact) if 1e-30 < abs(e[2]) < 1e30]
    assert units(second[np.array(held)], [exact[i][2] for i in held]).max() < 32


def test_lambert_w_at_its_ends(dtype):
    assert special.lambert_w0(jnp.zeros((), dtype)) == 0
    assert special.lambert_w0(jnp.asarray(-np.exp(-1), dtype)) == -1
    assert jax.grad(special.lambert_w0)(jnp.zeros((), dtype)) == 1
    assert np.isnan(jax.jit(special.lambert_w0)(jnp.asarray(-0.4, dtype)))


def test_lambert_of_an_exponential(dtype):
    t = np.concatenate([-np.logspace(-2, 1.9, 30), np.logspace(-2, 5, 40)]).astype(dtype)
    exact = [oracle.lambert_w0_exp(float(a)) for a in t]
    assert (units(special.lambert_w0_exp(t), exact) / np.maximum(1, -t)).max() < 4
    slope = jax.jit(jax.vmap(jax.grad(special.lambert_w0_exp)))(t)
    assert (units(slope, [w / (1 + w) for w in exact]) / np.maximum(1, -t)).max() < 4
    assert special.lambert_w0_exp(jnp.asarray(-1e5, dtype)) == 0
    largest = jnp.finfo(dtype).max
    assert special.lambert_w0_exp(largest) == largest  # less log t, which is no digit of it


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: special.log_hyp0f1(0.2, 1.0), ValueError, "`b` must be >= 0.5, got 0.2"),
        (lambda: special.log_hyp0f1(1.5, -1.0), ValueError, "`z` must be >= 0, got -1"),
        (lambda: special.log_hyp0f1(1.5, "1"), TypeError, "`z` must be a real number"),
        (lambda: special.log_bessel_i(-1.0, 1.0), ValueError, "`order` must be >= -0.5"),
        (lambda: special.log_bessel_i(1.0, 0.0), ValueError, "`x` must be > 0"),
        (lambda: special.log_bessel_ie(1.0, -2.0), ValueError, "`x` must be > 0"),
        (lambda: special.bessel_ratio(1.0, -2.0), ValueError, "`x` must be >= 0"),
        (lambda: special.bessel_ratio(jnp.ones(3), jnp.ones(2)), ValueError, "must broadcast together"),
        (lambda: special.lambert_w0(-0.4), ValueError, "`x` must be >= -1/e"),
        (lambda: special.lambert_w0(1j), TypeError, "`x` must be a real number"),
        (lambda: special.lambert_w0_exp(jnp.inf), ValueError, "`t` must be finite"),
        (lambda: special.lambert_w0(1e39), ValueError, "`x` must be at most 3.403e.38 in size, to fit float32"),
    ],
)
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_traced_arguments_outside_the_domain_give_nan():
    assert np.isnan(jax.jit(special.log_hyp0f1)(0.2, 1.0))
    assert np.isnan(jax.jit(special.log_bessel_i)(1.0, -1.0))
    assert np.isnan(jax.jit(special.bessel_ratio)(1.0, -1.0))
