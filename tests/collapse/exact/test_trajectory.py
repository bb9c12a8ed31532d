"""Cancellation-free arithmetic against thousands of digits and valid plain arithmetic, and at its edges."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import attention, collapse, network
from tests.oracles import collapse as oracle
from tests.oracles import many_digits

TOLERANCE = {"float64": 1e-14, "float32": 1e-6}


def mostly_slow(cases, fast):
    """All cases but the `fast` ones in the slow tier."""
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def stack(depth=8, skip=False, **changes):
    shape = {"d_model": 4, "heads": 2, "bias": True} | changes
    return network.StackSpec(attention=attention.AttentionSpec(**shape), depth=depth, skip=skip)


def draw(seed, spec, dtype, tokens=5, size=1.0, **options):
    params = network.init(jax.random.key(seed), spec, dtype=dtype, **({"bias_std": 0.3} | options))
    x = jnp.asarray(size, dtype) * jax.random.normal(
        jax.random.key(seed + 1000), (tokens, spec.attention.d_model), dtype
    )
    return params, x


def worst_error(got, exact):
    """Largest error of a logarithm, relative where it is large; NaN where a logarithm is one, or infinite alone."""
    pairs = [(mp.mpf(float(g)), e) for g, e in zip(got, exact, strict=True)]
    return np.max([0 if g == e else float(abs(g - e) / max(1, abs(e))) for g, e in pairs])


def exact_logs(params, x, spec, digits, scale=None, mask=None):
    with mp.workdps(digits):
        return oracle.log_residuals(params, x, spec, scale, mask)


@pytest.mark.parametrize("seed", mostly_slow((0, 3), fast=(0,)))
def test_pure_attention_agrees_with_six_thousand_digits(dtype, seed):
    spec = stack()
    params, x = draw(seed, spec, dtype)
    exact = exact_logs(params, x, spec, 6000)
    assert exact[-1] < -2000  # the collapse is far beyond any floating-point residual
    assert worst_error(collapse.log_residuals(params, x, spec), exact) < TOLERANCE[dtype]


def average_pools(params, dtype):
    """Columns that are averages of tokens, which keep the cube, in place of Gaussian ones."""
    rank, tokens = params.attention.parts["pool"].shape[-2:]
    pools = jnp.broadcast_to(attention.average_pool(tokens, rank, dtype=dtype), params.attention.parts["pool"].shape)
    return params._replace(attention=params.attention.with_parts(pool=pools))


ANY = (-np.inf, np.inf)
# The network, its draw, the mask, digits, the tolerance over `TOLERANCE`, and where the last logarithm lies.
CASES = {
    "causal": ({"causal": True}, {}, np.tri(5), 60, 1, ANY),
    "window": ({"window": 1}, {}, abs(np.subtract.outer(range(5), range(5))) <= 1, 60, 1, ANY),
    "graph": ({}, {}, np.roll(np.eye(5), 1, axis=1) + np.eye(5), 60, 1, ANY),
    # At full size rows of softmax become sharp, and the network itself multiplies the rounding of its input.
    "skip": ({"skip": True}, {"size": 0.5}, None, 50, 1, ANY),
    # Rows that see the same tokens keep the cube: to first order alone the residual would stay near e^−10.
    "padding token": ({"depth": 6}, {}, np.repeat([[1, 1, 1, 1, 0]], 5, axis=0), 2500, 3, (-np.inf, -100)),
    "blocks": ({"depth": 6}, {}, np.kron(np.eye(2), np.ones((3, 3)))[:5, :5], 2500, 3, ANY),
    # Sevenths of tokens have sums that are 1 only to rounding.
    "averages of 6": ({"depth": 7, "rank": 2, "tokens": 6}, {"tokens": 6}, None, 4000, 2, (-np.inf, -300)),
    "averages of 7": ({"depth": 7, "rank": 2, "tokens": 7}, {"tokens": 7}, None, 4000, 2, (-np.inf, -300)),
    # Rows of a Gaussian E do not sum to 1: columns of equal tokens differ, and the fall is a constant.
    "Gaussian columns": ({"depth": 12, "rank": 2, "tokens": 6}, {"tokens": 6}, None, 300, 8, (-60, 0)),
}


@pytest.mark.parametrize("name", mostly_slow(CASES, fast=("causal", "padding token")))
def test_masks_ranks_and_skips_agree_with_many_digits(dtype, name):
    shape, drawn, mask, digits, factor, last = CASES[name]
    spec = stack(**shape)
    params, x = draw(3, spec, dtype, **drawn)
    if name.startswith("averages"):
        params = average_pools(params, dtype)
    seen = None if mask is None else np.asarray(mask, bool)
    exact = exact_logs(params, x, spec, digits, mask=seen)
    own = spec.attention.causal or spec.attention.window is not None
    got = collapse.log_residuals(params, x, spec, mask=None if own or seen is None else jnp.asarray(seen))
    assert worst_error(got, exact) < factor * TOLERANCE[dtype]
    assert last[0] < exact[-1] < last[1]


# The network, seed, draw and factor: large tokens, large and tiny weights, tokens that are collapsed from the start.
# Not seeds 2 to 6 and 9 for the k largest scores: there the two tokens that all rows keep come close to each other, and
# what follows is known to few digits, or in float32 is NaN. Moving the input by a rounding does not show it.
DRAWS = ({"size": 10.0}, {"gain": 2.0}, {"gain": 0.01}, {"size": 1e-12})
HARD = [({"depth": 3, "skip": skip}, 7, one, 8) for skip in (False, True) for one in DRAWS]
HARD += [({"depth": 5, "top_k": 2, "causal": causal}, 7, {"size": 0.3}, 16) for causal in (False, True)]


@pytest.mark.parametrize("case", mostly_slow(HARD, fast=(*HARD[:4], HARD[8])), ids=str)
def test_far_from_and_deep_in_collapse(dtype, case):
    """To a few roundings times one plus what the problem itself makes of moving every token by one rounding."""
    shape, seed, drawn, factor = case
    spec = stack(**shape)
    params, x = draw(seed, spec, dtype, **drawn)
    options = {"mask": np.tri(5, dtype=bool)} if spec.attention.causal else {}
    eps = float(jnp.finfo(dtype).eps)
    exact = exact_logs(params, x, spec, 800, **options)
    near = x * (1 + eps * jax.random.rademacher(jax.random.key(9), x.shape, x.dtype))
    moved = exact_logs(params, near, spec, 800, **options)
    conditioning = max(float(abs(m - e) / max(1, abs(e))) for m, e in zip(moved, exact, strict=True)) / eps
    assert worst_error(collapse.log_residuals(params, x, spec), exact) < factor * eps * (1 + conditioning)


# Heads of width 1 and 2, whose normalised queries have sizes far apart, and small tokens that are normalised.
NORMALISED = [
    ({"d_model": 4, "heads": 4, "qk_norm": "rms"}, 1e-3),
    ({"d_model": 8, "heads": 4, "qk_norm": "layer"}, 1.0),
    ({"d_model": 4, "heads": 2, "qk_norm": "unit"}, 1e-3),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", NORMALISED, ids=str)
def test_heads_of_different_sizes_far_from_saturation(case):
    layer, size = case
    spec = stack(depth=3, bias=False, **layer)
    params, x = draw(0, spec, "float32", tokens=9, size=size, bias_std=0.0)
    assert worst_error(collapse.log_residuals(params, x, spec), exact_logs(params, x, spec, 200)) < 2e-5


# Every norm with and without MLP and skip, every activation once, and two of them under a mask.
VARIANTS = [
    (name, norm, skip, None) for name in (None, "tanh") for norm in (None, "pre", "post") for skip in (False, True)
]
VARIANTS += [(name, "pre", True, None) for name in ("gelu", "gelu_tanh", "relu")]
VARIANTS += [("relu", "post", True, "causal"), ("gelu", "pre", False, "causal")]


@pytest.fixture(scope="module")
def everything():
    """Parameters with every part; a specification that switches some off ignores them."""
    with jax.enable_x64(True):
        layer = attention.AttentionSpec(d_model=4, heads=2, bias=True)
        spec = network.StackSpec(attention=layer, depth=5, skip=True, mlp=network.MLPSpec(width=6), norm="pre")
        params = shake_norms(network.init(jax.random.key(4), spec, bias_std=0.3, dtype="float64"))
        return spec, params, 0.5 * jax.random.normal(jax.random.key(5), (5, 4), "float64")


@pytest.mark.parametrize("variant", mostly_slow(VARIANTS, fast=(VARIANTS[15],)), ids=str)
def test_every_variant_agrees_with_many_digits(x64, everything, variant):
    activation, norm, skip, masking = variant
    spec, params, x = everything
    layer = dataclasses.replace(spec.attention, causal=masking == "causal")
    mlp = network.MLPSpec(width=6, activation=activation) if activation else None
    spec = dataclasses.replace(spec, attention=layer, skip=skip, mlp=mlp, norm=norm)
    exact = exact_logs(params, x, spec, 60 if skip or masking else 700, mask=np.tri(5, dtype=bool) if masking else None)
    assert worst_error(collapse.log_residuals(params, x, spec), exact) < TOLERANCE["float64"]


def shake_norms(params):
    """LayerNorm's scale 1 and shift 0 would hide a mix-up."""
    shaken = {}
    for name in ("attention_norm", "mlp_norm"):
        norm = getattr(params, name)
        if norm is not None:
            noise = jax.random.normal(jax.random.key(len(name)), (2, *norm.scale.shape), norm.scale.dtype)
            shaken[name] = network.NormParams(1 + 0.2 * noise[0], 0.2 * noise[1])
    return params._replace(**shaken)


