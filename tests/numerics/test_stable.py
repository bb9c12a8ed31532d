"""Elementary functions against many digits, and their derivatives."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax._numerics import stable


@pytest.mark.parametrize("t", [1e-30, 1e-3, 0.4999, 0.5, 0.999, 1.0, 50.0, 1e4])
def test_log_expm1_ratio(dtype, t):
    t = jnp.asarray(t, dtype)
    with mp.workdps(80):
        exact = mp.mpf(float(t))
        expected = float(mp.log(mp.expm1(exact) / exact))
        slope = float(1 / -mp.expm1(-exact) - 1 / exact)
    eps = float(jnp.finfo(dtype).eps)
    assert float(stable.log_expm1_ratio(t)) == pytest.approx(expected, rel=4 * eps, abs=4 * eps)
    assert float(jax.grad(stable.log_expm1_ratio)(t)) == pytest.approx(slope, rel=8 * eps)
    zero = jnp.zeros((), dtype)
    assert stable.log_expm1_ratio(zero) == 0 and jax.grad(stable.log_expm1_ratio)(zero) == 0.5
    assert jax.grad(jax.grad(stable.log_expm1_ratio))(zero) == pytest.approx(1 / 12, rel=8 * eps)


def test_divide_by_largest(dtype):
    x = jnp.asarray([[0.0, 0.0], [3e30, -4e30]], dtype)
    unit, largest = stable.divide_by_largest(x, axis=1)
    np.testing.assert_allclose(unit, [[0, 0], [0.75, -1]], rtol=1e-6)
    np.testing.assert_allclose(largest, [[0], [4e30]], rtol=1e-6)


@pytest.mark.parametrize("t", [-30.0, -0.5, -0.4999, -1e-3, -1e-30, 0.0, 1e-7, 0.1, 0.4999, 0.5, 20.0])
def test_expm1_ratio_and_its_first_two_derivatives(dtype, t):
    """Against Σ t^(k−1)/k!, whose terms are differentiated one by one; the second derivative is of the series' side."""
    t = jnp.asarray(t, dtype)
    with mp.workdps(60):
        exact = [
            mp.nsum(lambda k, d=d: mp.mpf(float(t)) ** (k - d) * mp.ff(k, d) / mp.factorial(k + 1), [d, 200])
            for d in range(3)
        ]
    eps = float(jnp.finfo(dtype).eps)
    first, second = jax.grad(stable.expm1_ratio), jax.grad(jax.grad(stable.expm1_ratio))
    assert float(stable.expm1_ratio(t)) == pytest.approx(float(exact[0]), rel=2 * eps)
    assert float(first(t)) == pytest.approx(float(exact[1]), rel=8 * eps)
    if abs(t) < 0.5:
        assert float(second(t)) == pytest.approx(float(exact[2]), rel=16 * eps)
