"""The figures of sinks: their networks and numbers against NumPy, and rows that can fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures.sinks import _trigger, sinks, sinks_in_models, trigger_task
from experiments.ledger import judged
from rc_jax import attention, network
from rc_jax.attention.parameters import project
from tests.experiments import smoke_data

SPEC = sinks.Spec(tokens=5, weights=(0.0, 0.4), values=(0.0, 1.0), depth=6)


def solved():
    """Stored arrays of the trigger task with numbers as after a longer training: a sink under softmax alone."""
    data = smoke_data.load("trigger_task")
    sink = np.broadcast_to(np.array([0.9, 0.0, 0.0])[None, :, None], data["0_sink"].shape)
    return data | {"0_sink": sink, "0_error": 0 * data["0_error"] + 0.01, "0_value": 0 * data["0_value"] + 0.05}


def verdicts(module, data):
    return {claim.key: claim.verdict for claim in judged(module.ROWS, data)}


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_relative_residual_against_plain_layers(x64, value):
    """X ← X + (1 − s)P′X + s v 1x₁ᵀ, over the growth of equal tokens."""
    x = np.random.default_rng(0).normal(size=(5, 4))
    averaging = np.tri(5) / np.arange(1, 6)[:, None]
    logs, y = sinks._relative(jnp.asarray(x), SPEC, 0.4, value, 6), x
    for layer in range(1, 7):
        y = y + 0.6 * averaging @ y + 0.4 * value * y[:1]
        apart = np.linalg.norm(y - y.mean(0)) / (1 + 0.6 + 0.4 * value) ** layer
        assert logs[layer] == pytest.approx(np.log(apart / np.linalg.norm(x - x.mean(0))), abs=1e-12)


@pytest.mark.parametrize("weight", [0.0, 0.6])
def test_rate_under_gaussian_weights_against_second_moments(weight):
    """Second moments of tokens become C + (1 − s)² P C Pᵀ: the largest eigenvalues of differences and of the mean."""
    averaging = np.tri(5) / np.arange(1, 6)[:, None]
    differences = np.eye(5)[1:] - np.eye(5)[:1]
    step = differences @ averaging @ np.linalg.pinv(differences)  # x_i − x_1 to itself
    grown = np.abs(np.linalg.eigvals(np.eye(16) + (1 - weight) ** 2 * np.kron(step, step))).max()
    assert sinks._gaussian(np.array(weight)) == pytest.approx(0.5 * np.log(grown / (1 + (1 - weight) ** 2)), abs=1e-12)


@pytest.mark.parametrize(("value", "rate", "depth"), [(0.0, np.log(1.05 / 1.1), 300), (-5.0, np.log(1.05 / 3.4), 12)])
def test_a_sink_of_negative_value_can_hasten_collapse(value, rate, depth):
    """Below v* = 1/3 a sink of weight 0.9 slows the collapse, which is −0.288 a layer without it, only if v ≥ 0."""
    averaging, x = np.tri(5) / np.arange(1, 6)[:, None], np.random.default_rng(2).normal(size=(5, 3))
    logs = []
    for _ in range(depth):
        x = x + 0.1 * averaging @ x + 0.9 * value * x[:1]
        logs.append(np.log(np.linalg.norm(x - x.mean(0)) / np.linalg.norm(x)))
    assert np.diff(logs)[-1] == pytest.approx(rate, abs=0.02)
    assert (rate > np.log(0.75)) == (value == 0)


def test_rows_of_the_trigger_networks_by_hand():
    scores = np.random.default_rng(1).normal(size=(2, 4, 4)).astype(np.float32)
    rows = [np.asarray(_trigger.row_weights(jnp.asarray(scores), jnp.array(kind))) for kind in range(3)]
    for head in range(2):
        for i in range(4):
            seen = np.exp(scores[head, i, : i + 1])
            np.testing.assert_allclose(rows[0][head, i, : i + 1], seen / seen.sum(), rtol=1e-5)
            np.testing.assert_allclose(rows[2][head, i, : i + 1], seen / (1 + seen.sum()), rtol=1e-5)
            relu = np.maximum(scores[head, i, : i + 1], 0) / (i + 1)
            np.testing.assert_allclose(rows[1][head, i, : i + 1], relu, rtol=1e-5)
    assert not any(row[:, np.triu_indices(4, 1)[0], np.triu_indices(4, 1)[1]].any() for row in rows)


@pytest.mark.slow
def test_trigger_network_against_the_layers_of_the_package(key):
    """Two layers of softmax rows with skip connections, and the sizes of single tokens' outputs."""
    task = _trigger.Task(tokens=4, features=5, layers=2, heads=2)
    model, drawn = task.build(key, {}), task.draw(3, key, 0)
    answer, rows, sizes = model(drawn.tokens[0], jnp.array(0))
    x = drawn.tokens[0]
    for layer, part in enumerate(model.layers()):
        np.testing.assert_allclose(rows[layer], attention.attention_weights(part, x, model.spec), atol=1e-6)
        single = [attention.attend(part, x[i : i + 1], model.spec) for i in range(4)]
        both = np.asarray(jnp.einsum("nd,hdk,hke->hne", x, part.value, part.output))
        np.testing.assert_allclose(both.sum(0), np.concatenate(single), atol=1e-5)
        np.testing.assert_allclose(sizes[layer], np.linalg.norm(both, axis=-1), rtol=1e-4, atol=1e-6)
        x = x + attention.attend(part, x, model.spec)
    np.testing.assert_allclose(answer, x, atol=1e-5)


