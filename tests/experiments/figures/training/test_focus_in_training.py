"""The recall figure's helpers against NumPy: tokens, S of part of a row, the best rate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from experiments.figures.training import _focus_in_training as recall
from experiments.figures.training import focus_in_training
from experiments.ledger import Verdict, judged
from rc_jax.training import tasks
from rc_jax.training.tasks._recall import Pairs

TASK = recall.Task(pairs=6, keys=9, values=4, d_model=8, d_head=4)
LENGTH = jnp.asarray(5)


def sparsity(row):
    return np.abs(row).mean() / np.sqrt(np.mean(np.square(row)))


@pytest.mark.slow
def test_one_layer_by_hand():
    """Channel decay over the last pairs and nothing else, by hand: tokens, rows and answers."""
    model = TASK.build("channel decay", jax.random.key(1), {})
    drawn = TASK.draw(20, jax.random.key(2), 0)
    asked = tasks.recall_question(drawn, length=LENGTH)
    tokens, mask = TASK.embed(model, drawn, asked.key), tasks.recall_mask(TASK.pairs, length=LENGTH)
    table = np.asarray(model.embedding[...], float)
    pairs = table[np.asarray(drawn.keys)] + table[np.asarray(drawn.values) + TASK.keys]
    question = table[np.asarray(asked.key)]
    np.testing.assert_allclose(tokens, np.concatenate([pairs, question[:, None]], axis=1), rtol=1e-6)

    layer = jax.tree.map(lambda leaf: np.asarray(leaf, float)[0, 0], model.layers().attention)
    features = elu_plus_one(pairs[:, 1:] @ layer.key) * layer.parts["decay"] ** np.arange(5, 0, -1)[:, None]
    rows = np.einsum("bc,bjc->bj", elu_plus_one(question @ layer.query), features)
    mixed = np.einsum("bj,bjd->bd", rows / rows.sum(axis=1, keepdims=True), pairs[:, 1:])
    expected = mixed @ layer.value @ layer.output @ np.asarray(model.readout[...], float)
    np.testing.assert_allclose(recall.answers(model, tokens, mask), expected, atol=2e-5)


def elu_plus_one(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def test_focus_counts_only_what_is_there():
    rows = np.random.default_rng(0).normal(size=(7, 9)).astype(np.float32)
    rows[:, 5:] = 0
    rows[3] = 0
    measured = recall.focus(jnp.asarray(rows), LENGTH)
    expected = [1 if index == 3 else sparsity(row[:5]) for index, row in enumerate(rows)]
    np.testing.assert_allclose(measured, expected, rtol=1e-5)


def test_best_rate():
    validation = np.array([[[0.2, 0.9], [0.5, np.nan]], [[0.3, 0.1], [0.4, 0.7]]])
    assert recall.best_rate(validation).tolist() == [1, 0]


def test_commonest_value():
    # The first quarter of the sequences, all of whose values are 2, chooses the rate and is left out.
    values = jnp.array([[2, 2, 2, 2], [3, 1, 1, 2], [2, 2, 3, 0], [2, 2, 3, 0]])
    drawn = Pairs(jnp.array([[0, 1, 2, 3]] * 4), values, jnp.array([0.5, 0.5, 0.0, 0.0]))
    # of 4: 1, 2 and 2 are said, the pairs asked for hold 1, 0 and 0; of 1: the last one is said and asked for
    np.testing.assert_allclose(recall.commonest(drawn, (1, 4)), [1, 1 / 3])


def test_rank_correlation():
    random = np.random.default_rng(0)
    x, y = np.round(random.normal(size=(2, 8, 5)), 1)
    expected = scipy.stats.spearmanr(x, y, axis=None).correlation  # pyright: ignore[reportAttributeAccessIssue]
    assert abs(recall.rank_correlation(x, y) - expected) < 1e-12
    lost = np.where(np.arange(5) == 1, np.nan, y)
    for other in (np.ones_like(x), lost):
        assert np.isnan(recall.rank_correlation(x, other))


def test_every_kind_has_an_appearance():
    assert set(focus_in_training.ALL) == set(focus_in_training.LOOKS)
    assert {*focus_in_training.QUICK, *focus_in_training.LINEAR, *focus_in_training.BLIND} <= set(focus_in_training.ALL)
    assert len({repr(look) for look in focus_in_training.LOOKS.values()}) == len(focus_in_training.ALL)


def planted(kinds=focus_in_training.ALL, seeds=3):
    """Results as theory has them: (kind, seed, length, record)."""
    lengths, records = np.array([8, 32]), 4
    shape = (len(kinds), seeds, len(lengths), records)
    linear = [index for index, kind in enumerate(kinds) if kind in focus_in_training.LINEAR]
    s = np.full(shape, 0.9) + np.linspace(0, 0.05, len(kinds))[:, None, None, None]
    s[0, :, :, -1] = lengths**-0.5
    accuracy = np.where(s < 0.5, 0.99, 1 - s)
    s[..., 0] = 1 - s[..., 0]  # before training the other way round
    accuracy[linear, :, 1] -= 0.01
    data = {"accuracy": accuracy, "sparsity": s, "seen": lengths[:, None] * s**2, "chance": np.full(shape, 0.0625)}
    data |= {"failed": np.full(shape[:3], -1), "step": np.arange(records)}
    return data | {"kinds": np.array(kinds), "lengths": lengths, "commonest": np.array([0.3, 0.2])}


def verdicts(data):
    return {claim.key: claim.verdict for claim in judged(focus_in_training.ROWS, data)}


def test_claims_can_hold_and_fail():
    assert verdicts(planted()) == {f"focusing-{key}": Verdict.AGREES for key in ("cannot", "blind")}
    data = planted()
    for name in ("accuracy", "sparsity", "seen"):
        data[name] = data[name][::-1].copy()  # what softmax did, the last kind has done
    data["commonest"] -= 0.3
    assert set(verdicts(data).values()) == {Verdict.DIFFERS}


def test_what_stopped_leaves_rows_not_run_and_is_drawn():
    data = planted()
    data["failed"][0, 0, 1] = 2
    for name in ("accuracy", "sparsity", "seen", "chance"):
        data[name][0, 0, 1, 2:] = np.nan
    assert verdicts(data)["focusing-cannot"] == Verdict.NOT_RUN
    drawing = focus_in_training.plot(data)
    assert any(line.get_label() == "stopped: not finite" for line in drawing.axes[0].lines)
