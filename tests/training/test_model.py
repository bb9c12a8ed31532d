"""The model against NumPy written out by hand, its options, and the errors of bad input."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rc_jax import network
from rc_jax.attention import AttentionSpec
from rc_jax.training import ModelSpec, Transformer

STACK = network.StackSpec(
    attention=AttentionSpec(d_model=6, heads=2, causal=True),
    depth=2,
    skip=True,
    mlp=network.MLPSpec(width=5),
    norm="pre",
)
SPEC = ModelSpec(stack=STACK, inputs=7, outputs=3, tokens=4, final_norm=True)


def model(**changes):
    return Transformer(jax.random.key(0), dataclasses.replace(SPEC, **changes))


def norm(x):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)


def by_hand(made, x, scale):
    """The same model in NumPy's double precision, one head and one query at a time."""
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, float), made.layers())
    hidden = np.asarray(made.embedding[...], float)[x] + np.asarray(made.positions[...], float)[: len(x)]
    for layer in range(2):
        att, mlp = (jax.tree.map(lambda leaf: leaf[layer], part) for part in (weights.attention, weights.mlp))  # noqa: B023
        read, add = norm(hidden), np.zeros_like(hidden)
        for head in range(2):
            query, key, value = (read @ weight[head] for weight in (att.query, att.key, att.value))
            for i in range(len(x)):
                row = np.exp(scale * key[: i + 1] @ query[i])
                add[i] += (row / row.sum()) @ value[: i + 1] @ att.output[head]
        hidden = hidden + add
        inner = np.maximum(norm(hidden) @ mlp.weight_in + mlp.bias_in, 0)
        hidden = hidden + inner @ mlp.weight_out + mlp.bias_out
    return norm(hidden) @ np.asarray(made.readout[...], float) + np.asarray(made.readout_bias[...], float)


def test_model_against_numpy():
    made, x = model(), np.array([6, 0, 3, 3])
    for scale in (None, 1.7):
        expected = by_hand(made, x, 3**-0.5 if scale is None else scale)
        np.testing.assert_allclose(made(jnp.asarray(x), scale=scale), expected, atol=2e-6)


@pytest.mark.slow
def test_a_trained_scale_starts_at_the_given_value_and_gets_a_gradient():
    learned = Transformer(jax.random.key(0), SPEC, scale=1.7)
    fixed, x = model(), jnp.array([6, 0, 3, 3])
    np.testing.assert_allclose(learned(x), fixed(x, scale=1.7), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(learned(x, scale=0.5), fixed(x, scale=0.5))
    gradient = nnx.grad(lambda made: jnp.sum(made(x) ** 2))(learned)
    assert (np.abs(np.asarray(gradient.log_scale[...])) > 1e-6).all()
    assert fixed.log_scale is None
    assert len(jax.tree.leaves(nnx.state(learned))) == len(jax.tree.leaves(nnx.state(fixed))) + 1


def test_pooling_reads_the_mean_of_the_tokens():
    of_tokens, pooled = model(final_norm=False), model(final_norm=False, pooled=True)
    x = jnp.array([6, 0, 3, 3])
    np.testing.assert_allclose(pooled(x), of_tokens(x).mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("pooled", [False, True])
def test_logits_of_an_unknown_token_outside_the_vocabulary_are_nan(pooled):
    made = model(pooled=pooled)
    logits = jax.jit(lambda x: made(x))
    np.testing.assert_allclose(logits(jnp.array([6, 0, 3, 3])), made(jnp.array([6, 0, 3, 3])), atol=1e-6)
    inside = jnp.array([6, 0])
    np.testing.assert_array_equal(jax.jit(made.embed)(inside), made.embedding[...][inside] + made.positions[:2])
    for wrong in (-1, 7, 2**31 - 1, -(2**31)):
        found = logits(jnp.array([6, 0, wrong, 3]))
        assert np.isnan(found if pooled else found[2:]).all(), wrong


SINUSOIDAL = pytest.param("sinusoidal", marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["learned", SINUSOIDAL, None])
def test_only_positions_tell_the_order(positions):
    stack = dataclasses.replace(STACK, attention=AttentionSpec(d_model=6, heads=2))
    pooled = model(stack=stack, positions=positions, pooled=True)
    one, other = pooled(jnp.array([6, 0, 3, 1])), pooled(jnp.array([3, 6, 1, 0]))
    assert bool(jnp.allclose(one, other, atol=1e-5)) == (positions is None)


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["learned", SINUSOIDAL, None])
@pytest.mark.parametrize("symbols", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_tokens_enter_with_variance_one(positions, symbols):
    stack = network.StackSpec(attention=AttentionSpec(d_model=512, heads=1), depth=1)
    spec = ModelSpec(stack=stack, inputs=64, outputs=2, tokens=64, positions=positions, symbols=symbols)
    x = jnp.arange(64) if symbols else jax.random.normal(jax.random.key(1), (64, 64))
    entries = Transformer(jax.random.key(0), spec).embed(x)
    assert abs(float(jnp.mean(entries**2)) - 1) < 0.05  # 5 standard errors of 64 tokens of vectors are 0.05


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["decay", "channel_decay"])
def test_rates_of_decay_stay_rates_however_far_they_are_trained(weights):
    attend = AttentionSpec(d_model=6, heads=2, weights=weights, causal=True)
    stack = network.StackSpec(attention=attend, depth=1)
    decaying = model(stack=stack)
    drawn = network.init(jax.random.fold_in(jax.random.key(0), 1), stack).attention.parts["decay"]
    np.testing.assert_allclose(decaying.layers().attention.parts["decay"], drawn, rtol=1e-6)
    for far in (-200.0, 200.0):
        decaying.parts.attention.parts["decay"][...] = jnp.full(drawn.shape, far)
        rate = decaying.layers().attention.parts["decay"]
        assert ((rate > 0) & (rate <= 1)).all()
        assert np.isfinite(decaying(jnp.array([6, 0, 3]))).all()


LOW_RANK = network.StackSpec(attention=AttentionSpec(d_model=6, rank=2, tokens=4), depth=1)
ODD = network.StackSpec(attention=AttentionSpec(d_model=3), depth=1)
REFUSED = [
    (lambda: model()(jnp.array([0, 7])), ValueError, "symbols 0 … 6, got 7"),
    (lambda: model()(jnp.zeros(5, int)), ValueError, "at most 4 tokens"),
    (lambda: model(stack=LOW_RANK)(jnp.zeros(3, int)), ValueError, "`x` must have 4 tokens, got"),
    (lambda: model()(jnp.zeros((2, 7))), TypeError, "`x` must be an array of int"),
    (
        lambda: model(symbols=False)(jnp.zeros((2, 7), jnp.bfloat16)),
        TypeError,
        "dtype of the model, float32, got bfloa",
    ),
    (lambda: Transformer(jnp.zeros(2), SPEC), TypeError, "`key` must be"),
    (lambda: Transformer(jax.random.key(0), SPEC, scale=jnp.ones(3)), ValueError, "one for each of 2 heads"),
    (lambda: Transformer(jax.random.key(0), SPEC, scale=-1.0), ValueError, "`scale` must be"),
    (lambda: Transformer(jax.random.key(0), STACK), TypeError, "`spec` must be"),  # pyright: ignore
    (lambda: model(stack=None), TypeError, "`stack` must be"),
    (lambda: model(outputs=0), ValueError, "`outputs` must be"),
    (lambda: model(stack=ODD, positions="sinusoidal"), ValueError, "d_model=3 is odd"),
    (lambda: model(positions="rotary"), ValueError, "`positions` must be"),
]


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("call", "error", "text"), REFUSED)
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()
