"""What Gemma, OLMo 2 and GPT-NeoX have of their own: kinds of layers, caps, norms, places of numbers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, network, pretrained
from rc_jax.network.stack import NORMS
from tests.diagnostics import dense
from tests.pretrained import families
from tests.pretrained.test_families import write

FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("family", "settings", "local"),
    [
        ("gemma2", {}, (0,)),
        ("gemma2", {"layer_types": [FULL, SLIDING]}, (1,)),
        ("gemma3_text", {"num_hidden_layers": 13, "sliding_window_pattern": None}, (*range(5), *range(6, 11), 12)),
        ("gemma3_text", {"num_hidden_layers": 4}, (0, 2)),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}, (1,)),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 3, "layer_types": [SLIDING, FULL]}, (0,)),
    ],
)
def test_which_layers_have_a_window(family, settings, local):
    spec = families.layout(family, **settings).spec
    assert spec.local is not None
    assert spec.local_layers == local
    assert (spec.attention.window, spec.local.window) == (None, 2)


def test_layers_of_one_kind_are_no_two():
    for kind, window in ((FULL, None), (SLIDING, 2)):
        spec = families.layout("gemma2", layer_types=[kind] * 2).spec
        assert (spec.local, spec.local_layers, spec.attention.window) == (None, (), window)


LINEAR = {"rope_type": "linear", "factor": 8.0}


@pytest.mark.parametrize(
    ("settings", "far", "near"),
    [
        ({"rope_theta": None}, {"base": 1e6}, 1e4),
        (
            {"rope_theta": 3e5, "rope_local_base_freq": 20.0, "rope_scaling": LINEAR},
            {"base": 3e5, "scaling": "linear", "factor": 8.0},
            20.0,
        ),
        (
            {"rope_parameters": {FULL: LINEAR | {"rope_theta": 7.0}, SLIDING: {"rope_theta": 5.0}}},
            {"base": 7.0, "scaling": "linear", "factor": 8.0},
            5.0,
        ),
    ],
)
def test_two_rotations_of_gemma_3(settings, far, near):
    spec = families.layout("gemma3_text", **settings).spec
    assert spec.local is not None
    assert spec.attention.rotary == attention.Rotary(**far)
    assert spec.local.rotary == attention.Rotary(base=near)


def test_scales_and_caps():
    gemma2 = families.layout("gemma2").spec.attention
    assert (gemma2.scale, gemma2.soft_cap) == (1 / 3, 50.0)
    assert families.layout("gemma2", attn_logit_softcapping=None).spec.attention.soft_cap is None
    assert families.layout("gemma2", attn_logit_softcapping=7).spec.attention.soft_cap == 7.0
    gemma3 = families.layout("gemma3_text").spec.attention
    assert (gemma3.scale, gemma3.soft_cap) == (1 / 16, None)
    for family in ("llama", "olmo2"):  # settings of others are not looked at
        other = families.layout(family, query_pre_attn_scalar=9, attn_logit_softcapping=5.0).spec.attention
        assert (other.scale, other.soft_cap) == (None, None)


@pytest.mark.usefixtures("as_installed")
def test_a_width_beyond_floating_point():
    with pytest.raises(ValueError, match=r"`hidden_size` must be at most 2147483647 in '.*config.json', got 1000"):
        families.layout("gemma2", hidden_size=10**400)


def test_gemma_s_embeddings_and_gains(tmp_path):
    ids, stored = np.array([4, 0, 7]), families.tensors("gemma2")
    checkpoint = pretrained.load(write(tmp_path, "gemma2"))
    root = np.float32(families.D**0.5)
    np.testing.assert_array_equal(checkpoint.embed(ids), stored["embed_tokens.weight"][ids] * root)
    x = np.random.default_rng(2).normal(size=(3, families.D)).astype(np.float32)
    expected = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * (1 + stored["norm.weight"])
    np.testing.assert_allclose(checkpoint.finish(jnp.asarray(x)), expected, rtol=1e-5, atol=1e-5)
    places = {
        "attention_norm": "input_layernorm",
        "attention_out_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_out_norm": "post_feedforward_layernorm",
    }
    for place, name in places.items():
        gains = getattr(checkpoint.params, place).scale
        np.testing.assert_array_equal(gains[1], 1 + stored[f"layers.1.{name}.weight"])


def test_gains_less_one_are_added_up_before_they_are_rounded(tmp_path):
    """Bfloat16 has steps of 1/128 above 1; float32 keeps the sum of 1 and a bfloat16 number below them."""
    values = {name: value.astype("bfloat16") for name, value in families.tensors("gemma2").items()}
    values["norm.weight"] = np.full(families.D, 1 / 256 + 1 / 4096, "bfloat16")
    folder = write(tmp_path, "gemma2", values)
    assert (np.asarray(pretrained.load(folder).final_norm.scale, float) == 1 + 1 / 128).all()
    wide = pretrained.load(folder, dtype="float32").final_norm
    np.testing.assert_array_equal(wide.scale, np.float32(1 + 1 / 256 + 1 / 4096))


def test_queries_keys_and_values_of_gpt_neox_lie_head_by_head(tmp_path):
    stored = families.tensors("gpt_neox")
    weight = stored["layers.1.attention.query_key_value.weight"].reshape(2, 3, 4, families.D)
    bias = stored["layers.1.attention.query_key_value.bias"].reshape(2, 3, 4)
    checkpoint = pretrained.load(write(tmp_path, "gpt_neox")).params.attention
    for index, role in enumerate(("query", "key", "value")):
        # Half of the 4 features are rotated: 0 with 1, as they lie.
        np.testing.assert_array_equal(getattr(checkpoint, role)[1], weight[:, index].transpose(0, 2, 1))
        np.testing.assert_array_equal(getattr(checkpoint, f"{role}_bias")[1], bias[:, index])


def test_features_of_gpt_neox_that_rotate_together_are_brought_together(tmp_path):
    stored = families.tensors("gpt_neox")["layers.0.attention.query_key_value.weight"].reshape(2, 3, 4, families.D)
    checkpoint = pretrained.load(write(tmp_path, "gpt_neox", rotary_pct=1.0))
    assert checkpoint.spec.attention.rotary == attention.Rotary() and checkpoint.spec.parallel
    np.testing.assert_array_equal(checkpoint.params.attention.key[0], stored[:, 1][:, [0, 2, 1, 3]].transpose(0, 2, 1))
    np.testing.assert_array_equal(checkpoint.params.attention.value[0], stored[:, 2].transpose(0, 2, 1))


def test_one_after_the_other_and_no_biases(tmp_path):
    values = {name: value for name, value in families.tensors("gpt_neox").items() if "attention" not in name or
              "norm" in name or "bias" not in name}  # fmt: skip
    settings = {"use_parallel_residual": False, "attention_bias": False}
    checkpoint = pretrained.load(write(tmp_path, "gpt_neox", values, **settings))
    assert not checkpoint.spec.parallel and not checkpoint.spec.attention.bias
    assert checkpoint.params.attention.query_bias is None and checkpoint.params.mlp.bias_in is not None


@pytest.mark.parametrize("family", ["gemma2", pytest.param("gemma3_text", marks=pytest.mark.slow)])
def test_a_trace_sees_each_layer_s_own_window_and_cap(tmp_path, family):
    """Rows of heads against NumPy, on states and logits of the layer's own attention."""
    settings = {"attn_logit_softcapping": 1.0} if family == "gemma2" else {}
    checkpoint = pretrained.load(write(tmp_path, family, **settings))
    ids = np.random.default_rng(0).integers(0, families.WORDS, (1, 9))
    trace = pretrained.trace(checkpoint, ids, exact=False)
    states = network.hidden_states(checkpoint.params, checkpoint.embed(ids[0]), checkpoint.spec)
    for index in range(2):
        one = dataclasses.replace(checkpoint.spec.kinds[checkpoint.spec.kind_of(index)], depth=1)
        layer = one.attention
        params = jax.tree.map(lambda leaf, index=index: leaf[index], checkpoint.params)
        read = NORMS["rms"](states[index], params.attention_norm, checkpoint.spec.norm_epsilon)
        logits = np.asarray(attention.scores(params.attention, read, layer), float)
        weights = np.asarray(attention.attention_weights(params.attention, read, layer), float)
        gap = np.arange(9)[:, None] - np.arange(9)
        seen = (gap >= 0) & (gap <= (layer.window if layer.window is not None else 9))
        assert ((weights > 0) == seen).all()
        if layer.soft_cap is not None:
            assert np.abs(logits).max() <= 1
        for head in range(4):
            expected = dense.head(weights[head], seen)
            for name in ("sparsity", "entropy", "relative_entropy", "sink_weight", "largest_weight"):
                np.testing.assert_allclose(trace[name][index, head], expected[name], rtol=1e-4, err_msg=name)
    assert "path_share" in trace.measures and "log_residual" not in trace.measures


def test_a_table_that_the_file_says_is_another(tmp_path):
    """`safetensors.torch.save_model` keeps one of two tied tensors, and says in the metadata which is the other."""
    from safetensors.numpy import load_file, save_file

    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    safetensors_torch = pytest.importorskip("safetensors.torch")
    config = transformers.LlamaConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=20,
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "usual")
    model.config.save_pretrained(tmp_path / "tied")
    safetensors_torch.save_model(model, str(tmp_path / "tied" / "model.safetensors"))
    stored = load_file(tmp_path / "tied" / "model.safetensors")
    assert "lm_head.weight" in stored and "model.embed_tokens.weight" not in stored
    usual, tied = (pretrained.load(tmp_path / name) for name in ("usual", "tied"))
    np.testing.assert_array_equal(tied.embeddings.word, usual.embeddings.word)
    save_file(stored, tmp_path / "tied" / "model.safetensors")  # without its metadata
    with pytest.raises(ValueError, match=r"embed_tokens\.weight' is missing"):
        pretrained.load(tmp_path / "tied")
