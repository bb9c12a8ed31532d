"""Batches: every example once an epoch, another order in the next, nothing but key and step decides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax.training import shuffled


def test_an_epoch_sees_every_example_once_and_the_next_another_order(key):
    batches = jax.jit(lambda key, step: shuffled({"x": jnp.arange(12), "y": -jnp.arange(12)}, 3)(key, step))
    epochs = np.array([[batches(key, 4 * epoch + turn)["x"] for turn in range(4)] for epoch in range(3)]).reshape(3, 12)
    assert (np.sort(epochs, axis=1) == np.arange(12)).all()
    assert len({tuple(order) for order in epochs.tolist()}) == 3
    found = batches(key, 7)
    np.testing.assert_array_equal(found["y"], -found["x"])
    assert (np.asarray(batches(jax.random.key(1), 7)["x"]) != np.asarray(found["x"])).any()


def test_what_does_not_fill_a_batch_is_left_out(key):
    batches = shuffled(jnp.arange(7), 3)
    epoch = np.concatenate([batches(key, step) for step in (0, 1)])
    assert len(set(epoch.tolist())) == 6
    assert len(set(np.concatenate([batches(key, step) for step in (2, 3)]).tolist())) == 6


def test_the_data_are_arguments_of_a_program_not_constants():
    one, other = shuffled(jnp.arange(6.0), 2), shuffled(jnp.ones(6), 2)
    traces = []

    @jax.jit
    def draw(batches, key, step):
        traces.append(None)
        return batches(key, step)

    for batches in (one, other):
        draw(batches, jax.random.key(0), 3)
    assert len(traces) == 1


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("data", "size", "text"),
    [
        ([jnp.zeros(3), jnp.zeros(4)], 2, "arrays of one length"),
        ({}, 2, "arrays of one length"),
        (jnp.zeros(3), 4, "at least 4 examples"),
        (jnp.zeros(3), 0, "`batch_size`"),
    ],
)
def test_door(data, size, text):
    with pytest.raises(ValueError, match=text):
        shuffled(data, size)
