"""The figure `notes_proof` against softmax written out, and a layer whose bound is known by hand."""

import numpy as np
import pytest

from experiments.figures.collapse import notes_proof
from experiments.ledger import judged
from tests.experiments import smoke_data


def test_composite_norm_of_a_matrix_by_hand():
    assert notes_proof._norm(np.array([[1.0, -2.0], [3.0, 0.0]])) == pytest.approx((4 * 3) ** 0.5)
    assert notes_proof._norm(np.array([[1.0], [2.0]])) == pytest.approx((3 * 2) ** 0.5)


def test_last_bound_against_a_layer_written_out():
    """The same draws: R' is the output less the row that the notes take away, computed from whole scores."""
    spec, size = notes_proof.PRESETS["smoke"], 0.3
    ratio, move, cubic = notes_proof._last_bound(np.random.default_rng(5), spec, size)
    rng, n = np.random.default_rng(5), spec.width
    x, weight, value = size * rng.normal(size=(n, n)), rng.normal(size=(n, n)), rng.normal(size=(n, n))
    scores = np.exp(x @ weight @ x.T / n**0.5)
    centre, rest = x.mean(axis=0), x - x.mean(axis=0)
    shared = np.exp(rest @ weight.T @ centre / n**0.5)
    row = centre + rest.T @ shared / shared.sum()
    after = (scores / scores.sum(axis=1, keepdims=True) @ x - row) @ value
    perturbation = rest @ weight @ rest.T / n**0.5
    moves = [max(abs(a - b) for a in line for b in line) for line in perturbation]
    bound = 2 * (sum(moves) * max(moves)) ** 0.5 * notes_proof._norm(rest) * notes_proof._norm(value)
    assert move == pytest.approx(max(moves))
    assert ratio == pytest.approx(notes_proof._norm(after) / bound)
    assert ratio < 1
    columns = max(sum(abs(entry) for entry in column) for column in weight.T)
    norms = [notes_proof._norm(each) for each in (rest, value)]
    assert cubic == pytest.approx(notes_proof._norm(after) / (4 * columns * norms[1] * norms[0] ** 3))
    assert cubic < 1


def test_the_printed_expansion_decides_and_one_constant_is_enough():
    data = smoke_data.load("notes_proof")

    def verdicts(**changed):
        claims = judged(notes_proof.ROWS, data | changed)
        return {claim.key: claim.verdict.value for claim in claims if claim.key in ("notes-expansion", "notes-gamma")}

    assert verdicts() == {"notes-expansion": "differs", "notes-gamma": "agrees"}
    right = np.full_like(data["printed"], 1e-16)
    assert verdicts(printed=right, cubic=2 * np.ones_like(data["cubic"])) == {
        "notes-expansion": "agrees",
        "notes-gamma": "differs",
    }
