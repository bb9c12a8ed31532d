"""Work of a figure that was killed is found by the next run of the same code, and gone once the result is stored."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from experiments.figures import _replicates
from experiments.lib import unfinished


def test_outside_a_run_nothing_is_kept():
    assert unfinished.place("sorting") is None


def test_it_stays_until_it_is_forgotten(tmp_path):
    folder = tmp_path / "figure-0123-code1"
    with pytest.raises(KeyboardInterrupt), unfinished.kept(folder):
        place = unfinished.place("sorting")
        assert place == folder / "sorting"
        place.mkdir(parents=True)
        raise KeyboardInterrupt
    assert place.exists()
    with unfinished.kept(folder):
        assert unfinished.place("sorting").exists()
    assert place.exists()
    unfinished.forget(folder)
    assert not folder.exists()
    assert unfinished.place("sorting") is None


def test_arrays_are_made_once_until_the_run_is_through(tmp_path):
    made = []

    def make():
        made.append(len(made))
        return {"x": np.full(3, made[-1])}

    unfinished.once("first", make)
    unfinished.once("first", make)
    assert made == [0, 1]  # nothing is kept outside a run
    folder = tmp_path / "figure-0123-code1"
    with pytest.raises(KeyboardInterrupt), unfinished.kept(folder):
        unfinished.once("first", make)
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), unfinished.kept(folder):
        np.testing.assert_array_equal(unfinished.once("first", make)["x"], [2, 2, 2])
        unfinished.once("second", make)
        (arrays,) = folder.rglob("first.npz")
        arrays.write_bytes(arrays.read_bytes()[:-9])
        raise KeyboardInterrupt
    with unfinished.kept(folder):
        np.testing.assert_array_equal(unfinished.once("first", make)["x"], [4, 4, 4])  # damaged: made again
        np.testing.assert_array_equal(unfinished.once("second", make)["x"], [3, 3, 3])
    assert made == [0, 1, 2, 3, 4]


def test_stale_work_of_the_figure_goes_and_of_others_stays(tmp_path):
    for name in ("figure-0123-code1", "figure-4567-code1", "other-0123-code1"):
        (tmp_path / name).mkdir()
    with unfinished.kept(tmp_path / "figure-0123-code2"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other-0123-code1"]


def test_work_that_a_process_is_at_stays(tmp_path):
    with unfinished.kept(tmp_path / "figure-0123-code1"):
        place = unfinished.place("sorting")
        place.mkdir(parents=True)
        with unfinished.kept(tmp_path / "figure-0123-code2"):
            pass
        assert place.exists()


def test_a_damaged_training_is_begun_again(tmp_path):
    def train():
        return _replicates.train(
            "line", jax.random.key(0), lambda key, setting: nnx.Linear(1, 1, rngs=nnx.Rngs(key)),
            lambda model, x, setting: jnp.mean((model(x) - x) ** 2), lambda key, step: jnp.ones((2, 1)),
            steps=4, every=2, optimiser=optax.sgd(0.1),
        )  # fmt: skip

    with pytest.raises(KeyboardInterrupt), unfinished.kept(tmp_path / "figure-0-0"):
        whole = train()
        metrics = unfinished.place("line") / "metrics.jsonl"
        metrics.write_text(metrics.read_text().replace('"step": 2', '"st'))
        np.testing.assert_array_equal(train().metrics["loss"], whole.metrics["loss"])
        assert metrics.read_text().count("\n") == 3
        raise KeyboardInterrupt
