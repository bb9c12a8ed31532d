"""The rule for any differentiable kind, against many digits: each residual is right or NaN."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, collapse, network
from rc_jax.attention import KINDS, Kind
from rc_jax.collapse.exact.rules import RULES
from tests.collapse.exact.random_networks import draw, draw_spec, judge
from tests.collapse.exact.test_trajectory import mostly_slow
from tests.oracles import many_digits, own_kinds

RULE = {name: kind for name, kind in KINDS.items() if kind.reads == "scores" and name not in RULES} | own_kinds.OWN
MASKS = ({}, {"causal": True}, {"window": 1}, {"mask": True}, {"top_k": 2})
NORMS = (None, "pre", "post", "branch", "peri")
QK_NORMS = (None, "rms", "rms_joint", "layer", "unit")


def compared(params, x, spec, digits=300, **call):
    """What is computed, and what is right where the digits of the reference decide it."""
    computed = np.asarray(collapse.log_residuals(params, x, spec, **call), float)
    mask = call.get("mask")
    right = many_digits.certain(
        jax.tree.map(np.asarray, params), np.asarray(x), spec, None,
        None if mask is None else np.asarray(mask), digits=(digits, digits + 60),
    )  # fmt: skip
    return computed, right


def of_square(name, index):
    """The network of a kind at one place of a Latin square of masks, norms and norms of queries and keys."""
    shift = list(RULE).index(name)
    options = dict(MASKS[index])
    if "top_k" in options and not RULE[name].increasing:
        options = {"causal": True, "window": 1}
    shown = options.pop("mask", False)
    layer = attention.AttentionSpec(
        d_model=4, heads=2, weights=RULE[name], bias=True, qk_norm=QK_NORMS[(index + 2 * shift) % 5],
        scale=2.0 if QK_NORMS[(index + 2 * shift) % 5] == "unit" else None, **options,
    )  # fmt: skip
    norm = NORMS[(index + shift) % 5]
    stack = network.StackSpec(
        attention=layer, depth=4, norm=norm, norm_kind=("layer", "rms")[(index + shift) % 2], skip=index == 1
    )
    mask = jnp.asarray(np.random.default_rng(shift).random((5, 5)) < 0.6) | jnp.eye(5, dtype=bool)
    return stack, {"mask": mask} if shown else {}


SQUARE = list(itertools.product(RULE, range(5)))


@pytest.mark.parametrize("case", mostly_slow(SQUARE, fast=(("squares", 0), ("softpick", 3))), ids=str)
def test_every_kind_under_every_mask_and_norm(x64, case):
    stack, call = of_square(*case)
    params = network.init(jax.random.key(case[1]), stack, bias_std=0.5)
    computed, right = compared(params, jax.random.normal(jax.random.key(7), (5, 4)), stack, **call)
    known = ~np.isnan(computed) & ~np.isnan(right)
    assert known[:2].all()
    far = np.isneginf(right) & (computed < -600)  # the reference has 300 digits
    # Distances between keys of length one lose eight digits over four layers.
    close = (computed == right) | (np.abs(computed - right) <= 1e-7 * np.maximum(1, np.abs(right)))
    assert (close | far)[known].all(), (computed, right)


def fuzz(seeds, draws=2, digits=200):
    """Those random networks of every option that are wrong."""
    wrong = []
    for seed in seeds:
        kind = list(RULE.values())[seed % len(RULE)]
        spec = draw_spec(np.random.default_rng([seed, 1]), (kind if kind.name not in KINDS else kind.name,))
        dtype = ("float32", "float64")[seed // len(RULE) % 2]
        for index in range(draws):
            params, x, scale, mask = draw(np.random.default_rng([seed, 2, index]), spec, dtype, 4)
            shown = None if mask is None else jnp.asarray(mask)
            computed = collapse.log_residuals(
                jax.tree.map(jnp.asarray, params), jnp.asarray(x), spec, scale=scale, mask=shown
            )
            right = many_digits.certain(params, x, spec, scale, mask, digits=(digits, digits + 40))
            wrong += [(seed, index, computed, right)] if judge(computed, right, digits)[0].any() else []
    return wrong


@pytest.mark.slow
def test_random_networks_of_every_kind(x64):
    assert not fuzz(range(len(RULE)))


def tilted(scores, seen, parts):
    """Rows of length one as those of `l2`, times a number of each column, so that no sum is stationary."""
    powers = jnp.where(seen, jnp.exp(scores - jnp.max(jnp.where(seen, scores, -jnp.inf), axis=-1, keepdims=True)), 0)
    place = np.expand_dims(1 + np.arange(scores.shape[-1], dtype=scores.dtype) / 4, tuple(range(scores.ndim - 1)))
    return place * powers / jnp.linalg.norm(powers, axis=-1, keepdims=True)


TILTED = attention.Kind("tilted", tilted, "any", shift_invariant=True)


@pytest.mark.parametrize(("weights", "top_k"), [("l2", 2), (TILTED, None)], ids=str)
def test_sums_of_rows_that_are_stationary_keep_their_digits(x64, weights, top_k):
    """Of equal scores they are, where columns are alike; where they are not, nothing is lost that was there."""
    layer = attention.AttentionSpec(
        d_model=4, heads=2, weights=weights, bias=True, qk_norm="unit", scale=2.0, top_k=top_k
    )
    stack = network.StackSpec(attention=layer, depth=4, norm="peri")
    params = network.init(jax.random.key(4), stack, bias_std=0.5)
    x = jax.random.normal(jax.random.key(7), (5, 4))
    computed = np.asarray(collapse.log_residuals(params, x, stack), float)
    low, high = collapse.certified.log_residuals(params, x, stack)
    np.testing.assert_allclose(low, high, rtol=1e-12)
    assert computed[-1] < -2
    np.testing.assert_allclose(computed, (np.asarray(low) + np.asarray(high)) / 2, rtol=1e-11)


@pytest.mark.parametrize("name", ["power6", "softpick", "identity"])
def test_scores_that_cancel_in_a_whole_row_make_no_weights(x64, name):
    """Those of a token of zeros do, and of roundings alone power6 would make a row of its own. Identity makes none."""
    layer = attention.AttentionSpec(d_model=8, heads=2, weights=name)
    computed, right = beside_float64(
        layer, (2.5 * jax.random.normal(jax.random.key(1), (400, 5, 8), "float32")).at[:, 3].set(0)
    )
    known = ~np.isnan(computed)
    np.testing.assert_allclose(computed[known], right[known], atol=0.02)
    assert known.all() or name != "identity"


def beside_float64(layer, x, depth=1):
    """Last residuals in float32 and plainly in float64, for a network of its own with each of the tokens."""
    spec = network.StackSpec(attention=layer, depth=depth)
    params = jax.vmap(lambda key: network.init(key, spec, dtype="float32"))(jax.random.split(jax.random.key(0), len(x)))
    computed = jax.jit(jax.vmap(lambda params, x: collapse.log_residuals(params, x, spec)[-1]))(params, x)
    params, x = jax.tree.map(lambda array: array.astype("float64"), (params, x))
    out = jax.jit(jax.vmap(lambda params, x: network.apply(params, x, spec)))(params, x)
    return np.asarray(computed), np.log(np.linalg.norm(out - out.mean(axis=1, keepdims=True), axis=(1, 2)))


@pytest.mark.parametrize("name", ["power6", "signed"])
@pytest.mark.parametrize("zero", [0, 1])
def test_scores_that_cancel_in_the_columns_that_a_row_sees_make_no_weights(x64, name, zero):
    """A row of one column has one weight or none, whatever roundings stand for its score."""
    layer = attention.AttentionSpec(d_model=8, heads=2, weights=name, causal=True)
    x = (2.5 * jax.random.normal(jax.random.key(1), (100, 5, 8), "float32")).at[:, zero].set(0)
    computed, right = beside_float64(layer, x)
    known = ~np.isnan(computed)
    np.testing.assert_allclose(computed[known], right[known], atol=0.02)


@pytest.mark.parametrize("name", ["power6", "relu_squared", "signed"])
@pytest.mark.parametrize("depth", [1, 2])
def test_rows_that_see_one_token_are_not_guessed_under_the_law_of_the_logarithm(x64, name, depth):
    """Their factor is log 1, and what a sum leaves in its place makes no weights; nor do the keys of what they give."""
    layer = attention.AttentionSpec(d_model=8, heads=2, weights=name, causal=True, scale_law="log_tokens")
    computed, right = beside_float64(layer, jax.random.normal(jax.random.key(1), (100, 5, 8), "float32"), depth)
    known = ~np.isnan(computed)
    np.testing.assert_allclose(computed[known], right[known], atol=0.02)


@pytest.mark.parametrize("name", mostly_slow(("squares", "softplus", "thinned", "entmax15"), fast=("squares",)))
def test_rows_of_equal_sums_keep_the_cube_at_any_depth(dtype, name):
    """Also where a constant in a row changes weights, which is then of second order."""
    depth = 7 if name == "entmax15" else 6  # its tokens fall later
    stack = network.StackSpec(attention=attention.AttentionSpec(d_model=4, heads=2, weights=RULE[name]), depth=depth)
    params = network.init(jax.random.key(1), stack, dtype=dtype)
    x = jax.random.normal(jax.random.key(8), (5, 4), dtype)
    computed, right = compared(params, x, stack, digits=700)
    assert right[-1] < -200
    np.testing.assert_allclose(computed, right, rtol=3e3 * float(jnp.finfo(dtype).eps))


def bent(scores, seen, parts):
    """Rows that sum to 1, of 1 + max(s, s/2)/4 where scores are above −2: a kink at 0."""
    mass = jnp.where(seen, 1 + jnp.maximum(jnp.maximum(scores, -2), jnp.maximum(scores, -2) / 2) / 4, 0)
    return mass / mass.sum(axis=-1, keepdims=True)


def one_head(depth, dtype, *matrices):
    """The same 1 × 1 matrices in every layer, for queries, keys, values and outputs."""
    stacked = (jnp.full((depth, 1, 1, 1), w, dtype) for w in matrices)
    return network.LayerParams(attention.AttentionParams(*stacked))


@pytest.mark.parametrize("size", mostly_slow((1e-1, 1e-3, 1e-6, 1e-12), fast=(1e-3,)))
@pytest.mark.parametrize("form", ["one", "any"])
def test_with_a_kink_between_scores_a_residual_is_right_or_unknown(x64, form, size):
    """Tokens −1, 0.4 and 0.9 times `size`, so that scores have both signs, beside the plain network."""
    kind = Kind("bent", bent, "one") if form == "one" else KINDS["relu_squared_mean"]
    stack = network.StackSpec(attention=attention.AttentionSpec(d_model=1, weights=kind), depth=1)
    params, x = one_head(1, "float64", 1.0, 1.0, 1.0, 1.0), size * jnp.asarray([[-1.0], [0.4], [0.9]])
    got = float(collapse.log_residuals(params, x, stack, scale=1 / size)[1])
    scores = np.asarray(x) @ np.asarray(x).T / size
    out = np.asarray(kind(jnp.asarray(scores)[None])[0]) @ np.asarray(x)
    right = np.log(np.linalg.norm(out - out.mean()))
    assert np.isnan(got) or abs(got - right) < 1e-6 * max(1, abs(right))


def test_saturated_weights_below_the_smallest_number_are_unknown():
    kind = Kind("sharp", lambda s, seen, parts: own_kinds.sharper(50 * s, seen, parts), "one", shift_invariant=True)
    stack = network.StackSpec(attention=attention.AttentionSpec(d_model=1, weights=kind), depth=1)
    params, x = one_head(1, "float32", 1.0, 1.0, 1.0, 1.0), jnp.asarray([[9.0], [8.0], [7.0]], jnp.float32)
    assert np.isnan(collapse.log_residuals(params, x, stack)[1])


def test_a_token_that_sees_itself_alone_keeps_its_weight(x64):
    """The score moves, and a weight of 1 cannot."""
    stack = network.StackSpec(attention=attention.AttentionSpec(d_model=3, weights="l2", window=0), depth=3)
    params, x = network.init(jax.random.key(0), stack), jax.random.normal(jax.random.key(1), (4, 3))
    computed, right = compared(params, x, stack)
    np.testing.assert_allclose(computed, right, rtol=1e-12)


def near_first(scores, seen, parts):
    """Softmax of scores less a distance between tokens: rows differ at equal scores."""
    far = jnp.abs(jnp.arange(scores.shape[-2])[:, None] - jnp.arange(scores.shape[-1])[None]).astype(scores.dtype)
    return own_kinds.softmax(scores - far[None], seen)


def test_rows_that_differ_by_their_place_are_of_first_order(x64):
    kind = Kind("near_first", near_first, "one", shift_invariant=True)
    stack = network.StackSpec(attention=attention.AttentionSpec(d_model=3, weights=kind), depth=2)
    params, x = network.init(jax.random.key(0), stack), jax.random.normal(jax.random.key(1), (4, 3))
    states = np.asarray(network.hidden_states(params, x, stack))
    right = [np.log(np.linalg.norm(state - state.mean(axis=0))) for state in states]
    np.testing.assert_allclose(collapse.log_residuals(params, x, stack), right, rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_jump_with_one_slope_on_both_sides_is_seen(x64, dtype):
    """`signed` weights change their sign where a score passes 0, and their slope does not change there."""
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=1, weights="signed", scale=1.0), depth=1)
    params = network.init(jax.random.key(0), spec, dtype=dtype)
    one = jnp.ones((1, 1, 1, 1), dtype)
    params = params._replace(attention=params.attention._replace(query=one, key=one, value=one, output=one))
    x = jnp.asarray([[0.1], [-0.09], [-0.08]], dtype)
    out = network.apply(params, x, spec)
    right = float(jnp.log(jnp.linalg.norm(out - out.mean(axis=0, keepdims=True))))
    computed = float(collapse.log_residuals(params, x, spec)[1])
    assert np.isnan(computed) or abs(computed - right) < 1e-4


def two_products(weights, *record, **more):
    """A kind of two score matrices; `weights` takes the scores of both and what is seen."""

    def of_both(scores, seen, parts):
        one, other = jnp.split(scores, 2)
        return weights(one, other, jnp.broadcast_to(seen, scores.shape)[: one.shape[0]])

    return Kind("two", of_both, *record, maps=2, **more)


softmax = own_kinds.softmax


def _gated(a, b, seen):
    return jnp.where(seen, jax.nn.sigmoid(a) * jnp.tanh(b), 0) / own_kinds.count(a, seen)


TWO = {
    "mean": two_products(lambda a, b, seen: (softmax(a, seen) + softmax(b, seen)) / 2, "one", shift_invariant=True),
    "less": two_products(lambda a, b, seen: softmax(a, seen) - 0.4 * softmax(b, seen), "fixed", shift_invariant=True),
    "sharper": two_products(
        lambda a, b, seen: own_kinds.over_sum(softmax(a, seen) * (1 + softmax(b, seen))), "one", shift_invariant=True
    ),
    "sum": two_products(lambda a, b, seen: softmax(a + b, seen), "one", shift_invariant=True),
}


@pytest.mark.parametrize(
    "options", [{}, {"causal": True, "bias": True}, {"soft_cap": 2.0, "scores": "cosine"}], ids=str
)
@pytest.mark.parametrize("name", TWO)
def test_own_kinds_of_two_score_matrices_against_plain_float64(x64, name, options):
    """Where float64 sees the residual it is right or not known; of most networks and both precisions it is known."""
    layer = attention.AttentionSpec(d_model=8, heads=2, weights=TWO[name], **options)
    spec = network.StackSpec(attention=layer, depth=3)

    def one(key, dtype):
        params = network.init(key, spec, gain=1.5, bias_std=0.5, dtype=dtype)
        x = jax.random.normal(jax.random.fold_in(key, 1), (5, 8), dtype)
        states = network.hidden_states(*jax.tree.map(lambda leaf: leaf.astype("float64"), (params, x)), spec)
        apart = jnp.linalg.norm(states - states.mean(1, keepdims=True), axis=(1, 2))
        return collapse.log_residuals(params, x, spec), jnp.log(apart), jnp.linalg.norm(states, axis=(1, 2))

    for dtype, close in (("float32", 1e-3), ("float64", 1e-4)):
        run = jax.jit(jax.vmap(lambda key, dtype=dtype: one(key, dtype)))
        computed, right, size = map(np.asarray, run(jax.random.split(jax.random.key(3), 24)))
        seen = right - np.log(size) > -20  # a ten-millionth of the residual is rounding
        known = ~np.isnan(computed)
        assert known[:, :2].mean() > 0.9 and (known & seen)[:, 1:].any()
        np.testing.assert_allclose(computed[known & seen], right[known & seen], rtol=close, atol=close)


OTHERS = {
    "product": two_products(lambda a, b, seen: softmax(a * jnp.tanh(b), seen), "one"),
    "larger": two_products(lambda a, b, seen: softmax(jnp.maximum(a, b), seen), "one"),
    "gated": two_products(_gated, "any"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_own_kinds_of_two_score_matrices_whose_levels_count_are_refused(name):
    """In float32 a product was 8 % off, unseen by moved roundings, in one of 72 networks."""
    layer = attention.AttentionSpec(d_model=8, heads=2, weights=OTHERS[name])
    spec = network.StackSpec(attention=layer, depth=2)
    params, x = network.init(jax.random.key(0), spec), jax.random.normal(jax.random.key(1), (4, 8))
    with pytest.raises(collapse.NotCovered, match=r"`shift_invariant`.*digits of their levels are lost"):
        collapse.log_residuals(params, x, spec)


@pytest.mark.parametrize("name", mostly_slow(TWO, fast=("mean",)))
def test_own_kinds_of_two_score_matrices_against_balls(x64, name):
    layer = attention.AttentionSpec(d_model=4, heads=2, d_head=4, weights=TWO[name])
    spec = network.StackSpec(attention=layer, depth=3)
    params, x = network.init(jax.random.key(0), spec), jax.random.normal(jax.random.key(1), (4, 4))
    computed = np.asarray(collapse.log_residuals(params, x, spec))
    low, high = collapse.certified.log_residuals(params, x, spec)
    np.testing.assert_allclose(low, high, rtol=1e-12)
    known = ~np.isnan(computed)
    assert known[:2].all()
    np.testing.assert_allclose(computed[known], ((np.asarray(low) + np.asarray(high)) / 2)[known], rtol=1e-9)


def test_the_derivative_of_an_unknown_residual_is_not_a_number():
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=8, heads=2), depth=8)
    params = network.init(jax.random.key(1), spec, gain=4.0)
    x = jax.random.normal(jax.random.key(2), (4, 8))
    value, slope = jax.value_and_grad(lambda x: collapse.log_residuals(params, x, spec)[-1])(x)
    assert np.isnan(value) and np.isnan(slope).all()
