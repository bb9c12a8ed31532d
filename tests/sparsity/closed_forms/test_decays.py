import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import special

from rc_jax import attention, sparsity
from tests.oracles import sparsity as oracle

LAMBDAS = [1e-37, 1e-20, 1e-8, 1e-6, 1e-4, 0.1, 0.3, 0.499, 0.5, 0.501, 0.6, 0.749, 0.751, 0.9, 0.999, 1 - 1e-6]
LENGTHS = [1, 2, 3, 17, 512, 10**5, 10**9]


@pytest.fixture(scope="module")
def grid():
    """S and its derivatives in λ and n over the grid, by working precision, one program for each."""
    slopes = jax.jit(jax.vmap(jax.value_and_grad(sparsity.decay, (0, 1))))
    measured = {}
    for dtype in ("float32", "float64"):
        with jax.enable_x64(dtype == "float64"):
            lam, n = (np.asarray(each, dtype).ravel() for each in np.meshgrid(LAMBDAS, LENGTHS))
            value, (by_lam, by_n) = jax.tree.map(np.asarray, slopes(lam, n))
            measured[dtype] = lam, n, value, by_lam, by_n
    return measured


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_against_geometric_sums(dtype, grid):
    lam, n, value, by_lam, _ = grid[dtype]
    assert value.dtype == by_lam.dtype == dtype
    exact = np.array([float(oracle.decay(float(x), float(count))) for x, count in zip(lam, n, strict=True)])
    assert np.abs(value / exact - 1).max() <= 4 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_gradient(dtype, grid):
    """Against mpmath for every λ, from 1e-37 to 1 − 1e-6; derivatives in n as well; 0 for one position."""
    lam, n, _, by_lam, by_n = (each.astype(float) for each in grid[dtype])
    eps = np.finfo(dtype).eps
    pairs = list(zip(lam, n, strict=True))
    exact = [float(oracle.derivative(lambda y, count=count: oracle.decay(y, count), x)) for x, count in pairs]
    assert np.all(np.abs(by_lam - exact) <= 8 * eps * np.where(n == 1, 1, np.abs(exact)))
    for (x, count), slope in zip(pairs, by_n, strict=True):
        with mp.workdps(60):
            exact = mp.diff(lambda y, x=x: oracle.decay(x, y), mp.mpf(count), h=mp.mpf(10) ** -18 * count)
        assert abs(slope - exact) <= 30 * eps * abs(exact)


def test_no_zero_over_zero_at_lambda_one(dtype):
    n = jnp.asarray([1.0, 2.0, 1e3, 1e9], dtype)
    np.testing.assert_array_equal(sparsity.decay(1.0, n), 1)
    by_lam, by_n = jax.vmap(jax.grad(sparsity.decay, (0, 1)), (None, 0))(jnp.asarray(1, dtype), n)
    np.testing.assert_array_equal(by_lam, 0)
    np.testing.assert_array_equal(by_n, 0)


@pytest.mark.parametrize(("lam", "n"), [(1e-37, 1.0), (1e-20, 1.0), (0.3, 1.0), (1e-20, 2.0), (1e-30, 1.5), (0.3, 7.0)])
def test_second_derivative_of_fast_decays(dtype, lam, n):
    lam, n = jnp.asarray(lam, dtype), jnp.asarray(n, dtype)
    bend = jax.jit(jax.grad(jax.grad(sparsity.decay)))(lam, n)
    with mp.workdps(100):
        step, at = mp.mpf(float(lam)) * mp.mpf(10) ** -20, mp.mpf(float(lam))
        exact = sum(k * oracle.decay(at + j * step, float(n)) for j, k in ((-1, 1), (0, -2), (1, 1))) / step**2
    np.testing.assert_allclose(bend, 0 if n == 1 else float(exact), rtol=200 * float(jnp.finfo(dtype).eps))


def test_falls_to_zero_with_length(x64):
    n = jnp.asarray([1e3, 1e6, 1e9, 1e12])
    np.testing.assert_allclose(sparsity.decay(0.9, n), np.sqrt(1.9 / (0.1 * n)), rtol=1e-12)


