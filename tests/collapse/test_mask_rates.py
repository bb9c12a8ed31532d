"""Rates of collapse by theory: against powers of the averaging, an integral, and simulated gains."""

import jax
import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from rc_jax.attention import masks
from rc_jax.collapse import mask_rates


@pytest.mark.parametrize("mask", [masks.causal(12), masks.window(12, 3), masks.window_with_global(12, 1, 1)])
def test_second_eigenvalue_against_powers_of_the_averaging(mask):
    """Powers of P less their limit 1πᵀ shrink by λ₂."""
    seen = np.asarray(mask, float)
    chain = seen / seen.sum(axis=1, keepdims=True)
    equations = np.concatenate([chain.T - np.eye(12), np.ones((1, 12))])
    rest = chain - np.linalg.lstsq(equations, np.eye(13)[12], rcond=None)[0]
    sizes = [np.linalg.norm(np.linalg.matrix_power(rest, power)) for power in (40, 60)]
    assert mask_rates.log_second_eigenvalue(mask) == pytest.approx(np.log(sizes[1] / sizes[0]) / 20, abs=1e-3)


def test_second_eigenvalue_against_fifty_digits():
    """Far to one side and near to the other: right, or NaN where double precision shows what is no eigenvalue."""
    for tokens, known in ((24, True), (56, False), (100, False)):
        offset = np.arange(tokens)[None] - np.arange(tokens)[:, None]
        mask = (offset >= -4) & (offset <= 1)
        value = mask_rates.log_second_eigenvalue(mask)
        assert np.isnan(value) != known
        if known:
            with mpmath.workdps(50):
                chain = mpmath.matrix((mask / mask.sum(axis=1, keepdims=True)).tolist())
                exact = sorted(map(abs, mpmath.eig(chain, left=False, right=False)))[-2]
                assert value == pytest.approx(float(mpmath.log(exact)), rel=1e-6)


