"""The figure `kinds`: the order of a layer against plain arithmetic, sums of rows of equal scores by hand."""

import jax
import numpy as np
import pytest

from experiments.figures.collapse import kinds
from experiments.ledger import Verdict
from rc_jax import attention, network
from rc_jax.attention import KINDS
from rc_jax.collapse.kinds import kind_fall
from tests.experiments import smoke_data

SPEC = kinds.PRESETS["smoke"]


def plain_order(name, index):
    """The slope of log ‖res‖ after one layer against that before it, with the mean subtracted in float64."""
    stack = network.StackSpec(
        attention=attention.AttentionSpec(d_model=SPEC.d_model, heads=SPEC.heads, weights=name), depth=1
    )
    deep = network.StackSpec(attention=stack.attention, depth=SPEC.depth)
    draw, mean, rest = jax.random.split(jax.random.fold_in(jax.random.key(SPEC.seed), index), 3)
    params = jax.tree.map(lambda part: part[:1], network.init(draw, deep, dtype="float64"))
    mean = jax.random.normal(mean, (1, SPEC.d_model), "float64")
    rest = jax.random.normal(rest, (SPEC.tokens, SPEC.d_model), "float64")

    def logs(x):
        return [
            float(np.log(np.linalg.norm(y - y.mean(0)))) for y in map(np.asarray, (x, network.apply(params, x, stack)))
        ]

    (before, after), (smaller, last) = (logs(mean + size * rest) for size in (np.exp(-4), np.exp(-6)))
    return (after - last) / (before - smaller)


@pytest.mark.parametrize(("name", "about"), [pytest.param("softmax", 3, marks=pytest.mark.slow), ("sigmoid", 1)])
def test_orders_are_those_of_plain_arithmetic(name, about, x64):
    sizes = {"depth": SPEC.depth, "networks": SPEC.count, "d_model": SPEC.d_model, "tokens": SPEC.tokens}
    order = kind_fall(KINDS[name], heads=SPEC.heads, seed=SPEC.seed, **sizes).order
    assert order == pytest.approx(np.median([plain_order(name, index) for index in range(SPEC.count)]), abs=1e-6)
    assert order == pytest.approx(about, abs=0.05)


@pytest.mark.parametrize(
    ("name", "change"), [("softmax", 0), ("l2", 0), ("signed", 0), ("softpick", 0), ("identity", 0.1),
                         ("relu_squared_mean", 1.6**2 - 1.5**2)],
)  # fmt: skip
def test_change_of_the_sum_of_a_row_of_equal_scores(name, change, x64):
    assert kinds._change(KINDS[name], {}) == pytest.approx(change, abs=1e-12)


def test_the_first_row_is_that_of_orders_and_sums():
    data = smoke_data.load("kinds")
    row = kinds.ROWS[0]
    assert row.judge(data).verdict is Verdict.HELD
    assert row.judge(data | {"change": 0 * data["change"]}).verdict is Verdict.FAILED
    assert row.judge(data | {"order": np.full_like(data["order"], np.nan)}).verdict is Verdict.NOT_RUN


def test_sinkhorn_is_compared_on_the_projections_of_softmax(key):
    stacks = [network.StackSpec(attention=attention.AttentionSpec(d_model=4, weights=name), depth=1)
              for name in ("softmax", "sinkhorn")]  # fmt: skip
    one, other = (network.init(key, stack) for stack in stacks)
    jax.tree.map(np.testing.assert_array_equal, one, other)
