"""The study of one kind: its numbers are those of the public functions, and each output says the same."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import study
from rc_jax.attention import KINDS
from rc_jax.sparsity.kinds import kind_sparsity
from rc_jax.study import report
from rc_jax.study.measures import as_kind


def cubic(scores, seen, parts):
    """Softmax of an odd cubic of the scores."""
    return jax.nn.softmax(jnp.where(seen, scores + scores**3 / 10, -jnp.inf), axis=-1)


def test_a_function_gets_the_record_that_its_rows_show():
    kind = as_kind(cubic)
    assert (kind.name, kind.row_sum, kind.shift_invariant, kind.sparse) == ("cubic", "one", False, False)
    kind = as_kind(lambda s, seen, parts: KINDS["softpick"].weights(s, seen, parts))
    assert (kind.name, kind.row_sum, kind.shift_invariant, kind.sparse) == ("kind", "any", False, True)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ("softmaks", ValueError, "`kind` must be one of 'softmax'"),
        (3, TypeError, "`kind` must be a name, an attention.Kind or a function, got 3"),
        ("decay", ValueError, "`kind` must read scores of queries and keys, got 'decay', which reads distance"),
        (lambda s, seen, parts: s[..., :-1], ValueError, "must give shape"),
    ],
)
def test_what_is_no_kind(wrong, error, message):
    with pytest.raises(error, match=message):
        study.kind(wrong)


@pytest.mark.slow
def test_a_study_of_ones_own_function(tmp_path):
    found = study.kind(cubic)
    assert found["S at deviation 1"].value == kind_sparsity(jax.random.key(0), as_kind(cubic), 1.0, 1024)[0]
    assert abs(found["order of a layer"].value - 3) < 0.1 and found["order by its record"].value == 3
    assert found["sum of a row"].value == pytest.approx(1, abs=1e-5)
    rows = json.loads(found.to_json())["measures"]
    assert [row["name"] for row in rows] == [measure.name for measure in found.measures]
    text = str(found)
    assert all(measure.name in text and measure.method in text for measure in found.measures)
    own, softmax = found.falls["without skips"]
    assert np.all(np.diff(softmax) < 0) and len(own) == 9
    study.draw(found).savefig(tmp_path / "study.png")
    assert (tmp_path / "study.png").stat().st_size > 10_000
    with pytest.raises(KeyError, match=r"no measure .*speed.*; there are"):
        found["speed"]


def test_a_fall_like_that_of_softmax_is_said_to_be_so():
    measure = report.Measure("collapse", "", 3.0, 3.0, 0.0, "rule")
    names = ("order of a layer", "largest share of 64 keys", "largest share of 4096 keys", "sum of a row")
    measures = [measure._replace(name=name) for name in (*names, "sum where all scores are −10")]
    for own, word in ((-100.0, "as much as"), (-90.0, "less than"), (-110.0, "more than")):
        falls = {"without skips": [[0.0, own], [0.0, -100.0]]}
        said = report.sentences(report.Study("own", tuple(measures), falls, ()))
        assert f"shrink the tokens' difference {word} softmax does." in said[1]
