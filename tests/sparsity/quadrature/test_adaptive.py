import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import sparsity
from rc_jax.sparsity.quadrature import adaptive, panels
from tests.oracles import sparsity as oracle

BETA = np.array([-3.0, -1.0, 0.0, 0.5, 4.0])
GAMMA = np.array([0.3, 1.0, 2.5])


FAR = 1e9  # beyond every end: kinks padded by it have one length, so that the quadrature is one program


def _relu_squared(x):
    return jnp.square(jax.nn.relu(x))


def estimate(f, beta, gamma, kinks=(), dtype=None):
    """`from_kernel_with_error` in one shape whatever is asked: value and error of the pairs as numpy arrays."""
    beta, gamma = np.broadcast_arrays(np.asarray(beta, dtype or float), np.asarray(gamma, dtype or float))
    rows = np.resize(np.ravel(beta), 16), np.resize(np.ravel(gamma), 16)
    said = kinks if isinstance(kinks, str) else np.append(kinks, np.full(64 - len(kinks), FAR))
    values = sparsity.from_kernel_with_error(f, *rows, kinks=said)
    return tuple(np.asarray(each)[: beta.size].reshape(beta.shape) for each in values)


@pytest.mark.parametrize(
    ("f", "kinks", "closed"),
    [
        (jnp.exp, (), lambda b, g: np.exp(-np.square(g) / 2)),
        (lambda x: x, (0.0,), sparsity.identity),
        (_relu_squared, (0.0,), sparsity.relu_squared),
    ],
    ids=["exp", "identity", "relu_squared"],
)
def test_agrees_with_the_closed_forms(f, kinks, closed, x64):
    beta, gamma = np.broadcast_arrays(BETA[:, None], GAMMA)
    np.testing.assert_allclose(estimate(f, beta, gamma, kinks)[0], closed(beta, gamma), rtol=1e-12)


def test_wide_and_far_tails(x64):
    np.testing.assert_allclose(estimate(jnp.exp, 0.0, 8.0)[0], np.exp(-32.0), rtol=1e-11)
    far = estimate(_relu_squared, -20.0, 1.0, (0.0,))[0]
    np.testing.assert_allclose(far, sparsity.relu_squared(-20.0, 1.0), rtol=1e-11)


@pytest.mark.parametrize(
    ("f", "exact", "kinks"),
    [
        (jax.nn.softplus, lambda x: mp.log1p(mp.exp(x)), ()),
        (jax.nn.sigmoid, lambda x: 1 / (1 + mp.exp(-x)), ()),
        (lambda x: jax.nn.elu(x) + 1, lambda x: x + 1 if x > 0 else mp.exp(x), (0.0,)),
        (lambda x: x**6, lambda x: x**6, ()),
        (lambda x: (x > 1).astype(x.dtype), lambda x: mp.mpf(x > 1), (1.0,)),
    ],
    ids=["softplus", "sigmoid", "elu_plus_one", "power6", "step"],
)
def test_other_kernels_against_mpmath(f, exact, kinks, x64):
    pairs = np.array([(0.3, 0.8), (-2.0, 1.5)])
    true = [float(oracle.gaussian(exact, *pair, kinks)) for pair in pairs]
    np.testing.assert_allclose(estimate(f, *pairs.T, kinks)[0], true, rtol=1e-10)


@pytest.mark.slow
def test_gradients(x64):
    """Three kernels in one program: the kink moves with β and γ, a step has a slope, and S = 1 does not break it."""

    def rows(beta, gamma, tilt):
        def f(x):
            return jnp.stack([_relu_squared(x[0]), (x[1] > 1).astype(x.dtype), 1 + tilt * x[2]])

        return sparsity.from_kernel(f, beta, gamma, kinks=(0.0, 1.0)).sum()

    beta, gamma = jnp.array([-0.8, -0.8, 1.0]), jnp.array([1.3, 1.0, 1.0])
    by_beta, by_gamma, by_tilt = jax.jit(jax.grad(rows, (0, 1, 2)))(beta, gamma, 1e-3)
    exact = jax.grad(sparsity.relu_squared, (0, 1))(jnp.asarray(-0.8), jnp.asarray(1.3))
    np.testing.assert_allclose((by_beta[0], by_gamma[0]), exact, rtol=1e-10)
    below = [jax.scipy.stats.norm.cdf(jnp.asarray(x)) for x in (-0.8 - 1 - 1e-6, -0.8 - 1 + 1e-6)]
    assert abs(by_beta[1] - (below[1] ** 0.5 - below[0] ** 0.5) / 2e-6) < 1e-8  # S of a step is √P(x > 1)
    assert abs(by_tilt - -1e-3 / 1.001**3 / (1 + (1e-3 / 1.001) ** 2) ** 1.5) < 1e-12  # 1/√(1 + (c/(1 + c))²)


