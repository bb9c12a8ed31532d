"""Sums over paths against every path written out, against many digits, and at their edges."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from rc_jax import attention, collapse, network
from tests.oracles import collapse as exact_oracle
from tests.oracles import paths as oracle

TOLERANCE = {"float64": 1e-13, "float32": 4e-6}


def stack(depth=6, skip=True, **changes):
    shape = {"d_model": 4, "heads": 2} | changes
    return network.StackSpec(attention=attention.AttentionSpec(**shape), depth=depth, skip=skip)


def draw(seed, spec, dtype="float64", tokens=5, size=1.0):
    params = network.init(jax.random.key(seed), spec, dtype=dtype, bias_std=0.3)
    x = jax.random.normal(jax.random.key(seed + 1000), (tokens, spec.attention.d_model), dtype)
    return params, jnp.asarray(size, dtype) * x


def distance(got, want):
    """Largest error of any length, relative to the largest entry of that length (or to 1 where there is none)."""
    size = np.abs(want).max(axis=(1, 2))
    return float((np.abs(np.asarray(got, np.float64) - want).max(axis=(1, 2)) / np.where(size > 0, size, 1)).max())


def worst_log_error(got, exact):
    """Largest error of a logarithm, relative where it is large; −inf must be met by −inf."""
    got = [float(g) for g in got]
    assert [math.isinf(g) for g in got] == [bool(mp.isinf(e)) for e in exact]
    return max(float(abs(mp.mpf(g) - e) / max(1, abs(e))) for g, e in zip(got, exact, strict=True) if not mp.isinf(e))


@pytest.mark.parametrize(("seed", "masking"), [(0, None), (1, None), (0, "causal"), (1, "window")])
def test_sums_agree_with_all_729_paths_written_out(x64, seed, masking):
    spec = stack(causal=masking == "causal", window=1 if masking == "window" else None)
    params, x = draw(seed, spec)
    index = np.arange(5)
    seen = {"causal": np.tri(5) > 0, "window": abs(index[:, None] - index) <= 1, None: None}[masking]
    layers = oracle.frozen(params, x, spec, seen)
    assert len(oracle.choices(6, 2, True)) == 729
    want = oracle.length_sums(layers, np.asarray(x), spec)
    assert distance(collapse.path_length_sums(params, x, spec), want) < TOLERANCE["float64"]


@pytest.mark.parametrize("skip", [True, False])
def test_biases_start_paths_at_their_layer(x64, skip):
    spec = stack(depth=4, skip=skip, bias=True)
    params, x = draw(0, spec)
    got = collapse.path_length_sums(params, x, spec)
    want = oracle.length_sums(oracle.frozen(params, x, spec), np.asarray(x), spec)
    assert distance(got, want) < TOLERANCE["float64"]
    if not skip:
        # Of length 0 there is the last layer's output bias; what starts at a bias is the same for all tokens.
        np.testing.assert_allclose(got[0], np.tile(params.attention.output_bias[-1], (5, 1)), rtol=1e-14)
        np.testing.assert_allclose(got[:-1], np.broadcast_to(got[:-1, :1], got[:-1].shape), rtol=1e-12)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        {"bias": True},
        {"causal": True, "bias": True},
        {"weights": "identity", "bias": True},
        {"weights": "relu_squared"},
        {"weights": "linear", "window": 1},
        {"weights": "decay", "causal": True},
        {"scores": "cosine", "bias": True},
        {"scores": "additive", "weights": "power6"},
    ],
    ids=str,
)
def test_lengths_add_up_to_the_network(dtype, skip, change):
    spec = stack(depth=3, skip=skip, **change)
    params, x = draw(1, spec, dtype, size=0.5)
    graph = jnp.asarray(np.eye(5) + np.roll(np.eye(5), 1, axis=1) > 0)
    for mask, scale in ((None, None), (graph, jnp.array([0.5, 2.0], dtype))):
        sums = collapse.path_length_sums(params, x, spec, mask=mask, scale=scale)
        out = network.apply(params, x, spec, mask=mask, scale=scale)
        assert sums.dtype == out.dtype
        largest = float(jnp.abs(sums).sum(axis=0).max())
        assert float(jnp.abs(sums.sum(axis=0) - out).max()) <= 100 * float(jnp.finfo(dtype).eps) * largest


def test_without_skips_and_biases_only_the_longest_paths_exist(dtype):
    spec = stack(skip=False)
    params, x = draw(0, spec, dtype)
    sums = collapse.path_length_sums(params, x, spec)
    assert not sums[:-1].any()
    found = collapse.path_shares(params, x, spec)
    assert bool(jnp.all(jnp.isneginf(found.log_norm[:-1])))
    np.testing.assert_allclose(found.share, [0] * 6 + [1], atol=10 * float(jnp.finfo(dtype).eps))
    np.testing.assert_allclose(found.log_residual[-1], collapse.log_residuals(params, x, spec)[-1], rtol=1e-5)


def test_later_layers_stand_on_the_left(x64):
    """The same paths with the matrices the other way round are far off, for the sums and for single paths."""
    spec = stack(depth=3)
    params, x = draw(0, spec)
    layers = oracle.frozen(params, x, spec)
    path = (1, 0, 1)
    left, right = np.eye(5), np.eye(4)
    for (heads, _), head in zip(layers, path, strict=True):
        left, right = left @ heads[head][0], right @ heads[head][1]
    reversed_term = left @ np.asarray(x) @ right
    right_term = oracle.term(layers, np.asarray(x), path)
    got = collapse.path_log_sizes(params, x, spec, np.array([path]))
    for term, agrees in ((right_term, True), (reversed_term, False)):
        norm, rest = np.linalg.norm(term), np.linalg.norm(term - term.mean(axis=0))
        errors = abs(float(got.log_norm[0]) - math.log(norm)), abs(float(got.log_residual[0]) - math.log(rest))
        assert max(errors) < 1e-12 if agrees else min(errors) > 1e-3

    reverse = [(heads, b) for heads, b in layers]
    swapped = np.zeros_like(collapse.path_length_sums(params, x, spec))
    for each in oracle.choices(3, 2, True):
        product = np.eye(5)
        for (heads, _), head in zip(reverse, each, strict=True):
            product = product @ heads[head][0] if head >= 0 else product
        through = oracle.term(
            [([(np.eye(5), w, b) for _, w, b in heads], c) for heads, c in layers], np.asarray(x), each
        )
        swapped[sum(head >= 0 for head in each)] += product @ through
    error = np.abs(swapped - np.asarray(collapse.path_length_sums(params, x, spec))).max(axis=(1, 2))
    assert (error[:2] < 1e-12).all()  # with one matrix there is no order
    assert (error[2:] > 1e-3).all()


def test_single_paths_agree_with_all_of_them_written_out(dtype):
    spec = stack()
    params, x = draw(2, spec, dtype)
    paths = np.array(oracle.choices(6, 2, True))
    got = collapse.path_log_sizes(params, x, spec, paths)
    assert got.log_norm.dtype == dtype
    layers = oracle.frozen(params, x, spec)
    terms = np.stack([oracle.term(layers, np.asarray(x, np.float64), path) for path in paths])
    rests = terms - terms.mean(axis=1, keepdims=True)
    sizes = np.linalg.norm(terms, axis=(1, 2))
    for found, want in ((got.log_norm, terms), (got.log_residual, rests)):
        # What is written out is right to a rounding of the whole term, not of its residual.
        error = np.abs(np.exp(np.asarray(found, np.float64)) - np.linalg.norm(want, axis=(1, 2))) / sizes
        assert error.max() < TOLERANCE[dtype]


def exact_shares(params, x, spec, digits, mask=None):
    with mp.workdps(digits):
        sums = oracle.length_sums_exactly(oracle.frozen_exactly(params, x, spec, mask), x, spec)
        output = sums[0].copy()
        for other in sums[1:]:
            output += other
        rest = oracle.centred(output)
        rests = [oracle.centred(each) for each in sums]
        return collapse.PathShares(
            [exact_log(each) for each in sums],
            [exact_log(each) for each in rests],
            [oracle.inner(each, output) / oracle.inner(output, output) for each in sums],
            [oracle.inner(each, rest) / oracle.inner(rest, rest) for each in rests],
        )


def exact_log(matrix):
    """log ‖·‖_F, of which interpolation leaves nothing but its own rounding where it should be zero."""
    square = oracle.inner(matrix, matrix)
    return mp.log(square) / 2 if square > mp.mpf(10) ** (-mp.mp.dps) else mp.mpf("-inf")


SEEN = {
    None: None,
    "causal": np.tri(5) > 0,
    "window": abs(np.subtract.outer(range(5), range(5))) <= 1,
    "graph": np.roll(np.eye(5), 1, axis=1) + np.eye(5) > 0,
    "same for all": np.tile([True, True, False, True, False], (5, 1)),
}


@pytest.mark.parametrize(
    ("masking", "size", "skip"),
    [
        (None, 1.0, True),
        (None, 1e-6, True),
        (None, 1.0, False),
        ("causal", 0.5, True),
        ("window", 1.0, False),
        ("graph", 1e-6, True),
        ("same for all", 0.1, True),
        ("same for all", 0.5, False),
    ],
)
def test_shares_agree_with_many_digits(dtype, masking, size, skip):
    spec = stack(
        depth=8 if skip else 5,
        skip=skip,
        bias=True,
        causal=masking == "causal",
        window=1 if masking == "window" else None,
    )
    params, x = draw(3, spec, dtype)
    # Small tokens are small differences from a common token of ordinary size: the term of each path is nearly rank one.
    x = x[:1] + jnp.asarray(size, dtype) * (x - x[:1])
    exact = exact_shares(params, x, spec, 400, SEEN[masking])
    mask = jnp.asarray(SEEN[masking]) if masking in ("graph", "same for all") else None
    got = collapse.path_shares(params, x, spec, mask=mask)
    if size < 1e-3 and masking is None:
        assert exact.log_residual[-1] < -200  # c^k: the residual of long paths is far beyond any plain difference
    assert worst_log_error(got.log_norm, exact.log_norm) < TOLERANCE[dtype]
    assert worst_log_error(got.log_residual, exact.log_residual) < TOLERANCE[dtype]
    for found, want in ((got.share, exact.share), (got.residual_share, exact.residual_share)):
        error = max(abs(float(f) - float(w)) for f, w in zip(found, want, strict=True))
        assert error < TOLERANCE[dtype] * max(1, *(abs(float(w)) for w in want))


@pytest.mark.parametrize("skip", [True, False])
def test_sampled_paths_agree_with_many_digits(dtype, skip):
    spec = stack(depth=7 if skip else 6, skip=skip, bias=True)
    params, x = draw(4, spec, dtype)
    got = collapse.sample_path_log_residuals(jax.random.key(0), params, x, spec, 6, 6)
    with mp.workdps(1500):
        layers = oracle.frozen_exactly(params, x, spec)
        terms = [oracle.term_exactly(layers, x, path) for path in np.asarray(got.paths)]
        rests = [exact_oracle.log_residual(term) for term in terms]
        norms = [mp.log(oracle.inner(term, term)) / 2 for term in terms]
    if not skip:
        assert max(rests) < -200
    assert worst_log_error(got.log_residual, rests) < TOLERANCE[dtype]
    assert worst_log_error(got.log_norm, norms) < TOLERANCE[dtype]


@pytest.mark.parametrize("depth", [1, 12])
def test_shares_add_up_and_agree_with_plain_sums(dtype, depth):
    spec = stack(depth=depth, d_model=16, heads=4, bias=True)
    params, x = draw(5, spec, dtype, tokens=8)
    sums = np.asarray(collapse.path_length_sums(params, x, spec), np.float64)
    got = collapse.path_shares(params, x, spec)
    rounding = 2000 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose([got.share.sum(), got.residual_share.sum()], 1, rtol=rounding)
    np.testing.assert_allclose(got.log_norm, np.log(np.linalg.norm(sums, axis=(1, 2))), atol=rounding)
    np.testing.assert_allclose(got.share, (sums * sums.sum(axis=0)).sum(axis=(1, 2)) / (sums.sum(axis=0) ** 2).sum(),
                               atol=rounding)  # fmt: skip


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


def test_paths_are_drawn_uniformly(key):
    spec = stack(depth=4)
    params, x = draw(0, spec, "float32")
    paths = np.asarray(collapse.sample_path_log_residuals(key, params, x, spec, 2, 4800).paths)
    found, counts = np.unique(paths, axis=0, return_counts=True)
    assert len(found) == collapse.path_counts(4, 2)[2] == 24
    assert scipy.stats.chisquare(counts).pvalue > 1e-6
    again = collapse.sample_path_log_residuals(key, params, x, spec, 2, 4800)
    np.testing.assert_array_equal(paths, again.paths)


def test_lengths_and_scales_cause_one_trace_each(key):
    from rc_jax.collapse import path_sizes

    spec = stack(depth=4)
    params, x = draw(0, spec, "float32")
    before = path_sizes._path_log_sizes._cache_size(), path_sizes._draw_paths._cache_size()
    for length in range(5):
        for scale in (0.5, 1.5):
            collapse.sample_path_log_residuals(key, params, x, spec, length, 3, scale=scale)
    after = path_sizes._path_log_sizes._cache_size(), path_sizes._draw_paths._cache_size()
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1]


def test_recipe_and_stored_weights_give_the_same_numbers(key):
    spec = stack()
    _, x = draw(0, spec, "float32")
    stored, drawn = network.init(key, spec), network.random_layers(key, spec)
    a, b = (collapse.path_length_sums(params, x, spec) for params in (stored, drawn))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for a, b in zip(*(collapse.path_shares(params, x, spec) for params in (stored, drawn)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_deep_networks_stay_finite(dtype):
    spec = stack(depth=48, d_model=16, heads=4)
    params, x = draw(0, spec, dtype, tokens=8)
    for leaf in collapse.path_shares(params, 0.01 * x, spec):
        assert bool(jnp.isfinite(leaf).all())


def test_equal_tokens_have_no_residual(dtype):
    spec = stack(depth=3)
    params, _ = draw(0, spec, dtype)
    found = collapse.path_shares(params, jnp.ones((5, 4), dtype), spec)
    assert bool(jnp.isneginf(found.log_residual).all())
    assert bool(jnp.isnan(found.residual_share).all())
    np.testing.assert_allclose(found.share.sum(), 1, rtol=1e-5)


def test_batches_by_vmap(x64):
    spec = stack(depth=3)
    params, _ = draw(0, spec)
    batch = jax.random.normal(jax.random.key(7), (3, 5, 4), "float64")
    both = jax.vmap(lambda x: (collapse.path_length_sums(params, x, spec), collapse.path_shares(params, x, spec)))(
        batch
    )
    np.testing.assert_allclose(both[0][1], collapse.path_length_sums(params, batch[1], spec), atol=1e-13)
    np.testing.assert_allclose(both[1].log_residual[2], collapse.path_shares(params, batch[2], spec).log_residual)


FUNCTIONS = [collapse.path_length_sums, collapse.path_shares]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mlp": network.MLPSpec(width=8)}, "`spec` must have no MLP .*, for it is not linear"),
        ({"norm": "post"}, "`spec` must have no LayerNorm .*, for its division depends on all paths"),
    ],
)
def test_networks_that_do_not_decompose_are_refused(key, function, change, message):
    spec = dataclasses.replace(stack(depth=2), **change)
    with pytest.raises(ValueError, match=message):
        function(network.init(key, spec), jnp.ones((3, 4)), spec)


@pytest.mark.usefixtures("as_installed")
def test_bad_input(key):
    spec = stack(depth=2)
    params, x = draw(0, spec, "float32")
    for change, message in (
        ({"weights": "decay"}, "`spec` must have weights='softmax'"),
        ({"scores": "cosine"}, "`spec` must have scores='dot'"),
    ):
        other = stack(depth=2, **change)
        with pytest.raises(ValueError, match=message):
            collapse.path_shares(network.init(key, other), x, other)
    with pytest.raises(ValueError, match=r"`x` must be .* with token >= 2, got float32\[1,4\]"):
        collapse.path_shares(params, x[:1], spec)
    with pytest.raises(TypeError, match=r"`x` must be a floating-point array"):
        collapse.path_length_sums(params, jnp.ones((5, 4), int), spec)
    with pytest.raises(ValueError, match="`scale` must be > 0, got -1"):
        collapse.path_length_sums(params, x, spec, scale=-1.0)
    with pytest.raises(ValueError, match="`mask` must have one row and column for each of 5 tokens"):
        collapse.path_length_sums(params, x, spec, mask=jnp.ones((3, 3), bool))
    with pytest.raises(ValueError, match="`length` must be at most depth=2, got 3"):
        collapse.sample_path_log_residuals(key, params, x, spec, 3, 4)
    pure = dataclasses.replace(spec, skip=False)
    with pytest.raises(ValueError, match="`length` must be depth=2, for there are no skip connections, got 1"):
        collapse.sample_path_log_residuals(key, params, x, pure, 1, 4)
    with pytest.raises(TypeError, match="`key` must be one typed key"):
        collapse.sample_path_log_residuals(jnp.zeros(2, "uint32"), params, x, spec, 1, 4)
    with pytest.raises(ValueError, match="`paths` must have one column for each of 2 layers"):
        collapse.path_log_sizes(params, x, spec, np.zeros((4, 3), int))
    with pytest.raises(ValueError, match=r"`paths` must hold heads 0 … 1, or −1 for the skip connection, got 2"):
        collapse.path_log_sizes(params, x, spec, np.array([[0, 2]]))
    with pytest.raises(ValueError, match=r"`paths` must hold heads 0 … 1, for the network has no skip.*, got -1"):
        collapse.path_log_sizes(params, x, pure, np.array([[0, -1]]))
    with pytest.raises(TypeError, match="`paths` must be an array of integers"):
        collapse.path_log_sizes(params, x, spec, np.zeros((4, 2)))
    with pytest.raises(ValueError, match="`heads` must be an integer >= 1, got 0"):
        collapse.path_counts(3, 0)
