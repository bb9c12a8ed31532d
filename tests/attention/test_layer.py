"""The layer against other libraries, against its own identities, and on bad input."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rc_jax import attention
from rc_jax.attention import KINDS, AttentionSpec, masks
from tests.oracles import attention as oracle

SPEC = AttentionSpec(d_model=12, heads=3, bias=True)


def draw(spec=SPEC, tokens=7, seed=0, dtype="float32"):
    params = attention.init(jax.random.key(seed), spec, bias_std=0.5, dtype=dtype)
    return params, jax.random.normal(jax.random.key(seed + 100), (tokens, spec.d_model), dtype)


@pytest.mark.torch
@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_pytorch(x64, causal):
    spec = dataclasses.replace(SPEC, causal=causal)
    params, x = draw(spec, dtype="float64")
    out, weights = oracle.torch_attention(params, x, np.tri(7, dtype=bool) if causal else None)
    np.testing.assert_allclose(attention.attend(params, x, spec), out, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(attention.attention_weights(params, x, spec), weights, rtol=1e-12, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [None, "window", "graph"])
def test_agrees_with_flax(mask):
    params, x = draw()
    ring = jnp.roll(jnp.eye(7), 1, axis=1)
    mask = {None: None, "window": masks.window(7, 2), "graph": masks.graph(ring)}[mask]
    np.testing.assert_allclose(
        attention.attend(params, x, SPEC, mask=mask), oracle.flax_attention(params, x, mask), rtol=2e-5, atol=2e-6
    )


def test_only_two_of_the_four_score_terms_reach_softmax(x64):
    """X W_Q b_K and b_Q·b_K are constant along a row: P = softmax((X W_QK Xᵀ + 1 b_Qᵀ W_Kᵀ Xᵀ)/√d)."""
    params, x = draw(dtype="float64")
    for head in range(3):
        w_qk = np.asarray(params.query[head] @ params.key[head].T)
        logits = x @ w_qk @ x.T + (params.query_bias[head] @ params.key[head].T @ x.T)[None]
        logits = np.asarray(logits) / np.sqrt(4)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        expected = powers / powers.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(attention.attention_weights(params, x, SPEC)[head], expected, rtol=1e-12)


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(st.permutations(range(3)), st.permutations(range(7)))
def test_order_of_heads_does_not_matter_and_order_of_tokens_goes_through(heads, tokens):
    params, x = draw()
    heads, tokens = jnp.array(heads), jnp.array(tokens)
    shuffled = jax.tree.map(lambda w: w[heads], params)._replace(output_bias=params.output_bias)
    out = attention.attend(params, x, SPEC)
    np.testing.assert_allclose(attention.attend(shuffled, x, SPEC), out, rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(attention.attend(params, x[tokens], SPEC), out[tokens], rtol=1e-4, atol=2e-6)


def test_dtype_follows_the_input():
    params, x = draw()
    exact = attention.attend(params, x, SPEC)
    for dtype in ("float32", "bfloat16"):
        low = attention.attend(jax.tree.map(lambda w, dtype=dtype: w.astype(dtype), params), x.astype(dtype), SPEC)
        assert low.dtype == dtype
        size = float(jnp.max(jnp.abs(exact)))
        assert float(jnp.max(jnp.abs(low.astype("float32") - exact))) < 16 * size * float(jnp.finfo(dtype).eps)


@pytest.mark.parametrize("radius", [0, 5, 6, 100])
def test_a_window_hides_what_is_out_of_reach(radius):
    """Seven tokens: radius 5 still hides the two corners, 6 hides nothing, 0 leaves each token alone."""
    spec = dataclasses.replace(SPEC, window=radius)
    params, x = draw(spec)
    seen = np.asarray(attention.attention_weights(params, x, spec)[0]) > 0
    distance = abs(np.subtract.outer(np.arange(7), np.arange(7)))
    np.testing.assert_array_equal(seen, distance <= radius)


def test_a_swept_scale_is_traced_once():
    params, x = draw()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(scale):
        return attention.attend(params, x, SPEC, scale=scale)

    for scale in (0.1, 1.0, 10.0):
        run(scale)


@pytest.mark.usefixtures("as_installed")
def test_a_scale_for_each_head_may_be_a_list():
    spec = AttentionSpec(d_model=4, heads=2)
    params, x = attention.init(jax.random.key(0), spec), jnp.ones((3, 4))
    got = attention.attend(params, x, spec, scale=[1.0, 2.0])
    np.testing.assert_array_equal(got, attention.attend(params, x, spec, scale=jnp.asarray([1.0, 2.0])))


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("weights", ["softmax", "entmax15", "sparsemax", "differential", "l2"])
def test_large_masks_on_a_device_are_not_copied_to_be_checked(weights):
    """A row that sees nobody has weight and output 0, and gradients are finite; on the host it is refused."""
    params, x = draw()
    spec = dataclasses.replace(SPEC, weights=weights, heads=2)
    params = attention.init(jax.random.key(0), spec)
    blind, seeing = jnp.tri(7, k=-1, dtype=bool), jnp.tri(7, k=-1, dtype=bool).at[0, 0].set(True)
    out, given = (attention.attend(params, x, spec, mask=mask) for mask in (blind, seeing))
    assert np.all(out[0] == 0) and np.array_equal(out[1:], given[1:])
    slope = jax.grad(lambda x: attention.attend(params, x, spec, mask=blind).sum())(x)
    assert np.isfinite(slope).all()


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    params, x = draw()
    decay, two = dataclasses.replace(SPEC, weights="decay"), dataclasses.replace(SPEC, heads=2)
    gated = dataclasses.replace(SPEC, weights="gated_decay", causal=True)
    sink, plan, normed = (
        dataclasses.replace(SPEC, **each)
        for each in ({"weights": "softmax_sink"}, {"weights": "sinkhorn"}, {"qk_norm": "rms"})
    )
    pooled, longer = (dataclasses.replace(SPEC, rank=2, tokens=tokens) for tokens in (7, 8))
    causal, key, lower = dataclasses.replace(SPEC, causal=True), jax.random.key(0), np.tri(7, dtype=bool)
    # Either mask leaves the first token something to see; both together leave it nothing.
    later = ~lower | (np.arange(7)[:, None] > 0)
    pair, ragged = [1.0, 2.0], [[1.0], [1.0, 2.0]]
    cases = [
        (ValueError, r"`x` must have d_model=12 features, got float32\[7,5\]", lambda: (params, x[:, :5], SPEC, {})),
        (ValueError, r"\(token, feature\), .*: map a batch with jax\.vmap", lambda: (params, x[None], SPEC, {})),
        (TypeError, r"`x` must be a floating-point array", lambda: (params, x.astype(int), SPEC, {})),
        (TypeError, "`x` must have the dtype of `params.query`", lambda: (params, x.astype("bfloat16"), SPEC, {})),
        (ValueError, "`scale` must be > 0, got 0", lambda: (params, x, SPEC, {"scale": 0})),
        (ValueError, "`scale` must be finite", lambda: (params, x, SPEC, {"scale": float("nan")})),
        (TypeError, "`mask` must be a boolean array", lambda: (params, x, SPEC, {"mask": jnp.ones((7, 7))})),
        (ValueError, "`mask` must have one row", lambda: (params, x, SPEC, {"mask": masks.causal(6)})),
        (ValueError, "must let every token see", lambda: (params, x, SPEC, {"mask": np.tri(7, k=-1, dtype=bool)})),
        (ValueError, r"`x` must have at least one token, got float32\[0,12\]", lambda: (params, x[:0], SPEC, {})),
        (ValueError, r"`x` must have at least one token", lambda: (params, x[:0], causal, {})),
        (TypeError, "`scale` must be a real number .*, got a typed key", lambda: (params, x, SPEC, {"scale": key})),
        (TypeError, "`x` must be a floating-point array .*, got a typed key", lambda: (params, key, SPEC, {})),
        (TypeError, r"`params` must be an AttentionParams, got float32\[", lambda: (x, params, SPEC, {})),
        (ValueError, r"`scale` must be .* each of 3 heads, got \(2,\)", lambda: (params, x, SPEC, {"scale": pair})),
        (ValueError, "`scale` must be .*, got rows of different lengths", lambda: (params, x, SPEC, {"scale": ragged})),
        (TypeError, "`mask` must be a boolean array .*, got a typed key", lambda: (params, x, SPEC, {"mask": key})),
        (ValueError, r"`params.parts\['decay'\]` must have shape", lambda: (params, x, decay, {})),
        (ValueError, r"`params.query` must have shape \(2, 12, 6\)", lambda: (params, x, two, {})),
        (ValueError, r"`params.parts\['gate'\]` must have shape \(3, 12\), got None", lambda: (params, x, gated, {})),
        (ValueError, r"`params.parts\['sink'\]` must have shape \(3,\), got None", lambda: (params, x, sink, {})),
        (ValueError, r"`params.parts\['query_norm'\]` must have shape \(3, 4\)", lambda: (params, x, normed, {})),
        (ValueError, r"`params.parts\['pool'\]` must have shape \(3, 2, 7\)", lambda: (params, x, pooled, {})),
        (ValueError, r"`x` must have the 8 tokens .*, got float32\[7,12\]", lambda: (params, x, longer, {})),
        (ValueError, "`mask` must be None when .* a rank", lambda: (draw(pooled)[0], x, pooled, {"mask": lower})),
        (ValueError, "`mask` must be symmetric when weights=", lambda: (params, x, plan, {"mask": lower})),
        (ValueError, "`mask` must leave every token something", lambda: (params, x, causal, {"mask": later})),
        (TypeError, "`params` must be an AttentionParams", lambda: (None, x, SPEC, {})),
    ]  # fmt: skip
    for error, message, build in cases:
        tree, tokens, spec, options = build()
        with pytest.raises(error, match=message):
            attention.attend(tree, tokens, spec, **options)


@pytest.mark.usefixtures("as_installed")
def test_bad_decays_and_draws():
    _, x = draw()
    for kind in ({"weights": "decay"}, {"weights": "channel_decay", "causal": True}):
        wrong = dataclasses.replace(SPEC, **kind)
        tree = draw(wrong)[0]
        for value, message in ((1.5, "> 0 and <= 1, got 1.5"), (0, "> 0 and <= 1, got 0"), (np.nan, "finite")):
            with pytest.raises(ValueError, match=rf"`params\.parts\['decay'\]` must be {message}"):
                attention.attend(tree.with_parts(decay=tree.parts["decay"].at[-1].set(value)), x, wrong)
    with pytest.raises(TypeError, match=r"`key` must be one typed key from jax.random.key"):
        attention.init(jnp.zeros(2, "uint32"), SPEC)
    with pytest.raises(ValueError, match="`gain` must be > 0"):
        attention.init(jax.random.key(0), SPEC, gain=0.0)
    with pytest.raises(ValueError, match=r"`gain` must be one number, got float32\[2\]"):
        attention.init(jax.random.key(0), SPEC, gain=jnp.ones(2))
    with pytest.raises(TypeError, match="`dtype` must be a floating-point dtype, got 'complex64'"):
        attention.init(jax.random.key(0), SPEC, dtype="complex64")
    with pytest.raises(
        ValueError, match=r"`dtype` must be a dtype that JAX holds, got 'float64', which needs jax\.conf"
    ):
        attention.init(jax.random.key(0), SPEC, dtype="float64")
    with pytest.raises(TypeError, match="`spec` must be an AttentionSpec, got None"):
        attention.attend(tree, x, None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="`rank` must be at most tokens=3, got 4"):
        attention.average_pool(3, 4)


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"sigmoid", "channel_decay", "gated_decay"}))
def test_padding_under_a_traced_mask_changes_no_weight_of_the_rest(key, name):
    """Rows of sinkhorn's weights depend on each other: a row that sees nothing must not stand in their columns."""
    spec = AttentionSpec(d_model=8, heads=2, weights=name)
    params, x, real = attention.init(key, spec), jax.random.normal(key, (6, 8)), jnp.arange(6) < 4
    padded = jax.jit(lambda mask: attention.attention_weights(params, x, spec, mask=mask))(real[:, None] & real[None])
    np.testing.assert_allclose(padded[:, :4, :4], attention.attention_weights(params, x[:4], spec), atol=1e-6)
    assert not padded[:, 4:].any() and not padded[..., 4:].any()
    if spec.kind.maps == 1 and spec.kind.reads == "scores":
        scores, seen = attention.scores(params, x, spec), (real[:, None] & real[None])[None]
        np.testing.assert_allclose(spec.kind(scores, seen, params.parts), padded, atol=1e-6)


