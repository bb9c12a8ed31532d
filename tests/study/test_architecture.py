"""An untrained network: finite differences in NumPy, closed forms, the narrower network, and what is said of it."""

import dataclasses
import json
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import pretrained, scale, study
from rc_jax.attention import AttentionSpec, Kind, Rotary
from rc_jax.cli.command import main
from rc_jax.network import MLPSpec, StackSpec, hidden_states
from rc_jax.study.initialisation import exactly, images, nothing, passes, sentences
from rc_jax.study.initialisation.architecture import _flat
from rc_jax.study.initialisation.changes import changed
from rc_jax.study.initialisation.design import Design, Start, Tokens, resized
from rc_jax.study.initialisation.source import CHANGE, read
from tests.compiling import OPTIMISED
from tests.pretrained import families

SMALL = StackSpec(
    attention=AttentionSpec(d_model=8, heads=2),
    depth=2,
    skip=True,
    mlp=MLPSpec(width=12, activation="tanh"),
    norm="pre",
)
VIT = {"model_type": "vit", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "image_size": 12} | {
    "intermediate_size": 32, "patch_size": 4, "num_channels": 3, "initializer_range": 0.02, "encoder_stride": 4,
    "hidden_act": "gelu", "layer_norm_eps": 1e-12, "qkv_bias": True, "hidden_dropout_prob": 0.0,
}  # fmt: skip


def sampled(design, count, key, width=None):
    spec = design.spec.attention
    network, numbers = passes.prepared(design, width or spec.d_model, spec.head_width, count)
    return network, numbers, passes.measure(key, network, numbers)


def plain(params, x, changed_matrix=None):
    """The Pre-LN network in NumPy, with skips times λ and β inside the output matrices; its last state and weights."""
    every = []
    for layer in range(len(params["query"])):
        at = {name: value[layer] for name, value in params.items()}
        y = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        branch = 0
        for head in range(at["query"].shape[0]):
            q, k, v = (y @ at[name][head] for name in ("query", "key", "value"))
            logits = q @ k.T / math.sqrt(q.shape[1])
            weights = np.exp(logits - logits.max(1, keepdims=True))
            weights /= weights.sum(1, keepdims=True)
            every.append(weights)
            branch = branch + weights @ v @ at["output"][head]
        x = x + branch
        y = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        x = x + np.tanh(y @ at["weight_in"]) @ at["weight_out"]
    return x, every


