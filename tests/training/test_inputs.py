"""The errors of `train` for bad input."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from rc_jax import training
from tests.training.small import SETTINGS, adam, batches, build, loss, run


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
def test_bad_options(options, error, text):
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
def test_bad_functions(changes, error, text):
    given = {"build": build, "loss": loss, "batches": batches} | changes
    with pytest.raises(error, match=text):
        training.train(jax.random.key(0), **given, steps=1, every=1, optimiser=adam, settings=SETTINGS)


class Dropping(nnx.Module):
    def __init__(self, key):
        self.rngs = nnx.Rngs(key)
        self.inner, self.drop = nnx.Linear(1, 64, rngs=self.rngs), nnx.Dropout(0.5, rngs=self.rngs)
        self.norm = nnx.BatchNorm(64, rngs=self.rngs)


def train_dropping(loss):
    return training.train(
        jax.random.key(0), lambda key, setting: Dropping(key), loss,
        lambda key, step: jax.random.fold_in(key, step), steps=2, every=1, optimiser=optax.sgd(0.0),
    )  # fmt: skip


@pytest.mark.parametrize("layer", ["drop", "norm"])
def test_a_module_that_draws_or_counts_is_refused(layer):
    with pytest.raises(ValueError, match=r"`loss` must change nothing .*rngs=nnx\.Rngs\(key\).* got 'Cannot mutate"):
        train_dropping(lambda model, key, setting: jnp.mean(getattr(model, layer)(model.inner(jnp.ones((4, 1))))))


def test_dropout_takes_its_key_from_the_batch_and_none_to_evaluate():
    def loss(model, key, setting):
        hidden = jnp.abs(model.inner(jnp.ones((4, 1))))
        return jnp.mean(model.drop(hidden, rngs=nnx.Rngs(key)))

    first, second = train_dropping(loss).metrics["loss"][0, 0, 1:]
    assert first != second  # of the same weights, which do not move

    def evaluated(model, key, setting):
        model.eval()
        return jnp.mean(model.norm(model.drop(jnp.abs(model.inner(jnp.ones((4, 1)))))))

    first, second = train_dropping(evaluated).metrics["loss"][0, 0, 1:]
    assert first == second


def test_key_must_be_typed():
    with pytest.raises(TypeError, match="`key`"):
        training.train(0, build, loss, batches, steps=1, every=1, optimiser=optax.sgd(0.1))
    with pytest.raises(TypeError, match="`key`"):  # the order of the arguments before
        training.train(build, loss, batches, jax.random.key(0), steps=1, every=1, optimiser=optax.sgd(0.1))  # pyright: ignore
