"""Diagnosis of outputs of the transformers library: random small models, no files, against the arrays themselves."""

import types

import numpy as np
import pytest

from rc_jax import diagnostics
from tests.diagnostics import dense

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 40}
BOTH = {"output_attentions": True, "output_hidden_states": True}


@pytest.fixture(scope="module")
def ids():
    return torch.randint(3, 40, (3, 9), generator=torch.Generator().manual_seed(0))


def built(kind, attention="eager", **settings):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        **SIZES, **settings, pad_token_id=0, bos_token_id=1, eos_token_id=2, attn_implementation=attention
    )
    return getattr(transformers, f"{kind}Model")(config).eval()


@pytest.fixture(scope="module")
def decoder():
    return built("Llama", intermediate_size=24, num_key_value_heads=1)


@pytest.fixture(scope="module")
def encoder():
    # At BERT's own 0.02 rows are uniform to 1e-5, and float32 holds an entropy's distance from log n to a percent.
    return built("Bert", intermediate_size=24, initializer_range=0.1)


def test_the_same_as_of_the_arrays(decoder, ids):
    with torch.no_grad():
        outputs = decoder(ids, **BOTH)
    diagnosis = diagnostics.from_transformers(outputs)
    expected = diagnostics.attention([layer.numpy() for layer in outputs.attentions])
    expected |= diagnostics.hidden_states([state.numpy() for state in outputs.hidden_states])
    assert (diagnosis.layers, diagnosis.heads, diagnosis.tokens, diagnosis.samples, diagnosis.causal) == (
        2,
        2,
        9,
        3,
        True,
    )
    assert list(diagnosis.measures) == list(expected.measures)
    for name in diagnosis.measures:
        np.testing.assert_array_equal(diagnosis[name], expected[name], err_msg=name)