def test_all_numbers_are_those_of_finite_differences_in_numpy(key):
    design, count = Design(SMALL, Start(gain=1.5)), 5
    network, numbers, found = sampled(design, count, key)
    params, x = exactly.drawn(key, network, numbers)
    loss = np.asarray(passes.normals(jax.random.fold_in(key, 2), x.shape, jnp.float32), float)
    arrays = {name: np.asarray(getattr(params.attention, name), float) for name in passes.MATRICES}
    arrays |= {name: np.asarray(getattr(params.mlp, name), float) for name in ("weight_in", "weight_out")}
    x = np.asarray(x, float)

    out, weights = plain(arrays, x)
    share = np.linalg.norm(out - out.mean(0)) / np.linalg.norm(out)
    assert float(found.residual[-1]) == pytest.approx(math.log(share), abs=1e-5)
    assert float(found.size[-1]) == pytest.approx(math.log(np.sqrt(np.mean(out**2))), abs=1e-5)
    last = np.array(weights[-2:])
    entropy = -(last * np.log(last)).sum(-1).mean() / math.log(count)
    assert float(found.evenness[-1]) == pytest.approx(entropy, abs=1e-5)
    assert float(found.largest[-1]) == pytest.approx(last.max(-1).mean(), abs=1e-5)

    for name in passes.MATRICES:
        slopes = np.zeros_like(arrays[name])
        for index in np.ndindex(slopes.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = {each: value.copy() for each, value in arrays.items()}
                moved[name][index] += step
                ends.append(np.sum(loss * plain(moved, x)[0]))
            slopes[index] = (ends[0] - ends[1]) / 2e-5
        norms = np.linalg.norm(slopes.reshape(2, -1), axis=1)
        np.testing.assert_allclose(np.exp(found.gradients[name]), norms, rtol=1e-4)
    slopes = [
        (np.sum(loss * plain(arrays, x + step)[0]) - np.sum(loss * plain(arrays, x - step)[0])) / 2e-5
        for step in 1e-5 * np.eye(x.size).reshape(x.size, *x.shape)
    ]
    assert float(found.gradients["input"][0]) == pytest.approx(math.log(np.linalg.norm(slopes)), abs=1e-4)


def test_uniform_attention_grows_the_mean_alone(key):
    """X + 1x̄ᵀW: residuals stay, the mean's square grows by 1 + a² in the mean; and so does the gradient's."""
    strength, depth, d, n = 0.7, 6, 256, 16
    spec = StackSpec(attention=AttentionSpec(d_model=d, heads=2), depth=depth, skip=True)
    design = Design(spec, Start(gain=strength**0.5), Tokens(common=1.0), sharpness=1e-20)
    before, after, back = [], [], []
    for index in range(12):
        found = sampled(design, n, jax.random.fold_in(key, index))[2]
        size = 2 * np.asarray(found.size, float)
        residual = np.exp(2 * np.asarray(found.residual, float) + size)
        np.testing.assert_allclose(residual, residual[0], rtol=1e-4)
        mean = np.exp(size) - residual
        before.append(mean[0])
        after.append(mean[-1] / mean[0])
        back.append(np.exp(2 * float(found.gradients["input"][0])))
        np.testing.assert_allclose(found.evenness, 1, atol=1e-5)
    growth = (1 + strength**2) ** depth
    assert abs(np.mean(after) - growth) < 5 * np.std(after, ddof=1) / math.sqrt(12)
    expected = d * (n - 1 + growth)
    assert abs(np.mean(back) - expected) < 5 * np.std(back, ddof=1) / math.sqrt(12)


@pytest.mark.parametrize("scaled", [False, True])
def test_moments_of_branches_that_are_independent(key, scaled):
    """Kedia et al. 2024: λ²s² + β²v for a branch of variance v; 1 for W_V W_O of one token alone, ½ for ReLU."""
    depth, d = 12, 256
    spec = StackSpec(
        attention=AttentionSpec(d_model=d, heads=2, window=0), depth=depth, skip=True,
        mlp=MLPSpec(width=4 * d), norm="pre",
    )  # fmt: skip
    skip, branch = (math.sqrt(1 - 2 / depth), math.sqrt(2 / depth)) if scaled else (1.0, 1.0)
    design = Design(spec, skip=skip, branch=branch)
    network, numbers = passes.prepared(design, d, spec.attention.head_width, 32)
    size = jax.jit(lambda key: passes.measure(key, network, numbers).size, compiler_options=OPTIMISED)
    drawn = [size(jax.random.fold_in(key, index)) for index in range(8)]
    squares = np.exp(2 * np.asarray(drawn, float))
    expected = [1.0]
    for _ in range(depth):
        expected.append(skip**2 * (skip**2 * expected[-1] + branch**2) + branch**2 / 2)
    error = squares.std(axis=0, ddof=1) / math.sqrt(8)
    assert np.all(np.abs(squares.mean(axis=0) - expected) < 5 * error + 0.01)
    if not scaled:
        assert expected[-1] == 1 + 1.5 * depth  # linear in depth


def test_a_narrower_network_is_within_what_half_of_it_differs(key):
    spec = StackSpec(
        attention=AttentionSpec(d_model=256, heads=4, causal=True, scale=0.25), depth=4, skip=True,
        mlp=MLPSpec(width=512, activation="silu", gated=True), norm="pre", norm_kind="rms",
    )  # fmt: skip
    settings = {"tokens": 48, "samples": 4, "std": 0.06, "key": key}
    full, narrow = study.architecture(spec, **settings), study.architecture(spec, width=64, **settings)
    assert full.half is None and "full width" in full.agreement
    assert narrow.half is not None and narrow.computed == (64, 16)
    assert np.abs(full["residual"] - narrow["residual"]).max() < 0.02 + 2 * narrow.half["tokens"]
    assert np.abs(full["size"] - narrow["size"]).max() < 0.02 + 2 * narrow.half["size"]
    assert np.abs(full["evenness"] - narrow["evenness"]).max() < 0.02 + 2 * narrow.half["rows"]
    for name in ("even", "saturated"):
        assert np.abs(full[name] - narrow[name]).max() < 0.02 + 2 * narrow.half["kinds"]
    # Without the variances of the full width, the size would differ by far more.
    other = study.architecture(resized(spec, 64, 16), **settings)
    assert np.abs(other["size"] - full["size"]).max() > 0.4


def test_tokens_that_agree_beyond_rounding_are_followed_exactly(key):
    spec = StackSpec(attention=AttentionSpec(d_model=16, heads=2), depth=5)
    found = study.architecture(spec, tokens=8, samples=2, key=key)
    design = Design(spec)
    network, numbers, sample = sampled(design, 8, jax.random.fold_in(key, 0))
    exact = exactly.residuals(jax.random.fold_in(key, 0), design, network, numbers)
    assert exact[-1] < -60 < float(sample.residual[-1])
    assert found.bands["residual"][0, -1] <= exact[-1] <= found.bands["residual"][2, -1]
    assert np.isnan(found["gradient_query"][-1]) and np.isfinite(found["gradient_value"]).all()
    assert "Tokens agree to the rounding of bfloat16 from layer" in found.sentences[0]
    assert any("cancellation-free arithmetic" in note for note in found.notes)


def test_tokens_that_skip_connections_lose_are_followed_exactly(key):
    """Post-norm: tokens agree to 10⁻¹⁰, where float32 alone ends near 10⁻⁷."""
    spec = StackSpec(attention=AttentionSpec(d_model=16, heads=2), depth=60, skip=True, norm="post")
    found = study.architecture(spec, tokens=6, samples=1, key=key)
    drawn, numbers, sample = sampled(Design(spec), 6, jax.random.fold_in(key, 0))
    assert float(sample.residual[-1]) > -18
    params, x = exactly.drawn(jax.random.fold_in(key, 0), drawn, numbers)
    with jax.enable_x64(True):  # of the same numbers, in twice the digits
        double = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), (params, x))
        after = np.asarray(hidden_states(*double, spec)[-1])
    right = np.log(np.linalg.norm(after - after.mean(0)) / np.linalg.norm(after))
    assert right < -20 and abs(found["residual"][-1] - right) < 1e-3


def test_differences_that_grow_from_noise_are_exact_ones():
    """Layers after one whose residual is lost: float32's own grows to 10⁻⁵ from its roundings, where 10⁻⁹ is right."""
    key, layer = jax.random.key(0), AttentionSpec(d_model=64, heads=4, scale=1e-4)
    spec = StackSpec(
        attention=layer, depth=6, mlp=MLPSpec(width=256, activation="tanh"),
        local=dataclasses.replace(layer, window=0), local_layers=tuple(range(2, 6)),
    )  # fmt: skip
    found = study.architecture(spec, tokens=16, samples=1, key=key, gain=2.0)
    design, own = Design(spec, Start(gain=2.0)), jax.random.fold_in(key, 0)
    network, numbers, sample = sampled(design, 16, own)
    exact = exactly.residuals(own, design, network, numbers)
    noise = np.asarray(sample.residual, float)
    assert noise[5] < math.log(exactly.ROUNDED) < noise[6] and exact[6] < noise[6] - 5
    np.testing.assert_allclose(found["residual"], [*noise[:2], *exact[2:]], rtol=1e-6)
    # Where such noise enters a layer its rows are not known, nor gradients that pass it.
    sample = _flat(sample) | {"evenness": np.ones(6)}
    sample["residual"][4] = math.log(1e-3)
    exactly.replace([sample], key, design, network, numbers)
    assert np.flatnonzero(np.isnan(sample["evenness"])).tolist() == [4]
    assert np.isnan(sample["gradient_input"]).all()


def in_float64(key, network, numbers):
    """Gradients at W_Q and W_K of the same numbers, in twice the digits."""
    params, x = exactly.drawn(key, network, numbers)
    loss = passes.normals(jax.random.fold_in(key, 2), x.shape, jnp.float32)
    with jax.enable_x64(True):
        params, x, loss = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), (params, x, loss))
        slopes = jax.grad(lambda params: jnp.sum(loss * hidden_states(params, x, network.spec)[-1]))(params)
        every = (np.asarray(getattr(slopes.attention, name)) for name in ("query", "key"))
        return [np.log(np.sqrt(np.sum(np.square(each), axis=(1, 2, 3)))) for each in every]


