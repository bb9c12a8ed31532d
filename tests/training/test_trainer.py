"""A training of many lanes against a plain loop, lanes that break, and runs that are killed and taken up again."""

import json
import logging
import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from flax import nnx

from rc_jax import network, training
from rc_jax.attention import AttentionSpec
from rc_jax.training import inputs, lanes, storage, trainer

SPEC = training.ModelSpec(
    stack=network.StackSpec(attention=AttentionSpec(d_model=4, heads=1), depth=1, skip=True),
    inputs=5,
    outputs=5,
    tokens=3,
)
SETTINGS = {"scale": jnp.array([0.5, 2.0]), "rate": jnp.array([0.02, 0.01])}


def build(key, setting):
    return training.Transformer(SPEC, key)


def loss(model, batch, setting):
    return training.cross_entropy(jax.vmap(lambda x: model(x, scale=setting["scale"]))(batch), jnp.sort(batch))


def batches(key, step):
    return jax.random.randint(jax.random.fold_in(key, step), (4, 3), 0, 5)


def adam(setting):
    return optax.adam(setting["rate"])


def observe(model, setting):
    return {"readout": model.readout[...]}


def run(steps=6, **options):
    settings = {"settings": SETTINGS, "seeds": 2, "optimiser": adam, "observe": observe, "every": 2} | options
    return training.train(build, loss, batches, jax.random.key(3), steps=steps, **settings)


def alone(seed, setting, steps):
    """One lane as a loop of its own: no lanes, no nnx.split, Adam written out."""
    key = jax.random.fold_in(jax.random.key(3), seed)
    one = jax.tree.map(lambda leaf: leaf[setting], SETTINGS)
    graph, weights = nnx.split(build(jax.random.fold_in(key, 0), one))
    leaves, tree = jax.tree.flatten(weights)
    mean = square = [0.0 * leaf for leaf in leaves]
    slope = jax.jit(
        jax.value_and_grad(lambda leaves, batch: loss(nnx.merge(graph, tree.unflatten(leaves)), batch, one))
    )
    losses = []
    for step in range(steps):
        batch = batches(jax.random.fold_in(key, 1), step)
        value, gradient = slope(leaves, batch)
        losses.append(value)
        mean = [0.9 * m + 0.1 * g for m, g in zip(mean, gradient, strict=True)]
        square = [0.999 * s + 0.001 * g**2 for s, g in zip(square, gradient, strict=True)]
        leaves = [
            leaf - one["rate"] * (m / (1 - 0.9 ** (step + 1))) / (jnp.sqrt(s / (1 - 0.999 ** (step + 1))) + 1e-8)
            for leaf, m, s in zip(leaves, mean, square, strict=True)
        ]
    return np.array(losses), nnx.merge(graph, tree.unflatten(leaves))


def test_every_lane_is_the_training_that_it_would_be_alone():
    found = run()
    assert found.step.tolist() == [0, 2, 4, 6]
    assert (found.failed == -1).all()
    for seed, setting in ((0, 0), (1, 1)):
        losses, model = alone(seed, setting, 6)
        np.testing.assert_allclose(
            found.metrics["loss"][seed, setting, 1:], losses.reshape(3, 2).mean(axis=1), rtol=1e-4
        )
        np.testing.assert_allclose(found.metrics["readout"][seed, setting, -1], model.readout[...], atol=1e-4)
        np.testing.assert_array_equal(
            found.model(seed, setting).readout[...], found.metrics["readout"][seed, setting, -1]
        )
    assert np.isnan(found.metrics["loss"][:, :, 0]).all()


def test_settings_of_a_seed_start_alike_and_seeds_do_not():
    start = run(1).metrics["readout"][:, :, 0]
    np.testing.assert_array_equal(start[:, 0], start[:, 1])
    assert (start[0] != start[1]).all()


