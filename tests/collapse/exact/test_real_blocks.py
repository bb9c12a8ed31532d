"""The cancellation-free arithmetic in the layers of today's models: against many digits, and who refuses them."""

import dataclasses

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from rc_jax import attention, collapse, network
from rc_jax.collapse.exact import mlp_and_norms
from rc_jax.collapse.exact.scaled import Scaled
from tests.collapse.exact.test_trajectory import TOLERANCE, exact_logs, worst_error

ROTARY = attention.Rotary()
SLOW = attention.Rotary(base=1e6, width=2, attention_factor=1.3)
GATED = network.MLPSpec(width=6, activation="silu", gated=True)
LLAMA = {"skip": True, "norm": "pre", "norm_kind": "rms", "mlp": GATED}


def stack(depth=3, layer=None, **changes):
    shape = {"d_model": 8, "heads": 2, "bias": True} | (layer or {})
    return network.StackSpec(attention=attention.AttentionSpec(**shape), depth=depth, **changes)


@pytest.fixture(scope="module")
def drawn():
    """Parameters with every part, of which specifications ignore what they do not have, and tokens.

    Gains are no ones, which would hide a mix-up.
    """
    with jax.enable_x64(True):
        spec = stack(4, {"qk_norm": "rms"}, **LLAMA | {"norm": "peri"})
        params = network.init(jax.random.key(1), spec, bias_std=0.3, dtype="float64")

        def shaken(part, *names):
            noise = {name: np.random.default_rng(len(name)).normal(1, 0.3, getattr(part, name).shape) for name in names}
            return part._replace(**{name: getattr(part, name) * factor for name, factor in noise.items()})

        random = np.random.default_rng(10)
        gains = {name: random.normal(1, 0.3, part.shape) * part for name, part in params.attention.parts.items()}
        params = params._replace(
            attention=params.attention.with_parts(**gains),
            attention_norm=shaken(params.attention_norm, "scale"),
            mlp_norm=shaken(params.mlp_norm, "scale"),
            attention_out_norm=shaken(params.attention_out_norm, "scale"),
            mlp_out_norm=shaken(params.mlp_out_norm, "scale"),
        )
        return params, 0.7 * jax.random.normal(jax.random.key(2), (4, 8), "float64")


def layers(params, depth, dtype="float64"):
    """The first layers, over and over where there are not so many."""
    return jax.tree.map(lambda w: w[np.arange(depth) % 4].astype(dtype), params)


def check(spec, drawn, dtype="float64", digits=300, factor=1.0):
    params, x = layers(drawn[0], spec.depth, dtype), drawn[1].astype(dtype)
    mask = np.tri(x.shape[0], dtype=bool) if spec.attention.causal else None
    exact = exact_logs(params, x, spec, digits, mask=mask)
    assert worst_error(collapse.log_residuals(params, x, spec), exact) < factor * TOLERANCE[dtype]
    return exact


