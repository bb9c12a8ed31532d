"""Moved roundings: they show what cancels, and leave alone what is equal or zero."""

import jax
import jax.numpy as jnp
import numpy as np

from rc_jax.collapse.exact import roundings


def copies(function, *arguments):
    """The results of the function, and of the two with moved roundings."""
    amounts = jnp.asarray(roundings.AMOUNTS, jnp.float32)
    run = jax.vmap(lambda amount: roundings.move(function, amount)(*arguments), axis_name=roundings.COPY)
    return np.asarray(run(amounts))


def test_the_first_copy_is_the_function_itself():
    x = jax.random.normal(jax.random.key(0), (3, 4))

    def function(x):
        return jax.nn.softmax(jnp.dot(x, x.T, precision="highest"), axis=-1)

    got = copies(function, x)
    np.testing.assert_array_equal(got[0], function(x))
    assert 0 < abs(got[1:] - got[:1]).max() < 64 * float(jnp.finfo(jnp.float32).eps)


def test_two_copies_are_on_both_sides_of_what_has_lost_its_digits():
    x = jnp.asarray([[0.3, -0.7]])
    got = copies(lambda x: (x + 1e8 * jnp.exp(0 * x)) - 1e8 * jnp.exp(0 * x[:, ::-1]), x)
    assert (np.sign(got[1] - got[0]) == -np.sign(got[2] - got[0])).all()
    assert abs(got[1:] - got[:1]).min() > 1


def test_equal_numbers_stay_equal_and_zeros_stay_zero():
    x = jnp.asarray([[0.3, -0.7], [1.5, 2.5], [0.3, -0.7]])
    got = copies(lambda x: jnp.exp(x - jnp.sum(x, axis=0, keepdims=True)), x)
    np.testing.assert_array_equal(got[:, 0], got[:, 2])
    np.testing.assert_array_equal(copies(lambda x: x[:1] - x[2:], x), 0)


def test_an_exponential_that_underflows_is_seen():
    got = copies(lambda x: jnp.exp(x), jnp.asarray([-500.0, -jnp.inf]))
    assert got[0, 0] == 0 and (got[1:, 0] > 0).all()
    np.testing.assert_array_equal(got[:, 1], 0)


def test_branches_loops_and_their_derivatives():
    def function(x):
        total, _ = jax.lax.scan(lambda carry, row: (carry + jnp.tanh(row), None), jnp.zeros(2), x)
        return jax.lax.cond(total[0] > 0, lambda y: jnp.sum(y), lambda y: jnp.sum(2 * y), total)

    x = jnp.asarray([[0.3, -0.7], [1.5, 2.5]])
    np.testing.assert_allclose(copies(function, x), function(x), rtol=1e-5)
    np.testing.assert_allclose(copies(jax.grad(function), x)[0], jax.grad(function)(x), rtol=1e-6)

    def moved(x):
        amounts = jnp.asarray(roundings.AMOUNTS, jnp.float32)
        return jax.vmap(lambda amount: roundings.move(function, amount)(x), axis_name=roundings.COPY)(amounts)[0]

    np.testing.assert_allclose(jax.grad(moved)(x), jax.grad(function)(x), rtol=1e-6)
