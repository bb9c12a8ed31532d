"""A decoder with rotary positions, normalised queries and keys, RMSNorm and a gated MLP is trained like any other."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from rc_jax import attention, network, training

STACK = network.StackSpec(
    attention=attention.AttentionSpec(
        d_model=8, heads=2, causal=True, rotary=attention.Rotary(), qk_norm="rms", scale_law="log_tokens"
    ),
    depth=2,
    skip=True,
    mlp=network.MLPSpec(width=6, activation="silu", gated=True),
    norm="pre",
    norm_kind="rms",
)
SPEC = training.ModelSpec(stack=STACK, inputs=5, outputs=5, tokens=6, positions=None, final_norm=True)


def build(key, setting):
    return training.Transformer(key, SPEC, scale=0.4)


def loss(model, batch, setting):
    """The symbol before this one, which no model finds without an order; the first row is its own."""
    return training.cross_entropy(jax.vmap(model)(batch), jnp.concatenate([batch[:, :1], batch[:, :-1]], axis=1))


def batches(key, step):
    return jax.random.randint(jax.random.fold_in(key, step), (16, 6), 0, 5)


@pytest.mark.slow
def test_it_learns_and_every_parameter_takes_part():
    optimiser = optax.adam(0.02)
    done = training.train(jax.random.key(0), build, loss, batches, steps=80, every=40, seeds=1, optimiser=optimiser)
    first, last = done.metrics["loss"][0, 0, 1:]
    assert last < 0.75 * first
    assert done.failed.tolist() == [[-1]]
    start = nnx.state(build(jax.random.fold_in(jax.random.key(0), 0), {}), nnx.Param)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), start, nnx.state(done.model(), nnx.Param))
    assert [path for path, size in jax.tree_util.tree_leaves_with_path(moved) if size == 0] == []
    layers = done.model().layers()
    assert layers.attention.parts["query_norm"].shape == layers.attention.parts["key_norm"].shape == (2, 2, 4)
    assert layers.mlp.weight_gate.shape == (2, 8, 6)
    assert layers.attention_norm.shift is None


@pytest.mark.slow
def test_its_readout_is_the_norm_of_its_layers():
    model = build(jax.random.key(1), {})
    hidden = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    gain = np.asarray(model.norm.scale[...])
    normed = hidden / np.sqrt((hidden**2).mean(axis=1, keepdims=True) + STACK.norm_epsilon) * gain
    np.testing.assert_allclose(model.read(jnp.asarray(hidden)), normed @ np.asarray(model.readout[...]), atol=1e-5)
    assert model.norm.shift is None
