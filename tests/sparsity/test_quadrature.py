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


def test_unresolved_kernels_are_not_a_number():
    assert np.isnan(sparsity.from_kernel(_relu_squared, -100.0, 1.0, kinks=(0.0,)))
    assert np.isnan(sparsity.from_kernel(jnp.exp, 0.0, 10.0))  # e^{200} does not fit float32


def test_bad_input():
    with pytest.raises(TypeError, match="`f` must be a function"):
        sparsity.from_kernel(3, 0.0, 1.0)
    with pytest.raises(ValueError, match="`gamma` must be > 0"):
        sparsity.from_kernel(jnp.exp, 0.0, 0.0)
    with pytest.raises(ValueError, match="`f` must be elementwise"):
        sparsity.from_kernel(jnp.sum, 0.0, 1.0)
    with pytest.raises(ValueError, match="`kinks` must be finite"):
        sparsity.from_kernel(jnp.exp, 0.0, 1.0, kinks=(float("nan"),))
