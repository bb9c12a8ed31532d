"""Relative residuals ‖res(X)‖/‖X‖ of every layer against many digits, and where they are not known."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import attention, collapse, network
from tests.collapse.exact.test_trajectory import TOLERANCE, draw, stack, worst_error
from tests.oracles import collapse as oracle

NETWORKS = {
    "pure": (stack(depth=5), {}, 400),
    "no bias, so that the mean shrinks": (stack(depth=5, bias=False), {"bias_std": 0.0, "gain": 0.3}, 400),
    "skip": (stack(skip=True), {"size": 0.5}, 50),
    "post": (network.StackSpec(attention=attention.AttentionSpec(d_model=4, heads=2), depth=4, skip=True, norm="post"),
             {"size": 0.5}, 50),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_relative_residuals_agree_with_many_digits(dtype, name):
    spec, options, digits = NETWORKS[name]
    params, x = draw(0, spec, dtype, **options)
    with mp.workdps(digits):
        plain = jax.tree.map(np.asarray, params), np.asarray(x), spec
        exact = oracle.log_residuals(*plain, measure=oracle.log_share)
    got = collapse.log_residuals(params, x, spec, relative=True)
    assert worst_error(got, exact) < TOLERANCE[dtype]
    assert bool((got <= 0).all())


def test_with_skips_the_residual_rises_and_its_share_falls():
    """Why a figure of ‖res‖ alone misleads where tokens grow: uniform attention, whose share is known."""
    layer = attention.AttentionSpec(d_model=64, heads=4)
    spec = network.StackSpec(attention=layer, depth=12, skip=True)
    params, x = network.init(jax.random.key(0), spec), jax.random.normal(jax.random.key(1), (16, 64))
    size, share = (collapse.log_residuals(params, x, spec, relative=relative) for relative in (False, True))
    assert size[-1] > size[0] and share[-1] < share[0] - 1


def test_equal_tokens_and_tokens_of_zero(dtype):
    spec = stack(depth=2, bias=False)
    params, x = draw(0, spec, dtype, bias_std=0.0)
    for equal in (jnp.broadcast_to(x[:1], x.shape), jnp.zeros_like(x)):
        assert bool(jnp.isneginf(collapse.log_residuals(params, equal, spec, relative=True)).all())
    opposite = jnp.concatenate([x, -x])  # their mean is 0
    assert float(collapse.log_residuals(params, opposite, spec, relative=True)[0]) == pytest.approx(0, abs=1e-6)


@pytest.mark.slow
def test_a_mean_that_the_dtype_does_not_hold_leaves_no_share():
    """Tokens that shrink below the smallest number keep a residual, whose share of them is not known."""
    spec = stack(depth=40, bias=False, d_model=8)
    params, x = draw(0, spec, "float32", bias_std=0.0, gain=0.05)
    size, share = (collapse.log_residuals(params, x, spec, relative=relative) for relative in (False, True))
    with jax.enable_x64(True):
        params, x = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), "float64"), (params, x))
        wanted = collapse.log_residuals(params, x, spec, relative=True)
    known = np.isfinite(share)
    assert known[:4].all() and not known[-1] and np.isfinite(size[4])
    np.testing.assert_allclose(share[known], wanted[known], rtol=1e-4)


@pytest.mark.slow
def test_its_derivative_against_differences(x64):
    spec = stack(depth=3, skip=True)
    params, x = draw(0, spec, "float64", size=0.5)
    way = jax.random.normal(jax.random.key(7), x.shape)

    def last(t):
        return collapse.log_residuals(params, x + t * way, spec, relative=True)[-1]

    step = 1e-5
    quotient = (last(step) - last(-step)) / (2 * step)
    assert float(jax.jit(jax.grad(last))(jnp.zeros(()))) == pytest.approx(float(quotient), rel=1e-6)
