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
    assert found.notes == masked.notes and np.isfinite(found["sink_weight"]).all()
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
