"""The sides of the benchmark of diagnoses compute the same numbers, and its targets are read off its contests."""

import numpy as np
import pytest

from experiments.benchmarks import contest, report, targets
from experiments.benchmarks.instruments import diagnosis
from experiments.benchmarks.machine import Roofline

ROOF = Roofline(matmul_flops=1e11, normals=1e9, exponentials=1e9, copied_bytes=1e10)


@pytest.mark.slow
def test_the_sides_agree(monkeypatch):
    """Rows, blocks that do not fit, and σ₂/σ₁ as the diagnosis has it."""
    for causal in (False, True):
        assert contest.check(diagnosis.streaming(300, causal, alone=False)) == {}
    monkeypatch.setattr(diagnosis, "TOKENS", 24)
    assert contest.check(diagnosis.weights(2)) == {}
    p = np.random.default_rng(0).dirichlet(np.ones(24), (2, 3, 24)).astype(np.float32)
    ours = diagnosis.diagnostics.attention(p)["second_singular_value"]
    np.testing.assert_allclose(diagnosis.second_values(p).reshape(2, 3), ours, rtol=1e-3)


def test_targets(monkeypatch):
    """Two seconds for all layers; one and a half times the least for the longest sequence alone."""
    monkeypatch.setattr(diagnosis, "weights", lambda layers: made(diagnosis.OURS, f"Diagnosis of {layers}", layers))
    results = [
        (diagnosis.weights(12), 2.5),
        (diagnosis.streaming(1024, True, alone=True), 1e-2),
        (made(diagnosis.STREAMING, "n = 131,072", 10**9, diagnosis.Counts(operations=100, exponentials=1)), 3.0),
    ]
    plain = [
        report.plain(contest.Result(each, {name: np.array([seconds]) for name in each.sides}), ROOF)
        for each, seconds in results
    ]
    section = {"contests": plain, "tables": []}
    rows = [(bound, value, met) for _, bound, value, met in targets.rows({"diagnosis": section})]
    assert rows == [("≤ 2", 2.5, False), ("≤ 1.5", pytest.approx(1.5), True)]


def made(side, title, work, counts=None):
    return contest.Contest(
        title, "x/s", work, {side: lambda: np.ones(1)}, side, counts={side: counts} if counts else {}
    )
