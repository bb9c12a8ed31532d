"""Powers of the cosine similarity: many digits, limits, and keys drawn in a few dimensions."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import sparsity
from tests.oracles import sparsity as oracle


def exact(power, dim):
    with mp.workdps(50):
        m, d = mp.mpf(power), mp.mpf(dim)

        def moment(m):
            return mp.gamma((m + 1) / 2) * mp.gamma(d / 2) / (mp.sqrt(mp.pi) * mp.gamma((m + d) / 2))

        return float(moment(m) / mp.sqrt(moment(2 * m)))


def test_against_many_digits(dtype):
    power, dim = np.asarray([0.5, 1, 2, 6, 20], dtype)[:, None], np.asarray([1, 2, 3, 7, 64, 1e4], dtype)
    measured = sparsity.cosine_similarity_power(power, dim)
    assert measured.dtype == dtype
    true = [[exact(float(m), float(d)) for d in dim] for m in power[:, 0]]
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(measured, true, rtol=200 * eps)  # log Γ(20) is 39
    np.testing.assert_allclose(measured[:, 0], 1, rtol=200 * eps)  # in one dimension all cosines are ±1


def test_high_powers_keep_their_digits():
    """Γ(m) of m = 10⁶ has no digits left in single precision; its quotients do."""
    for power, dim in ((1e3, 1), (1e4, 2), (1e6, 3), (100, 20), (150, 1e6), (31.5, 31.5)):
        value = sparsity.cosine_similarity_power(np.float32(power), np.float32(dim))
        assert abs(float(value) / exact(power, dim) - 1) < 2e-5, (power, dim)


@pytest.mark.slow
def test_many_dimensions_are_gaussian_logits(x64):
    for power in (1, 2, 6):
        kernel = sparsity.power(power)
        gaussian = sparsity.from_kernel(kernel.f, 0.0, 1.0, kinks=(0.0,))
        np.testing.assert_allclose(sparsity.cosine_similarity_power(power, 1e12), gaussian, rtol=1e-10)
        falling = sparsity.cosine_similarity_power(power, 2.0 ** np.arange(20))
        assert np.all(np.diff(falling) < 0) and falling[-1] > gaussian
    slopes = jax.grad(sparsity.cosine_similarity_power, (0, 1))(6.0, 64.0)
    assert np.all(np.isfinite(slopes)) and all(slope < 0 for slope in slopes)


@pytest.mark.parametrize("deviation", [0.3, 5.0])
def test_drawn_keys_of_any_size(deviation):
    random = np.random.default_rng(2)
    q, keys = random.normal(size=5), deviation * random.normal(size=(200_000, 5))
    cosines = keys @ q / np.linalg.norm(q) / np.linalg.norm(keys, axis=1)
    for power in (1, 6):
        value, error = oracle.ratio_estimate(cosines**power)
        assert abs(value - float(sparsity.cosine_similarity_power(power, 5))) < 5 * error
