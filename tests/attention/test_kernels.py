"""Weights at large and small scores, in few digits, on long rows, and their gradients; formulas: test_formulas."""

import dataclasses
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention
from rc_jax.attention import KINDS, AttentionSpec, Rotary
from tests.attention import textbook
from tests.attention.test_formulas import NARROW, ONLY_CAUSAL
from tests.attention.textbook import draw

SPEC = AttentionSpec(d_model=12, heads=3, bias=True)


@pytest.mark.slow
def test_signed_weights_of_zero_scores_are_zero(x64):
    rows = jnp.abs(draw(SPEC)[1])[None]
    zeros = KINDS["signed"](rows.at[0, 0].set(0.0).at[0, 1, :3].set(0.0))
    np.testing.assert_array_equal(zeros[0, 0], 0)
    np.testing.assert_allclose(zeros[0, 1], np.r_[[0.0] * 3, KINDS["softmax"](rows[:, 1:2, 3:])[0, 0]], rtol=1e-14)


def test_sinkhorn_tends_to_both_sums_and_ends_with_rows(x64):
    rows = jax.random.normal(jax.random.key(3), (2, 5, 5)) * 3
    np.testing.assert_allclose(KINDS["sinkhorn"](rows, sinkhorn_steps=1), KINDS["softmax"](rows), rtol=1e-13)
    doubly = KINDS["sinkhorn"](rows, sinkhorn_steps=401)
    np.testing.assert_allclose(doubly.sum(axis=-1), 1, rtol=1e-13)
    np.testing.assert_allclose(doubly.sum(axis=-2), 1, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_scores_do_not_overflow(dtype):
    """At 10⁴ times the usual scale softmax, its Euclidean form and its signed form are all one-hot, up to a sign."""
    params, x = draw(SPEC, dtype="float32")
    params, x = jax.tree.map(lambda w: w.astype(dtype), params), x.astype(dtype)
    rows = {
        name: attention.attention_weights(params, x, dataclasses.replace(SPEC, weights=name), scale=1e4)
        for name in ("softmax", "l2", "signed")
    }
    assert all(row.dtype == dtype for row in rows.values())
    np.testing.assert_array_equal(rows["l2"].max(axis=-1).astype("float32"), 1)
    np.testing.assert_array_equal(jnp.abs(rows["signed"]).max(axis=-1).astype("float32"), 1)
    np.testing.assert_array_equal(rows["l2"].argmax(axis=-1), rows["softmax"].argmax(axis=-1))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", NARROW)
def test_large_scores_neither_overflow_nor_stop_gradients(kind, dtype):
    spec = dataclasses.replace(SPEC, weights=kind, output_gate="headwise", soft_cap=1e6)
    params, x = draw(spec, dtype)
    for size in (1e-4, 1e4):
        out, slopes = jax.value_and_grad(lambda p, s=size: attention.attend(p, x, spec, scale=s).sum())(params)
        assert out.dtype == dtype
        chex.assert_tree_all_finite(slopes)
    low = attention.attend(params, x, spec).astype("float32")
    wide = attention.attend(jax.tree.map(lambda w: w.astype("float32"), params), x.astype("float32"), spec)
    assert float(jnp.abs(low - wide).max()) <= 64 * float(jnp.finfo(dtype).eps) * float(jnp.abs(wide).max())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_agree_with_finite_differences(x64, kind):
    """What keeps powers from overflow, such as the division by the row maximum, must not show in the derivative."""
    capped = {} if KINDS[kind].reads != "scores" else {"soft_cap": 2.0}
    spec = dataclasses.replace(SPEC, weights=kind, causal=kind in ONLY_CAUSAL, output_gate="elementwise", **capped)
    params, x = draw(spec)
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(0)
    moves = [jnp.asarray(rng.normal(size=leaf.shape)) for leaf in leaves]
    loss = lambda p: jnp.sum(jnp.sin(attention.attend(p, x, spec)))  # noqa: E731
    at = lambda t: float(loss(tree.unflatten([a + t * b for a, b in zip(leaves, moves, strict=True)])))  # noqa: E731
    slope = sum(float(jnp.vdot(a, b)) for a, b in zip(jax.tree.leaves(jax.grad(loss)(params)), moves, strict=True))
    step = 1e-4
    measured = (8 * (at(step) - at(-step)) - at(2 * step) + at(-2 * step)) / (12 * step)
    assert abs(slope - measured) < 1e-8 * max(1, abs(slope))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.reads == "scores" and kind.maps == 1])
def test_gradients_are_finite_where_all_scores_are_zero(kind):
    parts = attention.init(jax.random.key(0), AttentionSpec(d_model=4, weights=kind)).parts
    slope = jax.grad(lambda s: jnp.sum(jnp.sin(KINDS[kind](s, None, parts))))(jnp.zeros((1, 5, 5)))
    assert bool(jnp.all(jnp.isfinite(slope)))


def test_sharp_powers_neither_overflow_nor_underflow():
    for kernel in ("power6", "relu_squared"):
        spec = dataclasses.replace(SPEC, weights=kernel)
        params, x = draw(spec, "float32")
        for size in (2.0**-40, 2.0**40):  # powers of two scale without rounding: not a bit may change
            np.testing.assert_array_equal(
                attention.attention_weights(params, x, spec, scale=size),
                attention.attention_weights(params, x, spec, scale=1.0),
            )