def _step(x):
    return x > 0.37


def dense(f, beta, gamma, kinks=()):
    """S by 16 nodes in each of thousands of panels, split at kinks: numpy, and nothing that the package does."""
    edges = np.unique(
        np.concatenate([np.arange(-30 * 64, 30 * 64 + 1) / 64, (np.asarray(kinks, float) - beta) / gamma])
    )
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half = np.diff(edges)[:, None] / 2
    places = edges[:-1, None] + half * (nodes + 1)
    values, bell = np.abs(f(beta + gamma * places)), np.exp(-places * places / 2) * half * weights
    return (values * bell).sum() / np.sqrt((values**2 * bell).sum() * np.sqrt(2 * np.pi))


# name: (kernel, the same in numpy, its kinks); every kind that the error has to see
KERNELS = {
    "smooth": (jax.nn.softplus, lambda x: np.logaddexp(0, x), ()),
    "corner": (lambda x: jax.nn.relu(x - 0.37), lambda x: np.maximum(x - 0.37, 0), (0.37,)),
    "jump": (_step, lambda x: x > 0.37, (0.37,)),
    "hidden": (lambda x: jnp.exp(x) + 1e-3 * abs(x - 0.37), lambda x: np.exp(x) + 1e-3 * abs(x - 0.37), (0.37,)),
    "steep": (lambda x: jax.nn.sigmoid(60 * (x - 0.37)), lambda x: (1 + np.tanh(30 * (x - 0.37))) / 2, (0.37,)),
    "wave": (lambda x: jnp.cos(5 * x), None, (np.arange(-24, 24) + 0.5) * np.pi / 5),
}


