"""Every kind of scores and weights, and every switch, against the layer that `textbook` writes out in NumPy."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, network
from rc_jax.attention import KINDS, AttentionSpec, Rotary
from rc_jax.attention.specification import FeatureMap
from tests.attention import textbook

SPEC = AttentionSpec(d_model=12, heads=3, bias=True)
MASKS = {"full": {}, "causal": {"causal": True}, "window": {"window": 2}, "graph": {}}
ONLY_CAUSAL = ("gated_decay", "channel_decay")
NARROW = ("softmax_plus_one", "softmax_sink", "sigmoid", "differential", "sinkhorn")  # in single precision, too
RTOL = {"float64": 1e-12, "float32": 2e-5}
QUICK = {
    *((kind, "graph", "float64") for kind in KINDS),
    *(("softmax", masking, "float64") for masking in MASKS),
    ("softmax_sink", "causal", "float32"),
}
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for kind in KINDS
    for masking in MASKS
    for dtype in (RTOL if kind in NARROW else ("float64",))
    if (kind, masking) != ("sinkhorn", "causal")
    for case in [(kind, masking, dtype)]
]


@pytest.mark.parametrize(("kind", "masking", "dtype"), CASES)
def test_every_kind_under_every_mask(kind, masking, dtype):
    changes = {"weights": kind, "causal": kind in ONLY_CAUSAL} | MASKS[masking]
    spec = dataclasses.replace(SPEC, **changes)
    mask = textbook.GRAPH if masking == "graph" else None
    with jax.enable_x64(dtype == "float64"):
        params, x = textbook.draw(spec, dtype)
        given = None if mask is None else jnp.asarray(mask)
        rows, out = textbook.layer(params, x, spec, textbook.visible(spec, mask=mask))
        got = attention.attention_weights(params, x, spec, mask=given)
        assert got.dtype == dtype
        np.testing.assert_allclose(got, rows, rtol=RTOL[dtype], atol=RTOL[dtype] / 100)
        if masking in ("full", "graph"):
            got = attention.attend(params, x, spec, mask=given)
            np.testing.assert_allclose(got, out, rtol=RTOL[dtype], atol=RTOL[dtype])


KEPT = ("softmax", "relu_squared", "linear", "l2", "relu_squared_mean")  # kinds that may keep the largest scores alone
POOLED = {"rank": 3, "tokens": textbook.N}
SWITCHES = [
    {"scores": "cosine"},
    {"scores": "additive"},
    *({"weights": "linear", "feature_map": name, "causal": True} for name in FeatureMap.__args__),
    *({"weights": "channel_decay", "feature_map": name, "causal": True} for name in ("relu", "exp")),
    *({"top_k": 3, "weights": kind, "causal": causal} for kind in KEPT for causal in (False, True)),
    *({"weights": kind} | POOLED for kind in ("softmax", "relu_squared", "identity")),
    {"weights": "linear", "feature_map": "exp"} | POOLED,
    *({"qk_norm": kind} for kind in ("rms", "rms_joint", "layer", "unit")),
    *({"qk_norm": kind, "rotary": Rotary(base=50)} for kind in ("rms", "unit")),
    *({"scale_law": "log_tokens"} | MASKS[own] for own in ("full", "causal", "window")),
    {"scale": 0.7, "soft_cap": 1.5, "causal": True},
    {"output_gate": "elementwise", "soft_cap": 0.8, "causal": True},
]
SLOW_SWITCHES = [
    {"output_gate": "headwise", "weights": "differential"},
    {"weights": "differential", "rotary": Rotary()},
    {"soft_cap": 3, "weights": "sigmoid"},
]


def named(changes):
    return ", ".join(f"{name}={getattr(value, 'base', value)}" for name, value in changes.items())


@pytest.mark.parametrize(
    "changes", [*SWITCHES, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW_SWITCHES)], ids=named
)
def test_every_switch(x64, changes):
    """Scores at a scale of each head; weights at the default scale and under one more mask; outputs."""
    spec = dataclasses.replace(SPEC, **changes)
    params, x = textbook.draw(spec)
    seen = textbook.visible(spec)
    by_head = np.array([0.3, 0.7, 1.1]) if spec.kind.reads == "scores" else None  # others have no scale
    expected = textbook.scores(params, x, spec, seen, by_head)
    got = attention.scores(params, x, spec, scale=None if by_head is None else jnp.asarray(by_head))
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)

    mask = None if spec.rank is not None else textbook.GRAPH
    rows, out = textbook.layer(params, x, spec, textbook.visible(spec, mask=mask))
    given = None if mask is None else jnp.asarray(mask)
    got = attention.attention_weights(params, x, spec, mask=given)
    np.testing.assert_allclose(got, rows, rtol=1e-12, atol=1e-15)
    if spec.output_gate is not None or spec.rank is not None:
        np.testing.assert_allclose(attention.attend(params, x, spec, mask=given), out, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "learned"),
    [
        ({"weights": "gated_decay", "causal": True}, ("gate", "gate_bias")),
        ({"weights": "channel_decay", "causal": True}, ("decay", "query")),
        ({"top_k": 2}, ("query", "value")),
        (POOLED, ("pool", "query")),
    ],
    ids=["gates", "channels", "top k", "rank"],
)
def test_a_stack_of_them(key, changes, learned):
    """Drawn with the rest of the layer, in a scan, under vmap, with gradients that reach the parameters."""
    spec = network.StackSpec(attention=dataclasses.replace(SPEC, **changes), depth=3, skip=True)
    params, x = network.init(key, spec), jax.random.normal(jax.random.key(1), (4, textbook.N, 12))
    batch = jax.vmap(lambda x: network.apply(params, x, spec))(x)
    np.testing.assert_allclose(batch[2], network.apply(params, x[2], spec), rtol=1e-5, atol=1e-6)
    slopes = jax.jit(jax.grad(lambda p, x: jnp.sum(jnp.sin(network.apply(p, x, spec))), (0, 1)))(params, x[0])
    chex.assert_tree_all_finite(slopes)
    arrays = slopes[0].attention._asdict() | slopes[0].attention.parts
    assert all(bool(jnp.any(arrays[name] != 0)) for name in learned)


@pytest.mark.parametrize("kind", ONLY_CAUSAL)
def test_one_token_sees_itself(x64, kind):
    spec = dataclasses.replace(SPEC, weights=kind, causal=True)
    params, x = textbook.draw(spec, tokens=1)
    np.testing.assert_allclose(attention.attention_weights(params, x, spec), np.ones((3, 1, 1)), rtol=1e-14)
