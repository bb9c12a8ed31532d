"""Kinds of weights from outside the package: in every use of a layer, and wrong ones at the door."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, network
from rc_jax.attention import KINDS, AttentionSpec, Kind
from rc_jax.attention.specification import own_parts, shapes


def plain(scores, seen, parts):
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)


def squares(scores, seen, parts):
    raised = jnp.where(seen, 1 + jnp.square(parts["slope"][:, None, None] * scores), 0)
    return raised / raised.sum(axis=-1, keepdims=True)


SQUARES = Kind(
    "squares",
    squares,
    row_sum="one",
    shapes=lambda spec: {"slope": (spec.heads,)},
    start=lambda spec, dtype: {"slope": jnp.full(spec.heads, 0.5, dtype)},
)
SPEC = AttentionSpec(d_model=8, heads=2)


def test_a_kind_of_ones_own_in_every_use_of_a_layer(x64, key):
    spec = dataclasses.replace(SPEC, weights=SQUARES, causal=True)
    params, batch = attention.init(key, spec), jax.random.normal(key, (3, 5, 8))
    assert shapes(spec)["slope"] == (2,) and list(own_parts(params, spec)) == ["slope"]
    x = batch[0]
    scores = np.asarray(attention.scores(params, x, spec))
    raised = np.where(np.tri(5, dtype=bool), 1 + (0.5 * scores) ** 2, 0)
    rows = raised / raised.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(attention.attention_weights(params, x, spec), rows, rtol=1e-12)
    np.testing.assert_allclose(
        jax.vmap(lambda x: attention.attend(params, x, spec))(batch)[0], attention.attend(params, x, spec), rtol=1e-12
    )
    slope = jax.grad(lambda p: attention.attend(p, x, spec).sum())(params)
    assert bool(jnp.any(slope.parts["slope"] != 0))
    stack = network.StackSpec(attention=spec, depth=3)
    drawn, random = network.init(key, stack), network.random_layers(key, stack)
    for layers in (drawn, random):
        states = jax.jit(lambda layers: network.hidden_states(layers, x, stack))(layers)
        assert states.shape == (4, 5, 8) and bool(jnp.all(jnp.isfinite(states)))


def test_a_record_of_a_built_in_kind_is_its_name():
    spec = dataclasses.replace(SPEC, weights=KINDS["sigmoid"])
    assert spec == dataclasses.replace(SPEC, weights="sigmoid") and spec.weights == "sigmoid"


def test_a_layer_reads_no_part_of_another_kind(key):
    """Softmax plus one has the logit 0, whatever sink other layers have left in shared parameters."""
    sunk = dataclasses.replace(SPEC, weights="softmax_sink")
    params = attention.init(key, sunk).with_parts(sink=jnp.full(2, 5.0), decay=jnp.ones(2), gate=jnp.ones((2, 8)))
    x = jax.random.normal(key, (4, 8))
    for name in ("softmax_plus_one", "softmax", "sparsemax"):
        spec = dataclasses.replace(SPEC, weights=name)
        np.testing.assert_array_equal(
            attention.attend(params, x, spec), attention.attend(params._replace(parts={}), x, spec)
        )


def unhashable():
    class Weights:
        __hash__ = None

        def __call__(self, scores, seen, parts):
            return scores

    return Kind("unhashable", Weights())


def zero_over_zero(scores, seen, parts):
    raised = jnp.where(seen, jnp.square(scores), 0)
    return raised / raised.sum(axis=-1, keepdims=True)


def hard(scores, seen, parts):
    return jax.nn.one_hot(jnp.argmax(jnp.where(seen, scores, -jnp.inf), axis=-1), scores.shape[-1])


def sigmoids(scores, seen, parts):
    return jnp.where(seen, jax.nn.sigmoid(scores), 0)


WRONG = {
    "shape": (lambda *all: plain(*all)[..., :-1], {}, ValueError, "`weights` of kind 'mine' must give shape"),
    "numpy": (lambda s, seen, parts: np.exp(np.asarray(s)), {}, TypeError, "must be a function of JAX arrays"),
    "hard": (hard, {}, ValueError, "must have a derivative by the scores.*got .* change by .*1"),
    "arguments": (lambda s: jax.nn.softmax(s), {}, TypeError, r"function of scores, what is seen and parts, got \(s\)"),
    "part": (lambda s, seen, parts: plain(s * parts["heat"], seen, {}), {}, ValueError, "must name the part 'heat'"),
    "stopped": (lambda s, *rest: plain(jax.lax.stop_gradient(s), *rest), {}, ValueError, "must have a derivative"),
    "zeros": (zero_over_zero, {}, ValueError, "must be finite at scores of 0"),
    "unmasked": (lambda s, seen, parts: jax.nn.softmax(s), {}, ValueError, "must be 0 where `seen` is False"),
    "sum": (lambda *all: 2 * plain(*all), {"row_sum": "one"}, ValueError, "`row_sum` of kind 'mine'"),
    "fixed": (sigmoids, {"row_sum": "fixed"}, ValueError, "'fixed'"),
    "shift": (sigmoids, {"shift_invariant": True}, ValueError, "a constant"),
    "increasing": (
        lambda s, seen, parts: plain(-s, seen, parts),
        {"increasing": True},
        ValueError,
        "`increasing` of kind 'mine'",
    ),
    "sparse": (plain, {"sparse": True}, ValueError, "`sparse` of kind 'mine'"),
    "start": (plain, {"start": lambda spec, dtype: {"sink": jnp.zeros(2)}}, ValueError, "that `shapes` names"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_kinds_are_one_error_at_the_door(case):
    function, claims, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        dataclasses.replace(SPEC, weights=Kind("mine", function, **claims))


def sometimes_shifted(scores, seen, parts):
    """Softmax of what is within 1 of the largest score, and of all where the row's mean score is above 0."""
    mean = jnp.where(seen, scores, 0).mean(axis=-1, keepdims=True)
    shown = seen & ((mean > 0) | (jnp.where(seen, scores, -jnp.inf).max(axis=-1, keepdims=True) - scores < 1))
    return plain(scores, shown, parts)


