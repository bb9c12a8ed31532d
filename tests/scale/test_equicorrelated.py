"""Equicorrelated tokens: explicit vectors, arbitrary precision from counted pairs, limits, derivatives, bad input."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import attention, scale
from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.scale import equicorrelated

CASES = [(0.1, 0.5), (0.7, 0.0), (0.5, 0.3), (1.5, 0.3), (2.0, 0.5), (5.0, 0.9), (30.0, 0.1)]

ATTENTION = jax.jit(
    lambda params, x, spec, beta: (
        attention.attention_weights(params, x, spec, scale=beta),
        attention.attend(params, x, spec, scale=beta),
    ),
    static_argnums=2,
)


def weights(gamma, rho, n):
    """Attention to itself and to each other token, 50 digits or more."""
    gamma, rho, n = mp.mpf(gamma), mp.mpf(rho), mp.mpf(n)
    beta = gamma * mp.log(n)
    own, other = mp.exp(beta), mp.exp(rho * beta)
    total = own + (n - 1) * other
    return own / total, other / total


def gram(gamma, rho, n):
    """Inner products of outputs, pair by pair of attended tokens: ρ plus 1 − ρ for each that is met twice."""
    own, other = weights(gamma, rho, n)
    rho, n = mp.mpf(rho), mp.mpf(n)
    squared = rho + (1 - rho) * (own**2 + (n - 1) * other**2)
    inner = rho + (1 - rho) * (2 * own * other + (n - 2) * other**2)
    return squared, inner, inner / squared


def gradient(gamma, rho, n):
    own, other = weights(gamma, rho, n)
    return mp.mpf(gamma) * mp.log(n) * (1 - own**2 - (mp.mpf(n) - 1) * other**2)


@pytest.mark.parametrize(("gamma", "rho"), CASES)
def test_against_attention_on_explicit_vectors(x64, gamma, rho):
    n = 12
    shared, own = np.full((n, 1), rho**0.5), (1 - rho) ** 0.5 * np.eye(n)
    x = jnp.asarray(np.concatenate([own, shared, np.zeros((n, 3))], axis=1))
    spec = AttentionSpec(d_model=n + 4)
    one = jnp.eye(n + 4)[None]
    params = AttentionParams(one, one, one, one)
    beta = gamma * np.log(n)
    rows, out = (np.asarray(each) for each in ATTENTION(params, x, spec, beta))
    rows = rows[0]
    got, exact = equicorrelated.outputs(gamma, rho, n), out @ out.T
    np.testing.assert_allclose(got.squared_length, exact[3, 3], rtol=1e-12)
    np.testing.assert_allclose(got.inner_product, exact[2, 7], rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(got.similarity, exact[2, 7] / exact[2, 2], rtol=1e-11, atol=1e-15)
    norm = np.asarray(scale.gradient_norm(x @ x.T, beta))
    with mp.workdps(60):
        np.testing.assert_allclose(norm, float(gradient(gamma, rho, n)), rtol=1e-9, atol=1e-25)


@pytest.mark.parametrize("n", ["2", "3", "1024", "1e9", "1e30", "1e300"])
def test_against_many_digits(x64, n):
    with mp.workdps(700):
        for gamma, rho in [(0.0, 0.5), *CASES]:
            squared, inner, cosine = gram(gamma, rho, n)
            got = equicorrelated.outputs(gamma, rho, float(n))
            tolerance = 1e-13 * (10 + gamma * float(mp.log(n)))  # a logit's own rounding
            assert got.squared_length == pytest.approx(float(squared), rel=tolerance, abs=1e-300)
            assert got.inner_product == pytest.approx(float(inner), rel=tolerance, abs=1e-300)
            assert got.similarity == pytest.approx(float(cosine), rel=tolerance, abs=1e-300)


@pytest.mark.parametrize("n", [2.0, 50.0, 1024.0, 1e30])
@pytest.mark.parametrize("rho", [0.0, 1e-6, 0.3, 0.9])
def test_half_way_point_and_width_against_many_digits(x64, n, rho):
    with mp.workdps(60):
        got = equicorrelated.critical_gamma(rho, n)
        half = mp.findroot(lambda g: gram(g, rho, n)[2] - (1 + mp.mpf(rho)) / 2, mp.mpf(float(got)))
        assert got == pytest.approx(float(half), rel=1e-13)
        width = -(1 - mp.mpf(rho)) / mp.diff(lambda g: gram(g, rho, n)[2], half)
    assert equicorrelated.transition_width(rho, n) == pytest.approx(float(width), rel=1e-12)


@pytest.mark.parametrize("n", [2.0, 3.0, 1024.0, 1e9, 1e300])
def test_largest_gradient_against_many_digits(x64, n):
    got = equicorrelated.optimal_gamma(0.4, n)
    with mp.workdps(60):
        unit = 0.6 * mp.log(n)  # x at γ = 1: in x = log n + O(log log n) the peak is as wide for every n
        slope = lambda x: mp.diff(lambda y: gradient(y / unit, 0.4, n), x)  # noqa: E731
        exact = mp.findroot(slope, float(got) * unit, tol=1e-30) / unit
    assert got == pytest.approx(float(exact), rel=1e-12)
    values = [gradient(factor * float(got), 0.4, n) for factor in (0.97, 1.0, 1.03)]
    assert values[1] > values[0] and values[1] > values[2]
    other = equicorrelated.optimal_gamma(0.0, n)
    assert other == pytest.approx(0.6 * float(got), rel=1e-13)  # the same x for every ρ


def test_limits_of_many_tokens(x64):
    """Steps, half-way points and widths approach their limits like 1/log n."""
    rho = jnp.asarray([0.01, 0.3, 0.5, 0.9])
    step = equicorrelated.critical_gamma(rho)
    np.testing.assert_allclose(step, 1 / (1 - rho), rtol=1e-15)
    for side, limit in ((0.98, jnp.ones(4)), (1.02, rho), (1.0, 4 * rho / (1 + 3 * rho))):
        similarity = equicorrelated.outputs(side * step, rho, 1e300).similarity
        np.testing.assert_allclose(similarity, limit, atol=1e-3)
        np.testing.assert_allclose(equicorrelated.similarity_limit(side * step, rho), limit, rtol=1e-15)
    a = jnp.sqrt(rho / (1 + rho))
    log_n = 300 * np.log(10.0)
    offset = ((1 - rho) * equicorrelated.critical_gamma(rho, 1e300) - 1) * log_n
    np.testing.assert_allclose(offset, jnp.log(a / (1 - a)), rtol=1e-10)
    width = 2 / ((1 - rho**2) * (1 - a) * log_n)
    np.testing.assert_allclose(equicorrelated.transition_width(rho, 1e300), width, rtol=1e-12)


def test_orthogonal_tokens_part_at_one_half(x64):
    assert equicorrelated.critical_gamma(0.0) == 0.5
    np.testing.assert_array_equal(equicorrelated.similarity_limit(jnp.asarray([0.49, 0.5, 0.51]), 0.0), [1, 0.5, 0])
    n = 1e200
    similarity = equicorrelated.outputs(jnp.asarray([0.49, 0.5, 0.51]), 0.0, n).similarity
    np.testing.assert_allclose(similarity, [1, 0.5, 0], atol=2e-4)
    assert equicorrelated.critical_gamma(0.0, n) == pytest.approx(0.5, abs=1e-12)
    assert equicorrelated.critical_gamma(n**-0.5, n) == pytest.approx(0.75, abs=1e-3)  # ρ = n^{−s}: γ = 1 − s/2


@pytest.mark.slow
@pytest.mark.parametrize("largest", [8e37, 1e300])
def test_values_and_derivatives_are_finite(largest):
    """In the whole range of either dtype, orthogonal tokens and uniform attention included."""
    with jax.enable_x64(largest > 1e100):
        kind = jnp.float64 if largest > 1e100 else jnp.float32
        gamma, rho, n = (
            jnp.asarray(each, kind).ravel()
            for each in np.meshgrid([0, 0.3, 0.5, 1, 2, 9, 1e3], [0, 1e-30, 1e-5, 0.5, 0.999], [2, 1e3, 1e19, largest])
        )
        similarity = jax.jit(jax.vmap(jax.value_and_grad(lambda *a: equicorrelated.outputs(*a).similarity, (0, 1, 2))))
        value, slopes = similarity(gamma, rho, n)
        assert all(np.isfinite(each).all() for each in (value, *slopes))
        assert (value >= rho).all() and (value <= 1).all()
        for function in (equicorrelated.critical_gamma, equicorrelated.transition_width, equicorrelated.optimal_gamma):
            value, slopes = jax.jit(jax.vmap(jax.value_and_grad(function, (0, 1))))(rho, n)
            assert value.dtype == kind
            assert all(np.isfinite(each).all() for each in (value, *slopes))


@pytest.mark.parametrize(
    "function",
    [
        lambda a: equicorrelated.outputs(*a).similarity,
        lambda a: equicorrelated.critical_gamma(*a[1:]),
        lambda a: equicorrelated.transition_width(*a[1:]),
        lambda a: equicorrelated.optimal_gamma(*a[1:]),
    ],
)
def test_derivatives_match_differences(x64, function):
    at, steps = jnp.asarray([1.8, 0.4, 500.0]), jnp.asarray([1e-5, 1e-5, 1e-3])
    ends = jax.jit(jax.vmap(function))(jnp.concatenate([at[None] + jnp.diag(steps), at[None] - jnp.diag(steps)]))
    reverse, forward = jax.jit(lambda a: (jax.grad(function)(a), jax.jacfwd(function)(a)))(at)
    np.testing.assert_allclose(reverse, (ends[:3] - ends[3:]) / (2 * steps), rtol=1e-7, atol=1e-15)
    np.testing.assert_allclose(forward, reverse, rtol=1e-12)


def test_traced_n_below_two_gives_nan():
    assert np.isnan(jax.jit(lambda n: equicorrelated.outputs(1.0, 0.5, n).similarity)(1.0))
    assert np.isnan(jax.jit(lambda n: equicorrelated.optimal_gamma(0.5, n))(1.0))