def test_shapes():
    assert sparsity.decay(jnp.full((3, 1), 0.5), jnp.arange(1, 5)).shape == (3, 4)
    assert jax.jit(jax.vmap(sparsity.decay, (0, None)))(jnp.full(3, 0.5), 7).shape == (3,)
    assert sparsity.decay(jnp.asarray(0.5, jnp.bfloat16), 8).dtype == jnp.bfloat16


LAM = [[0.3, 0.9, 0.999], [1e-6, 0.5, 1.0], [1 - 1e-6, 1 - 1e-6, 1 - 1e-6], [0.7, 0.7, 0.7], [1.0, 1.0, 1.0]]
WEIGHTS = [1.0, 0.2, 3e-3]
LENGTHS = [1, 2, 17, 4096, 10**6]


def _exact(weights, lam, n):
    """Double geometric sums to 60 digits."""
    return float(oracle.channel_decay(map(float, weights), [float(x) for x in lam], n))


def test_channels_against_geometric_sums(dtype):
    lam, weights = jnp.asarray(LAM, dtype)[:, None], jnp.asarray(WEIGHTS, dtype)
    measured = sparsity.channel_decay(weights, lam, jnp.asarray(LENGTHS, dtype))
    exact = [[_exact(weights, row[0], n) for n in LENGTHS] for row in lam]
    assert measured.dtype == dtype
    np.testing.assert_allclose(measured, exact, rtol=20 * jnp.finfo(dtype).eps)


@pytest.mark.slow
def test_channels_are_what_they_say(x64):
    """The sparsity of the weights; one channel is `decay`; only relative weights count; equal channels merge."""
    weights, lam = jnp.asarray([0.5, 2.0, 0.1]), jnp.asarray([0.6, 0.95, 1.0])
    row = jnp.sum(weights[:, None] * lam[:, None] ** jnp.arange(40.0)[None], axis=0)
    measured = sparsity.channel_decay(weights, lam, 40)
    assert abs(measured - sparsity.sparsity(row)) < 1e-14
    assert abs(measured - sparsity.channel_decay(1e-200 * weights, lam, 40)) < 1e-15
    n = jnp.asarray([1.0, 7.0, 1e5])
    expected = sparsity.decay(0.9, n)
    for w, x in ((jnp.ones(1), jnp.full(1, 0.9)), (jnp.asarray([0.3, 0.0, 0.7]), jnp.asarray([0.9, 1.0, 0.9]))):
        np.testing.assert_allclose(sparsity.channel_decay(w, x, n), expected, rtol=1e-14)


def test_channel_gradients(x64):
    """Against differences; finite and right at λ = 1 and for equal λ, where the sums are 0/0."""
    weights, n, step = jnp.asarray([1.0, 0.5, 0.2]), 30.0, 1e-6
    slopes = jax.jit(jax.grad(lambda w, x: sparsity.channel_decay(w, x, n), (0, 1)))
    for lam in (jnp.asarray([0.4, 0.9, 0.97]), jnp.asarray([0.8, 0.8, 1.0]), jnp.ones(3)):
        by_weight, by_lam = slopes(weights, lam)
        for c in range(3):
            push = step * jnp.eye(3)[c]
            ends = [float(sparsity.channel_decay(weights, lam - k * push, n)) for k in range(3)]
            backward = (3 * ends[0] - 4 * ends[1] + ends[2]) / (2 * step)  # one-sided: λ stays in (0, 1]
            assert abs(by_lam[c] - backward) < 1e-6 * max(1, abs(backward))
            ends = [float(sparsity.channel_decay(weights + k * push, lam, n)) for k in (-1, 1)]
            assert abs(by_weight[c] - (ends[1] - ends[0]) / (2 * step)) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_channel_gradients_keep_their_digits(dtype):
    """Against mpmath, relative to the largest of a row: fast decays, equal ones, and all of them near 1."""
    rows = [[0.3, 0.9, 0.999], [1e-8, 0.5, 0.75], [1e-30, 1e-20, 0.3], [1 - 1e-6, 1 - 1e-5, 0.9999], [0.7, 0.7, 0.7]]
    with jax.enable_x64(dtype == "float64"):
        weights, lam, n = np.asarray(WEIGHTS, dtype), np.asarray(rows, dtype), np.asarray([2, 3, 17, 1e6], dtype)
        slopes = jax.vmap(jax.vmap(jax.grad(sparsity.channel_decay, 1), (None, None, 0)), (None, 0, None))
        measured = np.asarray(jax.jit(slopes)(weights, lam, n), float)
    for row, by_length in zip(lam.astype(float), measured, strict=True):
        for count, by_lam in zip(n.astype(float), by_length, strict=True):
            exact = np.array([_slope(weights.astype(float), row, count, c) for c in range(3)])
            assert np.abs(by_lam - exact).max() <= 8 * np.finfo(dtype).eps * np.abs(exact).max()


