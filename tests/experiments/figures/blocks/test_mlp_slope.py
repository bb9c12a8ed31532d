"""What the figure `mlp_slope` measures its networks by: Lipschitz constants, and bounds with them in the bracket."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from experiments.figures.blocks import mlp_slope
from rc_jax import attention, collapse, network


@pytest.fixture(scope="module")
def drawn():
    spec = dataclasses.replace(mlp_slope.PRESETS["smoke"], d_model=12, width=20, tokens=6, depth=3)
    stack = network.StackSpec(
        attention=attention.AttentionSpec(d_model=12, heads=2), depth=3, mlp=network.MLPSpec(width=20)
    )
    x = jax.random.normal(jax.random.key(1), (6, 12))
    return spec, stack, network.init(jax.random.key(0), stack), x


@pytest.fixture(scope="module")
def swept(drawn):
    """The sweep of one network with tanh MLPs."""
    spec, _, params, x = drawn
    return jax.jit(lambda: mlp_slope.sweep(spec, params, x, "tanh"))()


def test_composite_norms_against_numpy(drawn):
    mlp = drawn[2].mlp

    def norm(matrix):
        size = np.abs(np.asarray(matrix))
        return np.sqrt(size.sum(0).max() * size.sum(1).max())

    expected = [norm(a) * norm(b) for a, b in zip(mlp.weight_in, mlp.weight_out, strict=True)]
    np.testing.assert_allclose(mlp_slope.composite(mlp), expected, rtol=1e-5)


def test_steepest_slopes():
    z = np.linspace(-4, 4, 2_000_001)
    gelu = (1 + erf(z / np.sqrt(2))) / 2 + z * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    assert gelu.max() == pytest.approx(mlp_slope.STEEPEST["gelu"], abs=2e-6)
    assert mlp_slope.STEEPEST["relu"] == mlp_slope.STEEPEST["tanh"] == 1


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_mlps_spread_tokens_by_no_more_than_their_constant(drawn, activation):
    _, stack, params, x = drawn
    mlp = jax.tree.map(lambda w: w[0], params.mlp)
    limit = float(mlp_slope.spectral(params.mlp)[0]) * mlp_slope.STEEPEST[activation]
    shape = network.MLPSpec(width=20, activation=activation)
    for seed in range(20):
        near = x + 0.3 * jax.random.normal(jax.random.key(seed), x.shape)
        spec = dataclasses.replace(stack, mlp=shape)
        moved = network.stack.mlp(near, mlp, spec) - network.stack.mlp(x, mlp, spec)
        assert float(jnp.linalg.norm(moved)) <= limit * float(jnp.linalg.norm(near - x))


@pytest.mark.slow
def test_bounds_are_those_of_attention_with_the_constant_absorbed(drawn, swept):
    """A factor on λ multiplies the bracket of the tanh bound; networks stay below both bounds."""
    spec, stack, params, x = drawn
    pure, powers, n = dataclasses.replace(stack, mlp=None), (3 ** np.arange(4) - 1) / 2, len(x)
    constants, centred = mlp_slope.spectral(params.mlp), mlp_slope.composite(params.mlp) * (2 - 2 / n)

    def bounds(factor):
        tanh = collapse.tanh_depth_bound(network.scale_branches(params, factor * constants), x, pure)
        published = collapse.depth_bound(network.scale_branches(params, factor * centred), x, pure)
        # ‖res‖_F² ≤ (n − 1)/2 · diam², and ‖·‖_F ≤ √min(n, d) ‖·‖_{1,∞}.
        return tanh + 0.5 * np.log((n - 1) / 2), published + 0.5 * np.log(min(x.shape))

    tanh, published = jax.jit(lambda factors: jax.lax.map(bounds, factors))(jnp.asarray(spec.factors, "float32"))
    tanh, published = np.asarray(tanh), np.asarray(published)
    np.testing.assert_allclose(tanh, tanh[0] + powers * np.log(spec.factors / spec.factors[0])[:, None], rtol=1e-5)
    for bound in (tanh, published):
        assert not np.any((swept["log"] > bound)[:, 1:])  # a residual that is not known says nothing
    assert np.isfinite(swept["log"]).mean() > 0.5
    assert network.scale_branches(params, 2.0, attention=False).attention is params.attention


@pytest.mark.slow
def test_threshold_and_prediction(drawn, swept):
    """At the predicted factor the cube extrapolated from small factors has the residual it started with."""
    spec, stack = drawn[:2]
    logs = np.asarray(swept["log"], float)
    power = (3**stack.depth - 1) / 2
    extrapolated = logs[0, -1] + power * (float(swept["log_predicted"]) - np.log(spec.factors[0]))
    assert extrapolated == pytest.approx(logs[0, 0], abs=1e-2)
    threshold = np.exp(float(swept["log_threshold"]))
    collapsed = np.asarray(swept["collapsed"], bool)
    assert collapsed[spec.factors < threshold].all()
    assert not collapsed[spec.factors > threshold][0]


def test_what_is_not_known_has_not_collapsed_nor_kept_apart(drawn):
    spec, _, params, x = drawn
    broken = jax.jit(lambda: mlp_slope.sweep(spec, params, x.at[0, 0].set(jnp.nan), "tanh"))()
    assert np.isnan(broken["collapsed"]).all() and np.isnan(broken["log_threshold"])
