import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import sparsity
from tests.oracles import sparsity as oracle

BETA = np.array([-3.0, -1.0, 0.0, 0.5, 4.0])
GAMMA = np.array([0.3, 1.0, 2.5])


def _relu_squared(x):
    return jnp.square(jax.nn.relu(x))


@pytest.mark.parametrize(
    ("f", "kinks", "closed"),
    [
        (jnp.exp, (), lambda b, g: sparsity.exponential(g) * jnp.ones_like(b)),
        (lambda x: x, (0.0,), sparsity.identity),
        (_relu_squared, (0.0,), sparsity.relu_squared),
    ],
    ids=["exp", "identity", "relu_squared"],
)
def test_agrees_with_the_closed_forms(f, kinks, closed, x64):
    beta, gamma = jnp.asarray(BETA)[:, None], jnp.asarray(GAMMA)
    measured = sparsity.from_kernel(f, beta, gamma, kinks=kinks)
    np.testing.assert_allclose(measured, closed(*jnp.broadcast_arrays(beta, gamma)), rtol=1e-12)


def test_wide_and_far_tails(x64):
    np.testing.assert_allclose(sparsity.from_kernel(jnp.exp, 0.0, 8.0), np.exp(-32.0), rtol=1e-11)
    far = sparsity.from_kernel(_relu_squared, -20.0, 1.0, kinks=(0.0,))
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
@pytest.mark.parametrize(("beta", "gamma"), [(0.3, 0.8), (-2.0, 1.5)])
def test_other_kernels_against_mpmath(f, exact, kinks, beta, gamma, x64):
    measured = sparsity.from_kernel(f, beta, gamma, kinks=kinks)
    np.testing.assert_allclose(measured, float(oracle.gaussian(exact, beta, gamma, kinks)), rtol=1e-10)


def test_single_precision(key):
    beta, gamma = jnp.asarray(BETA, jnp.float32)[:, None], jnp.asarray(GAMMA, jnp.float32)
    measured = sparsity.from_kernel(_relu_squared, beta, gamma, kinks=(0.0,))
    assert measured.dtype == jnp.float32 and measured.shape == (5, 3)
    np.testing.assert_allclose(measured, sparsity.relu_squared(beta, gamma), rtol=1e-4)


def test_gradient_moves_with_the_kink(x64):
    def swept(f, kinks):
        return jax.grad(lambda b, g: sparsity.from_kernel(f, b, g, kinks=kinks), (0, 1))(
            jnp.asarray(-0.8), jnp.asarray(1.3)
        )

    exact = jax.grad(sparsity.relu_squared, (0, 1))(jnp.asarray(-0.8), jnp.asarray(1.3))
    np.testing.assert_allclose(swept(_relu_squared, (0.0,)), exact, rtol=1e-10)
    below = [jax.scipy.stats.norm.cdf(jnp.asarray(x)) for x in (-0.8 - 1 - 1e-6, -0.8 - 1 + 1e-6)]
    step = jax.grad(lambda b: sparsity.from_kernel(lambda x: (x > 1).astype(x.dtype), b, 1.0, kinks=(1.0,)))
    assert abs(step(jnp.asarray(-0.8)) - (below[1] ** 0.5 - below[0] ** 0.5) / 2e-6) < 1e-8  # S of a step is √P(x > 1)


def _step(x):
    return x > 0.37


