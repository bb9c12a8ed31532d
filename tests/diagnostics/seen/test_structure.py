"""What queries may see, found in the weights, against NumPy with the mask that made them."""

import types

import numpy as np
import pytest

from rc_jax import diagnostics
from tests.diagnostics import dense

N = 24
INDEX = np.arange(N)
DISTANCE = INDEX[:, None] - INDEX[None]
DOCUMENT = np.searchsorted([7, 15], INDEX, side="right")
MASKS = {
    "window": (DISTANCE >= 0) & (DISTANCE < 5),
    "window to both sides": np.abs(DISTANCE) <= 3,
    "chunks": (DISTANCE >= 0) & (INDEX[:, None] // 6 == INDEX[None] // 6),
    "documents": (DISTANCE >= 0) & (DOCUMENT[:, None] == DOCUMENT[None]),
    "documents to both sides": DOCUMENT[:, None] == DOCUMENT[None],
    "prefix": (DISTANCE >= 0) | (INDEX[None] < 6),
}
COMPARED = ("sparsity", "relative_entropy", "participation", "largest_weight", "sink_weight", "self_weight")


def drawn(seed, seen, alpha, heads=3):
    """Softmax of Gaussian logits of deviation α over what may be seen; rows that may see nothing are even."""
    logits = alpha * np.random.default_rng(seed).standard_normal((heads, *seen.shape[-2:]))
    weights = dense.softmax(np.where(seen, logits, -1e9))
    return np.where(seen.any(-1)[:, None], weights, 1 / seen.shape[-1]).astype(np.float32)


CUTS = {"chunks": [6, 12, 18], "documents": [7, 15], "documents to both sides": [7, 15]}


def check(diagnosis, weights, seen, layer=0, cuts=()):
    """The mean over the texts that end at the cuts."""
    parts = [slice(*ends) for ends in zip((0, *cuts), (*cuts, N), strict=True)]
    for head in range(len(weights)):
        expected = [dense.head(weights[head, part, part].astype(float), seen[part, part]) for part in parts]
        for name in COMPARED:
            value = np.mean([each[name] for each in expected])
            np.testing.assert_allclose(diagnosis[name][layer, head], value, err_msg=name, **dense.CLOSE)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 8.0])
@pytest.mark.parametrize("name", MASKS)
def test_zeros_of_a_mask_are_hidden_keys(name, alpha):
    weights = drawn(0, MASKS[name], alpha)
    found, given = diagnostics.attention(weights), diagnostics.attention(weights, mask=MASKS[name])
    check(found, weights, MASKS[name], cuts=CUTS.get(name, ()))
    for measure in given.measures:
        np.testing.assert_array_equal(found[measure], given[measure], err_msg=measure)
    reading = "each is taken for a text of its own" if name in CUTS else "all other weights are exactly 0 in every head"
    assert reading in found.notes[0] and not given.notes
    if alpha == 0:
        np.testing.assert_allclose(found["relative_entropy"], 1, atol=1e-6)


def test_each_layer_has_its_own_window():
    window, full = MASKS["window"], np.tri(N, dtype=bool)
    weights = [drawn(layer, seen, 2.0) for layer, seen in enumerate((full, window, full, window))]
    diagnosis = diagnostics.attention(weights)
    for layer, seen in enumerate((full, window, full, window)):
        check(diagnosis, weights[layer], seen, layer)
    assert diagnosis.notes[0].startswith("Layers 1, 3: read as a window, 5 keys")


def test_a_word_says_that_zeros_are_weights():
    weights = drawn(0, MASKS["window"], 1.0)
    counted = diagnostics.attention(weights, mask="causal")
    check(counted, weights, np.tri(N, dtype=bool))
    assert not counted.notes and counted["relative_entropy"].max() < 0.7