@pytest.mark.parametrize("hidden", [[], [3], [2]])
def test_sinkhorn_leaves_out_rows_that_see_nothing(key, hidden):
    """Also where the others see the column of such a row, or nobody sees some column; by hand in NumPy."""
    spec = AttentionSpec(d_model=8, heads=2, weights="sinkhorn")
    params, x, seen = attention.init(key, spec), jax.random.normal(key, (6, 8)), np.ones((6, 6), bool)
    seen[[0, 3]], seen[:, hidden] = False, False
    right = np.exp(np.asarray(attention.scores(params, x, spec), float)) * seen
    for step in range(spec.sinkhorn_steps):
        total = right.sum(axis=1 if step % 2 else 2, keepdims=True)
        right = right / np.where(total == 0, 1, total)

    def weights(params, mask):
        return attention.attention_weights(params, x, spec, mask=mask)

    np.testing.assert_allclose(jax.jit(weights)(params, seen), right, atol=1e-6)
    slopes = jax.jit(jax.grad(lambda params, mask: jnp.sum(weights(params, mask) ** 2)))(params, seen)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


@pytest.mark.parametrize("name", ["decay", "channel_decay"])
@pytest.mark.parametrize("rate", [1.5, 0.0, -0.5])
def test_a_traced_decay_outside_of_its_range_is_not_a_number(key, name, rate):
    spec = AttentionSpec(d_model=8, heads=2, weights=name, causal=True)
    params, x = attention.init(key, spec), jax.random.normal(key, (6, 8))
    run = jax.jit(lambda params: attention.attend(params, x, spec))
    assert np.isfinite(run(params)).all()
    assert np.isnan(run(params.with_parts(decay=jnp.full_like(params.parts["decay"], rate)))).any()
