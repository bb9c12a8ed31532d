"""Weights whose queries are not the tokens that they look at: cross-attention, and steps of generation."""

import numpy as np
import pytest

from rc_jax import diagnostics
from tests.diagnostics import dense

ROWS, KEYS = 5, 12


def drawn(seed, rows=ROWS, keys=KEYS, alpha=2.0):
    """(samples, heads, rows, keys), all keys seen."""
    return dense.softmax(alpha * np.random.default_rng(seed).standard_normal((2, 3, rows, keys)))


def of_head(p, seen):
    """The measures that need no key of a query's own."""
    rows = [row[inside] for row, inside in zip(p, seen, strict=True)]
    entropies = np.array([-np.sum(row * np.log(row)) for row in rows])
    lengths = np.array([len(row) for row in rows])
    s = np.append(np.linalg.svd(p, compute_uv=False), 0)
    importance = np.array([p[seen[:, key], key].mean() for key in range(p.shape[1])])
    return {
        "sparsity": np.mean([np.mean(row) / np.sqrt(np.mean(row**2)) for row in rows]),
        "entropy": entropies.mean(),
        "relative_entropy": np.mean(entropies / np.log(lengths)),
        "participation": np.mean([1 / np.sum(row**2) for row in rows]),
        "largest_weight": np.mean([row.max() for row in rows]),
        "sink_weight": importance[0],
        "second_singular_value": s[1] / s[0],
        "stable_rank": np.sum(s**2) / s[0] ** 2,
    }


def close(diagnosis, weights, seen):
    for head in range(3):
        of_samples = [of_head(p[head], seen) for p in weights]
        for name in of_samples[0]:
            expected = np.mean([each[name] for each in of_samples])
            assert np.isclose(diagnosis[name][0, head], expected, **dense.CLOSE), name


@pytest.mark.parametrize("rows", [1, 5, 20])
def test_cross_attention(rows):
    weights = drawn(0, rows)
    diagnosis = diagnostics.attention([weights.astype(np.float32)])
    close(diagnosis, weights, np.ones((rows, KEYS), bool))
    assert (diagnosis.queries, diagnosis.tokens, diagnosis.samples, diagnosis.causal) == (rows, KEYS, 2, False)
    assert not {"self_weight", "previous_weight"} & set(diagnosis.measures)
    looking, queries = (f"The {rows} queries look", f"{rows} queries") if rows > 1 else ("The query looks", "1 query")
    assert diagnosis.notes == (f"{looking} at {KEYS} keys, all of them.",)
    text = str(diagnosis)
    assert f"3 heads: {queries} of {KEYS} keys, not causal" in text and "SmolLM2" not in text
    diagnosis.figure()


