"""Linear attention from sums against the same layer from pairs; its memory by XLA's own account."""

import dataclasses
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention
from rc_jax.attention import AttentionSpec
from rc_jax.attention.specification import FeatureMap
from tests.attention import textbook
from tests.attention.textbook import draw

SPEC = AttentionSpec(d_model=12, heads=3, weights="linear", bias=True)


def check(layers, dtype):
    """Both ways for every layer, compiled together."""
    drawn = [(spec, *draw(spec, dtype, 11)) for spec in layers]

    @jax.jit
    def both(arrays):
        return [
            (attention.linear_attend(params, x, spec, chunk=3), attention.attend(params, x, spec))
            for spec, (params, x) in zip(layers, arrays, strict=True)
        ]

    for out, expected in both([arrays for _, *arrays in drawn]):
        assert out.dtype == dtype
        scale = float(jnp.abs(expected).max())
        np.testing.assert_allclose(out, expected, rtol=0, atol=64 * float(jnp.finfo(dtype).eps) * scale)


def test_sums_agree_with_pairs(dtype):
    check([dataclasses.replace(SPEC, causal=causal) for causal in (False, True)], dtype)


def test_gates_on_the_output_are_those_of_attend():
    check([dataclasses.replace(SPEC, output_gate=gate) for gate in ("elementwise", "headwise")], "float32")


@pytest.mark.slow
def test_every_feature_map_agrees_with_pairs(x64):
    maps = [name for name in get_args(FeatureMap) if name != "elu"]
    check([dataclasses.replace(SPEC, causal=True, feature_map=name) for name in maps], "float64")


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_agree_with_pairs(x64, causal):
    spec = dataclasses.replace(SPEC, causal=causal)
    params, x = draw(spec)
    slopes, expected = jax.jit(
        lambda params, x: tuple(
            jax.grad(lambda params, x, layer=layer: jnp.sum(jnp.sin(layer(params, x, spec))), (0, 1))(params, x)
            for layer in (lambda *args: attention.linear_attend(*args, chunk=4), attention.attend)
        )
    )(params, x)
    for one, other in zip(jax.tree.leaves(slopes), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_sums_of_narrow_types_are_long(key):
    """One run a token: what is carried from run to run must not have bfloat16's eight bits."""
    spec = dataclasses.replace(SPEC, causal=True)
    params, x = draw(spec, "bfloat16", 2048)
    one, all_ = (attention.linear_attend(params, x, spec, chunk=chunk)[-8:] for chunk in (1, 2048))
    np.testing.assert_allclose(one.astype(float), all_.astype(float), rtol=0, atol=0.02 * float(jnp.abs(all_).max()))


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_exponentials_of_any_size(x64, causal):
    """A token so long that e^k overflows, and that its features dwarf those of earlier tokens."""
    spec = dataclasses.replace(SPEC, causal=causal, feature_map="exp")
    params, x = draw(spec, tokens=9)
    x = x.at[5].multiply(2000)
    expected = textbook.layer(params, x, spec, textbook.visible(spec, len(x)))[1]
    for chunk in (1, 4, 9):
        out = attention.linear_attend(params, x, spec, chunk=chunk)
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    slope = jax.grad(lambda x: attention.linear_attend(params, x, spec, chunk=4).sum())(x)
    assert bool(jnp.all(jnp.isfinite(slope)))


@pytest.mark.slow
def test_a_row_without_a_positive_feature_is_what_attend_makes_of_it():
    spec = dataclasses.replace(SPEC, feature_map="relu", bias=False)
    params, x = draw(spec, "float32", 5)
    params = params._replace(query=-jnp.abs(params.query))
    out = attention.linear_attend(params, jnp.abs(x), spec)
    assert not np.asarray(out).any()
    np.testing.assert_array_equal(out, attention.attend(params, jnp.abs(x), spec))
    slope = jax.grad(lambda x: attention.linear_attend(params, x, spec).sum())(jnp.abs(x))
    assert bool(jnp.all(jnp.isfinite(slope)))


@pytest.mark.slow
def test_memory_is_linear_in_the_number_of_tokens():
    def temporary(layer, spec, tokens):
        params = jax.eval_shape(lambda: attention.init(jax.random.key(0), spec))
        x = jax.ShapeDtypeStruct((tokens, 12), jnp.float32)
        compiled = jax.jit(lambda params, x: layer(params, x, spec)).lower(params, x).compile()
        analysis = compiled.memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    causal = dataclasses.replace(SPEC, causal=True)
    for spec in (SPEC, causal):
        small, large = (temporary(attention.linear_attend, spec, n) for n in (1024, 4096))
        assert large < 5 * small
        assert temporary(attention.attend, spec, 4096) > 4096**2 > 4 * large


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    params, x = draw(SPEC, "float32", 4)
    with pytest.raises(ValueError, match="`weights` must be 'linear' for sums in the place of pairs, got 'softmax'"):
        attention.linear_attend(params, x, dataclasses.replace(SPEC, weights="softmax"))
    for change in ({"window": 1}, {"top_k": 2}, {"rank": 2, "tokens": 4}):
        with pytest.raises(ValueError, match=f"`{next(iter(change))}` must be None for sums"):
            attention.linear_attend(params, x, dataclasses.replace(SPEC, **change))
    with pytest.raises(ValueError, match="`chunk` must be an integer >= 1, got 0"):
        attention.linear_attend(params, x, SPEC, chunk=0)
    with pytest.raises(ValueError, match="`x` must have d_model=12 features"):
        attention.linear_attend(params, x[:, :5], SPEC)
    with pytest.raises(ValueError, match="with token >= 1"):
        attention.linear_attend(params, x[:0], SPEC)
    with pytest.raises(TypeError, match="`x` must have the dtype of"):
        attention.linear_attend(params, x.astype("bfloat16"), SPEC)
