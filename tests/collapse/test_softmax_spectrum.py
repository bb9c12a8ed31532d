"""Spectra of softmax of Gaussian logits: against simulated matrices, many digits, and the laws' own edges."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.optimize

from rc_jax.collapse import softmax_spectrum

SIMULATED = 24


@functools.cache
def simulate(sigma, n):
    """Singular values, ‖P‖_F², stable ranks and the largest weight of `SIMULATED` matrices, in NumPy alone."""
    rng = np.random.default_rng([round(100 * sigma), n])
    out = []
    for _ in range(SIMULATED):
        p = np.exp(sigma * rng.normal(size=(n, n)))
        p /= p.sum(axis=1, keepdims=True)
        values = np.linalg.svd(p, compute_uv=False)
        centred = np.linalg.svd(p - 1 / n, compute_uv=False)
        rank, rank_centred = ((s * s).sum() / s[0] ** 2 for s in (values, centred))
        out.append([*values[:2], (p * p).sum(), rank, rank_centred, p.max()])
    measures = np.array(out)
    return measures.mean(axis=0), measures.std(axis=0, ddof=1) / np.sqrt(SIMULATED), np.median(measures, axis=0)


@pytest.mark.parametrize(("sigma", "n"), [(0.25, 128), (0.5, 192)])
def test_against_simulated_matrices(sigma, n):
    """Standard errors, and the finite-size corrections: O(1/n), but n^{−2/3} at the edge of the noise (Tracy–Widom)."""
    mean, error, _ = simulate(sigma, n)
    v = np.expm1(sigma**2) / n
    for got, measured, se, correction in (
        (softmax_spectrum.gaussian_first_singular_value(sigma, n), mean[0], error[0], v / 8),
        (
            softmax_spectrum.gaussian_second_singular_value(sigma, n),
            mean[1],
            error[1],
            2 * np.sqrt(v) * 2 * n ** (-2 / 3),
        ),
        (softmax_spectrum.gaussian_squared_norm(sigma), mean[2], error[2], 4 * sigma**2 / n),
        (softmax_spectrum.gaussian_stable_rank(sigma, n), mean[3], error[3], 4 * sigma**2 / n),
        (softmax_spectrum.gaussian_stable_rank(sigma, n, centred=True), mean[4], error[4], n / 4 * 2 * n ** (-2 / 3)),
    ):
        assert abs(float(got) - measured) < 5 * se + correction
    assert mean[0] - 1 > 20 * error[0]  # the outlier's excess over 1 is seen at all


def test_spike_of_the_largest_weight_against_simulation():
    mean, error, _ = simulate(1.0, 192)
    spiked, edge = (float(f(1.0, 192)) for f in (softmax_spectrum.gaussian_spiked_singular_value,
                                                 softmax_spectrum.gaussian_second_singular_value))  # fmt: skip
    assert abs(spiked - mean[1]) < 5 * error[1] + 0.05 * spiked
    assert mean[1] - edge > 3 * error[1]
    for sigma in (0.0, 1e-6, 0.4):  # no weight stands out
        assert softmax_spectrum.gaussian_spiked_singular_value(sigma, 192) == pytest.approx(
            float(softmax_spectrum.gaussian_second_singular_value(sigma, 192)), rel=1e-6
        )


def test_spike_meets_the_edge_where_the_exponents_cross(x64):
    """For n → ∞ at σ = β√(log n): slowly, β → 1 − 1/√2."""

    def gap(beta, n):
        sigma = beta * np.sqrt(np.log(n))
        spiked = softmax_spectrum.gaussian_spiked_singular_value(sigma, n)
        return float(spiked / softmax_spectrum.gaussian_second_singular_value(sigma, n)) - 1 - 1e-9

    sizes = [1e3, 1e6, 1e12, 1e24, 1e48]
    crossings = [scipy.optimize.brentq(gap, 0.1, 0.5, args=(n,)) for n in sizes]
    limit = 1 - 0.5**0.5
    distance = np.abs(np.array(crossings) - limit)
    assert distance[-1] < 0.02
    assert np.all(np.diff(distance[1:]) < 0)


def test_outlier_solves_its_equation_and_merges_with_the_noise():
    """uᵀ(λ − ZZᵀ)⁻¹u = 1 with the Marchenko–Pastur density integrated in 30 digits; at v = ½ it reaches 4v."""
    with mp.workdps(30):
        n = 1000
        for v in ("0.01", "0.2", "0.49"):
            v = mp.mpf(v)
            first = float(softmax_spectrum.gaussian_first_singular_value(float(mp.sqrt(mp.log1p(v * n))), n))
            mass = mp.quad(  # density of s on the quarter circle of radius 2√v
                lambda s, v=v, at=first: mp.sqrt(4 * v - s**2) / (mp.pi * v) / (mp.mpf(at) ** 2 - s**2),
                [0, 2 * mp.sqrt(v)],
            )
            assert abs(mass - 1) < 1e-2 if v > mp.mpf("0.4") else abs(mass - 1) < 2e-5
    merging = np.sqrt(np.log1p(0.5 * 1000))
    below, above = (softmax_spectrum.gaussian_first_singular_value(merging * f, 1000) for f in (0.9999, 1.0001))
    assert float(above) == pytest.approx(float(below), rel=2e-3)
    assert float(below) == pytest.approx(2**0.5, rel=2e-3)


def test_layer_against_simulated_logits():
    """The largest singular value of X W_Q W_Kᵀ Xᵀ σ/(n√d), by NumPy; the edge is approached from below, as d^{−2/3}."""
    rng = np.random.default_rng(0)
    for d, n in ((96, 32), (96, 96), (64, 400)):
        values = []
        for _ in range(12):
            x = rng.normal(size=(n, d))
            s = x @ (rng.normal(size=(d, d)) / d**0.5) @ (rng.normal(size=(d, d)) / d**0.5) @ x.T
            values.append(np.linalg.norm(0.5 * s / (n * d**0.5), 2))
        ratio = np.array(values) / float(softmax_spectrum.layer_second_singular_value(0.5, n, d))
        error = ratio.std(ddof=1) / np.sqrt(ratio.size)
        assert ratio.mean() < 1 + 5 * error
        assert ratio.mean() > 1 - 5 * error - 2 * min(n, d) ** (-2 / 3)


def test_layer_limits():
    assert softmax_spectrum.layer_second_singular_value(0.3, 1e9, 64) == pytest.approx(27**0.5 / 2 * 0.3 / 8, rel=1e-4)
    few = softmax_spectrum.layer_second_singular_value(0.3, 100, 1e7)
    assert few == pytest.approx(2 * 0.3 / 10, rel=1e-3)


def test_dtype_shape_and_large_arguments(dtype):
    sigma, n = jnp.asarray([[0.5], [1.0]], dtype), jnp.asarray([[64, 128, 256]], dtype)
    for name in ("first_singular_value", "second_singular_value", "spiked_singular_value",
                 "stable_rank"):  # fmt: skip
        function = getattr(softmax_spectrum, f"gaussian_{name}")
        value = function(sigma, n)
        assert value.shape == (2, 3)
        assert value.dtype == dtype
        np.testing.assert_allclose(value[1, 2], function(sigma[1, 0], n[0, 2]), rtol=1e-5)
    assert softmax_spectrum.gaussian_stable_rank(jnp.asarray(30.0, dtype), 1024) == pytest.approx(256)
    assert softmax_spectrum.gaussian_squared_norm(jnp.asarray(0.0, dtype)) == 1
    tiny = softmax_spectrum.gaussian_second_singular_value(jnp.asarray(1e-12, dtype), 4)
    assert tiny == pytest.approx(1e-12, rel=1e-5)


def test_gradients_are_finite_with_and_without_noise(x64):
    for name in ("first_singular_value", "spiked_singular_value", "stable_rank"):
        slope = jax.jit(jax.vmap(jax.grad(getattr(softmax_spectrum, f"gaussian_{name}")), in_axes=(0, None)))
        assert bool(jnp.all(jnp.isfinite(slope(jnp.asarray([1e-3, 0.5, 1.0, 2.0]), 1024.0)))), name


@pytest.mark.parametrize("n", [2.0, 100.0, 1e6])
def test_derivatives_without_noise(dtype, n):
    """√v = γ/√n + …: the second singular values have the slope 2/√n at γ = 0, the others second derivatives."""
    n, rtol = jnp.asarray(n, dtype), 8 * float(jnp.finfo(dtype).eps)
    for name, order, exact in (
        ("second_singular_value", 1, 2 / np.sqrt(n)),
        ("spiked_singular_value", 1, 2 / np.sqrt(n)),
        ("first_singular_value", 1, 0),
        ("first_singular_value", 2, 1 / n),
        ("stable_rank", 1, 0),
        ("stable_rank", 2, 2 - 2 / n),
    ):
        slope = getattr(softmax_spectrum, f"gaussian_{name}")
        for _ in range(order):
            slope = jax.grad(slope)
        np.testing.assert_allclose(jax.jit(slope)(jnp.zeros((), dtype), n), exact, rtol=rtol, err_msg=name)


@pytest.mark.parametrize("n", [2.0, 3.0, 1e3, 1e10, 1e30])
def test_spike_of_any_number_of_tokens_against_many_digits(dtype, n):
    """The square of n, and a weight's chance to be the largest, have no place in float32 from n = 1e19 on."""
    eps = float(jnp.finfo(dtype).eps)
    sigma, n = jnp.asarray(min(0.9 * np.log(n) ** 0.5, 4), dtype), jnp.asarray(n, dtype)
    with mp.workdps(60):
        s, count = mp.mpf(float(sigma)), mp.mpf(float(n))
        log_tail = mp.log(-mp.expm1(-mp.log(2) / count**2))
        guess = mp.sqrt(max(-2 * log_tail - 4, 1))
        m = mp.findroot(lambda m: mp.log(mp.erfc(m / mp.sqrt(2)) / 2) - log_tail, guess)
        excess, root = mp.exp(s * m - s**2 / 2), mp.sqrt(mp.expm1(s**2) / count)
        theta = (excess - 1) * (1 - 1 / count) / (count - 1 + excess)
        exact = float(theta + root**2 / theta if theta > root else 2 * root)
    got = softmax_spectrum.gaussian_spiked_singular_value(sigma, n)
    np.testing.assert_allclose(got, exact, rtol=(20 + 8 * float(sigma) * float(m)) * eps)
    slope = float(jax.grad(lambda n: softmax_spectrum._median_of_largest(n))(n))
    np.testing.assert_allclose(
        slope, float(2 * (1 - mp.exp(log_tail)) * mp.log(2) / count**3 / mp.npdf(m)), rtol=20 * eps
    )