def test_what_is_observed_of_even_rows(key):
    """Without queries every row is even: a network whose output is 0 has the error 1."""
    task = _trigger.Task(tokens=6, features=5)
    model, drawn = task.build(key, {}), task.draw(40, key, 1)
    for part in (model.parts[0].query, model.parts[0].output):
        part[...] = jnp.zeros_like(part[...])
    observed = _trigger.observe(drawn, model, {"kind": jnp.array(0)})
    idle = [[1 / (i + 1) for i in range(1, 6) if i != at] for at in np.asarray(drawn.trigger)]
    assert float(observed["sink"][0, 0]) == pytest.approx(np.mean(idle), rel=1e-5)
    assert float(observed["error"]) == pytest.approx(1.0)
    np.testing.assert_allclose(observed["map"][0, 0], np.tri(6) / np.arange(1, 7)[:, None], atol=1e-6)


@pytest.fixture(scope="module")
def run():
    """A small causal network on two texts, with the second token hidden from all others."""
    layer = attention.AttentionSpec(d_model=8, heads=2, causal=True)
    stack = network.StackSpec(attention=layer, depth=2, skip=True)
    params = network.init(jax.random.key(0), stack)
    x, mask = jax.random.normal(jax.random.key(1), (2, 5, 8)), sinks_in_models._hide(5, 1)
    return params, x, stack, mask, sinks_in_models._run(params, x, stack, mask)


def test_what_is_measured_of_models(run):
    params, x, stack, mask, (states, totals, sizes) = run
    np.testing.assert_allclose(states[0], network.hidden_states(params, x[0], stack, mask=mask), atol=1e-5)
    for layer in range(2):
        part = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params.attention)
        rows = attention.attention_weights(part, states[0, layer], stack.attention, mask=mask)
        np.testing.assert_allclose(totals[0, layer], np.asarray(rows).sum(axis=1), rtol=1e-4, atol=1e-5)
        assert not np.asarray(rows)[:, 2:, 1].any() and (np.asarray(rows)[:, 1, 1] > 0).all()
        values = project(states[0, layer], part.value, None, stack.attention)
        np.testing.assert_allclose(sizes[0, layer], np.linalg.norm(values, axis=-1), rtol=1e-4)
    others = np.asarray(states)[:, :, [0, 2, 3, 4]]
    sizes = np.linalg.norm(others, axis=-1, keepdims=True)
    measures = sinks_in_models._measures(jnp.asarray(others))
    for name, y in {"residual": others, "unit": others / sizes}.items():
        relative = np.linalg.norm(y - y.mean(2, keepdims=True), axis=(2, 3)) / np.linalg.norm(y, axis=(2, 3))
        np.testing.assert_allclose(measures[name], relative, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "changed", "rows"),
    [
        (sinks, {"sensitivity": lambda a: a[::-1]}, ["sinks-robust"]),
        (sinks, {"rate": lambda a: a[:, ::-1]}, ["sinks-rate", "sinks-critical"]),
        (trigger_task, {"0_sink": lambda a: a[:, [1, 0, 2]]}, ["trigger-softmax"]),
        (trigger_task, {"0_error": lambda a: 0 * a + 1}, ["trigger-softmax", "trigger-relu"]),
        (trigger_task, {"0_value": lambda a: 0 * a + 1}, ["trigger-nop"]),
    ],
)
def test_rows_can_fail(name, changed, rows):
    data = solved() if name is trigger_task else smoke_data.load("sinks")
    known = verdicts(name, data)
    other = verdicts(name, data | {key: change(data[key]) for key, change in changed.items()})
    assert all(known[row] in ("agrees", "held") and other[row] not in ("agrees", "held") for row in rows)


def test_sinks_of_the_first_tokens_value_would_not_avoid_mixing():
    data = smoke_data.load("sinks")
    assert verdicts(sinks, data)["sinks-over-mixing"] == "agrees"
    first = data["values"].tolist().index(1.0)
    changed = data | {"rate": data["rate"][:, [first] * data["values"].size]}
    assert verdicts(sinks, changed)["sinks-over-mixing"] == "differs"


def test_a_decoder_has_a_row_about_its_first_token():
    data = smoke_data.load("sinks_in_models")
    claims = {claim.key: claim for claim in judged(sinks_in_models.ROWS, data | {"causal": np.array([True])})}
    assert claims["sinks-decoder-first"].measured == pytest.approx(float(data["0_first"].mean(axis=(0, 2)).max()))
    weak = data | {"causal": np.array([True]), "0_first": 0 * data["0_first"] + 0.1}
    assert verdicts(sinks_in_models, weak)["sinks-decoder-first"] == "differs"
