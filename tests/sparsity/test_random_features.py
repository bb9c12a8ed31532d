import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import sparsity


def positive(key, x, count):
    """e^{w·x − |x|²/2}/√m along the directions of `random_projections`."""
    w, x = np.asarray(sparsity.random_projections(key, count, x.shape[-1], dtype=x.dtype)), np.asarray(x)
    return np.exp(x @ w.T - (x**2).sum(-1, keepdims=True) / 2) / count**0.5


@pytest.mark.slow
def test_features_are_unbiased_with_the_published_variance(x64, key):
    """E φ(q)·φ(k) = e^{q·k} for both kinds, and the variances of one feature in closed form (independent w)."""
    x = jnp.asarray([[0.4, -0.3, 0.2], [0.1, 0.5, -0.6]])
    q, k = np.asarray(x)
    exact, count = float(np.exp(q @ k)), 400_000
    phi = positive(key, x, count)
    one = count * phi[0] * phi[1]
    assert np.all(phi > 0)
    assert abs(one.mean() - exact) < 5 * one.std() / count**0.5
    spread = (one - exact) ** 2
    assert abs(spread.mean() - exact**2 * np.expm1(np.sum((q + k) ** 2))) < 5 * spread.std() / count**0.5
    cos, sin = np.split(np.asarray(sparsity.trigonometric_random_features(key, x, count)), 2, axis=-1)
    one = count * (cos[0] * cos[1] + sin[0] * sin[1])
    assert abs(one.mean() - exact) < 5 * one.std() / count**0.5
    spread, gap = (one - exact) ** 2, np.exp(-np.sum((q - k) ** 2))
    published = np.exp(np.sum((q + k) ** 2)) / exact**2 * (1 - gap) ** 2 / 2
    assert abs(spread.mean() - published) < 5 * spread.std() / count**0.5


def test_orthogonal_directions_are_orthogonal_and_gaussian(key):
    width, count = 6, 6 * 4000 + 3
    w = np.asarray(sparsity.random_projections(key, count, width, orthogonal=True), float)
    assert w.shape == (count, width)
    blocks = w[: 6 * 4000].reshape(-1, width, width)
    gram = np.einsum("bij,bkj->bik", blocks, blocks)
    diagonal = np.einsum("bii->bi", gram)
    assert np.max(np.abs(gram - np.eye(width)[None] * diagonal[..., None])) < 1e-4
    for power, expected in ((1, 0), (2, 1), (3, 0), (4, 3)):
        moment = (w**power).mean(0)
        error = (w**power).std(0) / (count / width) ** 0.5
        assert np.all(np.abs(moment - expected) < 5 * error)
    assert np.all(np.abs(w.T @ w / count - np.eye(width)) < 5 * (width / count) ** 0.5)
    lengths = np.sqrt(diagonal)  # independent: no correlation within a block
    assert abs(np.corrcoef(lengths[:, 0], lengths[:, 1])[0, 1]) < 5 / 4000**0.5
    assert abs((lengths**2).var() / (2 * width) - 1) < 0.1


@pytest.mark.slow
def test_keys_shapes_and_dtypes(dtype, key):
    x = jax.random.normal(key, (2, 3, 4), dtype)
    make = sparsity.trigonometric_random_features

    @jax.jit
    def run(x):
        mapped = jax.vmap(lambda x: make(key, x, 5))(x)
        other = make(jax.random.fold_in(key, 1), x, 5)
        half = make(key, x.astype(jnp.bfloat16), 5)
        return make(key, x, 5), half, mapped, other, make(key, x, 5, orthogonal=True)

    phi, half, mapped, other, orthogonal = run(x)
    for each in (phi, mapped, other, orthogonal):
        assert each.dtype == dtype and each.shape == (2, 3, 10)
    assert half.dtype == jnp.bfloat16
    assert np.any(np.asarray(mapped) != np.asarray(other))
    w = np.asarray(sparsity.random_projections(key, 5, 4, dtype=dtype))
    angle, size = np.asarray(x) @ w.T, np.exp((np.asarray(x, float) ** 2).sum(-1, keepdims=True) / 2)
    by_hand = size / 5**0.5 * np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)
    for each in (phi, mapped):
        np.testing.assert_allclose(each, by_hand, rtol=1e-6, atol=100 * jnp.finfo(dtype).eps)


def test_moments_of_gaussian_keys_against_quadrature(dtype):
    w, sigma = [0.3, -1.7, 4.0], 0.6
    mean, cov = jax.jit(lambda w: sparsity.positive_feature_moments(w, sigma))(jnp.asarray(w, dtype)[:, None])
    assert mean.dtype == cov.dtype == dtype
    w = [float(v) for v in jnp.asarray(w, dtype)]
    density = lambda k: mp.npdf(k / sigma) / sigma  # noqa: E731
    phi = lambda v, k: mp.exp(v * k - k * k / 2) / mp.sqrt(3)  # noqa: E731
    integral = lambda f: float(mp.quad(lambda k: f(k) * density(k), [-8, 0, 8]))  # noqa: E731
    first = np.array([integral(lambda k, v=v: phi(v, k)) for v in w])
    second = np.array([[integral(lambda k, u=u, v=v: phi(u, k) * phi(v, k)) for u in w] for v in w])
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(mean, first, rtol=20 * eps)
    np.testing.assert_allclose(cov, second - np.outer(first, first), rtol=100 * eps, atol=100 * eps)


