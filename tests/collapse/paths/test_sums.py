"""Sums over paths against every path written out, and at their edges."""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rc_jax import collapse, network
from tests.collapse.paths.networks import draw, stack
from tests.oracles import paths as oracle

TOLERANCE = 1e-13


def distance(got, want):
    """Largest error of any length, relative to the largest entry of that length (or to 1 where there is none)."""
    size = np.abs(want).max(axis=(1, 2))
    return float((np.abs(np.asarray(got, np.float64) - want).max(axis=(1, 2)) / np.where(size > 0, size, 1)).max())


@pytest.mark.parametrize(
    ("seed", "masking"),
    [(0, "causal"), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, None), (1, None), (1, "window")))],
)
def test_sums_agree_with_all_729_paths_written_out(x64, seed, masking):
    spec = stack(causal=masking == "causal", window=1 if masking == "window" else None)
    params, x = draw(seed, spec)
    index = np.arange(5)
    seen = {"causal": np.tri(5) > 0, "window": abs(index[:, None] - index) <= 1, None: None}[masking]
    layers = oracle.frozen(params, x, spec, seen)
    assert len(oracle.choices(6, 2, True)) == 729
    want = oracle.length_sums(layers, np.asarray(x), spec)
    assert distance(collapse.path_length_sums(params, x, spec), want) < TOLERANCE


