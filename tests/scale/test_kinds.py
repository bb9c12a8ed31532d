"""The gradient through any kind of weights against the formulas of three of them, and its best scale."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import scale
from rc_jax.attention import KINDS
from rc_jax.scale.kinds import kind_best_scale, kind_gradient


def test_softmax_and_1_5_entmax_by_their_formulas(x64):
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(5, 12)))
    p = np.asarray(jax.nn.softmax(1.7 * scores))
    np.testing.assert_allclose(
        kind_gradient(KINDS["softmax"], scores, 1.7), 1.7 * (1 - (p**2).sum(axis=-1)), rtol=1e-12
    )
    # J = α(diag g − ggᵀ/Σg), g = √p, so half the sum of magnitudes is α(Σg − Σg²/Σg).
    root = np.sqrt(np.asarray(KINDS["entmax15"](1.7 * scores[None])[0]))
    total = root.sum(axis=-1)
    np.testing.assert_allclose(
        kind_gradient(KINDS["entmax15"], scores, 1.7), 1.7 * (total - (root**2).sum(axis=-1) / total), rtol=1e-10
    )
    # Each sigmoid depends on its own score alone.
    slope = jax.nn.sigmoid(1.7 * scores - jnp.log(12)) * jax.nn.sigmoid(jnp.log(12) - 1.7 * scores)
    np.testing.assert_allclose(kind_gradient(KINDS["sigmoid"], scores, 1.7), 1.7 * slope.sum(axis=-1) / 2, rtol=1e-12)


def test_two_score_matrices_count_both(x64):
    scores = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 6)))
    first, second = (np.asarray(jax.nn.softmax(2 * part)) for part in scores)
    expected = 2 * (1 - (first**2).sum(-1)) + 0.3 * 2 * (1 - (second**2).sum(-1))
    got = kind_gradient(KINDS["differential"], scores, 2.0, {"subtracted": jnp.full(1, 0.3)})
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.slow
def test_the_best_scale_of_softmax_is_the_typical_scale(key):
    best = kind_best_scale(key, KINDS["softmax"], 64, rows=2048)
    optimum = scale.typical_optimum(key, 64, samples=4096)
    error = float(np.hypot(best.standard_error, optimum.standard_error))
    assert bool(best.converged) and abs(float(best.scale - optimum.scale)) < 5 * error + 0.03


def test_kinds_without_a_best_scale(key):
    assert np.isinf(kind_best_scale(key, KINDS["identity"], 8, rows=16).scale)
    flat = kind_best_scale(key, KINDS["power6"], 8, rows=16)
    assert np.isnan(flat.scale) and not bool(flat.converged)
