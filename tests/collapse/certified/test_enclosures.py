"""Enclosures against numbers of many digits, against each other, and where a choice is open."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, collapse, network
from rc_jax.attention.kinds import KINDS
from rc_jax.collapse import certified
from rc_jax.collapse.certified import program, split
from tests.oracles import many_digits, own_kinds

flint = pytest.importorskip("flint")
A, MLP = attention.AttentionSpec, network.MLPSpec
KNOWN = [name for name in KINDS if KINDS[name].reads == "scores"]
LAYERS = [dict(weights=kind) for kind in (*KNOWN, *own_kinds.OWN.values())] + [
    dict(causal=True), dict(window=1), dict(bias=True), dict(rotary=attention.Rotary()), dict(qk_norm="rms"),
    dict(qk_norm="unit"), dict(soft_cap=2.0), dict(causal=True, scale_law="log_tokens"), dict(scores="cosine"),
    dict(output_gate="headwise"), dict(top_k=2),
]  # fmt: skip
STACKS = [
    dict(skip=True), dict(norm="pre", skip=True), dict(norm="post"), dict(norm="peri", norm_kind="rms"),
    *(dict(mlp=MLP(width=3, activation=name)) for name in ("relu", "gelu", "gelu_tanh", "tanh", "silu")),
    dict(mlp=MLP(width=3, activation="silu", gated=True), norm="branch", skip=True),
]  # fmt: skip


def drawn(layer=None, depth=2, tokens=3, seed=0, gain=1.0, **stack):
    spec = network.StackSpec(attention=A(d_model=4, heads=2, **(layer or {})), depth=depth, **stack)
    params = network.init(jax.random.key(seed), spec, gain=gain, bias_std=0.5)
    return params, jax.random.normal(jax.random.key(seed + 1), (tokens, 4)), spec


@pytest.mark.parametrize("case", [*((layer, {}) for layer in LAYERS), *((None, stack) for stack in STACKS)], ids=str)
def test_every_part_against_many_digits(case):
    layer, stack = case
    params, x, spec = drawn(layer, **stack)
    low, high = certified.log_residuals(params, x, spec)
    right = many_digits.log_residuals(jax.tree.map(np.asarray, params), np.asarray(x), spec, digits=60)
    # Constants, such as 1/√d, have the value that float32 stores here, and all digits there.
    np.testing.assert_allclose((low + high) / 2, right, rtol=3e-6, atol=3e-6)
    assert (low <= high).all() and (high - low <= 1e-12 * np.maximum(1, abs(high))).all()


@pytest.mark.parametrize("layer", [{}, dict(bias=True), dict(causal=True), dict(window=1)], ids=str)
@pytest.mark.parametrize("skip", [False, True])
def test_both_evaluations_overlap(layer, skip, monkeypatch):
    params, x, spec = drawn(layer, depth=3, tokens=4, skip=skip)
    mask = jnp.asarray([[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1]], bool)
    split_low, split_high = certified.log_residuals(params, x, spec, mask=mask)
    monkeypatch.setattr("rc_jax.collapse.certified.split.covers", lambda spec: False)
    low, high = certified.log_residuals(params, x, spec, mask=mask)
    assert (low <= split_high).all() and (split_low <= high).all()


@pytest.mark.parametrize("layer", [{}, dict(bias=True), dict(causal=True), dict(window=1)], ids=str)
@pytest.mark.parametrize("skip", [False, True])
def test_pairs_of_tokens_say_the_same(layer, skip, monkeypatch):
    params, x, spec = drawn(layer, depth=3, tokens=4, skip=skip, gain=2.0)
    mask = jnp.asarray([[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1]], bool)
    low, high = certified.log_residuals(params, x, spec, mask=mask)
    squares = split.squares
    monkeypatch.setattr(split, "squares", lambda *arguments: squares(*arguments[:-1], by_pairs=True))
    pairs_low, pairs_high = certified.log_residuals(params, x, spec, mask=mask)
    assert (pairs_low <= high).all() and (low <= pairs_high).all() and np.isfinite(pairs_low).all()
    equal = jnp.broadcast_to(x[:1], x.shape)
    assert (certified.log_residuals(params, equal, spec, mask=mask)[1] == -np.inf).all()


@pytest.mark.parametrize(("gain", "seed", "digits"), [(2.0, 2, 6000), (3.0, 1, 10_000)])
def test_groups_of_tokens_that_saturation_makes(gain, seed, digits, x64):
    """Groups whose tokens are e^−1300 or e^−3300 apart, which then meet; nothing is known of it in floating point."""
    spec = network.StackSpec(attention=A(d_model=8, heads=2), depth=5 if gain == 2 else 4)
    params = jax.tree.map(lambda leaf: gain * leaf, network.init(jax.random.key(seed), spec, dtype=jnp.float32))
    x = jax.random.normal(jax.random.key(seed + 9), (6, 8), jnp.float32)
    low, high = certified.log_residuals(params, x, spec, scale=0.5, most_bits=2048)
    right = many_digits.log_residuals(jax.tree.map(np.asarray, params), np.asarray(x), spec, 0.5, digits=digits)
    slack = 1e-14 * abs(right)
    assert (low - slack <= right).all() and (right <= high + slack).all() and right[-1] < -3000


def test_a_deep_network_against_many_digits(x64):
    params, x, spec = drawn(depth=8)
    low, high = certified.log_residuals(params, x, spec, scale=0.5)
    right = many_digits.log_residuals(jax.tree.map(np.asarray, params), np.asarray(x), spec, 0.5, digits=4000)
    slack = 1e-15 * abs(right)
    assert (low - slack <= right).all() and (right <= high + slack).all() and right[-1] < -3000


def test_more_digits_stay_inside():
    params, x, spec = drawn(depth=4)
    low, high = certified.log_residuals(params, x, spec, tolerance=1e-6)
    inner_low, inner_high = certified.log_residuals(params, x, spec, tolerance=1e-14)
    assert (low <= inner_low).all() and (inner_high <= high).all()


def test_equal_tokens():
    for layer in ({}, dict(weights="sigmoid")):
        params, x, spec = drawn(layer)
        low, high = certified.log_residuals(params, jnp.broadcast_to(x[:1], x.shape), spec)
        assert (low == -np.inf).all() and (high == -np.inf).all()


def test_a_tie_is_refused_with_the_name_of_what_is_open():
    x = jnp.asarray([[1.0, 2], [1, -2], [-1, 0]])
    eye = jnp.eye(2)[None, None]
    first = jnp.asarray([[1.0, 0], [0, 0]])[None, None]  # logits see the first feature alone
    params = network.LayerParams(attention.AttentionParams(first, eye, eye, eye))
    spec = network.StackSpec(attention=A(d_model=2, top_k=1), depth=1)
    low, high = certified.log_residuals(params, x, spec, scale=1.0)  # exact logits tie, and both stay in
    assert np.isfinite(low).all() and (low < high).all()
    with pytest.raises(certified.NotCertified, match="too wide a ball at 256 bits"):
        certified.log_residuals(*drawn(dict(weights=own_kinds.OWN["sharper"]), depth=6), most_bits=256)


def test_an_operation_without_a_rule_is_named():
    def weights(scores, seen, parts):
        rounded = jax.lax.reduce_precision(scores, 8, 22)
        return jax.nn.softmax(jnp.where(seen, rounded, -jnp.inf), axis=-1)

    params, x, spec = drawn(dict(weights=attention.Kind("rounded", weights)))
    with pytest.raises(certified.NotCertified, match="reduce_precision"):
        certified.log_residuals(params, x, spec)


def test_a_way_on_from_nan():
    found = 0
    for seed in range(12):
        params, x, spec = drawn(depth=4, tokens=5, seed=seed, gain=4.0)
        unknown = np.isnan(collapse.log_residuals(params, x, spec))
        low, high = certified.log_residuals(params, x, spec)
        assert np.isfinite(low).all() and np.isfinite(high).all()
        found += unknown.any()
    assert found >= 3


def test_a_wide_ball_may_be_among_the_largest():
    """[5, 3, 2, 1 ± 10]: the last may be the largest, though its middle is the smallest."""

    def values(*numbers):
        row = np.empty(len(numbers), object)
        row[:] = numbers
        return row

    equation = types.SimpleNamespace(params={"k": 2})
    wide = values(flint.arb(5), flint.arb(3), flint.arb(2), flint.arb(1, 10))
    assert isinstance(program._top_k(equation, wide)[1], program.Undecided)
    narrow = values(flint.arb(5), flint.arb(3), flint.arb(2), flint.arb(1, 0.5))
    assert program._top_k(equation, narrow)[1].tolist() == [0, 1]
    tied = flint.arb(3, 1)  # the same number twice
    assert program._top_k(equation, values(flint.arb(5), tied, tied))[1].tolist() == [0, 1]


@pytest.mark.parametrize("n", [4, 5])
def test_a_token_that_sees_nothing_is_refused_in_a_mask_of_any_size(n):
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=4, heads=1), depth=1)
    params, x = network.init(jax.random.key(0), spec), jax.random.normal(jax.random.key(1), (n, 4))
    mask = jnp.ones((n, n), bool).at[1].set(False)
    with pytest.raises(ValueError, match="`mask` must let every token see at least one"):
        certified.log_residuals(params, x, spec, mask=mask)
