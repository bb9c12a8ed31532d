"""Queries that look at the keys of a cache, beside padding and windows: small random models, against NumPy."""

import numpy as np
import pytest

from rc_jax import diagnostics
from tests.diagnostics import dense

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:`past_key_values`")]

B, N, FIRST = 3, 20, 8
NAMES = ("sparsity", "relative_entropy", "participation", "largest_weight")
SIZES = dict(
    hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    vocab_size=50, pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.3,
)  # fmt: skip


def model(kind="Llama", **settings):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **settings)
    return getattr(transformers, f"{kind}Model")._from_config(config, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def llama():
    return model()


IDS = torch.randint(3, 50, (B, N), generator=torch.Generator().manual_seed(1))


def padded(side, counts, n=N):
    real = np.ones((B, n), int)
    for row, count in enumerate(counts):
        real[row, slice(0, count) if side == "left" else slice(n - count, n)] = 0
    return real


def visible(real, queries, window=None):
    """(sample, query, key): of the last queries of these tokens, without those that are padding."""
    n = real.shape[1]
    distance = np.arange(n)[:, None] - np.arange(n)
    seen = (distance >= 0) & (distance < (window or n)) & (real[:, None] > 0) & (real[:, :, None] > 0)
    return seen[:, n - queries :]


def close(diagnosis, attentions, seen):
    """Means over the rows of each sample that see two keys, then over samples."""
    for layer, weights in enumerate(attentions):
        weights = weights.double().numpy()[..., : seen.shape[-1]]
        for head in range(weights.shape[1]):
            samples = []
            for p, open_pairs in zip(weights[:, head], seen, strict=True):
                rows = [row[inside] for row, inside in zip(p, open_pairs, strict=True) if inside.sum() > 1]
                if rows:
                    h = [-np.sum(a[a > 0] * np.log(a[a > 0])) / np.log(len(a)) for a in rows]
                    s = [a.mean() / np.sqrt(np.mean(a**2)) for a in rows]
                    samples.append([s, h, [1 / np.sum(a**2) for a in rows], [a.max() for a in rows]])
            expected = np.mean([np.mean(each, axis=1) for each in samples], axis=0)
            for name, value in zip(NAMES, expected, strict=True):
                np.testing.assert_allclose(diagnosis[name][layer, head], value, err_msg=name, **dense.CLOSE)


def cached(decoder, real, first=FIRST):
    mask = torch.tensor(real)
    with torch.no_grad():
        cache = decoder(IDS[:, :first], attention_mask=mask[:, :first], use_cache=True).past_key_values
        return decoder(IDS[:, first:], attention_mask=mask, past_key_values=cache, output_attentions=True)


@pytest.mark.parametrize("counts", [(0, 5, 9), (4, 4, 4), (0, 5, 14)])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_beside_cached_queries(llama, side, counts):
    """Padding does not move the diagonal, also where all samples have some, or one has no other query."""
    real = padded(side, counts)
    outputs = cached(llama, real)
    seen = visible(real, N - FIRST)
    for more in ({}, {"causal": True}, {"config": llama.config}, {"mask": seen[:, None]}, {"mask": "causal"}):
        diagnosis = diagnostics.from_transformers(outputs, attention_mask=real, **more)
        assert diagnosis.causal
        close(diagnosis, outputs.attentions, seen)
    close(diagnostics.from_transformers(outputs, mask=seen[:, None]), outputs.attentions, seen)
    forgotten = diagnostics.from_transformers(outputs)
    assert any("taken for padding" in note for note in forgotten.notes)
    if counts[-1] <= N - FIRST:  # else it has queries that nothing tells from those of a shorter text
        close(forgotten, outputs.attentions, seen)


def test_padded_steps_of_one_query_are_left_out(llama):
    real = padded("right", (0, 1, 0))
    outputs = cached(llama, real, N - 1)
    close(diagnostics.from_transformers(outputs, attention_mask=real), outputs.attentions, visible(real, 1))


@pytest.mark.parametrize("counts", [(0, 0, 0), (0, 3, 6), (2, 2, 2)])
@pytest.mark.parametrize("side", ["left", "right"])
def test_static_caches_beside_padding(llama, side, counts):
    """The numbers of the same call without a static cache, hidden states among them, and of NumPy."""
    real = padded(side, counts, 12)
    cache = transformers.StaticCache(config=llama.config, max_cache_len=32)
    both = {"output_attentions": True, "output_hidden_states": True}
    with torch.no_grad():
        static = llama(IDS[:, :12], attention_mask=torch.tensor(real), past_key_values=cache, **both)
        plain = llama(IDS[:, :12], attention_mask=torch.tensor(real), **both)
        step = llama(
            IDS[:, 12:13], attention_mask=torch.tensor(np.pad(real, ((0, 0), (0, 1)), constant_values=1)),
            past_key_values=cache, output_attentions=True,
        )  # fmt: skip
    assert static.attentions[0].shape[-1] == 32
    told, untold = diagnostics.from_transformers(plain, attention_mask=real), diagnostics.from_transformers(plain)
    masks = [real, *(np.pad(real, ((0, 0), (0, 20)), constant_values=value) for value in (0, 1))]
    for given in ({}, *({"attention_mask": mask} for mask in masks)):
        found = diagnostics.from_transformers(static, **given)
        assert "12 are filled" in found.notes[1]
        expected = told if given else untold
        if not any("too little to be sure" in note for note in expected.notes):  # as without a static cache
            close(found, static.attentions, visible(real, 12))
        for name in set(expected.measures) - {"entropy_scale", "scale_ratio"}:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-5, err_msg=name)
    with pytest.raises(ValueError, match="`attention_mask` must be 0 behind the 12 keys that are filled"):
        front = np.pad(padded("left", (0, 3, 6), 12), ((0, 0), (20, 0)), constant_values=1)
        diagnostics.from_transformers(static, attention_mask=front)
    after = np.pad(real, ((0, 0), (0, 1)), constant_values=1)
    close(diagnostics.from_transformers(step, attention_mask=after), step.attentions, visible(after, 1))


