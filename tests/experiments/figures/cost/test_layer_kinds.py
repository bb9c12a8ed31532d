"""Layers by kind: operations by XLA's count, steps by their loops, longest paths by a search over Jacobians."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures.cost import _layer_kinds as kinds
from rc_jax import attention
from rc_jax.attention import AttentionSpec
from rc_jax.attention.cost import LayerKind

KINDS: tuple[LayerKind, ...] = get_args(LayerKind)


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "d_model", "heads"), [(16, 12, 1), (16, 12, 4), (9, 24, 3)])
def test_operations_are_those_that_xla_counts(tokens, d_model, heads):
    """The compiled layer: products to the number, and all else within 2 operations for each row of softmax."""
    spec = AttentionSpec(d_model=d_model, heads=heads)
    params, x = attention.init(jax.random.key(0), spec), jnp.ones((tokens, d_model))
    products = attention.multiplications(tokens=tokens, d_model=d_model, heads=heads, projections=True)
    assert kinds.counts(lambda x: attention.attend(params, x, spec), x) == (products, 1)
    counted = jax.jit(lambda p, x: attention.attend(p, x, spec)).lower(params, x).compile().cost_analysis() or {}
    expected = attention.operations(tokens=tokens, d_model=d_model, heads=heads)
    assert abs(counted["flops"] - expected) <= 2 * heads * tokens  # how a maximum is guarded is the compiler's choice
    assert counted["transcendentals"] == heads * tokens**2


@pytest.mark.parametrize("kind", KINDS)
def test_costs_are_those_of_the_program(kind):
    for tokens, d_model, width in ((11, 4, 3), (7, 2, 5)):
        given = kinds.weights(kind, d_model, width)
        x = jnp.asarray(np.random.default_rng(1).normal(size=(tokens, d_model)), float)
        costs = attention.layer_costs(kind, tokens=tokens, d_model=d_model, width=width)
        program = kinds.layer(kind, width)
        # Windows are cut out at full width, and what hangs over the border is multiplied, then hidden.
        over = 2 * d_model * ((width - 1) // 2) * ((width + 1) // 2) if kind == "restricted attention" else 0
        assert kinds.counts(program, given, x) == (costs.multiplications + over, costs.sequential_steps)
        assert kinds.longest_path(kind, x, width) == costs.longest_path
