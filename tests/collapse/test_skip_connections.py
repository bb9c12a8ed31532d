"""Correlation under uniform attention with skips: closed form against recursion, Monte Carlo and wide networks."""

import chex
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import attention, collapse, network


@pytest.mark.parametrize("strength", [0.0, 1e-3, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("start", [1e-6, 0.2, 0.999])
def test_closed_form_against_the_formula_in_many_digits(dtype, strength, start):
    start, strength = jnp.asarray(start, dtype), jnp.asarray(strength, dtype)
    for depth in (0, 1, 7, 40):
        with mp.workdps(60):
            k = (1 + mp.mpf(float(strength)) ** 2) ** depth
            rho = mp.mpf(float(start))
            wanted = float(k * rho / (k * rho + 1 - rho))
        got = collapse.uniform_correlation(start, strength, depth)
        assert got.dtype == dtype
        # log k is rounded at its own size; 1 − ρ is what sigmoid keeps at the other end.
        assert float(got) == pytest.approx(wanted, rel=(8 + 4 * depth) * float(jnp.finfo(dtype).eps))


def test_closed_form_is_the_recursion_of_gram_matrices(x64):
    """G ← G + a² P G Pᵀ with P = 11ᵀ/n, what the mean over independent values gives, step by step in NumPy."""
    n, strength, generator = 7, 0.6, np.random.default_rng(0)
    x = generator.normal(size=(n, 5))
    gram, uniform = x @ x.T, np.full((n, n), 1 / n)
    start = 1 - np.trace(gram - uniform @ gram) / np.trace(gram)
    for depth in range(1, 30):
        gram = gram + strength**2 * uniform @ gram @ uniform.T
        share = gram.mean() / (np.trace(gram) / n)
        assert float(collapse.uniform_correlation(start, strength, depth)) == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize("strength", [0.5, pytest.param(1.0, marks=pytest.mark.slow)])
def test_expectations_of_narrow_networks_agree_in_standard_errors(key, strength):
    """E‖X_L‖² and E‖res(X_L)‖² at width 8: the ratio is the closed form, though no single network has it."""
    depth, count, n, d = 3, 8000, 5, 8
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=d, heads=2), depth=depth, skip=True)
    x = jax.random.normal(jax.random.fold_in(key, 0), (n, d)) + 0.5

    def sizes(key):
        layers = network.init(key, spec)
        weights = layers.attention._replace(query=jnp.zeros_like(layers.attention.query))
        out = network.apply(network.scale_branches(layers._replace(attention=weights), strength), x, spec)
        return jnp.sum(jnp.square(out)), jnp.sum(jnp.square(collapse.residual(out)))

    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.fold_in(key, 1), jnp.arange(count))
    total, rest = (
        np.asarray(each, float) for each in jax.jit(lambda keys: jax.lax.map(sizes, keys, batch_size=500))(keys)
    )
    start = 1 - float(collapse.frobenius(collapse.residual(x)) / collapse.frobenius(x)) ** 2
    # The residual passes every layer as it is; the mean token is what grows.
    np.testing.assert_allclose(rest, float(jnp.sum(jnp.square(collapse.residual(x)))), rtol=1e-4)
    expected = float(collapse.uniform_correlation(start, strength, depth))
    wanted = rest.mean() / (1 - expected)
    assert abs(total.mean() - wanted) < 5 * total.std(ddof=1) / np.sqrt(count)


def test_a_wide_network_has_it_by_itself(key):
    depth, d = 6, 1024
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=d, heads=4), depth=depth, skip=True)
    x = jax.random.normal(jax.random.fold_in(key, 0), (4, d))
    layers = network.scale_branches(network.random_layers(jax.random.fold_in(key, 1), spec), 0.7)
    states = network.hidden_states(layers, x, spec, scale=1e-30)  # logits of 0: uniform attention
    rest = jax.vmap(lambda state: collapse.frobenius(collapse.residual(state)) / collapse.frobenius(state))(states)
    measured = 1 - jnp.square(rest)
    wanted = collapse.uniform_correlation(measured[0], 0.7, jnp.arange(depth + 1.0))
    np.testing.assert_allclose(measured, wanted, atol=6 / d**0.5 * 0.25)


def test_limits(dtype):
    start = jnp.asarray([0.0, 0.1, 1.0], dtype)
    limit = collapse.uniform_correlation_limit(start, 1.5)
    assert limit.dtype == dtype
    deep = collapse.uniform_correlation(start, 1.5 / 1e3, 1e6)
    np.testing.assert_allclose(limit, deep, rtol=1e-4)
    np.testing.assert_array_equal(limit[jnp.array([0, 2])], [0, 1])
    k = np.exp(2.25)
    assert float(limit[1]) == pytest.approx(k * 0.1 / (k * 0.1 + 0.9), rel=1e-5)
    # A constant strength ends at 1, one of c/L where it started.
    assert float(collapse.uniform_correlation(0.1, 1.0, 200)) == 1
    assert float(collapse.uniform_correlation(0.1, 1e-4, 1e4)) == pytest.approx(0.1, rel=1e-3)


