"""Networks whose growth is known, closed forms of one head, and rows that can fail."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures.later import _depth_growth, depth_growth
from experiments.ledger import judged
from tests.experiments import smoke_data

SPEC = dataclasses.replace(depth_growth.PRESETS["smoke"], depth=4)


def verdicts(data):
    return {claim.key: claim.verdict.value for claim in judged(depth_growth.ROWS, data)}


def test_aligned_branches_add_their_lengths(key):
    """Two branches a layer, each of them the normalised token: its deviation grows by 2."""
    variance = _depth_growth.network_by_layer(key, "aligned", SPEC)["variance"]
    deviations = np.exp(np.asarray(variance) / 2)
    np.testing.assert_allclose(np.diff(deviations), 2, atol=0.1)


@pytest.mark.parametrize(("power", "ratio"), [(1.0, 1.0), (3.0, 1.0)])
def test_octaves_of_a_power_are_equal(power, ratio):
    logs = power * np.log(np.arange(1, 65))
    assert depth_growth.octaves(logs) == pytest.approx(ratio)


def test_statistics_of_known_growth():
    layers = np.arange(1, 65)
    assert depth_growth.octaves(np.sqrt(layers)) == pytest.approx(2**0.5, rel=0.02)
    assert depth_growth.last_half(np.log(np.arange(1, 66) ** 2)) == pytest.approx(2, rel=0.05)
    assert depth_growth.halves(0.3 * np.arange(65)) == pytest.approx(1)
    value, error = depth_growth.jackknifed(np.array([[0.0, 1.0], [0.0, 3.0]]), lambda logs: logs[1])
    assert (value, error) == pytest.approx((2.0, 1.0))


def test_equal_tokens_leave_a_head_with_their_moments():
    np.testing.assert_allclose(_depth_growth.head_moments(1.0, 0.6, 100, 64), (1.0, 1.0))
    variance, covariance = _depth_growth.head_moments(0.0, 1e-9, 100, 64)
    np.testing.assert_allclose((variance, covariance), (0.01, 0.01))  # even rows


@pytest.mark.parametrize(
    ("name", "power", "row", "verdict"),
    [
        ("pre_variance", 0.3, "growth-at-least", "differs"),
        ("pre_variance", 1.0, "growth-at-least", "agrees"),
        ("scaled_variance", 1.2, "growth-scaled", "agrees"),
        ("scaled_variance", 0.2, "growth-scaled", "undecided"),  # a correlation of branches decides
        ("tanh_jacobian", 1.0, "growth-stretched", "differs"),
        ("pre_jacobian", 1.0, "growth-power", "agrees"),
        ("pre_gradient", -0.5, "growth-hyperbolic", "agrees"),
        ("pre_gradient", 0.5, "growth-hyperbolic", "undecided"),  # not tested where its source speaks
    ],
)
def test_rows_can_fail(name, power, row, verdict):
    data = smoke_data.load("depth_growth")
    layers = np.arange(data[name].shape[1]) + (1.0 if "variance" not in name else 1e-6)
    noise = 1e-6 * np.arange(len(data[name]))[:, None]
    data[name] = power * np.log(layers)[None] + noise
    assert verdicts(data)[row] == verdict


def test_growth_without_a_norm_is_exponential(key):
    deep = dataclasses.replace(SPEC, depth=12)
    logs = jnp.stack([
        _depth_growth.network_by_layer(each, "none", deep)["variance"] for each in jax.random.split(key, 4)
    ])  # fmt: skip
    assert depth_growth.halves(np.asarray(logs).mean(axis=0)) > 0.7


def test_notes_have_the_numbers_of_the_run():
    data = smoke_data.load("depth_growth")
    shape = data["post_gradient"].shape
    data["post_gradient"] = np.linspace(0, 0.7, shape[1]) + 0.001 * np.arange(shape[0])[:, None]
    data["scaled_correlation"] = np.full_like(data["scaled_correlation"], 0.25)
    notes = {claim.key: claim.note for claim in judged(depth_growth.ROWS, data)}
    left = shape[1] - shape[1] // 8
    assert (
        f"over the {left} layers that are left it changes by {0.7 * (left - 1) / (shape[1] - 1):.3f}"
        in notes["growth-post"]
    )
    assert "here it is 0.2500 ± 0.0000" in notes["growth-scaled"]


def test_the_scaled_network_alone_has_correlations(key):
    found = _depth_growth.network_by_layer(key, "scaled", SPEC)
    assert found["correlation"].shape == (SPEC.depth,)
    assert np.abs(np.asarray(found["correlation"])).max() < 1
    assert "correlation" not in _depth_growth.network_by_layer(key, "aligned", SPEC)