def test_one_program_serves_every_interval_every_value_and_a_run_taken_up(tmp_path):
    run(2)
    before = trainer._advance._cache_size(), trainer._observed._cache_size(), trainer._start._cache_size()
    run(5, every=2)
    run(3, settings=jax.tree.map(lambda leaf: leaf + 0.1, SETTINGS))
    run(2, folder=tmp_path)
    run(4, folder=tmp_path)  # taken up again
    assert (trainer._advance._cache_size(), trainer._observed._cache_size(), trainer._start._cache_size()) == before


def test_the_same_program_lowers_for_cpu_cuda_and_tpu():
    def steps(data, settings):
        keys = jax.random.split(jax.random.wrap_key_data(data), 2)
        first = jax.tree.map(lambda leaf: leaf[0], settings)
        program = lanes.Program(build, loss, adam, lanes.graph_of(build, keys[0], first))
        start = lanes.start(program, keys, settings, jnp.arange(2))
        return lanes.advance(program, batches, start, keys, settings, jnp.int32(0), jnp.int32(2))[1]

    exported = jax.export.export(jax.jit(steps), platforms=("cpu", "cuda", "tpu"))(np.zeros(2, np.uint32), SETTINGS)
    assert set(exported.platforms) == {"cpu", "cuda", "tpu"}


def test_map_measures_every_trained_model():
    found = run(2)
    sums = found.map(lambda model, setting: setting["scale"] * jnp.sum(model.readout[...]))
    expected = found.metrics["readout"][:, :, -1].sum(axis=(-1, -2)) * np.asarray(SETTINGS["scale"])
    np.testing.assert_allclose(sums, expected, rtol=1e-5)


def test_without_settings_and_with_an_odd_last_interval():
    found = training.train(
        build, lambda model, batch, setting: jnp.mean(jax.vmap(model)(batch) ** 2), batches, jax.random.key(0),
        steps=3, every=2, optimiser=optax.sgd(0.1),
    )  # fmt: skip
    assert found.step.tolist() == [0, 2, 3]
    assert found.metrics["loss"].shape == (1, 1, 3)
    assert found.metrics["loss"][0, 0, 2] < found.metrics["loss"][0, 0, 1]


SOUND, LOSS, GRADIENT, WEIGHTS = range(4)


def broken(model, batch, setting):
    """A loss that breaks at the first batch of the seed that begins with 3 or 4, in the way that the setting names."""
    bad, kind = batch[0, 0] >= 3, setting["kind"]
    value = training.cross_entropy(jax.vmap(model)(batch), jnp.sort(batch))
    flat = jnp.sqrt(jnp.where(bad & (kind == GRADIENT), 0 * value, 1))  # finite there, with slope 0 × infinity
    return value / jnp.where(bad & (kind == LOSS), 0, 1) + flat


def breaking(setting):
    """SGD whose third step is infinite where the setting asks for weights that are not finite."""
    return optax.sgd(lambda count: jnp.where((count == 2) & (setting["kind"] == WEIGHTS), jnp.inf, 0.1))


def test_a_lane_that_breaks_stops_alone(caplog):
    def train(kinds):
        return training.train(
            build, broken, batches, jax.random.key(3), steps=8, every=2, seeds=2, observe=observe,
            settings={"kind": jnp.array(kinds)}, optimiser=breaking,
        )  # fmt: skip

    with caplog.at_level(logging.WARNING):
        found = train([SOUND, LOSS, GRADIENT, WEIGHTS])
    sound = train([SOUND] * 4)
    assert (sound.failed == -1).all()
    for seed in range(2):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), seed), 1)
        first = [int(batches(key, step)[0, 0]) >= 3 for step in range(8)].index(True)
        assert found.failed[seed].tolist() == [-1, first, first, 2]
        np.testing.assert_array_equal(found.metrics["readout"][seed, 0], sound.metrics["readout"][seed, 0])
        for setting in (LOSS, GRADIENT, WEIGHTS):
            step = found.failed[seed, setting]
            lost = found.step > step
            for name in ("loss", "gradient_norm", "readout"):
                assert np.isnan(found.metrics[name][seed, setting, lost]).all()
            kept = found.metrics["readout"][seed, setting, ~lost]
            np.testing.assert_array_equal(kept, sound.metrics["readout"][seed, 0, ~lost])
            assert np.isfinite(found.model(seed, setting).readout[...]).all()
            assert f"seed {seed}, setting {setting} stopped at step {step}" in caplog.text


