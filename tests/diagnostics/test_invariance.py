"""What a text's measures must not depend on: its place in a batch, in a row and among heads."""

import numpy as np
import pytest

from rc_jax import diagnostics
from tests.diagnostics import dense

HEADS, LAYERS, WIDTH = 3, 2, 4
LENGTHS = (21, 30, 26)
OF_ALL = ("strongest_key", "strongest_share")  # of which key is so in most texts; `by_text` has each
VISIBLE = {
    "causal": lambda n: np.tri(n, dtype=bool),
    "all": lambda n: np.ones((n, n), bool),
    "window": lambda n: np.tri(n, dtype=bool) & ~np.tri(n, k=-6, dtype=bool),
}


def text(seed, n, kind):
    """Weights of each layer (head, n, n), and values (head, n, width)."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.standard_normal((LAYERS, HEADS, n, n)) + 2.0 * rng.standard_normal((LAYERS, HEADS, 1, n))
    weights = dense.softmax(np.where(VISIBLE[kind](n), logits, -np.inf)).astype(np.float32)
    return weights, rng.standard_normal((LAYERS, HEADS, n, WIDTH)).astype(np.float32)


def in_rows(rows, size, empty):
    """Texts (start, text) set into rows of one size; queries between them are even over all keys, 0 or NaN."""
    weights = np.full((LAYERS, len(rows), HEADS, size, size), {"even": 1 / size, "zero": 0, "nan": np.nan}[empty], "f4")
    values = np.full((LAYERS, len(rows), HEADS, size, WIDTH), 7.0, np.float32)
    ids = np.full((len(rows), size), -1)
    for row, texts in enumerate(rows):
        for number, (start, (w, v)) in enumerate(texts):
            inside = slice(start, start + w.shape[-1])
            weights[:, row, :, inside] = 0
            weights[:, row, :, inside, inside], values[:, row, :, inside] = w, v
            ids[row, inside] = number + 1
    return list(weights), list(values), ids


def measured(rows, size, *, empty="even", ids=None, kind="all", **more):
    """The diagnosis of rows of texts, with nothing said, with the texts' numbers or with the whole mask."""
    weights, values, own = in_rows(rows, size, empty)
    if ids == "given":
        more |= {"segment_ids": own}
    elif ids == "mask":
        same = (own[:, :, None] == own[:, None]) & (own >= 0)[:, :, None] & VISIBLE[kind](size)
        more |= {"mask": same[:, None]}
    return diagnostics.attention(weights, values=values, **more)


def alone(texts):
    """The mean of each text by itself."""
    each = [measured([[(0, one)]], one[0].shape[-1]) for one in texts]
    return {name: np.mean([one[name] for one in each], 0) for name in each[0].measures if name not in OF_ALL}


def same_sinks(diagnosis, texts):
    """Which key is the strongest in each text, and how strong it is."""
    found = [measured([[(0, one)]], one[0].shape[-1]).by_text for one in texts]
    for name in ("strongest_key", "strongest_weight", "sink_weight"):
        expected = np.concatenate([each[name] for each in found])
        np.testing.assert_allclose(diagnosis.by_text[name], expected, rtol=1e-4, err_msg=name)
    assert diagnosis.by_text["tokens"].tolist() == [one[0].shape[-1] for one in texts]


def close(diagnosis, expected):
    assert set(expected) <= set(diagnosis.measures)
    wrong = {
        name: float(np.abs(diagnosis[name] - value).max())
        for name, value in expected.items()
        if not np.allclose(diagnosis[name], value, rtol=2e-4, atol=2e-5)
    }
    assert not wrong, wrong


@pytest.fixture(params=VISIBLE)
def kind(request):
    return request.param


