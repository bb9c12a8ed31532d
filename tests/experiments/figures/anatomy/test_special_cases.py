"""The figure `special_cases`: a field that is learnt, and one that is computed from the tokens."""

import numpy as np

from experiments.figures.anatomy import special_cases
from experiments.ledger import judged
from tests.experiments import smoke_data


def test_a_learnt_field_has_to_be_learnt_and_to_be_the_same_on_every_input():
    data = smoke_data.load("special_cases")

    def verdict(**changed):
        claims = judged(special_cases.ROWS, data | {name: np.asarray(value) for name, value in changed.items()})
        return {claim.key: claim.verdict.value for claim in claims}["special-learnt-field"]

    assert verdict() == "agrees in part"
    assert verdict(moved=0.0) == "agrees"
    assert verdict(field=0.9) == "differs"


def test_fields_of_even_rows_do_not_move(x64, monkeypatch):
    """With weights that all are 0 the rows are even, whatever the tokens are."""
    spec = special_cases.PRESETS["smoke"]
    drawn = special_cases.attention.init

    def zero(*args, **named):
        params = drawn(*args, **named)
        return params._replace(query=0 * params.query)

    assert 0.05 < special_cases._learnt_field(spec)["moved"] < 1
    monkeypatch.setattr(special_cases.attention, "init", zero)
    assert special_cases._learnt_field(spec)["moved"] < 1e-12