def test_gradients_of_second_order_are_those_of_float64():
    """Tokens before the last layer differ by 4·10⁻⁵; keys with their mean gave 2·10⁸ for 5·10⁹ at the first W_Q."""
    spec, own = (
        StackSpec(attention=AttentionSpec(d_model=16, heads=4), depth=4),
        jax.random.fold_in(jax.random.key(0), 0),
    )
    found = study.architecture(spec, tokens=12, samples=1)
    assert math.log(exactly.ROUNDED) < found["residual"][-2] < math.log(exactly.CANCELLED)
    network, numbers, _ = sampled(Design(spec), 12, own)
    for name, right in zip(("query", "key"), in_float64(own, network, numbers), strict=True):
        np.testing.assert_allclose(found[f"gradient_{name}"], right - right[-1], atol=0.02)


@pytest.mark.parametrize(
    ("fields", "known"),
    [
        ({"qk_norm": "rms"}, False),
        ({"scores": "cosine"}, False),
        ({"scores": "additive"}, False),
        ({"soft_cap": 2.0}, False),
        ({"weights": "relu_squared"}, False),
        ({"weights": "signed"}, False),
        ({"weights": "linear"}, False),
        ({"weights": "channel_decay", "causal": True}, True),
        ({"weights": "sigmoid"}, True),
        ({"weights": "softmax_plus_one"}, True),
        ({"rank": 3, "tokens": 8}, True),
        ({"rotary": Rotary()}, True),
        ({"bias": True}, True),
        ({"causal": True, "window": 3}, True),
        ({"weights": "differential"}, True),
        ({"weights": "l2"}, True),
    ],
)
def test_gradients_that_cancel_are_known_or_lost(fields, known):
    """Tokens that differ by 7·10⁻⁵ through one layer, against float64."""
    key, layer = jax.random.key(5), AttentionSpec(d_model=16, heads=2, **fields)
    design = Design(StackSpec(attention=layer, depth=1, skip=True), tokens=Tokens(own=1e-4, common=1.0))
    network, numbers, sample = sampled(design, 8, key)
    off = [abs(float(sample.gradients[name][0]) - right[0]) for name, right in
           zip(("query", "key"), in_float64(key, network, numbers), strict=True)]  # fmt: skip
    assert max(off) < 0.03 if known else max(off) > 0.5
    measures = _flat(sample)
    said = exactly.forget_cancelled([measures], design.spec)
    assert said == (() if known else (exactly.LOST,))
    assert np.isnan(measures["gradient_query"]).all() == np.isnan(measures["gradient_key"]).all() == (not known)
    assert np.isfinite(measures["gradient_value"]).all()


def test_a_narrower_network_without_skips_is_compared_exactly(key):
    """Residuals of both widths leave float32; the difference of their logarithms is said, and is no per cent."""
    spec = StackSpec(attention=AttentionSpec(d_model=64, heads=4), depth=7, norm="pre")
    found = study.architecture(spec, tokens=32, samples=1, key=key, width=32)
    half = study.architecture(spec, tokens=32, samples=2, key=key, width=16)
    assert found.half is not None
    far = np.abs(half["residual"] - found["residual"]).max()
    assert found.half["tokens"] == pytest.approx(far, rel=1e-5) and 1 < far < 400
    assert f"by a factor of {sentences.number(far)}" in str(found) and "too much to tell the error" in found.agreement


@pytest.mark.parametrize(("d_model", "heads", "d_head"), [(9, 3, 3), (8, 8, 1), (10, 2, 5)])
def test_the_full_width_is_computed_at_the_full_width_of_heads(key, d_model, heads, d_head):
    layer = AttentionSpec(d_model=d_model, heads=heads, d_head=d_head)
    spec = StackSpec(attention=layer, depth=2, norm="pre")
    asked = study.architecture(spec, tokens=8, samples=2, key=key, width=d_model)
    whole = study.architecture(spec, tokens=8, samples=2, key=key)
    assert asked.full == asked.computed == (d_model, d_head) and asked.half is None
    np.testing.assert_array_equal(asked["gradient_query"], whole["gradient_query"])
    # A narrower network has no wider heads.
    narrow = study.architecture(spec, tokens=8, samples=1, key=key, width=d_model - 1)
    assert narrow.computed.head <= d_head and f"width {d_model - 1}, heads of {narrow.computed.head}," in str(narrow)


