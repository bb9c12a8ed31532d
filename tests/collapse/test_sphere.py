"""The rate at which close tokens on a sphere approach each other: the integral against random rotations."""

import math

import numpy as np
import pytest

from rc_jax.collapse.sphere import approach_rate


def test_rate_against_random_rotations():
    """The derivative of x → (x + aOx̄)/‖·‖ at fixed x̄, by hand: project and divide. Rotations come from QR."""
    rng = np.random.default_rng(1)
    for strength in (0.1, 0.7, 1.0, 3.0):
        q, r = np.linalg.qr(rng.normal(size=(40_000, 3, 3)))
        rotation = q * np.sign(np.einsum("nii->ni", r))[:, None]
        angle = rng.uniform(0, 2 * np.pi, len(rotation))
        tangent = np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
        out = np.array([0, 0, 1.0]) + strength * rotation[:, :, 2]
        size = np.linalg.norm(out, axis=1)
        along = (tangent * out).sum(axis=1) / size
        logs = 0.5 * np.log(1 - along**2) - np.log(size)
        z = (logs.mean() - approach_rate(strength)) / (logs.std() / math.sqrt(len(logs)))
        assert abs(z) < 5


def test_rate_at_equal_and_at_small_strength():
    equal, small = approach_rate(np.array([1.0, 0.01]))
    assert abs(equal - (1 - 2 * math.log(2))) < 1e-10
    assert abs(small / (-(0.01**2) / 3) - 1) < 1e-3


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    with pytest.raises(ValueError, match="`strength` must be > 0, got 0"):
        approach_rate(0.0)
