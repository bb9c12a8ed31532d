"""The bounds against their formulas in many digits, on thousands of networks, and what they refuse."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import attention, collapse, network
from rc_jax.collapse import audit
from tests.compiling import NOT_OPTIMISED, OPTIMISED
from tests.oracles import bounds as oracle
from tests.oracles.collapse import states as states_of

STACK = network.StackSpec(attention=attention.AttentionSpec(d_model=4, heads=2, bias=True), depth=4)
BOUNDS = (
    collapse.measured_gamma,
    collapse.layer_bound,
    collapse.depth_bound,
    collapse.tanh_bound,
    collapse.tanh_depth_bound,
    audit.layer,
    audit.depth,
    audit.tanh_layer,
    audit.tanh_depth,
)


def case(dtype, spec=STACK, size=1.0, tokens=5, seed=0):
    key = jax.random.key(seed)
    params = network.init(jax.random.fold_in(key, 0), spec, bias_std=0.5, dtype=dtype)
    return params, size * jax.random.normal(jax.random.fold_in(key, 1), (tokens, spec.attention.d_model), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.05, 1.0, 6.0])
def test_published_bounds_against_their_formulas_in_many_digits(x64, size):
    """Near collapse, at unit size, and where logits move far beyond the lemma's limit."""
    params, x = case("float64", size=size)
    alpha = [0.3, 0.9]
    with mp.workdps(400):
        # The oracle's layers take one scale for all heads, so the per-head scale goes into the queries.
        scaled = jax.tree.map(np.asarray, params)
        factor = np.asarray(alpha)[None, :, None, None] * 2**0.5
        scaled = scaled._replace(
            attention=scaled.attention._replace(
                query=scaled.attention.query * factor, query_bias=scaled.attention.query_bias * factor[..., 0]
            )
        )
        states = states_of(scaled, x, STACK)
        heads = [oracle.heads(scaled, index, [mp.mpf(2) ** -0.5] * 2) for index in range(STACK.depth)]
        pairs = [oracle.gamma_and_bound(state, each) for state, each in zip(states, heads, strict=False)]
        gamma, log_bound = [float(g) for g, _ in pairs], [float(mp.log(b)) for _, b in pairs]
        start = mp.log(oracle.composite(oracle.centred(states[0])))
        depth = [float(start)]
        for layers in range(1, STACK.depth + 1):
            constant = 4 * max(g for g, _ in pairs[:layers]) * max(oracle.beta(each) for each in heads[:layers])
            depth.append(float(mp.mpf(3**layers - 1) / 2 * mp.log(constant) + 3**layers * start))
        measured = [float(mp.log(oracle.composite(oracle.centred(state)))) for state in states]
    options = {"scale": jnp.asarray(alpha)}
    np.testing.assert_allclose(collapse.measured_gamma(params, x, STACK, **options), gamma, rtol=1e-11)
    np.testing.assert_allclose(collapse.layer_bound(params, x, STACK, **options), log_bound, rtol=1e-11)
    np.testing.assert_allclose(collapse.depth_bound(params, x, STACK, **options), depth, rtol=1e-11)
    np.testing.assert_allclose(audit.depth(params, x, STACK, **options).left, measured, rtol=1e-11)
    assert all(m < b for m, b in zip(measured[1:], log_bound, strict=True))
    assert all(m <= b for m, b in zip(measured, depth, strict=True))


@pytest.mark.parametrize(
    ("size", "d_head"), [(1.0, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0.05, 1), (6.0, 5)))]
)
def test_tanh_bounds_against_their_formulas_in_many_digits(x64, size, d_head):
    """With heads narrower and wider than the tokens: the spectral norms take two routes."""
    spec = dataclasses.replace(STACK, attention=dataclasses.replace(STACK.attention, d_head=d_head))
    params, x = case("float64", spec, size=size)
    with mp.workdps(400):
        plain = jax.tree.map(np.asarray, params)
        states = states_of(plain, x, spec)
        heads = [oracle.heads(plain, index, [1 / mp.sqrt(d_head)] * 2) for index in range(spec.depth)]
        sizes = [oracle.diameter(state) for state in states]
        layer = [float(mp.log(oracle.tanh_growth(s, each))) for s, each in zip(sizes, heads, strict=False)]
        iterated = [sizes[0]]
        for each in heads:
            iterated.append(oracle.tanh_growth(iterated[-1], each))
        closed = [float(mp.log(sizes[0]))]
        for layers in range(1, spec.depth + 1):
            constant = max(oracle.tanh_constant(each) for each in heads[:layers])
            closed.append(float(mp.mpf(3**layers - 1) / 2 * mp.log(constant) + 3**layers * mp.log(sizes[0])))
        iterated, measured = [float(mp.log(s)) for s in iterated], [float(mp.log(s)) for s in sizes]
    np.testing.assert_allclose(audit.tanh_layer(params, x, spec).right, layer, rtol=1e-11)
    np.testing.assert_allclose(collapse.tanh_bound(params, x, spec), iterated, rtol=1e-11)
    np.testing.assert_allclose(collapse.tanh_depth_bound(params, x, spec), closed, rtol=1e-11)
    np.testing.assert_allclose(audit.tanh_depth(params, x, spec).left, measured, rtol=1e-11)
    assert all(m <= i <= c for m, i, c in zip(measured, iterated, closed, strict=True))


