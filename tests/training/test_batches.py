"""Batches: every example once an epoch, another order in the next, decided by key and step alone."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax.training import shuffled


def test_an_epoch_sees_every_example_once_and_the_next_another_order(key):
    batches = jax.jit(lambda key, step: shuffled({"x": jnp.arange(12), "y": -jnp.arange(12)}, 3)(key, step))
    epochs = np.array([batches(key, step)["x"] for step in range(12)]).reshape(3, 12)
    assert (np.sort(epochs, axis=1) == np.arange(12)).all()
    assert len({tuple(order) for order in epochs.tolist()}) == 3
    batch = batches(key, 7)
    np.testing.assert_array_equal(batch["y"], -batch["x"])
    assert (np.asarray(batches(jax.random.key(1), 7)["x"]) != np.asarray(batch["x"])).any()


@pytest.mark.parametrize("count", [1, 5, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 64, 100))])
def test_every_count_is_permuted(count):
    batches = shuffled(jnp.arange(count), 1)
    epoch = jax.jit(jax.vmap(lambda step: batches(jax.random.key(count), step)[0]))(jnp.arange(count))
    assert sorted(epoch.tolist()) == list(range(count))


@pytest.mark.slow
def test_positions_of_an_epoch_are_equally_likely_and_neighbours_part():
    """Of 4000 epochs of 9 examples: counts of example × position against chi-square, neighbours against 1/9."""
    batches = shuffled(jnp.arange(9), 9)
    keys = jax.random.split(jax.random.key(0), 4000)
    epochs = np.asarray(jax.jit(jax.vmap(lambda key: batches(key, 0)))(keys))
    counts = np.stack([(epochs == example).sum(axis=0) for example in range(9)])
    statistic = np.sum((counts - 4000 / 9) ** 2) / (4000 / 9)
    assert abs(statistic - 64) < 5 * np.sqrt(2 * 64)
    pairs = np.sum(np.diff(epochs, axis=1) == 1)  # mean 8 · 8/(9 · 8) of each epoch
    assert abs(pairs / 4000 - 8 / 9) < 5 * np.sqrt(8 / 9 / 4000)


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 5, 6])
def test_all_orders_of_few_examples_are_equally_likely(count):
    """Of 120 000 epochs: every order's frequency against chi-square."""
    batches = shuffled(jnp.arange(count), count)
    epochs = np.asarray(jax.jit(jax.vmap(lambda step: batches(jax.random.key(7), step)))(jnp.arange(120_000)))
    orders, number = math.factorial(count), np.unique(epochs, axis=0, return_counts=True)[1]
    assert len(number) == orders
    expected = 120_000 / orders
    statistic = np.sum((number - expected) ** 2) / expected
    assert abs(statistic - (orders - 1)) < 5 * np.sqrt(2 * (orders - 1))


@pytest.mark.slow
@pytest.mark.parametrize("count", [16, 64])
def test_two_places_of_an_epoch_hold_any_two_examples_equally_often(count):
    """Of 400 000 epochs: the pairs at places that differ in their highest bit, which few Feistel rounds do not part."""
    batches, draws, step = shuffled(jnp.arange(count), count), 400_000, 100_000

    @jax.jit
    def pairs(first):
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(5), first + jnp.arange(step))
        return jax.vmap(lambda key: batches(key, 0)[jnp.array([0, count // 2])])(keys)

    number = np.zeros(count**2)
    for first in range(0, draws, step):
        one, other = np.asarray(pairs(first)).T
        number += np.bincount(one * count + other, minlength=count**2)
    number = number.reshape(count, count)
    assert (np.diag(number) == 0).all()
    number, expected = number[~np.eye(count, dtype=bool)], draws / (count * (count - 1))
    statistic, freedom = np.sum((number - expected) ** 2) / expected, number.size - 1
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)


def test_orders_of_many_examples_stay_what_they_were():
    """Recorded before small data sets had orders of their own."""
    for count, recorded in ((257, [179, 140, 248, 197]), (1000, [691, 942, 788, 899])):
        assert shuffled(jnp.arange(count), 4)(jax.random.key(0), 0).tolist() == recorded


def test_what_does_not_fill_a_batch_is_left_out(key):
    batches = jax.jit(lambda key, step: shuffled(jnp.arange(7), 3)(key, step))
    for steps in ((0, 1), (2, 3)):
        assert len(set(np.concatenate([batches(key, step) for step in steps]).tolist())) == 6


def test_the_data_are_arguments_of_a_program_not_constants():
    one, other = shuffled(jnp.arange(6.0), 2), shuffled(jnp.ones(6), 2)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def draw(batches, key, step):
        return batches(key, step)

    for batches in (one, other):
        draw(batches, jax.random.key(0), 3)


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