# name: (kernel, the same in mpmath, its kinks); every kind that the error has to see
KERNELS = {
    "smooth": (jax.nn.softplus, lambda x: mp.log1p(mp.exp(x)), ()),
    "corner": (lambda x: jax.nn.relu(x - 0.37), lambda x: max(x - mp.mpf(0.37), mp.mpf(0)), (0.37,)),
    "jump": (_step, lambda x: mp.mpf(x > 0.37), (0.37,)),
    "hidden": (
        lambda x: jnp.exp(x) + 1e-3 * abs(x - 0.37),
        lambda x: mp.exp(x) + abs(x - mp.mpf(0.37)) / 1000,
        (0.37,),
    ),
    "steep": (lambda x: jax.nn.sigmoid(60 * (x - 0.37)), lambda x: 1 / (1 + mp.exp(-60 * (x - mp.mpf(0.37)))), (0.37,)),
    "wave": (lambda x: jnp.cos(5 * x), lambda x: mp.cos(5 * x), (np.arange(-24, 24) + 0.5) * np.pi / 5),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_error_bounds_the_error(name, x64):
    f, exact, kinks = KERNELS[name]
    beta, gamma = np.array([0.3, -2.0]), np.array([0.8, 1.5])
    fine = np.arange(-8, 9)
    near = (0.07, 0.22, 0.3, 0.44, 0.52, 0.67) if name == "steep" else ()
    true = [
        float(oracle.gaussian(exact, b, g, (*kinks, *near, *(b + g * fine)))) for b, g in zip(beta, gamma, strict=True)
    ]
    bound = {}
    for said in (kinks, "locate", ()):
        found = sparsity.from_kernel_with_error(f, beta, gamma, kinks=said)
        assert np.all(np.abs(found.value - np.array(true)) <= found.error), said
        bound["located" if isinstance(said, str) else "declared" if len(said) else "silent"] = float(found.error.max())
    assert bound["located"] < 1e-11
    assert name == "smooth" or bound["silent"] > 1e-6
    assert name in ("smooth", "steep") or bound["declared"] < 1e-8


def test_corners_and_jumps_wherever_they_are(x64):
    """Against closed forms, three ways of saying where; single precision too."""
    random = np.random.default_rng(0)
    for _ in range(6):
        place, beta, gamma = (float(each) for each in (random.normal(), random.normal(), random.uniform(0.3, 2)))
        r = (beta - place) / gamma
        with mp.workdps(30):
            above, bell = mp.ncdf(r), mp.npdf(r)
            true = (mp.sqrt(above), (r * above + bell) / mp.sqrt((r * r + 1) * above + r * bell))
        for f, exact in zip((lambda x, p=place: x > p, lambda x, p=place: jax.nn.relu(x - p)), true, strict=True):
            for kinks in ((), (place,), "locate"):
                found = sparsity.from_kernel_with_error(f, beta, gamma, kinks=kinks)
                assert abs(float(found.value) - float(exact)) <= float(found.error)
                assert kinks == () or float(found.error) < 1e-12
            single = sparsity.from_kernel_with_error(f, np.float32(beta), np.float32(gamma), kinks=(place,))
            assert abs(float(single.value) - float(exact)) <= float(single.error) < 2e-4


def test_located_kinks(x64):
    for places in ([0.0], [-1.3, 0.37], [0.1, 0.1003]):

        def f(x, places=tuple(places)):
            return 1 + sum(abs(x - place) for place in places)

        found = sparsity.locate_kinks(f, np.array([0.0, 0.2]), 1.0)
        assert max(np.min(np.abs(found - place)) for place in places) < 1e-7
        assert len(found) < 20
    assert sparsity.locate_kinks(jnp.exp, 0.0, 1.0).size == 0
    assert sparsity.locate_kinks(lambda x: x > 100, 0.0, 1.0).size == 0  # where it matters to nothing
    assert sparsity.locate_kinks(lambda x: jnp.sin(1e6 * x), 0.0, 1.0).size == 0  # given up
    assert sparsity.from_kernel_with_error(lambda x: jnp.sin(1e6 * x), 0.0, 1.0).error == 1  # and said
    many = sparsity.locate_kinks(lambda x: 2 + jnp.cos(30 * x), np.linspace(-2, 2, 50), np.linspace(0.3, 2, 50))
    assert 0 < many.size < 4000  # one set for all pairs, not one for each


def test_a_tail_beyond_the_ends_is_in_the_error(x64):
    for gamma, most in ((16.0, 1e-12), (17.5, 1e-12)):
        found = sparsity.from_kernel_with_error(jnp.exp, 0.0, gamma)
        assert abs(float(found.value) - np.exp(-(gamma**2) / 2)) <= float(found.error) < most
    wide = sparsity.from_kernel_with_error(jnp.exp, np.float32(0), np.float32(4))
    assert abs(float(wide.value) - float(np.exp(-8))) <= float(wide.error)
    x = sparsity.from_kernel_with_error(lambda x: jnp.exp(10.2 * x - 120), np.float32(0), np.float32(1))
    assert float(x.error) == 1  # f²φ grows as far as single precision looks: nothing is known


def test_errors_in_jit_and_without_gradient(x64):
    def both(beta):
        return sparsity.from_kernel_with_error(jax.nn.relu, beta, 1.0, kinks=(0.0,))

    eager, compiled = both(0.4), jax.jit(both)(0.4)
    assert abs(eager.value - compiled.value) < 1e-15 and eager.error < 1e-12
    assert jax.grad(lambda beta: both(beta).error)(0.4) == 0


def test_named_kernels(x64):
    """Each by name, with its kinks: resolved everywhere, and a function of β/γ alone if it says so."""
    beta, gamma = jnp.array([-0.4, 2.0]), jnp.array([1.5, 0.7])
    for name, kernel in (
        sparsity.KERNELS | {"cosine_cubed": sparsity.cosine_power(3), "cube": sparsity.power(3)}
    ).items():
        found = sparsity.from_kernel_with_error(kernel.f, beta, gamma, kinks=kernel.kinks)
        assert np.all(found.error < 1e-11), name
        scaled = sparsity.from_kernel(kernel.f, 2 * beta, 2 * gamma, kinks=kernel.kinks)
        assert (np.abs(found.value - scaled).max() < 1e-13) == (kernel.homogeneous or name == "")
    table = sparsity.KERNELS
    third = sparsity.from_kernel(sparsity.power(3).f, 0.0, 1.0, kinks=(0.0,))
    assert abs(third - 2 * (2 / np.pi) ** 0.5 / 15**0.5) < 1e-14  # E|ε|³/√E ε⁶
    halves = sparsity.from_kernel(table["sigmoid"].f, 0.0, 1.3)  # σ(x) = (1 + tanh(x/2))/2
    assert abs(halves - 0.5 / np.sqrt(0.25 + float(_mean_square_tanh(0.65)) / 4)) < 1e-12
    far = table["elu_plus_one"].f(jnp.array([-700.0, 3.0]))
    np.testing.assert_allclose(far, [np.exp(-700.0), 4.0], rtol=1e-14)


def _mean_square_tanh(gamma):
    with mp.workdps(20):
        return mp.quad(lambda e: mp.tanh(gamma * e) ** 2 * mp.npdf(e), [-14, -5, 0, 5, 14])


def test_from_moments(dtype):
    first, second = np.asarray([0.5, 2.0, 0.0], dtype), np.asarray([1.0, 4.0, 3.0], dtype)
    measured = sparsity.from_moments(first, second)
    assert measured.dtype == dtype
    np.testing.assert_allclose(measured, [0.5, 1.0, 0.0])
    draws = np.random.default_rng(0).normal(size=1000).astype(dtype)
    moments = np.mean(np.abs(draws)), np.mean(draws * draws)
    np.testing.assert_allclose(sparsity.from_moments(*moments), sparsity.sparsity(jnp.asarray(draws)), rtol=1e-6)
    assert np.all(sparsity.from_moments(np.ones(3, dtype), np.ones(3, dtype)) == 1)
    assert jax.jit(sparsity.from_moments)(1.0, -1.0) is not None  # a traced number passes the door


@pytest.mark.usefixtures("as_installed")
def test_bad_moments():
    with pytest.raises(ValueError, match="`second` must be > 0, got -1"):
        sparsity.from_moments(0.5, -1.0)
    with pytest.raises(ValueError, match="`second` must be > 0, got 0"):
        sparsity.from_moments(0.0, 0.0)
    with pytest.raises(ValueError, match="`first` must be >= 0"):
        sparsity.from_moments(-0.5, 1.0)
    with pytest.raises(ValueError, match="`second` must be at least `first`², got 1 for first = 2"):
        sparsity.from_moments(jnp.array([0.5, 2.0]), 1.0)
    with pytest.raises(TypeError, match="`first` must be a real number"):
        sparsity.from_moments("1", 1.0)


def test_a_kernel_that_is_zero_everywhere_has_no_sparsity():
    found = sparsity.from_kernel_with_error(_relu_squared, -100.0, 1.0, kinks=(0.0,))
    assert np.isnan(found.value) and np.isinf(found.error)


@pytest.mark.usefixtures("as_installed")
def test_bad_kernels_say_where():
    with pytest.raises(ValueError, match="`f` must be finite within 20 deviations of the mean, got nan at x = -0"):
        sparsity.from_kernel(jnp.log, 0.0, 1.0)
    with pytest.raises(ValueError, match=r"`f` must be finite .*, got inf at x = [89]"):
        sparsity.from_kernel(jnp.exp, 0.0, 10.0)  # e^{200} does not fit float32
    with pytest.raises(TypeError, match="`f` must return real numbers, got complex64"):
        sparsity.from_kernel(lambda x: jax.lax.complex(x, x), 0.0, 1.0)
    for f in (lambda x: jax.nn.softmax(jnp.ravel(x)).reshape(x.shape), lambda x: jnp.cumsum(x, axis=-1)):
        with pytest.raises(ValueError, match="`f` must be elementwise, got a value at x = "):
            sparsity.from_kernel(f, 0.0, 1.0)
    with pytest.raises(ValueError, match="`f` must be elementwise, got shape"):
        sparsity.from_kernel(jnp.sum, 0.0, 1.0)
    for power in (0, -2):
        with pytest.raises(ValueError, match="`power` must be an integer >= 1"):
            sparsity.power(power)
    with pytest.raises(TypeError, match="`power` must be an integer"):
        sparsity.cosine_power(1.5)


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    with pytest.raises(TypeError, match="`f` must be a function"):
        sparsity.from_kernel(3, 0.0, 1.0)
    with pytest.raises(ValueError, match="`gamma` must be > 0"):
        sparsity.from_kernel(jnp.exp, 0.0, 0.0)
    with pytest.raises(ValueError, match="`kinks` must be finite"):
        sparsity.from_kernel(jnp.exp, 0.0, 1.0, kinks=(float("nan"),))
    with pytest.raises(ValueError, match="`kinks` must be numbers or 'locate', got 'search'"):
        sparsity.from_kernel(jnp.exp, 0.0, 1.0, kinks="search")
    with pytest.raises(ValueError, match="`kinks` must be located outside jit"):
        jax.jit(lambda beta: sparsity.from_kernel(jnp.exp, beta, 1.0, kinks="locate"))(0.0)
    with pytest.raises(ValueError, match="`kinks` must be located outside jit"):
        jax.jit(lambda c: sparsity.locate_kinks(lambda x: jnp.exp(c * x), 0.0, 1.0).sum())(1.0)