@pytest.mark.slow
def test_bounds_hold_on_ten_thousand_networks(key):
    """Biases, several heads and every size of input, in one mapped call each; two layers deep."""
    spec = dataclasses.replace(STACK, depth=2)

    def one(key):
        keys = jax.random.split(key, 4)
        gain = jnp.exp(jax.random.uniform(keys[2], minval=-2, maxval=1))
        params = network.init(keys[0], spec, gain=gain, bias_std=0.5)
        size = jnp.exp(jax.random.uniform(keys[3], minval=-4, maxval=2))
        x = size * jax.random.normal(keys[1], (5, 4))
        steps = (audit.layer, audit.depth, audit.tanh_layer, audit.tanh_depth)
        inequalities = [step(params, x, spec) for step in steps]
        # Saturated rows that all take the same token leave no difference at all, not even in logarithms.
        units = [jnp.where(jnp.isneginf(each.left), 1, 1 + jnp.abs(each.left)) for each in inequalities]
        return [jnp.min(each.slack / unit) for each, unit in zip(inequalities, units, strict=True)]

    slack = np.asarray(jax.jit(jax.vmap(one), compiler_options=OPTIMISED)(jax.random.split(key, 10_000)))
    assert slack.shape == (4, 10_000)
    assert not np.isnan(slack).any()
    assert np.isfinite(slack).mean() > 0.9
    assert (slack >= -64 * np.finfo(np.float32).eps).all()


@pytest.mark.slow
def test_bounds_hold_about_the_minimiser_too(x64):
    params, x = case("float64")
    assert (audit.layer(params, x, STACK, center="argmin").slack > 0).all()
    assert (audit.depth(params, x, STACK, center="argmin").slack >= 0).all()


def test_heads_cannot_be_summed_in_the_composite_norm():
    """The triangle inequality fails there by any factor, so the bound adds heads in ‖·‖₁ and ‖·‖_∞ apart."""
    column, row = np.zeros((16, 16), np.float32), np.zeros((16, 16), np.float32)
    column[:, 0], row[0] = 1, 1
    both, *apart = (collapse.norm_1inf(jnp.asarray(m)) for m in (column + row, column, row))
    assert both > 2 * (apart[0] + apart[1])


@pytest.mark.slow
def test_gamma_is_what_makes_the_cube_an_equality(x64):
    """One head about the minimiser: DCL21's form 4γ‖W_QK‖₁‖W‖_{1,∞}‖R‖³ with T = √(‖D1‖₁‖D1‖_∞) put in by hand."""
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=4), depth=1)
    params, x = case("float64", spec, size=0.2)
    weight = np.asarray(params.attention.query[0, 0] @ params.attention.key[0, 0].T) / 2
    value = np.asarray(params.attention.value[0, 0] @ params.attention.output[0, 0])
    rest = np.asarray(collapse.residual(x, "argmin"))
    logits = rest @ weight @ rest.T
    moved = np.ptp(logits, axis=1)
    assert moved.max() < audit.LEMMA_LIMIT
    size = float(collapse.norm_1inf(jnp.asarray(rest)))
    gamma = np.sqrt(moved.sum() * moved.max()) / (2 * abs(weight).sum(0).max() * size**2)
    right = 4 * gamma * abs(weight).sum(0).max() * float(collapse.norm_1inf(jnp.asarray(value))) * size**3
    np.testing.assert_allclose(collapse.measured_gamma(params, x, spec, center="argmin")[0], gamma, rtol=1e-6)
    np.testing.assert_allclose(collapse.layer_bound(params, x, spec, center="argmin")[0], np.log(right), rtol=1e-6)


