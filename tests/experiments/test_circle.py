"""The circle's helpers: fates of made-up roll-outs, exponents of known maps."""

import jax.numpy as jnp
import numpy as np

from experiments.figures import _circle


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
        path = _circle.held(np.stack([size[:, None, None] * start for size in sizes.values()]))
    assert np.isfinite(path).all()
    fate, when = _circle.first_events(path, 0.01, 10.0)
    assert [_circle.FATES[what] for what in fate] == ["collapsed", "kept", "left", "collapsed", "left"]
    assert when.tolist() == [7, 11, 4, 7, 2]
    np.testing.assert_allclose(_circle.distances(path)[3, -3:], 1e6)  # held where it overflows
    np.testing.assert_allclose(_circle.radii(path)[0, :, 0], sizes["collapsed"])


def test_exponent_of_a_linear_map():
    pairs = jnp.ones((60, 2, 2))
    found = _circle.lyapunov(lambda x: x @ jnp.array([[3.0, 1.0], [0.0, 0.5]]), pairs)
    assert abs(float(found) - np.log(3)) < 0.02
    assert np.isfinite(_circle.lyapunov(lambda x: 0 * x, pairs))


def test_growth_of_attention_alone():
    y = np.array([1e-2, 0.3, 1.0, 4.0])
    np.testing.assert_allclose(_circle.growth(jnp.asarray(y)), 1 + 4 * y / np.sinh(2 * y), rtol=1e-3)


def test_standing_still():
    assert abs(_circle.standing_still(1000) / (4 * np.sin(np.pi / 1000) ** 2) - 1) < 1e-3
