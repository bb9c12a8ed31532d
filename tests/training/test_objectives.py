"""Cross-entropy and accuracy against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from rc_jax.training import accuracy, cross_entropy


def test_against_scipy():
    rng = np.random.default_rng(0)
    logits, labels = 40 * rng.normal(size=(5, 7, 3)), rng.integers(0, 3, (5, 7))
    rows = log_softmax(logits, axis=-1)
    expected = -np.mean([rows[i, j, labels[i, j]] for i in range(5) for j in range(7)])
    given = jnp.asarray(logits, jnp.float32), jnp.asarray(labels)
    np.testing.assert_allclose(cross_entropy(*given), expected, rtol=1e-5)
    np.testing.assert_allclose(accuracy(*given), np.mean(logits.argmax(axis=-1) == labels), rtol=1e-6)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("fn", [cross_entropy, accuracy])
def test_bad_input(fn):
    with pytest.raises(ValueError, match="without the last axis"):
        fn(jnp.zeros((4, 3)), jnp.zeros(3, int))
    with pytest.raises(TypeError, match="`labels` must be an array of integers"):
        fn(jnp.zeros((4, 3)), jnp.zeros(4))
    with pytest.raises(TypeError, match="`logits`"):
        fn(jnp.zeros((4, 3), int), jnp.zeros(4, int))
    with pytest.raises(TypeError, match="`logits`"):
        fn([[0.0, 1.0]], jnp.zeros(1, int))
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match=f"0 … 2, got {wrong}"):
            fn(jnp.zeros((1, 3)), jnp.array([wrong]))


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint32, jnp.int32])
def test_an_unknown_label_outside_the_logits_makes_nan(dtype):
    """Also where the type of the labels does not hold the number of logits."""
    logits, inside = jax.random.normal(jax.random.key(0), (3, 200)), jnp.array([0, 100, 127], dtype)
    by_hand = -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(3), inside.astype(int)])
    with_slope = jax.jit(jax.value_and_grad(cross_entropy))
    value, slope = with_slope(logits, inside)
    np.testing.assert_allclose(value, by_hand, rtol=1e-6)
    assert np.isfinite(slope).all()
    assert jax.jit(accuracy)(logits, inside) == jnp.mean(jnp.argmax(logits, axis=-1) == inside.astype(int))
    for wrong in (-1, -4, 5, 127, 300):
        if not jnp.iinfo(dtype).min <= wrong <= jnp.iinfo(dtype).max:
            continue
        few, labels = logits[:, :5], jnp.array([0, 4, wrong], dtype)
        value, slope = with_slope(few, labels)
        assert np.isnan(value), wrong
        assert np.isnan(slope[2]).all() and np.isfinite(slope[:2]).all(), wrong
        assert np.isnan(jax.jit(accuracy)(few, labels)), wrong


def test_logits_that_are_no_numbers_are_no_answers():
    logits = jnp.array([[jnp.nan, 1.0], [0.0, 1.0]])
    assert np.isnan(accuracy(logits, jnp.array([0, 1]))) and accuracy(logits[1:], jnp.array([1])) == 1
    assert np.isnan(accuracy(logits[:, ::-1], jnp.array([0, 1])))
