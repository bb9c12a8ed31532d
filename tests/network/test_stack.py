"""The stack: its switches, its unrolled form, and layers drawn on the way against layers stored."""

import dataclasses
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, network
from rc_jax.attention import AttentionSpec
from rc_jax.network import MLPSpec, StackSpec
from tests.oracles import network as oracle

LAYER = AttentionSpec(d_model=8, heads=2, bias=True)
EVERYTHING = StackSpec(attention=LAYER, depth=3, skip=True, mlp=MLPSpec(width=20, activation="gelu"), norm="pre")


def layer(params, index):
    return jax.tree.map(lambda w: w[index], params)


@pytest.mark.slow
@pytest.mark.parametrize("norm", [None, "pre", "post"])
@pytest.mark.parametrize(
    "activation",
    [None, "gelu", *(pytest.param(name, marks=pytest.mark.slow) for name in ("relu", "gelu_tanh", "tanh"))],
)
@pytest.mark.parametrize("skip", [False, True])
def test_switches_are_independent(x64, skip, activation, norm):
    mlp = MLPSpec(width=20, activation=activation) if activation else None
    spec = StackSpec(attention=LAYER, depth=2, skip=skip, mlp=mlp, norm=norm)
    params, x = oracle.draw(spec)
    states = network.hidden_states(params, x, spec)
    np.testing.assert_allclose(states, oracle.hidden_states(params, x, spec), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("gated", "norm"),
    [
        (True, "pre"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((False, "pre"), (False, "post"), (True, "post"))),
    ],
)
def test_rms_norm_and_gated_mlp(x64, gated, norm):
    mlp = MLPSpec(width=20, activation="silu", gated=gated)
    spec = StackSpec(attention=LAYER, depth=2, skip=True, mlp=mlp, norm=norm, norm_kind="rms", norm_epsilon=1e-3)
    params, x = oracle.draw(spec)
    assert params.mlp_norm.shift is None and (params.mlp.weight_gate is not None) == gated
    states = network.hidden_states(params, x, spec)
    np.testing.assert_allclose(states, oracle.hidden_states(params, x, spec), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_do_not_see_how_large_tokens_are(kind):
    """To where tokens themselves overflow; their squares do from 1e19 on."""
    spec = StackSpec(attention=LAYER, depth=2, norm="pre", norm_kind=kind)
    params, x = oracle.draw(spec, "float32")
    out = network.apply(params, 1e8 * x, spec)
    for size in (1e12, 1e19, 1e30, 1e37):
        np.testing.assert_allclose(network.apply(params, size * x, spec), out, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_without_skip_there_is_no_skip_anywhere(x64):
    """Scaling what each branch puts out scales the network's output: nothing goes around the branch."""
    for mlp in (None, MLPSpec(width=20, activation="relu")):
        spec = StackSpec(attention=dataclasses.replace(LAYER, bias=False), depth=1, mlp=mlp)
        params = network.init(jax.random.key(0), spec)  # no biases: relu is homogeneous of degree one
        x = jax.random.normal(jax.random.key(1), (5, 8))
        out = network.apply(params, x, spec)
        scaled = params._replace(attention=params.attention._replace(output=3 * params.attention.output))
        np.testing.assert_allclose(network.apply(scaled, x, spec), 3 * out, rtol=1e-5, atol=1e-6)
        silent = params._replace(attention=params.attention._replace(output=0 * params.attention.output))
        assert bool(jnp.all(network.apply(silent, x, spec) == 0))
        with_skip = dataclasses.replace(spec, skip=True)
        assert not bool(jnp.all(network.apply(silent, x, with_skip) == 0))


def test_pure_attention_is_the_sum_over_all_head_paths(x64):
    """X^L − 1bᵀ = Σ (P^L···P^1) X (W^1···W^L) over all choices of heads, later layers on the left."""
    spec = StackSpec(attention=dataclasses.replace(LAYER, bias=False), depth=3)
    params = network.init(jax.random.key(0), spec, dtype="float64")
    x = jax.random.normal(jax.random.key(1), (5, 8), "float64")
    states = network.hidden_states(params, x, spec)
    weights = [attention.attention_weights(layer(params, i).attention, states[i], spec.attention) for i in range(3)]
    total = np.zeros((5, 8))
    for heads in itertools.product(range(2), repeat=3):
        left, right = np.eye(5), np.eye(8)
        for i, h in enumerate(heads):
            left = np.asarray(weights[i][h]) @ left
            right = right @ np.asarray(params.attention.value[i, h] @ params.attention.output[i, h])
        total += left @ np.asarray(x) @ right
    np.testing.assert_allclose(states[-1], total, rtol=1e-12, atol=1e-13)


def test_apply_is_the_last_hidden_state():
    params, x = oracle.draw(EVERYTHING, "float32")
    states = network.hidden_states(params, x, EVERYTHING)
    assert states.shape == (4, 5, 8)
    np.testing.assert_array_equal(states[0], x)
    np.testing.assert_allclose(states[-1], network.apply(params, x, EVERYTHING), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decoder", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_drawn_layers_are_the_stored_ones(key, decoder):
    """With the defaults, and with every option at once."""
    spec = EVERYTHING
    if decoder:
        layer = dataclasses.replace(
            LAYER, causal=True, rotary=attention.Rotary(), qk_norm="rms", scale_law="log_tokens"
        )
        mlp = MLPSpec(width=20, activation="silu", gated=True)
        spec = dataclasses.replace(EVERYTHING, attention=layer, mlp=mlp, norm_kind="rms")
    stored, drawn = (make(key, spec, gain=1.3, bias_std=0.2) for make in (network.init, network.random_layers))
    x = jax.random.normal(jax.random.key(1), (5, 8))
    np.testing.assert_allclose(network.apply(stored, x, spec), network.apply(drawn, x, spec), rtol=1e-4, atol=1e-5)
    stored_numbers = sum(leaf.size for leaf in jax.tree.leaves((drawn.gain, drawn.bias_std))) + drawn.keys.size
    assert stored_numbers == spec.depth + 2  # a key per layer and two numbers


def test_layers_are_independent_draws(key):
    params = network.init(key, EVERYTHING)
    flat = jnp.concatenate([w.reshape(3, -1) for w in (*params.attention[:4], params.mlp.weight_in)], axis=1)
    assert jnp.unique(flat).size > 0.999 * flat.size


@pytest.mark.slow
def test_initial_spread_of_every_part(key):
    spec = dataclasses.replace(EVERYTHING, depth=40, mlp=MLPSpec(width=64))
    params = network.init(key, spec, gain=1.5, bias_std=0.2)
    wanted = {
        "weight_in": 1.5 * 8**-0.5,
        "weight_out": 1.5 * 64**-0.5,
        "bias_in": 0.2,
        "bias_out": 0.2,
    }
    for name, std in wanted.items():
        drawn = getattr(params.mlp, name)
        z = (float(jnp.mean(jnp.square(drawn))) / std**2 - 1) / (2 / drawn.size) ** 0.5
        assert abs(z) < 5, name
    assert bool(jnp.all(params.attention_norm.scale == 1)) and bool(jnp.all(params.mlp_norm.shift == 0))


def test_switched_off_parts_may_stay_in_the_parameters():
    params, x = oracle.draw(EVERYTHING, "float32")
    bare = dataclasses.replace(EVERYTHING, skip=False, mlp=None, norm=None)
    alone = network.LayerParams(params.attention)
    np.testing.assert_array_equal(network.apply(params, x, bare), network.apply(alone, x, bare))


@pytest.mark.slow
def test_masks_and_scales_reach_every_layer(x64):
    """With a causal mask, a token's output does not depend on later tokens, at any depth."""
    spec = StackSpec(attention=LAYER, depth=3, skip=True)
    params, x = oracle.draw(spec)
    mask = attention.masks.causal(5)
    changed = x.at[4].add(1.0)
    before, after = (network.apply(params, tokens, spec, mask=mask, scale=2.0) for tokens in (x, changed))
    np.testing.assert_array_equal(before[:4], after[:4])
    assert not np.allclose(before[4], after[4])
    assert not np.allclose(network.apply(params, x, spec, scale=2.0), network.apply(params, x, spec))


def test_one_trace_serves_a_sweep_and_depth_is_not_unrolled():
    spec = StackSpec(attention=LAYER, depth=3)
    params, x = oracle.draw(spec, "float32")

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(scale):
        return network.apply(params, x, spec, scale=scale)

    for scale in (0.1, 1.0, 10.0):
        run(scale)

    def equations(depth):
        deep = dataclasses.replace(spec, depth=depth)
        layers = network.random_layers(jax.random.key(0), deep)
        return str(jax.make_jaxpr(lambda x: network.apply(layers, x, deep))(x)).count("\n")

    assert equations(3) == equations(96)


@pytest.mark.usefixtures("as_installed")
def test_bad_input(key):
    params, x = oracle.draw(EVERYTHING, "float32")
    bad_specs = [
        (ValueError, "`depth` must be an integer >= 1, got 0", {"depth": 0}),
        (ValueError, "`norm` must be one of None, 'pre', 'post', 'branch', 'peri', got 'both'", {"norm": "both"}),
        (TypeError, "`mlp` must be an MLPSpec or None, got 32", {"mlp": 32}),
        (TypeError, "`attention` must be an AttentionSpec", {"attention": None}),
        (ValueError, "`norm_epsilon` must be > 0", {"norm_epsilon": 0.0}),
        (TypeError, "`skip` must be a bool, got 'no'", {"skip": "no"}),
        (ValueError, "`norm_kind` must be one of 'layer', 'rms', got 'batch'", {"norm_kind": "batch"}),
    ]
    for error, message, change in bad_specs:
        with pytest.raises(error, match=message):
            dataclasses.replace(EVERYTHING, **change)
    with pytest.raises(ValueError, match="`activation` must be one of 'relu'"):
        MLPSpec(width=3, activation="swish")
    two = dataclasses.replace(EVERYTHING, depth=2)
    calls = [
        (TypeError, "`spec` must be a StackSpec, got an AttentionSpec", (params, x, EVERYTHING.attention)),
        (ValueError, r"`x` must have d_model=8 features", (params, x[:, :4], EVERYTHING)),
        (ValueError, r"`params.query` must have shape \(2, 2, 8, 4\)", (params, x, two)),
        (ValueError, r"`params.mlp.weight_gate` must have shape \(3, 8, 20\), got None",
         (params, x, dataclasses.replace(EVERYTHING, mlp=MLPSpec(width=20, gated=True)))),
        (ValueError, "`params.mlp` must be given", (params._replace(mlp=None), x, EVERYTHING)),
        (TypeError, "`params` must be a LayerParams or a RandomLayers", (params.attention, x, EVERYTHING)),
        (TypeError, "`x` must have the dtype of `params", (params, x.astype("bfloat16"), EVERYTHING)),
        (ValueError, "`params` must be drawn for depth=2, got 3",
         (network.random_layers(key, EVERYTHING), x, two)),
    ]  # fmt: skip
    for error, message, arguments in calls:
        with pytest.raises(error, match=message):
            network.apply(*arguments)
        with pytest.raises(error, match=message):
            network.hidden_states(*arguments)
    with pytest.raises(TypeError, match="`key` must be one typed key"):
        network.init(jax.random.split(key), EVERYTHING)


def test_a_scale_is_that_of_the_layers_that_read_scores(key):
    """Beside them layers of linear attention have none; alone they refuse one."""
    full, linear = (AttentionSpec(d_model=8, heads=2, causal=True, weights=name) for name in ("softmax", "linear"))
    spec = StackSpec(attention=full, depth=2, local=linear, local_layers=(0,))
    params, x = network.init(key, spec), jax.random.normal(key, (6, 8))
    assert np.abs(network.apply(params, x, spec, scale=0.7) - network.apply(params, x, spec)).max() > 1e-3
    alone = StackSpec(attention=linear, depth=2)
    with pytest.raises(ValueError, match="`scale` must be None when weights='linear'"):
        network.apply(network.init(key, alone), x, alone, scale=0.7)
