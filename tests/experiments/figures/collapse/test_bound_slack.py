"""The steps that the figure `bound_slack` tests as they are printed, on cases worked out by hand and in numpy."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.figures.collapse import bound_slack
from rc_jax.collapse import audit


def test_two_opposite_tokens_contradict_the_entrywise_bound(x64):
    """Both sides by hand: p̃ᵀR = 0 makes the right side 0, and tokens still move."""
    rest = jnp.array([[1.0], [-1.0]])
    step = bound_slack._entrywise(jnp.zeros((1, 2)), 0.1 * rest @ rest.T, rest, jnp.eye(1))
    np.testing.assert_allclose(step.right, 0, atol=1e-15)
    np.testing.assert_allclose(step.left, np.tanh(0.1), rtol=1e-12)
    assert bound_slack._violated(step).all()


def test_the_entrywise_bound_holds_with_magnitudes(x64, key):
    for seed in range(50):
        weight, value, x = jax.random.normal(jax.random.fold_in(key, seed), (3, 4, 4))
        base, perturbation, rest = audit.split(0.03 * weight, x)
        step = bound_slack._entrywise(base, perturbation, rest, value)
        move = jnp.max(perturbation, axis=1, keepdims=True) - jnp.min(perturbation, axis=1, keepdims=True)
        assert float(move.max()) < audit.LEMMA_LIMIT
        bound = 2 * move * (jax.nn.softmax(base, axis=-1) @ jnp.abs(rest) @ jnp.abs(value))
        assert (step.left <= bound * (1 + 1e-12)).all()
