"""Kinds of networks in which digits were lost: by a cap, a tie, a symmetry of the weights, or an underflow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, collapse, network
from rc_jax.collapse import log_residuals
from rc_jax.collapse.exact import normalisers
from rc_jax.collapse.exact.rules import RULES
from rc_jax.collapse.exact.scaled import Scaled
from rc_jax.collapse.exact.state import Logits
from tests.collapse.exact.test_trajectory import mostly_slow
from tests.compiling import OPTIMISED
from tests.oracles import many_digits

ONE, IDENTITY = [[1.0]], np.eye(2)


def stack(depth=1, **layer):
    return network.StackSpec(attention=attention.AttentionSpec(**layer), depth=depth)


def params_of(depth, dtype, *matrices):
    """A network of one head with the same matrices in every layer."""
    stacked = (jnp.asarray(np.repeat(np.array(w, float)[None, None], depth, 0), dtype) for w in matrices)
    return network.LayerParams(attention.AttentionParams(*stacked))


def errors(params, x, spec, scale=1.0, digits=400, check=True):
    """The distance from many digits in units of the logarithm where that is large; NaN where NaN is returned.

    Always as XLA compiles it, with LLVM: some of these tests count its roundings.
    """
    compiled = jax.jit(log_residuals, static_argnames=("spec", "check"), compiler_options=OPTIMISED)
    computed = np.asarray(compiled(params, x, spec, scale=scale, check=check), float)
    right = many_digits.log_residuals(jax.tree.map(np.asarray, params), np.asarray(x), spec, scale, digits=digits)
    return abs(computed - right) / np.maximum(1, abs(right))


@pytest.mark.parametrize("tokens", mostly_slow([(1.5, 9), (2, 12), (3, 20)], fast=((2, 12),)))
def test_a_saturated_cap_on_both_sides_of_the_mean(dtype, tokens):
    # Half a rounding of the tokens' mean, direction and size moves the result by up to nine roundings, and so does half
    # a rounding of the logarithms of the weights (no average of moved computations lowers it: the worst is 21.7).
    spec, x = stack(d_model=1, soft_cap=0.25), jnp.asarray(tokens, dtype)[:, None]
    got = errors(params_of(1, dtype, ONE, [[-1.0]], ONE, ONE), x, spec)
    assert got.max() < 32 * float(jnp.finfo(dtype).eps)


@pytest.mark.slow
def test_a_cap_and_a_law_of_the_scale_far_below_the_smallest_number(dtype):
    spec = stack(7, d_model=8, heads=2, soft_cap=2.0, scale_law="log_tokens", bias=True)
    params = network.init(jax.random.key(2), spec, dtype=dtype, bias_std=1.0)
    x = jax.random.normal(jax.random.key(12), (6, 8), dtype)
    assert errors(params, x, spec, scale=0.5, digits=1200).max() < 1e-5


def test_a_cap_keeps_the_order_of_logits(dtype):
    spec, x = stack(d_model=2, top_k=1, soft_cap=1.0), jnp.asarray([[8.0, 12], [-3, 5], [11, 4]], dtype)
    assert errors(params_of(1, dtype, *[IDENTITY] * 4), x, spec).max() < 8 * float(jnp.finfo(dtype).eps)


def test_a_tie_is_unknown_unless_the_tokens_are_equal(x64):
    spec, x = stack(d_model=2, top_k=1), jnp.asarray([[1.0, 2], [1, -2], [-1, 0]])
    matrices = [[1.0, 0], [0, 0]], IDENTITY, IDENTITY, IDENTITY  # logits see the first feature alone
    assert np.isnan(collapse.log_residuals(params_of(1, "float64", *matrices), x, spec)[1])
    assert errors(params_of(1, "float64", *matrices), x.at[1].set(x[0]), spec)[1] < 1e-14


@pytest.mark.parametrize("seed", mostly_slow(range(4), fast=(0,)))
@pytest.mark.parametrize(
    "changes",
    [{}, {"causal": True}, {"rotary": attention.Rotary()}, {"output_gate": "headwise"}],
    ids=["", "causal", "rotary", "gate"],
)
def test_tokens_that_have_kept_the_same_one_are_right_or_unknown(x64, seed, changes):
    """They tie in every layer from the second, and are equal, but for rotary positions and gates of their own."""
    spec = stack(4, d_model=4, heads=2, top_k=1, **changes)
    params = network.init(jax.random.key(seed), spec, dtype="float64")
    x = 2 * jax.random.normal(jax.random.key(seed + 10), (6, 4), "float64")
    computed = np.asarray(collapse.log_residuals(params, x, spec))
    right = many_digits.log_residuals(jax.tree.map(np.asarray, params), np.asarray(x), spec, digits=300)
    right = np.where(right < -600, -np.inf, right)  # what is left is the rounding of the many digits
    known = ~np.isnan(computed)
    assert known[: 5 if changes in ({}, {"causal": True}) else 2].all()
    np.testing.assert_allclose(computed[known], right[known], rtol=1e-12)


def test_equal_tokens_have_derivatives_of_their_own(x64):
    spec = stack(2, d_model=4, heads=2, top_k=2)
    params = network.init(jax.random.key(0), spec, dtype="float64")
    x = jax.random.normal(jax.random.key(1), (4, 4), "float64")
    x = x.at[1].set(x[0])

    def plain(x):
        out = network.apply(params, x, spec)
        return jnp.log(jnp.linalg.norm(out - jnp.mean(out, axis=0, keepdims=True)))

    slope = jax.jit(jax.grad(lambda x: collapse.log_residuals(params, x, spec, check=False)[-1]))(x)
    np.testing.assert_allclose(slope, jax.jit(jax.grad(plain))(x), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_keys_of_one_feature_and_length_one_tie_exactly(dtype):
    spec = stack(1, d_model=4, heads=2, d_head=1, scores="cosine", top_k=2, weights="sigmoid")
    params = network.init(jax.random.key(0), spec, dtype=dtype)
    x = jax.random.normal(jax.random.key(1), (5, 4), dtype)
    assert errors(params, x, spec, scale=None).max() < 32 * float(jnp.finfo(dtype).eps)


def test_normalisers_of_rows_that_see_as_many_columns_keep_their_digits(dtype):
    """Log Σ_j e^{r_j} over two columns each, with r of size e^−40: rows differ by the differences of their means."""
    slope, zero = jnp.asarray([[0.3, -1.1, 0.7]], dtype), jnp.zeros((1,), dtype)
    logits = Logits(None, Scaled(slope, zero - 40), Scaled(jnp.zeros((1, 3, 3), dtype), zero - 80))
    seen = ~jnp.eye(3, dtype=bool)[None]
    first, parts = normalisers.log_normaliser(logits, seen)
    assert abs(float(first[0, 0]) - np.log(2)) < 1e-6
    rows = np.sum([part.times_exp(40.0).value for part in parts], axis=0)[0, :, 0]
    means = (np.asarray(slope).sum() - np.asarray(slope)[0]) / 2
    np.testing.assert_allclose(rows, means - means[0], rtol=8 * float(jnp.finfo(dtype).eps))


def test_cancellation_that_a_symmetry_hides_is_unknown(x64):
    random = np.random.default_rng(1)
    w = random.normal(size=(3, 4, 4)) / 2
    spec = stack(10, d_model=4, weights="softmax_plus_one", rotary=attention.Rotary(base=100.0))
    got = errors(params_of(10, "float64", w[0], w[0], w[1], w[2]), jnp.asarray(random.normal(size=(2, 4))), spec)
    assert np.nanmax(got) < 1e-3 and np.isnan(got).argmax() >= 4
    assert np.isnan(got[got.size - 1]) and (np.diff(np.isnan(got)) >= 0).all()


@pytest.mark.slow
def test_first_orders_that_cancel_at_one_subtracted_weight_are_unknown(x64):
    spec = stack(5, d_model=4, weights="differential", causal=True)
    params = network.init(jax.random.key(0), spec, dtype="float64")
    params = params._replace(attention=params.attention.with_parts(subtracted=jnp.ones((5, 1))))
    got = errors(params, jax.random.normal(jax.random.key(9), (3, 4), "float64"), spec, scale=None)
    assert np.nanmax(got) < 1e-3 and np.isnan(got).sum() <= 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["softmax_plus_one", "sigmoid"])
def test_a_mean_that_underflows_is_unknown(kind):
    spec, x = stack(3, d_model=1, weights=kind), jnp.asarray([[9.5], [9.6]], "float32")
    got = errors(params_of(3, "float32", ONE, [[-1.0]], ONE, ONE), x, spec)
    assert np.isnan(got[-1]) and np.nanmax(got) < 1e-5


def test_one_computation_without_the_check(dtype):
    spec = stack(3, d_model=4, heads=2)
    params, x = network.init(jax.random.key(0), spec, dtype=dtype), jax.random.normal(jax.random.key(1), (5, 4), dtype)
    assert errors(params, x, spec, scale=None, check=False).max() < 64 * float(jnp.finfo(dtype).eps)


@pytest.mark.parametrize("kind", mostly_slow(RULES, fast=("softmax_plus_one",)))
def test_parameters_of_other_kinds_are_left_aside(kind):
    spec = stack(2, d_model=4, heads=2, weights=kind)
    params, x = network.init(jax.random.key(0), spec), jax.random.normal(jax.random.key(1), (3, 4))
    others = ("sink", "subtracted", "decay", "gate", "gate_bias", "pool", "query_norm", "score_vector", "output_gate")
    left = dict.fromkeys(others, jnp.full((2, 2, 2), jnp.nan))
    shared = params._replace(attention=params.attention._replace(parts=left | params.attention.parts))
    run = collapse.log_residuals
    np.testing.assert_array_equal(run(shared, x, spec, check=False), run(params, x, spec, check=False))


@pytest.mark.parametrize("norm", mostly_slow(["rms", "cosine", "layer"], fast=("rms",)))
def test_the_derivative_around_the_origin(x64, norm):
    """Tokens whose mean is far below their differences, in a layer that divides by lengths."""
    changes = {"cosine": {"scores": "cosine"}, "layer": {"qk_norm": "layer"}}.get(norm, {})
    spec = network.StackSpec(
        attention=attention.AttentionSpec(d_model=4, **changes),
        depth=2,
        skip=True,
        norm="pre" if norm == "rms" else None,
        norm_kind="rms",
    )
    params = network.init(jax.random.key(0), spec, dtype="float64")

    def plain(x):
        out = network.apply(params, x, spec)
        return jnp.log(jnp.linalg.norm(out - jnp.mean(out, axis=0, keepdims=True)))

    centred = jnp.asarray([[1, 2, -1, 0.5], [-1, -2, 1, -0.5]])
    ours = jax.jit(jax.grad(lambda x: collapse.log_residuals(params, x, spec, check=False)[-1]))
    plains = jax.jit(jax.grad(plain))
    for mean in (0.0, 1e-9):
        np.testing.assert_allclose(ours(centred + mean), plains(centred + mean), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_choices_that_rest_on_a_rounding_are_seldom_taken_alike(x64):
    """A token 1e26 times as large leaves nothing of the others in float64, and which key they choose is unknown.

    Plain arithmetic, which takes each token as it is, tells what is right.
    """
    layer, count = attention.AttentionSpec(d_model=2, heads=3, d_head=3), 1000
    spec = network.StackSpec(attention=layer, depth=1, skip=True)

    def one(key):
        of_params, of_tokens = jax.random.split(key)
        x = jax.random.normal(of_tokens, (4, 2)) * jnp.asarray([1, 1e26, 1, 1])[:, None]
        params = network.init(of_params, spec)
        last = network.apply(params, x, spec)
        return log_residuals(params, x, spec)[1], jnp.log(jnp.linalg.norm(collapse.residual(last)))

    program = jax.jit(jax.vmap(one), compiler_options=OPTIMISED)
    got, right = map(np.asarray, program(jax.random.split(jax.random.key(0), count)))
    assert np.isfinite(right).all()
    assert (np.abs(got - right) > 0.01).mean() < 0.005
    assert (np.isnan(got) | (np.abs(got - right) < 1e-6)).mean() > 0.995


@pytest.mark.parametrize("skip", [False, True])
def test_a_traced_mask_that_leaves_a_row_nothing(key, skip):
    """Its weights sum to 0 and not to 1 as those of the others do; on the host it is refused."""
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=4, heads=2), depth=1, skip=skip)
    params, x = network.init(key, spec), 3 + jax.random.normal(key, (4, 4))

    @jax.jit
    def everything(mask):
        sizes = collapse.path_log_sizes(params, x, spec, np.array([[0]]), mask=mask)
        shares = collapse.path_shares(params, x, spec, mask=mask)
        measured = [
            *(log_residuals(params, x, spec, mask=mask, check=check)[1:] for check in (True, False)),
            sizes.log_norm[:, 1:], sizes.log_residual[:, 1:], shares.log_norm[1:], shares.residual_share[1:],
            collapse.sample_log_residuals(key, x, spec, mask=mask)[1:],
        ]  # fmt: skip
        if not skip:
            gradients = collapse.log_weight_gradients(params, x, spec, jnp.eye(4), mask=mask)
            measured += [gradients.query, gradients.key, gradients.value, gradients.output]
        return measured

    lower = jnp.tri(4, dtype=bool)
    assert all(np.isfinite(each).all() for each in everything(lower))
    assert all(np.isnan(each).all() for each in everything(lower.at[0, 0].set(False)))