def test_top_k_of_all_tokens_is_dense_and_of_one_is_hard(x64):
    params, x = draw(SPEC)
    dense = attention.attention_weights(params, x, SPEC)
    np.testing.assert_array_equal(
        attention.attention_weights(params, x, dataclasses.replace(SPEC, top_k=7)), np.asarray(dense)
    )
    hard = attention.attention_weights(params, x, dataclasses.replace(SPEC, top_k=1))
    np.testing.assert_array_equal(hard, np.asarray(jax.nn.one_hot(jnp.argmax(dense, axis=-1), 7)))


def test_equal_scores_stay_in_together(x64):
    spec = dataclasses.replace(SPEC, bias=False, top_k=2)  # scores of zeros are equal to the bit, whatever the product
    params, x = draw(spec)
    np.testing.assert_allclose(attention.attention_weights(params, jnp.zeros_like(x), spec), 1 / 7, rtol=1e-12)


def test_average_pool_against_numpy():
    for tokens, rank in ((12, 3), (7, 2), (5, 5), (9, 1)):
        pool = np.asarray(attention.average_pool(tokens, rank))
        x = np.random.default_rng(0).normal(size=tokens)
        runs = [np.flatnonzero(np.arange(tokens) * rank // tokens == r) for r in range(rank)]
        assert max(map(len, runs)) - min(map(len, runs)) <= 1
        np.testing.assert_allclose(pool @ x, [x[run].mean() for run in runs], rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_same_in_any_dtype_under_vmap_and_with_gradients():
    spec = dataclasses.replace(SPEC, qk_norm="layer", rotary=Rotary(), scale_law="log_tokens", causal=True)
    params, x = draw(spec, "float32")
    batch = jnp.stack([x, -x])
    out = jax.vmap(lambda y: attention.attend(params, y, spec))(batch)
    np.testing.assert_allclose(out[0], attention.attend(params, x, spec), rtol=1e-5, atol=1e-6)
    half = jax.tree.map(lambda w: w.astype("bfloat16"), params)
    low = attention.attend(half, x.astype("bfloat16"), spec)
    assert low.dtype == "bfloat16"
    np.testing.assert_allclose(low.astype("float32"), out[0], rtol=0, atol=0.1)
    slopes = jax.grad(lambda p: jnp.sum(attention.attend(p, x, spec) ** 2))(params)
    chex.assert_tree_all_finite(slopes)
    assert float(jnp.abs(slopes.parts["query_norm"]).max()) > 0


@pytest.mark.parametrize("kind", ["rms", pytest.param("layer", marks=pytest.mark.slow)])
def test_normalised_queries_do_not_see_how_large_tokens_are(kind):
    """To where tokens themselves overflow; their squares do from 1e19 on, and derivatives fall like 1/size."""
    spec = attention.AttentionSpec(d_model=8, heads=2, qk_norm=kind)
    params, x = attention.init(jax.random.key(0), spec), jax.random.normal(jax.random.key(1), (5, 8))
    slopes = jax.jit(jax.value_and_grad(lambda x: attention.attention_weights(params, x, spec)[0, 1, 0]))
    value, slope = slopes(1e8 * x)
    for size in (1e10, 1e12, 1e19, 1e25, 1e37):
        there, falling = slopes(size * x)
        assert abs(there - value) < 1e-6
        if size < 1e30:  # beyond, they are too small for float32
            np.testing.assert_allclose(size * falling, 1e8 * slope, atol=1e-5)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_cosines_do_not_see_the_size_of_their_vectors(size):
    spec = dataclasses.replace(SPEC, scores="cosine", bias=False)
    params, x = draw(spec, "float32")
    np.testing.assert_allclose(
        attention.scores(params, size * x, spec), attention.scores(params, x, spec), rtol=1e-4, atol=1e-5
    )


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt_oss", "gemma2"])
def test_agrees_with_transformers(x64, family):
    """The eager attention of the models' own code, on our queries, keys and values."""
    torch = pytest.importorskip("torch")
    models = pytest.importorskip(f"transformers.models.{family}.modeling_{family}")
    changes = {"weights": "softmax_sink"} if family == "gpt_oss" else {"soft_cap": 0.6}
    spec = dataclasses.replace(SPEC, causal=True, **changes)
    params, x = draw(spec)
    query, key, value = (torch.tensor(rows)[None] for rows in textbook.projections(params, x))
    sinks = torch.tensor(np.asarray(params.parts["sink"])) if "sink" in params.parts else None
    module = types.SimpleNamespace(num_key_value_groups=1, sinks=sinks, training=False)
    hidden = torch.tensor(np.where(textbook.visible(spec), 0, -np.inf))[None, None]
    options = {} if family == "gpt_oss" else {"softcap": spec.soft_cap}
    weights = models.eager_attention_forward(module, query, key, value, hidden, scaling=0.5, **options)[1]
    tolerance = 1e-12 if family == "gpt_oss" else 1e-6  # Gemma's code has its softmax in single precision
    np.testing.assert_allclose(attention.attention_weights(params, x, spec), weights[0].numpy(), atol=tolerance)
