import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from rc_jax import sparsity
from tests.oracles import sparsity as oracle

rows = hnp.arrays(
    np.float32,
    st.sampled_from([1, 6, 40]),  # few sizes: each is compiled once
    elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False).map(lambda v: v if abs(v) > 1e-6 else 0.0),
).map(jnp.asarray)
fast = settings(deadline=None, max_examples=30)
EPS = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize("name", oracle.EXACT)
def test_exact_cases(name, dtype):
    weights, exact = oracle.EXACT[name]
    measured = sparsity.sparsity(jnp.asarray(weights, dtype))
    assert measured.dtype == dtype
    assert abs(float(measured) - exact) <= 4 * jnp.finfo(dtype).eps


@fast
@given(rows, st.floats(-30, 30), st.sampled_from([-1, 1]))
def test_scale_and_sign_do_not_matter(row, exponent, sign):
    scaled = jnp.float32(sign * 2.0 ** int(exponent)) * row
    assert abs(sparsity.sparsity(row) - sparsity.sparsity(scaled)) <= 4 * EPS


@fast
@given(rows)
def test_bounds_and_agreement_with_plain_numpy(row):
    measured = float(sparsity.sparsity(row))
    assert row.size**-0.5 * (1 - 8 * EPS) <= measured <= 1 + 8 * EPS
    exact = np.asarray(row, float)
    if np.any(exact):
        expected = np.abs(exact).mean() / np.sqrt(np.square(exact).mean())
        assert abs(measured - expected) <= 4 * np.sqrt(row.size) * EPS


@pytest.mark.parametrize("size", [1e-37, 1e-20, 1e20, 3e38])
def test_no_overflow_or_underflow(size):
    row = jnp.float32(size) * jnp.array([1.0, 0.5, 0.0, 0.25], jnp.float32)
    assert abs(sparsity.sparsity(row) - 1.75 / np.sqrt(4 * 1.3125)) <= 4 * EPS


def test_never_above_one(dtype):
    """Where rounding would let it: rows that are even, or nearly."""
    rows = 1 + 1e-4 * np.random.default_rng(0).normal(size=(1000, 37))
    for each in (rows, np.round(rows, 4), np.full_like(rows, 0.1) * np.arange(1, 1001)[:, None]):
        assert np.all(sparsity.sparsity(jnp.asarray(each.astype(dtype))) <= 1)


@pytest.mark.slow
def test_axis_and_batches(dtype, key):
    a = jax.random.normal(key, (3, 5, 7), dtype)
    for axis in (-3, -2, -1, 0, 1, 2):
        moved = jnp.moveaxis(a, axis, -1)
        np.testing.assert_allclose(sparsity.sparsity(a, axis), sparsity.sparsity(moved), rtol=8 * jnp.finfo(dtype).eps)
    mapped = jax.jit(jax.vmap(sparsity.sparsity))(a)
    np.testing.assert_allclose(mapped, sparsity.sparsity(a), rtol=8 * jnp.finfo(dtype).eps)


def test_bfloat16_follows_its_input():
    measured = sparsity.sparsity(jnp.array([3.0, 4.0], jnp.bfloat16))
    assert measured.dtype == jnp.bfloat16 and abs(float(measured) - 7 / 50**0.5) < 0.004


def test_gradient(x64, key):
    a = jax.random.normal(key, (6,), jnp.float64) + 0.1
    measured = jax.grad(sparsity.sparsity)(a)
    magnitude, n = np.abs(a), a.size
    value = magnitude.mean() / np.sqrt((magnitude**2).mean())
    exact = np.sign(a) * value * (1 / magnitude.sum() - magnitude / (magnitude**2).sum())
    np.testing.assert_allclose(measured, exact, atol=1e-14)
    assert n and abs(float(measured @ a)) < 1e-15  # scale-free: no gradient along a itself
    np.testing.assert_array_equal(jax.grad(sparsity.sparsity)(jnp.zeros(3)), 0)


@fast
@given(rows)
def test_norm_ratio_lies_between_its_bounds(row):
    measured = float(sparsity.norm_ratio(row))
    assert row.size**-0.5 * (1 - 8 * EPS) <= measured <= 1 + 8 * EPS  # the published maximum √d is not reached
    exact = np.asarray(row, float)
    if np.any(exact):
        expected = np.linalg.norm(exact) / np.abs(exact).sum()
        assert abs(measured - expected) <= 4 * np.sqrt(row.size) * EPS


def test_from_moments(dtype):
    first, second = np.asarray([0.5, 2.0, 0.0], dtype), np.asarray([1.0, 4.0, 3.0], dtype)
    measured = sparsity.from_moments(first, second)
    assert measured.dtype == dtype
    np.testing.assert_allclose(measured, [0.5, 1.0, 0.0])
    draws = np.random.default_rng(0).normal(size=1000).astype(dtype)
    moments = np.mean(np.abs(draws)), np.mean(draws * draws)
    np.testing.assert_allclose(sparsity.from_moments(*moments), sparsity.sparsity(jnp.asarray(draws)), rtol=1e-6)
    assert np.all(sparsity.from_moments(np.ones(3, dtype), np.ones(3, dtype)) == 1)
    assert jax.jit(sparsity.from_moments)(1.0, -1.0) is not None  # a traced number passes the checks
