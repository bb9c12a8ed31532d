"""Padded queries of cross-attention, and keys that a window hides from all: drawn weights, against NumPy."""

import numpy as np
import pytest

from rc_jax import diagnostics
from tests.diagnostics import dense
from tests.diagnostics.seen.test_filled_places import Window, causal, close, drawn

ENCODER = np.array([[1] * 11, [1] * 8 + [0] * 3, [0] * 3 + [1] * 8])
DECODER = np.array([[1] * 7, [1] * 5 + [0] * 2, [0] * 2 + [1] * 5])


def cross(decoder):
    """Weights (sample, head, query, key) for each layer, and which pairs count."""
    pairs = np.broadcast_to(ENCODER[:, None] > 0, (3, decoder.shape[1], 11))
    return drawn(pairs), pairs & (decoder[:, :, None] > 0)


@pytest.mark.parametrize("given", [{}, {"attention_mask": ENCODER}, {"mask": np.ones((7, 11), bool)}])
@pytest.mark.parametrize("ends", [0, 1])
def test_a_mask_of_the_decoder_says_nothing_of_the_encoder(given, ends):
    """Padding of the encoder is found beside it, also where a query is padding in all samples."""
    decoder = DECODER.copy()
    decoder[:, 7 - ends :] = 0
    weights, seen = cross(decoder)
    found = diagnostics.from_transformers(
        {"cross_attentions": weights}, part="cross", decoder_attention_mask=decoder, **given
    )
    assert not found.causal and not any("pairs of query and key" in note for note in found.notes)
    assert any("taken for padding" in note for note in found.notes) == (not given)
    if "mask" in given:  # a mask that hides nothing says that padding counts
        seen = np.broadcast_to(decoder[:, :, None] > 0, seen.shape)
    close(found, weights, seen, 11)


@pytest.mark.parametrize("decoder", [np.ones((3, 1), int), np.eye(3, 4, dtype=int), np.eye(3, 4, 1, dtype=int)])
def test_a_decoder_may_have_one_query(decoder):
    weights, seen = cross(decoder)
    for more in ({}, {"attention_mask": ENCODER}):
        outputs = {"cross_attentions": [*weights, *weights]}
        found = diagnostics.from_transformers(outputs, part="cross", decoder_attention_mask=decoder, **more)
        close(found, [*weights, *weights], seen, 11)
    with pytest.raises(ValueError, match="`decoder_attention_mask` must leave at least one token in some text"):
        diagnostics.from_transformers(outputs, part="cross", decoder_attention_mask=0 * decoder)


@pytest.mark.parametrize("queries", [1, 2, 6])
def test_a_window_of_a_config_and_a_mask_say_the_same(queries):
    """Keys beyond it are in no text: the first key of the text is the first that a query sees."""
    seen = causal(22, queries, 22, 4)
    weights = drawn(seen, layers=4, sample_axis=False)
    told = {"causal": True, "attention_mask": np.ones((1, 22), int)}
    found = diagnostics.from_transformers({"attentions": weights}, config=Window(), **told)
    masked = diagnostics.from_transformers({"attentions": weights}, mask=seen, **told)
    close(found, weights, seen[None], 22)
    hidden = f"Windows hide {22 - 3 - queries} keys from every query: measures of the first key are those of the first"
    assert found.notes[:-1] == masked.notes and found.notes[-1].startswith(hidden)
    assert np.isfinite(found["sink_weight"]).all()
    assert set(found.measures) == set(masked.measures)
    for name in found.measures:
        np.testing.assert_array_equal(found[name], masked[name], err_msg=name)
    for name in found.by_text:
        np.testing.assert_array_equal(found.by_text[name], masked.by_text[name], err_msg=name)


def test_padding_is_found_beside_windows_of_a_config():
    real = np.arange(22) >= np.array([0, 19])[:, None]
    seen = causal(22, 6, 22, 4) & real[:, None] & real[:, 16:, None]
    weights = drawn(seen, layers=4)
    found = diagnostics.from_transformers({"attentions": weights}, config=Window())
    assert any("6 of sample 1: these tokens are taken for padding" in note for note in found.notes)
    close(found, weights, seen, 22)


