"""One scale for a decoder: exact fractions, sums in NumPy, and a search that knows no formula."""

from fractions import Fraction

import jax
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


@pytest.mark.parametrize("floored", [False, True])
def test_losses_against_plain_sums(dtype, floored):
    length, alphas = 200, np.array([0.7, 1.5, 2.2])
    rows = np.arange(2, length + 1)
    best = np.array(
        [-minimize_scalar(lambda a, n=n: -plain(a, n), bounds=(0.1, 4), method="bounded").fun for n in rows]
    )
    values = plain(alphas[:, None], rows)
    loss = 1 - (np.maximum(values, 0) if floored else values) / best
    got = scale.decoder_loss(jnp.asarray(alphas, dtype), length, floored=floored)
    assert got.mean.dtype == got.worst.dtype == dtype
    np.testing.assert_allclose(got.mean, loss.mean(1), rtol=1e-5)
    np.testing.assert_allclose(got.worst, loss.max(1), rtol=1e-5)
    np.testing.assert_array_equal(got.worst_row, rows[loss.argmax(1)])
    one = scale.scale_loss(jnp.asarray(alphas[1], dtype), jnp.asarray(rows, dtype), floored=floored)
    np.testing.assert_allclose(one, loss[1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_own_scale_loses_nothing_and_one_row_is_its_own(x64):
    n = np.array([2.0, 50.0, 1e4])
    for dim in (None, 128):
        np.testing.assert_allclose(scale.scale_loss(scale.optimal_scale(n, dim), n, dim), 0, atol=1e-14)
    loss = scale.decoder_loss(1.0, 2)
    assert loss.mean == loss.worst == scale.scale_loss(1.0, 2)
    assert loss.worst_row == 2
    assert scale.decoder_scale(2) == pytest.approx(float(scale.optimal_scale(2)), rel=1e-14)
    slope = jax.grad(scale.scale_loss)(float(scale.optimal_scale(50.0)), 50.0)
    assert abs(slope) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "arguments", "wanted"),
    [
        (scale.scale_loss, (jnp.float32(1.5), 1024), "float32"),
        (scale.scale_loss, (np.float32(1.5), np.array(1024.0)), "float64"),
        (scale.scale_loss, (jnp.bfloat16(1.5), 1024), "bfloat16"),
        (scale.scale_loss, (1.5, 1024, np.float32(64)), "float32"),
        (scale.decoder_scale, (1024, np.float32(64)), "float32"),
        (scale.decoder_scale, (1024, jnp.bfloat16(64)), "bfloat16"),
    ],
)
def test_mixed_dtypes(x64, function, arguments, wanted):
    """As every other function: the widest of the arrays, computed in single precision at least."""
    got, exact = function(*arguments), function(*(float(x) for x in arguments))
    assert got.dtype == wanted
    assert float(got) == pytest.approx(float(exact), rel=4 * float(jnp.finfo(wanted).eps), abs=1e-6)


@pytest.mark.slow
def test_floored_loss_has_derivatives_where_rows_overflow():
    """At α = 30, e^{α²} is beyond single precision: every row of twenty has lost all, and stays so."""
    loss, slope = jax.value_and_grad(lambda a: scale.decoder_loss(a, 20, floored=True).mean)(30.0)
    assert loss == 1 and slope == 0
    value, slope = jax.value_and_grad(scale.scale_loss)(2.0, np.array(1024.0), None, True)
    assert value == pytest.approx(float(scale.scale_loss(2.0, 1024.0)), rel=1e-5)
    assert slope == pytest.approx(float(jax.grad(scale.scale_loss)(2.0, 1024.0)), rel=1e-5)


@pytest.mark.slow
def test_dimension_is_traced():
    count = 0

    @jax.jit
    def traced(dim):
        nonlocal count
        count += 1
        return scale.decoder_loss(10.0, 20, dim).mean, scale.decoder_scale(20.0, dim)

    assert traced(16.0)[1] < traced(64.0)[1]
    assert count == 1
