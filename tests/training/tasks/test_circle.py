"""The circle: its points against complex numbers, and roll-outs against a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax.training.tasks import circle, roll_out


def test_points_against_complex_numbers():
    pairs, following = circle(points=1000, radius=0.3)
    rotation = np.exp(2j * np.pi / 1000)
    first = 0.3 * rotation ** np.arange(500)
    points = np.asarray(pairs) @ [1, 1j]
    np.testing.assert_allclose(points, np.stack([first, -first], 1), atol=1e-7)
    np.testing.assert_allclose(np.asarray(following) @ [1, 1j], points * rotation, atol=1e-7)
    assert bool((following[:-1] == pairs[1:]).all())
    np.testing.assert_allclose(following[-1], pairs[0][::-1], atol=1e-6)  # half a rotation swaps the two


def test_dtype_and_traced_radius(dtype):
    pairs = jax.eval_shape(lambda: circle()[0])
    assert (pairs.shape, pairs.dtype) == ((500, 2, 2), dtype)
    half = jax.jit(lambda radius: circle(points=8, radius=radius)[0])(0.5)
    np.testing.assert_allclose(half * 2, circle(points=8, radius=1.0)[0])


def test_roll_out_against_a_loop(key):
    matrix = jax.random.normal(key, (2, 2)) / 2

    def model(x):
        return jnp.tanh(x @ matrix)

    start = jnp.array([[1.0, -2.0], [0.5, 0.25]])
    path = [start]
    for _ in range(7):
        path.append(model(path[-1]))
    np.testing.assert_allclose(roll_out(model, start, 7), jnp.stack(path), rtol=1e-6)


def test_roll_out_shows_divergence_as_it_is():
    path = roll_out(lambda x: x * 1e30, jnp.ones((2, 2)), 4)
    assert np.isfinite(path[:2]).all()
    assert not np.isfinite(path[2:]).any()


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: circle(points=7), ValueError, "`points` must be even"),
        (lambda: circle(points=2), ValueError, "`points` must be an integer >= 4"),
        (lambda: circle(points=8.0), TypeError, "`points` must be an integer"),
        (lambda: circle(radius=0.0), ValueError, "`radius` must be > 0"),
        (lambda: circle(radius=jnp.ones(3)), ValueError, "`radius` must be one number"),
        (lambda: roll_out(lambda x: x, jnp.ones((2, 2)), 0), ValueError, "`steps` must be an integer >= 1"),
        (lambda: roll_out(lambda x: x, jnp.ones((2, 2), int), 3), TypeError, "`start` must be a floating-point array"),
        (lambda: roll_out(lambda x: x[:1], jnp.ones((2, 2)), 3), ValueError, "`model` must answer with the shape"),
        (
            lambda: roll_out(lambda x: x.astype(jnp.bfloat16), jnp.ones((2, 2)), 3),
            ValueError,
            "`model` must answer with the shape and dtype",
        ),
    ],
)
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()
