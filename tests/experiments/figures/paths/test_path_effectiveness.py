"""The path study's baselines by counting, and paths where the exact sense and the one run again are the same."""

import functools

import jax
import numpy as np
import pytest

from experiments.figures.paths import _path_effectiveness as study
from experiments.figures.paths import path_effectiveness
from experiments.ledger import Verdict, judged
from rc_jax import training


def test_baselines_by_counting():
    train = np.array([[0, 1, 2], [0, 1, 1], [0, 2, 1], [1, 2, 1]])
    test = np.array([[0, 1, 1], [1, 2, 2]])
    shares = study.baselines(train, test, 4)
    assert shares["majority"] == 3 / 6  # label 1 is there five times, 0 and 2 three times
    assert shares["place"] == 3 / 6  # 0, then 1 or 2 (the first wins), then 1
    many = np.random.default_rng(1).integers(4, size=(500, 8))
    chance = study.baselines(many, many, 4)["chance"]
    assert abs(chance - 1 / 4) < 5 * (3 / 16 / (study.GUESSES * many.size)) ** 0.5


def test_labels_by_symbol_by_counting():
    train = np.array([[0, 0, 1, 1]]), np.array([[2, 2, 0, 0]])
    test = np.array([[0, 1, 3, 3]]), np.array([[2, 0, 0, 1]])  # 3 is new: 0, the first of the two commonest labels
    assert study.by_symbol(train, test, 3) == 3 / 4


@pytest.mark.slow
def test_one_head_in_one_layer_is_the_same_in_every_sense(key):
    task = study.Task("sorting", 20, 30, 6, 5, heads=1, d_model=8, epochs=1, depth=1, symbols=5)
    train, (x, labels) = task.examples(key)
    assert (train[0].shape, x.shape, task.steps) == ((20, 6), (30, 6), 0)
    paths = study._draw(jax.random.fold_in(key, 2), task, 30)
    assert paths.shape == (30, 2, study.TOGETHER, 1)
    assert (np.asarray(paths) == np.array([-1, 0])[None, :, None, None]).all()

    @jax.jit
    def measured(key):
        model = training.Transformer(key, task.model())
        effects = jax.vmap(functools.partial(study._one, model))(x, labels, paths)
        return effects, training.accuracy(jax.vmap(model)(x), labels)

    effects, accuracy = (jax.tree.map(np.asarray, each) for each in measured(jax.random.fold_in(key, 1)))
    np.testing.assert_allclose(effects["exact"], effects["alone_plain"], atol=1e-6)  # P X W is Y_1, and X is Y_0
    np.testing.assert_array_equal(effects["cumulative"][:, -1], effects["network"])
    np.testing.assert_allclose(effects["network"].mean(), accuracy, rtol=1e-6)
    assert effects["error"].max() < 1e-6


def test_memorised_examples_are_asked_for_again(key):
    task = study.Task("memorisation", 10, 0, 4, 2, heads=1, d_model=8, epochs=3, batch_size=5, symbols=7)
    train, test = task.examples(key)
    assert task.steps == 6
    assert all((a == b).all() for a, b in zip(train, test, strict=True))


@pytest.fixture(scope="module")
def made_up():
    """Two tasks whose accuracies are chosen; the second one's networks were not trained as stated."""
    data: dict[str, np.ndarray] = {"tasks": np.array(["sorting", "convex hull"])}
    falls = np.array([0.2, 0.5, 0.2, 0.15, 0.12, 0.1, 0.1])
    for index in range(2):
        seeds = np.array([-0.001, 0.001])[:, None]
        level = {"exact": falls, "alone": falls, "together": falls, "alone_plain": falls, "size": falls}
        columns = {name: values[None] + seeds for name, values in level.items()}
        columns["cumulative"] = np.array([0.2, 0.5, 0.9, 0.98, 0.99, 0.99, 0.99])[None] + seeds
        columns |= {"network": np.array([0.985, 0.99]), "error": np.array([1e-7, 2e-7])}
        columns |= {"chance": np.asarray(0.1), "majority": np.asarray(0.1), "place": np.asarray(0.3)}
        columns |= {} if index else {"symbol": np.asarray(0.2)}
        columns |= {"step": np.arange(3), "loss": np.ones((2, 2)), "accuracy": np.ones((2, 3))}
        columns |= {"failed": np.array([-1, -1]), "stated": np.asarray(index == 0)}
        data |= {f"{index}_{name}": values for name, values in columns.items()}
    return data


def verdicts(data):
    return {claim.key: claim.verdict for claim in judged(path_effectiveness.ROWS, data)}


def test_verdicts(made_up):
    known = verdicts(made_up)
    assert known["effect-two-carry"] is known["effect-long"] is Verdict.AGREES
    assert known["effect-whole"] is Verdict.AGREES  # asked of the one task that was trained as stated
    alone = made_up["0_cumulative"].copy()
    alone[:, 0] = 0.85  # what paths of length 0 do is no merit of short paths
    assert verdicts({**made_up, "0_cumulative": alone})["effect-two-carry"] is Verdict.DIFFERS
    assert verdicts({**made_up, "0_exact": made_up["0_exact"] + 0.4})["effect-long"] is Verdict.DIFFERS


def test_networks_of_other_sizes_are_not_asked_for_the_stated_accuracy(made_up):
    assert verdicts({**made_up, "0_stated": np.asarray(False)})["effect-whole"] is Verdict.NOT_RUN
    poor = {**made_up, "0_network": made_up["0_network"] - 0.5}
    assert verdicts(poor)["effect-whole"] is Verdict.DIFFERS


def test_networks_that_are_worth_little_more_than_a_guess_say_nothing_of_long_paths(made_up):
    poor = {**made_up, "0_network": made_up["0_network"] * 0 + 0.49}  # the best guess is right in 0.3
    assert verdicts(poor)["effect-long"] is Verdict.NOT_RUN


def test_a_replicate_that_stopped_leaves_its_rows_not_run(made_up):
    broken = dict(made_up)
    for name in ("exact", "alone", "cumulative", "together", "alone_plain", "network", "error"):
        broken[f"0_{name}"] = np.concatenate([made_up[f"0_{name}"], np.full_like(made_up[f"0_{name}"][:1], np.nan)])
    assert set(verdicts(broken).values()) == {Verdict.NOT_RUN}
