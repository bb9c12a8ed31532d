"""What is read off the trainings, on made-up curves; and that a fixed scale gets no gradient."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.figures.training import _scale_in_training as study
from experiments.figures.training import scale_in_training
from experiments.figures.training._trained_scales import steps_to, threshold
from experiments.ledger import judged

SPEC = dataclasses.replace(scale_in_training.PRESETS["smoke"], depth=2)


def test_steps_to_a_level_between_records():
    step = np.array([0, 10, 20, 30])
    curves = np.array(
        [[4, 3, 1, 0.5], [4, 3, 3, 3], [1, 0, 0, 0], [4, 1.0, 4, 1], [4, np.nan, np.nan, np.nan], [4, 2, 2, 1]]
    )
    np.testing.assert_allclose(steps_to(2.0, curves, step), [15, np.inf, 0, 20 / 3, np.inf, 10])


def test_threshold_is_a_share_of_the_way_to_the_best():
    held_out = np.full((2, 3, 4, 2), 3.0)
    held_out[..., 1] = 2.0
    held_out[1, :, 2, 1] = [0.5, 1.0, 1.5]
    held_out[0, 0, 0, 1] = np.nan  # a lost replicate cannot be the best
    assert threshold(held_out) == pytest.approx(3 - 0.8 * 2)


def made_up(last, alpha=None, gradient=None):
    """One pair, three scales α = 1, 2, 4 with α* = 2, default 1, typical 4; `last` is (mode, seed, scale)."""
    last = np.asarray(last, float)
    held_out = np.stack([np.full(last.shape, 3.0), last], -1)
    alphas = np.array([1.0, 2.0, 4.0])
    start = np.broadcast_to(alphas, last.shape)
    data = {
        "held_out": held_out, "step": np.array([0, 8]), "alphas": alphas, "keys": np.array(16),
        "mark_annealed": np.array(2.0), "mark_default": np.array(4.0), "mark_one": np.array(1.0),
        "mark_typical": np.array(4.0),
        "alpha": np.stack([start, start if alpha is None else alpha], -1),
        "failed": np.where(np.isnan(last), 3, -1), "gradient": np.ones((*last.shape, 2)),
        "query_key_gradient": np.stack([np.ones(last.shape) if gradient is None else gradient] * 2, -1),
    }  # fmt: skip
    return {f"digits_cosine_{name}": value for name, value in data.items()} | {"pairs": np.array(["digits_cosine"])}


def verdicts(data):
    return {
        claim.key.removeprefix("trained-scale-"): claim.verdict.value for claim in judged(scale_in_training.ROWS, data)
    }


def test_the_row_on_cosines_asks_what_share_of_the_fall_is_left_at_a_factor_of_one():
    noise = 0.01 * np.arange(4)[:, None]
    hardly = np.array([[2.95, 0.5, 2.0]]) + noise  # all start at 3
    assert verdicts(made_up([hardly, hardly])) == {"one": "agrees"}
    well = np.array([[1.0, 0.5, 2.0]]) + noise
    (claim,) = judged(scale_in_training.ROWS, made_up([well, well]))
    assert claim.measured == pytest.approx((3 - 1.015) / (3 - 0.515), abs=0.01)
    assert claim.verdict.value == "undecided"  # the source speaks of other losses


def test_a_lost_replicate_leaves_its_rows_not_run_and_is_drawn():
    last = np.array([[[1.0, 0.5, 0.1], [np.nan, 0.6, 0.2]]] * 2)
    data = made_up(last)
    first = judged(scale_in_training.ROWS, data)[0]
    assert first.verdict.value == "not run"
    assert "1: 1 of 2 stopped" in first.note
    drawing = scale_in_training.plot(data)
    assert any(line.get_marker() == "x" for line in drawing.axes[0].get_lines())


@pytest.mark.slow
def test_only_a_learned_scale_gets_a_gradient():
    task = study.make("sorting", SPEC, jax.random.key(0))
    functions = study.Functions(study.model_spec(task, "dot", SPEC), 0.25)
    start = {"alpha": jnp.asarray(2.0), "learned": jnp.asarray(True)}

    @jax.jit
    def slope(alpha, learned):
        graph, weights, rest = nnx.split(functions.build(jax.random.key(1), start), nnx.Param, ...)

        def loss(weights):
            return functions.loss(nnx.merge(graph, weights, rest), task.held_out, {"alpha": alpha, "learned": learned})

        value, gradient = jax.value_and_grad(loss)(weights)
        return value, nnx.merge(graph, gradient, rest).log_scale[...]

    fixed, of_fixed = slope(jnp.asarray(2.0), jnp.asarray(False))
    learned, of_learned = slope(jnp.asarray(2.0), jnp.asarray(True))
    np.testing.assert_allclose(fixed, learned, rtol=1e-6)
    assert (of_fixed == 0).all() and (of_learned != 0).all()
    other, _ = slope(jnp.asarray(8.0), jnp.asarray(False))
    ignored, _ = slope(jnp.asarray(8.0), jnp.asarray(True))
    assert abs(other - fixed) > 1e-4
    np.testing.assert_allclose(ignored, learned, rtol=1e-6)