def test_where_all_lanes_have_stopped_nothing_more_is_computed(monkeypatch):
    found = run(2, settings=SETTINGS | {"rate": jnp.full(2, jnp.inf)})
    assert (found.failed == 0).all()
    advance, calls = trainer._advance, []
    monkeypatch.setattr(trainer, "_advance", lambda *args: calls.append(args) or advance(*args))
    found = run(8, settings=SETTINGS | {"rate": jnp.full(2, jnp.inf)})
    assert len(calls) == 1
    assert found.step.tolist() == [0, 2, 4, 6, 8]
    assert np.isnan(found.metrics["loss"]).all()


def test_a_learned_scale_moves_integers_are_observed_and_data_are_carried():
    """Here with an optimiser that wants the loss itself, and data that `batches` and `observe` carry."""
    data = jax.random.randint(jax.random.key(1), (12, 3), 0, 5)
    found = training.train(
        lambda key, setting: training.Transformer(SPEC, key, scale=setting["start"]),
        lambda model, batch, setting: training.cross_entropy(jax.vmap(model)(batch), jnp.sort(batch)),
        training.shuffled(data, 4), jax.random.key(0), steps=8, every=4, settings={"start": jnp.array([0.5, 4.0])},
        optimiser=optax.chain(optax.adam(0.02), optax.contrib.reduce_on_plateau(patience=1)),
        observe=jax.tree_util.Partial(
            lambda data, model, setting: {"scale": model.scale()[0], "right": jnp.argmax(model(data[0]), axis=-1)}, data
        ),
    )  # fmt: skip
    scale = found.metrics["scale"][0]
    np.testing.assert_allclose(scale[:, 0], [0.5, 4.0], rtol=1e-6)
    assert (np.abs(scale[:, -1] - scale[:, 0]) > 1e-3).all()
    assert found.metrics["right"].shape == (1, 2, 3, 3)
    np.testing.assert_array_equal(
        found.metrics["right"][:, :, -1], found.map(lambda model, setting: jnp.argmax(model(data[0]), axis=-1))
    )


@pytest.mark.usefixtures("x64")
def test_double_precision_is_kept_and_not_mixed_with_single(tmp_path):
    found = run(2, settings={name: values.astype(float) for name, values in SETTINGS.items()}, folder=tmp_path)
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(found.model()))} == {jnp.dtype("float64")}
    digits = np.abs(found.metrics["loss"][:, :, 1] - found.metrics["loss"][:, :, 1].astype(np.float32))
    assert (digits > 0).all()
    with jax.enable_x64(False), pytest.raises(ValueError, match="another model or optimiser"):
        run(4, folder=tmp_path)


@pytest.mark.parametrize("size", [1e-30, 1e25])
def test_gradient_norms_neither_vanish_nor_overflow(size):
    found = training.train(
        lambda key, setting: nnx.Linear(3, 1, rngs=nnx.Rngs(key)),
        lambda model, batch, setting: size * jnp.sum(model.kernel[...] * batch),
        lambda key, step: jnp.array([[2.0], [-3.0], [6.0]]), jax.random.key(0), steps=1, every=1,
        optimiser=optax.sgd(0.0),
    )  # fmt: skip
    assert found.failed == -1
    np.testing.assert_allclose(found.metrics["gradient_norm"][0, 0, 1] / size, 7, rtol=1e-5)


