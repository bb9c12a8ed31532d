"""Weights taken out of models of flax.nnx, against those recomputed by hand from the layers' parameters."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rc_jax import diagnostics
from tests.diagnostics import dense

X = jax.random.normal(jax.random.key(1), (3, 5, 8))
CAUSAL = np.tri(5, dtype=bool)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, dropout_rate=0.5, rngs=rngs)
        self.linear = nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x, mask=None):
        x = x + self.attention(x, mask=mask, deterministic=True)
        return x + self.linear(x)


class Model(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])

    def __call__(self, x, mask=None):
        for block in self.blocks:
            x = block(x, mask)
        return x

    @nnx.jit
    def compiled(self, x):
        return self(x)

    def twice(self, x):
        return self.blocks[0](self.blocks[0](x))


def by_hand(layer, x, mask=True):
    """Softmax of q·k/√d in float64, from the kernels (features, heads, width) and biases (heads, width)."""
    q, k = (
        np.einsum("bnf,fhd->bhnd", np.asarray(x, float), np.asarray(part.kernel[...], float))
        + np.asarray(part.bias[...], float)[:, None]
        for part in (layer.query, layer.key)
    )
    return dense.softmax(np.where(mask, np.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5, -np.inf))


@pytest.fixture(scope="module")
def model():
    return Model(nnx.Rngs(0))


@pytest.mark.parametrize("mask", [None, CAUSAL])
def test_weights_are_those_of_the_layers(model, mask):
    by_module = diagnostics.flax_weights(model, X, mask=mask)
    assert list(by_module) == ["blocks.0.attention", "blocks.1.attention"]
    inner = model.blocks[0](X, mask)
    for weights, block, x in zip(by_module.values(), model.blocks, (X, inner), strict=True):
        expected = by_hand(block.attention, x, True if mask is None else mask)
        np.testing.assert_allclose(weights, expected, atol=2e-6)
    assert diagnostics.metrics(by_module)["sink_rate"].shape == ()


def test_the_model_is_as_before(model):
    before = nnx.graphdef(model)
    diagnostics.flax_weights(model, X)
    assert nnx.graphdef(model) == before
    assert type(model.blocks[0].attention) is nnx.MultiHeadAttention
    with pytest.raises(TypeError):
        diagnostics.flax_weights(model, X, unknown=1)
    assert nnx.graphdef(model) == before


def test_methods_and_repeated_calls(model):
    by_module = diagnostics.flax_weights(model, X, method=Model.twice)
    assert list(by_module) == ["blocks.0.attention", "blocks.0.attention, call 2"]
    np.testing.assert_allclose(by_module["blocks.0.attention"], by_hand(model.blocks[0].attention, X), atol=2e-6)
    again = by_hand(model.blocks[0].attention, model.blocks[0](X))
    np.testing.assert_allclose(by_module["blocks.0.attention, call 2"], again, atol=2e-6)


def test_compiled_models_and_metrics_in_a_compiled_step(model):
    expected = diagnostics.metrics([by_hand(model.blocks[0].attention, X).astype(np.float32)])
    for each_form in (
        diagnostics.flax_weights(model, X, method=Model.compiled)["blocks.0.attention"],
        nnx.jit(diagnostics.flax_weights)(model, X)["blocks.0.attention"],
    ):
        chex.assert_trees_all_close(diagnostics.metrics(each_form), expected, rtol=1e-5, atol=1e-6)
    step = nnx.jit(lambda model, x: diagnostics.metrics(diagnostics.flax_weights(model, x)["blocks.0.attention"]))
    chex.assert_trees_all_close(step(model, X), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_scanned_and_rematerialised_layers():
    """Under scan the weights have a leading axis of layers, which a reader has to name."""

    class Scanned(nnx.Module):
        def __init__(self):
            self.blocks = nnx.split_rngs(splits=3)(nnx.vmap(Block))(nnx.Rngs(0))

        def __call__(self, x):
            return nnx.scan(nnx.remat(lambda x, block: block(x)), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(
                x, self.blocks
            )

    model = Scanned()
    (weights,) = diagnostics.flax_weights(model, X).values()
    assert weights.shape == (3, 3, 2, 5, 5)
    assert diagnostics.attention(weights, axes=("layer", "sample", "head", "query", "key")).layers == 3
    x = X
    for layer in range(3):
        block = jax.tree.map(lambda leaf, layer=layer: leaf[layer], nnx.state(model.blocks, nnx.Param))
        one = nnx.merge(nnx.graphdef(Block(nnx.Rngs(0))), nnx.state(Block(nnx.Rngs(0))))
        nnx.update(one, block)
        np.testing.assert_allclose(weights[layer], by_hand(one.attention, x), atol=2e-6)
        x = one(x)


def test_layers_of_ones_own_count_if_they_sow():
    class Own(nnx.Module):
        def __call__(self, x):
            self.sow(nnx.Intermediate, "attention_weights", jnp.full((1, 1, 2, 2), 0.5))
            return x

    assert diagnostics.flax_weights(Own(), X)[""].shape == (1, 1, 2, 2)


@pytest.mark.parametrize(
    "model, method, error, message",
    [
        (len, None, TypeError, "`model` must be a module of flax.nnx, got <built-in function len>"),
        (nnx.Linear(8, 8, rngs=nnx.Rngs(0)), None, ValueError, "got no such layer in Linear"),
        (Model(nnx.Rngs(0)), lambda model, x: x, ValueError, "got 2 such layers, none of them called in Model"),
        (Model(nnx.Rngs(0)), "twice", TypeError, "`method` must be a function of the model, got 'twice'"),
    ],
)
def test_bad_input(model, method, error, message):
    with pytest.raises(error, match=message):
        diagnostics.flax_weights(model, X, method=method)


def test_a_function_that_does_not_sow_is_named():
    def attend(query, key, value, **kwargs):
        return value

    layer = nnx.MultiHeadAttention(2, 8, decode=False, attention_fn=attend, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="got layers whose own `attention_fn` ignores `module=`, and so sows nothing"):
        diagnostics.flax_weights(layer, jnp.ones((1, 4, 8)))
