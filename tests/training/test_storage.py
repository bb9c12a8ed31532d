"""Runs that are killed and resumed, and folders that are damaged, in use, or another training's."""

import gc
import json
import pathlib
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.experimental import io_callback

from rc_jax import attention, network, training
from rc_jax._numerics import files
from rc_jax.training import storage, trainer
from tests.training import small
from tests.training.small import SETTINGS, adam, build, loss, run

ROOT = pathlib.Path(__file__).parent.parent.parent


def test_a_resumed_run_ends_with_the_same_numbers(tmp_path):
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


def test_a_kind_from_outside_goes_on_from_its_checkpoint(tmp_path):
    """The function and its parameters are made again, as by the same file in another process."""

    def train(steps, folder=None):
        def sharper(scores, seen, parts):
            rate = jax.nn.softplus(parts["rate"])[:, None, None]
            return jax.nn.softmax(jnp.where(seen, rate * scores, -jnp.inf), axis=-1)

        kind = attention.Kind(
            "sharper", sharper, row_sum="one", shift_invariant=True,
            shapes=lambda spec: {"rate": (spec.heads,)},
            start=lambda spec, dtype: {"rate": jnp.ones(spec.heads, dtype)},
        )  # fmt: skip
        layer = attention.AttentionSpec(d_model=8, heads=2, weights=kind)
        stack = network.StackSpec(attention=layer, depth=1, skip=True)
        model = training.ModelSpec(stack=stack, inputs=4, outputs=4, tokens=3)
        return training.train(
            jax.random.key(0), lambda key, setting: training.Transformer(key, model),
            lambda net, batch, setting: training.cross_entropy(jax.vmap(net)(batch), jnp.sort(batch)),
            lambda key, step: jax.random.randint(jax.random.fold_in(key, step), (8, 3), 0, 4),
            steps=steps, every=2, optimiser=optax.adam(0.1), folder=folder,
        )  # fmt: skip

    whole = train(4)
    train(2, tmp_path)
    again = train(4, tmp_path)
    own = again.model(0).layers().attention.parts["rate"]
    np.testing.assert_array_equal(own, whole.model(0).layers().attention.parts["rate"])
    assert not np.array_equal(own, np.ones_like(own))
    np.testing.assert_array_equal(again.metrics["loss"], whole.metrics["loss"])


def kill_before_a_checkpoint(folder):
    """A run that wrote the records of steps 0 and 2 and no state."""

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
        advance.trace = trainer_advance.trace  # what a folder knows the training by
        patch.setattr(trainer, "_advance", advance)
        with pytest.raises(Killed):
            run(6, folder=folder)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path):
    kill_before_a_checkpoint(tmp_path)
    again = run(6, folder=tmp_path)
    np.testing.assert_array_equal(again.metrics["loss"], run(6).metrics["loss"])
    lines = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [0, 2, 4, 6]