def test_blocks_have_all_eigenvalues():
    """Blocks of a mask that see earlier ones; what is unsymmetric between blocks does not matter."""
    offset = np.arange(300)[None] - np.arange(300)[:, None]
    seen = (offset < 0) | (np.arange(300)[:, None] // 30 == np.arange(300)[None] // 30)
    values = [30 / (30 * index) for index in range(1, 11)]  # a block of ones over the tokens that it sees
    assert mask_rates.log_second_eigenvalue(seen) == pytest.approx(np.log(values[1]), rel=1e-12)
    order = np.random.default_rng(0).permutation(300)
    assert mask_rates.log_second_eigenvalue(seen[order][:, order]) == pytest.approx(np.log(values[1]), rel=1e-12)
    assert mask_rates.log_second_eigenvalue(np.ones((40, 40))) == -np.inf


@pytest.mark.parametrize("size", [1, 4, 64])
def test_gain_against_its_integral(x64, size):
    law = stats.chi2(size)
    exact = integrate.quad(lambda t: np.log(law.ppf(t) / size), 0, 1, limit=400)[0]
    assert float(mask_rates.log_gaussian_gain(float(size))) == pytest.approx(exact, abs=1e-6)


def test_gain_and_sink_rate_keep_their_digits(dtype):
    """Both are differences of logarithms that nearly agree, of wide matrices and of weak updates."""
    eps = np.finfo(dtype).eps
    with mpmath.workdps(50):
        for size in np.asarray([1, 3, 24, 25, 1000, 65_536, 1e9], dtype):
            exact = mpmath.digamma(mpmath.mpf(float(size)) / 2) - mpmath.log(mpmath.mpf(float(size)) / 2)
            assert abs(float(mask_rates.log_gaussian_gain(size)) / exact - 1) < 100 * eps
        for update in np.asarray([1e-9, 1e-4, 0.1, 1, 100], dtype):
            for root in np.asarray([0.01, 0.5, 0.9], dtype):
                apart = mpmath.mpf(float(update)) * (mpmath.mpf(float(root)) * 3 / 4)
                exact = mpmath.log(1 + apart) - mpmath.log(1 + mpmath.mpf(float(update)) * 7 / 8)
                rate = mask_rates.log_sink_rate(root, 0.25, 0.5, update=update)
                assert rate.dtype == dtype and abs(float(rate) / exact - 1) < 20 * eps


def test_curvature_against_simulated_gains():
    """The mean is multiplied by the means of r normals in each of H heads, and by two Gaussian matrices."""
    rng, rank, heads, width, count = np.random.default_rng(0), 8, 4, 16, 200_000
    sums = rng.normal(size=(count, heads)) / rank**0.5
    gains = np.log((sums**2).mean(1)) + np.log(rng.chisquare(width, size=(2, count)) / width).sum(0)
    error = gains.std() / count**0.5
    assert abs(float(mask_rates.pooled_curvature(rank, heads, width)) - gains.mean()) < 5 * error


@pytest.mark.parametrize("mask", [np.ones((2, 3)), np.ones((1, 1)), np.array([[1, 1], [0, 0]])])
def test_masks_that_average_nothing(mask):
    with pytest.raises(ValueError, match="mask"):
        mask_rates.log_second_eigenvalue(mask)


def with_sink(averaging, weight, value, update, skip):
    """κI + a((1 − s)P′ + s v 1e₁ᵀ), written out."""
    slot = np.zeros_like(averaging)
    slot[:, 0] = 1
    return skip * np.eye(len(averaging)) + update * ((1 - weight) * averaging + weight * value * slot)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(("weight", "value"), [(0.0, 1.0), (0.3, 0.0), (0.9, 0.2), (0.6, 1.0)])
def test_sink_rate_against_all_eigenvalues(x64, weight, value, skip):
    """Every eigenvalue over the one of equal tokens, to thirty digits: rows of a random causal P′ with its diagonal."""
    rng = np.random.default_rng(0)
    averaging = np.tril(rng.uniform(0.1, 1, (6, 6)))
    averaging /= averaging.sum(1, keepdims=True)
    with mpmath.workdps(30):
        matrix = mpmath.matrix(with_sink(averaging, weight, value, 0.7, skip).tolist())
        eigenvalues = sorted(float(mpmath.re(root)) for root in mpmath.eig(matrix, left=False, right=False))
    shared = skip + 0.7 * (1 - weight + weight * value)
    roots = np.diag(averaging)[1:]  # of a triangular matrix; the first is 1
    rates = mask_rates.log_sink_rate(roots, weight, value, update=0.7, skip=skip)
    np.testing.assert_allclose(eigenvalues, sorted([shared, *(shared * np.exp(rates))]), rtol=1e-12)


def test_without_a_skip_connection_every_difference_shrinks_by_the_rest_of_the_row():
    """res(PX) = (1 − s) res(P′X), layer after layer, whatever the weights and the value of the sink."""
    rng, n = np.random.default_rng(1), 5
    x = y = rng.normal(size=(n, 3))
    for layer in range(1, 5):
        averaging = rng.dirichlet(np.ones(n), size=n)
        value = rng.normal(size=(3, 3))
        x = averaging @ x @ value
        y = (0.75 * averaging @ y + 0.25 * rng.normal() * y[:1]) @ value
        apart, of_sink = x - x.mean(0), y - y.mean(0)
        np.testing.assert_allclose(of_sink, 0.75**layer * apart, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("root", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("update", [0.3, 1.0, 4.0])
def test_critical_value_parts_slower_from_faster(x64, root, update):
    """Just below it every sink slows the collapse, just above it every sink hastens it."""
    critical = float(mask_rates.critical_sink_value(root, update=update))
    weights = np.array([0.01, 0.5, 0.99])
    plain = float(mask_rates.log_sink_rate(root, 0.0, update=update))
    below, above = (mask_rates.log_sink_rate(root, weights, critical + step, update=update) for step in (-1e-3, 1e-3))
    assert (np.asarray(below) > plain).all() and (np.asarray(above) < plain).all()


def hausdorff(power, weight, update, skip, j, i):
    """An entry of f(C), f(μ) = (κ + a(1 − s)μ)^L, of the Cesàro matrix C = δ diag(1/(m + 1)) δ (Hausdorff 1921)."""
    with mpmath.workdps(60):
        step = lambda m: skip + update * (1 - mpmath.mpf(weight)) / (i + m + 1)  # noqa: E731
        terms = [(-1) ** m * mpmath.binomial(j - i, m) * step(m) ** power for m in range(j - i + 1)]
        return mpmath.binomial(j, i) * mpmath.fsum(terms)


@pytest.mark.parametrize(("weight", "update", "skip"), [(0.0, 1.0, True), (0.75, 0.5, True), (0.5, 1.0, False)])
def test_sensitivity_against_hausdorffs_moments(weight, update, skip):
    logs = mask_rates.log_sink_sensitivity(np.tri(9), 40, weight, update=update, skip=skip)
    for j, i in ((8, 1), (8, 8), (5, 2), (1, 0)):
        assert logs[j, i] == pytest.approx(float(mpmath.log(hausdorff(40, weight, update, skip, j, i))), rel=1e-12)
    assert np.isneginf(logs[2, 5])


def test_sensitivities_farther_apart_than_the_numbers_of_double_precision():
    """Powers of the diagonal, Hausdorff's moments, and a slow token that reaches a fast one."""
    logs = mask_rates.log_sink_sensitivity(np.tri(64), 200, 0.0, skip=False)
    np.testing.assert_allclose(np.diag(logs), -200 * np.log(np.arange(1, 65)), atol=1e-11)
    for j, i in ((63, 62), (63, 40), (20, 10), (63, 1)):
        exact = float(mpmath.log(hausdorff(200, 0.0, 1.0, False, j, i)))
        assert logs[j, i] == pytest.approx(exact, abs=1e-10)
    mask = np.eye(400)
    mask[0, 2:], mask[1, 0] = 1, 1
    logs = mask_rates.log_sink_sensitivity(mask, 300, 0.0, skip=False)
    assert logs[0, 0] == pytest.approx(-300 * np.log(399), rel=1e-13)  # beside ½³⁰⁰ in the same column
    assert np.isneginf(logs[5, 4])
    assert np.array_equal(np.exp(mask_rates.log_sink_sensitivity(mask, 0, 0.0)), np.eye(400))


def test_sensitivity_against_automatic_differentiation(x64):
    """Of a network of three layers with a sink on the first token, for all tokens but the first."""
    matrix = with_sink(np.tri(5) / np.arange(1, 6)[:, None], 0.4, 1.0, 0.8, True)

    def network(x):
        for _ in range(3):
            x = jax.numpy.asarray(matrix) @ x
        return x

    sensitivity = np.exp(mask_rates.log_sink_sensitivity(np.tri(5, dtype=bool), 3, 0.4, update=0.8))
    np.testing.assert_allclose(sensitivity[:, 1:], jax.jacobian(network)(np.ones(5))[:, 1:], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("weight", [-0.1, 1.0])
def test_weights_of_a_sink_are_shares(weight):
    with pytest.raises(ValueError, match="weight"):
        mask_rates.log_sink_rate(0.5, weight)
    with pytest.raises(ValueError, match="weight"):
        mask_rates.log_sink_sensitivity(np.tri(3), 2, weight)


@pytest.mark.parametrize("mask", [np.where(np.tri(4), 0, -np.inf), -np.tri(4), np.full((2, 2), np.nan)])
def test_what_is_no_mask(mask):
    with pytest.raises(ValueError, match=r"`mask` must be True or 1 where a token sees another .* got (-inf|-1|nan)"):
        mask_rates.log_second_eigenvalue(mask)