def test_what_cannot_be_halved_tells_no_error(key):
    """Half of heads of two is the same network in its heads, whose difference of 0 % was called the error."""
    spec = StackSpec(attention=AttentionSpec(d_model=64, heads=4), depth=2, skip=True)
    for width, known in ((2, False), (8, False), (16, True)):
        found = study.architecture(spec, tokens=8, samples=1, key=key, width=width)
        assert found.computed == (width, max(2, width // 4)) and (found.half is not None) == known
        assert ("Half that width" in found.agreement) == known == ("not known" not in found.agreement)
        assert "full width." in found.agreement and json.loads(found.to_json())["half"] == found.half


def test_every_row_counts():
    spec, n = AttentionSpec(d_model=8, heads=2, causal=True), 150
    scores = np.random.default_rng(0).normal(size=(2, n, n))
    powers = np.where(np.tri(n, dtype=bool), np.exp(2 * scores), 0)
    weights = powers / powers.sum(-1, keepdims=True)
    entropy = -np.sum(np.where(weights > 0, weights * np.log(np.where(weights > 0, weights, 1)), 0), axis=-1)
    found = passes.rows(jnp.asarray(weights), spec)
    largest = weights.max(-1)[:, 1:]  # the first row sees one token, and the second and third too few to be saturated
    assert float(found["largest"]) == pytest.approx(largest.mean(), rel=1e-5)
    assert float(found["saturated"]) == pytest.approx((largest[:, 2:] >= 0.5).mean(), rel=1e-5)
    assert float(found["evenness"]) == pytest.approx((entropy[:, 1:] / np.log(np.arange(2, n + 1))).mean(), rel=1e-5)
    for name, value in passes.rows(jnp.asarray(3 * weights), spec).items():  # of shares, whatever a row's sum
        assert float(value) == pytest.approx(float(found[name]), rel=1e-5)


def test_rows_that_do_not_sum_to_1_have_shares(key):
    """Sigmoid's largest weight is near 1 in each row here, and one of several."""
    spec = dataclasses.replace(SMALL, depth=1, attention=AttentionSpec(d_model=64, heads=4, weights="sigmoid"))
    found = study.architecture(spec, tokens=24, samples=1, gain=3.0, key=key)
    assert 1 / 24 < found["largest"][0] < 0.2 and "a row's largest share 0.1" in str(found)
    assert "weight 0.1" not in str(found)


@pytest.mark.parametrize("family", [*families.CONFIGS])
def test_every_family_is_studied_by_its_config(family):
    _, design, _ = read(families.CONFIGS[family], gain=None, std=None)
    sample = sampled(design, 6, jax.random.key(0))[2]
    for name, values in _flat(sample).items():
        assert np.isfinite(values).all(), name


@pytest.mark.parametrize(
    ("family", "size"),
    [("gpt2", 0.02 * 2**0.5), ("llama", 0.02), ("gemma2", 0.02 * families.D**0.5), ("bert", 1.0), ("distilbert", 1.0)],
)
def test_tokens_enter_as_the_family_embeds_them(family, size):
    _, design, _ = read(families.CONFIGS[family], gain=None, std=None)
    found = [float(sampled(design, 6, jax.random.key(seed))[2].size[0]) for seed in range(8)]
    assert np.exp(np.mean(found)) == pytest.approx(size, rel=0.15)


def test_more_tokens_than_words_are_said():
    config = families.CONFIGS["gpt2"] | {"vocab_size": 4}
    notes = [study.architecture(config, tokens=count, samples=1).notes for count in (4, 6)]
    assert "Of 4 words 6 tokens repeat some; here all are distinct." in notes[1] and "repeat" not in "".join(notes[0])


def test_the_parts_of_rows_that_decide_a_sentence_are_compared(key):
    """At half the width the part of even rows moves by far more than their evenness."""
    spec = dataclasses.replace(SMALL, attention=AttentionSpec(d_model=64, heads=4))
    found, other = (
        study.architecture(spec, tokens=32, samples=2, gain=0.9, key=key, width=width) for width in (32, 16)
    )
    assert found.half is not None
    assert found.half["kinds"] == pytest.approx(np.abs(other["even"] - found["even"]).max(), rel=1e-5)
    assert found.half["kinds"] > 3 * found.half["rows"] and f"by {found.half['kinds']:.2g} at most" in found.agreement


def test_sinusoids_are_those_of_distilbert():
    config = families.CONFIGS["distilbert"]
    assert read(config | {"sinusoidal_pos_embds": True}, gain=None, std=None)[1].tokens.sinusoids
    assert not read(config | {"sinusoidal_pos_embds": False}, gain=None, std=None)[1].tokens.sinusoids


def test_the_start_of_a_config():
    gpt2 = families.CONFIGS["gpt2"] | {"initializer_range": 0.05, "resid_pdrop": 0.1, "embd_pdrop": 0.0, "mystery": 3}
    _, design, notes = read(gpt2, gain=None, std=None)
    network, numbers = passes.prepared(design, design.spec.attention.d_model, 4, 6)
    params, _ = exactly.drawn(jax.random.key(0), network, numbers)
    ratio = float(jnp.std(params.attention.output) / jnp.std(params.attention.query))
    smaller = (2 * design.spec.depth) ** -0.5
    assert ratio == pytest.approx(smaller, rel=0.2)
    assert read(gpt2, gain=None, std=0.1)[1].start == Start(std=0.1, branches=smaller)
    assert read(gpt2, gain=2.0, std=None)[1].start == Start(gain=2.0)
    assert float(jnp.std(params.attention.query)) == pytest.approx(0.05, rel=0.15)
    assert notes == ("Dropout is off (resid_pdrop).", "Settings that this family does not read: mystery.")
    del gpt2["initializer_range"]
    _, design, notes = read(gpt2, gain=None, std=None)
    assert (
        design.start.std == 0.02
        and notes[-1] == "The config states no initializer_range: matrices have deviation 0.02."
    )


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("network", "settings", "error", "message"),
    [
        ({"model_type": "mamba"}, {}, ValueError, "`model_type` must be one of 'bert'"),
        ({"model_type": "opt"}, {}, ValueError, r"'vit' \(a `network.StackSpec` describes many others\) in"),
        (families.CONFIGS["llama"] | {"residual_multiplier": 0.2}, {}, ValueError, "`residual_multiplier` must be"),
        (families.CONFIGS["gpt2"] | {"alibi": True}, {}, ValueError, "`alibi` must be absent"),
        (families.CONFIGS["gpt2"] | {"initializer_range": -1}, {}, ValueError, "`initializer_range` must be a pos"),
        (families.CONFIGS["gpt2"] | {"initializer_range": "x"}, {}, ValueError, "`initializer_range` must be a pos"),
        (families.CONFIGS["gpt2"] | {"initializer_range": 1e25}, {}, ValueError, "`initializer_range` must lie in 1e-"),
        (families.CONFIGS["gpt2"] | {"initializer_range": 1e-300}, {}, ValueError, "`initializer_range` must lie in"),
        (families.CONFIGS["gpt2"], {"std": 1e25}, ValueError, "`std` must be >= 1e-06 and <= 1e\\+06, got 1e\\+25"),
        (SMALL, {"gain": 1e-25}, ValueError, "`gain` must be >= 1e-06 and <= 1e\\+06, got 1e-25"),
        (families.CONFIGS["gpt2"], {"tokens": 4096}, ValueError, "`tokens` must be at most"),
        (3, {}, TypeError, "`network` must be a StackSpec, a dict or the path of a config, got 3"),
        ("no/such/place", {}, FileNotFoundError, "`network` must be a folder or a file of settings that exists"),
        (SMALL, {"changes": "all"}, TypeError, "`changes` must be 'usual' or a mapping"),
        (SMALL, {"gain": 1.0, "std": 0.1}, ValueError, "`std` must be left out beside gain"),
        (SMALL, {"changes": {"a": 3}}, TypeError, r"`changes\['a'\]` must be a StackSpec or a function .*, got 3"),
        (families.CONFIGS["gpt2"] | {1: 2}, {}, TypeError, "`network` must have settings named by strings, got 1"),
        (families.CONFIGS["gpt2"] | {"vocab_size": 10**30}, {}, ValueError, "`vocab_size` must be at most 2147483647"),
        (families.CONFIGS["gpt2"] | {"n_inner": 10**12}, {}, ValueError, "`n_inner` must be at most 2147483647 in"),
        (VIT | {"image_size": 10**30}, {}, ValueError, "`image_size` must be at most 2147483647 in"),
        (SMALL, {"tokens": 10**30}, ValueError, "`tokens` must be an integer from 2 to 2147483647, got 10"),
        (SMALL, {"width": 16}, ValueError, "`width` must be at most d_model=8"),
    ],
)  # fmt: skip
def test_what_is_refused(network, settings, error, message):
    with pytest.raises(error, match=message):
        study.architecture(network, **settings)


def test_a_config_of_the_widest_arrays_is_read():
    """Shapes take no memory, and their sizes leave no number of an index."""
    for config in (families.CONFIGS["gpt2"], families.CONFIGS["llama"], families.CONFIGS["bert"]):
        largest = {name: 2**31 - 1 for name in ("vocab_size", "max_position_embeddings", "n_positions")}
        read(config | {name: value for name, value in largest.items() if name in config}, gain=None, std=None)
    read(VIT | {"image_size": 2**30}, gain=None, std=None)


@pytest.mark.usefixtures("as_installed")
def test_what_does_not_fit_in_memory_is_said(monkeypatch, tmp_path, capsys):
    def full(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 842 bytes.")

    monkeypatch.setattr(sys.modules["rc_jax.study.initialisation.architecture"], "measure", full)
    said = r"`network` must fit in memory, got .* with tokens=6 and width=8 \(Out of memory allocating 842 bytes.\); "
    with pytest.raises(MemoryError, match=said):
        study.architecture(SMALL, tokens=6)
    (tmp_path / "config.json").write_text(json.dumps(families.CONFIGS["gpt2"]))
    assert main(["architecture", str(tmp_path), "--tokens", "6"]) == 2
    assert "`network` must fit in memory" in capsys.readouterr().err

    def other(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setattr(sys.modules["rc_jax.study.initialisation.architecture"], "measure", other)
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        study.architecture(SMALL, tokens=6)


def test_settings_that_change_a_layer_are_refused_by_name():
    gpt2 = families.CONFIGS["gpt2"]
    for name in CHANGE:
        value = {"factor": 2} if name.startswith("rope_") else 2.5
        with pytest.raises(ValueError, match=rf"`{name}` must be absent, because this family's layers are modelled"):
            read(gpt2 | {name: value}, gain=None, std=None)
    for settings in (dict.fromkeys(CHANGE), {name: values[-1] for name, values in CHANGE.items() if values}):
        assert read(gpt2 | settings, gain=None, std=None) == read(gpt2, gain=None, std=None)


@pytest.mark.parametrize(
    ("settings", "neutral", "others"),
    [
        (
            ("sliding_window", "attn_logit_softcapping", "attention_multiplier", "scale_depth"),
            (),
            (0, 1, 1.0, True, False),
        ),
        (("residual_multiplier", "mup_attn_multiplier"), (1, 1.0), (0, False, True)),
        (("layer_norm_scaling", "qk_norm", "multi_query"), (False, 0), (1, True)),
        (("num_experts",), (0, 1), (True, 2)),
        (("n_shared_experts",), (0,), (1, True)),
    ],
)
def test_0_and_1_pass_where_they_change_nothing(settings, neutral, others):
    """A window of 1, a cap of 1 and a factor of 0 change every layer; they passed where 2 was refused."""
    llama = families.CONFIGS["llama"]
    for name in settings:
        for value in neutral:
            assert read(llama | {name: value}, gain=None, std=None) == read(llama, gain=None, std=None)
        for value in others:
            with pytest.raises(ValueError, match=rf"`{name}` must be absent, because this family's layers"):
                read(llama | {name: value}, gain=None, std=None)


@pytest.mark.parametrize(
    ("family", "settings", "same", "message"),
    [
        ("llama", {"sliding_window": 3}, {"sliding_window": None}, "`sliding_window` must be absent"),
        ("olmo2", {"sliding_window": 3}, {"sliding_window": None}, "`sliding_window` must be absent"),
        ("llama", {"layer_types": ["sliding_attention"] * 2}, {"layer_types": ["full_attention"] * 2}, "`layer_types`"),
        (
            "llama",
            {"layer_types": "sliding_attention"},
            {"layer_types": []},
            "`layer_types` must be a list of full_att",
        ),
        ("llama", {"num_experts": 4}, {"num_experts": 1}, "`num_experts` must be absent"),
        ("llama", {"qk_norm": True}, {"qk_norm": False}, "`qk_norm` must be absent"),
        ("qwen3", {"qk_norm": False}, {"qk_norm": True}, "`qk_norm` must be absent or True"),
        ("gpt2", {"num_key_value_heads": 1}, {"num_key_value_heads": 2}, "be absent or 2, because"),
        ("gpt2", {"head_dim": 8}, {"head_dim": 4}, "be absent or 4, because"),
        ("gpt2", {"sinusoidal_pos_embds": True}, {"sinusoidal_pos_embds": False}, "`sinusoidal_pos_embds` must be abs"),
        ("gpt2", {"is_causal": False}, {"is_causal": True}, "`is_causal` must be absent or True"),
        ("bert", {"is_causal": True}, {"is_causal": False}, "`is_causal` must be absent or False"),
        ("gpt2", {"position_embedding_type": "rope"}, {"position_embedding_type": "absolute"}, "absent or 'absolute'"),
        ("llama", {"position_embedding_type": "alibi"}, {"position_embedding_type": "rope"}, "be absent or 'rope'"),
        ("llama", {"rope_scaling": {"factor": 8.0}}, {"rope_scaling": {"factor": 1.0}}, "`rope_scaling.factor` must"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "factor": 8.0}},
            {"rope_parameters": {"rope_type": "linear", "factor": 8.0}},
            "`rope_parameters.factor` must be one of 1, 1.0",
        ),
    ],
)
def test_a_setting_is_refused_where_it_says_what_the_family_does_not_do(family, settings, same, message):
    with pytest.raises(ValueError, match=message):
        read(families.CONFIGS[family] | settings, gain=None, std=None)
    (name,) = same
    assert name not in "".join(read(families.CONFIGS[family] | same, gain=None, std=None)[2])


def test_a_vision_transformer_is_studied_by_its_config():
    name, design, notes = read(VIT, gain=None, std=None)
    mlp = MLPSpec(width=32, activation="gelu")
    layer = AttentionSpec(d_model=8, heads=2, bias=True)
    assert (name, design.most_tokens, design.key_heads) == ("vit", 10, 2)
    assert design.spec == StackSpec(attention=layer, depth=2, skip=True, mlp=mlp, norm="pre", norm_epsilon=1e-12)
    assert notes == (images.NOTE,)
    # A patch of 4 × 4 pixels of three channels, N(0, 1), through N(0, 0.02²), and a position of N(0, 0.02²).
    # The class has a vector of N(0, 0.02²) in place of a patch.
    expected = Tokens(own=1.0, narrow=48, projection=pytest.approx(0.02 * 7), first=pytest.approx(2**0.5 / 7))
    assert design.tokens == expected
    lengths = np.linalg.norm(passes.draw_tokens(jax.random.key(1), *passes.prepared(design, 4096, 2048, 10)), axis=1)
    np.testing.assert_allclose(lengths / 64, 0.02 * np.sqrt([2, *[49] * 9]), rtol=0.4)
    found = study.architecture(VIT, samples=2)
    assert found.tokens == 10 and all(np.isfinite(band).all() for band in found.bands.values())
    # What is absent is the family's default.
    stated = {name: value for name, value in VIT.items() if name not in ("patch_size", "num_channels")}
    _, design, _ = read(stated | {"image_size": 224}, gain=None, std=None)
    assert (design.most_tokens, design.tokens.projection) == (197, pytest.approx(0.02 * 769**0.5))
    # Patches of four pixels lie in a space of four dimensions, which independent tokens would not.
    _, design, _ = read(VIT | {"patch_size": 2, "num_channels": 1}, gain=None, std=None)
    drawn = passes.draw_tokens(jax.random.key(0), *passes.prepared(design, 8, 4, 10))
    assert np.linalg.matrix_rank(np.asarray(drawn, float), tol=1e-5) == 4
    for settings, message in (
        ({"qkv_bias": False}, "`qkv_bias` must be one of True"),
        ({"patch_size": 5}, "`patch_size` must divide image_size=12"),
        ({"residual_multiplier": 0.5}, "`residual_multiplier` must be absent"),
    ):
        with pytest.raises(ValueError, match=message):
            read(VIT | settings, gain=None, std=None)


def test_gain_is_that_of_every_matrix_and_of_no_table():
    """The matrices before the first layer, too: of ALBERT's narrow tables and of a vision transformer's patches."""
    albert = {name: value for name, value in families.CONFIGS["albert"].items() if name != "initializer_range"}
    _, design, notes = read(albert, gain=5.0, std=None)
    assert (design.tokens.projection, design.tokens.own) == (5.0, pytest.approx(0.02 * 2**0.5))
    assert "The config states no initializer_range: tables have deviation 0.02." in notes
    assert read(albert, gain=None, std=0.1)[1].tokens.projection == pytest.approx(0.1 * design.tokens.narrow**0.5)
    _, design, notes = read(VIT, gain=5.0, std=None)
    assert notes == (images.NOTE,)
    lengths = np.linalg.norm(passes.draw_tokens(jax.random.key(1), *passes.prepared(design, 4096, 2048, 10)), axis=1)
    np.testing.assert_allclose(lengths / 64, [0.02 * 2**0.5, *[5] * 9], rtol=0.4)


def own_shapes(spec):
    return dict.fromkeys(("debiasing", "bias_of", "shift", "scale", "own_bias", "sink"), (spec.heads, 64))


def own_weights(scores, seen, parts):
    """Softmax; of a kind that has parameters of many names."""
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))