def test_records_without_a_checkpoint_are_no_other_trainings(tmp_path):
    kill_before_a_checkpoint(tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match="another number of seeds: 2, not 1"):
        run(6, folder=tmp_path, seeds=1)
    (tmp_path / "run.json").write_text("")
    with pytest.raises(training.Damaged, match="delete it to begin again"):
        run(6, folder=tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_records_that_are_no_trainings_are_kept(tmp_path):
    for step in range(3):
        files.append_json_line(tmp_path / "metrics.jsonl", {"step": step, "loss": 1.0})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"metrics\.jsonl is no training's, for it has no run\.json: give another"):
            run(2, folder=tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    (tmp_path / "metrics.jsonl").rename(tmp_path / "own.jsonl")  # the way on
    assert run(2, folder=tmp_path).step.tolist() == [0, 2]


def test_a_folder_where_nothing_was_recorded_is_taken_over(tmp_path):
    """As a call leaves it that ended between the identity and the first record."""
    storage.Folder(tmp_path, {"what": "tried"}, 0.0).close()
    assert run(2, folder=tmp_path).step.tolist() == [0, 2]


def test_a_parameter_of_size_zero_is_resumed(tmp_path):
    class Part(nnx.Module):
        def __init__(self, key):
            self.weight = nnx.Param(jax.random.normal(key, (2,)))
            self.none = nnx.Param(jnp.zeros((0, 3)))

    def train(steps, folder=None):
        return training.train(
            jax.random.key(0), lambda key, setting: Part(key),
            lambda model, batch, setting: jnp.sum(model.weight[...] ** 2) + jnp.sum(model.none[...]),
            lambda key, step: step, steps=steps, every=2, optimiser=optax.adam(0.1), folder=folder,
        )  # fmt: skip

    whole = train(4)
    train(2, tmp_path)
    again = train(4, tmp_path)
    np.testing.assert_array_equal(again.metrics["loss"], whole.metrics["loss"])
    np.testing.assert_array_equal(again.model().weight[...], whole.model().weight[...])
    assert again.model().none[...].shape == (0, 3)


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


def test_a_failed_first_call_leaves_the_folder_free(tmp_path):
    def broken(key, step):
        raise NameError("a slip")

    with pytest.raises(NameError):
        training.train(jax.random.key(0), build, loss, broken, steps=2, every=2, settings=SETTINGS,
                       optimiser=adam, folder=tmp_path)  # fmt: skip
    assert run(2, every=1, folder=tmp_path).step.tolist() == [0, 1, 2]


def test_a_folder_refuses_another_training(tmp_path):
    run(2, folder=tmp_path)
    for change, name in (
        ({"seeds": 1}, "another number of seeds: 2, not 1"),
        ({"every": 1}, "another every"),
        ({"settings": jax.tree.map(lambda leaf: 2 * leaf, SETTINGS)}, "another setting"),
        ({"observe": None}, "another observation"),
        ({"optimiser": optax.sgd(0.1)}, "another model or optimiser"),
    ):
        with pytest.raises(ValueError, match=name):
            run(2, folder=tmp_path, **change)
    with pytest.raises(ValueError, match="at least 2, the step that"):
        run(1, folder=tmp_path)


DATA = np.arange(240).reshape(20, 4, 3) % 5


def listed(data):
    """Batches of a data set that the function closes over."""
    return lambda key, step: jnp.asarray(data)[step % len(data)]


def steps_of(*, rate=0.1, end=1000, **options):
    schedule = optax.piecewise_constant_schedule(rate, {end: 0.1})
    return optax.adamw(schedule, **{"weight_decay": 0.1, "b1": 0.9} | options)


def times_ten(model):
    model.readout[...] *= 10
    return model


OTHERS = {  # of the same shapes, by what is changed
    "rate": {"optimiser": steps_of(rate=0.2)},
    "schedule, from step 1000 on": {"optimiser": steps_of(end=1001)},
    "b1": {"optimiser": steps_of(b1=0.5)},
    "weight_decay": {"optimiser": steps_of(weight_decay=0.5)},
    "clipping": {"optimiser": optax.chain(optax.clip(1.0), steps_of())},
    "last entry of the data": {"batches": listed(np.where(np.arange(240).reshape(DATA.shape) < 239, DATA, 0))},
    "other batches": {"batches": small.batches},
    "loss": {"loss": lambda model, batch, setting: 2 * small.loss(model, batch, setting)},
    "initialisation": {"build": lambda key, setting: times_ten(build(key, setting))},
    "observation": {"observe": lambda model, setting: {"readout": 2 * model.readout[...]}},
}


def train_steps(steps, folder, **change):
    own = {"loss": small.loss, "batches": listed(DATA), "optimiser": steps_of(), "observe": small.observe} | change
    first, batches, made = own.pop("loss"), own.pop("batches"), own.pop("build", build)
    return training.train(jax.random.key(3), made, first, batches, steps=steps, every=2, settings=SETTINGS,
                          folder=folder, **own)  # fmt: skip


def test_a_training_never_goes_on_under_another_program(tmp_path):
    train_steps(2, tmp_path)
    for name, change in OTHERS.items():
        with pytest.raises(ValueError, match=r"another (build, loss|model)"):
            train_steps(4, tmp_path, **change)
            pytest.fail(f"went on: {name}")
    # The same functions, made anew, are the same training.
    again = train_steps(4, tmp_path, optimiser=steps_of(), batches=listed(DATA.copy()))
    assert again.step.tolist() == [0, 2, 4]


@pytest.mark.parametrize("name", ["pure_callback", "io_callback"])
def test_a_folder_refuses_functions_of_the_host(name, tmp_path):
    """Within a scan, as anywhere: what is called stands in no program."""
    call = {"pure_callback": jax.pure_callback, "io_callback": io_callback}[name]

    def outside(value, _):
        return call(lambda x: x, jax.ShapeDtypeStruct((), value.dtype), value, **options), None

    def own(model, batch, setting):
        jax.debug.print("a printed number changes none")
        return small.loss(model, batch, setting) + jax.lax.scan(outside, jnp.float32(0), length=2)[0]

    options = {"vmap_method": "sequential"} if name == "pure_callback" else {}
    with pytest.raises(ValueError, match=rf"train without `folder`, got `jax\.{name}` of .*<lambda>"):
        train_steps(2, tmp_path / "run", loss=own)
    assert not (tmp_path / "run").exists()


class Keyed(nnx.Module):
    """An ordinary layer and its random state: typed keys, and functions whose addresses change with the process."""

    def __init__(self, key):
        self.rngs = nnx.Rngs(key)
        self.inner = nnx.Linear(1, 1, rngs=self.rngs)


def train_keyed(steps, **options):
    return training.train(
        jax.random.key(0),
        lambda key, setting: Keyed(key),
        lambda model, x, setting: jnp.mean((model.inner(x) - x) ** 2),
        lambda key, step: jax.random.normal(jax.random.fold_in(key, step), (2, 1)),
        steps=steps,
        every=2,
        optimiser=optax.sgd(0.1),
        **options,
    )


PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from tests.training.test_storage import train_keyed
train_keyed(4000, folder={folder!r}, checkpoint_seconds=0)
"""


@pytest.mark.slow
def test_a_killed_process_is_resumed_in_another(tmp_path):
    folder = tmp_path / "run"
    assert " at 0x" in repr(nnx.split(Keyed(jax.random.key(0)))[0])
    process = subprocess.Popen([sys.executable, "-c", PROGRAM.format(root=str(ROOT), folder=str(folder))])
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + 600
    while not (metrics.exists() and metrics.read_text().count("\n") >= 4):
        assert process.poll() is None, "the training ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    steps = 2 * metrics.read_text().count("\n") + 6
    again, whole = train_keyed(steps, folder=folder), train_keyed(steps)
    for name, values in whole.metrics.items():
        np.testing.assert_allclose(again.metrics[name], values, rtol=1e-4, atol=1e-5)  # 8 devices here, 1 there
    assert again.step.tolist() == list(range(0, steps + 1, 2))


def test_metrics_are_strict_json(tmp_path):
    def bare(word):
        raise AssertionError(f"{word} is not JSON")

    values = np.array([[np.nan, 1.5], [np.inf, -np.inf]])
    state = {"weight": jnp.arange(3.0)}
    folder = storage.Folder(tmp_path, {"what": "test"}, 0.0)
    folder.record({"step": 0, "loss": values}, state, last=True)
    folder.close()
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=bare) == {"step": 0, "loss": [[None, 1.5], ["Infinity", "-Infinity"]]}
    folder = storage.Folder(tmp_path, {"what": "test"}, 0.0)
    step, restored, lines = folder.load(state)
    folder.close()
    assert step == 0
    np.testing.assert_array_equal(np.asarray(lines[0]["loss"], float), values)
    np.testing.assert_array_equal(restored["weight"], state["weight"])
    assert (tmp_path / "metrics.jsonl").read_text() == line + "\n"


def stored_state(folder):
    """A folder with a state of large arrays and a typed key, and the state."""
    state = {"weight": jax.random.normal(jax.random.key(0), (64, 64)), "key": jax.random.key(3), "step": jnp.int32(4)}
    kept = storage.Folder(folder, {"what": "test"}, 0.0)
    kept.record({"step": 0, "loss": 1.25}, state, last=False)
    kept.record({"step": 2, "loss": 0.75}, state, last=True)
    kept.close()
    return state


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of readers that orbax gave up
def test_a_bit_that_has_changed_is_never_loaded(tmp_path):
    """In any file of the checkpoint, and in the records before it: the same numbers, or an error that says so."""
    state = stored_state(tmp_path)
    files = [tmp_path / "metrics.jsonl", *(path for path in (tmp_path / "state").rglob("*") if path.is_file())]
    draw, refused = np.random.default_rng(0), 0
    large = max(files, key=lambda path: path.stat().st_size)
    assert large.stat().st_size > 10_000
    for path in [*[large] * 8, *files * 2]:
        content = path.read_bytes()
        if not content:
            continue
        at = draw.integers(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << draw.integers(8)]) + content[at + 1 :])
        lines_before = (tmp_path / "metrics.jsonl").read_bytes()
        try:
            folder = storage.Folder(tmp_path, {"what": "test"}, 0.0)
            try:
                step, restored, lines = folder.load(state)
            finally:
                folder.close()
        except training.Damaged:
            refused += 1
        else:
            assert step == 2 and [line["loss"] for line in lines] == [1.25, 0.75]
            np.testing.assert_array_equal(restored["weight"], state["weight"])
            assert (restored["key"], restored["step"]) == (state["key"], state["step"])
        path.write_bytes(content)
        if path.name != "metrics.jsonl":
            (tmp_path / "metrics.jsonl").write_bytes(lines_before)
    assert refused >= 8
    gc.collect()  # what orbax gave up complains here and not in another test


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of readers that orbax gave up
def test_a_key_whose_type_has_been_lost_is_never_loaded(tmp_path):
    """Orbax writes down beside the arrays which of them is a key; without that its numbers alone come back."""
    state = stored_state(tmp_path)
    (path,) = (tmp_path / "state").rglob("array_metadatas/process_0")
    kept = path.read_text()
    path.write_text(kept.replace("random_key_impl", "random_kex_impl"))
    assert path.read_text() != kept
    folder = storage.Folder(tmp_path, {"what": "test"}, 0.0)
    try:
        with pytest.raises(training.Damaged, match="have changed"):
            folder.load(state)
    finally:
        folder.close()
    gc.collect()


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[1]", b"5", b"[" * 100_000, b'{"step": "x"}'])
def test_a_file_of_other_content_is_a_damaged_training(tmp_path, content):
    state = stored_state(tmp_path)
    for name in ("metrics.jsonl", "run.json"):
        kept = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content)
        if name == "run.json" and content.startswith(b"{"):
            continue  # another training, which is another error
        with pytest.raises(training.Damaged, match="delete it to begin again"):
            folder = storage.Folder(tmp_path, {"what": "test"}, 0.0)
            try:
                folder.load(state)
            finally:
                folder.close()
        (tmp_path / name).write_bytes(kept)