@pytest.mark.slow
def test_tanh_bound_is_attained_at_every_depth(dtype):
    """Two tokens ±t on a line stay ±t', with t' = tanh(t²)t."""
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=1), depth=5)
    one = jnp.ones((5, 1, 1, 1), dtype)
    params = network.LayerParams(attention.AttentionParams(one, one, one, one))
    x = jnp.asarray([[0.7], [-0.7]], dtype)
    with mp.workdps(300):
        t, sizes = mp.mpf(float(x[0, 0])), []
        for _ in range(6):
            sizes.append(float(mp.log(2 * t)))
            t *= mp.tanh(t * t)
    tolerance = 20 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(collapse.tanh_bound(params, x, spec), sizes, rtol=tolerance)
    step = audit.tanh_depth(params, x, spec)
    np.testing.assert_allclose(step.left, step.right, rtol=tolerance)


@pytest.mark.slow
def test_biases_do_not_enter():
    params, x = case("float32")
    bare = params.attention._replace(query_bias=None, key_bias=None, value_bias=None, output_bias=None)
    plain = dataclasses.replace(STACK, attention=dataclasses.replace(STACK.attention, bias=False))
    for bound in (collapse.measured_gamma, collapse.layer_bound):
        without = bound(params._replace(attention=bare), x, plain)
        np.testing.assert_allclose(bound(params, x, STACK)[0], without[0], rtol=1e-5)
    np.testing.assert_array_equal(
        collapse.tanh_bound(params, x, STACK), collapse.tanh_bound(params._replace(attention=bare), x, plain)
    )


@pytest.mark.slow
@pytest.mark.parametrize("bound", BOUNDS[:5])
@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_result_follows_the_input_dtype_and_a_recipe_gives_the_same(bound, kind):
    stored, x = case(kind)
    drawn = network.random_layers(jax.random.fold_in(jax.random.key(0), 0), STACK, bias_std=0.5, dtype=kind)
    first, second = bound(stored, x, STACK), bound(drawn, x, STACK)
    assert first.dtype == second.dtype == jnp.dtype(kind)
    np.testing.assert_allclose(np.asarray(first, float), np.asarray(second, float), rtol=8 * float(jnp.finfo(kind).eps))


@pytest.mark.slow
def test_equal_tokens_and_silent_heads():
    """No difference left to bound: minus infinity, and never a NaN."""
    params, x = case("float32")
    same = jnp.broadcast_to(x[:1], x.shape)
    silent = params._replace(attention=params.attention._replace(value=jnp.zeros_like(params.attention.value)))
    blind = params._replace(attention=params.attention._replace(query=jnp.zeros_like(params.attention.query)))
    for bound in BOUNDS[1:5]:
        assert jnp.isneginf(bound(params, same, STACK)).all()
        for weights in (silent, blind):
            assert jnp.isneginf(bound(weights, x, STACK)[1:]).all()
    for step in BOUNDS[5:]:
        assert (step(params, same, STACK).slack == 0).all()
        assert not jnp.isnan(step(silent, x, STACK).slack).any()
    assert (collapse.measured_gamma(params, same, STACK) == 0).all()


@pytest.mark.parametrize("bound", BOUNDS)
def test_what_is_not_known_bounds_nothing(bound):
    """NaN among the tokens, and among the weights of the second layer, is no zero."""
    params, x = case("float32")
    given = [(0, params, x.at[1, 2].set(jnp.nan))]
    for name in ("query", "value"):
        weights = getattr(params.attention, name).at[1, 0, 0, 0].set(jnp.nan)
        given.append((1, params._replace(attention=params.attention._replace(**{name: weights})), x))
    for first, weights, tokens in given:
        values = bound(weights, tokens, STACK)
        for each in jax.tree.leaves(values):
            start = first + (first > 0) * (each.size > STACK.depth)  # an entry for the first tokens themselves
            assert jnp.isnan(each[start:]).all() and not jnp.isnan(each[:start]).any()