def test_a_kinds_parameters_are_zero_by_the_end_of_their_name(key):
    """A name that holds `bias` elsewhere, or is that of a norm's part, is no bias."""
    kind = Kind("own", own_weights, row_sum="one", shift_invariant=True, shapes=own_shapes)
    spec = StackSpec(
        attention=AttentionSpec(d_model=4, heads=2, weights=kind, bias=True), depth=1, mlp=MLPSpec(width=4)
    )
    network, numbers = passes.prepared(Design(spec), 4, 2, 8)
    for layer, mlp in (passes.draw_layer(key, network, numbers), pretrained.random_like(key, spec, std=0.5)[:2]):
        for name, part in layer.parts.items():
            expected = 0 if name in ("own_bias", "sink") else pytest.approx(0.5, rel=0.3)
            assert float(part.std()) == expected and abs(float(part.mean())) < 0.2, name
        for bias in (layer.query_bias, layer.output_bias, mlp.bias_in, mlp.bias_out):
            assert not np.any(bias)


@pytest.mark.parametrize("name", ["use_rope", "pre_norm", "gated_mlp"])
def test_a_setting_that_is_false_and_not_read_is_said(name):
    notes = read(families.CONFIGS["llama"] | {name: False}, gain=None, std=None)[2]
    (note,) = [note for note in notes if note.startswith("Settings that this family does not read:")]
    assert name in note


