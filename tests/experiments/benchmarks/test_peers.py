"""Peers of the benchmarks: on the same weights and tokens they compute the same numbers as this package does."""

import jax
import numpy as np
import pytest

from experiments.benchmarks import peers
from experiments.benchmarks.contests import Shape, networks, plain
from rc_jax import attention, network

SHAPE = Shape("tiny", network.StackSpec(attention=attention.AttentionSpec(d_model=8, heads=2, d_head=3), depth=3), 5, 2)
NUMPY = pytest.param("numpy", id="numpy")
LOOP = pytest.param("loop", marks=pytest.mark.torch, id="torch loop")
VMAP = pytest.param("vmap", marks=pytest.mark.torch, id="torch.func.vmap")
pytestmark = pytest.mark.usefixtures("one_thread")
PEERS = pytest.mark.parametrize("peer", [NUMPY, LOOP, VMAP])


def given(peer, weights, x):
    if peer == "numpy":
        return peers.numpy_given(weights, x, 2)
    *tensors, tokens = peers.tensors(*weights, x)
    return peers.torch_given(peers.Weights(*tensors), tokens, 2, together=2 if peer == "vmap" else 1)


def drawn(peer, x, count, **options):
    if peer == "numpy":
        return peers.numpy_drawn(x, 2, 3, 6, count, **options)
    return peers.torch_drawn(x, 2, 3, 6, count, together=100 if peer == "vmap" else 1, **options)


@pytest.fixture(scope="module")
def ours():
    """Three networks in double precision, the tokens, and every residual in plain arithmetic."""
    with jax.enable_x64(True):
        weights, x = networks(SHAPE, 3), SHAPE.input()
        logs = jax.jit(jax.vmap(lambda params: plain(params, x, SHAPE.spec)))(weights)
        return peers.side_by_side(weights), np.asarray(x), np.asarray(logs)


@PEERS
def test_same_numbers_on_the_same_weights(peer, ours):
    weights, x, logs = ours
    measured = given(peer, weights, x)
    assert measured.dtype == np.float64 and measured.shape == (3, SHAPE.spec.depth + 1)
    np.testing.assert_allclose(measured, logs, rtol=1e-9)  # ‖res‖ is about e⁻³ at the end: digits to spare


@PEERS
def test_swapped_queries_and_keys_are_noticed(peer, ours):
    """So the test above can fail."""
    (inner, output), x, logs = ours
    query, key, value = np.split(inner, 3, axis=-1)
    assert np.abs(given(peer, peers.Weights(np.concatenate([key, value, query], -1), output), x) - logs).max() > 1e-3


@pytest.fixture(scope="module")
def our_first_layer():
    """The log-residual after the first layer in 4000 networks of ours."""
    x = SHAPE.input()
    measure = jax.jit(jax.vmap(lambda key: plain(network.random_layers(key, SHAPE.spec), x, SHAPE.spec)[1]))
    return np.asarray(measure(jax.random.split(jax.random.key(0), 4000)))


@PEERS
def test_drawn_weights_have_the_law_of_ours(peer, our_first_layer):
    """The mean in standard errors, and the spread; a missing 1/√d would be off by a nat."""
    measured = drawn(peer, np.asarray(SHAPE.input()), 200)[:, 1]
    error = np.hypot(measured.std() / len(measured) ** 0.5, our_first_layer.std() / len(our_first_layer) ** 0.5)
    assert abs(measured.mean() - our_first_layer.mean()) < 5 * error
    assert abs(measured.std() / our_first_layer.std() - 1) < 0.3


@PEERS
def test_every_network_has_weights_of_its_own(peer):
    x = np.asarray(SHAPE.input())
    logs = drawn(peer, x, 4)
    assert len(np.unique(logs[:, 1])) == 4
    np.testing.assert_array_equal(logs, drawn(peer, x, 4))
    assert not np.array_equal(logs, drawn(peer, x, 4, seed=1))