@pytest.mark.parametrize("skip", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_biases_start_paths_at_their_layer(x64, skip):
    spec = stack(depth=4, skip=skip, bias=True)
    params, x = draw(0, spec)
    got = collapse.path_length_sums(params, x, spec)
    want = oracle.length_sums(oracle.frozen(params, x, spec), np.asarray(x), spec)
    assert distance(got, want) < TOLERANCE
    if not skip:
        # Of length 0 there is the last layer's output bias; what starts at a bias is the same for all tokens.
        np.testing.assert_allclose(got[0], np.tile(params.attention.output_bias[-1], (5, 1)), rtol=1e-14)
        np.testing.assert_allclose(got[:-1], np.broadcast_to(got[:-1, :1], got[:-1].shape), rtol=1e-12)


@pytest.mark.parametrize(
    ("skip", "change"),
    [
        pytest.param(True, {"bias": True}, marks=pytest.mark.slow),
        (False, {"causal": True, "bias": True}),
        pytest.param(True, {"weights": "identity", "bias": True}, marks=pytest.mark.slow),
        (True, {"weights": "relu_squared"}),
        pytest.param(True, {"weights": "linear", "window": 1}, marks=pytest.mark.slow),
        pytest.param(False, {"weights": "decay", "causal": True}, marks=pytest.mark.slow),
        pytest.param(True, {"scores": "cosine", "bias": True}, marks=pytest.mark.slow),
        (False, {"scores": "additive", "weights": "power6"}),
    ],
    ids=str,
)
def test_lengths_add_up_to_the_network(dtype, skip, change):
    spec = stack(depth=3, skip=skip, **change)
    params, x = draw(1, spec, dtype, size=0.5)
    graph = jnp.asarray(np.eye(5) + np.roll(np.eye(5), 1, axis=1) > 0)
    options = {} if dtype == "float32" else {"mask": graph}
    if options and spec.attention.kind.reads == "scores":  # others have no scale
        options["scale"] = jnp.array([0.5, 2.0], dtype)
    sums = collapse.path_length_sums(params, x, spec, **options)
    out = network.apply(params, x, spec, **options)
    assert sums.dtype == out.dtype
    largest = float(jnp.abs(sums).sum(axis=0).max())
    assert largest > 0
    assert float(jnp.abs(sums.sum(axis=0) - out).max()) <= 100 * float(jnp.finfo(dtype).eps) * largest


def test_lengths_add_up_in_layers_of_two_kinds_with_capped_logits():
    spec = stack(depth=3, skip=True, causal=True, soft_cap=0.5)
    spec = dataclasses.replace(spec, local=dataclasses.replace(spec.attention, window=1), local_layers=(0, 2))
    params, x = draw(1, spec, "float32", size=0.5)
    sums, out = collapse.path_length_sums(params, x, spec), network.apply(params, x, spec)
    np.testing.assert_allclose(sums.sum(axis=0), out, atol=1e-5)
    assert np.abs(network.apply(params, x, dataclasses.replace(spec, local_layers=(1,))) - out).max() > 1e-3


def test_a_scale_is_that_of_the_layers_that_read_scores():
    spec = stack(depth=2, skip=True, causal=True)
    linear = dataclasses.replace(spec.attention, weights="linear")
    spec = dataclasses.replace(spec, local=linear, local_layers=(0,))
    params, x = draw(1, spec, "float32", size=0.5)
    sums, out = (f(params, x, spec, scale=2.0) for f in (collapse.path_length_sums, network.apply))
    np.testing.assert_allclose(sums.sum(axis=0), out, atol=1e-5)
    assert np.abs(network.apply(params, x, spec) - out).max() > 1e-3


def test_without_skips_and_biases_only_the_longest_paths_exist(dtype):
    spec = stack(skip=False)
    params, x = draw(0, spec, dtype)
    sums = collapse.path_length_sums(params, x, spec)
    assert not sums[:-1].any()
    np.testing.assert_allclose(sums[-1], network.apply(params, x, spec), rtol=1e3 * float(jnp.finfo(dtype).eps))


def test_later_layers_stand_on_the_left(x64):
    """The same paths with the matrices the other way round are far off."""
    spec = stack(depth=3)
    params, x = draw(0, spec)
    layers = oracle.frozen(params, x, spec)
    got = np.asarray(collapse.path_length_sums(params, x, spec))
    swapped = np.zeros_like(got)
    for path in oracle.choices(3, 2, True):
        left, right = np.eye(5), np.eye(4)
        for (heads, _), head in zip(layers, path, strict=True):
            if head >= 0:
                left, right = left @ heads[head][0], right @ heads[head][1]
        swapped[sum(head >= 0 for head in path)] += left @ np.asarray(x) @ right
    error = np.abs(swapped - got).max(axis=(1, 2))
    assert (error[:2] < 1e-12).all()  # with one matrix there is no order
    assert (error[2:] > 1e-3).all()


@pytest.mark.parametrize("factor", [-2.0, 0.5])
def test_sums_are_linear_in_the_tokens_and_of_degree_k_in_the_weights(x64, factor):
    """With weights that are blind to the tokens the frozen matrices are constants."""
    spec = stack(weights="decay")
    params, x = draw(0, spec)
    other = draw(1, spec)[1]
    sums = collapse.path_length_sums(params, x, spec)
    both = collapse.path_length_sums(params, x + factor * other, spec)
    np.testing.assert_allclose(both, sums + factor * collapse.path_length_sums(params, other, spec), atol=1e-13)
    scaled = params._replace(attention=params.attention._replace(output=factor * params.attention.output))
    powers = factor ** np.arange(7.0)
    got = collapse.path_length_sums(scaled, x, spec)
    np.testing.assert_allclose(got, powers[:, None, None] * sums, rtol=1e-12, atol=1e-13)


@given(depth=st.integers(1, 40), heads=st.integers(1, 40))
@settings(deadline=None, max_examples=50)
def test_counts_add_up_to_all_paths(depth, heads):
    assert sum(collapse.path_counts(depth, heads)) == (1 + heads) ** depth
    assert sum(collapse.path_counts(depth, heads, skip=False)) == heads**depth


@pytest.mark.parametrize("skip", [True, False])
def test_counts_agree_with_enumeration(skip):
    lengths = [sum(head >= 0 for head in path) for path in oracle.choices(5, 3, skip)]
    assert collapse.path_counts(5, 3, skip=skip) == tuple(lengths.count(length) for length in range(6))
    assert math.isclose(math.log(collapse.path_counts(96, 96)[96]), 96 * math.log(96))


def test_scale_is_traced_and_batches_are_mapped(x64):
    spec = stack(depth=3)
    params, _ = draw(0, spec)
    batch = jax.random.normal(jax.random.key(7), (3, 5, 4), "float64")

    @chex.assert_max_traces(n=1)
    def sums(x, scale):
        return collapse.path_length_sums(params, x, spec, scale=scale)

    run = jax.jit(jax.vmap(sums, (0, None)))
    for scale in (0.5, 2.0):
        want = collapse.path_length_sums(params, batch[1], spec, scale=scale)
        np.testing.assert_allclose(run(batch, scale)[1], want, atol=1e-12)


@pytest.mark.parametrize("function", [collapse.path_length_sums, collapse.path_shares])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mlp": network.MLPSpec(width=8)}, "`spec` must have mlp=None: it is not linear"),
        ({"norm": "post"}, "`spec` must have norm=None: its division depends on all paths"),
    ],
)
def test_networks_that_do_not_decompose_are_refused(key, function, change, message):
    spec = dataclasses.replace(stack(depth=2), **change)
    with pytest.raises(ValueError, match=message):
        function(network.init(key, spec), jnp.ones((3, 4)), spec)


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    spec = stack(depth=2)
    params, x = draw(0, spec, "float32")
    with pytest.raises(TypeError, match=r"`x` must be a floating-point array"):
        collapse.path_length_sums(params, jnp.ones((5, 4), int), spec)
    with pytest.raises(ValueError, match="`scale` must be > 0, got -1"):
        collapse.path_length_sums(params, x, spec, scale=-1.0)
    with pytest.raises(ValueError, match="`mask` must have one row and column for each of 5 tokens"):
        collapse.path_length_sums(params, x, spec, mask=jnp.ones((3, 3), bool))
    with pytest.raises(ValueError, match="`heads` must be an integer >= 1, got 0"):
        collapse.path_counts(3, 0)
