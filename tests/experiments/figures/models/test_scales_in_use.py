"""The scale of one row of logits, against SciPy's maximiser on every row."""

import numpy as np
import pytest
import scipy.optimize
import scipy.special

from experiments.figures.models import _model_scales


def norm(alpha, scores):
    p = scipy.special.softmax(alpha * scores)
    return alpha * (p * (1 - p)).sum()


@pytest.mark.slow
def test_rows_against_scipy():
    rows = 3 + 0.7 * np.random.default_rng(0).standard_normal((100, 24)).astype(np.float32)
    scales = _model_scales.row_scales(rows)
    assert {name: len(value) for name, value in scales.items()} == dict.fromkeys(("implied", "best", "share"), 100)
    np.testing.assert_allclose(scales["implied"], rows.std(axis=1), rtol=1e-5)
    scores = (rows - rows.mean(1, keepdims=True)) / rows.std(1, keepdims=True)
    grid = np.linspace(np.log(0.25), np.log(64), 41)
    for i, row in enumerate(scores):
        start = grid[np.argmax([norm(np.exp(u), row) for u in grid])]
        exact = scipy.optimize.minimize_scalar(
            lambda u, s=row: -norm(np.exp(u), s), bounds=(start - 0.2, start + 0.2), method="bounded"
        )
        if np.exp(exact.x) < 60:  # beyond the grid's end the oracle stops short
            assert abs(scales["best"][i] / np.exp(exact.x) - 1) < 0.01
            assert abs(scales["share"][i] * -exact.fun / norm(rows[i].std(), row) - 1) < 1e-3
