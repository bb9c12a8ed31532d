"""Width-free sampling against the networks themselves: number for number where both draw the same, in law elsewhere."""

import dataclasses
import functools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rc_jax import attention, collapse, ensemble, network, special
from rc_jax.attention import AttentionParams
from rc_jax.network import LayerParams
from tests.compiling import OPTIMISED


def stack(d, heads, d_head, depth, skip=False, **changes):
    layer = attention.AttentionSpec(d_model=d, heads=heads, d_head=d_head, **changes)
    return network.StackSpec(attention=layer, depth=depth, skip=skip)


def tokens(n, d, dtype="float32", seed=5):
    return jax.random.normal(jax.random.key(seed), (n, d), dtype)


def draws(fn, count, seed, batch=1000):
    """fn(key) for many keys, as float64 on the host."""
    keys = jax.random.split(jax.random.key(seed), count)
    many = jax.jit(lambda k: jax.lax.map(fn, k, batch_size=batch), compiler_options=OPTIMISED)
    return np.asarray(many(keys)).astype(float)


def direct(spec, x, count, seed, **options):
    def draw(key):
        layers = network.random_layers(key, spec, dtype=x.dtype, **options)
        return collapse.log_residuals(layers, x, spec, check=False)  # a network is computed once, and not three times

    return draws(draw, count, seed)


def width_free_draws(spec, x, count, seed, **options):
    return draws(lambda key: collapse.sample_log_residuals(key, x, spec, **options), count, seed)


def assert_same_law(a, b, least=1e-4):
    """Kolmogorov–Smirnov, means in standard errors and standard deviations in theirs, from the first layer on."""
    np.testing.assert_allclose(a[0, 0], b[0, 0], rtol=1e-5)
    for first, second in zip(a[:, 1:].T, b[:, 1:].T, strict=True):
        assert stats.ks_2samp(first, second).pvalue > least
        first, second = first[np.isfinite(first)], second[np.isfinite(second)]
        sides = (first, second)
        z = (first.mean() - second.mean()) / np.sqrt(sum(s.var() / s.size for s in sides))
        assert abs(z) < 5
        # Var(log s) = (kurtosis − 1)/4N
        error = np.sqrt(sum((stats.kurtosis(s, fisher=False) - 1) / (4 * s.size) for s in sides))
        assert abs(np.log(first.std() / second.std())) < 5 * error


def explicit_layers(key, spec, gain, dtype):
    """The weights that width-free sampling uses where coordinates are features and heads stay as they are."""
    layer = spec.attention
    d, heads, k = layer.d_model, layer.heads, layer.head_width

    def draw(index):
        layer_key = jax.random.fold_in(key, index)
        normals = special.normals(jax.random.fold_in(layer_key, 0), (4 * heads * d * k,), dtype)
        *inner, out = (
            gain * d**-0.5 * normals[: 3 * heads * d * k].reshape(3, heads, k, d).swapaxes(2, 3),
            normals[3 * heads * d * k :],
        )
        return AttentionParams(*inner[0], gain * (heads * k) ** -0.5 * out.reshape(heads, k, d))

    return LayerParams(jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(draw, range(spec.depth))))


