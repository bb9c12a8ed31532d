"""Every family's layout on a checkpoint written by hand: all numbers arrive, and one wrong tensor is named."""

import pathlib

import jax
import numpy as np
import pytest

from rc_jax import attention, network, pretrained
from rc_jax.pretrained.config import Config
from tests.pretrained import families, made_up

ASKED = {"use_sliding_window": True, "sliding_window": 4}
FAMILIES = tuple(families.CONFIGS)
EVERY_TENSOR = [  # of the other families, with the slow tests
    pytest.param(family, marks=() if family in ("bert", "gpt2", "llama") else pytest.mark.slow) for family in FAMILIES
]


def write(folder, family, values=None, **settings):
    config = families.CONFIGS[family] | settings
    return made_up.write(folder, config, families.tensors(family) if values is None else values)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_arrives_once_or_where_it_is_shared(tmp_path, family):
    checkpoint = pretrained.load(write(tmp_path, family))
    arrived = jax.tree.leaves((checkpoint.params, checkpoint.embeddings, checkpoint.final_norm))
    values = families.tensors(family)
    for name in values if family in families.GEMMA else ():
        values[name] = values[name] + np.float32("norm" in name)
    stored = np.concatenate([value.ravel() for value in values.values()])
    numbers = np.concatenate([np.ravel(leaf) for leaf in arrived])
    np.testing.assert_array_equal(np.unique(numbers[numbers != 0]), np.unique(stored))
    shared = checkpoint.spec.attention.heads != checkpoint.key_value_heads or family == "albert"
    assert ((numbers != 0).sum() > stored.size) == shared  # Qwen3's gains are shared as well
    x = jax.ShapeDtypeStruct((5, families.D), np.float32)
    out = jax.eval_shape(lambda x: network.apply(checkpoint.params, x, checkpoint.spec), x)
    assert out.shape == x.shape