def _slope(weights, lam, n, channel):
    """dS/dλ of one channel."""

    def with_it(x):
        return oracle.channel_decay(weights, [x if c == channel else y for c, y in enumerate(lam)], n)

    return float(oracle.derivative(with_it, lam[channel]))


@pytest.mark.slow
def test_second_derivatives_at_one(x64):
    """S = 1/√(1 + V), V = (n² − 1)/12 (Σ v_c δ_c)² to second order, from terms that are 0/0 at λ = 1."""
    weights, n = np.asarray([1.0, 0.5]), 7.0
    hessian = jax.jit(jax.hessian(sparsity.channel_decay, 1))(weights, np.ones(2), n)
    share = weights / weights.sum()
    np.testing.assert_allclose(hessian, -(n * n - 1) / 12 * np.outer(share, share), rtol=1e-12)


@pytest.mark.slow
def test_one_even_channel_brings_the_row_back(x64):
    even, weights, lam = 1e-6, jnp.asarray([1.0, 0.5]), jnp.asarray([0.9, 0.6])
    both = jnp.concatenate([weights, jnp.asarray([even])]), jnp.concatenate([lam, jnp.ones(1)])
    n = jnp.logspace(2, 16, 2801)
    s = np.asarray(sparsity.channel_decay(*both, n))
    where, lowest = sparsity.channel_decay_lowest(even, weights, lam)
    assert abs(s.min() / lowest - 1) < 1e-6 and abs(np.log(n[s.argmin()] / where)) < 0.03
    assert abs(s[-1] - 1) < 1e-3 and s[0] > lowest
    y = np.sum(np.outer(weights, weights) / (1 - np.outer(lam, lam)))
    far = 1e16
    assert abs((1 - float(sparsity.channel_decay(*both, far))) * 2 * far * even**2 / y - 1) < 1e-3
    faint = sparsity.channel_decay_lowest(jnp.asarray([1e-3, 1e-6]), weights, lam)[1]
    assert faint.shape == (2,) and faint[1] < 0.05 * faint[0]


@pytest.mark.parametrize(
    ("even", "size"),
    [(1.0, 1.0), (1e-11, 1e-11), (1e-30, 1e-30), (1e10, 1e10), (1e30, 1e30), (1e-3, 1e-22), (1e-20, 1e8), (1e-30, 1e5)],
)
def test_the_lowest_value_of_weights_of_any_size(dtype, even, size):
    weights, lam = size * np.asarray([1.0, 0.5], dtype), np.asarray([0.9, 0.6], dtype)
    even, weights = np.asarray(even, dtype), weights.astype(dtype)
    with mp.workdps(60):
        w, (v, lam_) = mp.mpf(float(even)), ([mp.mpf(float(each)) for each in row] for row in (weights, lam))
        x = sum(a / (1 - b) for a, b in zip(v, lam_, strict=True))
        y = sum(a * c / (1 - b * d) for a, b in zip(v, lam_, strict=True) for c, d in zip(v, lam_, strict=True))
        exact = [float(x * (2 * w * x + y) / (w * y)), float(2 * mp.sqrt(w * x * (w * x + y)) / (2 * w * x + y))]
    np.testing.assert_allclose(sparsity.channel_decay_lowest(even, weights, lam), exact, rtol=20 * jnp.finfo(dtype).eps)
    slope = jax.jit(jax.grad(lambda w: sparsity.channel_decay_lowest(w, weights, lam)[1]))(even)
    steep = exact[1] * float(y / (2 * w * (w * x + y) * (1 + 2 * w * x / y)))  # d log S/dw = 1/(2w(1 + p)(1 + 2p))
    np.testing.assert_allclose(slope, steep, rtol=100 * jnp.finfo(dtype).eps, atol=1e-35)