def test_weights_are_the_models_own(encoder, ids):
    """Recomputed from BERT's queries and keys in float64, by `scores`."""
    layer = encoder.encoder.layer[0].attention.self
    with torch.no_grad():
        outputs = encoder(ids, **BOTH)
        q, k = (
            part(outputs.hidden_states[0]).reshape(3, 9, 2, 8).transpose(1, 2).contiguous()
            for part in (layer.query, layer.key)
        )
    diagnosis, streamed = diagnostics.from_transformers(outputs), diagnostics.scores([q], [k], block=4)
    assert set(streamed.measures) - set(diagnosis.measures) == {"largest_logit"}  # no model gives its logits
    for name in diagnosis.measures.keys() & streamed.measures.keys():
        np.testing.assert_allclose(diagnosis[name][0], streamed[name][0], rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_left_out(decoder, ids, side):
    """Means over texts of what the model says of each text without padding."""
    lengths = (9, 6, 4)
    mask = torch.zeros((3, 9), dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, -length:] = 1 if side == "left" else mask[row, -length:]
        mask[row, :length] = 1 if side == "right" else mask[row, :length]
    padded = torch.zeros_like(ids)
    padded[mask > 0] = torch.cat([ids[row, :length] for row, length in enumerate(lengths)])
    with torch.no_grad():
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        outputs = decoder(padded, attention_mask=mask, position_ids=positions, **BOTH)
        alone = [diagnostics.from_transformers(decoder(ids[row : row + 1, :length], **BOTH)) for row, length in
                 enumerate(lengths)]  # fmt: skip
    diagnosis = diagnostics.from_transformers(outputs, attention_mask=mask)
    assert diagnosis.causal and diagnosis.samples == 3
    # The strongest key is that of all texts together, and ranks are of matrices filled up with zeros.
    for name in ("sparsity", "entropy", "participation", "largest_weight", "sink_weight", "sink_rate", "stable_rank"):
        np.testing.assert_allclose(
            diagnosis[name], np.mean([one[name] for one in alone], axis=0), rtol=2e-4, err_msg=name
        )
    for name in ("relative_residual", "cosine"):
        np.testing.assert_allclose(diagnosis[name], np.mean([one[name] for one in alone], axis=0), rtol=2e-4, atol=1e-6)


def test_values_go_with_their_tokens_where_padding_is_in_front(decoder, ids):
    values = np.random.default_rng(0).standard_normal((2, 3, 1, 9, 4)).astype(np.float32)  # (layer, text, …)
    mask = (np.arange(9) >= np.array([[0], [2], [5]])).astype(int)
    with torch.no_grad():
        outputs = decoder(ids, attention_mask=torch.tensor(mask), output_attentions=True)
    diagnosis = diagnostics.from_transformers(outputs, attention_mask=mask, values=list(values))
    alone = [
        diagnostics.attention(
            [layer[text, :, start:, start:].numpy() for layer in outputs.attentions], values=values[:, text, :, start:]
        )
        for text, start in enumerate((0, 2, 5))
    ]
    for name in ("sink_value_ratio", "sink_output_share"):
        np.testing.assert_allclose(
            diagnosis[name], np.mean([one[name] for one in alone], axis=0), rtol=2e-4, err_msg=name
        )
    with pytest.raises(ValueError, match="`values` must have 2 layers of shape"):
        diagnostics.from_transformers(outputs, attention_mask=mask, values=values[..., :8, :])


def test_mask_and_attention_mask_are_joined(decoder, ids):
    mask = (np.arange(9) >= np.array([[0], [2], [5]])).astype(int)
    with torch.no_grad():
        outputs = decoder(ids, attention_mask=torch.tensor(mask), output_attentions=True)
    alone = diagnostics.from_transformers(outputs, attention_mask=mask)
    for given in ("causal", np.tri(9, dtype=bool)):
        both = diagnostics.from_transformers(outputs, attention_mask=mask, mask=given)
        for name in alone.measures:
            np.testing.assert_array_equal(both[name], alone[name], err_msg=name)


WINDOWED = {  # (class, settings, reach of the windows by layer, causal)
    "Mistral": (dict(sliding_window=3, num_key_value_heads=1), (2, 2), True),
    "Gemma2": (dict(sliding_window=3, num_key_value_heads=1, head_dim=8), (2, None), True),
    "ModernBert": (dict(local_attention=4, global_attn_every_n_layers=2), (None, 2), False),
}


@pytest.mark.parametrize("given", ["nothing", "config"])
@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("name", WINDOWED)
def test_windows_and_padding_against_numpy(name, side, given):
    """Each text without its padding, under the true mask, in float64."""
    more, reach, causal = WINDOWED[name]
    settings = dict(num_hidden_layers=2, num_attention_heads=2, hidden_size=16, intermediate_size=16, vocab_size=40)
    special = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    config = getattr(transformers, f"{name}Config")(**settings, **more, **special)
    model = getattr(transformers, f"{name}Model")._from_config(config, attn_implementation="eager").eval()
    tokens = torch.randint(3, 40, (2, 16), generator=torch.Generator().manual_seed(0))
    real = np.ones((2, 16), bool)
    if side != "none":
        real[1] = np.arange(16) >= 5 if side == "left" else np.arange(16) < 11
    with torch.no_grad():
        outputs = model(tokens, attention_mask=torch.tensor(real).long(), output_attentions=True)
    known = dict(config=model.config, attention_mask=real) if given == "config" else {}
    diagnosis = diagnostics.from_transformers(outputs, **known)
    assert diagnosis.causal is causal and bool(diagnosis.notes) == (given == "nothing")
    for layer, weights in enumerate(outputs.attentions):
        for head in range(2):
            expected = []
            for text in range(2):
                p = weights[text, head].double().numpy()[real[text]][:, real[text]]
                distance = np.arange(len(p))[:, None] - np.arange(len(p))
                seen = (distance >= 0) | (not causal)
                seen &= np.abs(distance) <= (len(p) if reach[layer] is None else reach[layer])
                expected.append(dense.head(p, seen))
            for measure in ("sparsity", "relative_entropy", "participation", "sink_weight", "self_weight"):
                value = np.mean([each[measure] for each in expected])
                np.testing.assert_allclose(diagnosis[measure][layer, head], value, err_msg=measure, **dense.CLOSE)


def test_layers_carry_the_numbers_of_the_model(ids):
    """Two of eight layers of a hybrid model have attention weights."""
    config = transformers.Qwen3NextConfig(
        num_hidden_layers=8, num_attention_heads=2, num_key_value_heads=1, hidden_size=16, intermediate_size=16,
        vocab_size=40, head_dim=8, linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=8,
        linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
    )  # fmt: skip
    model = transformers.Qwen3NextModel._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        outputs = model(ids, use_cache=False, **BOTH)
    named = diagnostics.from_transformers(outputs, config=model.config)
    assert named.numbers == (3, 7) and not named.notes
    assert [line.split()[0] for line in str(named).splitlines()[4:6]] == ["3", "7"]
    counted = diagnostics.from_transformers(outputs)
    assert counted.numbers == (0, 1) and "The model has 8 layers, and 2 of them gave weights" in counted.notes[0]
    sparse = {"attentions": [None, *outputs.attentions[:1], None, *outputs.attentions[1:]]}
    assert diagnostics.from_transformers(sparse).numbers == (1, 3)
    with pytest.raises(ValueError, match="layer_types name 2 layers of attention among 8, got weights of 3"):
        diagnostics.from_transformers({"attentions": [*outputs.attentions, outputs.attentions[0]]}, config=model.config)


def test_forgotten_padding_leaves_the_states_too(decoder, ids):
    mask = torch.tensor((np.arange(9) >= np.array([[0], [0], [3]])).astype(int))
    with torch.no_grad():
        outputs = decoder(ids, attention_mask=mask, **BOTH)
    forgotten, given = (
        diagnostics.from_transformers(outputs),
        diagnostics.from_transformers(outputs, attention_mask=mask),
    )
    assert "taken for padding and left out" in forgotten.notes[0]
    for name in given.measures:
        np.testing.assert_array_equal(forgotten[name], given[name], err_msg=name)


def test_dropout_is_named(ids):
    model = built("Bert", "eager", intermediate_size=24).train()
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match=r"add up to 1.*rows above 1 come from dropout, so call model.ev"),
    ):
        diagnostics.from_transformers(model(ids, output_attentions=True))


