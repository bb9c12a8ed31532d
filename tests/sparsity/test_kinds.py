"""Sparsity of random rows of any kind, against closed forms of their limit and a count by hand."""

import jax
import jax.numpy as jnp
import pytest

from rc_jax import attention, sparsity
from rc_jax.attention import KINDS, Kind
from rc_jax.scale.kinds import kind_best_scale
from rc_jax.sparsity.kinds import kind_largest_weight, kind_sparsity, rows_are_independent


@pytest.mark.parametrize(
    ("name", "limit"),
    [("softmax", sparsity.exponential(0.5)), ("identity", sparsity.identity(0.0, 0.5)), ("relu_squared", 6**-0.5)],
)
def test_long_rows_have_the_sparsity_of_the_kernel(key, name, limit):
    mean, error = kind_sparsity(key, KINDS[name], 0.5, 16384, rows=32)
    assert abs(mean - float(limit)) < 5 * error + 2e-3


def test_rows_of_zeros_are_left_out(key):
    mean, error = kind_sparsity(key, KINDS["sparsemax"], 50.0, 8)
    assert abs(mean - 8**-0.5) < 0.05 and error >= 0  # nearly every row has one weight


def test_the_largest_weight_of_even_rows(key):
    assert kind_largest_weight(key, KINDS["softmax"], 1e-6, 32)[0] == pytest.approx(1 / 32, rel=1e-4)
    few, many = (kind_largest_weight(key, KINDS["entmax15"], 2.0, n)[0] for n in (64, 2048))
    assert many > few / 2


@pytest.mark.parametrize("function", [kind_sparsity, kind_largest_weight])
def test_a_call_inside_a_trace_is_refused(key, function):
    def mean(gamma, key=key):
        return function(key, KINDS["softmax"], gamma, 4, rows=2)[0]

    keys = jax.random.split(key)
    for traced in (lambda: jax.jit(mean)(1.0), lambda: jax.grad(mean)(1.0), lambda: jax.vmap(mean)(jnp.ones(2), keys)):
        with pytest.raises(TypeError, match=f"`{function.__name__}` must be called outside jit, vmap and grad"):
            traced()
    with pytest.raises(TypeError, match="`rows_are_independent` must be called outside jit"):
        jax.jit(lambda: rows_are_independent(KINDS["softmax"]))()


def test_which_rows_depend_on_each_other():
    coupled = [name for name, kind in KINDS.items() if kind.reads == "scores" and not rows_are_independent(
        kind, {part: jnp.ones(1) for part in ("sink", "subtracted", "length_offset", "length_slope", "length_power")}
    )]  # fmt: skip
    assert coupled == ["sinkhorn"]


@pytest.mark.parametrize(("given", "said"), [({}, "none"), ({"other": jnp.ones(1)}, "'other'")])
def test_arrays_that_a_kind_lacks_are_named(key, given, said):
    def tempered(scores, seen, parts):
        return jax.nn.softmax(jnp.where(seen, scores / parts["tau"][:, None, None], -jnp.inf))

    kind = Kind(
        "tempered", tempered,
        shapes=lambda spec: {"tau": (spec.heads,)}, start=lambda spec, dtype: {"tau": jnp.ones(spec.heads, dtype)},
    )  # fmt: skip
    message = rf"`parts` must hold 'tau' of kind 'tempered', got {said}"
    with pytest.raises(ValueError, match=message):
        kind_sparsity(key, kind, 1.0, 16, parts=given)
    with pytest.raises(ValueError, match=message):
        kind_best_scale(key, kind, 16, rows=16, parts=given)
    parts = attention.init(key, attention.AttentionSpec(d_model=8, weights=kind)).parts
    assert kind_sparsity(key, kind, 1.0, 16, parts=parts) == pytest.approx(
        kind_sparsity(key, KINDS["softmax"], 1.0, 16)
    )


def test_a_mistake_of_a_kinds_own_stays_what_it_is(key):
    with pytest.raises(KeyError, match="table"):
        kind_sparsity(key, Kind("mistaken", lambda scores, seen, parts: {}["table"]), 1.0, 16)