LOCAL = attention.AttentionSpec(d_model=8, heads=2, bias=True, rotary=SLOW, qk_norm="rms", causal=True, window=1)
CAPPED = attention.AttentionSpec(
    d_model=8, heads=2, bias=True, qk_norm="rms", causal=True, window=2, scale=0.7, soft_cap=0.5
)
LAYERS = {
    "unit, counted": ({"rotary": SLOW, "qk_norm": "unit", "scale_law": "log_tokens", "causal": True}, {}),
    "rotary, top_k": ({"rotary": ROTARY, "top_k": 2}, {}),
    "olmo2": ({"rotary": ROTARY, "qk_norm": "rms_joint", "causal": True}, LLAMA | {"norm": "branch"}),
    "gemma3": (
        {"rotary": ROTARY, "qk_norm": "rms", "causal": True},
        LLAMA | {"norm": "peri", "local": LOCAL, "local_layers": (0, 1)},
    ),
    "a cap in some layers, a scale": (
        {"qk_norm": "rms", "causal": True, "scale": 0.9},
        LLAMA | {"norm": "peri", "local": CAPPED, "local_layers": (1,)},
    ),
    "gemma2": (
        {"rotary": ROTARY, "causal": True, "scale": 0.9, "soft_cap": 0.5},
        LLAMA
        | {"norm": "peri", "local": dataclasses.replace(CAPPED, qk_norm=None, rotary=ROTARY), "local_layers": (0,)},
    ),
    "gpt_neox": ({"rotary": attention.Rotary(width=2), "causal": True}, LLAMA | {"parallel": True}),
    "side by side, no skip": ({}, LLAMA | {"norm": "peri", "parallel": True, "skip": False}),
    "rotary cosine": ({"rotary": ROTARY, "scores": "cosine"}, {"norm": "post", "norm_kind": "rms"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_layers_agree_with_many_digits(x64, drawn, name):
    layer, changes = LAYERS[name]
    check(stack(layer=layer, **changes), drawn)


@pytest.mark.slow
def test_a_llama_layer_under_jit_and_vmap(x64, drawn):
    """As the loader makes it: query heads that share a key head have copies of it. Tokens of two sizes at once."""
    spec = stack(2, {"rotary": ROTARY, "causal": True}, **LLAMA)
    params, x = layers(drawn[0], 2), drawn[1]
    shared = {name: getattr(params.attention, name)[:, jnp.array([0, 0])] for name in ("key", "value", "key_bias")}
    params = params._replace(attention=params.attention._replace(**shared))
    sizes = jnp.array([1.0, 1e-9])
    tokens = sizes[:, None, None] * x[None] + 1
    got = jax.jit(jax.vmap(lambda x: collapse.log_residuals(params, x, spec)))(tokens)
    for one, logs in zip(tokens, got, strict=True):
        assert worst_error(logs, exact_logs(params, one, spec, 60, mask=np.tri(4, dtype=bool))) < 1e-14


@pytest.mark.slow
def test_derivative_against_differences(x64, drawn):
    spec = stack(2, {"rotary": ROTARY, "qk_norm": "rms"})
    params, x = layers(drawn[0], 2), drawn[1]
    along = np.zeros(x.shape)
    along[2, 3] = 1
    last = jax.grad(lambda size: collapse.log_residuals(params, x + size * along, spec)[-1])
    slope = jax.jit(last)(jnp.zeros(()))
    ends = [exact_logs(params, x + sign * 1e-6 * along, spec, 40)[-1] for sign in (1, -1)]
    assert abs(float(slope) - float(ends[0] - ends[1]) / 2e-6) < 1e-7


@pytest.mark.slow
def test_float32_is_right_where_plain_float32_is_blind(drawn):
    """Full attention with rotary positions falls by a constant per layer: e^−130 after a hundred, to six digits."""
    exact = check(stack(100, {"rotary": ROTARY, "qk_norm": "rms"}), drawn, "float32", 150, 2)
    assert exact[-1] < -100
    falls = np.diff([float(e) for e in exact])
    assert falls[-48:-24].mean() == pytest.approx(falls[-24:].mean(), rel=0.05)  # four layers over and over


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["layer", "unit"])
def test_normalised_queries_and_keys_and_counts_keep_the_cube(x64, drawn, norm):
    exact = check(stack(4, {"qk_norm": norm, "scale_law": "log_tokens"}), drawn, digits=200, factor=2)
    assert exact[-1] / exact[-2] > 2.8


@pytest.mark.slow
def test_what_positions_take_from_the_cube(x64, drawn):
    """Tokens of mean 0, so that q̄ and k̄ are the biases: first order with both, the square with one, else the cube."""
    spec = stack(1, {"rotary": ROTARY})
    params, x = layers(drawn[0], 1), jnp.concatenate([drawn[1], -drawn[1]])
    orders = {}
    for query, key in ((1, 1), (1, 0), (0, 1), (0, 0)):
        layer = params.attention
        layer = layer._replace(query_bias=query * layer.query_bias, key_bias=key * layer.key_bias)
        one = params._replace(attention=layer)
        after = [collapse.log_residuals(one, size * x, spec)[-1] for size in (2.0**-50, 2.0**-60)]
        orders[query, key] = round(float(after[0] - after[1]) / (10 * np.log(2)), 9)
    assert orders == {(1, 1): 1, (1, 0): 2, (0, 1): 2, (0, 0): 3}


@pytest.mark.slow
def test_causal_rotary_falls_by_the_second_largest_weight_on_oneself(x64, drawn):
    """One head that passes its tokens on: they fall by p_ii of equal tokens per layer, the largest with i > 0."""
    spec = stack(400, {"rotary": ROTARY, "causal": True, "heads": 1, "d_head": 8, "bias": False})
    eye = jnp.broadcast_to(jnp.eye(8), (400, 1, 8, 8))
    query = jnp.broadcast_to(jnp.asarray(np.random.default_rng(0).normal(0, 0.4, (8, 8))), eye.shape)
    layer = attention.AttentionParams(query, jnp.swapaxes(query, -1, -2), eye, eye)
    x = drawn[1]
    falls = np.diff(collapse.log_residuals(network.LayerParams(layer), x, spec))
    same = jnp.broadcast_to(x[:1], x.shape)  # the first token sees itself only, and all become like it
    rows = attention.attention_weights(jax.tree.map(lambda w: w[0], layer), same, spec.attention)[0]
    np.testing.assert_allclose(falls[-1], np.log(np.diag(rows)[1:].max()), rtol=1e-6)


@pytest.mark.slow
def test_unit_vectors_of_tokens_without_a_mean(x64, drawn):
    """q̄ = 0 has no direction: unit vectors then differ at order one, which is finite; zero tokens stay zero."""
    spec = stack(1, {"qk_norm": "unit", "bias": False})
    params, x = layers(drawn[0], 1), jnp.concatenate([drawn[1], -drawn[1]])
    assert worst_error(collapse.log_residuals(params, x, spec), exact_logs(params, x, spec, 40)) < 1e-14
    assert bool(jnp.isneginf(collapse.log_residuals(params, 0 * x, spec)).all())


@pytest.mark.slow
def test_paths_of_layers_with_positions(x64, drawn):
    layer = {"rotary": ROTARY, "qk_norm": "rms", "scale_law": "log_tokens", "causal": True}
    spec = stack(3, layer, skip=True)
    params, x = layers(drawn[0], 3), drawn[1]
    shares, sums = collapse.path_shares(params, x, spec), collapse.path_length_sums(params, x, spec)
    np.testing.assert_allclose(sums.sum(axis=0), network.apply(params, x, spec), atol=1e-13)
    np.testing.assert_allclose(shares.log_norm, np.log(np.linalg.norm(sums, axis=(1, 2))), atol=1e-12)
    centred = sums - sums.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(shares.log_residual, np.log(np.linalg.norm(centred, axis=(1, 2))), atol=1e-12)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("option", [{"rotary": ROTARY}, {"qk_norm": "rms"}, {"scale_law": "log_tokens"}])
def test_theory_of_bilinear_logits_is_refused_to_others(drawn, option):
    spec, x = stack(1, {"bias": False} | option), jnp.ones((3, 8))
    for function in (
        lambda: collapse.log_weight_gradients(drawn[0], x, spec, x),
        lambda: collapse.sample_log_residuals(jax.random.key(0), x, spec),
    ):
        with pytest.raises(collapse.NotCovered, match=f"`spec` must have {next(iter(option))}=.*: .*, got"):
            function()


@pytest.mark.usefixtures("as_installed")
def test_caps_and_layers_of_two_kinds_are_refused_where_no_form_is_built_in(drawn):
    x = jnp.ones((3, 8))
    capped = stack(1, {"bias": False, "soft_cap": 5.0})
    mixed = stack(2, {"bias": False}, local=attention.AttentionSpec(d_model=8, heads=2, window=1), local_layers=(0,))
    for spec, reason in ((capped, "soft_cap=None: a cap bends"), (mixed, "local=None: all layers must be of one kind")):
        for function in (collapse.depth_bound, collapse.tanh_bound):
            with pytest.raises(collapse.NotCovered, match=f"`spec` must have {reason}"):
                function(drawn[0], x, spec)
        with pytest.raises(collapse.NotCovered, match=f"`spec` must have {reason}"):
            collapse.sample_log_residuals(jax.random.key(0), x, spec)
    joint = stack(1, {"bias": False, "qk_norm": "rms_joint"})
    with pytest.raises(collapse.NotCovered, match="`spec` must have a qk_norm of one head"):
        collapse.path_reruns(drawn[0], x, joint, jnp.zeros((1, 1), int))


@pytest.mark.slow
def test_a_gate_that_underflows_is_not_a_collapse(x64):
    """Without biases a gated layer is quadratic: the mean underflows, and what is not known is NaN, not −∞."""
    layer = attention.AttentionSpec(d_model=4, causal=True)
    spec = network.StackSpec(attention=layer, depth=5, mlp=GATED)
    for dtype, size in (("float32", 1e-3), ("float64", 1e-23)):
        params = network.init(jax.random.key(0), spec, dtype=dtype)
        x = size * jax.random.normal(jax.random.key(1), (3, 4), dtype)
        logs = np.asarray(collapse.log_residuals(params, x, spec))
        assert np.isfinite(logs[:4]).all() and np.isnan(logs[-1]), logs
        silent = params._replace(mlp=params.mlp._replace(weight_in=0 * params.mlp.weight_in))
        assert np.isneginf(collapse.log_residuals(silent, x, spec)[-1])  # equal tokens indeed


def test_unit_vectors_below_underflow_are_not_known(x64):
    tiny = np.finfo("float64").tiny
    mean, rows = jnp.full(3, tiny), jnp.array([[1.0, 2.0, 0.0], [-1.0, -2.0, 0.0]])
    rest = Scaled(rows, jnp.asarray(-1600.0))
    assert np.isnan(mlp_and_norms.unit(mean, rest)[1].rows).all()
    assert np.isfinite(mlp_and_norms.unit(1e9 * mean / np.finfo("float64").eps, rest)[1].rows).all()
    assert (mlp_and_norms.unit(0 * mean, rest * 0)[1].rows == 0).all()
    mean, rest = mlp_and_norms.unit(0 * mean, Scaled(rows, jnp.asarray(-800.0)))  # 0 has no direction
    assert not np.isfinite(rest.rows).all() and (mean == 0).all()


@pytest.mark.parametrize("log_size", [-3.0, 1.0, 5.0, 12.0, 20.0])
def test_tanh_of_long_steps(log_size):
    """(tanh(a + δ) − tanh(a))/e^ℓ in float32 against many digits, across the origin and beside it."""
    random = np.random.default_rng(0)
    centre = np.float32(random.normal(size=200) * 10.0 ** random.uniform(-3, 1.5, 200))
    step = np.float32(random.normal(size=200))
    step[::4] = -centre[::4] * np.float32(np.exp(-log_size)) * np.float32(0.9)
    scaled = Scaled(jnp.asarray(step), jnp.float32(log_size))
    difference = mlp_and_norms._DIFFERENCES["tanh"](jnp.asarray(centre), scaled).rows
    with mpmath.workdps(60):
        size = mpmath.exp(float(np.float32(log_size)))
        exact = [(mpmath.tanh(float(a) + size * float(u)) - mpmath.tanh(float(a))) / size
                 for a, u in zip(centre, step, strict=True)]  # fmt: skip
        exact = np.array([float(e) for e in exact])
    # Conditioning: where a + δ stays beside the origin the difference is about e^(−2|a + δ|), and |a + δ| ≤ |a| rounds.
    bound = 8 * np.finfo("float32").eps * (1 + np.abs(centre)) * np.abs(exact)
    seen = np.abs(exact) > 1e-30
    assert (np.abs(np.asarray(difference, float) - exact) <= bound)[seen].all()
    assert seen.sum() > 150
