"""The figure `trained_heads`: a row of two scores, whose largest gradient is known."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from experiments.figures.models import trained_heads
from experiments.ledger import judged
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


def drawn(exponent, factor, right):
    """Six layers of twelve heads: gaps of density 1 at 0, tails of this exponent and factor, and signs of sinks."""
    uniform = (np.arange(1000) + 0.5) / 1000
    largest = trained_heads.PAIR * factor * trained_heads.TAIL ** (1 / exponent - 1) / uniform ** (1 / exponent)
    signs = np.where(np.arange(72) < right * 72, 1.0, -1.0).reshape(6, 12, 1)
    return {
        "gap": np.broadcast_to(uniform, (6, 12, 1000)),
        "largest": np.broadcast_to(largest, (6, 12, 1000)),
        "weight": np.ones((6, 12, 1)),
        "predicted": signs,
        "measured": np.ones((6, 12, 1)),
    }


@pytest.mark.parametrize(
    ("exponent", "factor", "right", "verdicts"),
    [
        (1.0, 1.0, 0.9, ["held", "held", "held"]),
        (1.5, 1.5, 0.4, ["failed", "failed", "failed"]),
        (1.15, 1.0, 0.7, ["undecided", "held", "undecided"]),
    ],
)
def test_predictions_can_hold_and_fail(exponent, factor, right, verdicts):
    rows = [row for row in trained_heads.ROWS if row.predicted]
    found = [claim.verdict.value for claim in judged(rows, drawn(exponent, factor, right))]
    assert found == verdicts
