"""What is stated of a cache decides how many of its places are filled: drawn weights, against NumPy."""

import numpy as np
import pytest

from rc_jax import diagnostics
from tests.diagnostics import dense

NAMES = ("sparsity", "entropy", "participation", "self_weight", "sink_weight")


def drawn(seen, layers=2, dtype=np.float32, bump=0.0, sample_axis=True):
    """(sample, head, query, key) for each layer; a query that sees nothing is even over all keys, as in transformers.

    bump: what is added to the logit of the first key, so that weights on others are small.
    """
    seen = seen if sample_axis else seen[None]
    scores = np.random.default_rng(0).standard_normal((layers, len(seen), 2, *seen.shape[1:]))
    scores[..., 0] += bump
    return [dense.softmax(np.where(seen[:, None], each, -1e30)).astype(dtype) for each in scores]


def causal(filled, queries, keys, window=None):
    distance = np.arange(filled - queries, filled)[:, None] - np.arange(keys)
    return (distance >= 0) & (distance < (window or keys))


def close(diagnosis, weights, seen, filled):
    """Means over the rows of each sample that see two keys, then over samples; sinks over all rows that see the key."""
    own = np.arange(seen.shape[1]) + filled - seen.shape[1]
    for layer, of_layer in enumerate(weights):
        samples = []
        for p, inside in zip(of_layer.astype(float), seen, strict=True):
            n, first = inside.sum(-1), int(inside.any(0).argmax())
            rows = np.flatnonzero(n > 1)
            if not len(rows):
                continue
            a, n = np.where(inside, p, 0)[:, rows], n[rows]
            samples.append(
                [
                    (a.sum(-1) / np.sqrt(n * (a**2).sum(-1))).mean(-1),
                    -(a * np.log(np.where(a > 0, a, 1))).sum(-1).mean(-1),
                    (a.sum(-1) ** 2 / (a**2).sum(-1)).mean(-1),
                    a[:, np.arange(len(rows)), own[rows]].mean(-1),
                    p[:, inside[:, first], first].mean(-1),
                ]
            )
        for name, value in zip(NAMES, np.mean(samples, 0), strict=True):
            if name in diagnosis.measures:
                np.testing.assert_allclose(diagnosis[name][layer], value, rtol=1e-3, err_msg=name)


def masks(real, places):
    """A mask as long as the filled places, and one with zeros for the others."""
    return real, np.pad(real, ((0, 0), (0, places - real.shape[1])))


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize(
    "filled, places, more", [(5, 6, {}), (13, 14, {}), (500, 548, {"dtype": np.float16, "bump": 11.0, "layers": 6})]
)
def test_an_attention_mask_says_where_a_cache_ends(filled, places, more, queries):
    """Also where zeros leave a doubt: in few layers, and where weights are small beside the least number."""
    seen = np.broadcast_to(causal(filled, queries, places), (2, queries, places))
    weights = drawn(seen, **more)
    for mask in masks(np.ones((2, filled), int), places):
        for said in ({}, {"causal": True}):
            found = diagnostics.from_transformers({"attentions": weights}, attention_mask=mask, **said)
            assert found.tokens == filled and found.notes[:2] == (
                f"The cache has {places} places.",
                f"Keys behind the last one that may be seen are empty places of a cache: {filled} are filled.",
            )
            assert ("self_weight" in found.measures) == (queries > 1 or bool(said))
            close(found, weights, seen, filled)
    doubt = diagnostics.from_transformers({"attentions": weights})
    if doubt.tokens == places and queries > 1:
        assert "an `attention_mask` that is 0 there if the last keys are empty places" in doubt.notes[1]


@pytest.mark.parametrize("given", ["mask", "both", "narrow", "additive"])
def test_a_mask_says_where_a_cache_ends(given):
    """Pairs that it hides are no zeros inside, so that they leave no doubt where the cache ends."""
    seen = causal(20, 4, 21, window=4)
    weights = drawn(seen, sample_axis=False)
    mask = np.where(seen, 0.0, -1e9).astype(np.float32) if given == "additive" else seen
    more = {"attention_mask": np.ones((1, 20), int)} if given == "both" else {}
    found = diagnostics.from_transformers(
        {"attentions": weights}, mask=mask[:, :20] if given == "narrow" else mask, **more
    )
    assert found.causal and found.tokens == 20
    close(found, weights, seen[None], 20)
    direct = diagnostics.attention(weights, mask=seen)
    close(direct, weights, seen[None], 20)


