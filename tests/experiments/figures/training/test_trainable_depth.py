"""What is trained at several depths at once, what the table is read for, and rows that can fail."""

import re

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
    """Kinds, four unless more are given, whose ten seeds and two depths have one accuracy each."""
    count = len(accuracy)
    seeds = np.linspace(-0.01, 0.01, 10)[None, :, None]
    return smoke_data.load("trainable_depth") | {
        "kinds": np.array(list("abcdefghijkl"[:count])),
        "order": np.array(order),
        "accuracy": np.array(accuracy)[:, None, None] + seeds + np.zeros((1, 1, 2)),
        "failed": np.full((count, 10, 2), -1),
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


LOW, HIGH = [0.3, 0.35, 0.4, 0.45], [0.7, 0.75, 0.8, 0.85]


@pytest.mark.parametrize(
    ("accuracy", "residual", "order", "table"),
    [
        (LOW + HIGH, [-1, -2, -3, -4, -5, -6, -7, -8], "held", "failed"),  # as the order says, against the table
        (HIGH + LOW, [-4, -3, -2, -1, -8, -7, -6, -5], "failed", "held"),  # the other way round
    ],
)
def test_rows_can_hold_and_fail(accuracy, residual, order, table):
    data = made(accuracy, residual, order=[3.0] * 4 + [1.0] * 4, gradient=np.zeros(8))
    assert verdicts(data) == {"trainable-order": order, "trainable-table": table}


def test_rows_have_the_error_that_was_committed_and_notes_the_one_over_kinds():
    """Seeds agree to a hundredth. Eight kinds at random places say little of others."""
    mixed = [0.3, 0.7, 0.5, 0.6, 0.4, 0.65, 0.35, 0.55]
    data = made(mixed, [-3, -1, -4, -2, -8, -5, -7, -6], order=[3.0, 1.0] * 4, gradient=np.zeros(8))
    claims = {claim.key: claim for claim in judged(trainable_depth.ROWS, data)}
    for key, least in {"trainable-table": 0.15, "trainable-order": 0.05}.items():
        wide = float(re.search(r"it is ± ([\d.]+)", claims[key].note)[1])
        assert wide > least and claims[key].standard_error < wide / 2


def test_the_note_has_the_kinds_whose_table_is_known_alone():
    """The two kinds whose residual is not known train worst; of the other six the table has the wrong order."""
    accuracy, residual = [0.1, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], [-np.inf, -np.inf, -1, -2, -3, -4, -5, -6]
    data = made(accuracy, residual, order=[3.0, 1.0] * 4, gradient=np.zeros(8))
    note = {claim.key: claim.note for claim in judged(trainable_depth.ROWS, data)}["trainable-table"]
    assert "placed last: a, b; over the other 6 kinds alone" in note
    assert "by the table -1.00" in note


def test_what_failed_is_told():
    data = made([0.3, 0.4, 0.8, 0.95], [-1, -2, -3, -np.inf])
    data["failed"][1, 4, 1] = 7
    notes = {claim.key: claim.note for claim in judged(trainable_depth.ROWS, data)}
    told = "at depth 2 the median is 0.9 or more for: d; at no depth for: a, b, c; stopped: b"
    assert notes["trainable-order"].endswith(told)
    assert "placed last: d" in notes["trainable-table"]
