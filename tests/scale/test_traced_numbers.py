"""Numbers outside a domain where nobody can look, inside `jit`: NaN, not what the formula happens to give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import scale, sparsity
from rc_jax.scale import equicorrelated

ROW = jnp.asarray([0.3, -0.2, 1.0, 0.9])

OUTSIDE = {
    "annealed_entropy, α": (lambda x: scale.annealed_entropy(x, 20.0), -0.3),
    "annealed_objective, n": (lambda x: scale.annealed_objective(1.3, x), 0.5),
    "annealed_objective, d": (lambda x: scale.annealed_objective(1.3, 20.0, x), 2.9),
    "optimal_scale, d": (lambda x: scale.optimal_scale(50.0, x), 2.9),
    "capped_scale, n": (lambda x: scale.capped_scale(x, 2.0), 1.5),
    "gradient_norm, α": (lambda x: scale.gradient_norm(ROW, x), -2.0),
    "softmax_entropy, α": (lambda x: scale.softmax_entropy(ROW, x), 0.0),
    "critical_gamma, ρ": (equicorrelated.critical_gamma, 1.5),
    "similarity_limit, γ": (lambda x: equicorrelated.similarity_limit(x, 0.3), -0.3),
    "renyi_sparsity, q": (lambda x: sparsity.renyi_sparsity(ROW, x), -1.0),
    "differential, γ": (lambda x: sparsity.differential(x, 0.4), -0.3),
    "nonnegative_linear, μ": (lambda x: sparsity.nonnegative_linear(jnp.abs(ROW), x * ROW, jnp.eye(4)), -1.0),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_traced_number_outside_is_nan(name):
    function, outside = OUTSIDE[name]
    with pytest.raises(ValueError, match="must"):
        function(jnp.float32(outside))
    assert np.isnan(jax.jit(function)(jnp.float32(outside)))


def test_masked_arrays_are_refused():
    with pytest.raises(TypeError, match=r"`a` must be .*, got a masked array"):
        sparsity.sparsity(np.ma.masked_array(np.ones(3, np.float32), mask=[False, True, False]))