@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("counts", [(0, 3, 6), (1, 3, 2), (0, 0, 5)])
def test_a_padded_query_that_sees_nothing_moves_nobody(counts, window):
    """Its row is even over all places, those that are empty among them."""
    real = np.ones((3, 20), int)
    for row, count in zip(real, counts, strict=True):
        row[20 - count :] = 0
    pairs = causal(20, 8, 22, window)
    open_keys = pairs & np.pad(real, ((0, 0), (0, 2)))[:, None].astype(bool)
    weights = drawn(open_keys)
    assert (weights[0][1, 0, -1] == np.float32(1 / 22)).all() or counts[1] < window
    seen = open_keys & (real[:, 12:] > 0)[:, :, None]
    for mask in masks(real, 22):
        for said in ({}, {"causal": True}):
            found = diagnostics.from_transformers({"attentions": weights}, attention_mask=mask, mask=pairs, **said)
            assert found.causal and found.tokens == 20
            close(found, weights, seen, 20)


def test_numbers_of_texts_go_with_the_filled_places():
    seen = np.broadcast_to(causal(24, 8, 32), (1, 8, 32))
    weights = drawn(seen, layers=4)
    for ids in (np.ones((1, 32), int), np.where(np.arange(32) < 24, 1, -1)[None], np.ones((1, 24), int)):
        found = diagnostics.from_transformers({"attentions": weights}, segment_ids=ids)
        assert found.tokens == 24
        close(found, weights, seen, 24)
    with pytest.raises(ValueError, match="`segment_ids` must be negative behind the 24 keys that are filled"):
        diagnostics.from_transformers({"attentions": weights}, segment_ids=np.where(np.arange(32) < 28, 1, -1)[None])


def test_a_mask_that_is_too_short_is_refused():
    seen = np.broadcast_to(causal(20, 4, 20), (1, 4, 20))
    weights = drawn(seen)
    with pytest.raises(ValueError, match=r"`attention_mask` must have the shape \(1, 20\)"):
        diagnostics.from_transformers({"attentions": weights}, attention_mask=np.ones((1, 18), int))


class Window:
    sliding_window = 4


class NoWindow:
    layer_types = ("full_attention",) * 4


@pytest.mark.parametrize("tokens, padded", [(16, (0, 0)), (16, (0, 2)), (16, (2, 3)), (30, (0, 5))])
def test_an_attention_mask_that_is_longer_than_the_cache_of_a_window(tokens, padded):
    """Such a cache keeps the last 4 − 1 + 6 keys; zeros for empty places may follow, and padding stands before them."""
    queries, keys = 6, 9
    real = np.ones((2, tokens), int)
    for row, count in zip(real, padded, strict=True):
        row[tokens - count :] = 0
    pairs = causal(tokens, queries, tokens, 4) & (real[:, None] > 0)
    weights = [layer[..., -keys:] for layer in drawn(pairs, layers=4)]
    seen = (pairs & (real[:, -queries:] > 0)[:, :, None])[..., -keys:]
    for behind in (0, 1, 2, 8, 40):
        mask = np.pad(real, ((0, 0), (0, behind)))
        found = diagnostics.from_transformers({"attentions": weights}, attention_mask=mask, config=Window())
        close(found, weights, seen, keys)
    for config in (None, NoWindow()):
        with pytest.raises(ValueError, match=r"`attention_mask` must have a number for each of 9 keys, got"):
            diagnostics.from_transformers({"attentions": weights}, attention_mask=real, config=config)


@pytest.mark.parametrize("config", [None, NoWindow(), Window()])
def test_a_longer_mask_of_keys_that_no_window_keeps_is_refused(config):
    pairs = causal(16, 6, 16)
    pairs[:, :3] = False
    weights = drawn(pairs, layers=4, sample_axis=False)
    mask = (np.arange(18) >= 3).astype(int)[None]
    with pytest.raises(ValueError, match=r"`attention_mask` must have a number for each of 16 keys.*got int64\[1,18\]"):
        diagnostics.from_transformers({"attentions": weights}, attention_mask=mask, config=config)