ROWS = {
    "one key for all": lambda rng: np.eye(N)[np.full((3, N), 4)],
    "scattered": lambda rng: dense.softmax(300 * rng.standard_normal((3, N, N))),
    "the token itself": lambda rng: np.broadcast_to(np.eye(N), (3, N, N)),
    "the token before": lambda rng: np.broadcast_to(np.eye(N)[np.maximum(INDEX - 1, 0)], (3, N, N)),
    "falls with the distance": lambda rng: dense.softmax(-30.0 * np.abs(DISTANCE) + rng.standard_normal((3, N, N))),
    "falls with its square": lambda rng: dense.softmax(-4.0 * DISTANCE**2 + rng.standard_normal((3, N, N))),
    "sparsemax": lambda rng: np.where((p := rng.random((3, N, N))) > 0.7, p, 0) + 1e-3 * np.eye(N),
}


@pytest.mark.parametrize("name", ROWS)
def test_zeros_of_sharp_rows_are_weights(name):
    """Exponentials that underflow: the zeros count, and a note says that they may be taken for a mask."""
    weights = ROWS[name](np.random.default_rng(0))
    weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    diagnosis = diagnostics.attention(weights)
    check(diagnosis, weights, np.tri(N, dtype=bool) if diagnosis.causal else np.ones((N, N), bool))
    assert all("They count as seen: pass `mask` if one hides them." in note for note in diagnosis.notes)


def test_random_sharp_rows_are_hardly_ever_a_mask():
    """Of 240 layers of logits with deviations from 10 to 10 000 none is read as masked or padded."""
    rng = np.random.default_rng(1)
    for alpha in (10.0, 100.0, 1e4):
        for heads in (1, 4):
            for causal in (False, True):
                logits = alpha * rng.standard_normal((20, heads, N, N))
                weights = dense.softmax(np.where(DISTANCE >= 0, logits, -np.inf) if causal else logits)
                diagnosis = diagnostics.attention(list(weights.astype(np.float32)))
                assert diagnosis.causal is causal and not any("read as" in note for note in diagnosis.notes)
                assert not any("padding" in note for note in diagnosis.notes)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["causal", "none", "window", "window to both sides"])
def test_padding_is_found_where_no_query_has_weight_on_it(name, side):
    """Two samples, the second with six tokens of padding: means over both samples without it."""
    seen = {"causal": np.tri(N, dtype=bool), "none": np.ones((N, N), bool)}.get(name, MASKS.get(name))
    real = INDEX >= 6 if side == "left" else INDEX < N - 6
    weights = np.stack([drawn(2, seen, 1.0), drawn(3, seen & real, 1.0)])
    diagnosis = diagnostics.attention([weights])
    assert diagnosis.causal is (name in ("causal", "window"))
    assert "on 6 of sample 1: these tokens are taken for padding and left out" in diagnosis.notes[0]
    short = weights[1][:, real][:, :, real]
    for head in range(3):
        both = [dense.head(weights[0, head].astype(float), seen)]
        both.append(dense.head(short[head].astype(float), seen[:-6, :-6]))
        for measure in COMPARED:
            expected = np.mean([each[measure] for each in both])
            np.testing.assert_allclose(diagnosis[measure][0, head], expected, err_msg=measure, **dense.CLOSE)


def test_even_rows_are_no_padding():
    """The last row of an even causal head is even over all keys, as is every row of an even head without a mask."""
    for seen in (np.tri(N), np.ones((N, N))):
        diagnosis = diagnostics.attention((seen / seen.sum(-1, keepdims=True))[None].astype(np.float32))
        assert not diagnosis.notes
        np.testing.assert_allclose(diagnosis["relative_entropy"], 1, atol=1e-6)