@pytest.mark.parametrize(
    ("dtype", "skip", "mask"),
    [
        ("float64", False, {}),
        pytest.param("float64", True, {"causal": True}, marks=pytest.mark.slow),
        pytest.param("float64", False, {"window": 1}, marks=pytest.mark.slow),
        pytest.param("float32", True, {}, marks=pytest.mark.slow),
        pytest.param("float32", False, {"causal": True}, marks=pytest.mark.slow),
    ],
    indirect=["dtype"],
)
def test_same_numbers_as_the_network_with_the_same_normals(dtype, key, skip, mask):
    """Fewer features than tokens: what is drawn are the weights themselves."""
    spec, x = stack(5, 2, 3, 8, skip, **mask), tokens(7, 5, dtype)
    scale = jnp.asarray([0.5, 1.2], dtype)
    got = collapse.sample_log_residuals(key, x, spec, gain=0.8, scale=scale)
    wanted = collapse.log_residuals(explicit_layers(key, spec, 0.8, dtype), x, spec, scale=scale)
    np.testing.assert_allclose(
        got, wanted, rtol=200 * float(jnp.finfo(dtype).eps), atol=1e-5 if dtype == "float32" else 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("skip", [False, True])
def test_hundred_thousand_draws_have_the_law_of_the_network(skip):
    """Pure: d > 2n. With skips: n < d < 2n, where a layer's output runs out of new directions."""
    spec, x = stack(7 if skip else 9, 2, 4, 6, skip), tokens(4, 7 if skip else 9)
    assert_same_law(direct(spec, x, 100_000, 1), width_free_draws(spec, x, 100_000, 2))


@pytest.mark.slow
@pytest.mark.parametrize("skip", [False, True])
def test_law_with_fewer_columns_of_heads_than_tokens(skip):
    spec, x = stack(20, 1, 2, 3, skip), tokens(6, 20)
    options = {"gain": 1.2}
    assert_same_law(direct(spec, x, 10_000, 3, **options), width_free_draws(spec, x, 10_000, 4, **options))


@pytest.mark.slow
def test_law_under_a_mask_and_of_tokens_that_are_nearly_equal():
    spec, x = stack(9, 2, 3, 3, skip=True, causal=True), tokens(4, 9)
    x = x.at[1].set(x[0] + 1e-4 * x[1]).at[3].set(x[0])
    assert_same_law(direct(spec, x, 10_000, 5), width_free_draws(spec, x, 10_000, 6))


@pytest.mark.slow
def test_law_of_tokens_that_collapse_on_the_way():
    """Twelve layers: the first few by the general form, the others as products."""
    spec, x = stack(12, 2, 4, 12), tokens(6, 12)
    assert_same_law(direct(spec, x, 10_000, 10), width_free_draws(spec, x, 10_000, 11))


@pytest.mark.slow
def test_derivatives_are_of_the_same_draw(key):
    """The value steps until tokens have collapsed, the derivative layer by layer."""
    spec, x = stack(12, 2, 4, 5), tokens(6, 12)
    last = jax.jit(lambda gain: collapse.sample_log_residuals(key, x, spec, gain=gain))
    value, slope = jax.jvp(last, (1.0,), (1.0,))
    np.testing.assert_allclose(value, last(1.0), rtol=1e-5)
    # A factor on all four matrices: its fourth power on a layer's output, and on what the cube of the input makes.
    np.testing.assert_allclose(slope[-1], 3 * slope[-2] + 4, rtol=0.02)


@pytest.mark.slow
def test_devices_of_one_process_do_not_wait_for_each_other(key):
    """LAPACK's factorisations would, for ever, where there are more devices than cores."""
    spec, x = stack(20, 2, 4, 2), tokens(6, 20)
    samples = ensemble.run(lambda k: collapse.sample_log_residuals(k, x, spec), key, 64, batch_size=4)
    assert jax.device_count() == 8 and np.isfinite(samples).all()


@pytest.mark.slow
def test_only_inner_products_matter(x64, key):
    spec, x = stack(40, 2, 8, 5, skip=True), tokens(6, 40, "float64")
    rotation = jnp.linalg.qr(tokens(40, 40, "float64", seed=9))[0]
    few = jnp.linalg.qr(x.T)[1].T
    one, *others = (collapse.sample_log_residuals(key, y, spec) for y in (x, x @ rotation, few))
    for other in others:
        np.testing.assert_allclose(other, one, rtol=1e-8)


@pytest.mark.slow
def test_same_key_same_draw_and_deeper_networks_begin_the_same(key):
    spec, x = stack(20, 2, 4, 4), tokens(5, 20)
    first = collapse.sample_log_residuals(key, x, spec)
    np.testing.assert_array_equal(first, collapse.sample_log_residuals(key, x, spec))
    deeper = collapse.sample_log_residuals(key, x, dataclasses.replace(spec, depth=6))
    np.testing.assert_allclose(deeper[:5], first, rtol=1e-5)
    assert not np.allclose(first[1:], collapse.sample_log_residuals(jax.random.key(1), x, spec)[1:])


@pytest.mark.slow
def test_limit_of_width(x64):
    """Draw by draw the logs approach their limit as 1/√d, and 65 536 features are there to a hundredth."""
    spec, x = stack(32, 2, 8, 4, skip=True), tokens(6, 32, "float64")

    keys = jax.random.split(jax.random.key(0), 500)

    @jax.jit
    def sample(width):
        return jax.vmap(lambda key: collapse.sample_log_residuals(key, x, spec, width=width))(keys)

    limit, gaps = sample(jnp.asarray(jnp.inf)), {}
    for width in (1024.0, 65_536.0):
        gaps[width] = np.sqrt(np.mean(np.square(sample(jnp.asarray(width))[:, 1:] - limit[:, 1:]), axis=0))
    np.testing.assert_allclose(gaps[1024.0] / gaps[65_536.0], 8, rtol=0.2)
    assert np.all(gaps[65_536.0] < 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("skip", [False, True])
def test_limit_has_the_law_of_a_wide_network(skip):
    spec, x = stack(4096, 1, 2, 2, skip), tokens(3, 4096)
    wide = direct(spec, x, 2000, 7)

    @functools.partial(jax.jit, compiler_options=OPTIMISED)
    def sample(keys, width):
        one = functools.partial(collapse.sample_log_residuals, x=x, spec=spec, width=width)
        return jax.lax.map(one, keys, batch_size=1000)

    for seed, width in ((8, 4096.0), (9, jnp.inf)):
        drawn = sample(jax.random.split(jax.random.key(seed), 2000), jnp.asarray(width))
        assert_same_law(wide, np.asarray(drawn, float))


@pytest.mark.slow
def test_expected_gradient_is_that_of_the_network(x64):
    """The derivative in the gain and along a change of the tokens, in the mean over draws."""
    spec, x = stack(9, 2, 3, 2, skip=True), tokens(4, 9, "float64")
    along = tokens(4, 9, "float64", seed=11)

    def slopes(log_residuals):
        def last(gain, step):
            return log_residuals(gain, x + step * along)[-1]

        return jnp.stack(jax.grad(last, argnums=(0, 1))(1.1, 0.0))

    def of_network(key):
        def log_residuals(gain, y):
            return collapse.log_residuals(network.random_layers(key, spec, gain=gain), y, spec, check=False)

        return slopes(log_residuals)

    def of_sample(key):
        return slopes(lambda gain, y: collapse.sample_log_residuals(key, y, spec, gain=gain))

    a, b = draws(of_network, 20_000, 0), draws(of_sample, 20_000, 1)
    assert np.all(np.isfinite(b))
    z = (a.mean(axis=0) - b.mean(axis=0)) / np.sqrt((a.var(axis=0) + b.var(axis=0)) / 20_000)
    assert np.all(np.abs(z) < 5)


@pytest.mark.slow
def test_ninety_six_layers(dtype, key):
    spec, x = stack(64, 4, 16, 96), tokens(8, 64, dtype)
    if dtype == "float32":
        grown = collapse.sample_log_residuals(key, x, dataclasses.replace(spec, skip=True))
        assert np.all(np.isfinite(grown))
    fallen = np.asarray(collapse.sample_log_residuals(key, x, spec))
    # 3^96 is a number in float64 only; float32 ends at −∞, without a NaN on the way.
    assert not np.any(np.isnan(fallen)) and np.isfinite(fallen[-1]) == (dtype == "float64")
    falls = np.diff(fallen[np.isfinite(fallen)])
    np.testing.assert_allclose(falls[5:] / falls[4:-1], 3, rtol=0.02)


@pytest.mark.slow
def test_equal_tokens_stay_equal_and_narrow_types_keep_theirs(key):
    x = jnp.ones((5, 20))
    assert np.all(np.isneginf(collapse.sample_log_residuals(key, x, stack(20, 2, 4, 3))))
    assert collapse.sample_log_residuals(key, tokens(5, 20, "bfloat16"), stack(20, 2, 4, 3)).dtype == jnp.bfloat16


@pytest.mark.slow
def test_biases_of_the_specification_are_zero_as_drawn(key):
    x = tokens(5, 20)
    plain, biased = (stack(20, 2, 4, 4, bias=bias) for bias in (False, True))
    np.testing.assert_array_equal(*(collapse.sample_log_residuals(key, x, spec) for spec in (plain, biased)))


@pytest.mark.slow
def test_sweeps_are_one_trace(key):
    spec, x = stack(24, 2, 4, 3), tokens(5, 24)
    lowered = []

    def listen(event, _, **about):
        if event.endswith("jaxpr_to_mlir_module_duration") and about.get("fun_name") == "jit(log_norms)":
            lowered.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    for gain, scale, width in ((1.0, 0.5, 24.0), (0.5, 1.0, 1e5), (2.0, 0.7, jnp.inf)):
        collapse.sample_log_residuals(key, x, spec, gain=gain, scale=scale, width=width)
    assert len(lowered) == 1
    np.testing.assert_array_equal(
        *(collapse.sample_log_residuals(key, x, spec, scale=0.5, width=width) for width in (None, 24))
    )
    wide = dataclasses.replace(spec, attention=dataclasses.replace(spec.attention, d_model=48))
    collapse.sample_log_residuals(key, tokens(5, 48), wide, scale=0.5)
    assert len(lowered) == 1


@pytest.mark.usefixtures("as_installed")
def test_bad_input(key):
    spec, x = stack(8, 2, 4, 2), tokens(4, 8)

    def refused(error, match, key=key, x=x, spec=spec, **options):
        with pytest.raises(error, match=match):
            collapse.sample_log_residuals(key, x, spec, **options)

    refused(TypeError, "`key` must be one typed key", key=0)
    refused(TypeError, "`x` must be a floating-point", x=jnp.ones((4, 8), int))
    refused(ValueError, "`x` must be .* token >= 2", x=x[:1])
    refused(ValueError, "`x` must have at most d_model=8 columns", x=tokens(4, 9))
    refused(ValueError, "`gain` must be > 0", gain=0.0)
    refused(ValueError, "`scale` must be > 0", scale=-1.0)
    refused(ValueError, "`width` must be at least 8", width=7)
    refused(ValueError, "`width` must be a positive number or infinity", width=-1.0)
    refused(ValueError, "`width` must be a positive number or infinity", width=jnp.nan)
    refused(ValueError, "`mask` must have one row", mask=jnp.ones((5, 5), bool))
    refused(ValueError, "`spec` must have mlp=None", spec=dataclasses.replace(spec, mlp=network.MLPSpec(width=8)))
    refused(ValueError, "`spec` must have norm=None", spec=dataclasses.replace(spec, norm="pre"))
    refused(ValueError, "`spec` must have scores='dot': .* got 'cosine'", spec=stack(8, 2, 4, 2, scores="cosine"))
    refused(ValueError, "`spec` must have weights='softmax': .* 'power6'", spec=stack(8, 2, 4, 2, weights="power6"))


GPT3 = """
import json
import jax
from rc_jax import attention, collapse, network
layer = attention.AttentionSpec(d_model=12288, heads=96)
x = jax.random.normal(jax.random.key(1), (128, 12288))
out = []
for skip in (False, True):
    spec = network.StackSpec(attention=layer, depth=6, skip=skip)
    logs = collapse.sample_log_residuals(jax.random.key(0), x, spec)
    out.append(logs.tolist())
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(json.dumps({"logs": out, "kibibytes": peak}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
def test_shape_of_gpt3_in_two_gibibytes():
    """One layer's weights alone are 2.4 GB."""
    done = subprocess.run([sys.executable, "-c", GPT3], capture_output=True, text=True, check=True, timeout=600)
    result = json.loads(done.stdout)
    logs = np.array(result["logs"])
    assert np.all(np.isfinite(logs)) and logs[0, -1] < -100 < logs[1, -1]
    assert result["kibibytes"] < 2 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_where_draws_hang_on_roundings_their_law_does_not(x64, causal):
    """Saturated softmax: float32 and float64 draw from one law, although roundings of the tokens change draws."""
    spec, x = stack(64, 4, 16, 6, causal=causal), tokens(16, 64)
    single, again = (width_free_draws(spec, y, 1000, 0, gain=2.0) for y in (x, x * (1 + 2**-22)))
    moved = np.abs(again - single) > 0.01 + 1024 * 2.0**-23 * np.abs(single)
    assert moved.any(axis=1).mean() > 0.01
    assert_same_law(single, width_free_draws(spec, x.astype("float64"), 1000, 1, gain=2.0))
