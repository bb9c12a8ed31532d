"""Split tokens through weights of other row sums, capped logits and gates: against hundreds and thousands of digits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, collapse
from tests.collapse.exact.test_trajectory import TOLERANCE, draw, exact_logs, mostly_slow, stack, worst_error

WINDOW = abs(np.subtract.outer(range(5), range(5))) <= 1
ANY = (-np.inf, np.inf)
ROTARY = {"rotary": attention.Rotary()}
# The network, its draw, digits, the tolerance over `TOLERANCE`, and where the last logarithm lies.
CASES = {
    # Doubly exponential: rows of one sum.
    "differential": ({"weights": "differential", "depth": 6}, {}, 3000, 2, (-np.inf, -300)),
    "sinkhorn": ({"weights": "sinkhorn", "depth": 6}, {}, 3000, 4, (-np.inf, -300)),
    "one step of sinkhorn": ({"weights": "sinkhorn", "sinkhorn_steps": 1, "depth": 4}, {}, 600, 2, ANY),
    "cap": ({"soft_cap": 0.5, "depth": 6}, {}, 3000, 4, (-np.inf, -300)),
    # To first order in the end: the level of a row's logits decides.
    "plus one": ({"weights": "softmax_plus_one", "depth": 12}, {}, 300, 8, (-200, -10)),
    "sink": ({"weights": "softmax_sink", "depth": 8}, {}, 300, 8, (-200, -10)),
    "sigmoid": ({"weights": "sigmoid", "depth": 8}, {}, 300, 8, (-200, -5)),
    "gate of features": ({"output_gate": "elementwise", "depth": 8}, {}, 300, 8, (-200, -5)),
    "gate of heads": ({"output_gate": "headwise", "depth": 8}, {}, 300, 8, (-200, -5)),
    # Together, under masks, with skips, cosines, ranks, sharp logits, and from tokens that have collapsed already.
    "sink, causal": ({"weights": "softmax_sink", "causal": True}, {}, 100, 8, ANY),
    "sigmoid, window": ({"weights": "sigmoid", "window": 1}, {}, 100, 8, ANY),
    "sinkhorn, window": ({"weights": "sinkhorn", "window": 1}, {}, 100, 8, ANY),
    "differential, causal, gate": (
        {"weights": "differential", "causal": True, "output_gate": "headwise"},
        {},
        100,
        8,
        ANY,
    ),
    "cap, sink": ({"soft_cap": 0.5, "weights": "softmax_sink"}, {"size": 2.0}, 300, 8, ANY),
    "cap, sigmoid, causal": ({"soft_cap": 2.0, "weights": "sigmoid", "causal": True}, {}, 100, 8, ANY),
    "sigmoid, skip": ({"weights": "sigmoid", "skip": True, "depth": 5}, {"size": 0.5}, 60, 8, ANY),
    "sink, cosines": ({"weights": "softmax_sink", "scores": "cosine"}, {}, 300, 8, ANY),
    "differential, cosines": (
        {"weights": "differential", "scores": "cosine", "d_model": 8, "depth": 5},
        {},
        1500,
        8,
        ANY,
    ),
    "sink, top 2": ({"weights": "softmax_sink", "top_k": 2, "depth": 5}, {"size": 0.3}, 1500, 16, ANY),
    "sigmoid, rank": ({"weights": "sigmoid", "rank": 2, "tokens": 6, "depth": 5}, {"tokens": 6}, 200, 16, ANY),
    "sink, rank": ({"weights": "softmax_sink", "rank": 2, "tokens": 6, "depth": 5}, {"tokens": 6}, 200, 16, ANY),
    "difference, rank": ({"weights": "differential", "rank": 2, "tokens": 6, "depth": 5}, {"tokens": 6}, 200, 16, ANY),
    # With positions in the logits.
    "sink, rotary": ({"weights": "softmax_sink", "causal": True} | ROTARY, {}, 100, 16, ANY),
    "sigmoid, rotary": ({"weights": "sigmoid", "depth": 5} | ROTARY, {}, 100, 16, ANY),
    "cap, rotary": ({"soft_cap": 0.5, "causal": True} | ROTARY, {}, 100, 16, ANY),
    "cap, plus one, log tokens": (
        {"soft_cap": 0.5, "weights": "softmax_plus_one", "causal": True, "scale_law": "log_tokens"},
        {},
        100,
        16,
        ANY,
    ),
    "differential, rotary": ({"weights": "differential", "d_model": 8, "causal": True} | ROTARY, {}, 100, 16, ANY),
    "sharp sinkhorn": ({"weights": "sinkhorn", "depth": 3}, {"size": 10.0}, 300, 32, ANY),
    # Half a rounding of weights and tokens moves the right result by up to 42 of these units.
    "sharp sink": ({"weights": "softmax_sink", "depth": 3}, {"size": 10.0}, 300, 40, ANY),
    "sharp sigmoid": ({"weights": "sigmoid", "depth": 3}, {"size": 10.0}, 300, 32, ANY),
    "collapsed, plus one": ({"weights": "softmax_plus_one", "depth": 3}, {"size": 1e-12}, 300, 8, ANY),
    "collapsed, cap": ({"soft_cap": 0.5, "depth": 3}, {"size": 1e-12}, 1500, 8, ANY),
}
FAST = ("cap, sink", "sinkhorn", "difference, rank")


@pytest.mark.parametrize("name", mostly_slow(CASES, fast=FAST))
def test_agrees_with_many_digits(dtype, name):
    shape, drawn, digits, factor, last = CASES[name]
    spec = stack(**shape)
    params, x = draw(3, spec, dtype, **drawn)
    if "subtracted" in params.attention.parts:
        params = params._replace(
            attention=params.attention.with_parts(subtracted=jnp.asarray([[0.2, 0.8]] * spec.depth, dtype))
        )
    layer = spec.attention
    seen = np.tri(5, dtype=bool) if layer.causal else WINDOW if layer.window else None
    exact = exact_logs(params, x, spec, digits, mask=seen)
    assert worst_error(collapse.log_residuals(params, x, spec), exact) < factor * TOLERANCE[dtype]
    assert last[0] < exact[-1] < last[1]


@pytest.mark.slow
def test_a_faint_sink_takes_over_where_the_cube_has_fallen_below_it(dtype):
    """A weight of e^(−40)/n moves nothing at first, and is all that is left once tokens differ by its root."""
    spec = stack(weights="softmax_sink", depth=8)
    params, x = draw(0, spec, dtype)
    faint = params._replace(attention=params.attention.with_parts(sink=jnp.full((8, 2), -40.0, dtype)))
    logs = collapse.log_residuals(faint, x, spec)
    assert worst_error(logs, exact_logs(faint, x, spec, 800)) < 8 * TOLERANCE[dtype]
    falls = np.diff(np.asarray(logs, float))
    assert falls[2] / falls[1] > 2.2 and abs(falls[-1] / falls[-2] - 1) < 0.6


CAPPED = pytest.param({"causal": True, "soft_cap": 1.0} | ROTARY, marks=pytest.mark.slow)


@pytest.mark.parametrize("shape", [{}, CAPPED], ids=["plain", "causal"])
def test_a_sink_of_no_weight_is_no_sink(shape, dtype):
    spec, without = stack(weights="softmax_sink", depth=4, **shape), stack(depth=4, **shape)
    params, x = draw(0, spec, dtype)
    params = params._replace(attention=params.attention.with_parts(sink=jnp.full((4, 2), -jnp.inf, dtype)))
    plain = collapse.log_residuals(params, x, without)
    np.testing.assert_allclose(collapse.log_residuals(params, x, spec), plain, rtol=8 * TOLERANCE[dtype])


def beside(level, spec, dtype):
    """Parameters and tokens of one head without biases: a common token whose logit with itself is `level`, and 1e−3."""
    params, x = draw(3, spec, dtype, bias_std=0.0)
    common = x[0] / jnp.abs(x[0]).max()
    query, key = (jnp.einsum("d,dk->k", common, w[0, 0]) for w in (params.attention.query, params.attention.key))
    logit = jnp.sum(query * key) * spec.attention.head_width**-0.5
    params = params._replace(
        attention=params.attention._replace(query=params.attention.query * jnp.sign(logit * level))
    )
    return params, (common * jnp.sqrt(jnp.abs(level / logit)))[None] + jnp.asarray(1e-3, dtype) * x


@pytest.mark.parametrize("level", [30.0, -60.0])
def test_a_cap_deep_in_its_saturation(level):
    """Its slope is e^(−2 · 30) and e^(−2 · 60), whose square and which itself are below single precision's numbers."""
    spec = stack(depth=1, heads=1, bias=False, soft_cap=1.0)
    params, x = beside(level, spec, "float32")
    exact = exact_logs(params, x, spec, 200)
    assert exact[1] < -2 * abs(level)
    assert worst_error(collapse.log_residuals(params, x, spec), exact) < 8 * TOLERANCE["float32"]