def test_code_of_its_own_is_said():
    _, _, notes = read(families.CONFIGS["gpt2"] | {"auto_map": {"AutoModel": "own.Model"}}, gain=None, std=None)
    assert notes[0] == "Settings that this family does not read: auto_map."


def test_usual_changes_change_one_thing_each():
    design = Design(dataclasses.replace(SMALL, depth=8))
    designs, refused = changed(design, "usual", 16)
    assert not refused
    assert designs["branches × 1/√(2L)"] == design._replace(branch=0.25)
    kedia = designs["λ² = 1 − 2/L, β² = 2/L"]
    assert kedia.skip**2 + kedia.branch**2 == pytest.approx(1)
    assert designs["norms × 1/√l"].norms[3] == 0.5
    (typical,) = [name for name in designs if "typical" in name]
    assert typical.endswith(f"× {designs[typical].sharpness:.2f} (typical for scores of deviation 1)")
    assert designs["norm none"].spec.norm is None and designs["sigmoid"].spec.attention.weights == "sigmoid"
    parallel, refused = changed(Design(dataclasses.replace(SMALL, parallel=True)), "usual", 16)
    assert "norm post" not in parallel and any("norm post" in line for line in refused)


@pytest.mark.parametrize(
    ("fields", "local", "keys"),
    [
        ({}, None, 64),
        ({"top_k": 5}, None, 5),
        ({"window": 0}, None, None),
        ({"rank": 3, "tokens": 64}, None, 3),
        ({"causal": True}, None, round(float(scale.effective_keys(64)))),
        ({"causal": True, "window": 7, "top_k": 6}, None, round(math.exp(np.log([2, 3, 4, 5, *[6] * 59]).mean()))),
        ({"window": 1}, None, round(math.exp(np.log([2, 2, *[3] * 62]).mean()))),
        ({"window": 1}, {}, round(math.exp((np.log([2, 2, *[3] * 62]).mean() + np.log(64)) / 2))),
    ],
)
def test_the_typical_scale_is_that_of_the_keys_that_rows_see(fields, local, keys):
    """Mistral's rows of at most 8 keys had the scale of the 190 that they would see without a window."""
    layer = AttentionSpec(d_model=8, heads=2, **fields)
    spec = dataclasses.replace(SMALL, attention=layer)
    if local is not None:
        spec = dataclasses.replace(spec, local=AttentionSpec(d_model=8, heads=2, **local), local_layers=(1,))
    found = [each.sharpness for name, each in changed(Design(spec), "usual", 64)[0].items() if "typical" in name]
    assert found == ([] if keys is None else [pytest.approx(float(scale.typical_scale(jax.random.key(0), keys)))])