def test_gates_are_the_sparsity_of_their_products(dtype, key):
    logs = jax.nn.log_sigmoid(2 + jax.random.normal(key, (3, 50), dtype))
    measured = sparsity.gated_decay(logs)
    assert measured.dtype == dtype and measured.shape == (3,)
    exact = np.asarray(logs, np.float64)
    rows = np.array([[np.exp(row[j + 1 :].sum()) for j in range(50)] for row in exact])
    expected = rows.mean(1) / np.sqrt((rows**2).mean(1))
    np.testing.assert_allclose(measured, expected, rtol=50 * jnp.finfo(dtype).eps)
    changed = sparsity.gated_decay(logs.at[:, 0].set(-3))
    np.testing.assert_array_equal(changed, measured)  # the first gate multiplies nothing
    even = sparsity.gated_decay(jnp.full((50,), -0.1, dtype))
    np.testing.assert_allclose(even, sparsity.decay(jnp.exp(jnp.asarray(-0.1, dtype)), 50), rtol=1e-5)
    slope = jax.jit(jax.grad(lambda x: sparsity.gated_decay(x)))(jnp.full((50,), -1e4, dtype))
    assert np.all(np.isfinite(slope)) and sparsity.gated_decay(jnp.zeros(50, dtype)) == 1


@pytest.mark.slow
def test_annealed_gates(x64, key):
    """Sums over plain draws, within standard errors; `decay` without spread; 1 for gates that are 1."""
    rng, n = np.random.default_rng(0), 40
    gates = rng.beta(2, 1, size=(100_000, n))
    rows = np.concatenate([np.cumprod(gates[:, :0:-1], axis=1)[:, ::-1], np.ones((len(gates), 1))], axis=1)
    first, second = rows.sum(1), (rows**2).sum(1)
    estimate = first.mean() / np.sqrt(n * second.mean())
    error = (first / first.mean() - second / (2 * second.mean())).std() / len(rows) ** 0.5 * estimate
    assert abs(sparsity.gated_decay_annealed(2 / 3, 1 / 2, n) - estimate) < 5 * error
    lam = jnp.asarray([0.2, 0.9, 1 - 1e-9, 1.0])
    same = sparsity.gated_decay_annealed(lam, lam**2, 1000)
    np.testing.assert_allclose(same, sparsity.decay(lam, 1000), rtol=1e-12)
    assert np.isfinite(jax.grad(lambda m: sparsity.gated_decay_annealed(m, m**2, 10.0))(1.0))


@pytest.mark.slow
def test_rows_of_attention_layers_have_these_sparsities(x64, key):
    """The last row of causal layers: gates from random tokens; channels on equal tokens, whose weights are φ(q)φ(k)."""
    x, n = jax.random.normal(key, (30, 6)), 30
    spec = attention.AttentionSpec(d_model=6, heads=2, weights="gated_decay", causal=True)
    params = attention.init(key, spec, dtype="float64")
    rows = attention.attention_weights(params, x, spec)[:, -1]
    logits = jnp.einsum("nd,hd->hn", x, params.parts["gate"]) + params.parts["gate_bias"][:, None]
    closed = sparsity.gated_decay(jax.nn.log_sigmoid(logits))
    np.testing.assert_allclose(sparsity.sparsity(rows), closed, rtol=1e-12)
    spec = attention.AttentionSpec(d_model=6, heads=2, weights="channel_decay", causal=True)
    params = attention.init(key, spec, dtype="float64")
    same = jnp.broadcast_to(x[:1], x.shape)
    rows = attention.attention_weights(params, same, spec)[:, -1]
    phi = [jax.nn.elu(jnp.einsum("d,hdk->hk", x[0], weight)) + 1 for weight in (params.query, params.key)]
    closed = sparsity.channel_decay(phi[0] * phi[1], params.parts["decay"], n)
    np.testing.assert_allclose(sparsity.sparsity(rows), closed, rtol=1e-12)