@pytest.fixture
def texts(kind):
    return [text(seed, n, kind) for seed, n in enumerate(LENGTHS)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_order_of_samples(kind, order):
    """Two texts of one length."""
    same = [text(seed, 24, kind) for seed in (4, 5)]
    close(measured([[(0, same[index])] for index in order], 24), alone(same))


def test_the_order_of_heads(texts):
    w, v = texts[0]
    given, permuted = (diagnostics.attention([*w[:, order]], values=[*v[:, order]]) for order in ([0, 1, 2], [2, 0, 1]))
    for name in given.measures:
        np.testing.assert_allclose(permuted[name], given[name][:, [2, 0, 1]], rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("empty", ["even", "zero", "nan"])
@pytest.mark.parametrize("ids", [None, "given", "mask"])
@pytest.mark.parametrize("left", [0, 14, 5], ids=["right", "left", "both ends"])
def test_padding(texts, kind, left, ids, empty):
    if empty == "nan" and ids is None:
        pytest.skip("NaN needs a statement")
    size = LENGTHS[0] + 14
    close(measured([[(left, texts[0])]], size, ids=ids, empty=empty, kind=kind), alone(texts[:1]))


@pytest.mark.parametrize("ids", [None, "given", "mask"])
@pytest.mark.parametrize("gap", [0, 5])
def test_packing(texts, kind, gap, ids):
    """Two texts in one row, the third in a row of its own, with padding between and behind."""
    size = LENGTHS[0] + gap + LENGTHS[1]
    rows = [[(0, texts[0]), (LENGTHS[0] + gap, texts[1])], [(0, texts[2])]]
    diagnosis = measured(rows, size, ids=ids, kind=kind)
    close(diagnosis, alone(texts))
    same_sinks(diagnosis, texts)
    assert diagnosis.samples == 3
    assert diagnosis.by_text["sample"].tolist() == [0, 0, 1]
    assert diagnosis.by_text["start"].tolist() == [0, LENGTHS[0] + gap, 0]


def test_splitting_a_batch(texts):
    size = max(LENGTHS)
    whole = measured([[(0, one)] for one in texts], size)
    parts = [measured([[(0, one)] for one in texts[part]], size) for part in (slice(0, 1), slice(1, 3))]
    close(
        whole,
        {name: (parts[0][name] + 2 * parts[1][name]) / 3 for name in parts[0].measures if name not in OF_ALL},
    )


def test_masks_that_are_added_and_axes_by_name():
    """An added mask is read as booleans; weights averaged over heads are named as such."""
    seen = np.stack([np.tri(20, dtype=bool), np.tri(20, dtype=bool) & (np.arange(20) < 12)])
    weights = dense.softmax(np.where(seen, np.random.default_rng(0).standard_normal((2, 20, 20)), -1e30)).astype("f4")
    axes = ("sample", "query", "key")
    expected = diagnostics.attention([weights[:, None]], mask=seen[:, None])
    for low in (-1e4, np.finfo(np.float32).min, -np.inf):
        added = np.where(seen, 0, low).astype(np.float32)[:, None]
        found = diagnostics.attention(weights, mask=added, axes=axes)
        assert found.samples == 2 and found.heads == 1
        for name in expected.measures:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    with pytest.raises(ValueError, match=r'Of samples, averaged over heads, pass axes=\("sample", "query", "key"\)'):
        diagnostics.attention(weights)
    groups = np.full((2, 2, 3, 6, 6), 1 / 6, np.float32)
    with pytest.raises(ValueError, match=r'axes=\("sample", "group", "head", "query", "key"\)'):
        diagnostics.attention([groups])
    both = (
        r'several things: 2 samples with 2 groups of 3 heads, axes=\("sample", "group", "head", "query", "key"\); '
        r'or 2 layers of 2 samples with 3 heads, axes=\("layer", "sample", "head", "query", "key"\)'
    )
    with pytest.raises(ValueError, match=both):
        diagnostics.attention(groups)
    with pytest.raises(ValueError, match=r'got \(1, 2, 2, 3, 6, 6\).*name them, as by axes=\("layer", …, "query"'):
        diagnostics.attention(groups[None])
    rows = dense.softmax(np.random.default_rng(1).standard_normal((2, 24, 4, 24))).astype(np.float32)  # tokens first
    with pytest.raises(ValueError, match=r"24 heads of 4 queries and 24 keys, or 24 queries of 4 heads on 24 keys"):
        diagnostics.attention([rows])
    moved = diagnostics.attention([rows], axes=("sample", "query", "head", "key"))
    assert (moved.samples, moved.heads, moved.queries) == (2, 4, None)
    as_named = diagnostics.attention([rows], axes=("sample", "head", "query", "key"))
    assert (as_named.heads, as_named.queries) == (24, 4)
    chunks = np.full((2, 3, 4, 6, 12), 1 / 12, np.float32)  # as Reformer's
    with pytest.raises(ValueError, match="or 2 samples of 3 heads with 4 chunks of a text, as of Reformer"):
        diagnostics.attention([chunks])
    layered = diagnostics.attention(groups, axes=("layer", "sample", "head", "query", "key"))
    assert (layered.samples, layered.heads, layered.layers) == (2, 3, 2)
    read = diagnostics.attention([groups], axes=("sample", "group", "head", "query", "key"))
    assert (read.samples, read.heads, read.layers) == (2, 6, 1)
    with pytest.raises(ValueError, match="must number texts from 1, got 0, which is a text for some"):
        diagnostics.attention([groups[:, 0]], segment_ids=np.zeros((2, 6), int))
    with pytest.raises(TypeError, match="of 1 for seen and 0 for hidden pass `mask != 0`"):
        diagnostics.attention([groups[:, 0]], mask=np.tri(6, dtype=np.float32))
