"""The two failures: shortcuts of the simulation give what is drawn in full.

The map needs inner products alone, not layers with all their weights, and rows far too long to draw need their largest
logits alone.
"""

import dataclasses

import numpy as np
import pytest

from experiments.figures.later import two_failures


def wide_layers(rng, n, d, layers, beta, strength):
    """Mean off-diagonal inner product of tokens after layers of width d, all weights drawn, and Σp² in the last."""
    x, p = np.linalg.qr(rng.normal(size=(d, n)))[0].T * d**0.5, None
    sigma = beta * np.sqrt(np.log(n))
    for _ in range(layers):
        logits = sigma * (x @ rng.normal(size=(d, d)) @ x.T) / d
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        x = strength * x + p @ x @ rng.normal(size=(d, d)) / d**0.5
        x *= d**0.5 / np.linalg.norm(x, axis=1, keepdims=True)
    gram = x @ x.T / d
    return (gram.sum() - n) / (n * (n - 1)), np.sum(p * p) / n


@pytest.mark.slow
def test_inner_products_are_enough():
    rng = np.random.default_rng(0)
    spec = dataclasses.replace(two_failures.PRESETS["smoke"], tokens=8, layers=3)
    for beta, strength in ((0.8, 0.5), (2.0, 0.5), (2.0, 0.0)):
        narrow = np.array([two_failures._network(rng, spec, beta, strength) for _ in range(400)])
        wide = np.array([wide_layers(rng, 8, 256, 3, beta, strength) for _ in range(200)])
        error = np.hypot(narrow.std(axis=0) / 20, wide.std(axis=0) / 200**0.5)
        assert np.all(np.abs(narrow.mean(axis=0) - wide.mean(axis=0)) < 5 * error + 8 / 256), (beta, strength)


def test_largest_logits_are_enough():
    """Rows drawn in full against rows of which the 64 largest logits are drawn: the crossing and the mean of Σp²."""
    rng, log_n, beta = np.random.default_rng(0), np.log(1024), two_failures.LIMIT_BETA
    shortened = [two_failures._largest(rng, log_n, 256, 64) for _ in range(16)]
    drawn = [rng.normal(size=(256, 1024)) for _ in range(16)]
    short, full = (
        np.array([[statistics(rows, b)[0].mean() for b in beta] for rows in draws])
        for draws, statistics in (
            (shortened, lambda rows, b: two_failures._extreme_statistics(rows, log_n, b)),
            (drawn, two_failures._row_statistics),
        )
    )
    error = np.hypot(short.std(axis=0), full.std(axis=0)) / 4
    assert np.all(np.abs(short.mean(axis=0) - full.mean(axis=0)) < 5 * error)

    near = np.linspace(1.2, 1.6, 9)
    short, full = (
        np.array(values)
        for values in (
            [two_failures._bisected(rows, log_n) for rows in shortened],
            [
                two_failures._crossing(near, [np.median(two_failures._row_statistics(r, b)[1]) for b in near])
                for r in drawn
            ],
        )
    )
    error = np.hypot(short.std(), full.std()) / 4
    assert abs(short.mean() - full.mean()) < 5 * error


def test_largest_logits_are_the_largest():
    """Their mean is that of the largest of T normals, and they come in order."""
    rng = np.random.default_rng(1)
    largest = two_failures._largest(rng, np.log(1024), 4000, 8)
    assert np.all(np.diff(largest, axis=1) < 0)
    assert abs(largest[:, 0].mean() - 3.248) < 5 * largest[:, 0].std() / 4000**0.5