@pytest.mark.parametrize(("seed", "size", "gain"), [(163, 1.0, 3.0), (276, 3.0, 2.0), (122, 5.0, 1.5)])
def test_tokens_that_round_alike_are_not_taken_for_equal(seed, size, gain):
    """Some of these tokens differ by less than a rounding, and a later layer looks there: it was −425 933 for −33."""
    spec = stack(depth=5)
    params, x = draw(seed, spec, "float32", size=size, gain=gain)
    exact = np.array([float(log) for log in exact_logs(params, x, spec, 500)])
    got = np.asarray(collapse.log_residuals(params, x, spec))
    known = ~np.isnan(got)
    assert np.isnan(got[-1]) and known[:3].all()
    np.testing.assert_allclose(got[known], exact[known], rtol=4e-4, atol=0.02)


@pytest.mark.parametrize("causal", [False, True])
def test_equal_tokens_stay_equal_where_they_see_the_same(causal):
    """Saturated heads look at a cluster of equal tokens, whose inside is 0 and known."""
    spec = stack(depth=3, causal=causal)
    known = 0
    for seed in range(4):
        params, x = draw(seed, spec, "float32", size=2.0, gain=1.5)
        x = x[jnp.asarray([0, 1, 1, 0, 0])]
        exact = exact_logs(params, x, spec, 400, mask=np.tri(5, dtype=bool) if causal else None)
        for got, true in zip(np.asarray(collapse.log_residuals(params, x, spec)), exact, strict=True):
            assert np.isnan(got) or abs(float(got) - float(true)) < 0.01 + 4e-4 * abs(float(true)), seed
            known += not np.isnan(got)
    assert known >= (12 if causal else 16)


