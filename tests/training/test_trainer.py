"""A training of many replicates against a plain loop, its measurements, and replicates that break."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from flax import nnx

from rc_jax import training
from rc_jax.training import replicates, trainer
from tests.training.small import SETTINGS, SPEC, adam, batches, build, loss, observe, run


def alone(seed, setting, steps):
    """One replicate as a loop of its own, with Adam written out."""
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


@pytest.mark.slow
def test_every_replicate_is_the_training_that_it_would_be_alone():
    done = run()
    assert done.step.tolist() == [0, 2, 4, 6]
    assert (done.failed == -1).all()
    for seed, setting in ((0, 0), (1, 1)):
        losses, model = alone(seed, setting, 6)
        np.testing.assert_allclose(
            done.metrics["loss"][seed, setting, 1:], losses.reshape(3, 2).mean(axis=1), rtol=1e-4
        )
        np.testing.assert_allclose(done.metrics["readout"][seed, setting, -1], model.readout[...], atol=1e-4)
        np.testing.assert_array_equal(
            done.model(seed, setting).readout[...], done.metrics["readout"][seed, setting, -1]
        )
    assert np.isnan(done.metrics["loss"][:, :, 0]).all()


@pytest.mark.slow
def test_settings_of_a_seed_start_alike_and_seeds_do_not():
    start = run(1).metrics["readout"][:, :, 0]
    np.testing.assert_array_equal(start[:, 0], start[:, 1])
    assert (start[0] != start[1]).all()


@pytest.mark.slow
def test_one_program_serves_every_interval_every_value_and_a_resumed_run(tmp_path):
    run(2)
    before = trainer._advance._cache_size(), trainer._observed._cache_size(), trainer._start._cache_size()
    run(5, every=2)
    run(3, settings=jax.tree.map(lambda leaf: leaf + 0.1, SETTINGS))
    run(2, folder=tmp_path)
    run(4, folder=tmp_path)  # resumed
    assert (trainer._advance._cache_size(), trainer._observed._cache_size(), trainer._start._cache_size()) == before


def test_the_same_program_lowers_for_cpu_cuda_and_tpu():
    def steps(data, settings):
        keys = jax.random.split(jax.random.wrap_key_data(data), 2)
        first = jax.tree.map(lambda leaf: leaf[0], settings)
        program = replicates.Program(build, loss, adam, replicates.graph_of(build, keys[0], first))
        start = replicates.start(program, keys, settings, jnp.arange(2))
        return replicates.advance(program, batches, start, keys, settings, jnp.int32(0), jnp.int32(2))[1]

    exported = jax.export.export(jax.jit(steps), platforms=("cpu", "cuda", "tpu"))(np.zeros(2, np.uint32), SETTINGS)
    assert set(exported.platforms) == {"cpu", "cuda", "tpu"}


def test_map_measures_every_trained_model():
    done = run(2)
    sums = done.map(lambda model, setting: setting["scale"] * jnp.sum(model.readout[...]))
    expected = done.metrics["readout"][:, :, -1].sum(axis=(-1, -2)) * np.asarray(SETTINGS["scale"])
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    with pytest.raises(IndexError, match="`seed` and `setting` must be in 0 … 1 and 0 … 1, got -1 and 0"):
        done.model(-1)


@pytest.mark.slow
def test_without_settings_and_with_an_odd_last_interval():
    done = training.train(
        jax.random.key(0), build, lambda model, batch, setting: jnp.mean(jax.vmap(model)(batch) ** 2), batches,
        steps=3, every=2, optimiser=optax.sgd(0.1),
    )  # fmt: skip
    assert done.step.tolist() == [0, 2, 3]
    assert done.metrics["loss"].shape == (1, 1, 3)
    assert done.metrics["loss"][0, 0, 2] < done.metrics["loss"][0, 0, 1]


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


@pytest.mark.slow
def test_a_replicate_that_breaks_stops_alone(caplog):
    def train(kinds):
        return training.train(
            jax.random.key(3), build, broken, batches, steps=8, every=2, seeds=2, observe=observe,
            settings={"kind": jnp.array(kinds)}, optimiser=breaking,
        )  # fmt: skip

    with caplog.at_level(logging.WARNING):
        done = train([SOUND, LOSS, GRADIENT, WEIGHTS])
    sound = train([SOUND] * 4)
    assert (sound.failed == -1).all()
    for seed in range(2):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), seed), 1)
        first = [int(batches(key, step)[0, 0]) >= 3 for step in range(8)].index(True)
        assert done.failed[seed].tolist() == [-1, first, first, 2]
        np.testing.assert_array_equal(done.metrics["readout"][seed, 0], sound.metrics["readout"][seed, 0])
        for setting in (LOSS, GRADIENT, WEIGHTS):
            step = done.failed[seed, setting]
            lost = done.step > step
            for name in ("loss", "gradient_norm", "readout"):
                assert np.isnan(done.metrics[name][seed, setting, lost]).all()
            finite = done.metrics["readout"][seed, setting, ~lost]
            np.testing.assert_array_equal(finite, sound.metrics["readout"][seed, 0, ~lost])
            assert np.isfinite(done.model(seed, setting).readout[...]).all()
            assert f"seed {seed}, setting {setting} stopped at step {step}" in caplog.text


def test_where_all_replicates_have_stopped_nothing_more_is_computed(monkeypatch):
    endless = SETTINGS | {"rate": jnp.full_like(SETTINGS["rate"], jnp.inf)}  # of the same type: no other program
    done = run(2, settings=endless)
    assert (done.failed == 0).all()
    advance, calls = trainer._advance, []
    monkeypatch.setattr(trainer, "_advance", lambda *args: calls.append(args) or advance(*args))
    done = run(8, settings=endless)
    assert len(calls) == 1
    assert done.step.tolist() == [0, 2, 4, 6, 8]
    assert np.isnan(done.metrics["loss"]).all()


@pytest.mark.slow
def test_a_learned_scale_moves_integers_are_observed_and_data_are_carried():
    """Here with an optimiser that wants the loss itself, and data that `batches` and `observe` carry."""
    data = jax.random.randint(jax.random.key(1), (12, 3), 0, 5)
    done = training.train(
        jax.random.key(0), lambda key, setting: training.Transformer(key, SPEC, scale=setting["start"]),
        lambda model, batch, setting: training.cross_entropy(jax.vmap(model)(batch), jnp.sort(batch)),
        training.shuffled(data, 4), steps=8, every=4, settings={"start": jnp.array([0.5, 4.0])},
        optimiser=optax.chain(optax.adam(0.02), optax.contrib.reduce_on_plateau(patience=1)),
        observe=jax.tree_util.Partial(
            lambda data, model, setting: {"scale": model.scale()[0], "right": jnp.argmax(model(data[0]), axis=-1)}, data
        ),
    )  # fmt: skip
    scale = done.metrics["scale"][0]
    np.testing.assert_allclose(scale[:, 0], [0.5, 4.0], rtol=1e-6)
    assert (np.abs(scale[:, -1] - scale[:, 0]) > 1e-3).all()
    assert done.metrics["right"].shape == (1, 2, 3, 3)
    np.testing.assert_array_equal(
        done.metrics["right"][:, :, -1], done.map(lambda model, setting: jnp.argmax(model(data[0]), axis=-1))
    )


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_double_precision_is_kept_and_not_mixed_with_single(tmp_path):
    done = run(2, settings={name: values.astype(float) for name, values in SETTINGS.items()}, folder=tmp_path)
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(done.model()))} == {jnp.dtype("float64")}
    digits = np.abs(done.metrics["loss"][:, :, 1] - done.metrics["loss"][:, :, 1].astype(np.float32))
    assert (digits > 0).all()
    with jax.enable_x64(False), pytest.raises(ValueError, match="another model or optimiser"):
        run(4, folder=tmp_path)


@pytest.mark.parametrize("size", [1e-30, 1e25])
def test_gradient_norms_neither_vanish_nor_overflow(size):
    done = training.train(
        jax.random.key(0), lambda key, setting: nnx.Linear(3, 1, rngs=nnx.Rngs(key)),
        lambda model, batch, setting: size * jnp.sum(model.kernel[...] * batch),
        lambda key, step: jnp.array([[2.0], [-3.0], [6.0]]), steps=1, every=1,
        optimiser=optax.sgd(0.0),
    )  # fmt: skip
    assert done.failed == -1
    np.testing.assert_allclose(done.metrics["gradient_norm"][0, 0, 1] / size, 7, rtol=1e-5)


def means(steps, loss, size=()):
    """Loss and gradient norm over one interval of steps without learning."""

    class One(nnx.Module):
        def __init__(self):
            self.weight = nnx.Param(jnp.ones(size))

    done = training.train(
        jax.random.key(0), lambda key, setting: One(), lambda model, step, setting: loss(model.weight[...], step),
        lambda key, step: step, steps=steps, every=steps, optimiser=optax.sgd(0.0),
    )  # fmt: skip
    assert done.failed == -1
    return done.metrics["loss"][0, 0, 1], done.metrics["gradient_norm"][0, 0, 1]


@pytest.mark.parametrize("steps", [1000, 1_000_000, pytest.param(4_000_000, marks=pytest.mark.slow)])
def test_means_over_long_intervals_lose_no_digit(steps):
    """Constant terms, and terms that fall as those of a training do: exact to two roundings of float32."""
    np.testing.assert_allclose(means(steps, lambda weight, step: 0.1 * weight), 0.1, rtol=2.5e-7)
    found, _ = means(steps, lambda weight, step: weight / (1 + step.astype(float)))
    t = np.arange(1, steps + 1, dtype=np.float32)
    np.testing.assert_allclose(found, np.mean((1 / t).astype(float)), rtol=2.5e-7)


def test_a_norm_that_overflows_is_infinite_not_lost():
    loss, norm = means(3, lambda weight, step: jnp.sum(3e38 * (weight - 1)), (4,))
    assert loss == 0
    assert norm == np.inf
