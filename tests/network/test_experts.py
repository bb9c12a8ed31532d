"""An MLP of experts: the sum over those that a token takes, in NumPy; and where theory does not follow."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, collapse, network
from rc_jax.network import Experts, MLPSpec
from rc_jax.network.stack import mlp, shares

D, WIDE, COUNT, N = 6, 5, 4, 9


def stack(**settings):
    experts = Experts(count=COUNT, **settings)
    layer = attention.AttentionSpec(d_model=D, heads=2)
    return network.StackSpec(attention=layer, depth=2, skip=True, mlp=MLPSpec(width=WIDE, gated=True, experts=experts))


@pytest.mark.parametrize("active", [1, 2, COUNT])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("gated", [True, False])
def test_a_token_takes_the_experts_with_the_largest_shares(active, normalised, gated):
    spec = stack(active=active, normalised=normalised)
    assert spec.mlp is not None
    spec = dataclasses.replace(spec, mlp=dataclasses.replace(spec.mlp, gated=gated))
    params = network.init(jax.random.key(0), spec, bias_std=0.5).mlp
    params = jax.tree.map(lambda leaf: leaf[0], params)
    x = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
    weights = {name: np.asarray(value, float) for name, value in params._asdict().items() if value is not None}
    expected = np.zeros((N, D))
    for token, row in enumerate(x.astype(float)):
        logits = row @ weights["weight_router"]
        p = np.exp(logits - logits.max())
        p /= p.sum()
        taken = np.argsort(-p)[:active]
        for expert in taken:
            share = p[expert] / (p[taken].sum() if normalised else 1)
            hidden = row @ weights["weight_in"][expert] + weights["bias_in"][expert]
            if gated:
                gate = row @ weights["weight_gate"][expert] + weights["bias_gate"][expert]
                hidden *= np.maximum(gate, 0)
            else:
                hidden = np.maximum(hidden, 0)
            expected[token] += share * (hidden @ weights["weight_out"][expert] + weights["bias_out"][expert])
    np.testing.assert_allclose(mlp(jnp.asarray(x), params, spec), expected, atol=2e-6)


def test_ties_take_no_more_experts_than_asked_for():
    given = shares(jnp.zeros((3, COUNT)), Experts(count=COUNT, active=2))
    np.testing.assert_array_equal((given > 0).sum(-1), 2)
    np.testing.assert_allclose(given.sum(-1), 1)


def test_an_expert_that_is_not_taken_adds_nothing_whatever_it_gives():
    spec = stack(active=1)
    params = jax.tree.map(lambda leaf: leaf[0], network.init(jax.random.key(0), spec).mlp)
    x = jnp.ones((2, D))
    index = int(jnp.argmax(x[0] @ params.weight_router))
    broken = params._replace(weight_out=params.weight_out.at[index - 1].set(jnp.nan))
    np.testing.assert_array_equal(mlp(x, broken, spec), mlp(x, params, spec))


def test_a_stack_of_experts_is_drawn_scaled_and_differentiated():
    spec = stack(active=2)
    params = network.init(jax.random.key(0), spec)
    assert params.mlp is not None and params.mlp.weight_router is not None
    assert params.mlp.weight_in.shape == (2, COUNT, D, WIDE) and params.mlp.weight_router.shape == (2, D, COUNT)
    x = jax.random.normal(jax.random.key(1), (N, D))
    off = network.scale_branches(params, 0.0, attention=False)
    bare = dataclasses.replace(spec, mlp=None)
    np.testing.assert_allclose(network.apply(off, x, spec), network.apply(params, x, bare), rtol=1e-6)
    slope = jax.grad(lambda p: jnp.sum(jnp.square(network.apply(p, x, spec))))(params)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(slope))
    assert float(jnp.abs(slope.mlp.weight_router).max()) > 0


def test_exact_arithmetic_refuses_experts_and_says_why():
    spec = stack(active=2)
    params, x = network.init(jax.random.key(0), spec), jax.random.normal(jax.random.key(1), (N, D))
    with pytest.raises(
        collapse.NotCovered, match="which experts a token takes jumps as the token moves, got 4 experts"
    ):
        collapse.log_residuals(params, x, spec)


@pytest.mark.usefixtures("as_installed")
def test_bad_experts():
    with pytest.raises(ValueError, match="`active` must be at most count=2, got 3"):
        Experts(count=2, active=3)
    with pytest.raises(TypeError, match=r"`experts` must be an? Experts"):
        MLPSpec(width=2, experts=2)
    spec = stack(active=2)
    params = network.init(jax.random.key(0), dataclasses.replace(spec, mlp=MLPSpec(width=WIDE, gated=True)))
    with pytest.raises(ValueError, match=r"mlp"):
        network.apply(params, jnp.ones((N, D)), spec)
