"""The circle: fates of made-up roll-outs, exponents of known maps, two heads in plain NumPy, rows of few layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.flatten_util import ravel_pytree

from experiments.figures.paths import _circle, _circle_built, circle
from experiments.ledger import judged
from rc_jax.training import tasks
from tests.experiments import smoke_data


def test_fates_of_made_up_roll_outs():
    start = np.array([[0.3, 0.0], [-0.3, 0.0]])
    sizes = {
        "collapsed": 0.5 ** np.arange(12),
        "kept": np.ones(12),
        "left": 2.0 ** np.arange(12),
        "collapsed first": np.r_[0.5 ** np.arange(8), 1e3, 1e6, np.inf, np.nan],
        "left first": np.r_[1, 3, 30, 0, 0, 0, np.nan, 0, 0, 0, 0, 0],
    }
    with np.errstate(invalid="ignore"):
        path = _circle.frozen(np.stack([size[:, None, None] * start for size in sizes.values()]))
    assert np.isfinite(path).all()
    fate, when = _circle.first_events(path, 10.0)
    assert [_circle.FATES[what] for what in fate] == ["collapsed", "kept", "left", "collapsed", "left"]
    assert when.tolist() == [7, 11, 4, 7, 2]
    np.testing.assert_allclose(_circle.distances(path)[3, -3:], 1e6)  # frozen where it overflows
    np.testing.assert_allclose(_circle.radii(path)[0, :, 0], sizes["collapsed"])


def test_exponent_of_a_linear_map():
    pairs = jnp.ones((60, 2, 2))
    exponent = _circle.lyapunov(lambda x: x @ jnp.array([[3.0, 1.0], [0.0, 0.5]]), pairs)
    assert abs(float(exponent) - np.log(3)) < 0.02
    assert np.isfinite(_circle.lyapunov(lambda x: 0 * x, pairs))


def test_growth_of_one_head():
    y = np.array([1e-2, 0.3, 1.0, 4.0])
    np.testing.assert_allclose(_circle_built.growth(jnp.asarray(y)), 1 + 4 * y / np.sinh(2 * y), rtol=1e-3)


# Two heads in plain NumPy, written from the formulas of docs/path_effectiveness.md and from nothing in the library.
RADIUS, ANGLE = 0.3, 2 * np.pi / 1000
LOGITS = np.array([2.0, 1.0]) / RADIUS**2
GAINS = np.array([2.05338295, -1.28614142])
OPPOSITE = np.array([[RADIUS, 0.0], [-RADIUS, 0.0]])
ROTATE = np.array([[np.cos(ANGLE), np.sin(ANGLE)], [-np.sin(ANGLE), np.cos(ANGLE)]])


def attend(x):
    """Points (…, 2, 2) after one step: attention with scores c x·x and values g x, rotated."""
    out = np.zeros_like(x)
    for c, g in zip(LOGITS, GAINS, strict=True):
        weight = np.exp(c * (x @ np.swapaxes(x, -1, -2)))
        out += g * (weight / weight.sum(axis=-1, keepdims=True)) @ x @ ROTATE
    return out


def after(x, steps):
    for _ in range(steps):
        x = attend(x)
    return x


def test_two_heads_keep_opposite_points():
    np.testing.assert_allclose(attend(OPPOSITE), OPPOSITE @ ROTATE, atol=1e-9)
    h = 1e-6
    shifts = h * np.eye(4).reshape(4, 2, 2)
    slope = ((attend(OPPOSITE + shifts) - attend(OPPOSITE - shifts)) @ ROTATE.T).reshape(4, 4).T / (2 * h)
    moduli = np.sort(np.abs(np.linalg.eigvals(slope)))
    np.testing.assert_allclose(moduli, [0.5, GAINS.sum() - 0.25, GAINS.sum(), 1], atol=1e-7)
    np.testing.assert_allclose(moduli, [0.5, 0.517, 0.767, 1], atol=5e-4)
    params = _circle_built.two_heads(jnp.array([2.0, 1.0]), 0.5, ANGLE)
    np.testing.assert_allclose(_circle_built.moduli(_circle_built.linearised(params, ANGLE)), moduli, atol=1e-5)
    x = np.random.default_rng(1).normal(size=(2, 2))
    np.testing.assert_allclose(
        RADIUS * _circle_built.step(params, jnp.asarray(x)), attend(RADIUS * x), rtol=1e-4, atol=1e-6
    )


def test_disturbed_pairs_come_back_and_others_do_not():
    draws = np.random.default_rng(0).normal(size=(200, 2, 2))
    back = []
    for noise in (0.07, 0.17, 0.27):
        x = after(OPPOSITE + noise * RADIUS * draws, 1000) / RADIUS
        size, half = np.linalg.norm(x, axis=-1), np.linalg.norm(x[:, 0] - x[:, 1], axis=-1) / 2
        apart = np.maximum(np.abs(size - 1).max(axis=-1), np.abs(half - 1))
        np.testing.assert_allclose(_circle_built.deviation(jnp.asarray(x)), apart, atol=1e-6)
        back.append((apart < 1e-3).sum())
    assert back[0] == 200
    assert 190 <= back[1] < 200
    assert 160 <= back[2] < back[1]
    pair = after(RADIUS * np.eye(2), 1000)
    assert np.linalg.norm(pair[0] - pair[1]) < 1e-2 * RADIUS


def test_one_head_lets_errors_grow():
    y = 1.0
    sizes = jnp.array([0.99, 1.0, 1.01])
    factor = np.asarray(_circle_built.radius_map(_circle_built.one_head(jnp.array(y), ANGLE), sizes))
    np.testing.assert_allclose(factor, np.tanh(y * np.asarray(sizes) ** 2) / np.tanh(y), rtol=1e-5)
    assert factor[0] < 1 < factor[2]
    two = np.asarray(_circle_built.radius_map(_circle_built.two_heads(jnp.array([2.0, 1.0]), 0.5, ANGLE), sizes))
    assert two[0] > 1 > two[2]


def test_share_of_the_layers_that_count():
    event = np.array([True, True, False, True])
    counts = np.array([True, True, True, False])
    share, error = _circle.share_of(event, counts)
    assert share == 2 / 3
    assert error == 1  # three layers decide nothing
    share, error = _circle.share_of(np.ones(16, bool), np.ones(16, bool))
    assert share == 1
    np.testing.assert_allclose(error, 1 / 8)
    assert np.isnan(_circle.share_of(event, np.zeros(4, bool))[0])


def test_too_few_layers_decide_nothing():
    rng = np.random.default_rng(0)
    data = smoke_data.load("circle")
    path = data["path"] + 1e-3 * rng.normal(size=data["path"].shape)
    rows = {row.key: row for row in judged(circle.ROWS, data | {"path": path, "error": 0 * data["error"]})}
    assert rows["circle-neither"].verdict.value == "undecided"


def plane_step(params, x):
    """One layer of two heads on points of the plane in radii; the maps into and out of its width are taken in."""
    weights = jax.nn.softmax(jnp.einsum("ti,hij,sj->hts", x, params["scores"], x), axis=-1)
    out = jnp.einsum("hts,si,hij->tj", weights, x, params["values"]) + params["shift"][None]
    return out + x @ params["kept"] if "kept" in params else out


def trained_by_bfgs(rng, deviation, pairs, following, *, skip):
    """Fates of layers trained by BFGS, of those with a loss below 1e-11.

    The two points are moved by 1e-12 radii: between exact opposites some arithmetic has no difference that could grow.
    """
    shapes = {"scores": (2, 2, 2), "values": (2, 2, 2), "shift": (2,)} | ({"kept": (2, 2)} if skip else {})
    _, unravel = ravel_pytree({name: jnp.zeros(shape) for name, shape in shapes.items()})

    @jax.jit
    def loss(flat):
        def error(flat):
            moved = jax.vmap(lambda pair: plane_step(unravel(flat), pair))(pairs[::25])
            return 2 * jnp.mean(jnp.square(moved - following[::25]))

        return jax.value_and_grad(error)(flat)

    first, fates = pairs[0] + 1e-12 * jnp.asarray([[1.0, 2.0], [-3.0, 1.0]]), []
    for _ in range(12):
        start = {name: deviation * rng.normal(size=shape) for name, shape in shapes.items()} | {"shift": np.zeros(2)}
        found = scipy.optimize.minimize(
            lambda flat: [np.asarray(value, float) for value in loss(flat)], np.asarray(ravel_pytree(start)[0]),
            jac=True, method="BFGS", options={"gtol": 1e-12, "maxiter": 3000},
        )  # fmt: skip
        if found.fun > 1e-11:
            continue
        params = unravel(jnp.asarray(found.x))
        path = np.asarray(tasks.roll_out(lambda x, params=params: plane_step(params, x), first, 300))
        with np.errstate(over="ignore", invalid="ignore"):
            fates.append(_circle.FATES[_circle.first_events(_circle.frozen(path[None]))[0][0]])
    return fates


@pytest.mark.slow
def test_how_a_layer_is_trained_decides_where_it_ends(x64):
    """From small weights most layers with a skip connection stay on the circle; from larger ones or without few do."""
    rng, points = np.random.default_rng(0), tasks.circle(1000)
    pairs, following = (jnp.asarray(each, float) / 0.3 for each in points)
    share = {}
    for deviation, skip in ((0.05, True), (0.3, True), (0.05, False)):
        fates = trained_by_bfgs(rng, deviation, pairs, following, skip=skip)
        assert len(fates) >= 8
        share[deviation, skip] = fates.count("kept") / len(fates)
    assert share[0.05, True] >= 0.75
    assert max(share[0.3, True], share[0.05, False]) <= 0.5