def test_a_run_goes_on_where_it_was_and_ends_with_the_same_numbers(tmp_path):
    whole = run(6)
    run(4, folder=tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:  # as if killed between a record and its checkpoint
        file.write(json.dumps({"step": 6, "loss": 0}) + '\n{"step": 8, "lo')
    again = run(6, folder=tmp_path)
    for name, values in whole.metrics.items():
        np.testing.assert_array_equal(again.metrics[name], values)
    np.testing.assert_array_equal(again.model(1, 1).embedding[...], whole.model(1, 1).embedding[...])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2, 4, 6]
    np.testing.assert_array_equal(lines[2]["loss"], np.asarray(whole.metrics["loss"][:, :, 2]))
    assert len(list((tmp_path / "state").iterdir())) == 1
    finished = run(6, folder=tmp_path)
    np.testing.assert_array_equal(finished.metrics["loss"], whole.metrics["loss"])


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path):
    class Killed(Exception):
        pass

    with pytest.MonkeyPatch.context() as patch:
        steps = []

        def advance(*args):
            steps.append(args)
            if len(steps) == 2:
                raise Killed
            return trainer_advance(*args)

        trainer_advance = trainer._advance
        patch.setattr(trainer, "_advance", advance)
        with pytest.raises(Killed):
            run(6, folder=tmp_path)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    again = run(6, folder=tmp_path)
    np.testing.assert_array_equal(again.metrics["loss"], run(6).metrics["loss"])
    lines = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [0, 2, 4, 6]


DAMAGE = {
    "a line": lambda folder: rewrite(folder / "metrics.jsonl", '"step": 2', '"st'),
    "all lines": lambda folder: (folder / "metrics.jsonl").unlink(),
    "identity": lambda folder: (folder / "run.json").write_text(""),
    "checkpoint": lambda folder: [file.write_bytes(b"") for file in (folder / "state").rglob("*") if file.is_file()],
}


def rewrite(path, old, new):
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_folder_is_refused_and_says_what_to_do(kind, tmp_path):
    run(4, folder=tmp_path)
    DAMAGE[kind](tmp_path)
    with pytest.raises(training.Damaged, match="delete it to begin again"):
        run(6, folder=tmp_path)


def test_a_folder_is_for_one_training_at_a_time(tmp_path):
    run(2, folder=tmp_path)

    calls = []
    with pytest.MonkeyPatch.context() as patch:
        record = storage.Folder.record

        def intrude(self, line, state, *, last):
            if not calls:
                calls.append(line)
                with pytest.raises(ValueError, match="in use by another training"):
                    run(4, folder=tmp_path)
            record(self, line, state, last=last)

        patch.setattr(storage.Folder, "record", intrude)
        run(4, folder=tmp_path)
    assert calls


def test_a_model_that_carries_keys_is_taken_up(tmp_path):
    class Keyed(nnx.Module):
        def __init__(self, key):
            self.rngs = nnx.Rngs(key)
            self.inner = nnx.Linear(1, 1, rngs=self.rngs)

    def keyed(steps, **options):
        return training.train(
            lambda key, setting: Keyed(key), lambda model, x, setting: jnp.mean((model.inner(x) - x) ** 2),
            lambda key, step: jax.random.normal(jax.random.fold_in(key, step), (2, 1)), jax.random.key(0),
            steps=steps, every=1, optimiser=optax.sgd(0.1), **options,
        )  # fmt: skip

    keyed(1, folder=tmp_path)
    np.testing.assert_array_equal(keyed(2, folder=tmp_path).metrics["loss"], keyed(2).metrics["loss"])


def test_what_was_only_tried_binds_nobody(tmp_path):
    def broken(key, step):
        raise NameError("a slip")

    with pytest.raises(NameError):
        training.train(build, loss, broken, jax.random.key(0), steps=2, every=2, settings=SETTINGS,
                       optimiser=adam, folder=tmp_path)  # fmt: skip
    assert run(2, every=1, folder=tmp_path).step.tolist() == [0, 1, 2]


def test_ordinary_layers_are_known_again(tmp_path):
    """Their static half holds functions, whose addresses change from process to process."""
    graph = nnx.split(nnx.Linear(1, 1, rngs=nnx.Rngs(0)))[0]
    assert " at 0x" in repr(graph)
    lanes_ = [jnp.zeros(1)]
    one, other = (
        inputs.identity(text, lanes_, {}, jax.random.key(0), {}, 1, 1)
        for text in (Text(repr(graph)), Text(repr(graph).replace(" at 0x", " at 0x1f")))
    )
    assert one == other


