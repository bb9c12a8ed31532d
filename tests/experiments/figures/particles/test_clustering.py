"""Particles of the figure `clustering` against plain softmax attention, and its exact layers against the recursion."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ive

from experiments.figures.particles import _circle_flow, _layers
from rc_jax import collapse


def test_circle_against_softmax_attention_of_all_pairs(key):
    """Runge–Kutta's method in float64 NumPy on the same angles, with weights e^{β cos} normalised by rows."""
    beta, width, steps, order = 6.0, 0.25, 6, np.arange(24)
    kernel = np.where(order > 0, 2, 1) * ive(order, beta) / ive(0, beta)
    keys = jax.random.split(key, 3)
    observed = _circle_flow.run(keys, beta, jnp.asarray(kernel, jnp.float32), 50.0, width, carriers=64, steps=steps)
    angles, maxima, log_modes = (np.asarray(each, float) for each in observed)

    def velocity(at):
        apart = at[:, None] - at
        weights = np.exp(beta * np.cos(apart))
        return -(weights * np.sin(apart)).sum(axis=1) / weights.sum(axis=1)

    for draw in range(3):
        at = angles[draw, 0]
        for _ in range(steps):
            a = velocity(at)
            b = velocity(at + width / 2 * a)
            c = velocity(at + width / 2 * b)
            at = at + width / 6 * (a + 2 * b + 2 * c + velocity(at + width * c))
        np.testing.assert_allclose(angles[draw, -1], at, atol=2e-5)
        np.testing.assert_allclose(
            np.exp(log_modes[draw, -1]), abs(np.exp(-1j * np.outer(order, at)).mean(axis=1)), atol=1e-5
        )
        field = np.exp(beta * np.cos(np.linspace(0, 2 * np.pi, 2000, endpoint=False)[:, None] - at)).sum(axis=1)
        assert maxima[draw, -1] == ((field > np.roll(field, 1)) & (field > np.roll(field, -1))).sum()


def test_first_modes_are_those_of_independent_tokens(key):
    """E|m_k|² = 1/N, in standard errors, whatever the number of carriers."""
    count, tokens = 4000, 1e4
    start = jax.vmap(lambda each: _circle_flow.start(each, 64, 8, tokens, jnp.float32))
    angles = np.asarray(start(jax.random.split(key, count)), float)
    for k in (1, 5):
        squares = abs(np.exp(-1j * k * angles).mean(axis=1)) ** 2 * tokens
        assert abs(squares.mean() - 1) < 5 * squares.std() / math.sqrt(count)


@pytest.mark.slow
def test_exact_layers_follow_the_recursion():
    """Orthogonal tokens in the package's mean–residual arithmetic, far below any rounding; Mix-LN in two parts."""
    steps = np.full(120, 0.5, np.float32)
    x = math.sqrt(12) * jnp.eye(7, 12)[None]
    for norm in ("post", "ngpt", "pre", "peri", "mix"):
        logs = np.asarray(_layers.log_gaps(x, _layers.schedule(norm, steps, "float32"), 2.0)[0], float)[0]
        if norm == "mix":
            early = collapse.clustering.equiangular_layers(steps[:60], 7, 2.0).log_gap
            late = collapse.clustering.equiangular_layers(
                steps[60:], 7, 2.0, norm="pre", start=float(early[-1])
            ).log_gap
            law = np.concatenate([early, late[1:]])
        else:
            law = collapse.clustering.equiangular_layers(steps, 7, 2.0, norm=norm).log_gap
        np.testing.assert_allclose(logs, law, rtol=2e-5, atol=2e-5)
        assert law[-1] < (-6 if norm in ("pre", "peri") else -45)
