"""The gradient through any kind of weights against the formulas of three of them, and its best scale."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import scale
from rc_jax.attention import KINDS, Kind
from rc_jax.scale import kinds
from rc_jax.scale.kinds import kind_best_scale, kind_gradient


def test_softmax_and_1_5_entmax_by_their_formulas(x64):
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(5, 12)))
    p = np.asarray(jax.nn.softmax(1.7 * scores))
    np.testing.assert_allclose(
        kind_gradient(KINDS["softmax"], scores, 1.7), 1.7 * (1 - (p**2).sum(axis=-1)), rtol=1e-12
    )
    # J = α(diag g − ggᵀ/Σg), g = √p, so half the sum of magnitudes is α(Σg − Σg²/Σg).
    root = np.sqrt(np.asarray(KINDS["entmax15"](1.7 * scores[None])[0]))
    total = root.sum(axis=-1)
    np.testing.assert_allclose(
        kind_gradient(KINDS["entmax15"], scores, 1.7), 1.7 * (total - (root**2).sum(axis=-1) / total), rtol=1e-10
    )
    # Each sigmoid depends on its own score alone.
    slope = jax.nn.sigmoid(1.7 * scores - jnp.log(12)) * jax.nn.sigmoid(jnp.log(12) - 1.7 * scores)
    np.testing.assert_allclose(kind_gradient(KINDS["sigmoid"], scores, 1.7), 1.7 * slope.sum(axis=-1) / 2, rtol=1e-12)


def test_two_score_matrices_count_both(x64):
    scores = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 6)))
    first, second = (np.asarray(jax.nn.softmax(2 * part)) for part in scores)
    expected = 2 * (1 - (first**2).sum(-1)) + 0.3 * 2 * (1 - (second**2).sum(-1))
    got = kind_gradient(KINDS["differential"], scores, 2.0, {"subtracted": jnp.full(1, 0.3)})
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.slow
def test_the_best_scale_of_softmax_is_the_typical_scale(key):
    best = kind_best_scale(key, KINDS["softmax"], 64, rows=2048)
    optimum = scale.typical_optimum(key, 64, samples=4096)
    error = float(np.hypot(best.standard_error, optimum.standard_error))
    assert bool(best.converged) and abs(float(best.scale - optimum.scale)) < 5 * error + 0.03


def test_kinds_are_compared_by_one_meaning_of_typical(key):
    """Softpick lets through what softmax does of normal rows; by another average its optimum would be called larger."""
    found = {
        (name, typical): kind_best_scale(key, KINDS[name], 16, rows=1024, typical=typical)
        for name in ("softmax", "softpick") for typical in (None, "median")
    }  # fmt: skip
    own, same, other = (found[each] for each in (("softpick", None), ("softmax", "median"), ("softmax", None)))
    assert abs(float(own.scale - same.scale)) < 2 * float(np.hypot(own.standard_error, same.standard_error))
    assert float(own.scale - other.scale) > 4 * float(np.hypot(own.standard_error, other.standard_error))
    np.testing.assert_array_equal(own.scale, found["softpick", "median"].scale)


@pytest.mark.slow
def test_the_error_of_a_median_is_that_of_repetitions():
    best = [kind_best_scale(jax.random.key(i), KINDS["softmax"], 16, rows=512, typical="median") for i in range(40)]
    scales, errors = (np.array([float(getattr(each, name)) for each in best]) for name in ("scale", "standard_error"))
    assert 0.7 < np.sqrt(np.mean(errors**2)) / scales.std(ddof=1) < 1.4


def levelled(scores, seen, parts):
    """|s| + 1 over its sum: once scores are large a factor on them changes nothing."""
    weights = jnp.where(seen, jnp.abs(scores) + 1, 0)
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (KINDS["identity"], np.inf, "rises beyond 256"),
        (KINDS["power6"], np.nan, "the same at every scale"),
        (Kind("levelled", levelled, row_sum="one"), None, "flat from .* on"),
        (Kind("steep", lambda s, seen, parts: KINDS["softmax"](30 * s, seen)), 0.0, "0.25 or less"),
        (Kind("constant", lambda s, seen, parts: jnp.where(seen, 0 * s + 1 / 8, 0)), None, "no gradient in a typical"),
    ],
)
def test_kinds_without_a_best_scale(kind, value, reason, key):
    best = kind_best_scale(key, kind, 8, rows=64)
    assert not bool(best.converged) and np.isnan(best.standard_error)
    assert re.match(reason, best.reason)
    if value is not None:
        np.testing.assert_equal(float(best.scale), value)


def overflowing(scores, seen, parts):
    """Softmax that is no number where a score is large."""
    large = jnp.any(jnp.abs(scores) > 300, axis=-1, keepdims=True)
    return jnp.where(large, jnp.nan, 1) * KINDS["softmax"](scores, seen)


def test_a_gradient_that_is_no_number_is_named(key):
    best = kind_best_scale(key, Kind("overflowing", overflowing), 8, rows=64)
    assert not bool(best.converged) and np.isnan(best.scale) and np.isnan(best.value)
    assert re.fullmatch(r"the gradient is no number at scale (128|181|256)", best.reason)


def test_a_maximum_that_groups_do_not_have_is_not_called_flat(key, monkeypatch):
    found = iter(["", *["rises beyond 256"] * 16])
    monkeypatch.setattr(kinds, "_peak", lambda values, smooth: kinds._Peak(2.5, 0.0, next(found)))
    best = kind_best_scale(key, KINDS["softmax"], 8, rows=64)
    assert (bool(best.converged), float(best.scale)) == (False, 2.5) and np.isnan(best.standard_error)
    assert best.reason == "a maximum near 2.5 that some groups of rows do not have"


def test_a_maximum_between_two_zeros_is_known_to_a_step_of_the_grid():
    values = np.full(len(kinds._GRID), -np.inf)
    values[6] = 0.0
    peak = kinds._peak(values, True)
    step = np.linspace(-1, 1, 10_001) * np.log(kinds._GRID[1] / kinds._GRID[0])
    assert peak.inside and peak.coarse == pytest.approx(peak.scale * np.std(step), rel=1e-3)


def test_where_it_is_flat_no_larger_scale_does_better(key):
    kind = Kind("levelled", levelled, row_sum="one")
    best = kind_best_scale(key, kind, 8, rows=64)
    scores = jax.random.normal(key, (1, 64, 8))

    def typical(alpha):
        return float(np.mean(np.log(np.asarray(kind_gradient(kind, scores, alpha)))))

    start = float(best.scale)
    assert 4 < start < 256 and typical(256.0) - typical(start) < 0.01 < typical(256.0) - typical(start / 2)


def test_every_best_scale_has_an_error(key):
    # In some eighths of the rows sigmoid's gradient has no maximum inside of the grid.
    for name, n in (("softmax", 16), ("sparsemax", 16), ("sigmoid", 256)):
        best = kind_best_scale(key, KINDS[name], n)
        assert bool(best.converged) and 0 < float(best.standard_error) < 0.5 * float(best.scale), name
        assert best.reason == ""


def test_the_best_scale_has_no_bias_beside_its_error():
    """The peak is not symmetric: a parabola through three points of the grid is 0.04 below it, five of these errors."""
    best = kind_best_scale(jax.random.key(0), KINDS["softmax"], 8, rows=2**16)
    right = scale.typical_optimum(jax.random.key(1), 8, samples=2**16)
    error = math.hypot(float(best.standard_error), float(right.standard_error))
    assert error < 0.01 and abs(float(best.scale - right.scale)) < 4 * error


def test_a_call_inside_a_trace_is_refused(key):
    def best(key):
        return kind_best_scale(key, KINDS["softmax"], 4, rows=8).scale

    for traced in (
        lambda: jax.jit(best)(key),
        lambda: jax.vmap(best)(jax.random.split(key)),
        jax.jit(lambda: best(key)),
    ):
        with pytest.raises(TypeError, match="`kind_best_scale` must be called outside jit, vmap and grad"):
            traced()