def test_a_study_with_changes_of_ones_own(tmp_path, key):
    changes = {
        "no norm": lambda spec: dataclasses.replace(spec, norm=None),
        "deeper": dataclasses.replace(SMALL, depth=3),
    }
    found = study.architecture(SMALL, tokens=6, samples=2, key=key, changes=changes)
    assert found.changes["deeper"]["residual"].shape == (4,)
    record = json.loads(found.to_json())
    assert record["log"]["residual"]["median"] == found["residual"].tolist()
    assert list(record["changes"]) == list(changes)
    assert all(sentence in str(found) for sentence in found.sentences) and "deeper" in found.change_table
    assert found.table in str(found) and "<table>" in found._repr_html_()
    low, middle, high = found.bands["size"]
    assert np.all(low <= middle) and np.all(middle <= high) and np.any(low < high)
    found.figure().savefig(tmp_path / "study.png")
    assert (tmp_path / "study.png").stat().st_size > 10_000
    with pytest.raises(KeyError, match="no measure 'speed'"):
        found["speed"]


def test_a_change_of_the_width_is_computed_at_its_own(key):
    """The same numbers as a study of it alone, and the width that its title says."""
    wide = dataclasses.replace(SMALL, attention=AttentionSpec(d_model=64, heads=2))
    few = dataclasses.replace(SMALL, attention=dataclasses.replace(SMALL.attention, heads=4))
    changes = {"wide": wide, "four heads": few}
    found = study.architecture(SMALL, tokens=6, samples=2, key=key, changes=changes).changes
    for name, spec in changes.items():
        alone = study.architecture(spec, tokens=6, samples=2, key=key)
        assert found[name].full == alone.full and found[name].computed == alone.computed
        np.testing.assert_array_equal(found[name]["residual"], alone["residual"])
        assert found[name].agreement == alone.agreement
    asked = study.architecture(SMALL, tokens=6, samples=1, key=key, width=SMALL.attention.d_model // 2, changes=changes)
    assert {each.computed.token for each in (asked, *asked.changes.values())} == {SMALL.attention.d_model // 2}


def test_a_change_does_not_carry_the_error_of_what_it_changes(key):
    """Half the width changes the base's residual by 14 % and that of the change by a factor of 5·10⁶."""
    spec = dataclasses.replace(SMALL, attention=AttentionSpec(d_model=128, heads=4), depth=6)
    bare = dataclasses.replace(spec, norm=None, skip=False)
    changes = {"bare": bare, "wide": dataclasses.replace(spec, attention=AttentionSpec(d_model=256, heads=4))}
    found = study.architecture(spec, tokens=32, samples=1, width=64, changes=changes, key=key)
    change, record = found.changes["bare"], json.loads(found.to_json())
    assert found.half is not None and "%" in found.agreement
    assert change.half is None is record["changes"]["bare"]["half"]
    assert "the error here is not known; study it by itself." in change.agreement and "%" not in change.agreement
    assert "too narrow" not in change.agreement and len(change.agreement.splitlines()) == 2
    # A change of the width has its own.
    assert found.changes["wide"].half not in (None, found.half)
    alone = study.architecture(bare, tokens=32, samples=1, width=64, key=key)
    assert alone.half is not None and alone.half["tokens"] > 5 > 1 > found.half["tokens"]


@pytest.mark.parametrize("family", ["gemma2", "llama", "bert"])
def test_a_change_of_the_width_embeds_as_the_config_of_that_width(family):
    config = families.CONFIGS[family]
    _, design, _ = read(config, gain=None, std=None)
    wide = read(config | {"hidden_size": 4 * families.D}, gain=None, std=None)[1]
    (name,) = designs = changed(design, {"wide": wide.spec}, 6)[0]
    assert designs[name].tokens == wide.tokens and designs[name] == wide


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spec: dataclasses.replace(spec, depth=12), "must keep depth=2, got 12: study a config"),
        (
            lambda spec: dataclasses.replace(spec, attention=dataclasses.replace(spec.attention, heads=1)),
            "must keep heads=.*, got 1: study a config",
        ),
        (
            lambda spec: dataclasses.replace(
                spec, attention=dataclasses.replace(spec.attention, causal=False, rank=2, tokens=7)
            ),
            "must keep tokens=6, got 7",
        ),
    ],
)
def test_a_change_of_what_a_config_drew_is_refused_by_name(change, message):
    config = families.CONFIGS["gpt2"]
    with pytest.raises(ValueError, match=rf"`changes\['mine'\]` {message}"):
        study.architecture(config, tokens=6, samples=1, changes={"mine": change})


def test_a_study_is_that_of_float32_where_float64_is_on(key, x64):
    spec = dataclasses.replace(SMALL, norm="pre", mlp=MLPSpec(width=16))
    found = study.architecture(spec, tokens=6, samples=2, key=key)
    with jax.enable_x64(False):
        np.testing.assert_allclose(
            found["residual"], study.architecture(spec, tokens=6, samples=2, key=key)["residual"], atol=1e-5
        )
    study.architecture(families.CONFIGS["gpt2"], tokens=6, samples=1)


