"""Factors of Gram matrices and spectral norms against NumPy in double precision, also where they nearly cancel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax._numerics import linear_algebra


@pytest.fixture(params=["products", "reflections"])
def factor(request):
    """T of A = T Q, as CPUs make it and as other devices do."""
    made = linear_algebra.by_products if request.param == "products" else linear_algebra.by_reflections
    return jax.jit(lambda rows: made(rows)[0])


@pytest.mark.parametrize("n", [1, 9, pytest.param(40, marks=pytest.mark.slow)])
def test_cholesky_and_inverse(dtype, n):
    rows = np.random.default_rng(0).normal(size=(n, 3 * n)).astype(dtype)
    gram = rows @ rows.T
    both = jax.jit(linear_algebra.cholesky)(jnp.asarray(gram), jnp.eye(n, dtype=dtype))
    lower, inverse = (np.asarray(matrix).astype(float) for matrix in both)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(lower, np.linalg.cholesky(gram.astype(float)), atol=60 * eps * np.sqrt(gram.max()))
    np.testing.assert_allclose(inverse @ lower, np.eye(n), atol=60 * eps)
    assert np.array_equal(lower, np.tril(lower))


@pytest.mark.parametrize("kind", ["plain", "equal", "line", "near", "pairs", "zero", "sizes"])
@pytest.mark.parametrize(
    "shape", [(2, 3), *(pytest.param(shape, marks=pytest.mark.slow) for shape in ((5, 4000), (40, 90)))]
)
def test_factor_keeps_inner_products(dtype, factor, kind, shape):
    rng = np.random.default_rng(0)
    for _ in range(10):
        a = rng.normal(size=shape)
        if kind == "equal":
            a[:] = a[:1]
        elif kind == "line":
            a = rng.normal(size=(shape[0], 1)) * a[:1]
        elif kind == "near":
            a = a[:1] + 10.0 ** rng.uniform(-9, 0) * a
        elif kind == "pairs":  # first rows that differ as later rows point
            half = shape[0] // 2
            a[:half] = rng.normal(size=shape[1]) + 10.0 ** rng.uniform(-8, -2, size=(half, 1)) * a[half : 2 * half]
        elif kind == "zero":
            a[1] = 0
        elif kind == "sizes":
            a = a * 10.0 ** rng.uniform(-15, 15, size=(shape[0], 1))
        a = a.astype(dtype)
        lower = np.asarray(factor(jnp.asarray(a))).astype(float)
        assert np.array_equal(lower, np.tril(lower)) and np.all(np.isfinite(lower))
        a = a.astype(float)
        lengths = np.linalg.norm(a, axis=1) + (np.linalg.norm(a, axis=1) == 0)
        error = np.abs(lower @ lower.T - a @ a.T) / lengths[:, None] / lengths
        assert error.max() < 4 * np.sqrt(sum(shape)) * np.finfo(dtype).eps


def test_factor_resolves_differences_far_below_the_root_of_a_rounding(factor):
    """Rows that differ by 10⁻³ of their size have a Gram matrix that float32 cannot tell from rank one to a tenth."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=(1, 60)) + 1e-3 * rng.normal(size=(8, 60))
    a = a.astype("float32")
    lower = np.asarray(factor(jnp.asarray(a))).astype(float)
    exact = np.linalg.svd(a.astype(float), compute_uv=False)
    np.testing.assert_allclose(np.linalg.svd(lower, compute_uv=False), exact, rtol=2e-3)


@pytest.mark.parametrize("kind", ["plain", "equal", "zero", "sizes"])
def test_rough_factor_moves_inner_products_by_a_shift_of_the_lengths(dtype, kind):
    a = np.random.default_rng(2).normal(size=(40, 90))
    if kind == "equal":
        a[:] = a[:1]
    elif kind == "zero":
        a[1] = 0
    elif kind == "sizes":
        a = a * 10.0 ** np.random.default_rng(3).uniform(-15, 15, size=(40, 1))
    a = a.astype(dtype)
    lower = np.asarray(jax.jit(lambda rows: linear_algebra.gram_factor(rows, True))(jnp.asarray(a))).astype(float)
    assert np.array_equal(lower, np.tril(lower)) and np.all(np.isfinite(lower))
    a = a.astype(float)
    gram, eps = a @ a.T, float(np.finfo(dtype).eps)
    shift = (64 + 4 * 40 + 90**0.5) * eps
    lengths = np.sqrt(np.diag(gram)) + (np.diag(gram) == 0)
    assert np.array_equal(np.diag(gram) == 0, np.all(lower == 0, axis=1))
    expected = (gram + shift * np.diag(np.diag(gram))) / (1 + shift)
    assert (np.abs(lower @ lower.T - expected) / lengths[:, None] / lengths).max() < 30 * eps