def test_masks_and_values_go_with_the_filled_places(llama):
    cache = transformers.StaticCache(config=llama.config, max_cache_len=32)
    with torch.no_grad():
        outputs = llama(IDS[:, :12], past_key_values=cache, output_attentions=True)
    values = np.random.default_rng(0).standard_normal((2, B, 1, 32, 4)).astype(np.float32)
    mask = np.tri(12, 32, dtype=bool)
    square = [layer[..., :12].numpy() for layer in outputs.attentions]
    expected = diagnostics.attention(square, values=list(values[..., :12, :]))
    for more in (
        {"values": values, "mask": mask},
        {"values": list(values), "mask": [mask, mask]},
        {"values": values, "mask": "causal"},
    ):
        found = diagnostics.from_transformers(outputs, **more)
        for name in expected.measures:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("counts", [(0, 0, 0), (0, 5, 9)])
def test_windows_of_a_config_beside_cached_queries(counts):
    mistral = model("Mistral", sliding_window=6)
    real = padded("left", counts)
    outputs = cached(mistral, real)
    keys = outputs.attentions[0].shape[-1]  # this cache keeps no more than a window
    seen = visible(real, N - FIRST, 6)[..., N - keys :]
    given = {} if not any(counts) else {"attention_mask": real}
    diagnosis = diagnostics.from_transformers(outputs, config=mistral.config, **given)
    close(diagnosis, outputs.attentions, seen)
    assert diagnosis.notes[-1] == f"The {N - FIRST} queries look at {keys} keys, as the last of them."
    gone = f"The caches of all layers keep {keys} keys, and {N - keys} tokens before them are gone:"
    assert [note[: len(gone)] for note in diagnosis.notes[:-1]] == [gone] * bool(given)  # the mask has them
    plain = diagnostics.from_transformers(outputs, attention_mask=real[:, N - keys :])
    assert "pass `mask` if padding or a window hides them" in plain.notes[-1]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("counts", [(0, 0, 0), (0, 5, 9)])
def test_hybrid_windows_beside_cached_queries(static, counts):
    """Layers of a window keep fewer keys than others; the weights are those of the whole text without a cache."""
    gemma = model("Gemma2", sliding_window=6, head_dim=16)
    mask = torch.tensor(real := padded("left", counts))
    kind = transformers.StaticCache if static else transformers.DynamicCache
    cache = kind(config=gemma.config, **({"max_cache_len": 32} if static else {}))
    with torch.no_grad():
        whole = gemma(IDS, attention_mask=mask, output_attentions=True, use_cache=False).attentions
        gemma(IDS[:, :FIRST], attention_mask=mask[:, :FIRST], past_key_values=cache)
        outputs = gemma(IDS[:, FIRST:], attention_mask=mask, past_key_values=cache, output_attentions=True)
    assert len({layer.shape[-1] for layer in outputs.attentions}) == 2
    found = diagnostics.from_transformers(outputs, attention_mask=real, config=gemma.config)
    for layer, window in enumerate((6, None)):
        one = {name: found[name][[layer]] for name in NAMES}
        close(one, [whole[layer][:, :, FIRST:]], visible(real, N - FIRST, window))