def _wave(beta, gamma):
    """S of cos 5x from the Fourier series of its magnitude."""
    k = np.arange(1, 20)
    terms = (-1.0) ** (k + 1) / (4 * k * k - 1) * np.exp(-50 * (k * gamma) ** 2) * np.cos(10 * k * beta)
    return (2 / np.pi + 4 / np.pi * terms.sum()) / np.sqrt((1 + np.exp(-50 * gamma**2) * np.cos(10 * beta)) / 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_the_error_bounds_the_error(name, x64):
    f, exact, kinks = KERNELS[name]
    beta, gamma = np.array([0.3, -2.0]), np.array([0.8, 1.5])
    true = [dense(exact, b, g, kinks) if exact else _wave(b, g) for b, g in zip(beta, gamma, strict=True)]
    bound = {}
    for said in (kinks, "locate", ()):
        value, error = estimate(f, beta, gamma, said)
        assert np.all(np.abs(value - np.array(true)) <= error), said
        bound["located" if isinstance(said, str) else "declared" if len(said) else "silent"] = float(error.max())
    assert bound["located"] < 1e-11
    assert name == "smooth" or bound["silent"] > 1e-6
    assert name in ("smooth", "steep") or bound["declared"] < 1e-8


DEFAULT = {  # of the finding that undeclared kinks cost up to 13 % of S: nothing is declared here
    "exp": (jnp.exp, ()),
    "softplus": (jax.nn.softplus, ()),
    "sigmoid": (jax.nn.sigmoid, ()),
    "power6": (lambda x: x**6, ()),
    "gauss": (lambda x: jnp.exp(-x * x), ()),
    "relu_squared": (_relu_squared, (0.0,)),
    "relu": (lambda x: jax.nn.relu(x - 2.3), (2.3,)),
    "magnitude": (jnp.abs, (0.0,)),
    "step": (_step, (0.37,)),
    "far step": (lambda x: x > 5.05, (5.05,)),
    "hard_tanh": (jax.nn.hard_tanh, (-1.0, 0.0, 1.0)),
    "tanh": (jnp.tanh, (0.0,)),
    "elu_plus_one": (lambda x: jax.nn.elu(x) + 1, (0.0,)),
}


@pytest.mark.parametrize(
    ("dtype", "names"),
    [
        ("float32", ("relu_squared", "step")),
        pytest.param("float32", DEFAULT, marks=pytest.mark.slow),
        pytest.param("float64", DEFAULT, marks=pytest.mark.slow),
    ],
    ids=["float32, some", "float32", "float64"],
)
def test_by_default_kinks_are_found_where_they_matter(dtype, names):
    """Outside jit S has the stated accuracy without a word about kinks; what is traced is as good as undeclared."""
    beta, gamma = (np.asarray(each, dtype) for each in ([0.3, 0.0, 1.5, 5.0], [0.7, 1.0, 2.5, 0.3]))
    accuracy = adaptive.ACCURACY[dtype]
    with jax.enable_x64(dtype == "float64"):
        for name in names:
            f, kinks = DEFAULT[name]
            seen = slice(None) if name != "far step" or dtype == "float64" else slice(2, None)  # S underflows float32
            exact, doubt = (each[seen] for each in estimate(f, beta, gamma, kinks, dtype))
            measured = sparsity.from_kernel(f, beta[seen], gamma[seen])
            assert np.all(np.abs(measured / exact - 1) <= accuracy + doubt / exact), name
        silent = jax.jit(lambda b, g: sparsity.from_kernel(_step, b, g))(beta, gamma)
        assert np.abs(silent / sparsity.from_kernel(_step, beta, gamma) - 1).max() > 1e-3


@pytest.mark.slow
def test_many_pairs_are_split_at_kinks_found_with_some(x64):
    beta, gamma = np.linspace(-1, 1, 50), np.geomspace(0.5, 1, 50)
    measured = sparsity.from_kernel(_relu_squared, beta, gamma)
    np.testing.assert_allclose(measured, sparsity.relu_squared(beta, gamma), rtol=1e-9)


def test_what_is_not_known_is_said():
    with pytest.warns(RuntimeWarning, match=r"S = .* at beta = 0, gamma = 1 can be off by .* 0.0005 of it"):
        sparsity.from_kernel(_step, 0.0, 1.0, kinks=(0.4,))  # declared at the wrong place


@pytest.mark.slow
def test_located_kinks(x64):
    for places in ([-1.3, 0.37], [0.1, 0.1003]):

        def f(x, places=tuple(places)):
            return 1 + sum(abs(x - place) for place in places)

        located = sparsity.locate_kinks(f, np.array([0.0, 0.2]), 1.0)
        assert max(np.min(np.abs(located - place)) for place in places) < 1e-7
        assert len(located) < 20
    assert sparsity.locate_kinks(jnp.exp, 0.0, 1.0).size == 0
    assert sparsity.locate_kinks(lambda x: x > 100, 0.0, 1.0).size == 0  # where it matters to nothing
    assert sparsity.locate_kinks(lambda x: jnp.sin(1e6 * x), 0.0, 1.0).size == 0  # given up
    assert sparsity.from_kernel_with_error(lambda x: jnp.sin(1e6 * x), 0.0, 1.0).error == 1  # and said
    many = sparsity.locate_kinks(lambda x: 2 + jnp.cos(30 * x), np.linspace(-2, 2, 50), np.linspace(0.3, 2, 50))
    assert 0 < many.size < 4000  # one set for all pairs, not one for each


@pytest.mark.slow
def test_a_tail_beyond_the_ends_is_in_the_error(x64):
    for gamma, most in ((16.0, 1e-12), (17.5, 1e-12)):
        value, error = estimate(jnp.exp, 0.0, gamma)
        assert abs(value - np.exp(-(gamma**2) / 2)) <= error < most
    value, error = estimate(jnp.exp, 0, 4, dtype=np.float32)
    assert abs(value - np.exp(-8)) <= error
    _, error = estimate(lambda x: jnp.exp(10.2 * x - 120), 0, 1, dtype=np.float32)
    assert error == 1  # f²φ grows as far as single precision looks: nothing is known


@pytest.mark.slow
def test_tails_that_fall_like_a_power(x64):
    """f²φ ∝ (1 + x²)^{−p/2}, with a closed second moment; a slower fall than |x|^{−1−δ} is said to be unknown."""

    def kernel(p, slow=0):
        return lambda x: jnp.exp(jnp.square(x) / 4) * (1 + jnp.square(x)) ** (-p / 4) / jnp.log(4 + x * x) ** slow

    for p, most in ((1.05, 1.0), (1.5, 1.5), (2.0, 1.1), (3.0, 1.1), (4.0, 1.1)):
        with mp.workdps(20):
            first = mp.quad(lambda x, p=p: mp.exp(-x * x / 4) * (1 + x * x) ** (-p / 4), [0, 1, 4, 10, 30])
            second = mp.sqrt(mp.pi) * mp.gamma((p - 1) / 2) / mp.gamma(p / 2)
            true = float(2 * first / mp.sqrt(second) / (2 * mp.pi) ** 0.25)
        value, error = estimate(kernel(p), 0.0, 1.0)
        assert abs(value - true) <= error <= max(most * abs(value - true), p == 1.05)
    assert estimate(kernel(1.0), 0.0, 1.0)[1] == 1  # no second moment
    assert estimate(kernel(1.0, 1), 0.0, 1.0)[1] == 1  # ∫ dx/(x log² x): the power that it falls like is falling


@pytest.mark.slow
@pytest.mark.parametrize("half", [jnp.bfloat16, jnp.float16])
def test_the_error_covers_the_cast_to_half_precision(half):
    for name in ("exponential", "identity", "relu_squared", "sigmoid", "elu_plus_one", "tanh"):
        f, kinks, _ = sparsity.KERNELS[name]
        beta, gamma = (np.float32(jnp.asarray(each, half)) for each in (0.3, [1.0, 0.1, 2.5]))
        exact, little = estimate(f, beta, gamma, kinks, np.float32)
        value, error = estimate(f, beta, gamma, kinks, half)
        assert value.dtype == error.dtype == half
        gap = np.abs(value.astype(float) - exact)
        assert np.all(np.maximum(gap, little) <= error.astype(float)) and np.any(gap > little)
        assert np.all(error.astype(float) <= 1.1 * gap + 2e-4)


@pytest.mark.slow
def test_kinks_at_the_edge_of_a_panel(x64):
    """β/γ an integer: the kernel has no value at its kink and is not asked for one, under jit neither."""
    kernels = {
        "sign": (lambda x: x / jnp.abs(x), np.sign),
        "sinc": (lambda x: jnp.sin(x) / x, lambda x: np.sinc(x / np.pi)),
        "x log x": (lambda x: x * jnp.log(jnp.abs(x)), lambda x: x * np.log(np.abs(x) + 1e-300)),
    }
    beta = np.array([0.0, 1.0, -2.0, 1e-17])

    @jax.jit
    def compiled(beta):
        def f(x):
            return jnp.stack([f(x[row]) for row, (f, _) in enumerate(kernels.values())])

        return sparsity.from_kernel(f, jnp.stack([beta] * 3), 1.0, kinks=(0.0, 0.0, 1e-17))

    for (f, exact), traced in zip(kernels.values(), np.asarray(compiled(jnp.asarray(beta))), strict=True):
        value, error = estimate(f, beta, 1.0, (0.0,))
        true = np.array([dense(exact, b, 1.0, (0.0,)) for b in beta])
        assert np.all(np.abs(value - true) <= error) and np.all(error < 1e-3)  # |sin x| has more kinks
        assert np.all(np.abs(traced - true) <= error + 1e-13)
    value, error = estimate(lambda x: jnp.abs(x) ** -0.25, 0.0, 1.0, (0.0,))
    assert abs(value - _root(0.25)) < error < 0.5


def _root(power):
    """S of |x|^{−power} at β = 0, from moments of a normal variable."""
    first, second = (2 ** (-p / 2) * mp.gamma((1 - p) / 2) / mp.sqrt(mp.pi) for p in (power, 2 * power))
    return float(first / mp.sqrt(second))


def test_the_error_sees_a_jump_between_the_outermost_node_and_the_edge(x64):
    """Nothing but the mismatch of two neighbours at their edge tells of it."""
    for place in (6e-4, -6e-4, 1.0006, -2.0009):
        value, error = estimate(lambda x, p=place: x > p, 0.0, 1.0)
        true = float(mp.ncdf(-place)) ** 0.5
        assert 1e-6 < abs(value - true) <= error < 0.01


@pytest.mark.slow
def test_the_error_covers_nodes_that_are_not_where_they_should_be(x64):
    """All shifted one way by their doubt, which leaves values that are smooth; or rounded as far as they are apart."""
    edges = np.arange(-8.0, 9.0)
    places, weights = (np.asarray(each) for each in panels.positions(jnp.asarray(edges)))
    values, errors, free = (lambda x: np.cosh(3 * x) * np.exp(-x * x)), jax.jit(panels.error_bound), np.zeros(2, bool)
    for doubt in (1e-9, 1e-5):
        missed = weights * (values(places + 0.9 * doubt) - values(places))
        for one in (5, 8, 11):  # one panel alone, where nothing cancels
            off = np.full((1, panels.SIZE), doubt)
            bound = errors(*(jnp.asarray(x) for x in (values(places[[one]]), edges[one : one + 2], free, off)))
            assert abs(missed[one].sum()) <= bound < 10 * abs(missed[one].sum()) + 1e-12
    value, error = estimate(lambda x: jnp.exp((x - 1.5) * 2.0**52), 1.5, 2.0**-53)
    assert abs(value - np.exp(-2)) > 1e-3 and error == 1  # every panel sees one x: nothing is known


def test_never_above_one():
    for f in (_relu_squared, jax.nn.sigmoid, jnp.exp):
        assert np.all(estimate(f, 1.0, np.geomspace(1e-7, 1e-3, 16), (0.0,), np.float32)[0] <= 1)


def test_errors_in_jit_and_without_gradient(x64):
    def both(beta):
        return sparsity.from_kernel_with_error(jax.nn.relu, beta, 1.0, kinks=(0.0,))

    value, error = estimate(jax.nn.relu, 0.4, 1.0, (0.0,))
    slope, compiled = jax.jit(jax.grad(lambda beta: (both(beta).error, both(beta)), has_aux=True))(0.4)
    assert abs(value - compiled.value) < 1e-15 and error < 1e-12 and slope == 0


@pytest.mark.slow
def test_named_kernels(x64):
    """Each by name, with its kinks: resolved everywhere, and a function of β/γ alone if it says so."""
    beta, gamma = jnp.array([-0.4, 2.0]), jnp.array([1.5, 0.7])
    for name, kernel in (sparsity.KERNELS | {"cube": sparsity.power(3)}).items():
        value, error = estimate(kernel.f, beta, gamma, kernel.kinks)
        assert np.all(error < 1e-11), name
        scaled = estimate(kernel.f, 2 * beta, 2 * gamma, kernel.kinks)[0]
        assert (np.abs(value - scaled).max() < 1e-13) == kernel.homogeneous
    table = sparsity.KERNELS
    third = estimate(sparsity.power(3).f, 0.0, 1.0, (0.0,))[0]
    assert abs(third - 2 * (2 / np.pi) ** 0.5 / 15**0.5) < 1e-14  # E|ε|³/√E ε⁶
    halves = estimate(table["sigmoid"].f, 0.0, 1.3)[0]  # σ(x) = (1 + tanh(x/2))/2
    assert abs(halves - 0.5 / np.sqrt(0.25 + float(_mean_square_tanh(0.65)) / 4)) < 1e-12
    far = table["elu_plus_one"].f(jnp.array([-700.0, 3.0]))
    np.testing.assert_allclose(far, [np.exp(-700.0), 4.0], rtol=1e-14)


def _mean_square_tanh(gamma):
    with mp.workdps(20):
        return mp.quad(lambda e: mp.tanh(gamma * e) ** 2 * mp.npdf(e), [-14, -5, 0, 5, 14])


def test_a_kernel_that_is_zero_everywhere_has_no_sparsity():
    value, error = estimate(_relu_squared, -100.0, 1.0, (0.0,), np.float32)
    assert np.isnan(value) and np.isinf(error)


def graded(f, beta, gamma, place):
    """S by 20 nodes in panels that shrink towards one place: numpy, and nothing that the package does."""
    off = np.geomspace(1e-14, 1, 200)
    centre = (place - beta) / gamma
    edges = np.unique(np.concatenate([np.linspace(-38, 38, 305), centre + off, centre - off]))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges)[:, None] / 2
    at = edges[:-1, None] + half * (nodes + 1)
    values, bell = np.abs(f(beta + gamma * at)), np.exp(-at * at / 2) * half * weights
    return (values * bell).sum() / np.sqrt((values**2 * bell).sum() * np.sqrt(2 * np.pi))