@pytest.mark.slow
@pytest.mark.parametrize("masking", [None, "causal"])
def test_saturated_softmax_is_right_or_not_a_number(dtype, masking):
    """Weights below the smallest number, and tokens in clusters whose insides later layers look at."""
    unknown = right = 0
    for seed in range(9):
        spec = stack(depth=5, causal=masking == "causal")
        params, x = draw(seed, spec, dtype, size=3.0, gain=2.0)
        mask = np.tri(5, dtype=bool) if masking else None
        exact = exact_logs(params, x, spec, 900, mask=mask)
        for got, true in zip(np.asarray(collapse.log_residuals(params, x, spec)), exact, strict=True):
            if np.isnan(got):
                unknown += 1
            elif true < -2.2 * 900:  # below what 900 digits see
                assert got < -1500
            else:
                assert abs(float(got) - float(true)) < 0.01 + 2048 * float(jnp.finfo(dtype).eps) * abs(float(true))
                right += 1
    assert right > 20
    if masking and dtype == "float32":
        assert unknown > 0


@pytest.mark.slow
def test_scale_is_a_traced_argument(x64):
    spec = stack(depth=3)
    params, x = draw(1, spec, "float64")

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(scale):
        return collapse.log_residuals(params, x, spec, scale=scale)

    for scale in (0.1, 0.5, 2.0):
        assert worst_error(run(scale), exact_logs(params, x, spec, 300, scale=scale)) < TOLERANCE["float64"]


@pytest.mark.slow
def test_depth_64_stays_finite(dtype):
    spec = stack(depth=64, d_model=16, heads=4)
    params, x = draw(0, spec, dtype, tokens=8)

    def last(x):
        logs = collapse.log_residuals(params, x, spec)
        return logs[-1], logs

    (_, logs), slope = jax.jit(jax.value_and_grad(last, has_aux=True))(x)
    assert bool(jnp.all(jnp.isfinite(logs)))
    late = logs[20:]
    np.testing.assert_allclose(late[1:] / late[:-1], 3, rtol=1e-4)
    assert bool(jnp.all(jnp.isfinite(slope)))


@pytest.mark.slow
def test_plain_arithmetic_agrees_where_it_is_valid(dtype):
    spec = stack(depth=2, d_model=16, heads=4)
    params, x = draw(2, spec, dtype, tokens=8)
    states = network.hidden_states(params, x, spec)
    plain = jnp.log(jnp.stack([jnp.linalg.norm(collapse.residual(state)) for state in states]))
    valid = plain > jnp.log(jnp.finfo(dtype).eps) / 2  # half of the digits are left
    assert int(valid.sum()) >= 2
    error = jnp.where(valid, jnp.abs(plain - collapse.log_residuals(params, x, spec)), 0)
    assert float(error.max()) < 64 * float(jnp.finfo(dtype).eps) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("skip", [False, True])