def test_keys_that_no_query_uses_are_told_beside_a_mask():
    weights = dense.softmax(np.random.default_rng(0).standard_normal((2, 2, 3, 9)))
    weights = np.pad(weights, ((0, 0), (0, 0), (0, 0), (0, 3))).astype(np.float32)
    told = diagnostics.attention([weights], mask=np.ones((3, 12), bool), causal=False)
    assert told.notes == (
        "The 3 queries look at 12 keys, those that a mask leaves.",
        "6 keys that may be seen have weight exactly 0 of every query. They count as seen.",
    )


def test_texts_of_cached_queries():
    """Each query sees its own text; queries that are not the last of the keys have none."""
    texts = np.repeat([[1, 2]], [7, 5], axis=1)
    seen = (texts[0][:, None] == texts[0]) & np.tri(12, dtype=bool)
    logits = np.random.default_rng(0).standard_normal((1, 2, 12, 12))
    weights = dense.softmax(np.where(seen, logits, -np.inf)).astype(np.float32)[..., 4:, :]
    given = diagnostics.from_transformers({"attentions": [weights]}, attention_mask=texts)
    parts = [
        diagnostics.attention([weights[..., :3, :7]], causal=True),
        diagnostics.attention([weights[..., 3:, 7:]]),
    ]
    assert given.samples == 2
    for name in (*NAMES, "sink_weight", "self_weight"):
        np.testing.assert_allclose(given[name], np.mean([each[name] for each in parts], axis=0), rtol=1e-4)
    crossed = dense.softmax(logits[..., 4:, :]).astype(np.float32)
    with pytest.raises(ValueError, match="one text where queries are not the last"):
        diagnostics.attention([crossed], segment_ids=texts)


def test_padded_queries_of_cross_attention():
    torch.manual_seed(0)
    config = transformers.T5Config(d_model=32, d_kv=16, d_ff=32, num_layers=2, num_heads=2, vocab_size=50)
    t5 = transformers.T5Model._from_config(config, attn_implementation="eager").eval()
    real, decoder = padded("right", (0, 5, 9)), padded("right", (0, 3, 0), 9)
    with torch.no_grad():
        outputs = t5(
            input_ids=IDS, attention_mask=torch.tensor(real), decoder_input_ids=IDS[:, :9],
            decoder_attention_mask=torch.tensor(decoder), output_attentions=True,
        )  # fmt: skip
    seen = (decoder[:, :, None] > 0) & (real[:, None] > 0)
    give = dict(part="cross", attention_mask=real)
    for more in ({"decoder_attention_mask": decoder}, {"mask": seen[:, None]}):
        close(diagnostics.from_transformers(outputs, **give, **more), outputs.cross_attentions, seen)
    listed = diagnostics.from_transformers(
        outputs, **give, decoder_attention_mask=decoder, mask=[np.ones((9, N), bool)] * 2
    )
    close(listed, outputs.cross_attentions, seen)
    every = diagnostics.from_transformers(outputs, **give)
    close(every, outputs.cross_attentions, np.broadcast_to(real[:, None] > 0, seen.shape))
    assert every.notes == ("The 9 queries look at 20 keys, padding apart.",)
    with pytest.raises(ValueError, match='`decoder_attention_mask` must be None unless part="cross"'):
        diagnostics.from_transformers(outputs, part="decoder", decoder_attention_mask=decoder)
    with pytest.raises(ValueError, match=r"`decoder_attention_mask` must have the shape \(3, 9\)"):
        diagnostics.from_transformers(outputs, part="cross", decoder_attention_mask=real)
    with pytest.raises(ValueError, match="`mask` must be an array beside `decoder_attention_mask`"):
        diagnostics.from_transformers(outputs, part="cross", decoder_attention_mask=decoder, mask="none")


def test_the_note_on_several_texts_names_padding():
    torch.manual_seed(0)
    config = transformers.GPTNeoConfig(
        hidden_size=32, num_layers=2, num_heads=2, vocab_size=50, window_size=6,
        attention_types=[[["global", "local"], 1]], bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    neo = transformers.GPTNeoModel._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        outputs = neo(IDS, attention_mask=torch.tensor(padded("left", (0, 5, 9))), output_attentions=True)
    notes = " ".join(diagnostics.from_transformers(outputs).notes)
    assert "taken for a text of its own. Pass `attention_mask` if one of them is padding" in notes
