"""Traced switches give the networks of the static ones."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, network
from rc_jax.network.switches import switched_apply


@pytest.mark.slow
def test_switches_are_those_of_the_network(key):
    layer = attention.AttentionSpec(d_model=4, heads=2)
    stack = network.StackSpec(attention=layer, depth=3, mlp=network.MLPSpec(width=8, activation="gelu"), norm="pre")
    params = network.init(key, stack, gain=1.3)
    x = jax.random.normal(jax.random.fold_in(key, 1), (5, 4))
    traced = jax.jit(lambda setting: switched_apply(params, x, stack, setting))
    for skip, mlp, norm in itertools.product((False, True), (False, True), ("pre", "post", None)):
        setting = {"skip": skip, "mlp": mlp, "pre": norm == "pre", "post": norm == "post"}
        spec = dataclasses.replace(stack, skip=skip, mlp=stack.mlp if mlp else None, norm=norm)
        output = traced(jax.tree.map(jnp.asarray, setting))
        np.testing.assert_allclose(output, network.apply(params, x, spec), rtol=1e-4, atol=1e-5)


def test_off_is_the_default(key):
    stack = network.StackSpec(attention=attention.AttentionSpec(d_model=4), depth=1)
    params = network.init(key, stack)
    x = jax.random.normal(jax.random.fold_in(key, 1), (5, 4))
    np.testing.assert_allclose(switched_apply(params, x, stack, {}), network.apply(params, x, stack), rtol=1e-5)