def test_shapes_and_traces():
    assert sparsity.channel_decay(jnp.ones((2, 1, 3)), jnp.full(3, 0.5), jnp.arange(1, 5)).shape == (2, 4)
    assert sparsity.channel_decay(jnp.ones(2, jnp.bfloat16), jnp.full(2, 0.5, jnp.bfloat16), 8).dtype == jnp.bfloat16
    assert sparsity.gated_decay(jnp.zeros((2, 3), jnp.bfloat16)).dtype == jnp.bfloat16
    assert sparsity.gated_decay(jnp.zeros((2, 1))).shape == (2,)


def test_a_continuum_of_decays(x64):
    """Sums of the weights p B(s + 1, p) themselves: the exponent of the law, and its size where it sets in early."""
    n = 2.0 ** np.arange(16, 20)
    for p in (0.25, 0.5, 0.75, 1.0, 2.0):
        weights = np.exp(np.log(p) + special.betaln(np.arange(int(n[-1])) + 1, p))
        last = n.astype(int) - 1
        rows = np.cumsum(weights)[last] / np.sqrt(n * np.cumsum(weights**2)[last])
        ratio = rows / sparsity.decay_spectrum(p, n)
        assert np.abs(np.diff(np.log(ratio)) / np.log(2)).max() < 0.02
        assert np.abs(ratio - 1).max() < (1e-3 if p in (0.25, 1.0, 2.0) else 0.06)


def test_a_spectrum_of_short_memories_alone(x64):
    """Large p: nearly all weight is on the first token, and S is little above 1/√n."""
    values = [float(sparsity.decay_spectrum(p, 1000)) for p in (98.0, 99.0, 200.0, 1e4)]
    assert (np.diff(values) < 0).all() and values[-1] == pytest.approx(1000**-0.5, rel=1e-3)
    for p in (1e3, 1e5):
        with mp.workdps(30):
            squares = mp.fsum((mp.factorial(s) / mp.rf(p + 1, s)) ** 2 for s in range(30))
            law = float(p / (p - 1) / mp.sqrt(10 * squares))
        assert float(sparsity.decay_spectrum(p, 10)) == pytest.approx(law, rel=1e-14)


def test_the_law_of_a_spectrum_is_not_known_close_to_where_it_changes():
    """At p = 1 ± 1e-6 the leading terms give 780 for S = 0.011."""
    n = np.array([1e6, 1e38])
    for p in (0.5 - 1e-12, 0.5 + 1e-12, 1 - 1e-6, 1 + 1e-6, 1 + 1e-4):
        assert np.isnan(sparsity.decay_spectrum(p, n)).all()
    assert np.isfinite([sparsity.decay_spectrum(p, n) for p in (0.25, 0.5, 0.75, 1.0, 1.1, 2.0)]).all()


def test_roundings_of_gates_give_no_sparsity_above_1():
    """1 − λ = 2.9e-8 is less than a rounding of float32: all gates are 1."""
    lam = 1 - 2.9e-8
    for second in (lam * lam, 0.9999992):
        assert sparsity.gated_decay_annealed(jnp.float32(lam), jnp.float32(second), 1e9) == 1


def test_the_annealed_form_is_too_large_where_gates_are_rarely_zero(x64, key):
    """Gates 0 in 1 % and 0.99999 else: rows end at the last 0, at an exponential length, so E S tends to √π/2 of it."""
    n, rows = 4096, 3000
    gates = jnp.where(jax.random.bernoulli(key, 0.01, (rows, n)), 1e-300, 0.99999)
    drawn = np.asarray(sparsity.gated_decay(jnp.log(gates)))
    first, second = 0.99 * 0.99999, 0.99 * 0.99999**2
    ratio = drawn.mean() / float(sparsity.gated_decay_annealed(first, second, n))
    error = drawn.std(ddof=1) / np.sqrt(rows) / drawn.mean()
    assert abs(ratio - np.sqrt(np.pi) / 2) < 5 * error + 0.01  # 0.01: not yet in the limit
    assert ratio < 0.95