@pytest.mark.parametrize("regularised", [False, True])
@pytest.mark.parametrize("columns", [pytest.param(20, marks=pytest.mark.slow), 4])
def test_derivative_of_inner_products_through_the_factor(x64, columns, regularised):
    """Of T Tᵀ, which does not depend on the basis, against that of A Aᵀ; with equal rows, and with few columns."""
    rng = np.random.default_rng(4)
    a, tangent = jnp.asarray(rng.normal(size=(2, 6, columns)))
    a = a.at[3].set(a[2])

    def gram(rows):
        factor = linear_algebra.gram_factor(rows, regularised)
        return factor @ factor.T

    got = jax.jvp(gram, (a,), (tangent,))[1]
    np.testing.assert_allclose(got, tangent @ a.T + a @ tangent.T, atol=1e-12)


def nearly_cancelling(rng, kind, rows, width):
    """Factors whose product has four singular values of 1/3000 or 1/10 000 of the product of their norms."""

    def columns(size):
        return np.linalg.qr(rng.normal(size=(size, width)))[0]

    turn = columns(width)
    sizes = 10.0 ** -np.array([0, 3, 3.5, 3] if kind == "few" else [0, 4, 2, 3])
    product = sizes.min() * np.array([0.8, 1, 0.8, 0.8])
    return columns(rows) @ np.diag(sizes) @ turn.T, turn @ np.diag(product / sizes) @ columns(rows).T


@pytest.mark.parametrize("kind", ["few", "many"])
@pytest.mark.parametrize("rows", [6, 4])
def test_spectral_norms_of_factors_that_nearly_cancel(kind, rows):
    """Wide products, and those no wider than their factors."""
    rng = np.random.default_rng(5)
    left, right = (
        np.array(factors, "float32")
        for factors in zip(*(nearly_cancelling(rng, kind, rows, 4) for _ in range(2000)), strict=True)
    )
    exact = np.linalg.norm(left.astype(float) @ right.astype(float), 2, axis=(1, 2))
    got = jnp.exp(jax.jit(linear_algebra.log_spectral_norm)(jnp.asarray(left), jnp.asarray(right)))
    np.testing.assert_allclose(got, exact, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 3, 5, 7])
def test_logarithms_of_spectral_norms_at_any_size(dtype, width):
    rng = np.random.default_rng(6)
    left, right = rng.normal(size=(3, 5, width)).astype(dtype), rng.normal(size=(3, width, 5)).astype(dtype)
    exact = np.log(np.linalg.norm(left.astype(float) @ right.astype(float), 2, axis=(1, 2)))
    norm = jax.jit(linear_algebra.log_spectral_norm)
    for one, other in ((1, 1), (1e-30, 1e-30), (1e30, 1e30), (1e-34, 1), (1e30, 1e-30)):
        got = norm(jnp.asarray(left * np.asarray(one, dtype)), jnp.asarray(right * np.asarray(other, dtype)))
        np.testing.assert_allclose(got, exact + np.log(one) + np.log(other), rtol=8 * np.finfo(dtype).eps, atol=1e-5)
    plain = jax.jit(linear_algebra.spectral_norm)
    for size in (1e-30, 1, 1e30):
        lengths = np.linalg.norm(left.astype(float), 2, axis=(1, 2)) * size
        np.testing.assert_allclose(plain(jnp.asarray(left * np.asarray(size, dtype))), lengths, rtol=1e-6)
    nothing = jnp.zeros((5, width), dtype)
    value, slope = jax.value_and_grad(linear_algebra.log_spectral_norm)(nothing, jnp.asarray(right[0]))
    assert np.isneginf(value) and not slope.any()
    assert linear_algebra.spectral_norm(nothing) == 0


@pytest.mark.parametrize("width", [2, 6])
def test_derivatives_of_spectral_norms(x64, width):
    rng = np.random.default_rng(7)
    left, right = jnp.asarray(rng.normal(size=(5, width))), jnp.asarray(rng.normal(size=(width, 5)))

    def by_singular_values(left, right):
        return jnp.log(jnp.linalg.svd(left @ right, compute_uv=False)[0])

    for size in (1.0, 1e-100):
        got = jax.grad(linear_algebra.log_spectral_norm, (0, 1))(size * left, right / size)
        for one, other in zip(got, jax.grad(by_singular_values, (0, 1))(size * left, right / size), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize("size", [1.8e38, 3.3e38, 1.6e38, 2e-38])
def test_norms_at_the_ends_of_the_dtype(size):
    matrix = jnp.eye(2) * np.float32(size)
    assert float(linear_algebra.spectral_norm(matrix)) == np.float32(size)
    np.testing.assert_allclose(linear_algebra.log_spectral_norm(matrix), np.log(size), rtol=1e-6)