def test_one_of_the_two_is_enough(encoder, ids):
    with torch.no_grad():
        outputs = encoder(ids, **BOTH)
    whole = diagnostics.from_transformers(outputs)
    attention = diagnostics.from_transformers({"attentions": outputs.attentions}, threshold=0.01)
    states = diagnostics.from_transformers(types.SimpleNamespace(hidden_states=outputs.hidden_states))
    assert set(attention.measures) | set(states.measures) == set(whole.measures)
    assert states.layers == 0 and (attention["sink_rate"] == 1).all()


def test_encoder_and_decoder(ids):
    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, vocab_size=40, attn_implementation="eager"
    )
    model = transformers.T5Model(config).eval()
    with torch.no_grad():
        outputs = model(ids, decoder_input_ids=ids[:, :5], **BOTH)
    one, other = (diagnostics.from_transformers(outputs, part=part) for part in ("encoder", "decoder"))
    assert (one.tokens, one.causal, other.tokens, other.causal) == (9, False, 5, True)
    with pytest.raises(
        ValueError, match="`part` must be 'encoder', 'decoder' or 'cross' for a model that has both, got None"
    ):
        diagnostics.from_transformers(outputs)
    for name in ("attentions", "hidden_states"):  # one of the two is enough
        alone = {f"{part}_{name}": outputs[f"{part}_{name}"] for part in ("encoder", "decoder")}
        diagnosis = diagnostics.from_transformers(alone, part="decoder")
        assert diagnosis.tokens == 5 and set(diagnosis.measures) < set(other.measures)


def test_bad_input(ids):
    fast = built("Bert", "sdpa", intermediate_size=24)
    with torch.no_grad():
        outputs, plain = fast(ids, **BOTH), fast(ids)
    with pytest.raises(ValueError, match='got none: load the model with attn_implementation="eager"'):
        diagnostics.from_transformers(outputs)
    with pytest.raises(TypeError, match="`outputs` must have attentions or hidden states: call the model with"):
        diagnostics.from_transformers(plain)
    with pytest.raises(TypeError, match=r"`outputs` must have attentions or hidden states: .* got nothing"):
        diagnostics.from_transformers({})
    states = {"hidden_states": outputs.hidden_states}
    with pytest.raises(ValueError, match="`part` must be None for outputs without encoder_attentions and encoder_hid"):
        diagnostics.from_transformers(states, part="encoder")
    with pytest.raises(ValueError, match=r"`attention_mask` must have the shape \(3, 9\), got torch.int64\[3,8\]"):
        diagnostics.from_transformers(states, attention_mask=ids[:, 1:])
    with pytest.raises(TypeError, match="`attention_mask` must hold 0 and 1 as whole numbers or booleans, got float64"):
        diagnostics.from_transformers(states, attention_mask=np.ones((3, 9)))
    with pytest.raises(ValueError, match="`attention_mask` must leave at least two tokens in some text"):
        diagnostics.from_transformers(states, attention_mask=np.eye(3, 9, dtype=int))


