"""The figure `newer_works` on cases whose answer is known."""

import numpy as np
import pytest

from experiments.figures.later import newer_works
from experiments.ledger import judged
from tests.experiments import smoke_data

SPEC = newer_works.PRESETS["smoke"]


def test_entropy_of_one_massive_token_falls_under_its_bound():
    found = newer_works._massive(np.random.default_rng(1), SPEC)
    assert (found["entropy"] <= found["entropy_bound"]).all()
    # with c → ∞ one share is c/(c + 1), and the entropy that of a rare event
    c = newer_works.MASSES[-1]
    assert found["entropy"][:, -1].max() < 2 * (1 + np.log(c * SPEC.features)) / c


def test_tilted_mean_is_reached_as_the_law_of_large_numbers_has_it():
    """Var of Σp x for weights e^s/Σe^s, s normal: about e (1 + 1 at the scores' own entry) over n in every entry."""
    found = newer_works._long_prompts(np.random.default_rng(2), newer_works.Spec(head=4, texts=256))
    n = np.array(newer_works.LENGTHS)
    assert found["prompt_participation"][-1] == pytest.approx(np.e / n[-1], rel=0.1)
    assert found["prompt_variance"][-1] == pytest.approx(np.e / n[-1], rel=0.4)
    assert (np.diff(found["prompt_distance"]) < 0).all()


def test_products_are_distances_for_keys_of_one_length_only():
    found = newer_works._distances(np.random.default_rng(3), SPEC)["variation"]
    assert found[0] < 1e-12 < 0.01 < found[-1]


def test_compression_and_our_bound_are_judged_apart():
    data = smoke_data.load("newer_works")

    def verdicts(**changed):
        claims = judged(newer_works.ROWS, data | changed)
        return [claim.verdict.value for claim in claims if claim.key.startswith("massive")]

    assert verdicts() == ["agrees", "held"]
    assert verdicts(entropy_bound=data["entropy"] / 2) == ["agrees", "failed"]
    assert verdicts(entropy=data["entropy"][:, ::-1], entropy_bound=np.full_like(data["entropy"], 9)) == [
        "differs",
        "held",
    ]
