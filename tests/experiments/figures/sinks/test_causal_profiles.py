"""The rollout against powers of matrices, gradients against their moments, and a layer's even weights."""

import dataclasses

import numpy as np
import pytest

from experiments.figures.sinks import causal_profiles
from experiments.ledger import judged

SPEC = dataclasses.replace(causal_profiles.PRESETS["smoke"], tokens=12, depths=(1, 3, 7))


@pytest.fixture(scope="module")
def data():
    import jax

    with jax.enable_x64(True):
        return causal_profiles.compute(SPEC)


def test_rollout_is_a_power_of_the_mixed_matrix(data):
    even = np.tril(np.ones((12, 12)))
    even /= even.sum(axis=1, keepdims=True)
    mixed = (np.eye(12) + even) / 2
    for depth, row in zip(data["depths"], data["rollout"], strict=True):
        np.testing.assert_allclose(row, np.linalg.matrix_power(mixed, int(depth))[-1], rtol=1e-12)
        assert row[-1] == pytest.approx((0.5 + 0.5 / 12) ** depth, rel=1e-12)
    assert data["layer_gap"] < 1e-12


def test_gradients_are_roots_of_sums_of_squares(data):
    place = np.arange(1, 13.0)
    for share, row in zip(data["shares"], data["gradient"], strict=True):
        sums = np.array([np.sum(((1 - share) / place[j:] + share * (j == 0)) ** 2) for j in range(12)])
        np.testing.assert_allclose(row, np.sqrt(sums), rtol=1e-12)
    long = np.sqrt(np.sum(np.arange(1, 10**6, dtype=float) ** -2))
    assert long == pytest.approx(np.pi / 6**0.5, abs=1e-6)


def test_rows_can_fail(data):
    verdicts = {claim.key: str(claim.verdict) for claim in judged(causal_profiles.ROWS, data)}
    assert verdicts["gradient-sink"] == "agrees"
    flat = {"gradient": np.ones_like(data["gradient"]), "rollout": np.ones_like(data["rollout"])}
    flat["rollout"][:, 0] = 0.1
    changed = {claim.key: str(claim.verdict) for claim in judged(causal_profiles.ROWS, data | flat)}
    assert changed["rollout-u"] == "differs"
    assert changed["gradient-sink"] == "differs"
    assert changed["gradient-sink-size"] == "failed"
