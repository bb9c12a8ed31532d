"""Standard errors of means that figures take themselves: of two values, half of their distance."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures.anatomy import position_codes
from experiments.figures.later import attention_of_today
from rc_jax.attention import KINDS


def test_lengths_of_embeddings():
    spec = dataclasses.replace(position_codes.PRESETS["smoke"], words=2, d_models=(32,), octaves=2, shifts=2)
    with jax.enable_x64(True):
        error = position_codes.compute(spec)["norm_error"]
    lengths = np.linalg.norm(np.random.default_rng(spec.seed).normal(size=(2, 32)) / np.sqrt(32), axis=1)
    assert error == pytest.approx(abs(lengths[0] - lengths[1]) / 2, rel=1e-12)


@pytest.mark.slow
def test_rows_of_weights():
    spec = dataclasses.replace(attention_of_today.PRESETS["smoke"], rows=2, keys=256, plan=16, gammas=(0.5,))
    with jax.enable_x64(True):
        rows = attention_of_today._rows(spec)
        scores = 0.5 * np.random.default_rng(spec.seed).standard_normal((2, 2, 256))
        weights = np.asarray(KINDS["sigmoid"](jnp.asarray(scores[:1])))[0]
    first, second = np.mean(weights, axis=-1) / np.sqrt(np.mean(weights**2, axis=-1))
    error = rows["sparsity_error"][attention_of_today.ROWS.index("sigmoid"), 0]
    assert error == pytest.approx(abs(first - second) / 2, rel=1e-9)