def test_what_is_said():
    assert sentences.tokens(np.log([1.0, 0.5])) == []
    said = sentences.tokens(np.array([0.0, -6.0, -20.0]))
    assert (
        said[0].startswith("Tokens agree to the rounding of bfloat16 from layer 1")
        and "float32 from layer 2" in said[0]
    )
    (said,) = sentences.tokens(np.log([1.0, 1e-3, 1e-4, 0.5]))
    middle = "after layers 1 to 2 alone (‖res‖/‖X‖ down to 0.0001)"
    assert said == f"Tokens agree to the rounding of bfloat16 {middle}; 0.5 after the last layer, 3."
    (said,) = sentences.gradients("query", np.log([1e-5, 1e-4, 0.5, 1.0]))
    assert said == "The gradient at W_Q of layers 1 to 2 is below a thousandth of the last layer's: 1e-05 at layer 1."
    (said,) = sentences.gradients("input", np.log([1e4, 1.0]))
    assert "above a thousand times the last layer's: 1e+04" in said
    assert sentences.row_kinds(np.array([1.0, 0.2, 0.2]), np.array([0.0, 0.9, 0.2])) == ["even", "saturated", "mixed"]
    assert sentences.number(-1e4).endswith("e-4343")
    assert (sentences.number(-math.inf), sentences.number(math.inf)) == ("0", "inf")


def test_what_leaves_float32_is_said(key):
    deep = dataclasses.replace(SMALL, depth=12, norm=None)
    found = study.architecture(deep, tokens=6, samples=1, key=key, gain=1e4)
    assert np.isnan(found["evenness"][-1])
    assert any("Rows of layer" in sentence and "are not known in float32" in sentence for sentence in found.sentences)
    assert "nan" not in "".join(found.sentences)
    (note,) = [note for note in found.notes if note.startswith("Numbers that float32 does not decide are NaN, in")]
    assert "evenness" in note and "gradient_query" in note


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"weights": "decay", "causal": True}, True),
        ({"weights": "gated_decay", "causal": True}, True),
        ({"weights": "channel_decay", "causal": True}, False),
        ({"weights": "linear"}, False),
        ({"window": 0}, True),
        ({"window": 0, "weights": "sigmoid"}, False),
        ({"window": 1}, False),
        ({"top_k": 1}, True),
        ({"top_k": 2}, False),
        ({"rank": 1, "tokens": 6}, True),
        ({"rank": 2, "tokens": 6}, False),
    ],
)
def test_a_gradient_that_is_exactly_0_is_said_to_be_0(key, fields, expected):
    spec = StackSpec(attention=AttentionSpec(d_model=8, heads=2, **fields), depth=2, skip=True, norm="pre")
    with jax.debug_nans(True):
        assert nothing.blind(spec).tolist() == [expected] * 2
    _, _, sample = sampled(Design(spec), 6, key)
    for name in ("query", "key"):  # in float32, which rounds
        assert np.all(np.asarray(sample.gradients[name]) < -16 + np.asarray(sample.gradients["value"])) == expected
    found = study.architecture(spec, tokens=6, samples=2, key=key)
    assert np.isneginf(found.bands["gradient_query"]).all() == expected
    said = "The gradient at W_Q of layers 1 to 2 is 0: rows there are the same for all queries and keys."
    assert (said in found.sentences) == expected
    assert "not known" not in str(found) and "does not decide" not in str(found)
    alone = fields.get("window") == 0
    assert ("Rows of layers 1 to 2 see their own token alone." in found.sentences) == alone and "nan" not in str(found)
    assert "Nothing is unusual" not in str(found) or not expected


def test_a_gradient_that_underflows_is_not_said_to_be_0(key):
    """W_Q at a scale of 10⁻³⁸ and of W_V of 10⁻⁶; where rows of some layers see one token, and where the last do."""
    layer = AttentionSpec(d_model=8, heads=2, scale=2e-38)
    found = study.architecture(StackSpec(attention=layer, depth=2, skip=True), tokens=6, samples=1, gain=1e-6)
    assert np.isnan(found["gradient_query"]).all() and "W_Q of layers 1 to 2 is not known in float32" in str(found)
    layer = AttentionSpec(d_model=8, heads=2)
    spec = StackSpec(attention=layer, depth=3, skip=True, local=dataclasses.replace(layer, window=0), local_layers=(1,))
    first = study.architecture(spec, tokens=6, samples=1, key=key)
    assert np.isneginf(first["gradient_query"]).tolist() == [False, True, False] and first.alone == (1,)
    assert np.isfinite(first["gradient_query"][[0, 2]]).all()
    last = study.architecture(dataclasses.replace(spec, local_layers=(1, 2)), tokens=6, samples=1, key=key)
    assert "The gradient at W_Q of layer 1 has no ratio to the last layer's, which is 0." in last.sentences
    lost = dataclasses.replace(spec, skip=False, depth=6, local_layers=(4, 5))  # after four layers tokens agree
    notes = study.architecture(lost, tokens=6, samples=1, key=key).notes
    assert any("cancellation-free" in note for note in notes) and "lost in rounding" not in "".join(notes)
    assert "no ratio" in last.table and "not known" not in str(last) and "does not decide" not in str(last)


def test_a_network_that_takes_one_token_is_refused():
    for network in (
        families.CONFIGS["gpt2"] | {"n_positions": 1},
        StackSpec(attention=AttentionSpec(d_model=8, heads=2, rank=1, tokens=1), depth=1),
    ):
        for tokens in (None, 2):
            with pytest.raises(ValueError, match="`network` must take two tokens or more, got one whose longest"):
                study.architecture(network, tokens=tokens)


def test_rows_are_told_apart_by_the_gain(key):
    even, sharp = (study.architecture(SMALL, tokens=16, samples=2, key=key, gain=gain) for gain in (0.3, 12.0))
    assert len(even.sentences) == 1 and even.sentences[0].startswith("Nothing is unusual")
    assert any("Rows are saturated" in sentence for sentence in sharp.sentences)


@pytest.mark.parametrize(("window", "tokens"), [(1, 16), (None, 3)])
def test_rows_of_few_tokens_are_not_saturated(key, window, tokens):
    """Of two tokens one always has half of a row."""
    spec = dataclasses.replace(SMALL, attention=AttentionSpec(d_model=8, heads=2, causal=True, window=window))
    found = study.architecture(spec, tokens=tokens, samples=1, key=key, gain=3.0)
    assert np.all(found["largest"] > 0.6) and not found["saturated"].any()
    assert "Rows are mixed" in str(found) and "saturated" not in str(found) and "does not decide" not in str(found)


def test_the_command(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(families.CONFIGS["gpt2"]))
    assert main(["architecture", str(tmp_path), "--tokens", "6", "--samples", "1", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["command"] == "architecture" and record["tokens"] == 6
    assert main(["architecture", str(tmp_path / "none")]) == 2
    assert "must be a folder or a file of settings that exists" in capsys.readouterr().err