def test_rows_below_one_keep_what_has_a_meaning():
    """Softmax with a sink that is no key, as in gpt-oss: rows over their sum, and the sink's own share."""
    scores = np.random.default_rng(4).standard_normal((2, N, N))
    sink = np.array([0.5, 2.0])[:, None, None]
    e = np.exp(scores) * np.tri(N)
    weights = e / (e.sum(-1, keepdims=True) + np.exp(sink))
    diagnosis = diagnostics.attention(weights.astype(np.float32), normalised=False)
    relative = weights / weights.sum(-1, keepdims=True)
    for head in range(2):
        expected = dense.head(relative[head], np.tri(N, dtype=bool))
        for name in ("sparsity", "entropy", "relative_entropy", "participation"):
            np.testing.assert_allclose(diagnosis[name][0, head], expected[name], **dense.CLOSE)
        expected = dense.head(weights[head], np.tri(N, dtype=bool))
        for name in ("largest_weight", "sink_weight", "self_weight", "strongest_weight"):
            np.testing.assert_allclose(diagnosis[name][0, head], expected[name], **dense.CLOSE)
    shares = 1 - weights.sum(-1)[:, 1:].mean(-1)
    np.testing.assert_allclose(diagnosis["no_key_weight"][0], shares, **dense.CLOSE)
    zero = np.tril(np.ones((1, 8, 8)) / (np.arange(1, 9)[:, None] + np.e))  # zero logits, and a sink of logit 1
    even = diagnostics.attention(zero.astype(np.float32), normalised=False)
    np.testing.assert_allclose(even["row_sum"], np.mean([k / (k + np.e) for k in range(2, 9)]), rtol=1e-6)
    np.testing.assert_allclose(even["relative_entropy"], 1, rtol=1e-6)


def test_one_array_of_four_axes_says_how_it_is_read():
    weights = np.full((3, 4, 6, 6), 1 / 6, np.float32)
    assert "counts 3 layers. If it counts 3 samples of one layer" in diagnostics.attention(weights).notes[0]
    one = diagnostics.attention([weights])
    assert (one.layers, one.samples, one.notes) == (1, 3, ())


def test_a_single_token_of_padding_is_told_where_it_cannot_be_sure():
    """Only its own weight tells: one zero among 300 pairs. The numbers count it, and a note says so."""
    seen = np.tri(N, dtype=bool)
    weights = np.stack([drawn(5, seen, 1.0), drawn(6, seen & (INDEX < N - 1), 1.0)])
    diagnosis = diagnostics.attention([weights])
    assert diagnosis.notes[0].startswith("Sample 1: no query has weight on a token at an end, itself included.")
    real = np.stack([np.ones(N, bool), INDEX < N - 1])[:, None]
    given = diagnostics.attention([weights], mask=real[:, :, None] & real[..., None])
    difference = np.abs(given["relative_entropy"] - diagnosis["relative_entropy"])
    assert not given.notes and (difference > 0).all() and (difference < 0.01).all()
    # A row that sees nothing is even, and so may be the last one of a text; not beside texts in which it is not.
    weights[1, :, -1] = 1 / N
    note = diagnostics.attention([weights]).notes[0]
    assert note.startswith("Sample 1: no query has weight on a token at an end, itself included.")
    assert not diagnostics.attention([weights[1:]]).notes
    # One of zeros is no row of a softmax.
    weights[1, :, -1] = 0
    assert "1 of sample 1: these tokens are taken for padding" in diagnostics.attention([weights]).notes[0]


@pytest.mark.parametrize("ahead", ["picture", "prefix"])
def test_a_config_states_what_lies_behind_a_token_and_nothing_of_later_keys(ahead):
    """Layers of all keys and of windows, in which the tokens of a picture see each other, or all see a prefix."""
    later = (INDEX >= 3) & (INDEX < 9) if ahead == "picture" else INDEX < 6
    open_ahead = np.outer(later, later) if ahead == "picture" else np.broadcast_to(later, (N, N))
    masks = [
        (DISTANCE >= 0) | open_ahead,
        ((DISTANCE >= 0) & (DISTANCE < 7)) | (np.outer(later, later) & (DISTANCE < 7)),
    ]
    weights = [drawn(layer, seen, 2.0)[None] for layer, seen in enumerate(masks)]
    config = types.SimpleNamespace(layer_types=["full_attention", "sliding_attention"], sliding_window=7)
    found = diagnostics.from_transformers({"attentions": weights}, config=config)
    for layer, seen in enumerate(masks):
        check(found, weights[layer][0], seen, layer)
    assert not found.causal and any("token" in note for note in found.notes)