@pytest.mark.parametrize("family", EVERY_TENSOR)
def test_a_missing_an_extra_or_a_misshapen_tensor_is_named_with_its_file(tmp_path, family):
    values = families.tensors(family)
    for name, value in values.items():
        if any(f".{index}." in f".{name}" for index in (0, 2)) and ".1." not in name:  # one layer stands for all
            continue
        write(tmp_path, family, {key: item for key, item in values.items() if key != name})
        with pytest.raises(ValueError, match=rf"tensor '{name}' is missing in '.*model.safetensors'"):
            pretrained.load(tmp_path)
        write(tmp_path, family, values | {name: value[1:]})
        with pytest.raises(ValueError, match=rf"tensor '{name}' must have shape \(.*\) in '.*model.safetensors', got"):
            pretrained.load(tmp_path)
    write(tmp_path, family, values | {"extra.weight": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match=r"unexpected tensor 'extra.weight' in '.*model.safetensors'"):
        pretrained.load(tmp_path)


UNUSED = {
    "bert": ("bert.", ["pooler.dense.weight", "embeddings.position_ids"], ["cls.predictions.bias"]),
    "roberta": ("roberta.", ["pooler.dense.bias", "embeddings.position_ids"], ["lm_head.dense.weight"]),
    "distilbert": ("distilbert.", ["embeddings.position_ids"], ["vocab_projector.bias", "pre_classifier.weight"]),
    "albert": ("albert.", ["pooler.weight", "embeddings.position_ids"], ["predictions.bias", "sop_classifier.bias"]),
    "gpt2": ("transformer.", ["h.0.attn.bias", "h.1.attn.masked_bias"], ["lm_head.weight", "score.weight"]),
    "qwen3": ("model.", ["layers.1.self_attn.rotary_emb.inv_freq"], ["lm_head.weight"]),
    "gpt_neox": (
        "gpt_neox.",
        ["layers.0.attention.bias", "layers.1.attention.masked_bias", "layers.1.attention.rotary_emb.inv_freq"],
        ["embed_out.weight"],
    ),
}


@pytest.mark.parametrize("family", UNUSED)
def test_prefix_and_what_hidden_states_do_not_depend_on(tmp_path, family):
    root, inside, beside = UNUSED[family]
    values = {root + name: value for name, value in families.tensors(family).items()}
    aside = [root + name for name in inside] + beside
    checkpoint = pretrained.load(write(tmp_path / "a", family, values | dict.fromkeys(aside, np.zeros(3, np.float32))))
    assert sorted(checkpoint.ignored) == sorted(aside)
    plain = pretrained.load(write(tmp_path / "b", family))
    jax.tree.map(
        np.testing.assert_array_equal, (checkpoint.params, checkpoint.embeddings), (plain.params, plain.embeddings)
    )
    with pytest.raises(ValueError, match="unexpected tensor"):  # a head without the prefix is not expected
        pretrained.load(write(tmp_path / "c", family, families.tensors(family) | {beside[0]: np.zeros(3, np.float32)}))


def test_shared_layers_and_heads_are_repeated(tmp_path):
    albert = pretrained.load(write(tmp_path / "a", "albert"))
    assert albert.shared_layers == (0, 0, 1, 1)
    for leaf in jax.tree.leaves(albert.params):
        np.testing.assert_array_equal(leaf[0], leaf[1])
        np.testing.assert_array_equal(leaf[2], leaf[3])
        assert (leaf[0] != leaf[2]).any()
    llama = pretrained.load(write(tmp_path / "b", "llama"))
    assert llama.key_value_heads == 2 and llama.shared_layers == (0, 1)
    for name in ("key", "value", "key_bias", "value_bias"):
        leaf = getattr(llama.params.attention, name)
        np.testing.assert_array_equal(leaf[:, 0], leaf[:, 1])
        assert (leaf[:, 1] != leaf[:, 2]).any()


def test_features_that_are_rotated_together_are_brought_together(tmp_path):
    stored = families.tensors("llama")["layers.1.self_attn.k_proj.weight"].reshape(2, 4, families.D)
    checkpoint = pretrained.load(write(tmp_path, "llama")).params.attention.key[1]
    np.testing.assert_array_equal(checkpoint[0].T, stored[0][[0, 2, 1, 3]])
    np.testing.assert_array_equal(checkpoint[3].T, stored[1][[0, 2, 1, 3]])


def test_positions_after_padding_count_tokens_only(tmp_path):
    checkpoint = pretrained.load(write(tmp_path, "roberta"))
    assert checkpoint.most_tokens == families.POSITIONS - 2
    bare = checkpoint._replace(
        embeddings=checkpoint.embeddings._replace(word=0 * checkpoint.embeddings.word, token_type=None, norm=None)
    )
    table = families.tensors("roberta")["embeddings.position_embeddings.weight"]
    np.testing.assert_array_equal(bare.embed(np.array([5, 1, 7, 1, 1, 3])), table[[2, 1, 3, 1, 1, 4]])
    with pytest.raises(ValueError, match="`token_ids` must hold 1 to 8 tokens, one per position, got 9"):
        checkpoint.embed(np.zeros(9, int))


def test_first_and_last_states_by_hand(tmp_path):
    ids = np.array([4, 0, 7])
    gpt2, stored = pretrained.load(write(tmp_path / "a", "gpt2")), families.tensors("gpt2")
    np.testing.assert_array_equal(gpt2.embed(ids), stored["wte.weight"][ids] + stored["wpe.weight"][:3])
    with pytest.raises(ValueError, match="`token_types` must be None: the family gpt2 has none"):
        gpt2.embed(ids, ids)
    x = np.random.default_rng(2).normal(size=(3, families.D)).astype(np.float32)
    centred = x - x.mean(axis=1, keepdims=True)
    expected = (
        centred / np.sqrt(centred.var(axis=1, keepdims=True) + 1e-5) * stored["ln_f.weight"] + stored["ln_f.bias"]
    )
    np.testing.assert_allclose(gpt2.finish(jax.numpy.asarray(x)), expected, rtol=1e-5, atol=1e-5)
    llama, stored = pretrained.load(write(tmp_path / "b", "llama")), families.tensors("llama")
    np.testing.assert_array_equal(llama.embed(ids), stored["embed_tokens.weight"][ids])
    expected = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * stored["norm.weight"]
    np.testing.assert_allclose(llama.finish(jax.numpy.asarray(x)), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"`x` must have d_model=8 features, got float32\[2,3\]"):
        llama.finish(jax.numpy.zeros((2, 3)))


YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 5}
LLAMA3 = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, attention.Rotary(base=500.0)),
        ({"rope_theta": None}, attention.Rotary(base=10_000.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, attention.Rotary(base=7.0)),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            attention.Rotary(base=500.0, scaling="linear", factor=2.0),
        ),
        (
            {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 5}},
            attention.Rotary(base=500.0, scaling="llama3", factor=8.0, original_tokens=5),
        ),
        ({"rope_scaling": LLAMA3}, attention.Rotary(base=500.0, scaling="llama3", factor=8.0, original_tokens=10)),
        (
            {"rope_parameters": YARN | {"beta_fast": 16, "mscale": 1.0, "mscale_all_dim": 1.0}},
            attention.Rotary(
                base=100.0, scaling="yarn", factor=4.0, original_tokens=5, fast=16.0, attention_factor=1.0
            ),
        ),
        (
            {"rope_parameters": YARN | {"attention_factor": 1.5}},
            attention.Rotary(base=100.0, scaling="yarn", factor=4.0, original_tokens=5, attention_factor=1.5),
        ),
    ],
)
def test_rotary_settings_old_and_new(settings, expected):
    assert families.layout("llama", **settings).spec.attention.rotary == expected


