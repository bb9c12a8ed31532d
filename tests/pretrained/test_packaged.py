"""The packaged decoder, quantised to 4 bits, against the transformers library's own reading of its file."""

import re

import numpy as np
import pytest

from experiments.lib import sentences
from rc_jax import network, pretrained
from rc_jax.pretrained.packaged import PACKAGED
from tests.pretrained.made_up import states
from tests.pretrained.test_gguf import transformers_model

TEXT = "Attention is not all you need: pure attention loses rank doubly exponentially with depth. " * 3


@pytest.mark.parametrize("place", [None, "empty"])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_package_that_is_absent(monkeypatch, tmp_path, kind, place):
    monkeypatch.setitem(PACKAGED, kind, PACKAGED[kind]._replace(module="no_such_package"))
    if place:
        (tmp_path / "no_such_package").mkdir()
        monkeypatch.syspath_prepend(tmp_path)
    assert pretrained.packaged_checkpoint(kind) is None


def test_a_kind_that_does_not_exist(as_installed):
    with pytest.raises(ValueError, match="`kind` must be one of 'encoder', 'decoder', got 'both'"):
        pretrained.packaged_checkpoint("both")  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def reference(decoder):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return transformers_model(decoder.folder)


@pytest.mark.slow
@pytest.mark.torch
def test_the_decoder_s_weights_are_equal_bit_by_bit(decoder, reference):
    stored = {name: value.numpy() for name, value in reference.state_dict().items()}
    heads, keys, width = 9, 3, 64
    np.testing.assert_array_equal(decoder.embeddings.word, stored["model.embed_tokens.weight"])
    np.testing.assert_array_equal(decoder.final_norm.scale, stored["model.norm.weight"])
    pairs = np.arange(width).reshape(2, -1).T.ravel()
    for layer in range(decoder.spec.depth):
        at, own = f"model.layers.{layer}.", decoder.params
        for role, letter, count in (("query", "q", heads), ("key", "k", keys), ("value", "v", keys)):
            matrix = stored[f"{at}self_attn.{letter}_proj.weight"].reshape(count, width, -1).transpose(0, 2, 1)
            matrix = matrix if role == "value" else matrix[..., pairs]
            np.testing.assert_array_equal(getattr(own.attention, role)[layer], matrix.repeat(heads // count, axis=0))
        output = stored[f"{at}self_attn.o_proj.weight"].T
        np.testing.assert_array_equal(own.attention.output[layer].reshape(heads * width, -1), output)
        for part, letter in (("weight_gate", "gate"), ("weight_in", "up"), ("weight_out", "down")):
            np.testing.assert_array_equal(getattr(own.mlp, part)[layer], stored[f"{at}mlp.{letter}_proj.weight"].T)
        np.testing.assert_array_equal(own.attention_norm.scale[layer], stored[f"{at}input_layernorm.weight"])
        np.testing.assert_array_equal(own.mlp_norm.scale[layer], stored[f"{at}post_attention_layernorm.weight"])


@pytest.mark.slow
@pytest.mark.torch
def test_the_decoder_s_states_and_logits_agree(decoder, reference):
    import torch

    ids = decoder.encode(TEXT)
    with torch.no_grad():
        out = reference(torch.tensor(np.asarray(ids), dtype=torch.long)[None], output_hidden_states=True)
    ours = states(decoder, ids)
    for layer, theirs in enumerate(out.hidden_states):
        size = np.abs(theirs[0].numpy()).max()
        np.testing.assert_allclose(ours[layer], theirs[0].numpy(), rtol=0, atol=1e-5 * size)
    logits, theirs = ours[-1] @ np.asarray(decoder.embeddings.word).T, out.logits[0].numpy()
    np.testing.assert_allclose(logits, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.slow
@pytest.mark.torch
def test_the_decoder_s_tokens_are_those_of_its_published_tokenizer(decoder):
    """Transformers divides this vocabulary as GPT-2's, so that blanks before a digit come out otherwise."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import pre_tokenizers

    theirs = transformers.AutoTokenizer.from_pretrained(decoder.folder.parent, gguf_file=decoder.folder.name)
    texts = [*sentences.docstrings(), "Naïve café — 東京, O(n²)?", "<|im_start|>user\nhi<|im_end|>", " a\t  b \n"]
    ours = [decoder.tokenizer.encode(text).ids for text in texts]
    differ = [text for text, ids in zip(texts, ours, strict=True) if theirs(text)["input_ids"] != ids]
    assert 0 < len(differ) < 0.02 * len(texts)
    assert all(re.search(r"\s\s\d", text) for text in differ)
    digits, rest = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, rest])
    assert ours == [theirs(text)["input_ids"] for text in texts]


@pytest.mark.slow
def test_the_decoder_knows_a_capital(decoder):
    x = decoder.embed(decoder.encode("The capital of France is"))
    last = decoder.finish(network.apply(decoder.params, x, decoder.spec))[-1]
    best = int(np.argmax(decoder.embeddings.word @ last))
    assert decoder.tokenizer.decode([best]) == " Paris"