def test_packed_texts_of_a_model_are_measured_each(decoder):
    """Three texts in one row, told apart by their positions, with and without a config that says nothing of them."""
    lengths = (20, 24, 20)
    ids = torch.randint(3, 40, (1, 64), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    with torch.no_grad():
        outputs = decoder(ids, position_ids=positions, use_cache=False, **BOTH)
        parts = [decoder(part, use_cache=False, **BOTH) for part in ids.split(lengths, dim=1)]
    alone = [diagnostics.from_transformers(part) for part in parts]
    numbers = np.repeat([1, 2, 3], lengths)[None]
    for given in ({}, {"config": decoder.config}, {"attention_mask": numbers}, {"segment_ids": numbers}):
        diagnosis = diagnostics.from_transformers(outputs, **given)
        assert diagnosis.samples == 3 and diagnosis.causal
        # The scale of rows as even as these holds few digits.
        for name in set(diagnosis.measures) - {"strongest_key", "strongest_share", "entropy_scale", "scale_ratio"}:
            expected = np.mean([each[name] for each in alone], axis=0)
            np.testing.assert_allclose(diagnosis[name], expected, rtol=3e-4, atol=1e-5, err_msg=name)


def test_a_decoder_with_windows_is_read_by_its_own_configuration():
    """Steps behind the window, whose caches keep as many keys as their layers see."""
    sizes = dict(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, sliding_window=4, query_pre_attn_scalar=8, pad_token_id=0,
    )  # fmt: skip
    config = transformers.T5GemmaConfig(encoder=sizes, decoder=sizes, initializer_range=0.3)
    config.vocab_size = 40
    config.decoder._attn_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.T5GemmaForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    ids = torch.randint(3, 40, (2, 6), generator=torch.Generator().manual_seed(1))
    more = dict(max_new_tokens=9, min_new_tokens=9, do_sample=False, output_attentions=True)
    more |= dict(return_dict_in_generate=True, eos_token_id=39, decoder_start_token_id=1)
    weights = model.generate(ids, attention_mask=torch.ones_like(ids), **more).decoder_attentions[7]
    assert {layer.shape[-1] for layer in weights} == {4, 8}
    plain = diagnostics.from_transformers({"attentions": weights}, config=config.decoder)
    for given in (config, config.decoder):
        diagnosis = diagnostics.from_transformers({"decoder_attentions": weights}, part="decoder", config=given)
        for name in plain.measures:
            np.testing.assert_array_equal(diagnosis[name], plain[name], err_msg=name)


def test_a_config_is_that_of_a_model(decoder):
    outputs = {"attentions": [np.full((1, 2, 4, 4), 0.25)]}
    for wrong in (decoder, decoder.config.to_dict(), "llama"):
        with pytest.raises(TypeError, match=f"`config` must be .* model.config, got {type(wrong).__name__}"):
            diagnostics.from_transformers(outputs, config=wrong)


def test_a_token_counts_where_numbers_of_texts_and_the_attention_mask_say_so():
    """The numbers go on over the padding, or name a text that is nothing else."""
    texts, real = np.repeat([1, 2], 8)[None], np.arange(16)[None] < 13
    seen = (texts[0, :, None] == texts[0]) & np.tri(16, dtype=bool) & real[0]
    weights = np.random.default_rng(0).random((1, 1, 16, 16), np.float32) * seen
    weights /= weights.sum(-1, keepdims=True)
    given = {"attention_mask": real.astype(int)}
    expected = diagnostics.from_transformers({"attentions": [weights]}, segment_ids=np.where(real, texts, -1), **given)
    assert expected.samples == 2
    for ids in (texts, np.where(real, texts, 3)):
        diagnosis = diagnostics.from_transformers({"attentions": [weights]}, segment_ids=ids, **given)
        assert diagnosis.samples == 2
        for name in expected.measures:
            np.testing.assert_array_equal(diagnosis[name], expected[name], err_msg=name)


def test_windows_under_other_names_are_found_beside_a_config(ids):
    """GPT-Neo has `window_size` and no `layer_types`: its config says nothing of windows here."""
    config = transformers.GPTNeoConfig(
        hidden_size=16, num_layers=2, num_heads=2, vocab_size=40, attention_types=[[["global", "local"], 1]],
        window_size=8, bos_token_id=1, eos_token_id=2, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GPTNeoModel._from_config(config, attn_implementation="eager").eval()
    tokens = torch.randint(3, 40, (2, 48), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        outputs = model(tokens, output_attentions=True)
    plain, given = (diagnostics.from_transformers(outputs, **more) for more in ({}, {"config": model.config}))
    assert "Layer 1: read as a window, 8 keys" in given.notes[0]
    for name in plain.measures:
        np.testing.assert_array_equal(plain[name], given[name], err_msg=name)


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
def test_the_empty_places_of_a_static_cache(decoder):
    """Queries are the last of the tokens that are filled, not of the places that there are."""
    tokens = torch.randint(3, 40, (2, 24), generator=torch.Generator().manual_seed(2))
    cache = transformers.StaticCache(config=decoder.config, max_cache_len=64)
    with torch.no_grad():
        static = decoder(tokens, past_key_values=cache, output_attentions=True)
        plain = decoder(tokens, output_attentions=True)
    assert static.attentions[0].shape[-1] == 64
    found, expected = (diagnostics.from_transformers(each) for each in (static, plain))
    assert found.causal and "24 are filled" in found.notes[1]
    for name in set(expected.measures) & set(found.measures) - {"entropy_scale", "scale_ratio"}:
        np.testing.assert_allclose(found[name], expected[name], rtol=3e-4, atol=1e-5, err_msg=name)


def by_hand(weights, seen):
    """Sparsity and H/log n (layer, head), of rows that see two keys and more, first in each sample, by NumPy."""
    found = []
    for layer in weights:
        rows = np.asarray(layer, float) * seen[:, None]
        keys = seen.sum(-1)
        values = []
        for p, n in zip(rows, keys, strict=True):
            p, n = p[:, n > 1], n[n > 1]
            entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1) / np.log(n)
            values.append([(p.sum(-1) / np.sqrt(n * (p**2).sum(-1))).mean(-1), entropy.mean(-1)])
        found.append(np.mean(values, 0))
    return np.swapaxes(found, 0, 1)


PADDED = torch.ones(3, 20, dtype=torch.long)
for _sample, _count in ((1, 3), (2, 6)):
    PADDED[_sample, -_count:] = 0


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("prefix", [0, 6])
def test_padding_beside_a_cache(decoder, static, left, prefix):
    """Of the whole text or of what follows six tokens; told by a mask of the text, by one of all places, or by none."""
    tokens = torch.randint(3, 40, (3, 20), generator=torch.Generator().manual_seed(3))
    real = PADDED.flip(-1) if left else PADDED
    cache = transformers.StaticCache(config=decoder.config, max_cache_len=32) if static else transformers.DynamicCache()
    with torch.no_grad():
        if prefix:
            decoder(tokens[:, :prefix], attention_mask=real[:, :prefix], past_key_values=cache)
        outputs = decoder(tokens[:, prefix:], attention_mask=real, past_key_values=cache, output_attentions=True)
    kept = real.numpy().astype(bool)
    seen = (kept[:, None] & kept[:, :, None] & np.tri(20, dtype=bool))[:, prefix:]
    sparsity, entropy = by_hand([layer[..., :20] for layer in outputs.attentions], seen)
    places = torch.nn.functional.pad(real, (0, outputs.attentions[0].shape[-1] - 20))
    for mask in (real, places, None):
        found = diagnostics.from_transformers(outputs, attention_mask=mask)
        assert found.causal
        np.testing.assert_allclose(found["sparsity"], sparsity, rtol=1e-5, err_msg=f"{mask is None}")
        np.testing.assert_allclose(found["relative_entropy"], entropy, rtol=1e-4, err_msg=f"{mask is None}")


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
def test_a_config_gives_the_windows_of_cached_queries():
    config = transformers.MistralConfig(
        **SIZES, intermediate_size=24, num_key_value_heads=2, sliding_window=6, initializer_range=0.3
    )
    torch.manual_seed(0)
    model = transformers.MistralModel._from_config(config, attn_implementation="eager").eval()
    tokens = torch.randint(3, 40, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        cache = model(tokens[:, :8], use_cache=True).past_key_values
        outputs = model(tokens[:, 8:], past_key_values=cache, output_attentions=True)
    keys = outputs.attentions[0].shape[-1]
    distance = np.arange(keys - 12, keys)[:, None] - np.arange(keys)
    seen = np.broadcast_to((distance >= 0) & (distance < 6), (2, 12, keys))
    found = diagnostics.from_transformers(outputs, config=config)
    sparsity, entropy = by_hand(outputs.attentions, seen)
    np.testing.assert_allclose(found["sparsity"], sparsity, rtol=1e-5)
    np.testing.assert_allclose(found["relative_entropy"], entropy, rtol=1e-5)


def llama4(chunk):
    """A small decoder of chunks, whose fourth layer looks at all keys, and its configuration."""
    sizes = SIZES | dict(num_hidden_layers=4)
    config = transformers.Llama4TextConfig(
        **sizes, intermediate_size=24, intermediate_size_mlp=24, num_key_value_heads=1, head_dim=8,
        num_local_experts=1, num_experts_per_tok=1, attention_chunk_size=chunk, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.Llama4TextModel._from_config(config, attn_implementation="eager").eval(), config


@pytest.mark.parametrize("chunk", [5, 64])
@pytest.mark.parametrize("side", ["left", "right", "none"])
def test_a_config_gives_the_chunks_of_its_layers(side, chunk):
    """Chunks begin at the first token that is no padding, in each sample: too few zeros to be found by themselves."""
    model, config = llama4(chunk)
    attention_mask = torch.ones(3, 12, dtype=torch.long)
    if side != "none":
        attention_mask[1, slice(None, 3) if side == "left" else slice(9, None)] = 0
        attention_mask[2, slice(None, 5) if side == "left" else slice(7, None)] = 0
    tokens = torch.randint(3, 40, (3, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        outputs = model(tokens, attention_mask=attention_mask, output_attentions=True)
    real, causal = attention_mask.numpy() != 0, np.tri(12, dtype=bool)[None]
    chunks = (np.arange(12) - real.argmax(1)[:, None]) // chunk
    near = (chunks[:, :, None] == chunks[:, None]) & causal
    seen = [each & real[:, None] & real[:, :, None] for each in (near, near, near, causal)]
    found = diagnostics.from_transformers(outputs, attention_mask=attention_mask, config=config)
    expected = diagnostics.attention(outputs.attentions, mask=[each[:, None] for each in seen])
    assert found.causal
    for measure in ("sparsity", "relative_entropy", "participation", "self_weight", "stable_rank"):
        np.testing.assert_allclose(found[measure], expected[measure], rtol=1e-5, err_msg=measure)


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
def test_cached_queries_know_their_chunk():
    """While the cache of a chunk is not full, so that no token is gone."""
    model, config = llama4(16)
    tokens = torch.randint(3, 40, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        cache = model(tokens[:, :4], use_cache=True).past_key_values
        outputs = model(tokens[:, 4:12], past_key_values=cache, output_attentions=True)
    found = diagnostics.from_transformers(outputs, config=config)
    seen = np.broadcast_to(np.arange(4, 12)[:, None] >= np.arange(12), (2, 8, 12))
    sparsity, entropy = by_hand(outputs.attentions, seen)
    np.testing.assert_allclose(found["sparsity"], sparsity, rtol=1e-5)
    np.testing.assert_allclose(found["relative_entropy"], entropy, rtol=1e-5)


def test_a_last_state_before_the_final_norm_is_named(decoder, encoder, ids):
    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    config = transformers.ViTConfig(
        **sizes, intermediate_size=24, image_size=16, patch_size=4, attn_implementation="eager"
    )
    pictures = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs = [model(ids, **BOTH) for model in (decoder, encoder)]
        outputs.append(transformers.ViTModel(config).eval()(pictures, **BOTH))
    notes = [" ".join(diagnostics.from_transformers(each).notes) for each in outputs]
    assert ["the final norm, is not in it" in each for each in notes] == [False, False, True]


def blocks(*stretches, n=24):
    """True where a key is no later than a query, or both are tokens of one of these stretches."""
    seen = np.tri(n, dtype=bool)
    for start, end in stretches:
        seen[start:end, start:end] = True
    return seen


AHEAD = {  # of two samples
    "picture": (blocks((3, 7)), blocks((3, 7))),
    "two pictures": (blocks((2, 6), (12, 16)), blocks((5, 9), (9, 13))),
    "a picture in one sample": (blocks(), blocks((8, 12))),
    "prefix": (blocks((0, 5)), blocks((0, 6))),
}


def drawn(seen, layers, seed=0, spread=1.0):
    """Weights of a softmax over what may be seen, (sample, head, query, key), in each layer."""
    logits = spread * np.random.default_rng(seed).standard_normal((layers, *seen[0].shape))
    weights = np.exp(logits) * np.stack(seen)
    return list((weights / weights.sum(-1, keepdims=True)).astype(np.float32))


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("name", AHEAD)
def test_a_config_says_nothing_of_later_keys(name, told):
    """Pictures whose tokens see each other, and prefixes, beside windows of a config, as under the mask itself."""
    config = transformers.Gemma3TextConfig(**SIZES, layer_types=["sliding_attention", "full_attention"])
    config.sliding_window = 6
    distance = np.arange(24)[:, None] - np.arange(24)
    ahead = np.broadcast_to(np.stack(AHEAD[name])[:, None], (2, 3, 24, 24))
    masks = [ahead & (distance < 6), ahead]
    weights = drawn(masks, 2)
    given = {"attention_mask": np.ones((2, 24), int)} if told else {}
    found = diagnostics.from_transformers({"attentions": weights}, config=config, **given)
    expected = diagnostics.attention(weights, mask=masks)
    assert not found.causal and any("all other weights are exactly 0" in note for note in found.notes)
    for measure in ("sparsity", "relative_entropy", "participation", "sink_weight", "self_weight", "stable_rank"):
        np.testing.assert_allclose(found[measure], expected[measure], rtol=1e-5, err_msg=measure)


def test_pictures_longer_than_a_window_are_no_window_of_both_sides():
    """A stretch of tokens that see each other further ahead than a window of both sides reaches."""
    config = transformers.Gemma3TextConfig(**SIZES, layer_types=["sliding_attention", "full_attention"])
    config.sliding_window = 4
    distance = np.arange(24)[:, None] - np.arange(24)
    ahead = np.broadcast_to(blocks((2, 9)), (1, 2, 24, 24))
    masks = [ahead & (distance < 4), ahead]
    weights = drawn(masks, 2)
    found = diagnostics.from_transformers({"attentions": weights}, config=config)
    expected = diagnostics.attention(weights, mask=masks)
    for measure in ("sparsity", "relative_entropy", "self_weight"):
        np.testing.assert_allclose(found[measure], expected[measure], rtol=1e-5, err_msg=measure)


def test_a_config_of_an_encoder_beside_small_weights_of_later_keys():
    """Single weights that underflow are no mask, whatever the config says."""
    config = transformers.ModernBertConfig(**SIZES, local_attention=8, global_attn_every_n_layers=2)
    distance = np.abs(np.arange(24)[:, None] - np.arange(24))
    whole = np.ones((2, 2, 24, 24), bool)
    masks = [whole, whole & (distance <= 4)]
    weights = drawn(masks, 2, spread=2.0)
    for layer in weights:
        layer[np.random.default_rng(1).uniform(size=layer.shape) < 0.02] = 0
        layer /= layer.sum(-1, keepdims=True)
    found = diagnostics.from_transformers({"attentions": weights}, config=config)
    expected = diagnostics.attention(weights, mask=masks)
    assert not found.causal
    for measure in ("sparsity", "relative_entropy", "self_weight"):
        np.testing.assert_allclose(found[measure], expected[measure], rtol=1e-5, err_msg=measure)
