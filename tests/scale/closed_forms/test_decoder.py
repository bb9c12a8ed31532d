"""One scale for a decoder: exact fractions, sums in NumPy, and a search that knows no formula."""

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from rc_jax import scale


def plain(alpha, n):
    """The annealed gradient of Gaussian scores."""
    return alpha * (1 - np.exp(alpha**2) / n)


@pytest.mark.parametrize("length", [2, 3, 10, 1000])
def test_harmonic_mean_by_fractions(dtype, length):
    exact = Fraction(length - 1) / sum(Fraction(1, i) for i in range(2, length + 1))
    got = scale.effective_keys(jnp.asarray(length, dtype))
    assert got.dtype == dtype
    assert got == pytest.approx(float(exact), rel=16 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("length", [16, 3000])
def test_harmonic_mean_is_the_best_single_number_of_keys(x64, length):
    rows = np.arange(2, length + 1)
    search = minimize_scalar(
        lambda a: -plain(a, rows).mean(), bounds=(0.3, 4), method="bounded", options={"xatol": 1e-9}
    )
    assert scale.decoder_scale(length) == pytest.approx(search.x, rel=1e-6)
    assert scale.decoder_scale(length) == pytest.approx(float(scale.optimal_scale_exact(scale.effective_keys(length))))
    objective = scale.annealed_objective(search.x, scale.effective_keys(length))
    assert objective == pytest.approx(plain(search.x, rows).mean(), rel=1e-12)


@pytest.mark.slow
def test_the_same_for_cosines(x64):
    rows = np.arange(2.0, 301.0)
    best = scale.decoder_scale(300, 64)
    mean = [float(scale.annealed_objective(a * best, rows, 64).mean()) for a in (0.999, 1.0, 1.001)]
    assert mean[1] > max(mean[0], mean[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "arguments", "wanted"),
    [
        (scale.decoder_scale, (1024, np.float32(64)), "float32"),
        (scale.decoder_scale, (1024, jnp.bfloat16(64)), "bfloat16"),
    ],
)
def test_mixed_dtypes(x64, function, arguments, wanted):
    """As every other function: the widest of the arrays, computed in single precision at least."""
    got, exact = function(*arguments), function(*(float(x) for x in arguments))
    assert got.dtype == wanted
    assert float(got) == pytest.approx(float(exact), rel=4 * float(jnp.finfo(wanted).eps), abs=1e-6)
