"""What is trained at several depths at once, what the table is read for, and rows that can fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures.training import _trained_depths, trainable_depth
from experiments.ledger import judged
from rc_jax import network, training
from tests.experiments import smoke_data


def verdicts(data):
    return {claim.key: claim.verdict.value for claim in judged(trainable_depth.ROWS, data)}


def made(accuracy, residual, order=(3.0, 3.0, 1.0, 1.0), gradient=(0.0, 0.0, 0.0, 0.0)):
    """Four kinds whose ten seeds and two depths have one accuracy each."""
    seeds = np.linspace(-0.01, 0.01, 10)[None, :, None]
    return smoke_data.load("trainable_depth") | {
        "kinds": np.array(["a", "b", "c", "d"]),
        "order": np.array(order),
        "accuracy": np.array(accuracy)[:, None, None] + seeds + np.zeros((1, 1, 2)),
        "failed": np.full((4, 10, 2), -1),
        "residual": np.array(residual, float)[:, None] + np.zeros((1, 2)),
        "gradient": np.array(gradient),
    }


def test_layers_beyond_a_depth_do_nothing(key):
    """The first layers alone answer, whatever the others are."""
    spec = trainable_depth.PRESETS["smoke"]
    stack = spec.stack("sigmoid")
    functions = _trained_depths.Functions(training.ModelSpec(stack=stack, inputs=3, outputs=3, tokens=3))
    model = functions.build(key, {})
    tokens = jnp.array([[0, 2, 1], [1, 1, 0]])
    first = jax.tree.map(lambda leaf: leaf[:1], model.layers())
    shallow = network.StackSpec(attention=stack.attention, depth=1)
    expected = jax.vmap(lambda x: model.read(network.apply(first, model.embed(x), shallow)))(tokens)
    np.testing.assert_allclose(functions.answers(model, tokens, jnp.asarray(1)), expected, atol=1e-6)
    np.testing.assert_allclose(functions.answers(model, tokens, jnp.asarray(2)), jax.vmap(model)(tokens), atol=1e-6)


def test_kinds_are_placed_by_the_table():
    data = made([0.4, 0.5, 0.6, 0.9], [-9, -3, -2, -np.inf], gradient=(0.1, -0.2, 3.0, 0.0))
    places = trainable_depth.places(data)
    assert places["order"].tolist() == [-3, -3, -1, -1]
    assert places["residual"].tolist() == [2, 3, 4, 1]
    assert places["gradient"].tolist() == [3, 2, 1, 4]
    assert places["table"].tolist() == [2.5, 2.5, 2.5, 2.5]


@pytest.mark.parametrize(
    ("accuracy", "residual", "verdict"),
    [
        ([0.3, 0.4, 0.8, 0.9], [-1, -2, -3, -4], "failed"),  # as the order says, against the table
        ([0.8, 0.9, 0.3, 0.4], [-2, -1, -4, -3], "held"),  # the other way round
    ],
)
def test_the_row_can_hold_and_fail(accuracy, residual, verdict):
    assert verdicts(made(accuracy, residual)) == {"trainable-table": verdict}


def test_what_failed_is_told():
    data = made([0.3, 0.4, 0.8, 0.95], [-1, -2, -3, -np.inf])
    data["failed"][1, 4, 1] = 7
    notes = {claim.key: claim.note for claim in judged(trainable_depth.ROWS, data)}
    told = "placed last: d; at depth 2 the median is 0.9 or more for: d; at no depth for: a, b, c; stopped: b"
    assert notes["trainable-table"].endswith(told)
