"""Standard errors of means that figures take themselves: of two values, half of their distance."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.figures.anatomy import position_codes


def test_lengths_of_embeddings():
    spec = dataclasses.replace(position_codes.PRESETS["smoke"], words=2, d_models=(32,), octaves=2, shifts=2)
    with jax.enable_x64(True):
        error = position_codes.compute(spec)["norm_error"]
    lengths = np.linalg.norm(np.random.default_rng(spec.seed).normal(size=(2, 32)) / np.sqrt(32), axis=1)
    assert error == pytest.approx(abs(lengths[0] - lengths[1]) / 2, rel=1e-12)