def test_steep_smooth_steps_are_no_jumps(x64):
    """One panel around a step of width 1e-5 to 1e-2 was all that the search split: S was off by up to 1e-5, unsaid."""
    beta, gamma = np.array([0.0, 0.3]), np.array([1.0, 3.0])
    for width in (1e-5, 2.8e-4):

        def f(x, width=width):
            return jnp.tanh((x - 0.3) / width) + 1

        pairs = zip(beta, gamma, strict=True)
        exact = np.array([graded(lambda x, width=width: np.tanh((x - 0.3) / width) + 1, *pair, 0.3) for pair in pairs])
        for kinks in ("locate", ()):
            value, error = estimate(f, beta, gamma, kinks)
            assert np.all(np.abs(value - exact) <= error + 1e-15)
            assert kinks == () or error.max() < 1e-12
        np.testing.assert_allclose(sparsity.from_kernel(f, beta, gamma), exact, rtol=1e-9)


def pole(p, beta, gamma):
    """S of |x|^−p, from E|x|^−s = γ^−s 2^{−s/2} Γ((1 − s)/2)/√π ₁F₁(s/2; ½; −β²/2γ²)."""

    def moment(s):
        arguments = s / 2, mp.mpf(1) / 2, -(mp.mpf(beta) ** 2) / (2 * mp.mpf(gamma) ** 2)
        return mp.mpf(gamma) ** -s * 2 ** (-s / 2) * mp.gamma((1 - s) / 2) / mp.sqrt(mp.pi) * mp.hyp1f1(*arguments)

    return float(moment(mp.mpf(p)) / mp.sqrt(moment(2 * mp.mpf(p))))