def test_rate_integrals_against_quadrature(x64):
    """d = 1: the averages over tilted keys of the covariance e^{(q+k)(q+k′)}, on a grid."""
    gamma, sigma = 0.3, 0.5
    q = gamma / sigma
    z = np.linspace(-14, 14, 2801)
    weight = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    y = {a: q + a * sigma**2 * q + sigma * z for a in (1, 2)}
    g = {(a, b): weight @ np.exp(np.outer(y[a], y[b])) @ weight for a, b in ((1, 1), (1, 2), (2, 2))}
    noise = weight @ np.exp(y[2] ** 2)
    bias, variance = sparsity.positive_features_rate(gamma, sigma, 1)
    assert abs(bias - (-(noise - 1) / 2 + 1.5 * (g[2, 2] - 1) - (g[1, 2] - 1))) < 1e-12
    assert abs(variance - (g[1, 1] + g[2, 2] - 2 * g[1, 2])) < 1e-12


def test_a_rate_that_does_not_exist_has_no_derivative(x64):
    for sigma, places in ((0.8, (0,)), (1.2, (0, 1))):
        slopes = jax.jacfwd(lambda sigma: jnp.stack(sparsity.positive_features_rate(0.5, sigma, 4.0)))(sigma)
        assert [bool(np.isnan(slopes[at])) for at in (0, 1)] == [at in places for at in (0, 1)]
        assert np.isinf([sparsity.positive_features_rate(0.5, sigma, 4.0)[at] for at in places]).all()


@pytest.mark.parametrize(("gamma", "sigma"), [(0.1, 0.03), (0.02, 0.02), (1e-5, 0.2), (1e-4, 1e-3)])
def test_a_small_variance_keeps_its_digits(gamma, sigma):
    gamma, sigma = np.float32(gamma), np.float32(sigma)
    with mp.workdps(60):
        s = mp.mpf(float(sigma)) ** 2
        length, factors = mp.mpf(float(gamma)) ** 2 / s, {a: 1 + a * s for a in (1, 2)}

        def g(a, b):
            inner = s * (factors[a] ** 2 + factors[b] ** 2) / 2 + factors[a] * factors[b]
            return (1 - s * s) ** -8 * mp.exp(length * inner / (1 - s * s))

        exact = float(g(1, 1) + g(2, 2) - 2 * g(1, 2))
        noise = (1 - 2 * s) ** -8 * mp.exp((1 + 2 * s) ** 2 * length / (1 - 2 * s))
        skew = float(-(noise - 1) / 2 + 3 * (g(2, 2) - 1) / 2 - (g(1, 2) - 1))
    bias, variance = sparsity.positive_features_rate(gamma, sigma, np.float32(16))
    assert abs(variance / exact - 1) < 40 * float(jnp.finfo(jnp.float32).eps)
    assert abs(bias / skew - 1) < 200 * float(jnp.finfo(jnp.float32).eps)  # (d − ‖q‖²)σ²/2 cancels once more


@pytest.mark.slow
def test_features_needed_grow_exponentially_in_the_root_of_the_width(x64):
    gamma, dim = jnp.asarray([0.05, 0.1, 0.1]), jnp.asarray([4e4, 1e4, 4e4])
    bias, _ = sparsity.positive_features_rate(gamma, jnp.sqrt(gamma / jnp.sqrt(dim)), dim)
    np.testing.assert_allclose(jnp.log(-2 * bias), 2 * gamma * jnp.sqrt(dim) + 7 * gamma**2, atol=2e-3)
    near = [sparsity.positive_features_rate(0.1, (0.1 * by / 100) ** 0.5, 1e4)[0] for by in (0.8, 1.0, 1.25)]
    assert near[1] > max(near[0], near[2])  # the smallest bias


@pytest.mark.slow
def test_where_there_is_no_rate():
    bias, variance = sparsity.positive_features_rate(1.0, jnp.asarray([0.3, 0.6, 0.75, 0.99, 1.0, 2.0]), 16)
    assert list(np.isfinite(bias)) == [True, True, False, False, False, False]
    assert list(np.isfinite(variance)) == [True, True, True, False, False, False]
    assert np.all(bias[:2] < 0) and np.all(variance[:3] > 0)
    assert sparsity.positive_features_rate(jnp.zeros((3, 1)), 0.5, jnp.arange(1, 5))[0].shape == (3, 4)
    slopes = jax.jit(jax.grad(lambda g, s: sparsity.positive_features_rate(g, s, 4)[0], (0, 1)))(0.3, 0.4)
    assert all(np.isfinite(slope) for slope in slopes)
