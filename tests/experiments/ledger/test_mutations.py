"""Every row of the ledger can come out otherwise: stored numbers of the preset smoke, changed, change its verdict.

Each array of a figure is scaled, shifted, turned round and filled with NaN, one at a time, and the figure judges again.
A row that no finite change can move says nothing about the numbers: one that comes out has to come out otherwise, and
any other has to print another number. A row that reads an array is not run where the array is not known.
"""

import warnings

import numpy as np
import pytest

from experiments import ledger
from experiments.ledger import Verdict
from experiments.lib import figure
from tests.experiments import smoke_data

FINITE = {
    "scaled": lambda values: values * 1.5,
    "shrunk": lambda values: values / 3,
    "negative": lambda values: -values,
    "shifted up": lambda values: values + 3 * _size(values),
    "shifted down": lambda values: values - 3 * _size(values),
    "shifted far down": lambda values: values - 1e3 * _size(values),
    "scrambled": lambda values: np.random.default_rng(0).permutation(values.ravel()).reshape(values.shape),
    "constant": lambda values: np.full_like(values, _size(values)),
}
# Its rows are few and each judgement of them draws its comparison anew.
SLOW = {"focus_in_training"}
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in figure.names()]


def _size(values):
    finite = values[np.isfinite(values)] if values.dtype.kind in "fc" else values
    return max(float(np.abs(finite).max(initial=0.0)), 1.0)


def judged(module, data):
    """Rows by key; none where the figure refuses the numbers, in which case nothing is printed."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return {claim.key: claim for claim in ledger.judged(module.ROWS, data)}
        except (ValueError, IndexError, TypeError, ArithmeticError, np.linalg.LinAlgError):
            return {}


def outcome(claim):
    """What a change has to move: the verdict of a row that comes out; at smoke sizes some rows do not."""
    return claim.verdict if claim.verdict in (Verdict.AGREES, Verdict.IN_PART, Verdict.HELD) else printed(claim)


def printed(claim):
    return str(claim.measured), claim.verdict, claim.standard_error


@pytest.mark.parametrize("name", NAMES)
def test_every_row_changes_under_some_mutation_and_is_not_run_without_its_numbers(name):
    module, data = figure.load(name), smoke_data.load(name)
    known = judged(module, data)
    still, unread, judged_of_nothing = set(known), set(known), []
    for key, values in data.items():
        if values.dtype.kind not in "fciu" or not values.size:
            continue
        readers = set()
        for change in FINITE.values():
            other = judged(module, data | {key: change(values).astype(values.dtype)})
            still -= {row for row in still & set(other) if outcome(other[row]) != outcome(known[row])}
            readers |= {row for row in set(known) & set(other) if printed(other[row]) != printed(known[row])}
        if values.dtype.kind not in "fc":
            continue
        for broken in (np.full_like(values, np.nan), values.ravel()[:0]):
            other = judged(module, data | {key: broken})
            stopped = {row for row, claim in other.items() if claim.verdict is Verdict.NOT_RUN}
            unread -= stopped
            judged_of_nothing += [(key, row) for row in readers & set(other) - stopped]
    run = {row for row, claim in known.items() if claim.verdict is not Verdict.NOT_RUN}
    assert not still & run, "no finite change of any array moves these rows"
    assert not unread & run, "no NaN in any array stops these rows"
    assert not judged_of_nothing, "rows that are judged although an array that they read is not known"