def test_poles_that_nobody_declared_are_in_the_error(x64):
    """The pole stands between two nodes, where most of the mean of f² may be."""
    draw = np.random.default_rng(5)
    for p in [0.2, 0.35, 0.47, 0.49, 0.499] * 8:
        beta, gamma, at = draw.uniform(-2, 2), draw.uniform(0.3, 2), draw.uniform(-1, 1)
        value, error = estimate(lambda x, p=p, at=at: abs(x - at) ** -p, beta, gamma, (), "float64")
        assert abs(value - pole(p, beta - at, gamma)) <= error, (p, beta, gamma, at)


@pytest.mark.parametrize(("dtype", "count"), [("float32", 12), pytest.param("float64", 40, marks=pytest.mark.slow)])
def test_poles_are_in_the_error_or_refused(dtype, count):
    """What lies within rounding of the pole of |x|^−p is not seen, and for p near ½ holds most of the mean of f²."""
    draw, kept = np.random.default_rng(1), 0
    with jax.enable_x64(dtype == "float64"):
        for index in range(count):
            p, beta, gamma = (
                float(np.asarray(number, dtype))
                for number in (draw.choice([0.05, 0.2, 0.35, 0.442, 0.49]), draw.uniform(-2, 2), draw.uniform(0.3, 2))
            )
            beta *= index % 4 > 0
            try:
                value, error = estimate(lambda x, p=p: abs(x) ** -p, beta, gamma, "locate", dtype)
            except ValueError as refused:  # a node at the pole itself
                assert "`f` must be finite" in str(refused)
                continue
            kept += 1
            assert abs(value - pole(p, beta, gamma)) <= error + 1e-15, (p, beta, gamma)
    assert kept > count / 3


@pytest.mark.parametrize("power", [1.5, 4.0, 40.0])
def test_a_tail_of_a_power_is_its_integral(x64, power):
    """Beyond the last panel lies what the power's integral says, from the panels alone; a slower fall is not known."""
    limit = adaptive.reach(jnp.dtype("float64"))
    edges = jnp.arange(limit - 3.0, limit + 1.0)
    nodes, weights = panels.positions(edges)
    tail = adaptive._beyond(weights * (nodes / limit) ** -power, nodes)
    assert float(tail) == pytest.approx(limit / (power - 1), rel=1e-9)
    assert jnp.isinf(adaptive._beyond(weights * (nodes / limit) ** -0.9, nodes))
