"""The sphere: its layers against arithmetic of many digits, rotations, and the moments between two layers."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from experiments.figures.collapse import _globe, _sphere
from rc_jax import network
from tests.oracles import collapse as oracle


def test_rotations_are_uniform():
    rotations = np.asarray(_sphere.rotations(jax.random.key(0), 4000, "float32"), float)
    np.testing.assert_allclose(
        rotations @ rotations.transpose(0, 2, 1), np.broadcast_to(np.eye(3), rotations.shape), atol=1e-5
    )
    assert (np.linalg.det(rotations) > 0.99).all()
    u = rotations[:, 0, 0]  # uniform on [−1, 1], as every entry
    for power, moment in ((1, 0), (2, 1 / 3), (4, 1 / 5)):
        values = u**power
        assert abs(values.mean() - moment) < 5 * values.std() / math.sqrt(len(u))
    assert abs(rotations[:, 0, 0] @ rotations[:, 1, 1]) / len(u) < 5 / math.sqrt(len(u))


@pytest.mark.slow
def test_layers_against_two_thousand_digits():
    with jax.enable_x64(True):
        key = jax.random.key(3)
        x = _sphere.tokens(jax.random.fold_in(key, 0), 5, jnp.asarray(0.7), "float64")
        params = _sphere.layers(jax.random.fold_in(key, 1), 6, "float64")
        norm = network.NormParams(jnp.ones((6, 3)))
        step = jax.jit(_sphere.states)
        for skip, strength in ((False, 1.0), (True, 1.0), (True, 0.4)):
            logs = np.asarray(step(params, x, float(skip), strength).log_size)
            spec = network.StackSpec(attention=_sphere.LAYER, depth=6, skip=skip, norm="post", norm_kind="rms",
                                     norm_epsilon=_sphere.EPSILON)  # fmt: skip
            weights = network.LayerParams(params._replace(output=strength * params.output), attention_norm=norm)
            with mpmath.workdps(2000):
                exact = oracle.log_residuals(jax.tree.map(np.asarray, weights), x, spec)
            np.testing.assert_allclose(logs, np.array(exact, float), rtol=1e-11, atol=1e-11)
            if not skip:
                assert logs[-1] < -300


def test_view_between_layers():
    """Directions stay on the sphere and meet the tokens at the layers; a size below every float is still a number."""
    rng = np.random.default_rng(2)
    mean, direction = rng.normal(size=(3, 3)), rng.normal(size=(3, 4, 3))
    view = _globe.View(mean, direction, np.array([0.0, -2.0, -5e5]))
    for moment in (0.0, 0.3, 1.0, 1.7, 2.0):
        np.testing.assert_allclose(np.linalg.norm(view.directions(moment), axis=1), 1)
    tokens = mean[1] + math.exp(-2) * direction[1]
    np.testing.assert_allclose(view.directions(1.0), tokens / np.linalg.norm(tokens, axis=1, keepdims=True))
    np.testing.assert_allclose(np.square(view.differences(1.4)).sum(axis=1).mean(), 1)
    assert _globe.size_text(view.log_distance(2.0)) == r"apart by $10^{-217\,148}$"
    assert _globe.size_text(math.log(0.25)) == "apart by 0.25"