def test_one_trace_serves_every_number_and_shape_broadcasts():

    @jax.jit
    @chex.assert_max_traces(n=1)
    def value(rho, a, depth):
        return collapse.uniform_correlation(rho, a, depth)

    assert [float(value(0.5, a, 3.0)) > 0.5 for a in (0.1, 0.2, 0.3)] == [True] * 3
    assert collapse.uniform_correlation(jnp.full((2, 1), 0.5), jnp.ones(3), 2).shape == (2, 3)
    assert float(jax.grad(collapse.uniform_correlation)(0.5, 0.0, 2.0)) == pytest.approx(1)


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    with pytest.raises(ValueError, match="`correlation` must be >= 0 and <= 1"):
        collapse.uniform_correlation(1.5, 1.0, 3)
    with pytest.raises(ValueError, match="`depth` must be >= 0"):
        collapse.uniform_correlation(0.5, 1.0, -1)
    with pytest.raises(ValueError, match="`strength` must be finite"):
        collapse.uniform_correlation_limit(0.5, float("inf"))
    with pytest.raises(TypeError, match="`strength` must be a real number"):
        collapse.uniform_correlation(0.5, "1", 3)
    with pytest.raises(ValueError, match="shapes of the arguments must broadcast"):
        collapse.uniform_correlation(jnp.full(2, 0.5), jnp.ones(3), 1)


def test_growth_of_correlation_has_a_derivative_at_both_ends_and_a_limit():
    slope = jax.grad(collapse.uniform_correlation)
    np.testing.assert_allclose([float(slope(0.0, 1.0, 3.0)), float(slope(1.0, 1.0, 3.0))], [8, 1 / 8], rtol=1e-5)
    assert float(collapse.uniform_correlation(0.0, 1e20, 2.0)) == 0
    assert float(collapse.uniform_correlation(0.5, 1e20, 2.0)) == 1
    assert float(collapse.uniform_correlation_limit(0.0, 1e20)) == 0
    np.testing.assert_allclose(float(jax.grad(collapse.uniform_correlation_limit)(0.0)), np.e, rtol=1e-5)


@pytest.mark.parametrize(
    ("start", "strength", "depth"),
    [
        (0.0, 1.0, 24.0),
        (0.25, 1.0, 24.0),
        (1 / 16, 1.0, 48.0),
        (0.25, 1.0, 64.0),
        (0.999999, -2.0, 12.0),
        (1.0, 1.0, 48.0),
        (1e-20, 1.0, 100.0),
        (1e-30, 1000.0, 12.0),
        (0.3, 1e-4, 2.0),
    ],
)
def test_derivatives_keep_their_digits(dtype, start, strength, depth):
    """In all three arguments, and the second one in ρ₀: of order 1/k and smaller, where parts of order 1 cancelled."""
    at = [jnp.asarray(x, dtype) for x in (start, strength, depth)]
    with mp.workdps(60):
        rho, a, layers = (mp.mpf(float(x)) for x in at)
        k = (1 + a * a) ** layers
        whole = k * rho + 1 - rho
        by_log_k = rho * (1 - rho) * k / whole**2
        exact = [k / whole**2, by_log_k * 2 * a * layers / (1 + a * a), by_log_k * mp.log1p(a * a)]
        second = -2 * k * (k - 1) / whole**3
        rtol = (16 + 8 * float(mp.log(k))) * float(jnp.finfo(dtype).eps)
    slopes = jax.jit(jax.grad(collapse.uniform_correlation, (0, 1, 2)))(*at)
    np.testing.assert_allclose(slopes, [float(x) for x in exact], rtol=rtol, atol=1e-37)
    if abs(second) < 1e37:
        bend = jax.jit(jax.grad(jax.grad(collapse.uniform_correlation)))(*at)
        np.testing.assert_allclose(bend, float(second), rtol=2 * rtol)
    limit = collapse.uniform_correlation_limit
    c = jnp.asarray(min(float(mp.sqrt(mp.log(k))), 8), dtype)
    with mp.workdps(60):
        k = mp.exp(mp.mpf(float(c)) ** 2)
        exact = float(k / (k * rho + 1 - rho) ** 2)
    np.testing.assert_allclose(jax.grad(limit)(at[0], c), exact, rtol=1.2 * rtol)
