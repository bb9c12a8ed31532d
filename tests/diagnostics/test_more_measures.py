"""Rollout, massive activations and QK-clip against their definitions in NumPy and against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import diagnostics
from tests.diagnostics import dense

N = 9


@pytest.mark.parametrize("skip", [0.0, 0.3, 0.5, 1.0])
def test_rollout_is_the_product_of_mixed_means(skip):
    weights = np.stack([dense.gaussian(seed, (2, 3, N, N), 2.0, causal=True) for seed in range(4)])
    rolled = diagnostics.rollout(list(weights.astype(np.float32)), skip=skip)
    for sample in range(2):
        expected = np.eye(N)
        for layer in weights[:, sample]:
            expected = (skip * np.eye(N) + (1 - skip) * layer.mean(0)) @ expected
        np.testing.assert_allclose(rolled[sample], expected, atol=2e-6)
    np.testing.assert_allclose(np.sum(rolled, -1), 1, rtol=1e-5)


def test_rollout_of_even_causal_rows_keeps_what_is_known_of_the_last_token():
    """A is triangular: the last token keeps (λ + (1 − λ)/n)^L of itself (after Herasimchyk et al. 2026)."""
    n, depth, skip = 1024, 12, 0.5
    even = np.tri(n, dtype=np.float32) / np.arange(1, n + 1, dtype=np.float32)[:, None]
    rolled = diagnostics.rollout([even[None]] * depth, skip=skip)
    np.testing.assert_allclose(rolled[-1, -1], (skip + (1 - skip) / n) ** depth, rtol=1e-5)
    assert abs(float(rolled[-1, 0]) - 0.293) < 1e-3


@pytest.mark.parametrize("weights", [np.eye(3) - 0.5, np.full((3, 3), np.nan), np.full((3, 3), 0.4)])
def test_rollout_refuses_what_is_no_softmax(weights):
    with pytest.raises(ValueError, match=r"at least 0 and have rows that add up to 1 at most, got .* in layer 0"):
        diagnostics.rollout([weights[None].astype(np.float32)])


def test_rollout_of_rows_with_a_sink_that_is_no_key():
    weights = np.full((2, 1, 3, 3), 0.2, np.float32)  # rows of 0.6
    np.testing.assert_allclose(diagnostics.rollout(weights).sum(axis=-1), 0.8**2, rtol=1e-6)


def test_rollout_takes_named_layers_in_order():
    first, second = (dense.gaussian(seed, (2, N, N), 2.0).astype(np.float32) for seed in range(2))
    named = diagnostics.rollout({"a": first, "b": second})
    np.testing.assert_array_equal(named, diagnostics.rollout([first, second]))
    assert np.abs(named - diagnostics.rollout([second, first])).max() > 0.01


@pytest.mark.usefixtures("as_installed")
def test_rollout_refuses():
    with pytest.raises(ValueError, match=r"2 samples with 3 groups of 4 heads.*or 2 layers of 3 samples with 4 heads"):
        diagnostics.rollout(np.full((2, 3, 4, N, N), 1 / N, np.float32))
    with pytest.raises(ValueError, match=r"two last axes of one length, got the shape \(2, 9, 4\)"):
        diagnostics.rollout(np.ones((1, 2, N, 4), np.float32))
    with pytest.raises(ValueError, match="`skip` must be"):
        diagnostics.rollout(np.ones((1, 2, N, N), np.float32), skip=1.5)


def test_rollout_reads_what_each_sample_sees():
    """Padding, texts of a row and rows that see nothing: a text has the rollout that it has alone."""
    layers = [dense.gaussian(seed, (2, 3, N, N), 2.0, causal=True).astype(np.float32) for seed in range(3)]
    alone = np.asarray(diagnostics.rollout([each[1:, :, :6, :6] for each in layers]))
    real = np.arange(N) < np.array([[N], [6]])
    mask = (real[:, None] & real[:, :, None])[:, None]
    padded = [np.where(mask, each, 0) for each in layers]
    padded = [np.where(mask.any(-1, keepdims=True), each, np.nan).astype(np.float32) for each in padded]
    rolled = np.asarray(diagnostics.rollout(padded, mask=mask))
    np.testing.assert_allclose(rolled[1, :6, :6], alone[0], atol=1e-6)
    assert not rolled[1, 6:].any() and not rolled[1, :, 6:].any()
    np.testing.assert_allclose(rolled[0], diagnostics.rollout([each[0] for each in layers]), atol=1e-6)
    ids = np.where(real, 1, -1)
    stated = [np.where(real[:, None, :, None], each, 1 / N).astype(np.float32) for each in padded]
    np.testing.assert_allclose(diagnostics.rollout(stated, segment_ids=ids), rolled, atol=1e-6)
    with pytest.raises(ValueError, match=r"must be 0 where `mask` is False, got a magnitude of .* in layer 0"):
        diagnostics.rollout(layers, mask=np.arange(N) > 0)


def test_rollout_leaves_queries_that_see_nothing_out_of_the_mean_over_heads():
    weights = dense.gaussian(0, (2, N, N), 2.0).astype(np.float32)
    seen = np.ones((2, N, N), bool)
    seen[0, 2] = False
    weights[0, 2] = np.nan
    rolled = diagnostics.rollout([weights], mask=seen, skip=0.25)
    expected = 0.75 * weights[1, 2].astype(float)
    expected[2] += 0.25
    np.testing.assert_allclose(rolled[2], expected, atol=1e-6)
    seen[1, 2] = False
    with pytest.warns(UserWarning, match="1 queries of all layers see nothing, and have weight 0"):
        nothing = diagnostics.rollout([np.where(seen, weights, np.nan)], mask=seen, skip=0.25)
    np.testing.assert_array_equal(nothing[2], 0.25 * np.eye(N, dtype=np.float32)[2])


def test_rollout_says_which_tokens_it_takes_for_padding():
    weights = np.stack([dense.gaussian(seed, (2, 32, 32), 1.0, causal=True) for seed in range(3)])
    weights[:, 1, 20:] = 1 / 32
    padded = np.stack([weights, weights])
    padded[:, :, :, 20:] = 0
    padded[:, 1, :, :20, 20:] = 0
    with pytest.warns(UserWarning, match="tokens are taken for padding: pass `mask`"):
        rolled = diagnostics.rollout(list(padded.astype(np.float32)))
    assert not np.asarray(rolled)[:, 20:].any()


def test_massive_activations_are_those_of_tokens():
    """Padding holds anything, and the other text of a row moves no median."""
    states = np.random.default_rng(2).standard_normal((2, 1, N, 32)).astype(np.float32)
    states[1, 0, 5, 3] = 2000
    alone = diagnostics.massive_activations([each[:, 4:7] for each in states])
    states[:, 0, :4] *= 1e4
    states[:, 0, 7:] = np.nan
    ids = np.array([[1, 1, 1, 1, 2, 2, 2, -1, -1]])
    found = diagnostics.massive_activations(list(states), segment_ids=ids)
    assert [each._replace(token=each.token - 4) for each in found if each.token >= 4] == list(alone)
    assert [each[:4] for each in found if each.token >= 4] == [(1, 0, 5, 3)]
    masked = diagnostics.massive_activations(list(states), mask=(ids == 2))
    assert [each[2:4] for each in masked] == [(5, 3)]
    with pytest.raises(ValueError, match="finite, got other numbers in state 0, sample 0"):
        diagnostics.massive_activations(list(states))


def test_massive_activations_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    states = rng.standard_normal((3, 2, N, 32)).astype(np.float32)
    states[1, 0, 0, 7], states[2, 1, 4, 3], states[2, 1, 0, 30] = 1500, -900, 1200
    states[0, 0, 2, 2] = 99  # large beside the median, and below 100
    found = diagnostics.massive_activations(list(states))
    expected = []
    for state in range(3):
        for sample in range(2):
            size = np.abs(states[state, sample])
            median = np.median(size)
            for token, feature in np.argwhere((size > 100) & (size >= 1000 * median)):
                expected.append((state, sample, token, feature, states[state, sample, token, feature], median))
    assert sorted(found) == sorted(expected)
    assert [each[:4] for each in found] == [(1, 0, 0, 7), (2, 1, 0, 30), (2, 1, 4, 3)]
    assert len(diagnostics.massive_activations(list(states), most=1)) == 2
    assert (0, 0, 2, 2) in [each[:4] for each in diagnostics.massive_activations(list(states), ratio=100.0, least=0.0)]


@pytest.mark.usefixtures("as_installed")
def test_massive_activations_refuse():
    with pytest.raises(ValueError, match="finite, got other numbers in state 1, sample 0"):
        diagnostics.massive_activations(np.array([[[1.0, 2.0]], [[np.nan, 1.0]]], np.float32))
    with pytest.raises(ValueError, match="`ratio` must be > 0"):
        diagnostics.massive_activations(np.ones((1, 2, 2), np.float32), ratio=0.0)


def test_qk_clip_brings_the_largest_logit_down():
    q, k = np.random.default_rng(1).standard_normal((2, 4, N, 8)).astype(np.float32)
    q *= np.float32([1, 20, 40, 80])[:, None, None]
    largest = diagnostics.scores(q, k)["largest_logit"][0]
    gamma = np.asarray(diagnostics.qk_clip(largest, 20.0))
    assert gamma[0] == 1 and (gamma[2:] < 1).all()
    root = np.sqrt(gamma)[:, None, None]
    clipped = diagnostics.scores(q * root, k * root)["largest_logit"][0]
    np.testing.assert_allclose(clipped, np.minimum(largest, 20.0), rtol=1e-5)
    assert np.isnan(diagnostics.qk_clip(np.float32([np.nan]))).all()
    assert diagnostics.qk_clip(200, 100) == diagnostics.qk_clip(200.0, 100.0) == 0.5
    # Heads that share keys: γ on queries alone clips each, and √γ of a group leaves the others where they belong.
    shared = k[:2]
    largest = diagnostics.scores(q, shared)["largest_logit"][0]
    gamma = np.asarray(diagnostics.qk_clip(largest, 20.0))[:, None, None]
    clipped = diagnostics.scores(q * gamma, shared)["largest_logit"][0]
    np.testing.assert_allclose(clipped, np.minimum(largest, 20.0), rtol=1e-5)
    of_group = np.asarray(diagnostics.qk_clip(largest, 20.0, groups=2))
    np.testing.assert_allclose(of_group, gamma.reshape(2, 2).min(1), rtol=1e-6)
    assert np.isnan(diagnostics.qk_clip(np.float32([np.nan, 1, 2, 3]), groups=2)).tolist() == [True, False]
    with pytest.raises(ValueError, match="`groups` must be a divisor of 4 heads, got 3"):
        diagnostics.qk_clip(largest, groups=3)
    with pytest.raises(ValueError, match="`threshold` must be > 0, got 0"):
        diagnostics.qk_clip(largest, 0.0)
    with pytest.raises(TypeError, match=r"`largest_logit` must be an array, .* got \[3.0\]"):
        diagnostics.qk_clip([3.0])
    assert diagnostics.qk_clip(largest.max(), largest.max() / 2) == 0.5
    assert diagnostics.qk_clip(250.0) == np.float32(0.4)
    with pytest.raises(ValueError, match=r"`threshold` must be one number, got float64\[2\]"):
        diagnostics.qk_clip(largest, np.array([1.0, 2.0]))
    for threshold in (-5.0, 0.0, np.nan):  # known to a compiled program only
        assert np.isnan(jax.jit(diagnostics.qk_clip)(largest, threshold)).all()
    assert (np.asarray(diagnostics.qk_clip(largest, np.inf)) == 1).all()


@pytest.mark.parametrize("n", [7, 1500])
def test_the_absolute_cosine_in_blocks(n):
    x = np.random.default_rng(2).standard_normal((n, 6))
    x[3] = 0  # orthogonal to all others
    size = np.linalg.norm(x, axis=1, keepdims=True)
    unit = x / np.where(size > 0, size, 1)
    gram = np.abs(unit @ unit.T)
    expected = (gram.sum() - np.trace(gram)) / (n * (n - 1))
    measured = diagnostics.hidden_states([x.astype(np.float32)])["absolute_cosine"]
    np.testing.assert_allclose(measured, expected, rtol=1e-5)


@pytest.mark.parametrize("keys", [5, 1000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_negative_weight_is_seen_from_a_rounding_on(keys, dtype):
    """Σ|a| and Σa may differ by rounding in a compiled program; measures of single keys are NaN for signed rows."""
    weights = np.array(jnp.asarray(dense.gaussian(0, (1, 2, keys, keys), 1.0), dtype))
    measure = jax.jit(lambda w: diagnostics.metrics(w)["largest_weight"])
    eps = float(jnp.finfo(dtype).eps)

    def left_out(weight):
        weights[0, 0, 3, 2] = weight
        found = diagnostics.attention(weights, normalised=False)
        assert ("largest_weight" in found.measures) == bool(np.isfinite(measure(weights)))
        return "largest_weight" not in found.measures

    assert not left_out(0) and not left_out(-1e-12) and not left_out(-0.5 * eps)
    assert left_out(-1.5 * eps)


def test_weights_of_single_precision_stored_in_double_have_its_rounding(x64):
    weights = dense.gaussian(0, (1, 2, 5, 5), 1.0)
    weights[0, 0, 3, 2] = -1e-12
    assert "entropy" in diagnostics.attention(weights, normalised=False).measures