@pytest.mark.slow
@pytest.mark.parametrize("bound", BOUNDS[1:5])
def test_gradients_are_finite_at_any_depth(bound):
    params, x = case("float32")
    slope = jax.grad(lambda weights, x: bound(weights, x, STACK)[-1], argnums=(0, 1))
    slopes = jax.jit(slope, compiler_options=NOT_OPTIMISED)(params, x)
    chex.assert_tree_all_finite(slopes)


@pytest.mark.parametrize("gain", [1e-17, 1e-10, 1e10, 1e17])
def test_bounds_hold_where_products_of_weights_leave_the_dtype(gain):
    """Tokens that attain the bound: the product of two matrices, and its square, are too small or too large."""
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=1), depth=1)
    weight = jnp.full((1, 1, 1, 1), gain)
    params = network.LayerParams(attention.AttentionParams(weight, weight, weight, weight))
    x = jnp.asarray([[0.7], [-0.7]])
    t, g = mp.mpf(float(x[0, 0])), mp.mpf(float(weight[0, 0, 0, 0]))
    after = float(mp.log(2 * g**2 * t * mp.tanh((g * t) ** 2)))
    closed = float(mp.log(2 * g**2 * t * (g * t) ** 2))
    if gain < 1:  # beside saturated rows the tokens after the layer are not known
        np.testing.assert_allclose(audit.tanh_layer(params, x, spec).right, [after], rtol=1e-6)
    np.testing.assert_allclose(collapse.tanh_bound(params, x, spec)[1], after, rtol=1e-6)
    np.testing.assert_allclose(collapse.tanh_depth_bound(params, x, spec)[1], closed, rtol=1e-6)


@pytest.mark.slow
def test_very_deep_networks_keep_a_bound():
    """3^l leaves float32 after 80 layers; the bound goes to −inf or +inf with it, not to NaN."""
    spec = dataclasses.replace(STACK, depth=90)
    for size in (0.01, 3.0):
        params, x = case("float32", spec, size=size)
        for bound in (collapse.depth_bound, collapse.tanh_bound, collapse.tanh_depth_bound):
            assert not jnp.isnan(bound(params, x, spec)).any(), (bound, size)


REFUSED = {
    "skip=False": {"skip": True},
    "mlp=None": {"mlp": network.MLPSpec(width=8)},
    "norm=None": {"norm": "post"},
}
REFUSED_LAYER = {
    "weights='softmax'": {"weights": "relu_squared"},
    "scores='dot'": {"scores": "cosine"},
    "rotary=None: .*, got": {"rotary": attention.Rotary()},
    "qk_norm=None: .*, got": {"qk_norm": "rms"},
    "scale_law='constant': .*, got": {"scale_law": "log_tokens"},
    "no mask: .*causal=True": {"causal": True},
    "no mask: .*window=2": {"window": 2},
    "no mask: .*top_k=2": {"top_k": 2},
    "rank=None: .* got 2": {"rank": 2, "tokens": 5},
}


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("bound", BOUNDS)
def test_networks_for_which_no_theorem_holds_are_refused_with_the_reason(bound):
    params, x = case("float32")
    for reason, change in REFUSED.items():
        with pytest.raises(ValueError, match=f"`spec` must have {reason}"):
            bound(params, x, dataclasses.replace(STACK, **change))
    for reason, change in REFUSED_LAYER.items():
        spec = dataclasses.replace(STACK, attention=dataclasses.replace(STACK.attention, **change))
        with pytest.raises(ValueError, match=f"`spec` must have {reason}"):
            bound(params, x, spec)
    with pytest.raises(ValueError, match="token >= 2"):
        bound(params, x[:1], STACK)
    with pytest.raises(ValueError, match="`scale` must be > 0"):
        bound(params, x, STACK, scale=0.0)
    with pytest.raises(ValueError, match="`x` must have d_model=4"):
        bound(params, x[:, :3], STACK)
    with pytest.raises(TypeError, match="`x` must have the dtype"):
        bound(params, x.astype("bfloat16"), STACK)
    if "tanh" not in bound.__name__:
        with pytest.raises(ValueError, match="`center` must be one of 'mean', 'argmin'"):
            bound(params, x, STACK, center="median")


@pytest.mark.slow
def test_a_window_that_hides_nothing_is_no_mask():
    params, x = case("float32")
    wide = dataclasses.replace(STACK, attention=dataclasses.replace(STACK.attention, window=4))
    np.testing.assert_array_equal(collapse.tanh_bound(params, x, wide), collapse.tanh_bound(params, x, STACK))