def test_the_last_tokens_of_a_text_have_keys_of_their_own():
    """The last five rows of a causal square are read as they are in the square."""
    seen = np.tri(KEYS, dtype=bool)[-ROWS:]
    whole = dense.gaussian(1, (2, 3, KEYS, KEYS), 2.0, causal=True)
    weights = whole[..., -ROWS:, :]
    diagnosis = diagnostics.attention([weights.astype(np.float32)])
    assert diagnosis.causal and "as the last of them" in diagnosis.notes[0]
    close(diagnosis, weights, seen)
    own = np.arange(KEYS - ROWS, KEYS)
    expected = {
        "self_weight": whole[..., own, own].mean((0, -1)),
        "previous_weight": whole[..., own, own - 1].mean((0, -1)),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(diagnosis[name][0], value, rtol=1e-5)
    assert diagnostics.attention([weights.astype(np.float32)], causal=False)["entropy"].shape == (1, 3)


def test_a_single_step_is_causal_where_somebody_says_so():
    weights = drawn(2, 1)
    step = diagnostics.attention([weights.astype(np.float32)], causal=True)
    np.testing.assert_allclose(step["self_weight"][0], weights[..., 0, -1].mean(0), rtol=1e-5)
    assert "self_weight" not in diagnostics.attention([weights.astype(np.float32)]).measures


def test_a_mask_hides_keys_and_zeros_are_told():
    seen = np.ones((2, 1, 1, KEYS), bool)
    seen[1, ..., 9:] = False
    logits = np.random.default_rng(3).standard_normal((2, 3, ROWS, KEYS))
    weights = dense.softmax(np.where(seen, logits, -1e30)).astype(np.float32)
    diagnosis = diagnostics.attention([weights], mask=seen)
    alone = [diagnostics.attention([weights[:1]]), diagnostics.attention([weights[1:, ..., :9]])]
    for name in ("entropy", "sparsity", "sink_weight", "stable_rank", "entropy_scale"):
        np.testing.assert_allclose(diagnosis[name], (alone[0][name] + alone[1][name]) / 2, rtol=1e-5)
    assert len(diagnosis.notes) == 1
    all_hidden = diagnostics.attention([np.concatenate([weights[1:], weights[1:]])])
    assert "3 of sample 0, 3 of sample 1: these tokens are taken for padding" in all_hidden.notes[1]
    np.testing.assert_allclose(all_hidden["entropy"], alone[1]["entropy"], rtol=1e-5)


def test_values_of_rectangular_weights():
    weights = drawn(4)
    values = np.random.default_rng(5).standard_normal((2, 3, KEYS, 4))
    diagnosis = diagnostics.attention([weights.astype(np.float32)], values=[values.astype(np.float32)])
    for head in range(3):
        shares = []
        for p, v in zip(weights[:, head], values[:, head], strict=True):
            shares.append(np.linalg.norm(np.outer(p[:, 0], v[0])) / np.linalg.norm(p @ v))
        assert np.isclose(diagnosis["sink_output_share"][0, head], np.mean(shares), **dense.CLOSE)


@pytest.mark.parametrize("rows", [ROWS, KEYS])
def test_cross_attention_of_transformers(rows):
    """Also where both texts have as many tokens: no query has a key of its own."""
    weights = drawn(6, rows).astype(np.float32)
    mask = np.ones((2, KEYS), int)
    outputs = {"encoder_hidden_states": None, "cross_attentions": (weights, weights[::-1])}
    diagnosis = diagnostics.from_transformers(outputs, part="cross", attention_mask=mask)
    assert (diagnosis.layers, diagnosis.queries, diagnosis.causal) == (2, rows, False)
    assert "self_weight" not in diagnosis.measures
    close(diagnosis, weights.astype(float), np.ones((rows, KEYS), bool))


def test_a_step_of_generate():
    first, second = (drawn(seed, 1, 9 + seed).astype(np.float32) for seed in range(2))
    steps = ((first,), (second,))
    diagnosis = diagnostics.from_transformers({"attentions": steps[1], "hidden_states": [np.ones((2, 1, 4), "f4")] * 2})
    assert (diagnosis.queries, diagnosis.tokens) == (1, 10) and "Hidden states are left out" in diagnosis.notes[0]
    with pytest.raises(ValueError, match=r"or give one step, as \{'attentions': outputs.attentions\[3\]\}"):
        diagnostics.from_transformers({"attentions": steps})


@pytest.mark.torch
@pytest.mark.slow
def test_all_attention_of_t5():
    """Encoder, decoder and cross-attention of a small random T5, against its own arrays."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=3, decoder_start_token_id=0
    )
    torch.manual_seed(0)
    model = transformers.T5Model._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        outputs = model(
            input_ids=torch.arange(2, 2 + KEYS)[None].repeat(2, 1),
            decoder_input_ids=torch.arange(ROWS)[None].repeat(2, 1),
            output_attentions=True,
            output_hidden_states=True,
        )
    cross = diagnostics.from_transformers(outputs, part="cross")
    close(cross, outputs.cross_attentions[0].double().numpy(), np.ones((ROWS, KEYS), bool))
    assert (cross.queries, cross.tokens, cross.layers) == (ROWS, KEYS, 2)
    for part, tokens, causal in (("encoder", KEYS, False), ("decoder", ROWS, True)):
        diagnosis = diagnostics.from_transformers(outputs, part=part)
        assert (diagnosis.tokens, diagnosis.causal, diagnosis.queries) == (tokens, causal, None)


def test_rows_with_a_sink_that_is_no_key():
    """Every measure of rows below 1, as of gpt-oss: entropies are those of p/Σp, the sink's share is 1 − Σp."""
    logits = np.random.default_rng(7).standard_normal((2, 3, KEYS, KEYS + 1))
    whole = dense.softmax(logits)
    weights = whole[..., :-1]
    diagnosis = diagnostics.attention([weights.astype(np.float32)], normalised=False)
    square = diagnostics.attention([dense.softmax(logits[..., :-1]).astype(np.float32)])
    assert set(square.measures) | {"row_sum", "no_key_weight"} == set(diagnosis.measures)
    np.testing.assert_allclose(diagnosis["no_key_weight"][0], whole[..., -1].mean((0, -1)), rtol=1e-5)
    for name in ("entropy", "relative_entropy", "sparsity", "participation", "entropy_scale", "scale_ratio"):
        np.testing.assert_allclose(diagnosis[name], square[name], rtol=2e-5, err_msg=name)
    for name, value in (("sink_weight", weights[..., 0]), ("self_weight", np.diagonal(weights, axis1=-2, axis2=-1))):
        np.testing.assert_allclose(diagnosis[name][0], value.mean((0, -1)), rtol=1e-5)
    logged = diagnostics.metrics(weights.astype(np.float32))
    for name in ("relative_entropy", "no_key_weight", "largest_weight", "participation"):
        np.testing.assert_allclose(logged[name], diagnosis[name].mean(), rtol=2e-6, err_msg=name)


def test_samples_in_the_place_of_layers_are_refused_where_padding_tells():
    """Three texts of other lengths are no layers of one text; layers of a padded text are."""
    lengths, n = (16, 11, 8), 16
    seen = np.arange(n) < np.array(lengths)[:, None]
    pairs = np.broadcast_to(seen[:, None, None], (3, 4, n, n))
    weights = dense.softmax(np.where(pairs, np.random.default_rng(8).standard_normal(pairs.shape), -1e30)).astype("f4")
    with pytest.raises(ValueError, match=r"16 tokens in entry 0 and 11 in entry 1.*pass \[weights\]"):
        diagnostics.attention(weights)
    assert diagnostics.attention([weights]).samples == 3
    alike = np.stack([weights[1], weights[1][::-1]])
    assert diagnostics.attention(alike).layers == 2


@pytest.mark.parametrize("lengths, causal", [((KEYS, 9), None), ((11, 8), None), ((KEYS - 1, KEYS - 1), False)])
def test_keys_that_no_query_looks_at_are_padding(lengths, causal):
    """As with the mask that hides them; zeros at the end of each text are no sign of causality."""
    real = np.arange(KEYS) < np.array(lengths)[:, None]
    scores = np.random.default_rng(3).normal(size=(2, 2, 3, ROWS, KEYS))
    weights = np.exp(scores) * real[:, None, None]
    weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    found = diagnostics.attention(list(weights), causal=causal)
    told = diagnostics.attention(list(weights), mask=real[:, None, None], causal=False)
    assert not found.causal
    for name in ("relative_entropy", "sparsity", "sink_weight", "participation"):
        np.testing.assert_allclose(found[name], told[name], rtol=1e-6)
    assert any("taken for padding" in note for note in found.notes) and "all of them" not in found.notes[0]


def test_padding_before_keys_of_a_cache_leaves_it_causal():
    real = np.arange(KEYS) >= np.array([0, 6])[:, None]
    seen = real[:, None] & np.tri(KEYS, dtype=bool)[-ROWS:]
    weights = np.exp(np.random.default_rng(4).normal(size=(2, 3, ROWS, KEYS))) * seen[:, None]
    weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    found = diagnostics.attention([weights])
    assert found.causal and "6 of sample 1" in found.notes[-1]
    told = diagnostics.attention([weights], mask=real[:, None, None], causal=True)
    np.testing.assert_allclose(found["relative_entropy"], told["relative_entropy"], rtol=1e-6)


def test_one_key_without_weight_is_not_enough_to_be_padding():
    weights = np.array([[[[0.5, 0.5, 0.0]]]], np.float32)
    found = diagnostics.attention([weights], causal=False)
    assert found["relative_entropy"][0, 0] == pytest.approx(np.log(2) / np.log(3))
    assert found.notes[0] == "The query looks at 3 keys." and "1 pairs" in found.notes[1]


def test_padding_of_one_step_is_said_where_it_is_in_doubt():
    """One zero on one key in one layer may be chance; three in twelve layers may not."""
    weights = drawn(3, 1, 20, alpha=1.0).astype(np.float32)
    weights[1, ..., 0] = 0
    weights /= weights.sum(-1, keepdims=True)
    one, many = (diagnostics.attention([weights] * layers).notes for layers in (1, 12))
    assert len(one) == 2 and one[1].startswith("Sample 1: no query has weight on a token at an end")
    assert len(many) == 2 and "1 of sample 1: these tokens are taken for padding" in many[1]


@pytest.mark.parametrize("sharpness", [0.0, 1.0])
def test_an_even_last_row_of_a_step_is_a_row(sharpness):
    """Of uniform attention each row is even over what it sees; the last one sees all."""
    seen = np.tri(10, dtype=bool)[-3:]
    logits = sharpness * np.random.default_rng(4).standard_normal((2, 3, 3, 10))
    logits[..., -1, :] = 0
    weights = dense.softmax(np.where(seen, logits, -np.inf)).astype(np.float32)
    diagnosis = diagnostics.attention([weights] * 4)
    assert diagnosis.causal and diagnosis.notes == ("The 3 queries look at 10 keys, as the last of them.",)
    close(diagnosis, weights.astype(float), seen)
