"""Sizes and residuals of paths against many digits, against every path written out, and at their edges."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.stats

from rc_jax import collapse, network
from rc_jax.collapse.paths import sizes as path_sizes
from rc_jax.collapse.paths import sums as paths
from tests.collapse.exact.test_trajectory import worst_error
from tests.collapse.paths.networks import draw, stack
from tests.oracles import collapse as exact_oracle
from tests.oracles import paths as oracle
from tests.oracles.bounds import centred

# Two networks for most of the tests: what compiles once is run many times.
SKIP, PURE = stack(bias=True), stack(depth=5, skip=False, bias=True)
TOLERANCE = {"float64": 1e-13, "float32": 4e-6}
SEEN = {
    None: None,
    "causal": np.tri(5) > 0,
    "window": abs(np.subtract.outer(range(5), range(5))) <= 1,
    "graph": np.roll(np.eye(5), 1, axis=1) + np.eye(5) > 0,
    "same for all": np.tile([True, True, False, True, False], (5, 1)),
}


def exact_shares(params, x, spec, digits, mask=None):
    with mp.workdps(digits):
        sums = oracle.length_sums_exactly(oracle.frozen_exactly(params, x, spec, mask), x, spec)
        output = sums[0].copy()
        for other in sums[1:]:
            output += other
        rest = centred(output)
        rests = [centred(each) for each in sums]
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("masking", "size", "spec", "dtype"),
    [
        (None, 1.0, SKIP, "float64"),
        (None, 1e-6, SKIP, "float64"),
        (None, 1.0, PURE, "float64"),
        (None, 1e-4, SKIP, "float32"),
        ("causal", 0.5, SKIP, "float64"),
        ("causal", 0.5, PURE, "float64"),
        ("window", 1.0, PURE, "float64"),
        ("graph", 1e-6, SKIP, "float64"),
        ("same for all", 0.1, SKIP, "float64"),
        ("same for all", 0.5, PURE, "float64"),
        ("same for all", 0.5, PURE, "float32"),
    ],
    indirect=["dtype"],
)
def test_shares_agree_with_many_digits(dtype, masking, size, spec):
    params, x = draw(3, spec, dtype)
    # Small differences from a common token of ordinary size: the term of each path is nearly rank one.
    x = x[:1] + jnp.asarray(size, dtype) * (x - x[:1])
    exact = exact_shares(params, x, spec, 400, SEEN[masking])
    got = collapse.path_shares(params, x, spec, mask=None if masking is None else jnp.asarray(SEEN[masking]))
    if size < 1e-5 and masking is None:
        assert exact.log_residual[-1] < -150  # c^k: the residual of long paths is far beyond any plain difference
    assert worst_error(got.log_norm, exact.log_norm) < TOLERANCE[dtype]
    assert worst_error(got.log_residual, exact.log_residual) < TOLERANCE[dtype]
    for share, want in ((got.share, exact.share), (got.residual_share, exact.residual_share)):
        wanted = np.array(want, float)
        assert np.abs(np.asarray(share, float) - wanted).max() < TOLERANCE[dtype] * max(1, np.abs(wanted).max())


@pytest.mark.slow
def test_a_residual_is_right_or_not_a_number(x64):
    """Large weights and a causal mask: sharp rows single out tokens whose difference is lost beside other ones."""
    unknown = right = 0
    for seed in range(4):
        params = network.init(jax.random.key(seed), SKIP, gain=3.0, dtype="float64")
        x = jax.random.normal(jax.random.key(seed + 50), (5, 4), "float64")
        got = collapse.path_shares(params, x, SKIP, mask=jnp.asarray(SEEN["causal"])).log_residual
        exact = exact_shares(params, x, SKIP, 400, SEEN["causal"]).log_residual
        for g, e in zip(got, exact, strict=True):
            if math.isnan(float(g)):
                unknown += 1
            elif math.isinf(float(g)):
                assert e < math.log(np.finfo("float64").tiny)
            else:
                right += 1
                assert abs(float(g) - e) < 0.05
    assert unknown >= 1
    assert right >= 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "dtype"),
    [(SKIP, "float64"), (PURE, "float64"), (SKIP, "float32")],
    indirect=["dtype"],
)
def test_sampled_paths_agree_with_many_digits(dtype, spec):
    params, x = draw(4, spec, dtype)
    got = collapse.sample_path_log_residuals(jax.random.key(0), params, x, spec, 5, 6)
    with mp.workdps(1500):
        layers = oracle.frozen_exactly(params, x, spec)
        for path, log_norm, log_residual in zip(np.asarray(got.paths), got.log_norm, got.log_residual, strict=True):
            ends = range(spec.depth + 1)
            terms = [oracle.term_exactly(layers[:end], x, path[:end]) for end in ends]
            norms = [mp.log(oracle.inner(term, term)) / 2 for term in terms]
            rests = [exact_oracle.log_residual(term) for term in terms]
            assert worst_error(log_norm, norms) < TOLERANCE[dtype]
            assert worst_error(log_residual, rests) < TOLERANCE[dtype]
    if not spec.skip:
        assert rests[-1] < -50


@pytest.mark.slow
@pytest.mark.parametrize("spec", [SKIP, stack(depth=1, d_model=8, heads=4)])
def test_shares_add_up_and_agree_with_plain_sums(x64, spec):
    params, x = draw(5, spec)
    sums = np.asarray(collapse.path_length_sums(params, x, spec))
    got = collapse.path_shares(params, x, spec)
    np.testing.assert_allclose([got.share.sum(), got.residual_share.sum()], 1, rtol=1e-12)
    np.testing.assert_allclose(got.log_norm, np.log(np.linalg.norm(sums, axis=(1, 2))), atol=1e-12)
    for share, output, parts in (
        (got.share, sums.sum(axis=0), sums),
        (got.residual_share, sums.sum(axis=0) - sums.sum(axis=0).mean(axis=0), sums - sums.mean(1, keepdims=True)),
    ):
        np.testing.assert_allclose(share, (parts * output).sum(axis=(1, 2)) / (output**2).sum(), atol=1e-12)


@pytest.mark.slow
def test_without_skips_and_biases_all_is_in_the_longest_paths(x64):
    params = network.init(jax.random.key(0), PURE, dtype="float64")
    x = draw(0, PURE)[1]
    shares = collapse.path_shares(params, x, PURE)
    assert bool(jnp.all(jnp.isneginf(shares.log_norm[:-1])))
    np.testing.assert_allclose(shares.share, [0] * 5 + [1], atol=1e-14)
    np.testing.assert_allclose(shares.log_residual[-1], collapse.log_residuals(params, x, PURE)[-1], rtol=1e-13)


@pytest.mark.slow
def test_shares_without_skips_are_one_or_not_a_number(x64):
    """Where the size of a residual has lost its digits, so has the quotient of two of them (5.6e80 for seed 28)."""
    spec = stack(depth=4, d_model=6, skip=False)
    shares, unknown = jax.jit(lambda params, x: collapse.path_shares(params, x, spec)), 0
    for seed in (24, 26, 28, 30):
        params = network.init(jax.random.key(seed), spec, gain=3.0, dtype="float64")
        got = shares(params, jax.random.normal(jax.random.key(100 + seed), (6, 6), "float64"))
        np.testing.assert_allclose(got.share, [0] * 4 + [1], atol=1e-13)
        assert math.isnan(got.residual_share[-1]) or abs(float(got.residual_share[-1]) - 1) < 1e-3
        unknown += math.isnan(got.residual_share[-1])
    assert 0 < unknown < 4


@pytest.mark.slow
def test_paths_are_drawn_uniformly(key):
    drawn = np.asarray(paths.draw_paths(key, 4, 2, jnp.asarray(2), 4800))
    distinct, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(distinct) == collapse.path_counts(4, 2)[2] == 24
    assert scipy.stats.chisquare(counts).pvalue > 1e-6


@pytest.mark.slow
def test_lengths_and_scales_cause_one_trace_each(key):
    spec = stack(depth=2)
    params, x = draw(0, spec, "float32")
    before = path_sizes._path_log_sizes._cache_size(), paths.draw_paths._cache_size()
    for length in range(3):
        for scale in (0.5, 1.5):
            sizes = collapse.sample_path_log_residuals(key, params, x, spec, length, 3, scale=scale)
            assert set((sizes.paths >= 0).sum(axis=1).tolist()) == {length}
    after = path_sizes._path_log_sizes._cache_size(), paths.draw_paths._cache_size()
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1]


@pytest.mark.slow
def test_recipes_batches_and_stored_weights_give_the_same_numbers(x64, key):
    batch = jax.random.normal(jax.random.key(7), (3, 5, 4), "float64")
    stored = network.init(key, SKIP, bias_std=0.3, dtype="float64")
    drawn = network.random_layers(key, SKIP, bias_std=0.3, dtype="float64")
    both = jax.vmap(lambda x: collapse.path_shares(drawn, x, SKIP))(batch)
    for a, b in zip(collapse.path_shares(stored, batch[2], SKIP), both, strict=True):
        np.testing.assert_allclose(a, b[2], rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_deep_networks_stay_finite():
    spec = stack(depth=48, d_model=16, heads=4)
    params, x = draw(0, spec, "float32", tokens=8, size=0.01)
    for leaf in collapse.path_shares(params, x, spec):
        assert bool(jnp.isfinite(leaf).all())


@pytest.mark.slow
def test_equal_tokens_have_no_residual(dtype):
    params, _ = draw(0, SKIP, dtype)
    shares = collapse.path_shares(params, jnp.ones((5, 4), dtype), SKIP)
    assert shares.log_norm.dtype == dtype
    assert bool(jnp.isneginf(shares.log_residual).all())
    assert bool(jnp.isnan(shares.residual_share).all())
    np.testing.assert_allclose(shares.share.sum(), 1, rtol=1e-5)


@pytest.mark.usefixtures("as_installed")
def test_bad_input(key):
    spec = stack(depth=2)
    params, x = draw(0, spec, "float32")
    for change, message in (
        ({"weights": "decay"}, "`spec` must have weights='softmax': .*`path_length_sums` takes any, got 'decay'"),
        ({"top_k": 2}, "`spec` must have top_k=None: .*`path_length_sums` takes any, got 2"),
        ({"scores": "additive"}, "`spec` must have scores='dot' or 'cosine'"),
    ):
        other = stack(depth=2, **change)
        with pytest.raises(ValueError, match=message):
            collapse.path_shares(network.init(key, other), x, other)
    with pytest.raises(ValueError, match=r"`x` must be .* with token >= 2, got float32\[1,4\]"):
        collapse.path_shares(params, x[:1], spec)
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
