"""Tokens of every size that the dtype has, and far from the origin, in layers that divide by a length."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, collapse, network
from rc_jax.collapse.exact import state
from tests.collapse.exact.test_trajectory import exact_logs, mostly_slow, worst_error
from tests.compiling import NOT_OPTIMISED

TOKENS = np.random.default_rng(5).normal(size=(3, 4))
GATED = network.MLPSpec(width=4, activation="silu", gated=True)


def stack(layer, **changes):
    shape = {"d_model": 4} | layer
    return network.StackSpec(attention=attention.AttentionSpec(**shape), **({"depth": 2} | changes))


def errors(spec, dtype, tokens, digits=100, computed=None):
    computed = computed or collapse.log_residuals  # as it is now: slow tests replace it
    params = network.init(jax.random.key(7), spec, dtype=dtype)
    worst = []
    for x in tokens:
        x = jnp.asarray(x, dtype)
        exact = [-np.inf if e < -2.2 * digits else e for e in exact_logs(params, x, spec, digits)]  # rounding there
        worst.append(worst_error(computed(params, x, spec), exact))
    return np.array(worst)


NORMED = {
    "rms, pre, gated": stack({"qk_norm": "rms"}, norm="pre", mlp=GATED),
    "layer, post": stack({"qk_norm": "layer"}, norm="post", norm_kind="rms"),
    "cosine": stack({"scores": "cosine"}),
    "unit, rotary": stack({"qk_norm": "unit", "rotary": attention.Rotary()}),
    "rms, post, gated": stack({"qk_norm": "rms"}, norm="post", mlp=GATED, skip=True),
}
SIZES = {"float32": [1e-12, 1e9, 1e10, 1e18, 1e30], "float64": [1e-20, 1e70, 1e80, 1e140, 1e300]}
SCALE_FREE = ["cosine", "unit, rotary"]


@pytest.mark.parametrize("name", mostly_slow(NORMED, fast=("rms, pre, gated",)))
def test_tokens_of_any_size(dtype, name):
    sizes = np.array([1, *SIZES[dtype], *([1e-20, 1e-29] if name in SCALE_FREE and dtype == "float32" else [])])
    measured = errors(NORMED[name], dtype, sizes[:, None, None] * TOKENS, digits=700 if dtype == "float64" else 100)
    # Sizes are carried as logarithms, and have the roundings of those.
    allowed = 2 * (32 + abs(np.log(sizes))) * float(jnp.finfo(dtype).eps)
    assert (measured < allowed).all(), dict(zip(sizes, measured / allowed, strict=True))


ROTATED = {
    "plain": {},
    "sigmoid": {"weights": "sigmoid"},
    "sink": {"weights": "softmax_plus_one"},
    "cap": {"soft_cap": 5.0},
    "differential": {"weights": "differential", "d_head": 4},
}


@pytest.mark.parametrize("name", mostly_slow(ROTATED, fast=("sigmoid",)))
def test_rotated_tokens_of_any_size(dtype, name):
    """Rows of equal tokens differ by products of two means, which have no place in the dtype where tokens are small."""
    sizes = np.array([1, 1e-12, 1e-19, 1e-25] if dtype == "float32" else [1, 1e-160])
    spec = stack({"rotary": attention.Rotary()} | ROTATED[name])
    tokens = sizes[:, None, None] * np.concatenate([TOKENS, 1 + 1e-6 * TOKENS])[None]
    measured = errors(spec, dtype, tokens.reshape(-1, 3, 4), digits=500 if dtype == "float32" else 3000)
    allowed = (32 + abs(np.log(sizes))) * float(jnp.finfo(dtype).eps)
    assert (measured.reshape(-1, 2) < allowed[:, None]).all(), measured


# One direction is left for tokens to differ in: LayerNorm of two features, RMSNorm of one, and heads of such widths.
NARROW = {
    "layer, pre": (stack({"d_model": 2, "qk_norm": "layer"}, norm="pre"), 2),
    "rms, post": (stack({"d_model": 1}, norm="post", norm_kind="rms"), 1),
    "layer, post, skip": (stack({"d_model": 2, "heads": 2, "qk_norm": "rms"}, norm="post", skip=True), 2),
    "unit": (stack({"d_model": 2, "heads": 2, "qk_norm": "unit"}), 2),
}


def narrow_tokens(width, offsets):
    random = np.random.default_rng(0)
    rest, common = random.normal(size=(3, 2))[:, :width], random.normal(size=2)[:width]
    for offset in offsets:
        for size in (1.0, 1e-3):
            yield rest * size + offset * common


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROW)
def test_norms_that_leave_one_direction(dtype, name):
    """All but the sign is lost to ε: what is left of the differences, e^−87 of them, is no difference of roundings."""
    spec, width = NARROW[name]
    tokens = narrow_tokens(width, [0, 1, 10] if name == "rms, post" else [0, 1, 100, 1e4])
    assert errors(spec, dtype, tokens, digits=420).max() < (1e-5 if dtype == "float32" else 1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0.0, 10.0])
def test_derivative_where_one_direction_is_left(x64, offset):
    spec = NARROW["layer, pre"][0]
    params = network.init(jax.random.key(7), spec, dtype="float64")
    x = jnp.asarray(next(narrow_tokens(2, [offset])))
    along = jax.random.normal(jax.random.key(1), x.shape, "float64")
    last = jax.grad(lambda step: collapse.log_residuals(params, x + step * along, spec)[-1])
    slope = jax.jit(last)(jnp.zeros(()))
    up, down = (exact_logs(params, x + step * along, spec, 200)[-1] for step in (1e-6, -1e-6))
    np.testing.assert_allclose(float(slope), float(up - down) / 2e-6, rtol=1e-6)


def test_the_direction_of_what_a_rounding_leaves_is_unknown():
    """A query of one feature of a zero token is a rounding: over its length ±1, in all three computations alike."""
    spec = stack({"qk_norm": "unit", "weights": "sinkhorn", "d_model": 2, "d_head": 1}, depth=1, skip=True)
    for seed in range(24):
        params = network.init(jax.random.key(seed), spec)
        x = jax.random.normal(jax.random.key(seed + 100), (4, 2)).at[0].set(0)
        got, exact = float(collapse.log_residuals(params, x, spec)[1]), float(exact_logs(params, x, spec, 60)[1])
        assert np.isnan(got) or abs(got - exact) < 1e-4, (seed, got, exact)


def without_optimisations(params, x, spec):
    run = functools.partial(collapse.log_residuals, spec=spec)
    return jax.jit(run).lower(params, x).compile(compiler_options=NOT_OPTIMISED)(params, x)


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROW)
def test_one_direction_without_a_compilers_optimisations(name):
    spec, width = NARROW[name]
    assert errors(spec, "float32", narrow_tokens(width, [1, 10]), 420, without_optimisations).max() < 1e-5


def test_three_equal_tokens_without_a_compilers_optimisations():
    """Three times a number over three need not be the number."""
    x = jnp.asarray(np.tile(TOKENS[:1], (3, 1)), jnp.float32)
    split = jax.jit(state.decompose).lower(x).compile(compiler_options=NOT_OPTIMISED)(x)
    assert bool(jnp.all(split.direction == 0)) and bool(jnp.isneginf(split.log_norm))
    np.testing.assert_array_equal(split.mean, x[0])


def test_a_norm_of_tokens_beside_a_large_common_part_is_known_or_not_a_number():
    """The norm subtracts what all features share: float32 has no digits left of tokens beside 10⁶."""
    spec = NORMED["rms, pre, gated"]
    params = network.init(jax.random.key(7), spec)
    unknown = 0
    for offset in (1e3, 1e4, 1e5, 1e6):
        x = jnp.asarray(0.1 * TOKENS + offset, jnp.float32)
        got, exact = np.asarray(collapse.log_residuals(params, x, spec)), exact_logs(params, x, spec, 60)
        unknown += np.isnan(got).sum()
        assert all(np.isnan(g) or abs(g - float(e)) < 0.01 for g, e in zip(got, exact, strict=True)), (offset, got)
    assert 0 < unknown < 8


@pytest.mark.parametrize("n", mostly_slow((3, 5, 6, 7), fast=(6,)))
def test_zero_tokens_beside_another(n, dtype):
    """What a zero token is in the split form, a mean less itself, is rounded on either side of 0.

    Where that moves the logarithm by nearly a thousandth, the check may find the result unknown.
    """
    spec = stack({"weights": "sigmoid", "qk_norm": "rms"})
    tokens = np.zeros((n, 4))
    tokens[n // 2] = TOKENS[0]
    tolerance = 3e-4 if dtype == "float32" else 1e-10  # a rounding over √ε of the norm
    unchecked = functools.partial(collapse.log_residuals, check=False)
    assert errors(spec, dtype, [tokens], computed=unchecked).max() < tolerance
    checked = errors(spec, dtype, [tokens])
    assert (checked[~np.isnan(checked)] < tolerance).all() and (dtype == "float32" or not np.isnan(checked).any())
