"""Scales of current models' rows: one more logit, differential, sigmoid, against Jacobians and quadrature."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import scale
from rc_jax.attention import KINDS


def half_sum(weights, scores):
    """Half the sum of |∂a_i/∂s_j| by differentiation."""
    return 0.5 * float(jnp.abs(jax.jacobian(weights)(scores)).sum())


def test_the_measure_is_half_the_sum_of_the_jacobian(x64):
    alpha, sink = 1.7, 0.4
    scores = jnp.asarray(np.random.default_rng(0).standard_normal(6))
    p = KINDS["softmax_sink"](alpha * scores[None, None], None, {"sink": jnp.asarray([sink])})[0, 0]
    share = float(p.sum())
    exact = half_sum(
        lambda s: KINDS["softmax_sink"](alpha * s[None, None], None, {"sink": jnp.asarray([sink])})[0, 0], scores
    )
    assert abs(alpha * (share * (1 + share) / 2 - float((p**2).sum())) - exact) < 1e-13
    # Of differential weights with scores of their own the two measures add up, so α* is that of softmax.
    both = jnp.asarray(np.random.default_rng(1).standard_normal((2, 6)))
    first, second = (float(scale.gradient_norm(row, alpha)) for row in both)
    exact = half_sum(
        lambda s: KINDS["differential"](alpha * s[:, None], None, {"subtracted": jnp.asarray([0.3])})[0, 0], both
    )
    assert abs(first + 0.3 * second - exact) < 1e-13


@pytest.mark.slow
def test_sigmoid_weights_have_no_best_scale(x64):
    """½ α n E sigmoid'(αε − log n) = ½ n ∫ sigmoid'(u − log n) φ(u/α) du rises with α for every u, to n/(2√(2π))."""
    n, at = 100, np.linspace(-80, 80, 20001)
    slope = 1 / (4 * np.cosh((at - math.log(n)) / 2) ** 2)
    values = [
        n / 2 * np.trapezoid(slope * np.exp(-((at / alpha) ** 2) / 2), at) / math.sqrt(2 * math.pi)
        for alpha in (0.5, 1, 2, 5, 20, 1000)
    ]
    assert np.all(np.diff(values) > 0) and abs(values[-1] * 2 * math.sqrt(2 * math.pi) / n - 1) < 1e-4
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((400, n))
    measured = [half_sum(lambda s: KINDS["sigmoid"](2 * s[None, None])[0, 0], jnp.asarray(row)) for row in rows[:40]]
    error = np.std(measured) / math.sqrt(len(measured))
    assert abs(np.mean(measured) - values[2]) < 5 * error
