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


class Random(nnx.Module):
    """Layers that change at each call in training: random streams, of attention too, and running averages."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, dropout_rate=0.5, deterministic=False, rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(8, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.dropout(self.attention(x)))

    def twice(self, x):
        return self(self(x))


@pytest.mark.parametrize("method", [None, Random.twice])
@pytest.mark.parametrize(
    "form", [diagnostics.flax_weights, nnx.jit(diagnostics.flax_weights, static_argnames="method")]
)
def test_random_streams_and_running_averages_are_as_before(form, method):
    model = Random()
    form(model, X, method=method)
    chex.assert_trees_all_equal(nnx.state(model), nnx.state(Random()))
    chex.assert_trees_all_equal(model(X), Random()(X))


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


class Own(nnx.Module):
    def __call__(self, x):
        self.sow(nnx.Intermediate, "attention_weights", jnp.full((1, 1, 2, 2), 0.5))
        return x


def test_layers_of_ones_own_count_if_they_sow():
    assert diagnostics.flax_weights(Own(), X)[""].shape == (1, 1, 2, 2)


def attention(seed=0):
    return nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(seed))


class Compiled(nnx.Module):
    def __init__(self, seed):
        self.second, self.first = attention(seed), attention(seed + 1)

    @nnx.jit
    def __call__(self, x):
        return self.second(self.first(x))


class Ordered(nnx.Module):
    """Layers whose names are in another order than their calls."""

    def __init__(self):
        for number in range(1, 12):
            setattr(self, f"layer{number}", attention(number))
        self.encoder, self.decoder, self.own = attention(), attention(), Own()
        self.dict, self.list = nnx.Dict(b=attention(), a=attention()), nnx.List([attention() for _ in range(11)])
        self.sequential = nnx.Sequential(*(attention(seed) for seed in range(11)))
        self.compiled = nnx.List([Compiled(seed) for seed in range(3)])

    def numbered(self, x):
        for number in range(1, 12):
            x = getattr(self, f"layer{number}")(x)
        return x

    def parts(self, x):
        x = self.decoder(self.own(self.encoder(x)))
        return self.encoder(self.dict["a"](self.dict["b"](x)))

    def in_containers(self, x):
        for layer in self.list:
            x = layer(x)
        return self.sequential(x)

    def pieces(self, x):
        return self.compiled[1](self.own(self.compiled[0](self.compiled[2](x))))

    def other_pieces(self, x):
        return self.compiled[2](self.compiled[0](self.compiled[1](x)))

    def looking(self, x):
        x = self.compiled[2](x)
        return self.compiled[0](x) if float(x.sum()) < 1e9 else x

    def drawing(self, x, rngs):
        return self.compiled[0](self.compiled[2](x) + rngs.normal(x.shape))

    @nnx.jit
    def whole(self, x):
        return self.parts(x)

    def rematerialised(self, x):
        for layer in (self.layer2, self.layer10, self.layer1):
            x = nnx.remat(lambda layer, x: layer(x))(layer, x)
        return x


@pytest.fixture(scope="module")
def ordered():
    return Ordered()


PARTS = ["encoder", "encoder, call 2", "own", "decoder", "dict.b", "dict.a"]
CALLED = {
    "numbered": [f"layer{number}" for number in range(1, 12)],
    "parts": PARTS,
    "in_containers": [f"{kind}.{number}" for kind in ("list", "sequential.layers") for number in range(11)],
}
COMPILED = {
    "whole": PARTS,
    "pieces": [f"compiled.{part}" for part in ("2.first", "2.second", "0.first", "0.second")]
    + ["own", "compiled.1.first", "compiled.1.second"],
    "other_pieces": [f"compiled.{number}.{name}" for number in (1, 0, 2) for name in ("first", "second")],
    "looking": [f"compiled.{number}.{name}" for number in (2, 0) for name in ("first", "second")],
    "rematerialised": ["layer2", "layer10", "layer1"],
}


@pytest.mark.parametrize("name, expected", CALLED.items(), ids=CALLED)
def test_layers_are_in_the_order_of_their_first_calls(ordered, name, expected):
    assert list(diagnostics.flax_weights(ordered, X, method=getattr(Ordered, name))) == expected


@pytest.mark.parametrize("name, expected", COMPILED.items(), ids=COMPILED)
def test_so_are_those_of_compiled_parts_whether_traced_before_or_now(ordered, name, expected):
    method = getattr(Ordered, name)
    graph = nnx.graphdef(ordered)
    for _ in range(2):
        assert list(diagnostics.flax_weights(ordered, X, method=method)) == expected
    assert nnx.graphdef(ordered) == graph
    if name != "looking":
        found = []
        nnx.jit(lambda model, x: found.extend(diagnostics.flax_weights(model, x, method=method)))(ordered, X)
        assert found == expected


def test_the_order_is_found_without_a_draw_of_random_numbers(ordered):
    rngs = nnx.Rngs(0)
    assert len(diagnostics.flax_weights(ordered, X, method=Ordered.drawing, rngs=rngs)) == 4
    assert rngs.default.count[...] == 1
    found = diagnostics.flax_weights(ordered, X, method=lambda model, x: model.drawing(x, rngs))
    assert list(found) == COMPILED["looking"]


def test_a_diagnosis_numbers_the_layers_in_the_order_of_calls():
    model = Ordered()
    for number in range(1, 12):  # sharper with depth
        kernel = getattr(model, f"layer{number}").query.kernel
        kernel[...] = kernel[...] * 2.0**number
    diagnosis = diagnostics.attention(list(diagnostics.flax_weights(model, X, method=Ordered.numbered).values()))
    x = X
    for layer, entropies in enumerate(diagnosis["relative_entropy"], 1):
        p = by_hand(getattr(model, f"layer{layer}"), x)
        expected = -np.sum(p * np.log(np.maximum(p, 1e-300)), axis=-1).mean((0, 2)) / np.log(5)
        np.testing.assert_allclose(entropies, expected, rtol=1e-3, atol=1e-4)
        x = getattr(model, f"layer{layer}")(x)


class Vmapped(nnx.Module):
    def __init__(self):
        self.attention = attention()

    def by_jax(self, x):
        return jax.vmap(self.attention)(x)

    def by_jit(self, x):
        return jax.jit(lambda x: self.attention(x))(x)

    def by_flax(self, x, axes=None):
        return nnx.vmap(lambda layer, x: layer(x), in_axes=(axes, 0))(self.attention, x)

    def by_loop(self, x):
        return nnx.fori_loop(0, 2, lambda _, carry: (carry[0], carry[0](carry[1])), (self.attention, x))[1]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["by_jax", "by_jit", "by_flax", "by_loop"])
def test_a_transformation_that_loses_the_weights_is_refused(name, compiled):
    """Among the ways on are those that hand them out."""

    def weights(model, x):
        return diagnostics.flax_weights(model, x, method=getattr(Vmapped, name))

    message = "`model` must call attention layers where what they sow is kept, got .* in jax.vmap or another"
    with pytest.raises(ValueError, match=message):
        (nnx.jit(weights) if compiled else weights)(Vmapped(), X)


def test_a_transformation_that_is_told_of_the_weights_hands_them_out():
    axes, model = nnx.StateAxes({nnx.Intermediate: 0, ...: None}), Vmapped()
    weights = diagnostics.flax_weights(model, X, axes, method=Vmapped.by_flax)["attention"]
    np.testing.assert_allclose(weights, by_hand(model.attention, X), atol=2e-6)


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


def test_the_order_is_found_where_the_model_cannot_be_traced():
    """A boolean index has no shape in a trace, and its error is none of those that JAX names for it."""

    class Chosen(nnx.Module):
        def __init__(self, rngs):
            first, second = (nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs) for _ in range(2))
            self.b, self.a = first, second

        def __call__(self, x):
            chosen = self.b(x)[:, x[0, :, 0] > 0]
            return nnx.jit(lambda layer, x: layer(x))(self.a, chosen)

    weights = diagnostics.flax_weights(Chosen(nnx.Rngs(0)), jnp.ones((2, 3, 8)))
    assert list(weights) == ["b", "a"]
