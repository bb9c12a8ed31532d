"""The networks without attention of the figure `collapse_depth`, against the Lyapunov exponents of random products."""

import dataclasses

import numpy as np
import pytest
from scipy.special import digamma

from experiments.figures.collapse import collapse_depth


@pytest.fixture(scope="module")
def measured():
    spec = dataclasses.replace(collapse_depth.PRESETS["smoke"], width=20, layers=128, networks=100, depth=12)
    return collapse_depth._networks_without_attention(spec)


def test_linear_networks_lose_rank_at_the_gap_of_lyapunov_exponents(measured):
    """Log σ₂/σ₁ of a product of square Gaussian matrices falls by ½(ψ(d/2) − ψ((d − 1)/2)) a layer (Newman 1986)."""
    layers = measured["other_layer"]
    early, late = (int(np.argmax(layers == layer)) for layer in (64, 128))
    falls = (measured["other_log"][0, :, late] - measured["other_log"][0, :, early]) / 64
    gap = 0.5 * (digamma(20 / 2) - digamma(19 / 2))
    assert abs(falls.mean() + gap) < 5 * falls.std(ddof=1) / np.sqrt(falls.size)


def test_ranks_lie_between_one_and_the_width(measured):
    assert measured["other_rank"].shape == (4, 100, measured["other_layer"].size)
    assert (measured["other_rank"] >= 1 - 1e-12).all() and (measured["other_rank"] <= 20).all()
    assert measured["other_rank"][2, :, -1].mean() > measured["other_rank"][0, :, -1].mean() + 0.5
