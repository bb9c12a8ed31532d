"""What is recorded in training, against the public functions on the networks that the switches stand for."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures.training import _collapse_in_training as study
from experiments.figures.training.collapse_in_training import PRESETS
from rc_jax import attention, collapse, network, sparsity
from rc_jax.network.switches import OFF

SPEC = PRESETS["smoke"]


def model(key, spread=1.0):
    return study.build(SPEC, key, {"spread": jnp.asarray(spread)})


@pytest.mark.parametrize("variant", ["attention", "skip, MLP, pre-LN"])
@pytest.mark.slow
def test_inside_against_public_functions(variant, key):
    x, made = jnp.array([0, 3, 3, 1]), model(key)
    setting = {name: jnp.asarray(value) for name, value in (OFF | study.VARIANTS[variant]).items()}
    measured = study.inside(made, setting, x)

    on, stack = OFF | study.VARIANTS[variant], made.spec.stack
    norm = "pre" if on["pre"] else "post" if on["post"] else None
    spec = dataclasses.replace(stack, skip=on["skip"], mlp=stack.mlp if on["mlp"] else None, norm=norm)
    layers = made.layers()
    states = network.hidden_states(layers, made.embed(x), spec)
    relative = [collapse.frobenius(collapse.residual(state)) / collapse.frobenius(state) for state in states]
    np.testing.assert_allclose(measured["residual"], jnp.stack(relative), rtol=1e-3)
    rows = []
    for index, state in enumerate(states[:-1]):
        read = (state - state.mean(1, keepdims=True)) / jnp.sqrt(state.var(1, keepdims=True) + 1e-5)
        layer = jax.tree.map(lambda leaf, index=index: leaf[index], layers.attention)
        rows.append(attention.attention_weights(layer, read if spec.norm else state, spec.attention))
    rows = np.asarray(jnp.stack(rows), float)
    np.testing.assert_allclose(measured["sparsity"], sparsity.sparsity(jnp.asarray(rows)).mean(), rtol=1e-4)
    np.testing.assert_allclose(measured["entropy"], -(rows * np.log(rows)).sum(-1).mean() / np.log(4), rtol=1e-4)
    answers = np.asarray(made.read(states[-1])).argmax(-1)
    np.testing.assert_allclose(measured["accuracy"], (answers == np.asarray(x)[::-1]).mean())


def test_shares_add_up(key):
    share = study.shares(model(key), jnp.array([0, 3, 2, 1]))
    assert share.shape == (SPEC.depth + 1,)
    assert abs(float(share.sum()) - 1) < 1e-5


def test_spread_is_the_relative_size_of_differences(key):
    x = jnp.array([0, 3, 2, 1])
    for spread, low, high in ((1.0, 0.3, 1.0), (1e-3, 1e-4, 1e-2)):
        state = model(key, spread).embed(x)
        assert low < float(collapse.frobenius(collapse.residual(state)) / collapse.frobenius(state)) < high


def test_accuracy_of_one_answer_per_sequence():
    assert study.one_answer(np.array([[0, 0, 0, 1], [0, 1, 2, 3]])) == (3 / 4 + 1 / 4) / 2
