"""Softmax of capped logits: its measure against Jacobians, its objective against quadrature, limits of its scale."""

import itertools
import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import integrate, optimize

from rc_jax import scale
from tests.scale.test_one_more_logit import half_sum


def quadrature(alpha, n, cap):
    """The annealed objective from SciPy's adaptive integrals over one normal score."""
    last = 10 + 2 * math.sqrt(cap)

    def mean(k, slope):
        def integrand(s):
            capped = math.tanh(alpha * s / cap)
            return math.exp(k * cap * (capped - 1) - s * s / 2) * (1 - capped**2 if slope else 1.0)

        edges = [edge for edge in (-cap / alpha, 0.0, cap / alpha) if abs(edge) < last]
        value, _ = integrate.quad(integrand, -last, last, points=edges, limit=500, epsabs=0, epsrel=1e-12)
        return value / math.sqrt(2 * math.pi)

    normaliser = mean(1, False)
    return alpha * (mean(1, True) / normaliser - mean(2, True) / (n * normaliser**2))


def test_the_measure_is_half_the_sum_of_the_jacobian(x64):
    alpha, cap = 1.7, 0.8
    scores = jnp.asarray(np.random.default_rng(0).standard_normal(6))
    exact = half_sum(lambda s: jax.nn.softmax(cap * jnp.tanh(alpha * s / cap)), scores)
    p = np.exp(cap * np.tanh(alpha * scores / cap))
    p /= p.sum()
    assert abs(float(alpha * (p * (1 - p) / np.cosh(alpha * scores / cap) ** 2).sum()) - exact) < 1e-13


@pytest.mark.parametrize("cap", [0.3, 5.0, 50.0])
def test_the_scale_is_the_maximum_of_the_objective(x64, cap):
    n = 1000
    tried = np.geomspace(0.1, 20, 40)
    near = tried[np.argmax([quadrature(alpha, n, cap) for alpha in tried])]
    bounds = (near / 1.2, near * 1.2)
    best = optimize.minimize_scalar(
        lambda alpha: -quadrature(alpha, n, cap), bounds=bounds, method="bounded", options={"xatol": 1e-8}
    )
    assert abs(float(scale.capped_scale(n, cap)) - best.x) < 1e-5


def test_limits_of_the_scale(x64):
    # A cap far above log n changes nothing; one far below it leaves √u cosh u √c with u tanh u = ½, whatever n.
    n = np.array([64.0, 8192.0])
    np.testing.assert_allclose(scale.capped_scale(n, 1e6), scale.optimal_scale_exact(n), rtol=1e-6)
    u = optimize.brentq(lambda u: u * math.tanh(u) - 0.5, 0.1, 2)
    caps = np.array([25.0, 100.0])
    ratio = scale.capped_scale(1e300, caps) / np.sqrt(caps)
    distance = np.abs(ratio / (math.sqrt(u) * math.cosh(u)) - 1)
    assert distance[1] < 0.02 and distance[1] < 0.5 * distance[0]
    np.testing.assert_allclose(scale.capped_scale(1e300, 2.0), scale.capped_scale(1e200, 2.0), rtol=1e-9)
    assert scale.capped_scale(2.0, 1.0) == math.inf  # the objective rises for ever
    assert np.all(np.diff([quadrature(alpha, 2.0, 1.0) for alpha in np.geomspace(0.1, 100, 30)]) > 0)


def _objective(alpha, n, cap):
    """The annealed objective to 40 digits: Gauss–Legendre sums in panels of x = s α/c, and of s beyond."""
    b = mp.mpf(cap) / alpha
    edges = sorted({mp.mpf(0), *(b * 2**k for k in range(-2, 8)), *map(mp.mpf, (1, 2, 4, 6, 9, 12, 16, 20))})
    edges = [edge for edge in edges if edge <= 20]
    sums = [mp.mpf(0)] * 4
    for low, high in itertools.pairwise(edges):
        for node, weight in _NODES:
            s = low + (high - low) * (1 + node) / 2
            capped = mp.tanh(s / b)
            part, slope = weight * (high - low) / 2 * mp.exp(-s * s / 2), 1 - capped**2
            values = (1, mp.cosh(cap * capped), slope * mp.cosh(cap * capped), slope * mp.cosh(2 * cap * capped))
            sums = [total + part * value for total, value in zip(sums, values, strict=True)]
    mean, first, second = (total / sums[0] for total in sums[1:])
    return alpha * (first / mean - second / (n * mean**2))


with mp.workdps(40):
    _NODES = [
        (x, 2 / ((1 - x * x) * mp.diff(lambda t: mp.legendre(40, t), x) ** 2))
        for x in (
            mp.findroot(lambda t: mp.legendre(40, t), node, tol=1e-60, verify=False)
            for node in np.polynomial.legendre.leggauss(40)[0]
        )
    ]


FLAT = [(3.0, 0.2), (2.2, 1.0), (2.5, 0.5), (1e6, 0.125), (1e6, 2.0**-7), (8192.0, 5.0)]


@pytest.mark.parametrize(("n", "cap"), FLAT)
def test_maxima_that_are_flat_against_forty_digits(n, cap):
    """The objective to 40 digits rises just below the scale and falls just above it, as it is to be at a maximum."""
    for dtype, slack in (("float64", 1e-12), ("float32", 1e-5)):
        with jax.enable_x64(dtype == "float64"), mp.workdps(40):
            n_there, cap_there = (float(np.asarray(each, dtype)) for each in (n, cap))
            best = mp.mpf(float(scale.capped_scale(np.asarray(n, dtype), np.asarray(cap, dtype))))
            slopes = []
            for side in (best * (1 - mp.mpf(slack)), best * (1 + mp.mpf(slack))):
                ends = (side * (1 + step) for step in (mp.mpf("1e-15"), -mp.mpf("1e-15")))
                above, below = (_objective(end, mp.mpf(n_there), mp.mpf(cap_there)) for end in ends)
                slopes.append(above - below)
            assert slopes[0] > 0 > slopes[1], dtype


@pytest.mark.slow
def test_derivatives_of_the_scale(x64):
    step = 1e-5
    for n, cap in ((1000.0, 5.0), (3.0, 0.2), (4.0, 1.0), (1e4, 1e3)):
        by_n, by_cap = jax.grad(scale.capped_scale, (0, 1))(n, cap)
        along_n = [scale.capped_scale(n * (1 + sign * step), cap) for sign in (1, -1)]
        along_cap = [scale.capped_scale(n, cap * (1 + sign * step)) for sign in (1, -1)]
        assert abs(by_n * 2 * n * step / (along_n[0] - along_n[1]) - 1) < 1e-6
        assert abs(by_cap * 2 * cap * step / (along_cap[0] - along_cap[1]) - 1) < 1e-6
    assert not np.isfinite(jax.grad(scale.capped_scale)(2.0, 1.0))  # ∞ has no derivative


@pytest.mark.usefixtures("as_installed")
def test_errors():
    with pytest.raises(ValueError, match="`n` must be"):
        scale.capped_scale(1.0, 5.0)
    with pytest.raises(ValueError, match="`cap` must be"):
        scale.capped_scale(10, 0.0)