@pytest.mark.parametrize(
    ("family", "settings", "window"),
    [
        ("mistral", {}, 2),
        ("mistral", {"sliding_window": None}, None),
        ("llama", {"sliding_window": 3}, None),
        ("qwen2", {"sliding_window": 3}, None),
        ("qwen2", {"sliding_window": 3, "use_sliding_window": True}, None),
        ("qwen2", {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 1}, None),
        ("qwen3", {"sliding_window": 3, "use_sliding_window": True, "max_window_layers": 0}, 2),
        ("qwen3", {"sliding_window": 3, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, 2),
    ],
)
def test_window_settings(family, settings, window):
    assert families.layout(family, **settings).spec.attention.window == window


@pytest.mark.parametrize(
    ("family", "settings", "match"),
    [
        ("roberta", {"pad_token_id": -1}, "`pad_token_id` must be an integer >= 0 in '.*config.json', got -1"),
        ("roberta", {"max_position_embeddings": 2}, "`max_position_embeddings` must be an integer >= 3"),
        (
            "gpt2",
            {"quantization_config": {"bits": 4}},
            "`quantization_config` must be absent: .* in '.*', got {'bits': 4}",
        ),
        ("distilbert", {"n_heads": 3}, "`n_heads` must divide dim=8 in '.*config.json', got 3"),
        ("albert", {"inner_group_num": 2}, "`inner_group_num` must be one of 1 in '.*', got 2"),
        ("albert", {"num_hidden_groups": 5}, "`num_hidden_groups` must be at most num_hidden_layers=4 in '.*', got 5"),
        ("gpt2", {"scale_attn_weights": False}, "`scale_attn_weights` must be one of True in '.*', got False"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "`scale_attn_by_inverse_layer_idx` must be one of False"),
        ("gpt2", {"add_cross_attention": True}, "`add_cross_attention` must be one of False"),
        ("llama", {"num_key_value_heads": 3}, "`num_key_value_heads` must divide num_attention_heads=4 in"),
        ("llama", {"head_dim": 3}, "`head_dim` must be even in '.*config.json', got 3"),
        ("llama", {"head_dim": None, "num_attention_heads": 3}, "`num_attention_heads` must divide hidden_size=8"),
        ("llama", {"attention_bias": 1}, "`attention_bias` must be one of False, True in '.*', got 1"),
        ("llama", {"rope_theta": -1.0}, "`rope_theta` must be a positive number in '.*', got -1"),
        ("llama", {"rope_theta": 0.5}, "`rope_theta` must be above 1 in '.*config.json', got 0.5"),
        ("llama", {"rope_parameters": YARN | {"rope_theta": 1.0}}, "`rope_parameters.rope_theta` must be above 1 in"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["chunked_attention"] * 2},
            "`layer_types` must be 2 of 'full_attention' and 'sliding_attention' in '.*', got",
        ),
        ("gemma2", {"layer_types": [["full_attention"], []]}, "`layer_types` must be 2 of .full_attention. and"),
        ("gemma2", {"layer_types": ["full_attention"]}, "`layer_types` must be 2 of 'full_attention' and"),
        ("llama", {"rope_scaling": 2}, "`rope_scaling` must be a JSON object in '.*', got 2"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2}}, "`rope_scaling.type` must be one of 'default', "),
        ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "`rope_parameters.rope_type` must be one of"),
        ("llama", {"rope_parameters": {"full_attention": {}}}, "`rope_parameters` must be one rotation for all layers"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 0.5}}, "`rope_scaling.factor` must be at least 1"),
        ("llama", {"rope_scaling": LLAMA3 | {"high_freq_factor": 1}}, "`rope_scaling.high_freq_factor` must be above"),
        ("llama", {"rope_scaling": LLAMA3 | {"low_freq_factor": None}}, "`rope_scaling.low_freq_factor` must be a pos"),
        ("llama", {"rope_parameters": YARN | {"truncate": False}}, "`rope_parameters.truncate` must be one of True"),
        ("llama", {"partial_rotary_factor": 0.5}, "`partial_rotary_factor` must be one of 1, 1.0 in '.*', got 0.5"),
        ("qwen2", {"num_key_value_heads": None}, "`num_key_value_heads` must be an integer >= 1 in '.*', got None"),
        ("gemma2", {"sliding_window": None}, "`sliding_window` must be an integer >= 1 in '.*', got None"),
        ("gemma2", {"use_bidirectional_attention": True}, "`use_bidirectional_attention` must be one of False in"),
        ("llama", {"rope_theta": 1e308}, r"`rope_theta` must lie in 1e-30 … 1e\+30, .* in 'config.json', got 1e\+308"),
        ("gemma2", {"query_pre_attn_scalar": 1e-308}, "`query_pre_attn_scalar` must lie in .* in 'config.json', got 1"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "`query_pre_attn_scalar` must be a positive number in '.*', got 0"),
        ("gemma2", {"attn_logit_softcapping": -5.0}, "`attn_logit_softcapping` must be a positive number in"),
        ("gemma2", {"hidden_activation": "mish"}, "`hidden_activation` must be one of 'gelu', .* got 'mish'"),
        ("qwen3_moe", ASKED | {"max_window_layers": 2}, "`max_window_layers` must be absent beside a window"),
        ("qwen3_moe", ASKED | {"layer_types": ["full_attention"] * 2}, "`layer_types` must be absent beside a window"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "`attn_logit_softcapping` must be null in this family in"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 5.0}}, "`rope_parameters` must be one rotation for each of"),
        ("gemma3_text", {"rope_local_base_freq": 1}, "`rope_local_base_freq` must be above 1 in '.*', got 1"),
        ("gemma3_text", {"rope_scaling": {"rope_type": "ntk"}}, "`rope_scaling.rope_type` must be one of 'default', "),
        ("olmo2", {"rope_parameters": YARN | {"truncate": False}}, "`rope_parameters.truncate` must be one of True"),
        ("gpt_neox", {"rotary_pct": 0.75}, "`rotary_pct` must rotate an even number of the 4 features of a head in"),
        ("gpt_neox", {"rotary_pct": 0.25}, "`rotary_pct` must rotate an even number of the 4 features of a head in"),
        ("gpt_neox", {"rope_scaling": {"type": "yarn", "factor": 2}}, "`rope_scaling.type` must be one of 'default', "),
        ("gpt_neox", {"use_parallel_residual": 1}, "`use_parallel_residual` must be one of False, True in '.*', got 1"),
        ("gpt_neox", {"hidden_act": "swiglu"}, "`hidden_act` must be one of 'gelu', .* got 'swiglu'"),
    ],
)
def test_settings_that_cannot_be_run_are_named(family, settings, match):
    with pytest.raises(ValueError, match=match):
        families.layout(family, **settings)


