"""Branches made weaker or stronger: against the definition, for stored and for random layers."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, network
from rc_jax.attention import AttentionSpec
from rc_jax.network import MLPSpec, StackSpec

SPEC = StackSpec(
    attention=AttentionSpec(d_model=8, heads=2, bias=True), depth=3, skip=True, mlp=MLPSpec(width=12, activation="gelu")
)


def draw(seed=0):
    key = jax.random.key(seed)
    options = {"bias_std": 0.3}
    stored, random = network.init(key, SPEC, **options), network.random_layers(key, SPEC, **options)
    return stored, random, jax.random.normal(jax.random.fold_in(key, 9), (5, 8))


def by_definition(params, x, attention_strength, mlp_strength):
    for index in range(SPEC.depth):
        layer = jax.tree.map(lambda w, i=index: w[i], params)
        x = x + attention_strength[index] * attention.attend(layer.attention, x, SPEC.attention)
        hidden = x @ layer.mlp.weight_in + layer.mlp.bias_in[None]
        out = jax.nn.gelu(hidden, approximate=False) @ layer.mlp.weight_out + layer.mlp.bias_out[None]
        x = x + mlp_strength[index] * out
    return x


@pytest.mark.slow
@pytest.mark.parametrize(("on_attention", "on_mlp"), [(True, True), (True, False), (False, True), (False, False)])
def test_stored_layers_and_recipes_against_the_definition(on_attention, on_mlp):
    stored, random, x = draw()
    strengths = [[0.3] * 3 if on else [1.0] * 3 for on in (on_attention, on_mlp)]
    wanted = by_definition(stored, x, *strengths)
    for params in (stored, random):
        scaled = network.scale_branches(params, 0.3, attention=on_attention, mlp=on_mlp)
        assert type(scaled) is type(params)
        np.testing.assert_allclose(network.apply(scaled, x, SPEC), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_one_strength_for_each_layer():
    stored, _, x = draw()
    strengths = jnp.array([0.5, 0.0, -2.0])
    wanted = by_definition(stored, x, strengths, strengths)
    np.testing.assert_allclose(
        network.apply(network.scale_branches(stored, strengths), x, SPEC), wanted, rtol=2e-5, atol=2e-5
    )


@pytest.mark.slow
def test_strengths_multiply_and_nothing_else_changes():
    stored, random, x = draw()
    for params in (stored, random):
        twice = network.scale_branches(network.scale_branches(params, 0.5), 4.0)
        once = network.scale_branches(params, 2.0)
        np.testing.assert_array_equal(network.apply(twice, x, SPEC), network.apply(once, x, SPEC))
    scaled = network.scale_branches(stored, 3.0)
    np.testing.assert_array_equal(scaled.attention.query, stored.attention.query)
    np.testing.assert_array_equal(scaled.mlp.weight_in, stored.mlp.weight_in)
    assert network.scale_branches(network.init(jax.random.key(0), dataclasses.replace(SPEC, mlp=None)), 2.0).mlp is None


def test_the_strength_is_traced_and_differentiable():
    _, random, x = draw()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def size(strength):
        return jnp.sum(jnp.square(network.apply(network.scale_branches(random, strength), x, SPEC)))

    values = [float(size(strength)) for strength in (0.1, 0.2, 0.4)]
    assert len(set(values)) == 3
    step = 1e-2
    slope = (float(size(0.2 + step)) - float(size(0.2 - step))) / (2 * step)
    assert float(jax.grad(size)(0.2)) == pytest.approx(slope, rel=1e-2)


@pytest.mark.slow
def test_dtype_is_kept(dtype):
    params = network.init(jax.random.key(0), SPEC, dtype=dtype)
    assert network.scale_branches(params, 0.5).attention.output.dtype == dtype
    random = network.random_layers(jax.random.key(0), SPEC, dtype=dtype)
    x = jnp.ones((4, 8), dtype)
    assert network.apply(network.scale_branches(random, 0.5), x, SPEC).dtype == dtype


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    stored, random, _ = draw()
    with pytest.raises(ValueError, match="`strength` must be finite"):
        network.scale_branches(stored, float("nan"))
    with pytest.raises(TypeError, match="`strength` must be a real number"):
        network.scale_branches(stored, "weak")
    with pytest.raises(ValueError, match="`strength` must be one number or 3 of them"):
        network.scale_branches(stored, jnp.ones(2))
    with pytest.raises(ValueError, match="`strength` must be one number for RandomLayers"):
        network.scale_branches(random, jnp.ones(3))
    with pytest.raises(TypeError, match="`params` must be a LayerParams or a RandomLayers"):
        network.scale_branches(stored.attention, 1.0)
