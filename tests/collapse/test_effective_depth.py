"""The closed form of the effective depth against networks and against its recursion, and where curves cross."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import digamma

from rc_jax import attention, collapse, network
from rc_jax.collapse.effective_depth import crossing, log_relative_residuals


def test_form_is_its_recursion_at_a_gain_and_a_scale():
    """u₁ = g²√((e^{σ²} − 1)/n) and u_(l+1) = m g⁴ u_l³/√k_l, written out as numbers; the mean token is g^{2l}/√n."""
    n, d, heads, g, m = 12, 24, 3, 0.8, 1.3
    u = [1.0, g**2 * np.sqrt((np.exp((m * g**2) ** 2) - 1) / n)]
    u.append(m * g**4 * u[1] ** 3 * np.sqrt(2 / n + 3 / d))
    u.append(m * g**4 * u[2] ** 3 * np.exp(digamma(heads / 2) / 2) / np.sqrt(heads / 2))
    expected = [np.log(size * np.sqrt(n) * g ** (-2 * layer)) for layer, size in enumerate(u)]
    got = log_relative_residuals(tokens=n, d_model=d, heads=heads, depth=3, gain=g, multiple=m)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.slow
def test_form_is_near_networks(key):
    """The first layers of wide networks: means over initialisations, to a fifth of a nat times 3^(l−1)."""
    n, d, heads = 32, 64, 4
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=d, heads=heads), depth=3)

    def relative(key):
        x = jax.random.normal(jax.random.fold_in(key, 0), (n, d))
        layers = network.random_layers(jax.random.fold_in(key, 1), spec)
        means = jnp.mean(network.hidden_states(layers, x, spec), axis=1)
        return collapse.log_residuals(layers, x, spec) - jnp.log(jnp.linalg.norm(means, axis=1)) - np.log(n) / 2

    measured = jax.jit(jax.vmap(relative))(jax.random.split(key, 64)).mean(axis=0)
    form = log_relative_residuals(tokens=n, d_model=d, heads=heads, depth=3)
    assert (np.abs(measured - form)[1:] < 0.2 * 3.0 ** np.arange(3)).all()


def test_a_curve_that_starts_below_crosses_at_layer_0():
    assert float(crossing(jnp.array([-3.0, -4.0, -9.0]), -2.0)) == 0
    assert float(crossing(jnp.array([-3.0, -3.0, jnp.nan]), -2.0)) == 0


def test_crossing_is_not_known_where_a_number_before_it_is_not():
    falling = jnp.array([0.0, -1.0, -3.0, -9.0])
    assert float(crossing(falling, -2.0)) == 1.5
    assert float(crossing(falling, -10.0)) == np.inf
    assert np.isnan(crossing(falling.at[2].set(jnp.nan), -2.0))
    assert np.isnan(crossing(falling.at[2].set(jnp.nan), -10.0))
    assert float(crossing(falling.at[3].set(jnp.nan), -2.0)) == 1.5  # known before


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    with pytest.raises(ValueError, match="`tokens` must be"):
        log_relative_residuals(tokens=1, d_model=4, heads=1, depth=2)
    with pytest.raises(ValueError, match="`gain` must be > 0, got 0"):
        log_relative_residuals(tokens=4, d_model=4, heads=1, depth=2, gain=0.0)
