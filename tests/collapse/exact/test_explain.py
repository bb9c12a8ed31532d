"""Each reason for which a residual is NaN, met on purpose, and none where it is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, collapse, network
from rc_jax.collapse.exact import decide

TOKENS = jax.random.normal(jax.random.key(1), (6, 8), "float32")


def stack(depth=3, **layer):
    return network.StackSpec(attention=attention.AttentionSpec(d_model=8, **layer), depth=depth)


def explained(spec, x, gain=1.0, seed=0, **options):
    return collapse.explain(network.init(jax.random.key(seed), spec, gain=gain), x, spec, **options)


def running(scores, seen, parts):
    """e^(score − the largest one up to its place) over the sum: kinks wherever the largest changes."""
    shown = jnp.where(seen, scores, -jnp.inf)
    powers = jnp.where(seen, jnp.exp(jnp.where(seen, shown - jax.lax.cummax(shown, axis=2), 0)), 0)
    return powers / powers.sum(-1, keepdims=True)


RUNNING = attention.Kind("running", running, row_sum="one", shift_invariant=True)

MET = {
    "smallest normal number": lambda: explained(stack(), jnp.full((6, 8), 1e-40, "float32").at[0].set(3e-40)),
    "no place in float32": lambda: explained(stack(), 1e20 * TOKENS),
    "a kink of the weights": lambda: explained(stack(weights=RUNNING, causal=True, heads=2), TOKENS, seed=3),
    "digits are lost": lambda: explained(stack(), TOKENS, gain=6.0, seed=11),
    "a choice cannot be made": lambda: explained(stack(top_k=2), 20 * TOKENS),  # of two that one row has made alike
    "has shrunk below": lambda: explained(stack(20, output_gate="headwise"), TOKENS, gain=0.05),
}


@pytest.mark.parametrize("words", MET)
def test_the_reason_says_what_was_met(words):
    value, reason = MET[words]()
    unknown = np.isnan(value)
    assert unknown.any() and len(reason) == value.size
    assert [bool(sentence) for sentence in reason] == unknown.tolist()
    assert all(words in sentence for sentence in reason if sentence), reason


def test_a_relative_residual_of_faded_tokens_says_so():
    """Softmax does not see their size, so the residual itself is known."""
    spec, x = stack(40), jnp.asarray(TOKENS)
    value, reason = explained(spec, x, gain=0.05, relative=True)
    assert np.isnan(value[-1]) and "has shrunk below" in reason[-1]
    assert explained(spec, x, gain=0.05).reason == ("",) * 41


def test_nothing_is_said_of_what_is_known():
    spec = stack(5)
    params = network.init(jax.random.key(0), spec)
    value, reason = collapse.explain(params, TOKENS, spec)
    assert reason == ("",) * 6
    np.testing.assert_array_equal(value, collapse.log_residuals(params, TOKENS, spec))


def squares(scores, seen, parts):
    """max(s, 0)²/Σ: no scale, so that a token of zeros, whose scores cancel, has other weights at every rounding."""
    powers = jnp.where(seen, jnp.square(jax.nn.relu(scores)), 0)
    whole = powers.sum(-1, keepdims=True)
    return jnp.where(whole > 0, powers / jnp.where(whole > 0, whole, 1), 0)


def test_a_kind_without_a_scale_has_a_cause_of_its_own():
    spec = stack(2, weights=attention.Kind("squares", squares, sparse=True), heads=2)
    value, reason = explained(spec, TOKENS.at[1].set(0))
    assert np.isnan(value[1]) and "scores of a row cancel, as those of a zero token" in reason[1]
    assert "softmax" not in reason[1] and "use float64" in reason[1]
    value, reason = explained(stack(weights="sinkhorn", heads=2), TOKENS, gain=6.0, seed=11)
    assert np.isnan(value[-1]) and "weights are saturated" in reason[-1] and "cancel" not in reason[-1]


def test_float64_is_no_advice_where_it_is_used(x64):
    """A sentence for each cause that names a way on, from a record of what was seen."""
    nan, nothing = jnp.array([1.0, jnp.nan]), jnp.zeros(1, bool)
    for unmoved, words in ((np.nan, "a kink of the weights"), (1.0, "digits are lost")):
        causes = decide.Causes(nothing, nothing, jnp.array([unmoved]))
        for dtype, advised in ((np.float32, True), (np.float64, False)):
            told = decide.sentences(nan, lambda: nan, causes, np.dtype(dtype), decide.Traits(True, True, True))[1]
            assert words in told and ("use float64" in told or "float64 subtracts" in told) == advised
            assert ("or float64" in told) == (advised and unmoved != 1.0)