def test_beyond_its_range_a_form_is_not_a_number():
    assert np.isnan(softmax_spectrum.gaussian_spiked_singular_value(2.7, 1024))  # √(log 1024) = 2.63
    assert np.isfinite(softmax_spectrum.gaussian_spiked_singular_value(2.6, 1024))


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    for name in ("first_singular_value", "second_singular_value", "spiked_singular_value",
                 "stable_rank"):  # fmt: skip
        function = getattr(softmax_spectrum, f"gaussian_{name}")
        with pytest.raises(ValueError, match="`gamma` must be >= 0"):
            function(-1.0, 8)
        with pytest.raises(ValueError, match="`n` must be >= 2"):
            function(1.0, 1)
        with pytest.raises(TypeError, match="`n` must be a real number"):
            function(1.0, "8")
        with pytest.raises(ValueError, match="must broadcast"):
            function(jnp.ones(3), jnp.full(2, 8.0))
    with pytest.raises(ValueError, match="`gamma` must be finite"):
        softmax_spectrum.gaussian_squared_norm(float("nan"))
    with pytest.raises(TypeError, match="`centred` must be a bool, got 1"):
        softmax_spectrum.gaussian_stable_rank(1.0, 8, centred=1)
    with pytest.raises(ValueError, match="`dim` must be >= 1"):
        softmax_spectrum.layer_second_singular_value(1.0, 8, 0)
