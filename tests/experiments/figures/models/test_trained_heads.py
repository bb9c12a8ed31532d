"""The figure `trained_heads`: a row of two scores, whose largest gradient is known."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from experiments.figures.models import trained_heads
from rc_jax import attention


def test_two_scores_let_through_the_constant_over_their_gap():
    best = optimize.minimize_scalar(lambda x: -x / 2 / np.cosh(x / 2) ** 2, bounds=(0, 5), method="bounded")
    assert -best.fun == pytest.approx(trained_heads.PAIR)
    # two tokens with scores 0 and ±g: queries and keys read one feature of two
    spec = attention.AttentionSpec(d_model=2, d_head=1)
    read = jnp.array([[[1.0], [0.0]]])
    params = attention.AttentionParams(read, read, read, jnp.zeros((1, 1, 2)))
    gap, largest = trained_heads._rows(params, jnp.array([[[0.0, 1.0], [0.5, 1.0]]]), spec)
    assert gap[0, 1] == pytest.approx(0.25)
    assert largest[0, 1] * gap[0, 1] == pytest.approx(trained_heads.PAIR, rel=0.01)
