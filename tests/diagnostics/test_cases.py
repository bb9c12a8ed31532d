"""Cases that practitioners met: weights that are even over what may be seen, so that their relative entropy is 1."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import diagnostics
from rc_jax.diagnostics import measures
from tests.diagnostics import dense

N = 64
INDEX = np.arange(N)
LOWER = np.tri(N, dtype=bool)
WINDOW = LOWER & ~np.tri(N, k=-8, dtype=bool)


def even(mask):
    return (mask / np.maximum(mask.sum(-1, keepdims=True), 1)).astype(np.float32)


def packed(*cuts):
    """A mask of each sample, whose texts end at the cuts."""
    texts = [np.searchsorted(each, INDEX, side="right") for each in cuts]
    return np.stack([np.equal.outer(each, each) & LOWER for each in texts])[:, None]


def prefixed(*lengths):
    return np.stack([LOWER | (length > INDEX) for length in lengths])[:, None]


STRUCTURES = {  # masks, how many texts, and what a note says
    "texts at other places in each sample": (packed([20, 44], [32], [10, 50], []), 9, "3 in sample 0, 2 in sample 1"),
    "one row of texts": (packed([20, 44]), 3, "each is taken for a text of its own"),
    "prefixes of other lengths": (prefixed(8, 40), 2, "Layer 0, sample 0: read as a prefix of 8 tokens that all see"),
    "a prefix beside none": (prefixed(40, 1), 2, "Layer 0: read as a prefix of 40 tokens that all see"),
    "a full head and a local one": (np.stack([LOWER, WINDOW])[None], 1, "Layer 0, head 1: read as a window, 8 keys"),
    "a sink and a window": (
        np.stack([LOWER, WINDOW | (LOWER & (INDEX < 4))])[None], 1,
        "Layer 0, head 1: read as the first 4 keys and a window, 8 keys",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRUCTURES)
def test_even_rows_are_even(name):
    mask, texts, note = STRUCTURES[name]
    diagnosis = diagnostics.attention([even(mask)])
    np.testing.assert_allclose(diagnosis["relative_entropy"], 1, atol=1e-6)
    assert diagnosis.samples == texts and any(note in each for each in diagnosis.notes), diagnosis.notes
    stated = diagnostics.attention([even(mask)], mask=mask)
    for measure in diagnosis.measures:
        np.testing.assert_allclose(diagnosis[measure], stated[measure], rtol=1e-5, atol=1e-6, err_msg=measure)
    silent = diagnostics.from_transformers({"attentions": (even(mask),)}, config=types.SimpleNamespace())
    np.testing.assert_array_equal(silent["relative_entropy"], diagnosis["relative_entropy"])


def test_sharp_heads_are_not_taken_for_local_ones():
    """Of 60 layers of eight heads, half of them so sharp that most weights underflow, no head is read as masked."""
    rng = np.random.default_rng(0)
    distance = INDEX[:, None] - INDEX
    for causal in (True, False):
        seen = LOWER if causal else np.ones((N, N), bool)
        for spread in (30.0, 100.0, 1000.0):
            logits = rng.standard_normal((10, 8, N, N))
            logits[:, 4:] *= spread
            logits[:, 4:6] -= spread * np.abs(distance)  # and as local as they are sharp
            weights = dense.softmax(np.where(seen, logits, -np.inf)).astype(np.float32)
            diagnosis = diagnostics.attention(list(weights))
            assert not any("read as" in note or "a text of its own" in note for note in diagnosis.notes)


def test_a_row_that_sees_nothing():
    """Even, zero or NaN: weight 0, left out of means, and counted in a note."""
    mask = np.tri(8, dtype=bool)[None, None].copy()
    mask[0, 0, 5] = False
    weights = even(mask)
    weights[0, 0, 5] = 1 / 8  # as a softmax of equal numbers leaves it
    found = diagnostics.attention([weights])
    assert found.causal and found.notes == ("Layer 0: 1 query sees nothing and is left out of all means.",)
    np.testing.assert_allclose(found["relative_entropy"], 1, atol=1e-6)
    for value in (1 / 8, 0, np.nan):
        weights[0, 0, 5] = value
        given = diagnostics.attention([weights], mask=mask)
        assert given.causal and given.notes == found.notes
        for name in found.measures:
            np.testing.assert_allclose(given[name], found[name], rtol=1e-6, err_msg=name)
    weights[0, 0, 5] = np.nan
    with pytest.raises(ValueError, match="a query that sees nothing leaves NaN, which `mask` leaves out"):
        diagnostics.attention([weights])
    keys = np.arange(8) >= 2
    padded = even(np.tri(8, dtype=bool) & keys)[None, None]
    padded[0, 0, :2] = np.nan
    for causal in (None, True):
        assert diagnostics.attention([padded], mask=keys[None, None, None], causal=causal).causal


@pytest.mark.parametrize(
    "config", [types.SimpleNamespace(layer_types=["full_attention"]), types.SimpleNamespace(sliding_window=4096)]
)
@pytest.mark.parametrize("attention_mask", [None, np.ones((1, 20), int)])
def test_windows_of_a_config_say_nothing_of_texts_and_padding(config, attention_mask):
    """Two packed texts, and eight tokens of left padding: found as without the config."""
    text, lower = np.arange(20) >= 8, np.tri(20, dtype=bool)
    packed, padded = even(np.equal.outer(text, text) & lower)[None, None], np.where(lower & text, 1.0, 0)
    padded[:8] = 1
    padded = even(padded)[None, None]
    for weights in (packed, padded) if attention_mask is None else (packed,):
        bare, told = (
            diagnostics.from_transformers({"attentions": (weights,)}, config=each, attention_mask=attention_mask)
            for each in (None, config)
        )
        for name in bare.measures:
            np.testing.assert_array_equal(bare[name], told[name], err_msg=name)
        assert bare.notes == told.notes
        np.testing.assert_allclose(told["relative_entropy"], 1, atol=1e-6)


def test_weights_beyond_a_window_of_the_config_are_refused_by_its_name():
    config = types.SimpleNamespace(layer_types=["sliding_attention"], sliding_window=5)
    with pytest.raises(ValueError, match="a window of `config` hides it, unless the query is padding"):
        diagnostics.from_transformers({"attentions": (even(np.tri(20))[None, None],)}, config=config)


@pytest.mark.parametrize("held", [1 / 8, 0.0, np.nan])
@pytest.mark.parametrize("masked", [False, True])
def test_a_row_of_one_head_that_sees_nothing_leaves_causality(masked, held):
    """A mask that hides one row of one head alone, and with it later keys; whatever the row holds."""
    weights = even(np.tri(8))[None, None].repeat(2, 1).copy()
    weights[0, 0, 5] = held
    mask = np.ones((1, 2, 8, 8), bool) & (np.tri(8, dtype=bool) if masked else True)
    mask[0, 0, 5] = False
    for causal in (None, True):
        diagnosis = diagnostics.attention([weights], mask=mask, causal=causal)
        assert diagnosis.causal
        np.testing.assert_allclose(diagnosis["relative_entropy"], 1, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_minus_ten_thousand_hides_a_key_in_every_dtype(dtype):
    at = np.arange(24)
    seen = (at < 12)[None] | (at % 2 == 0)[None] | np.eye(24, dtype=bool)
    mask = jnp.asarray(np.where(seen, 0, -1e4)).astype(dtype)
    np.testing.assert_allclose(
        diagnostics.attention([even(seen)[None, None]], mask=mask)["relative_entropy"], 1, atol=1e-6
    )


def test_a_sink_is_named_by_its_sample_where_another_sample_has_no_token():
    weights = np.full((3, 1, 12, 12), 0.1 / 11, np.float32)
    weights[:2, :, :, 4] = weights[2, :, :, 7] = 0.9
    mask = np.ones((3, 1, 1, 12), bool)
    mask[0] = False
    told = diagnostics.attention([weights], mask=mask).sinks()
    assert [each.split(" is ")[0] for each in told[:2]] == ["Sample 1: token 4", "Sample 2: token 7"]


def test_a_head_in_which_no_query_sees_two_keys_has_no_number_and_hides_no_outlier():
    weights, mask = np.full((2, 4, 12, 12), 1 / 12, np.float32), np.ones((2, 4, 12, 12), bool)
    weights[1, 2], mask[0, 0] = np.eye(12), False
    diagnosis = diagnostics.attention([*weights], mask=[*mask])
    assert all(np.isnan(diagnosis[name][0, 0]) for name in ("stable_rank", "second_singular_value", "sink_weight"))
    assert {each.measure for each in diagnosis.outliers()} >= {"relative_entropy", "largest_weight"}
    assert {each[:2] for each in diagnosis.outliers()} == {(1, 2)}


def test_sinks_at_other_tokens_of_each_image():
    weights = np.full((8, 1, 50, 50), 0.1 / 49, np.float32)
    for sample in range(8):
        weights[sample, :, :, 5 * sample + 3] = 0.9
    diagnosis = diagnostics.attention([weights])
    assert diagnosis["strongest_weight"].item() == pytest.approx(0.9)
    assert diagnosis.by_text["strongest_key"][:, 0, 0].tolist() == [5 * sample + 3 for sample in range(8)]
    assert (diagnosis["strongest_share"].item(), diagnosis["strongest_first"].item()) == (1 / 8, 0)


def test_one_token_texts_are_left_out_by_name():
    mask = np.zeros((2, 1, 4, 4), bool)
    mask[0], mask[1, 0, 0, 0] = True, True
    diagnosis = diagnostics.from_transformers(
        {"attentions": (even(mask),), "hidden_states": (np.eye(4, dtype=np.float32)[None].repeat(2, 0),) * 2},
        attention_mask=np.array([[1, 1, 1, 1], [1, 0, 0, 0]]),
    )
    assert diagnosis.samples == 1 and diagnosis["relative_entropy"].item() == pytest.approx(1)
    assert "1 of 2 texts, in sample 1, have no query that sees two keys and are left out." in diagnosis.notes


def test_columns_that_are_distances_are_refused():
    """Longformer gives (…, n, w + 1), with nothing beyond the ends of the text."""
    key = INDEX[:, None] + np.arange(9) - 4
    weights = even((key >= 0) & (key < N))[None, None]
    with pytest.raises(ValueError, match="keys, or, as in Longformer, the distances from -4 to 4 of keys"):
        diagnostics.attention([weights])
    assert diagnostics.attention([np.full((1, 1, N, 9), 1 / 9, np.float32)]).tokens == 9


def test_distances_are_read_by_name():
    """As weights on keys, where the distances are set into a matrix one by one."""
    window = np.abs(np.subtract.outer(INDEX, INDEX)) <= 4
    whole = np.where(window, np.random.default_rng(0).random((2, 3, N, N), np.float32), 0)
    whole /= whole.sum(-1, keepdims=True)
    local = np.zeros((2, 3, N, 9), np.float32)
    for query, offset in np.ndindex(N, 9):
        if 0 <= query + offset - 4 < N:
            local[..., query, offset] = whole[..., query, query + offset - 4]
    axes = ("sample", "head", "query", "offset")
    found, expected = diagnostics.attention([local], axes=axes), diagnostics.attention([whole])
    assert found.notes == expected.notes
    for name, values in expected.measures.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    local[0, 0, 0, 0] = 0.1
    for wrong in (local, local[..., 1:]):
        with pytest.raises(ValueError, match='along "offset", an odd number of columns'):
            diagnostics.attention([wrong], axes=axes)


SHAPES = [
    (samples, heads, n, causal)
    for samples, heads in ((1, 1), (1, 3), (3, 2), (2, 4), (5, 1))
    for n, causal in ((3, True), (16, True), (9, False), (14, False))
]


@pytest.mark.parametrize("samples, heads, n, causal", SHAPES)
def test_parity_with_numpy(samples, heads, n, causal, x64):
    """Twenty shapes, every measure to the digits of double precision, which is used where JAX has it."""
    weights = dense.gaussian(n + heads, (samples, heads, n, n), 2.0, causal)
    seen = np.tri(n, dtype=bool) if causal else np.ones((n, n), bool)
    diagnosis = diagnostics.attention([weights], causal=causal, full_spectrum=True)
    for head in range(heads):
        expected = [dense.head(weights[sample, head], seen, np.float64) for sample in range(samples)]
        for name in set(expected[0]) - {"strongest_key", "strongest_share"}:
            value = np.mean([each[name] for each in expected])
            np.testing.assert_allclose(diagnosis[name][0, head], value, rtol=1e-12, atol=1e-13, err_msg=name)
    assert not diagnosis.notes


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("normalised", [True, False])
def test_logits_of_minus_infinity_are_not_taken_for_a_query_that_sees_nothing(normalised):
    logits = np.where(np.tri(6, dtype=bool), dense.gaussian(0, (1, 6, 6), 1.0), -np.inf).astype(np.float32)
    with pytest.raises(
        ValueError, match=r"sum -inf in layer 0.*: if these are logits, −∞ where they are masked"
    ) as told:
        diagnostics.attention(logits, normalised=normalised)
    assert "sees nothing" not in str(told.value)
    logits[0, 3, 1] = np.nan  # what is no number stays the reason
    with pytest.raises(ValueError, match="a query that sees nothing leaves NaN"):
        diagnostics.attention(logits, normalised=normalised)


def test_the_magnitude_of_infinite_rows_is_infinite():
    rows = measures.rows_of(jnp.asarray([[-jnp.inf, 1.0], [-jnp.inf, jnp.inf], [-jnp.inf, jnp.nan], [-1.0, 2.0]]))
    for each in (rows, measures.Rows(*map(np.asarray, rows))):
        np.testing.assert_array_equal(each.magnitude, [np.inf, np.inf, np.nan, 3])
