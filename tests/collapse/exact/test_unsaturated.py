"""The cheap forms of attention far from saturation: their series, their limits, and one choice for a whole batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, collapse, network
from rc_jax._numerics import performance
from rc_jax._numerics.performance import any_in_batch
from rc_jax.collapse.exact import attention as exact_attention
from rc_jax.collapse.exact import state
from rc_jax.collapse.exact.unsaturated import expm1_ratio


def test_ratio_against_expm1(dtype):
    t = np.concatenate([np.linspace(-16, 16, 1001), [1e-30, -1e-12, 1e-5]])
    got = expm1_ratio(jnp.asarray(t, dtype))
    rounded = np.asarray(jnp.asarray(t, dtype), np.longdouble)
    nonzero = rounded != 0
    want = np.where(nonzero, np.expm1(rounded) / np.where(nonzero, rounded, 1), 1)
    # The exponent is rounded once: e^t has that many roundings.
    np.testing.assert_array_less(np.abs(np.asarray(got) / want - 1), float(jnp.finfo(dtype).eps) * (4 + 2 * abs(t)))


def test_a_flag_in_any_member_is_up_for_the_whole_batch():
    flags = jnp.array([[False, False], [True, False]])
    either = jax.vmap(jax.vmap(lambda flag: jax.lax.cond(any_in_batch(flag), lambda: 1, lambda: 0)))(flags)
    np.testing.assert_array_equal(either, 1)
    np.testing.assert_array_equal(jax.vmap(any_in_batch)(jnp.zeros(3, bool)), False)
    branches = jax.make_jaxpr(jax.vmap(lambda flag: jax.lax.cond(any_in_batch(flag), jnp.sin, jnp.cos, 1.0)))(flags[0])
    assert "cond[" in str(branches) and "select_n" not in str(branches)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-6, 0.5])
def test_the_general_form_gives_the_same(monkeypatch, x64, size):
    """The leading and the pairwise form against the general one, which is all that other devices have."""
    spec = attention.AttentionSpec(d_model=4, heads=2, bias=True)
    params = attention.init(jax.random.key(0), spec, dtype="float64")
    tokens = state.decompose(size * jax.random.normal(jax.random.key(1), (7, 4)))
    outs = []
    for _ in range(2):
        outs.append(jax.jit(lambda tokens: exact_attention.attend(params, tokens, spec, None, None))(tokens))
        monkeypatch.setattr(performance, "on_cpu", lambda cpu, default, *operands: default(*operands))
    for fast, general in zip(*map(jax.tree.leaves, outs), strict=True):
        np.testing.assert_allclose(fast, general, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_a_network_has_one_answer_in_whatever_company(x64):
    """A batch takes the form that holds for all of its members; all forms give the same numbers and derivatives."""
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=4, heads=2, bias=True), depth=3)
    params = network.init(jax.random.key(2), spec, bias_std=0.3, dtype="float64")
    x = 0.5 * jax.random.normal(jax.random.key(3), (5, 4))

    def last(x):
        logs = collapse.log_residuals(params, x, spec)
        return logs[-1], logs

    measure = jax.jit(jax.vmap(jax.value_and_grad(last, has_aux=True)))
    (_, alone), slope = measure(jnp.stack([x, x]))
    for other in (0.01, 30.0):  # near collapse, and saturated
        (_, together), slope_together = measure(jnp.stack([x, other * x]))
        np.testing.assert_allclose(together[0], alone[0], rtol=1e-13)
        np.testing.assert_allclose(slope_together[0], slope[0], rtol=1e-10, atol=1e-12)
