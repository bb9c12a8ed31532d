"""Limits of attention at logits of order √(log T): against the sum over levels they come from, and simulated rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import collapse


def pressure(beta):
    """lim E log Z/log T = max over s of 1 − s²/2 + βs with no less than one logit at s, on a fine grid."""
    s = np.linspace(0, 2**0.5, 200_001)
    return np.max(1 - s**2 / 2 + np.multiply.outer(np.atleast_1d(beta), s), axis=1)


@pytest.mark.parametrize("beta", [0.3, 1.0, 1.6, 3.0, 10.0])
def test_limits_are_derivatives_of_the_sum_over_levels(beta):
    slope = (pressure(beta + 1e-4) - pressure(beta - 1e-4))[0] / 2e-4
    assert collapse.random_energy_participation(beta) == pytest.approx(1 - slope / beta, abs=1e-4)


def test_simulated_rows_approach_them():
    """The gaps close as T grows; far above the transition what is left is that of the largest logit."""
    rng = np.random.default_rng(0)
    gaps = []
    for n, rows in ((32, 4000), (8192, 200)):
        normals = rng.normal(size=(rows, n))
        top, gap = normals.max(axis=1), []
        for beta in (0.5, 4.0):
            sigma = beta * np.sqrt(np.log(n))
            p = np.exp(sigma * (normals - top[:, None]))
            p /= p.sum(axis=1, keepdims=True)
            square = (p * p).sum(axis=1)
            gap.append(abs(square.mean() - float(collapse.random_energy_participation(beta))))
        error = np.hypot(square.std(), top.std() / sigma) / np.sqrt(rows)
        assert abs(square.mean() - (1 - top.mean() / sigma)) < 5 * error + 0.02
        gap.append(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=1).mean() / np.log(n))  # whose limit is 0
        gaps.append(gap)
    assert np.all(np.array(gaps[1]) < np.array(gaps[0]))


def test_dtype_shape_and_gradient(dtype):
    beta = jnp.asarray([[0.0, 1.0], [1.5, 2.0]], dtype)
    participation = collapse.random_energy_participation(beta)
    assert participation.shape == (2, 2) and participation.dtype == dtype
    slope = jax.vmap(jax.grad(collapse.random_energy_participation))(beta.ravel())
    np.testing.assert_allclose(slope, [0, 0, 2**0.5 / 2.25, 2**0.5 / 4], rtol=1e-5)


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    for function in (collapse.random_energy_participation,):
        with pytest.raises(ValueError, match="`beta` must be >= 0"):
            function(-0.1)
        with pytest.raises(TypeError, match="`beta` must be a real number"):
            function("1")
        with pytest.raises(ValueError, match="`beta` must be finite"):
            function(float("inf"))