@pytest.mark.parametrize("size", [5.0, pytest.param(8.0, marks=pytest.mark.slow), 100.0])
def test_a_cap_that_the_logits_of_a_row_are_on_both_sides_of(size, dtype):
    """The sum of two tanhs, of −w and w beside the cap, is e^(−2w) beside 1; a factor e^(2w) makes it of order one."""
    spec = stack(depth=1, heads=1, soft_cap=0.5)
    params, x = draw(3, spec, dtype)
    x = size * jnp.concatenate([-x[:2], 1.5 * x[1:]])
    exact = exact_logs(params, x, spec, 300)
    assert worst_error(collapse.log_residuals(params, x, spec), exact) < 32 * TOLERANCE[dtype]


@pytest.mark.parametrize("size", [1e3, 1e5])
def test_sigmoids_of_large_logits(size):
    """Of the three powers of e in the difference of two of them the exponents cancel."""
    spec = stack(depth=1, bias=False, weights="sigmoid")
    params, x = draw(0, spec, "float32", bias_std=0.0, size=size)
    exact = exact_logs(params, x, spec, 200)
    assert worst_error(collapse.log_residuals(params, x, spec), exact) < TOLERANCE["float32"]


def test_sigmoids_below_the_smallest_number_tell_what_rows_see():
    spec = stack(depth=1, heads=1, bias=False, weights="sigmoid", window=1)
    params, x = beside(-120.0, spec, "float32")
    exact = exact_logs(params, x, spec, 200)
    assert exact[1] < -100
    assert worst_error(collapse.log_residuals(params, x, spec), exact) < 8 * TOLERANCE["float32"]


