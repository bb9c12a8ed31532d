"""The gradient of softmax's cross-entropy: many digits, autodiff, and what a saturated softmax lets through."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import scale
from tests.oracles import scale as oracle


def many_digits(scores, y, alpha):
    """α(p Σy − y) in arbitrary precision, as plain floats at the end."""
    with mp.workdps(60):
        y = [mp.mpf(float(each)) for each in y]
        pairs = zip(oracle.probabilities(scores, alpha), y, strict=True)
        return np.array([float(mp.mpf(float(alpha)) * (p * mp.fsum(y) - each)) for p, each in pairs])


@pytest.mark.parametrize("name", ["two", "tie", "peaked"])
def test_in_many_digits_right_or_wrong(dtype, name):
    """Indices and probabilities; also where p is nearly y, so that p − y formed plainly would have no digit left."""
    scores = jnp.asarray(oracle.SCORES[name], dtype)
    n = scores.size
    ramp = np.arange(1, n + 1)[::-1] / (n * (n + 1) / 2)
    for alpha in (0.5, 8.0):
        loose = 8 * (8 + alpha * float(jnp.ptp(scores))) * float(jnp.finfo(dtype).eps)
        for label in (0, n - 1):
            got = scale.cross_entropy_gradient(scores, label, alpha)
            assert got.dtype == dtype
            np.testing.assert_allclose(got, many_digits(scores, np.eye(n)[label], alpha), rtol=loose)
            np.testing.assert_array_equal(
                got, scale.cross_entropy_gradient(scores, jnp.eye(n, dtype=dtype)[label], alpha)
            )
        y = jnp.asarray(ramp, dtype)
        exact = many_digits(scores, y, alpha)
        np.testing.assert_allclose(scale.cross_entropy_gradient(scores, y, alpha), exact, atol=loose * alpha)


@pytest.mark.slow
def test_it_is_the_gradient_that_jax_finds(x64):
    """Batches, scales that broadcast, and the next derivative: α² (diag p − ppᵀ)."""
    scores = jax.random.normal(jax.random.key(0), (3, 1, 5))
    labels, alpha = jnp.asarray([[0], [4], [2]]), jnp.asarray([0.5, 3.0])

    def loss(s, label, a):
        return -jax.nn.log_softmax(a * s)[label]

    each = jax.vmap(jax.vmap(jax.grad(loss), (None, None, 0)), (0, 0, None))
    got = scale.cross_entropy_gradient(scores, labels, alpha)
    np.testing.assert_allclose(got, each(scores[:, 0], labels[:, 0], alpha), rtol=1e-13, atol=1e-15)
    hessian = jax.jacobian(lambda s: scale.cross_entropy_gradient(s, 2, 3.0))(scores[0, 0])
    np.testing.assert_allclose(hessian, jax.hessian(loss)(scores[0, 0], 2, 3.0), atol=1e-13)


def test_a_wrong_saturated_softmax_has_a_full_gradient_and_a_squared_error_none(x64):
    """Σ|p − y| → 2 on a wrong key and 2(1 − p) on the right one; ½|p − y|² sends J(p − y), which vanishes."""
    s = jnp.asarray([1.0, 0.0, -0.5])

    def squared(s, label):
        return 0.5 * jnp.sum((jax.nn.softmax(40.0 * s) - jax.nn.one_hot(label, 3)) ** 2)

    wrong, right = (scale.cross_entropy_gradient(s, label, 40.0) / 40 for label in (1, 0))
    assert jnp.abs(wrong).sum() == pytest.approx(2, rel=1e-15)
    assert jnp.abs(right).sum() == pytest.approx(2 * np.exp(-40), rel=1e-8)
    assert jnp.abs(jax.grad(squared)(s, 1)).sum() < 1e-15


def test_traced_labels_outside_give_nan():
    gradient = jax.jit(scale.cross_entropy_gradient)(jnp.zeros((2, 3)), jnp.asarray([1, 3]))
    np.testing.assert_allclose(gradient[0], [1 / 3, -2 / 3, 1 / 3], rtol=1e-6)
    assert np.isnan(gradient[1]).all()


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.ones(3), 3), ValueError, "`labels` must be >= 0 and <= 2, got 3"),
        ((np.ones(3), np.zeros(2, int)), ValueError, r"`labels` must be integers of shape \(\), got"),
        ((np.ones(3), np.ones(2)), ValueError, r"`labels` must be probabilities of shape \(3,\), got"),
        ((np.ones(3), np.ones(3)), ValueError, "`labels` must add up to 1 in every row of probabilities, got 3"),
        ((np.ones(3), np.array([1.5, -0.5, 0])), ValueError, "`labels` must be >= 0 and <= 1"),
        ((np.ones(3), 1.0), TypeError, "`labels` must be integers or a floating-point array"),
        ((np.ones(3), "cat"), TypeError, "`labels` must be a real number"),
        ((np.ones(3), 1, 0.0), ValueError, "`alpha` must be > 0, got 0"),
    ],
)
def test_bad_input_is_refused_by_name(arguments, error, message):
    with pytest.raises(error, match=message):
        scale.cross_entropy_gradient(*arguments)