def test_numbers_of_texts_of_cross_attention_are_refused_by_their_names():
    weights = dense.softmax(np.random.default_rng(0).standard_normal((1, 2, 3, 6))).astype(np.float32)
    with pytest.raises(ValueError, match=r"or the numbers of an `attention_mask`, must be those of one text .* got 2"):
        diagnostics.from_transformers(
            {"cross_attentions": [weights]}, part="cross", attention_mask=np.array([[1, 1, 1, 2, 2, 2]])
        )


class Hybrid:
    layer_types = ("sliding_attention", "full_attention") * 2
    sliding_window = 4


def on_kept_keys(filled, queries, places, real):
    """Weights of layers of a window, and of all keys, in turn; and which pairs count in each."""
    open_keys = np.pad(real, ((0, 0), (0, places - filled)))[:, None].astype(bool)
    kept = min(filled, 3 + queries)
    weights, seen = [], []
    for window in (4, None):
        pairs = causal(filled, queries, places, window) & open_keys
        of_kind = drawn(pairs)
        weights.append([of_kind[0][..., filled - kept : filled] if window else of_kind[0], of_kind[0]])
        seen.append(pairs & open_keys[:, 0, filled - queries : filled, None])
    return [weights[0][0], weights[1][0]] * 2, [weights[0][1], weights[1][1]] * 2, seen * 2


@pytest.mark.parametrize("places", [16, 24])
@pytest.mark.parametrize("padded", [(0, 0), (0, 5)])
@pytest.mark.parametrize("queries", [1, 6, 16])
def test_windows_beside_layers_that_keep_all_keys(places, padded, queries):
    """Gemma 2 with a cache: layers look at 9 keys and at 16, or at the 24 places of a static cache."""
    real = (np.arange(16) >= np.array(padded)[:, None]).astype(int)
    given, whole, seen = on_kept_keys(16, queries, places, real)
    for mask in (real, np.pad(real, ((0, 0), (0, places - 16)))):
        found = diagnostics.from_transformers({"attentions": given}, attention_mask=mask, config=Hybrid())
        assert found.causal or queries == 1
        for layer in range(4):
            one = dense_layer(found, layer)
            close(one, [whole[layer]], seen[layer], 16)
        hidden = queries < 16
        assert any("measures of the first key are NaN" in note for note in found.notes) == (hidden or places > 16)
        assert np.isnan(found["sink_weight"][[0, 2]]).all() == hidden and np.isfinite(found["sink_weight"][1]).all()


def dense_layer(diagnosis, layer):
    """The measures of one layer, without those of a first key that nobody sees."""

    class One(dict):
        measures = property(lambda self: self)

    return One({name: diagnosis[name][[layer]] for name in diagnosis.measures if name != "sink_weight"})


def test_layers_of_other_numbers_of_keys_are_refused_by_what_is_missing():
    given, _, _ = on_kept_keys(16, 6, 16, np.ones((1, 16), int))
    outputs = {"attentions": given}
    with pytest.raises(ValueError, match=r"`outputs` must have weights of one shape.*pass config=model.config"):
        diagnostics.from_transformers(outputs)
    with pytest.raises(ValueError, match=r"weights of one shape in all layers, got (?!.*pass config)"):
        diagnostics.from_transformers(outputs, config=object())
    other = type("Other", (Hybrid,), {"sliding_window": 5})
    with pytest.raises(
        ValueError, match=r"in layers of a window of 5, weights on the last 5 − 1 \+ 6 of 16 keys, got 9"
    ):
        diagnostics.from_transformers(outputs, config=other())
    with pytest.raises(ValueError, match=r"`mask` must be one array where layers look at different numbers of keys"):
        diagnostics.from_transformers(outputs, config=Hybrid(), mask=[np.ones((6, 16), bool)] * 4)
