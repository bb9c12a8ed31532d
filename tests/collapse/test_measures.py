"""Residuals, norms and ranks against NumPy, SciPy's linear programs and their invariants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize_scalar

from rc_jax import collapse


def random_tokens(seed, shape, dtype="float32"):
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def least_norm_1inf(x):
    """min over c of norm_1inf(x − 1cᵀ) by linear programs: √(ab) is the least of (t·a + b/t)/2 over t > 0."""
    n, d = x.shape

    def at(log_t):
        t = np.exp(log_t)
        # Variables: c (d), |R| (n·d), a = largest column sum, b = largest row sum. Rows: ±(X − 1cᵀ) ≤ |R|, sums ≤ a, b.
        cost = np.r_[np.zeros(d + n * d), t / 2, 1 / (2 * t)]
        entries, c, none = np.eye(n * d), np.tile(np.eye(d), (n, 1)), np.zeros((n * d, 2))
        columns, rows = np.tile(np.eye(d), n), np.kron(np.eye(n), np.ones(d))
        above = np.hstack([-c, -entries, none]), np.hstack([c, -entries, none])
        sums = [
            np.hstack([np.zeros((len(each), d)), each, np.tile(minus, (len(each), 1))])
            for each, minus in ((columns, [-1, 0]), (rows, [0, -1]))
        ]
        limits = np.r_[-x.ravel(), x.ravel(), np.zeros(d + n)]
        bounds = [(None, None)] * d + [(0, None)] * (n * d + 2)
        return linprog(cost, np.vstack([*above, *sums]), limits, bounds=bounds).fun

    grid = np.linspace(-2, 2, 21)
    best = grid[np.argmin([at(g) for g in grid])]
    return minimize_scalar(at, bounds=(best - 0.2, best + 0.2), method="bounded", options={"xatol": 1e-4}).fun


@pytest.mark.parametrize("seed", range(3))
def test_argmin_reaches_the_linear_programs_optimum(x64, seed):
    x = random_tokens(seed, (6, 4), "float64")
    x = jnp.exp(x) if seed == 2 else x
    value = float(collapse.norm_1inf(collapse.residual(x, "argmin")))
    assert -1e-9 < value / least_norm_1inf(np.asarray(x)) - 1 < 1e-5
    for center in ("mean", "median"):
        assert value <= float(collapse.norm_1inf(collapse.residual(x, center))) * (1 + 1e-12)


def skewed(rng, n, d, shape):
    x = rng.normal(size=(n, d))
    if shape == "exponential":
        return np.exp(1.5 * x)
    if shape == "whole":
        return rng.integers(0, 13, size=(n, d)).astype(float)
    return x / np.abs(rng.normal(size=(n, 1)))


@pytest.mark.parametrize("shape", ["exponential", "whole", "heavy"])
def test_argmin_where_the_norm_has_several_minima(x64, shape):
    """On a line against a scan; in two dimensions against linear programs for every quotient of the two sizes."""
    rng = np.random.default_rng(0)
    found = jax.jit(lambda x: collapse.norm_1inf(collapse.residual(x, "argmin")))
    lines = [np.array([[0.0], [12], [0], [2]]), *(skewed(rng, 5, 1, shape) for _ in range(20))]
    for x in lines:
        # The minima lie at tokens, where the sum of distances has kinks, and in the middle of the range.
        centres = np.linspace(x.min(), x.max(), 2001)
        distances = np.abs(x - np.concatenate([centres, x[:, 0], [(x.min() + x.max()) / 2]]))
        least = np.sqrt(distances.sum(axis=0) * distances.max(axis=0)).min()
        assert -1e-3 < float(found(jnp.asarray(x))) / least - 1 < 1e-4
    for _ in range(3):
        x = skewed(rng, 4, 2, shape)
        least = least_norm_1inf(x - x.mean(axis=0))
        assert -1e-9 < float(found(jnp.asarray(x))) / least - 1 < 1e-4


@pytest.mark.parametrize("norm", [collapse.norm_1inf, collapse.frobenius])
def test_sums_in_half_precision(norm):
    """Of more numbers than the largest of float16, and of numbers near it."""
    many = jnp.full((400, 400), 0.01, "float16")
    large = jnp.full((2, 2), 3e4, "float16")
    for x in (many, large):
        got = norm(x)
        assert got.dtype == jnp.float16
        np.testing.assert_allclose(float(got), float(norm(x.astype("float32"))), rtol=1e-3)


def test_mean_and_median_minimise_their_norms(x64):
    x = random_tokens(0, (7, 3), "float64")
    np.testing.assert_allclose(collapse.residual(x), x - np.mean(np.asarray(x), axis=0, keepdims=True), atol=1e-14)
    for shift in 1e-3 * np.eye(3):
        shift = jnp.asarray(shift)[None]
        for centre, norm in (("mean", jnp.square), ("median", jnp.abs)):
            assert jnp.sum(norm(collapse.residual(x, centre))) <= jnp.sum(norm(collapse.residual(x, centre) + shift))


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(st.integers(2, 6), st.integers(1, 5), st.integers(0, 2**16), st.sampled_from(["mean", "median"]))
def test_a_common_token_changes_nothing(n, d, seed, center):
    x = random_tokens(seed, (n, d))
    common = 10 * random_tokens(seed + 1, (1, d))
    moved = collapse.residual(x + common, center)
    atol = 8 * float(jnp.finfo(x.dtype).eps) * float(jnp.max(jnp.abs(common)) + jnp.max(jnp.abs(x)))
    np.testing.assert_allclose(moved, collapse.residual(x, center), atol=atol)


def test_norms_and_ranks_against_numpy(dtype):
    x = random_tokens(4, (6, 5), dtype)
    a = np.asarray(x, dtype=np.float64)
    rtol = 32 * float(jnp.finfo(dtype).eps)
    spectrum = np.linalg.svd(a, compute_uv=False)
    share = spectrum / spectrum.sum()
    expected = {
        collapse.norm_1inf: np.sqrt(np.linalg.norm(a, 1) * np.linalg.norm(a, np.inf)),
        collapse.frobenius: np.linalg.norm(a),
        collapse.diameter: max(np.linalg.norm(p - q) for p in a for q in a),
        collapse.stable_rank: np.linalg.norm(a) ** 2 / np.linalg.norm(a, 2) ** 2,
        collapse.effective_rank: np.exp(-np.sum(share * np.log(share))),
    }
    for function, value in expected.items():
        got = function(x)
        assert got.dtype == dtype
        np.testing.assert_allclose(float(got), value, rtol=rtol, err_msg=function.__name__)


@pytest.mark.parametrize("size", [1e-30, 1e30, 4e37])
def test_sizes_neither_underflow_nor_overflow(size):
    x = random_tokens(5, (6, 5))
    for norm in (collapse.norm_1inf, collapse.frobenius, collapse.diameter):
        np.testing.assert_allclose(float(norm(size * x)) / size, float(norm(x)), rtol=1e-5, err_msg=norm.__name__)
    for rank in (collapse.stable_rank, collapse.effective_rank):
        np.testing.assert_allclose(float(rank(size * x)), float(rank(x)), rtol=1e-4, err_msg=rank.__name__)


@pytest.mark.parametrize(
    "function",
    [collapse.norm_1inf, collapse.frobenius, collapse.diameter, collapse.stable_rank, collapse.effective_rank],
)
def test_zeros_have_size_and_rank_zero(function):
    assert float(function(jnp.zeros((3, 2)))) == 0.0


@pytest.mark.parametrize("norm", [collapse.norm_1inf, collapse.frobenius, collapse.diameter])
def test_gradients_are_finite_at_zero_and_right_elsewhere(x64, norm):
    assert jnp.all(jnp.isfinite(jax.grad(norm)(jnp.zeros((3, 2)))))
    x, step = random_tokens(6, (4, 3), "float64"), 1e-6 * random_tokens(7, (4, 3), "float64")
    slope = jnp.sum(jax.grad(norm)(x) * step)
    np.testing.assert_allclose(slope, (norm(x + step) - norm(x - step)) / 2, rtol=1e-6)


@pytest.mark.slow
def test_derivatives_hold_the_numerical_centre_fixed():
    for x in (random_tokens(6, (5, 3)), jnp.ones((3, 2))):  # also at equal tokens, where a root has no slope
        slope = jax.grad(lambda x: jnp.sum(jnp.sin(collapse.residual(x, "argmin"))))(x)
        fixed = jnp.cos(collapse.residual(x, "argmin"))
        np.testing.assert_allclose(slope, fixed - fixed.mean(axis=0, keepdims=True), rtol=1e-5, atol=1e-6)


def test_diameter_beside_a_large_common_part():
    x = jnp.array([[1e20, 1e-20], [1e20, 4e-20], [1e20, 2e-20]])
    np.testing.assert_allclose(float(collapse.diameter(x)), 3e-20, rtol=1e-6)


@pytest.mark.parametrize("rank", [collapse.stable_rank, collapse.effective_rank])
def test_ranks_in_half_precision(rank):
    x = random_tokens(5, (6, 5))
    got = rank(x.astype("bfloat16"))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(float(got), float(rank(x)), rtol=0.01)


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    with pytest.raises(ValueError, match="`center` must be one of 'mean', 'median', 'argmin', got 'mode'"):
        collapse.residual(jnp.ones((3, 2)), "mode")
    with pytest.raises(ValueError, match=r"`x` must be .* with token >= 2, got float32\[1,2\]"):
        collapse.residual(jnp.ones((1, 2)))
    with pytest.raises(TypeError, match="`x` must be a floating-point array"):
        collapse.diameter([[1.0, 2.0]])
    with pytest.raises(ValueError, match=r"got float32\[3\]"):
        collapse.norm_1inf(jnp.ones(3))