class Text:
    """Something whose repr is a given text."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


def test_a_folder_refuses_another_training(tmp_path):
    run(2, folder=tmp_path)
    for change, name in (
        ({"seeds": 1}, "model or optimiser|another number of seeds"),
        ({"every": 1}, "another every"),
        ({"settings": jax.tree.map(lambda leaf: 2 * leaf, SETTINGS)}, "another setting"),
        ({"observe": None}, "another observation"),
        ({"optimiser": optax.sgd(0.1)}, "another model or optimiser"),
    ):
        with pytest.raises(ValueError, match=name):
            run(2, folder=tmp_path, **change)
    with pytest.raises(ValueError, match="at least 2, the step that"):
        run(1, folder=tmp_path)


PROGRAM = """
import sys
sys.path.insert(0, {root!r})
import jax
from tests.training.test_trainer import run
run(4000, folder={folder!r}, every=2, checkpoint_seconds=0)
"""


@pytest.mark.slow
def test_a_killed_process_is_taken_up(tmp_path):
    folder = tmp_path / "run"
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    process = subprocess.Popen([sys.executable, "-c", PROGRAM.format(root=root, folder=str(folder))])
    metrics = folder / "metrics.jsonl"
    deadline = time.time() + 120
    while not (metrics.exists() and metrics.read_text().count("\n") >= 4):
        assert process.poll() is None, "the training ended before it could be killed"
        assert time.time() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    reached = metrics.read_text().count("\n")
    steps = 2 * reached + 6
    again, whole = run(steps, folder=folder), run(steps)
    for name, values in whole.metrics.items():
        np.testing.assert_allclose(again.metrics[name], values, rtol=1e-4, atol=1e-5)  # 8 devices here, 1 there
    assert again.step.tolist() == list(range(0, steps + 1, 2))


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"settings": {"scale": jnp.ones(2), "rate": jnp.ones(3)}}, ValueError, "one leading axis"),
        ({"settings": {"scale": 1.0}}, ValueError, "one leading axis"),
        ({"seeds": 0}, ValueError, "`seeds`"),
        ({"every": 0}, ValueError, "`every`"),
        ({"optimiser": 0.1}, TypeError, "`optimiser`"),
        ({"observe": lambda model, setting: {"loss": jnp.zeros(())}}, ValueError, "otherwise than step, loss"),
        ({"observe": lambda model, setting: {"a": {"b": jnp.zeros(())}}}, TypeError, "dict of named arrays"),
        ({"observe": lambda model, setting: jnp.zeros(())}, TypeError, "dict of named arrays"),
        ({"optimiser": lambda setting: setting["rate"]}, TypeError, "`optimiser` must make"),
        ({"settings": {"name": ["a"]}}, TypeError, "`settings` must hold arrays of numbers"),
        ({"folder": 3}, TypeError, "`folder` must be a path"),
        ({"folder": __file__}, ValueError, "`folder` must be a folder"),
        ({"steps": 2**31}, ValueError, "`steps`"),
    ],
)
def test_door(options, error, text):
    with pytest.raises(error, match=text):
        run(**{"steps": 2} | options)


class Unhashable:
    __hash__ = None

    def __call__(self, model, batch, setting):
        return loss(model, batch, setting)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"build": lambda key, setting: jnp.zeros(2)}, TypeError, "`build` must return a flax.nnx.Module"),
        ({"build": lambda key, setting: nnx.Dropout(0.5)}, ValueError, "an nnx.Param to train"),
        ({"loss": Unhashable()}, TypeError, "`loss` must be hashable"),
        ({"batches": jnp.zeros(2)}, TypeError, "`batches` must be a function"),
    ],
)
def test_door_of_functions(changes, error, text):
    given = {"build": build, "loss": loss, "batches": batches} | changes
    with pytest.raises(error, match=text):
        training.train(**given, key=jax.random.key(0), steps=1, every=1, optimiser=adam, settings=SETTINGS)


def test_key_must_be_typed():
    with pytest.raises(TypeError, match="`key`"):
        training.train(build, loss, batches, 0, steps=1, every=1, optimiser=optax.sgd(0.1))
