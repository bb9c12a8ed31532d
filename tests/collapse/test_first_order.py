"""When one more logit, sigmoid weights and a gate keep a difference of first order."""

import jax
import numpy as np
import pytest

from rc_jax import attention, collapse, network

ORDERS = {"plus one": (1, 3, 3), "sigmoid": (1, 3, 3), "gate": (1, 1, 3)}
OPTIONS = {
    "plus one": {"weights": "softmax_plus_one"},
    "sigmoid": {"weights": "sigmoid"},
    "gate": {"output_gate": "headwise"},
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_first_order_needs_a_mean_value_and_by_weights_a_mean_key(kind, key, x64):
    """Tokens of mean 0, so that biases alone are the mean key and the mean value."""
    layer = attention.AttentionSpec(d_model=8, heads=2, bias=True, **OPTIONS[kind])
    stack = network.StackSpec(attention=layer, depth=1)
    params = network.init(jax.random.fold_in(key, 0), stack, bias_std=0.3, dtype="float64")
    x = jax.random.normal(jax.random.fold_in(key, 1), (6, 8), "float64")
    x = x - x.mean(axis=0, keepdims=True)
    for order, zero in zip(ORDERS[kind], ((), ("key_bias",), ("value_bias",)), strict=True):
        changed = params.attention._replace(**{name: 0 * getattr(params.attention, name) for name in zero})
        small, smaller = (
            collapse.log_residuals(params._replace(attention=changed), size * x, stack)[-1]
            for size in (2.0**-20, 2.0**-30)
        )
        assert float(small - smaller) / (10 * np.log(2)) == pytest.approx(order, abs=0.01)