def test_a_window_that_is_asked_for_is_that_of_all_layers():
    """`Qwen3MoeConfig` knows neither `max_window_layers` nor `layer_types`."""
    spec = families.layout("qwen3_moe", **ASKED).spec
    assert (spec.attention.window, spec.local_layers) == (3, ())
    assert families.layout("qwen3_moe", **ASKED | {"use_sliding_window": False}).spec.attention.window is None


@pytest.mark.parametrize(("family", "base"), [("mixtral", 1e6), ("mistral", 1e4), ("qwen3_moe", 1e4)])
def test_the_base_of_a_family_where_none_is_stated(family, base):
    for settings in ({}, {"rope_scaling": {"type": "linear", "factor": 2.0}}):
        absent = {"rope_parameters": None, "rope_theta": None} | settings
        config = {name: value for name, value in (families.CONFIGS[family] | absent).items() if value is not None}
        spec = families.read_layout(Config(pathlib.Path("config.json"), config)).spec
        assert spec.attention.rotary.base == base


def test_groups_of_albert_are_those_of_the_transformers_library():
    """⌊l/(L/G)⌋ in floating point, which rounds: not what integers give at some l."""
    shared = families.layout("albert", num_hidden_layers=18, num_hidden_groups=14).shared_layers
    assert shared == tuple(int(layer / (18 / 14)) for layer in range(18)) != tuple(i * 14 // 18 for i in range(18))


@pytest.mark.parametrize("family", ["xlm-roberta", "camembert"])
def test_same_layout_under_other_names(tmp_path, family):
    checkpoint = pretrained.load(write(tmp_path / "a", "roberta", model_type=family))
    other = pretrained.load(write(tmp_path / "b", "roberta"))
    assert checkpoint.spec == other.spec and checkpoint.padding == other.padding == 1
    assert checkpoint.config["model_type"] == family
