"""The networks behind the figure `norm_values`: what they are said to be, and that the equilibria are at rest."""

import dataclasses

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from experiments.figures.blocks import _norm_values as nets
from experiments.figures.blocks import norm_values
from rc_jax import attention, collapse, network
from tests.experiments import smoke_data


def moved(net):
    return np.abs(np.asarray(network.hidden_states(net.params, net.x, net.spec)) - np.asarray(net.x)).max()


@pytest.mark.slow
def test_values_are_the_product_of_value_and_output(key):
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=6), depth=2)
    for matrices in nets.values(key, 2, 6, "float32").values():
        weights = nets.with_values(network.init(key, spec), matrices).attention
        np.testing.assert_allclose(weights.value[:, 0] @ weights.output[:, 0], matrices, atol=1e-6)


def test_the_basis_is_orthonormal_and_centred():
    basis = nets.centred_basis(7)
    np.testing.assert_allclose(basis @ basis.T, np.eye(6), atol=1e-15)
    np.testing.assert_allclose(basis.sum(axis=1), 0, atol=1e-15)


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("strength", [0.3, 1.0, 5.0])
def test_cross_polytope_of_any_rank_is_at_rest(x64, rank, strength):
    net = nets.cross_polytope(rank, 6, 2, strength, "float64")
    assert np.linalg.matrix_rank(np.asarray(net.x)) == rank
    assert moved(net) < 1e-11


@pytest.mark.slow
def test_cross_polytope_without_layer_norm_shrinks_by_the_cube_and_keeps_its_shape(x64):
    net = nets.cross_polytope(3, 4, 3, 1.0, "float64")
    spec = dataclasses.replace(net.spec, norm=None)
    logs = np.asarray(collapse.log_residuals(net.params, net.x, spec))
    assert np.diff(logs)[-1] < -5
    states = np.asarray(network.hidden_states(net.params, net.x, spec))
    sizes = np.linalg.norm(states, axis=(1, 2))
    np.testing.assert_allclose(
        states / sizes[:, None, None], np.broadcast_to(states[0] / sizes[0], states.shape), atol=1e-9
    )
    np.testing.assert_allclose(logs, np.log(sizes), atol=1e-9)


@pytest.mark.parametrize("slope", [-2.0, -1.2, 3.0])
def test_shear_is_at_rest_where_the_proof_says(x64, slope):
    height = -1 / slope
    angle = np.arctan2(height, -np.sqrt(1 - height**2))
    net = nets.shear(jnp.asarray([angle]), slope, 60, "float64")
    assert np.linalg.matrix_rank(np.asarray(net.x)) == 2
    assert moved(net) < 1e-10
    # It attracts: a start nearby ends there.
    near = nets.shear(jnp.asarray([angle + 0.2]), slope, 60, "float64")
    states = np.asarray(network.hidden_states(near.params, near.x, near.spec))
    np.testing.assert_allclose(states[-1], net.x, atol=1e-8)


def test_shear_follows_the_map_of_the_proof(x64):
    """The cotangent of the second token's angle: t → t + c + √(1 + t²) above, t → t − c + √(1 + t²) below."""
    for angle in (0.3, 1.0, 2.5, -0.4, -2.0):
        net = nets.shear(jnp.asarray([angle]), -2.0, 1, "float64")
        after = np.asarray(network.apply(net.params, net.x, net.spec)) @ nets.centred_basis(3).T
        t = np.cos(angle) / abs(np.sin(angle))
        wanted = t - 2 * np.sign(angle) + np.sqrt(1 + t**2)
        np.testing.assert_allclose(after[1, 0] / abs(after[1, 1]), wanted, rtol=1e-9)


def test_without_layer_norm_the_shear_halves_only_in_the_limit():
    """The map of differences is a Jordan block: the fall from every start, and its mean over a circle, are known.

    From the angle θ the difference after k layers is in proportion to 2^−k (k + c, 1/2) with c = tan(θ/2)/2. The
    number c is Cauchy, so the mean of log|k + c + i/2| is that of its harmonic extension, log|k + i|.
    """
    # whole tokens in arithmetic of 40 digits; the length of the tokens adds an order of k 2^−k
    with mpmath.workdps(40):
        values, attend = mpmath.matrix([[1, 0], [-2, 1]]), mpmath.matrix([[1, 0], [0.5, 0.5]])
        for angle in (0.3, 2.0, 3.1, 3.2, 5.0):
            x, logs = mpmath.matrix([[1, 0], [mpmath.cos(angle), mpmath.sin(angle)]]), []
            for _ in range(41):
                residual = mpmath.hypot(x[0, 0] - x[1, 0], x[0, 1] - x[1, 1]) / mpmath.sqrt(2)
                logs.append(mpmath.log(residual / mpmath.sqrt(sum(entry**2 for entry in x))))
                x = attend * x * values
            assert abs(float(logs[40] - logs[39]) - norm_values.shear_fall(angle, 40)) < 40 * 2.0**-39
    angles = (np.arange(2_000_000) + 0.5) * np.pi / 1e6
    for layer in (5, 40):
        start = np.stack([np.cos(angles) - 1, np.sin(angles)])
        sizes = [np.hypot(start[0] - 2 * k * start[1], start[1]) * 2.0**-k for k in (layer - 1, layer)]
        fall = np.mean(np.log(sizes[1] / sizes[0]))
        assert fall == pytest.approx(-np.log(2) + 0.5 * np.log((layer**2 + 1) / ((layer - 1) ** 2 + 1)), abs=1e-5)
        assert fall == pytest.approx(norm_values.shear_fall(angles, layer).mean(), abs=1e-9)
    data = smoke_data.load("norm_values")
    assert data["fall"] == pytest.approx(fall, abs=1e-5)
    rows = {row.key: row for row in norm_values.ROWS}
    same = norm_values.shear_fall(angles, 40) + np.log(2) - np.log(40 / 39)  # a fall that no start changes
    for key, name, bad in (
        ("norm-shear-off", "fall_error", np.median(np.abs(same))),
        ("norm-shear-held", "held", 5 / 12 + 3 / 4096),
    ):
        assert [rows[key].judge(each).verdict for each in (data, data | {name: np.asarray(bad)})] == ["held", "failed"]


@pytest.mark.slow
def test_five_starts_of_twelve_are_held_apart_with_layer_norm_and_none_without(key):
    angles = (jnp.arange(360.0) + 0.5) * np.float32(np.pi / 180)

    def relative(angle, norm):
        net = nets.shear(angle[None], -2.0, 60, "float32")
        spec = dataclasses.replace(net.spec, norm=norm)
        log_norm = jnp.log(collapse.frobenius(network.apply(net.params, net.x, spec)))
        return collapse.log_residuals(net.params, net.x, spec)[-1] - log_norm

    held = np.asarray(jax.vmap(lambda angle: relative(angle, "post"))(angles)) > np.log(0.1)
    assert held.sum() == 150
    assert held[30:180].all()
    assert np.asarray(jax.vmap(lambda angle: relative(angle, None))(angles)).max() < -30
