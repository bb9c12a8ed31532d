"""The size of softmax's Jacobian, against the matrix itself in arbitrary precision."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rc_jax import scale
from tests.oracles import scale as oracle


@pytest.mark.parametrize("name", oracle.SCORES)
@pytest.mark.parametrize("alpha", [1e-3, 0.5, 2.0, 8.0])
def test_it_is_half_the_sum_of_the_jacobian(dtype, name, alpha):
    scores = jnp.asarray(oracle.SCORES[name], dtype)
    exact = oracle.gradient_norm(scores, alpha)
    conditioning = 8 + float(alpha) * float(jnp.ptp(scores))
    eps = float(jnp.finfo(dtype).eps)
    got, log = scale.gradient_norm(scores, alpha), scale.log_gradient_norm(scores, alpha)
    assert got.dtype == log.dtype == dtype
    assert abs(float(mp.mpf(float(got)) / exact) - 1) < 4 * conditioning * eps
    assert abs(float(log) - float(mp.log(exact))) < 8 * conditioning * eps


def test_concentrated_rows_keep_their_digits(dtype):
    """1 − Σp² = 2e^{−α}/(1 + e^{−α})² for two scores; 1 − Σp² formed plainly would be zero."""
    scores = jnp.asarray([1.0, 0.0], dtype)
    for alpha in (20.0, 60.0):
        assert scale.gradient_norm(scores, alpha) == pytest.approx(2 * alpha * np.exp(-alpha), rel=1e-5)
    assert scale.log_gradient_norm(scores, 1e4) == pytest.approx(np.log(2e4) - 1e4, rel=1e-6)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(-8, 8), min_size=2, max_size=6), st.integers(-64, 64), st.sampled_from([0.5, 1.0, 4.0]))
def test_adding_a_constant_changes_nothing(values, shift, alpha):
    """Neither the norm nor the entropies, which are at most log n."""
    scores = jnp.asarray(values, jnp.float32)
    moved = scores + jnp.float32(shift)
    for function in PLAIN:
        assert function(scores, alpha) == function(moved, alpha)
    for entropy in (scale.softmax_entropy, scale.renyi_entropy):
        assert entropy(scores, alpha) <= np.log(len(values)) + 1e-6


PLAIN = {
    scale.gradient_norm: lambda p, alpha: alpha * (1 - (p * p).sum()),
    scale.log_gradient_norm: lambda p, alpha: jnp.log(alpha * (1 - (p * p).sum())),
    scale.softmax_entropy: lambda p, alpha: -(p * jnp.log(p)).sum(),
    scale.renyi_entropy: lambda p, alpha: -jnp.log((p * p).sum()),
}


@pytest.mark.parametrize(
    "name", ["tie", *(pytest.param(name, marks=pytest.mark.slow) for name in ("equal", "two", "random", "peaked"))]
)
def test_derivatives_match_the_plain_formula(x64, name):
    """Relative to the norm itself for its logarithm, whose derivative cancels in the plain formula."""
    scores = jnp.asarray(oracle.SCORES[name])
    size = scale.gradient_norm(scores, 0.7)
    for ours, plain in PLAIN.items():
        allowed = 1e-13 / (size if ours is scale.log_gradient_norm else 1)
        for argument in (0, 1):
            expected = jax.grad(lambda s, a, plain=plain: plain(jax.nn.softmax(a * s), a), argument)(scores, 0.7)
            np.testing.assert_allclose(jax.grad(ours, argument)(scores, 0.7), expected, atol=allowed)
