"""Kernel moments against quadrature over Gaussian scores, and the mean square of a row's output against random rows."""

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from rc_jax.collapse.output_size import kernel_moments, output_mean_square

KERNELS = {
    "softmax": np.exp,
    "l2": np.exp,
    "signed": lambda s: np.sign(s) * np.exp(np.abs(s)),
    "relu_squared": lambda s: np.maximum(s, 0) ** 2,
    "relu_squared_mean": lambda s: np.maximum(s, 0) ** 2,
    "identity": lambda s: s,
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_moments_against_quadrature(x64, kernel):
    gamma, n, f = 0.9, 7, KERNELS[kernel]

    def mean(function):
        return sum(quad(lambda z: function(gamma * z) * norm.pdf(z), *half)[0] for half in ((-12, 0), (0, 12)))

    slope = mean(lambda s: s * f(s)) / gamma**2  # Stein: E f' = E s f/γ²
    square = mean(lambda s: f(s) ** 2)
    size = {"l2": np.sqrt(square / n), "relu_squared_mean": 1, "identity": 1}.get(kernel, mean(lambda s: abs(f(s))))
    np.testing.assert_allclose(kernel_moments(kernel, gamma, n), (slope, square, size), rtol=1e-8)


@pytest.mark.parametrize("kernel", KERNELS)
def test_mean_square_against_random_rows(kernel):
    """Rows a = f(s)/(n ν) on N(0, I) tokens, drawn in NumPy; ν is the formula's, so that nothing depends on n."""
    gamma, n, d, count = 0.8, 5, 3, 40_000
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, n, d))
    u = rng.normal(size=(count, d))
    scores = np.einsum("cnd,cd->cn", x, gamma * u / np.linalg.norm(u, axis=1, keepdims=True))
    weights = KERNELS[kernel](scores) / (n * float(kernel_moments(kernel, gamma, n).norm))
    squares = np.square(np.einsum("cn,cnd->cd", weights, x)).mean(axis=1)
    # Exact but for the term i = j of (Σ f x)²: E f² x² − E f² − (E f x)² over n.
    own = np.square(KERNELS[kernel](scores[:, 0]))
    more = (own * np.square(x[:, 0]).mean(axis=1)).mean() - own.mean()
    slope, _, size = (float(value) for value in kernel_moments(kernel, gamma, n))
    exact = float(output_mean_square(kernel, gamma, tokens=n, d_model=d))
    exact += (more - (gamma * slope) ** 2 / d) / (n * size**2)
    assert abs(squares.mean() - exact) < 5 * squares.std() / np.sqrt(count) + 0.02 * exact


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    with pytest.raises(ValueError, match="`kernel` must be one of"):
        kernel_moments("cosine", 1.0, 4)
    with pytest.raises(ValueError, match="`gamma` must be > 0, got 0"):
        output_mean_square("softmax", 0.0, tokens=4, d_model=2)


@pytest.mark.parametrize("kernel", ["softmax", "l2", "signed", "relu_squared", "relu_squared_mean", "identity"])
@pytest.mark.parametrize("gamma", [1e-6, 0.3, 2.0, 6.9])
def test_sizes_have_a_place_where_their_parts_have_none(kernel, gamma):
    """In float32 e^{2γ²} is infinite from γ = 6.7 on, and γ⁴ is 0 at 1e-10: the ratios by mpmath."""
    gamma, n, d = float(np.float32(gamma)), 1024, 64
    with mpmath.workdps(40):
        slope, square, norm = moments_of(kernel, mpmath.mpf(gamma), n)
        wanted = (slope * gamma / norm) ** 2 / d + square / (n * norm**2)
    found = output_mean_square(kernel, gamma, tokens=n, d_model=d)
    np.testing.assert_allclose(float(found), float(wanted), rtol=2e-5)


def moments_of(kernel, gamma, n):
    """E f', E f² and ν of a kernel, by the formulas of the module's docstrings."""
    root, phi = mpmath.sqrt(2 / mpmath.pi), lambda x: mpmath.ncdf(x)
    first, second = mpmath.exp(gamma**2 / 2), mpmath.exp(2 * gamma**2)
    size = 2 * first * phi(gamma)
    return {
        "softmax": (first, second, first),
        "l2": (first, second, mpmath.sqrt(second / n)),
        "signed": (size + root / gamma, 2 * second * phi(2 * gamma), size),
        "identity": (1, gamma**2, 1),
        "relu_squared": (root * gamma, 1.5 * gamma**4, gamma**2 / 2),
        "relu_squared_mean": (root * gamma, 1.5 * gamma**4, 1),
    }[kernel]
