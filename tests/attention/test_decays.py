"""Exponential features and weights that fade with distance: any size, long rows, few digits, special cases."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention
from rc_jax.attention import AttentionSpec
from rc_jax.attention.kinds.decays import FEATURES
from tests.attention import textbook
from tests.attention.textbook import draw

SPEC = AttentionSpec(d_model=12, heads=3, bias=True)
GATED = AttentionSpec(d_model=12, heads=3, weights="gated_decay", causal=True)
CHANNELS = AttentionSpec(d_model=12, heads=3, weights="channel_decay", causal=True, bias=True)


@pytest.mark.slow
def test_exponential_features_neither_overflow_nor_change_their_gradient(x64):
    spec = dataclasses.replace(SPEC, weights="linear", feature_map="exp")
    params, x = draw(spec)

    def naive(x):
        scores = jnp.exp(attention.scores(params, x, spec))  # scores of exponential features are logarithms
        return jnp.sum(jnp.sin(scores / scores.sum(axis=-1, keepdims=True)))

    slope = jax.grad(lambda x: jnp.sum(jnp.sin(attention.attention_weights(params, x, spec))))(x)
    np.testing.assert_allclose(slope, jax.grad(naive)(x), rtol=1e-9, atol=1e-12)
    far = params._replace(query_bias=params.query_bias + 1000, key_bias=params.key_bias + 1000)
    np.testing.assert_allclose(
        attention.attention_weights(far, x, spec), attention.attention_weights(params, x, spec), rtol=1e-11
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "size", "options"),
    [
        ("float64", 2000, {"weights": "linear"}),
        ("float64", 2000, {"weights": "linear", "causal": True, "top_k": 2}),
        ("float64", 2000, {"weights": "channel_decay", "causal": True, "window": 2}),
        ("float32", 200, {"weights": "linear", "causal": True}),
        ("float32", 200, {"weights": "channel_decay", "causal": True}),
    ],
)
@pytest.mark.parametrize("graph", [False, True])
def test_one_large_token_leaves_exponential_features_of_others_alone(x64, dtype, size, options, graph):
    spec = dataclasses.replace(SPEC, feature_map="exp", **options)
    params, x = draw(spec, dtype=dtype)
    x = x.at[5].multiply(size)
    mask = textbook.GRAPH if graph else np.ones((7, 7), bool)
    expected = textbook.weights(params, x, spec, textbook.visible(spec, mask=mask))
    query, key, _ = textbook.projections(params, x)
    largest = np.abs(np.logaddexp.reduce(query[:, :, None] + key[:, None], axis=-1)).max()

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def look(params, mask):
        rows = attention.attention_weights(params, x, spec, mask=mask)
        return jnp.sum(jnp.sin(rows)), rows

    slope, got = look(params, jnp.asarray(mask))
    assert got.dtype == dtype
    tolerance = 4 * float(jnp.finfo(dtype).eps) * largest
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * 1e-3)
    chex.assert_tree_all_finite(slope)


def test_exponential_features_in_few_digits(x64):
    spec = dataclasses.replace(SPEC, weights="linear", feature_map="exp", rank=4, tokens=7)
    params, x = draw(spec)
    expected = attention.attention_weights(params, x, spec)
    low = attention.attention_weights(jax.tree.map(lambda w: w.astype("bfloat16"), params), x.astype("bfloat16"), spec)
    assert low.dtype == "bfloat16"
    np.testing.assert_allclose(low.astype("float64"), expected, atol=16 * 2.0**-7 * np.abs(expected).max())


def test_far_below_zero_elu_plus_one_keeps_its_digits():
    """Queries and keys of −20 … −40 in float32, where elu rounds to −1, so that one more than it is 0."""
    x = jnp.asarray([-40.0, -20.0, -1.0, 0.0, 2.0])
    phi = FEATURES["elu"]
    np.testing.assert_allclose(phi(x), [np.exp(-40), np.exp(-20), np.exp(-1), 1, 3], rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(phi))(x), [np.exp(-40), np.exp(-20), np.exp(-1), 1, 1], rtol=1e-6)
    spec = dataclasses.replace(SPEC, weights="linear", causal=True)
    params, x = draw(spec, dtype="float32")
    params = params._replace(query_bias=params.query_bias - 30, key_bias=params.key_bias - 30)
    exponential = dataclasses.replace(spec, feature_map="exp")  # which elu + 1 is there
    expected = textbook.weights(params, x, exponential, textbook.visible(spec))
    np.testing.assert_allclose(attention.attention_weights(params, x, spec), expected, rtol=1e-4)


def test_the_inverse_of_a_gate_has_two_diagonals(x64):
    """P = D⁻¹T and T⁻¹ = I − λ·shift, λ of the row: exact, with determinant Π p_ii > 0."""
    params, x = draw(GATED, tokens=9)
    gates = jax.nn.sigmoid(jnp.einsum("nd,hd->hn", x, params.parts["gate"]) + params.parts["gate_bias"][:, None])
    for rows, gate in zip(np.asarray(attention.attention_weights(params, x, GATED)), np.asarray(gates), strict=True):
        sums = 1 / rows.diagonal()
        expected = np.diag(sums) - np.diag(gate[1:] * sums[:-1], -1)
        np.testing.assert_allclose(np.linalg.inv(rows), expected, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(np.linalg.det(rows), rows.diagonal().prod(), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["elu", "exp"])
def test_the_past_is_forgotten_at_the_smallest_decay(x64, name):
    spec = dataclasses.replace(CHANNELS, feature_map=name)
    params, x = draw(spec)
    gone = params.with_parts(decay=jnp.full_like(params.parts["decay"], 1e-300))
    itself = np.broadcast_to(np.eye(7), (3, 7, 7))
    np.testing.assert_allclose(attention.attention_weights(gone, x, spec), itself, rtol=1e-14, atol=1e-290)
    slope = jax.grad(lambda p: jnp.sum(jnp.sin(attention.attend(p, x, spec))))(gone)
    chex.assert_tree_all_finite(slope)


def test_the_smallest_decay_sees_itself_only():
    spec = dataclasses.replace(SPEC, weights="decay")
    params, x = draw(spec, "float32")
    least = params.with_parts(decay=jnp.full(3, jnp.finfo("float32").tiny))
    weights = attention.attention_weights(least, x, spec)
    np.testing.assert_allclose(weights, np.broadcast_to(np.eye(7), (3, 7, 7)), atol=1e-37)
    slope = jax.grad(lambda p: jnp.sum(jnp.sin(attention.attention_weights(p, x, spec))))(least).parts["decay"]
    assert bool(jnp.all(jnp.isfinite(slope)))


@pytest.mark.slow
def test_long_rows_of_a_decay_in_few_digits(key):
    spec = dataclasses.replace(SPEC, weights="decay", causal=True, bias=False)
    params, x = attention.init(key, spec, dtype="bfloat16"), jnp.ones((1024, 12), "bfloat16")
    rate, age = np.asarray(params.parts["decay"], float)[:, None], np.arange(1024)[::-1]
    row = attention.attention_weights(params, x, spec)[:, -1].astype("float32")
    np.testing.assert_allclose(row, rate**age / (rate**age).sum(axis=1, keepdims=True), rtol=2.0**-8, atol=1e-30)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_long_rows_keep_their_digits(x64, dtype):
    """260 tokens shut the gate, e^(−2600) of what was; 40 more hold it open: nothing cancels or overflows."""
    n, shut = 300, 260
    x = np.zeros((n, 12))
    x[:shut, 0], x[shut:, 0] = -10, 8
    gate = jnp.zeros((3, 12), dtype).at[:, 0].set(1)
    params = draw(GATED, dtype)[0].with_parts(gate=gate, gate_bias=jnp.zeros(3, dtype))
    last = attention.attention_weights(params, jnp.asarray(x, dtype), GATED)[0, -1].astype("float64")
    age = np.arange(n)[::-1]
    logs = np.minimum(age, n - shut) * np.log1p(np.exp(-8)) + np.maximum(age - (n - shut), 0) * np.log1p(np.exp(10))
    expected = np.exp(-logs)
    tolerance = 8 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(last, expected / expected.sum(), rtol=tolerance, atol=1e-10)


def test_long_rows_of_channels_in_few_digits(x64):
    params, tokens = draw(CHANNELS, "bfloat16", tokens=300)
    params = params.with_parts(decay=jnp.full((3, 4), 0.5, "bfloat16"))
    rows = attention.attention_weights(params, tokens, CHANNELS)
    assert rows.dtype == "bfloat16" and bool(jnp.all(jnp.isfinite(rows)))
    exact = textbook.weights(params, tokens[-40:], CHANNELS, np.tri(40, dtype=bool))[:, -1]
    np.testing.assert_allclose(rows[:, -1, -40:].astype("float64"), exact, atol=16 * 2.0**-7)