@pytest.mark.slow
def test_derivatives_are_finite_and_right(x64):
    for shape in ({"weights": "sigmoid"}, {"weights": "softmax_sink", "soft_cap": 1.0}, {"weights": "sinkhorn"},
                  {"weights": "differential", "output_gate": "elementwise"}):  # fmt: skip
        spec = stack(depth=3, **shape)
        params, x = draw(1, spec, "float64")
        move = jax.random.normal(jax.random.key(7), x.shape)
        last = jax.grad(lambda t, s=spec, p=params, x=x, m=move: collapse.log_residuals(p, x + t * m, s)[-1])
        slope = jax.jit(last)(jnp.zeros(()))
        up, down = (exact_logs(params, x + t * move, spec, 60)[-1] for t in (1e-7, -1e-7))
        assert abs(float(slope) / float((up - down) / 2e-7) - 1) < 1e-6, shape


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": "linear"}, "`spec` must have weights that read scores, which split as tokens do, got 'linear'"),
    ],
)
@pytest.mark.usefixtures("as_installed")
def test_what_is_not_covered(changes, message):
    spec = stack(depth=2, **changes)
    params, x = draw(0, spec, "float32")
    with pytest.raises(collapse.NotCovered, match=message):
        collapse.log_residuals(params, x, spec)


@pytest.mark.usefixtures("as_installed")
def test_theories_of_softmax_refuse_gates_and_caps():
    for changes, part in (({"output_gate": "headwise"}, "output_gate"), ({"soft_cap": 1.0}, "soft_cap")):
        spec = stack(depth=2, bias=False, **changes)
        params, x = draw(0, spec, "float32", bias_std=0.0)
        with pytest.raises(collapse.NotCovered, match=f"`spec` must have {part}=None"):
            collapse.sample_log_residuals(jax.random.key(0), x, spec)
        with pytest.raises(collapse.NotCovered, match=f"`spec` must have {part}=None"):
            collapse.layer_bound(params, x, spec)
    gated = dataclasses.replace(
        spec, attention=dataclasses.replace(spec.attention, soft_cap=None, output_gate="headwise")
    )
    with pytest.raises(collapse.NotCovered, match="`spec` must have output_gate=None"):
        collapse.path_length_sums(params, x, gated)