def test_gradient_against_high_precision_differences(x64, skip):
    spec = stack(depth=4, skip=skip)
    params, x = draw(5, spec, "float64")
    slope = jax.jit(jax.grad(lambda x: collapse.log_residuals(params, x, spec)[-1]))(x)
    with many_digits.precision(2000):
        # A step whose square is far below double precision, and that itself is far above the working precision.
        step = many_digits.mpfr(10) ** -30

        def at(row, column, shift):
            state = many_digits.exactly(x)
            state[row, column] += shift
            return many_digits.log_residual(many_digits.states(params, state, spec)[-1])

        for row, column in [(0, 0), (2, 3), (4, 1)]:
            exact = (at(row, column, step) - at(row, column, -step)) / (2 * step)
            assert abs(float(slope[row, column]) - float(exact)) < 1e-12 * max(1, abs(float(exact))) * 50


def test_equal_tokens_stay_equal(dtype):
    spec = stack(depth=3, skip=True)
    params, _ = draw(0, spec, dtype)
    logs = collapse.log_residuals(params, jnp.ones((5, 4), dtype), spec)
    assert bool(jnp.all(jnp.isneginf(logs)))


@pytest.mark.parametrize("spread", [1.0, 32.0])  # of the logits; 32 roundings of 1 leave rows nearly alike
def test_product_of_stochastic_matrices_against_many_digits(dtype, spread):
    spread = spread if spread == 1 else spread * float(jnp.finfo(dtype).eps)
    logits = jnp.asarray(spread, dtype) * jax.random.normal(jax.random.key(0), (40, 6, 6), dtype)
    matrices = jax.nn.softmax(logits, axis=-1)
    x = jax.random.normal(jax.random.key(1), (6, 3), dtype)
    with mp.workdps(800):
        state, exact = oracle.matrix(np.asarray(x)), []
        exact.append(oracle.log_residual(state))
        for p in np.asarray(matrices, dtype=np.float64):
            rows = oracle.matrix(p)
            for i in range(6):  # rows of floating-point numbers sum to 1 only to rounding
                total = mp.fsum(rows[i, j] for j in range(6))
                for j in range(6):
                    rows[i, j] /= total
            state = rows * state
            exact.append(oracle.log_residual(state))
    got = collapse.product_log_residuals(matrices, x)
    assert float(got[-1]) < -40
    assert worst_error(got, exact) < 100 * float(jnp.finfo(dtype).eps)


def test_product_with_rows_that_are_all_the_same_is_nothing(dtype, key):
    x = jax.random.normal(key, (7, 3), dtype)
    for rows in (jnp.full((7, 7), 1 / 7, dtype), jnp.tile(jax.nn.softmax(x[:, 0]), (7, 1))):
        got = collapse.product_log_residuals(jnp.stack([rows, jnp.eye(7, dtype=dtype)]), x)
        np.testing.assert_array_equal(got[1:], -np.inf)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": "decay"}, "`spec` must have weights that read scores"),
        ({"scores": "additive"}, "`spec` must have scores='dot' or 'cos"),
        ({"scores": "cosine", "rank": 2, "tokens": 3}, "`spec` must have scores='dot' with a rank"),
    ],
)
def test_networks_it_is_not_exact_for_are_refused(key, change, message):
    spec = stack(depth=2, bias=False, **change)
    with pytest.raises(collapse.NotCovered, match=message):
        collapse.log_residuals(network.init(key, spec), jnp.ones((3, 4)), spec)


@pytest.mark.usefixtures("as_installed")
def test_bad_input(key):
    spec = stack(depth=2)
    params = network.init(key, spec)
    with pytest.raises(ValueError, match=r"`x` must be .* with token >= 2, got float32\[1,4\]"):
        collapse.log_residuals(params, jnp.ones((1, 4)), spec)
    with pytest.raises(TypeError, match=r"`x` must be a floating-point array .* got int32\[3,4\]"):
        collapse.log_residuals(params, jnp.ones((3, 4), int), spec)
    with pytest.raises(ValueError, match="`scale` must be > 0, got -1"):
        collapse.log_residuals(params, jnp.ones((3, 4)), spec, scale=-1.0)
    with pytest.raises(ValueError, match="`matrices` must have rows that sum to 1"):
        collapse.product_log_residuals(jnp.ones((2, 3, 3)), jnp.ones((3, 4)))
    with pytest.raises(ValueError, match=r"`matrices` must have shape \(depth, 3, 3\), got float32\[2,4,4\]"):
        collapse.product_log_residuals(jnp.ones((2, 4, 4)) / 4, jnp.ones((3, 4)))
