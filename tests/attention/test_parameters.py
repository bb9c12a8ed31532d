"""Parameters of a layer: where they start, how they are drawn, what is missing, and the products they are for."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention
from rc_jax.attention import AttentionSpec
from rc_jax.attention.parameters import project

SPEC = AttentionSpec(d_model=12, heads=3, bias=True)


def test_initial_weights_keep_the_variance(key):
    spec = AttentionSpec(d_model=256, heads=4, d_head=32, bias=True)
    params = attention.init(key, spec, gain=2.0, bias_std=0.3)
    pool = attention.init(key, AttentionSpec(d_model=8, heads=2, rank=50, tokens=2000)).parts["pool"]
    drawn = ((params.query, 2 / 16), (params.output, 2 / 128**0.5), (params.key_bias, 0.3), (pool, 2000**-0.5))
    for weight, std in drawn:
        z = (float(jnp.mean(jnp.square(weight))) / std**2 - 1) / (2 / weight.size) ** 0.5
        assert abs(z) < 5
    flat = jnp.concatenate([params.query.ravel(), params.key.ravel(), params.value.ravel()])
    assert jnp.unique(flat).size > 0.99 * flat.size  # no number is drawn twice


def test_where_parameters_start(x64):
    params = attention.init(jax.random.key(0), dataclasses.replace(SPEC, weights="softmax_sink"))
    np.testing.assert_array_equal(params.parts["sink"], 0)
    params = attention.init(jax.random.key(0), dataclasses.replace(SPEC, weights="differential"))
    np.testing.assert_array_equal(params.parts["subtracted"], 0.8)


def test_gains_start_at_one_and_leave_the_other_draws_alone():
    spec = dataclasses.replace(SPEC, qk_norm="rms")
    with_gains, without = (attention.init(jax.random.key(0), each) for each in (spec, SPEC))
    assert (with_gains.parts["query_norm"] == 1).all() and (with_gains.parts["key_norm"] == 1).all()
    np.testing.assert_array_equal(with_gains.query, without.query)


@pytest.mark.slow
def test_decays_start_as_retentive_networks_do(key):
    spec = AttentionSpec(d_model=9, heads=3, weights="decay")
    np.testing.assert_array_equal(attention.init(key, spec).parts["decay"], [1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128])
    many = AttentionSpec(d_model=140, heads=140, weights="decay")
    assert float(attention.init(key, many, dtype="bfloat16").parts["decay"][-1]) == 1 - 2.0**-8  # not 1
    gated = attention.init(key, dataclasses.replace(many, weights="gated_decay", causal=True), gain=2.0)
    np.testing.assert_allclose(gated.parts["gate_bias"], np.log(np.exp2(np.arange(5.0, 145.0)) - 1), rtol=1e-6)
    assert abs(float(gated.parts["gate"].std()) * 140**0.5 / 2 - 1) < 5 / (2 * gated.parts["gate"].size) ** 0.5
    decay = attention.init(key, AttentionSpec(d_model=12, heads=3, weights="channel_decay", causal=True)).parts["decay"]
    assert decay.shape == (3, 4)
    np.testing.assert_allclose(decay[1], 1 - 0.5 ** (1 + 7 * np.arange(4) / 3), rtol=1e-6)


def test_parameters_without_a_use_are_left_aside():
    """As documented: a layer without biases takes the parameters of one with them."""
    params, x = attention.init(jax.random.key(0), AttentionSpec(d_model=4, bias=True), bias_std=1.0), jnp.ones((3, 4))
    plain = params._replace(query_bias=None, key_bias=None, value_bias=None, output_bias=None)
    without = AttentionSpec(d_model=4)
    np.testing.assert_array_equal(attention.attend(params, x, without), attention.attend(plain, x, without))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [3, 200])
def test_projections_of_wide_heads_are_what_they_say(tokens, key):
    spec = AttentionSpec(d_model=128, heads=2)
    shapes = (tokens, 128), (2, 128, 64), (2, 64)
    x, weight, bias = (jax.random.normal(jax.random.fold_in(key, i), shape) for i, shape in enumerate(shapes))
    expected = np.asarray(x, float) @ np.asarray(weight, float) + np.asarray(bias, float)[:, None]
    np.testing.assert_allclose(project(x, weight, bias, spec), expected, atol=128 * 4 * np.finfo("float32").eps)
