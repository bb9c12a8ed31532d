"""Specifications that make no layer: one error that names the argument, what was expected and what was given."""

import dataclasses

import jax.numpy as jnp
import pytest

from rc_jax.attention import AttentionSpec, Kind, Rotary

SPEC = AttentionSpec(d_model=12, heads=3, bias=True)
POOLED = {"rank": 2, "tokens": 4}
TWO_PRODUCTS = Kind("two", lambda scores, seen, parts: jnp.split(jnp.where(seen, jnp.tanh(scores), 0), 2)[0], maps=2)
WRONG_VALUES = [
    ({"d_model": 64, "heads": 5}, "`heads` must divide d_model=64, got heads=5"),
    ({"heads": 0}, "`heads` must be an integer >= 1, got 0"),
    ({"scores": "euclid"}, "`scores` must be one of 'dot', 'cosine', 'additive'"),
    ({"weights": "max"}, "`weights` must be an attention.Kind or one of 'softmax'"),
    ({"window": -1}, "`window` must be an integer >= 0, got -1"),
    ({"precision": "best"}, "`precision` must be one of 'default', 'high', 'highest'"),
    # Features and decays.
    ({"weights": "linear", "scores": "cosine"}, "`scores` must be 'dot' when weights="),
    ({"weights": "gated_decay", "causal": True, "scores": "cosine"}, "`scores` must be 'dot' when weights="),
    ({"weights": "channel_decay", "causal": True, "scores": "cosine"}, "`scores` must be 'dot' when weights="),
    ({"weights": "gated_decay"}, "`causal` must be True when weights='gated_decay'"),
    ({"weights": "channel_decay"}, "`causal` must be True when weights='channel_decay'"),
    (
        {"feature_map": "relu"},
        "`feature_map` must be left alone when weights='softmax', which do not read it, got 'relu'",
    ),
    ({"weights": "linear", "feature_map": "sin"}, "`feature_map` must be one of 'elu', 'relu', .* got 'sin'"),
    # Few columns.
    ({"top_k": 0}, "`top_k` must be an integer >= 1, got 0"),
    ({"top_k": 2, "weights": "power6"}, "`weights` must grow with the score when top_k is given, got 'power6'"),
    ({"top_k": 2, "weights": "sinkhorn"}, "`weights` must grow with the score when top_k is given"),
    ({"rank": 2}, "`tokens` must be given with rank and only then, with rank=2, got None"),
    ({"tokens": 2}, "`tokens` must be given with rank and only then, with rank=None, got 2"),
    (POOLED | {"causal": True}, "`causal` must be left alone when rank=2"),
    (POOLED | {"window": 1}, "`window` must be left alone when rank=2"),
    (POOLED | {"top_k": 1}, "`top_k` must be left alone when rank=2"),
    (POOLED | {"weights": "decay"}, "`weights` must depend on the scores when rank is given"),
    (POOLED | {"weights": "gated_decay"}, "`weights` must depend on the scores when rank is given"),
    (POOLED | {"weights": "channel_decay", "causal": True}, "`causal` must be left alone when rank=2"),
    (POOLED | {"rotary": Rotary()}, "`rotary` must be left alone when rank=2"),
    (POOLED | {"weights": "sinkhorn"}, "`rank` must be None when weights='sinkhorn'"),
    # Queries, keys and logits.
    ({"qk_norm": "l2"}, "`qk_norm` must be one of None, 'rms', 'rms_joint', 'layer', 'unit', got 'l2'"),
    ({"qk_norm_epsilon": 0.0}, "`qk_norm_epsilon` must be > 0, got 0"),
    ({"qk_norm": "rms", "scores": "cosine"}, "`scores` must be 'dot' when qk_norm='rms', got 'cosine'"),
    (
        {"qk_norm": "rms", "weights": "linear"},
        "`qk_norm` must be left alone when weights='linear', which read features and no scores, got 'rms'",
    ),
    ({"scale_law": "log"}, "`scale_law` must be one of 'constant', 'log_tokens', got 'log'"),
    ({"scale_law": "log_tokens", "weights": "decay"}, "`scale_law` must be left alone when weights='decay'"),
    ({"scale": 0.0}, "`scale` must be > 0, got 0"),
    ({"scale": 0.5, "weights": "decay"}, "`scale` must be left alone when weights='decay', which read distance"),
    ({"soft_cap": -1}, "`soft_cap` must be > 0, got -1"),
    ({"soft_cap": 5, "weights": "decay"}, "`soft_cap` must be left alone when weights='decay'"),
    ({"rotary": Rotary(), "scores": "additive"}, "`rotary` must be None when scores='additive'"),
    ({"rotary": Rotary(width=6)}, "`rotary` must rotate an even number of features, at most the 4 of a head, not 6"),
    ({"rotary": Rotary(), "d_head": 5}, "`rotary` must rotate an even number of features, at most the 5"),
    # Normalisers and the gate on the output.
    ({"weights": "sinkhorn", "causal": True}, "`causal` must be False when weights='sinkhorn': the only"),
    ({"weights": "sinkhorn", "sinkhorn_steps": 4}, "`sinkhorn_steps` must be odd: .*, got 4"),
    ({"sinkhorn_steps": 3}, "`sinkhorn_steps` must be left alone when weights='softmax'"),
    ({"weights": "differential", "d_head": 3}, "`d_head` must be even when weights='differential'"),
    ({"weights": "differential", "scores": "additive"}, "`scores` must be 'dot' or 'cosine' when"),
    ({"weights": "differential", "qk_norm": "rms"}, "`qk_norm` must be None when weights='differential'"),
    ({"weights": TWO_PRODUCTS, "qk_norm": "unit"}, "`qk_norm` must be None when weights='two': its gains are those of"),
    ({"output_gate": "tokenwise"}, "`output_gate` must be one of .* got 'tokenwise'"),
]
WRONG_TYPES = [
    ({"d_model": 6.0}, "`d_model` must be an integer >= 1, got 6.0"),
    ({"causal": "no"}, "`causal` must be a bool, got 'no'"),
    ({"rotary": 10000}, "`rotary` must be a Rotary or None, got 10000"),
]


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("changes", "message"), WRONG_VALUES)
def test_wrong_values(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SPEC, **changes)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("changes", "message"), WRONG_TYPES)
def test_wrong_types(changes, message):
    with pytest.raises(TypeError, match=message):
        dataclasses.replace(SPEC, **changes)