def within(scores, seen, parts):
    """Softmax of what is within one and a half deviations of the largest score, which has jumps."""
    count, largest = (
        seen.sum(-1, scores.dtype, keepdims=True),
        jnp.where(seen, scores, -jnp.inf).max(axis=-1, keepdims=True),
    )
    mean = jnp.where(seen, scores, 0).sum(axis=-1, keepdims=True) / count
    spread = jnp.sqrt(jnp.where(seen, scores - mean, 0).var(axis=-1, keepdims=True))
    return plain(scores, seen & (largest - scores <= 1.5 * spread), parts)


@pytest.mark.parametrize("heads", range(1, 6))
def test_a_kind_with_jumps_is_known_by_its_rows_between_them(heads):
    kind = Kind("within", within, "one", shift_invariant=True)
    spec = dataclasses.replace(SPEC, heads=heads, d_head=2, weights=kind)
    assert spec.kind is kind


def test_the_row_that_breaks_a_claim_is_shown():
    kind = Kind("sometimes", sometimes_shifted, "one", shift_invariant=True)
    with pytest.raises(ValueError, match=r"from \[(.*)\] to \[(.*)\]") as caught:
        dataclasses.replace(SPEC, weights=kind)
    before, after = (np.fromstring(part, sep=" ") for part in re.findall(r"\[(.*?)\]", str(caught.value)))
    assert np.abs(before - after).max() > 0.01


def test_a_record_prints_what_is_not_as_by_default():
    assert repr(Kind("mine", plain, "one", start=plain)) == "Kind('mine', row_sum='one', start=plain)"


@pytest.mark.usefixtures("as_installed")
def test_wrong_records():
    with pytest.raises(TypeError, match="`weights` of kind 'unhashable' must be hashable"):
        unhashable()
    with pytest.raises(TypeError, match="`weights` must be a function, got 'softmax'"):
        Kind("mine", "softmax")
    with pytest.raises(ValueError, match="`row_sum` must be one of 'one', 'fixed', 'any'"):
        Kind("mine", plain, row_sum="two")
    with pytest.raises(ValueError, match="`own_scores` must be given when reads='distance'"):
        Kind("mine", plain, reads="distance")
    with pytest.raises(ValueError, match="`weights` must grow with the score when top_k is given"):
        dataclasses.replace(SPEC, weights=SQUARES, top_k=2)


@pytest.mark.parametrize("name", KINDS)
def test_what_every_record_claims_is_true(name):
    """`AttentionSpec` believes the records of the package; a copy under another name is checked as anybody's own."""
    causal = {"causal": True} if name in ("gated_decay", "channel_decay") else {}
    copy = dataclasses.replace(KINDS[name], name="copy", refuses=lambda spec: None)
    assert dataclasses.replace(SPEC, weights=copy, **causal).kind.name == "copy"


@pytest.mark.parametrize("name", ["softmax", "entmax15", "asentmax15", "sparsemax", "softpick", "l2", "sigmoid"])
def test_no_weight_on_what_is_hidden(name):
    """Of a row that sees nothing, and of one whose hidden scores are the largest."""
    kind = attention.KINDS[name] if hasattr(attention, "KINDS") else KINDS[name]
    seen = jnp.asarray([[[False] * 4, [False, True, True, False]]])
    scores = jnp.asarray([[[0.0, 0.0, 0.0, 0.0], [9.0, 1.0, 0.5, 9.0]]])
    parts = {each: jnp.ones(1) for each in ("length_offset", "length_slope", "length_power")}
    weights = kind(scores, seen, parts)
    assert np.array_equal(weights[0, 0], np.zeros(4))
    assert np.array_equal(weights[0, 1, [0, 3]], [0, 0]) and np.isfinite(weights).all()
