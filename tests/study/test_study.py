"""The study of one kind: its numbers are those of the public functions, and each output says the same."""

import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import study
from rc_jax.attention import KINDS, AttentionSpec, Kind, init
from rc_jax.collapse.kinds import kind_fall
from rc_jax.scale.kinds import kind_best_scale
from rc_jax.sparsity.kinds import kind_sparsity
from rc_jax.study import report
from rc_jax.study.measures import _with_options, as_kind


def cubic(scores, seen, parts):
    """Softmax of an odd cubic of the scores."""
    return jax.nn.softmax(jnp.where(seen, scores + scores**3 / 10, -jnp.inf), axis=-1)


def test_a_function_gets_the_record_that_its_rows_show():
    kind = as_kind(cubic)
    assert (kind.name, kind.row_sum, kind.shift_invariant, kind.sparse) == ("cubic", "one", False, False)
    kind = as_kind(lambda s, seen, parts: KINDS["softpick"].weights(s, seen, parts))
    assert (kind.name, kind.row_sum, kind.shift_invariant, kind.sparse) == ("kind", "any", False, True)
    # A logit of 100 underflows beside one of 300, which is no weight of 0; float64 tells.
    kind = as_kind(lambda s, seen, parts: KINDS["softmax"].weights(20 * s, seen, parts))
    assert (kind.row_sum, kind.shift_invariant, kind.sparse) == ("one", True, False)


@pytest.mark.parametrize("small", [1e-4, 1e-9])
@pytest.mark.parametrize("top", [0.0, 1.0])
def test_a_small_number_in_the_sum_is_seen(small, top):
    """e^s/(Σ e^s + ε) has one sum to single precision at scores of 0, and order 1 in place of 3."""

    def plus(scores, seen, parts):
        largest = jax.lax.stop_gradient(jnp.max(jnp.where(seen, scores, -jnp.inf), axis=-1, keepdims=True))
        powers = jnp.where(seen, jnp.exp(scores - top * largest), 0)
        return powers / (jnp.sum(powers, axis=-1, keepdims=True) + small)

    assert as_kind(plus).row_sum == "any"
    with pytest.raises(
        ValueError, match=r"(?s)'one' is said, and the scores .* have the sum 0\.9.*: say 'any', or divide"
    ):
        AttentionSpec(d_model=8, weights=Kind("plus", plus, "one"))


def test_scores_that_are_clipped_are_seen():
    def clipped(scores, seen, parts):
        return KINDS["softmax"].weights(jnp.clip(scores, -6, 6), seen, parts)

    assert not as_kind(clipped).shift_invariant
    with pytest.raises(ValueError, match="`shift_invariant` of kind 'clipped' must be False: a constant in a row"):
        AttentionSpec(d_model=8, weights=Kind("clipped", clipped, "one", shift_invariant=True))


def test_a_function_in_single_precision_is_judged_by_it():
    def single(scores, seen, parts):
        return KINDS["softmax"].weights(scores.astype(jnp.float32), seen, parts)

    def and_back(scores, seen, parts):
        return single(scores, seen, parts).astype(scores.dtype)

    def half(scores, seen, parts):
        return single(scores, seen, parts).astype(jnp.float16)

    def only_single(scores, seen, parts):
        assert scores.dtype == jnp.float32
        return single(scores, seen, parts)

    for function in (single, and_back, half, only_single):
        kind = as_kind(function)
        assert (kind.row_sum, kind.shift_invariant) == ("one", True)
        AttentionSpec(d_model=8, weights=Kind("single", function, "one", shift_invariant=True))


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ("softmaks", ValueError, "`kind` must be one of 'softmax'"),
        (3, TypeError, "`kind` must be a name, an attention.Kind or a function, got 3"),
        ("decay", ValueError, "`kind` must read scores of queries and keys, got 'decay', which reads distance"),
        (lambda s, seen, parts: s[..., :-1], ValueError, "must give shape"),
        (Kind, TypeError, "`kind` must be a name, an attention.Kind or a function"),
        (
            Kind("mine", cubic, options=("nonsense",)),
            ValueError,
            r"must name fields of AttentionSpec, got \['nonsense'\]",
        ),
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
    for measure in found.measures:  # no number without an error but those of a rule and exact ones
        assert measure.error > 0 or measure.method in ("rule", "exact"), measure
        assert not measure.reason and (measure.softmax_error > 0 or measure.question in ("rows", "cost", "collapse"))
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
    measure = report.Measure("collapse", "", 3.0, 3.0, 0.0, 0.0, "rule")
    names = ("order of a layer", "largest share of 64 keys", "largest share of 4096 keys", "sum of a row")
    measures = [measure._replace(name=name) for name in (*names, "sum where all scores are −10")]
    for own, word in ((-100.0, "as much as"), (-90.0, "less than"), (-110.0, "more than")):
        falls = {"without skips": [[0.0, own], [0.0, -100.0]]}
        said = report.sentences(report.Study("own", tuple(measures), falls, ()))
        assert f"shrink the tokens' difference {word} softmax does." in said[1]


def _said(many, error, own):
    measure = report.Measure("collapse", "", 1.0, 1.0, 0.0, 0.0, "rule")
    names = ("order of a layer", "largest share of 64 keys", "sum of a row", "sum where all scores are −10")
    measures = [measure._replace(name=name) for name in names]
    measures.append(measure._replace(name="largest share of 4096 keys", value=many, error=error))
    return report.sentences(report.Study("own", tuple(measures), {"without skips": [[0.0, *own], [0.0, -1.0]]}, ()))


@pytest.mark.parametrize(
    ("many", "said"),
    [
        (0.2, "fades with the number of keys."),
        (0.5, "whether it fades with many more keys"),
        (0.98, "does not fade up"),
    ],
)
def test_two_shares_say_no_more_than_they_show(many, said):
    """Softmax of 2 s keeps 0.66 of 64 keys, 0.36 of 4096 and 0.08 of 4 million."""
    assert said in _said(many, 0.02, [-1.0])[2]


def test_a_kind_whose_layers_make_differences_larger_does_not_collapse():
    collapse, eight = _said(0.2, 0.0, [3.0, 26.0])[:2]
    assert collapse == "Collapse: a layer maps a small difference to first order, and these layers make it larger."
    assert eight == "Eight layers without skip connections make the tokens' difference e^26 times as large."


def test_parameters_that_are_drawn_are_those_of_the_networks_and_said_to_be_drawn():
    def tempered(scores, seen, parts):
        return jax.nn.softmax(jnp.where(seen, scores * jnp.exp(parts["log_scale"])[:, None, None], -jnp.inf))

    kind = Kind(
        "tempered", tempered, row_sum="one", shift_invariant=True, shapes=lambda spec: {"log_scale": (spec.heads,)}
    )
    found = study.kind(kind, seed=3)
    drawn = init(jax.random.key(3), AttentionSpec(d_model=32, heads=2, weights=kind)).parts
    sharper = float(jnp.exp(drawn["log_scale"][0]))
    value, _ = kind_sparsity(jax.random.key(3), KINDS["softmax"], sharper, 1024)
    assert found["S at deviation 1"].value == pytest.approx(value, rel=1e-4)
    assert "log_scale was drawn at random with seed 3" in report.sentences(found)[-1]


def test_a_kind_for_square_scores_alone_is_one_error():
    def mixed(scores, seen, parts):
        return (jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) + jnp.eye(scores.shape[-1])[None]) / 2

    said = r"`kind` must give weights of any number of queries and keys, .* \(1, 4, 16\)"
    for kind in (mixed, Kind("mixed", mixed)):
        with pytest.raises(ValueError, match=said):
            study.kind(kind)


def test_what_is_not_known_has_a_reason_in_its_place():
    known = report.Measure("collapse", "order of a layer", 3.0, 3.0, 0.1, 0.1, "median of 8 networks")
    lost = "digits are lost: a few roundings move the result"
    measures = [known, known._replace(name="change", value=np.nan, error=np.nan, reason=lost)]
    for keys, (value, error, reason) in {16: (2.5, 0.25, ""), 64: (np.nan, np.nan, "flat from 8 on")}.items():
        name = f"best scale for {keys} keys"
        measures.append(report.Measure("scale", name, value, 2.0, error, 0.1, "rows", reason))
    for name in ("S at 1", "largest share of 64 keys", "largest share of 4096 keys", "sum of a row"):
        measures.append(known._replace(question="rows", name=name))
    measures.append(known._replace(question="rows", name="sum where all scores are −10"))
    falls = {"without skips": [[1.0, -2.0, np.nan], [1.0, -9.0, -99.0]], "with skips": [[1.0, 1, 2], [1.0, 2, 3]]}
    found = report.Study("own", tuple(measures), falls, ())
    lines = {re.split(" {2,}", line)[1]: line for line in study.table(found).splitlines()}
    assert "digits are lost  " in lines["change"] and "nan" not in study.table(found)
    assert (
        "2.5 ± 0.25" in lines["best scale for 16 keys"]
        and "flat from 8 on   2 ± 0.1" in lines["best scale for 64 keys"]
    )
    said = " ".join(study.sentences(found))
    assert (
        f"Not known (change): {lost}." in said
        and "of some networks" not in said
        and "was found: flat from 8 on for 64 keys; it is 2.5 ± 0.25 for 16 keys." in said
    )
    drawn = study.draw(found)
    sparse, scale, depth = drawn.axes
    assert [tick.get_text() for tick in scale.get_xticklabels()] == ["16", "64"]
    assert [text.get_text() for text in scale.texts] == ["flat from 8 on"]
    assert [text.get_text() for text in depth.texts] == ["not known"]
    for axes in (sparse, scale, depth):  # softmax is broader than what may lie on it
        broad = max(line.get_linewidth() for line in axes.lines)
        assert broad >= 3 * min(line.get_linewidth() for line in axes.lines)


@pytest.mark.slow
def test_a_kind_whose_digits_are_lost_says_so_and_how_many_networks_are_known():
    found = study.kind("softpick")
    beside = found["best scale for 16 keys"]  # a median for both, because weights of softpick may be 0
    softmax = kind_best_scale(jax.random.key(0), KINDS["softmax"], 16, rows=1024, typical="median")
    assert beside.method.startswith("median of 1024 rows") and beside.softmax == float(softmax.scale)
    change = found["change of log ‖res‖ over 8 layers, without skips"]
    assert np.isnan(change.value) and change.reason.startswith("digits are lost: ")
    fall = kind_fall(KINDS["softpick"])
    known = int(np.sum(~np.isnan(fall.logs[:, -1])))
    assert known < 4 and change.method == f"median of the {known} known of 8 networks"


@pytest.mark.slow
def test_a_study_shows_on_a_terminal_what_it_measures(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    study.kind("softmax", progress=True)
    out, err = capsys.readouterr()
    shown = re.findall(r"(\d+)/(\d+) ", err)
    assert out == "" and "networks without skips:" in err and shown[-1] == (shown[0][1], shown[0][1])


def test_sentences_of_what_is_not_a_number_or_nothing():
    measure = report.Measure("collapse", "order of a layer", np.nan, 3.0, 0.0, 0.0, "rule", "tokens become equal")
    names = ("largest share of 64 keys", "largest share of 4096 keys", "sum of a row", "sum where all scores are −10")
    measures = [measure, *(measure._replace(name=name, reason="") for name in names[:2])]
    measures += [measure._replace(name=name, value=0.0, reason="") for name in names[2:]]
    falls = {"without skips": [[0.0, -np.inf], [0.0, -100.0]]}
    said = report.sentences(report.Study("own", tuple(measures), falls, ()))
    assert said[0] == "Collapse: the order of a layer near collapse is not known: tokens become equal."
    assert (
        "have no weight" in said[1] and said[2] == "Rows: a row that wants nothing takes nothing, so it needs no sink."
    )
    second = report.sentences(report.Study("own", (measure._replace(value=1.999, reason=""), *measures[1:]), falls, ()))
    assert second[0].endswith("a layer maps a small difference to its power 1.999.")


@pytest.mark.parametrize(
    ("order", "name", "said"),
    [
        (
            1.0,
            "identity",
            r"to first order, but tokens shrink too: layer \d of a network falls 3(\.0\d)? times as far as",
        ),
        (1.0, "sigmoid", r"to first order, so the fall is exponential while tokens keep their size\."),
        (3.0, "softmax", r"maps a small difference to its power 3\."),
        (2.046, "softmax", r"its power 2\.046 between e\^−4 and e\^−6; layer 8 of a network falls (2\.9|3)\d* times"),
    ],
)
def test_the_order_of_a_layer_stands_beside_the_fall_of_a_network(order, name, said):
    """A first-order layer that shrinks the tokens falls doubly exponentially, and an order may change on the way."""
    measure = report.Measure("collapse", "order of a layer", order, 3.0, 0.0, 0.0, "rule")
    names = ("largest share of 64 keys", "largest share of 4096 keys", "sum of a row", "sum where all scores are −10")
    measures = (measure, *(measure._replace(name=each) for each in names))
    logs = [float(log) for log in kind_fall(KINDS[name]).median]
    falls = {"without skips": [logs, logs]}
    assert re.search(said, report.sentences(report.Study("own", measures, falls, ()))[0])


@pytest.mark.slow
def test_a_function_with_the_name_of_a_kind_and_rows_that_depend_on_each_other():
    """The share of 4096 keys is that of 4096 keys, and softmax's facts are softmax's."""

    def softmax(scores, seen, parts):
        return jnp.where(seen, jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-2), 0)

    found = study.kind(softmax)
    assert found.name == "own softmax" and found.notes == (
        "Rows depend on each other, so no gradient of a row is measured.",
    )
    share = found["largest share of 4096 keys"]
    scores = 2 * np.random.default_rng(0).normal(size=(4096, 4096))
    weights = np.exp(scores - scores.max(0))
    weights /= weights.sum(0)
    expected = (weights.max(1) / weights.sum(1)).mean()
    assert abs(share.value - expected) < 5 * share.error and share.method == "4096 rows, deviation 2"
    assert abs(share.softmax - expected) > 0 and not [each for each in found.measures if each.question == "scale"]


def test_options_of_a_kind_of_ones_own_have_their_defaults():
    def capped(scores, seen, parts, *, qk_norm_epsilon):
        return KINDS["softmax"].weights(scores + qk_norm_epsilon, seen, parts)

    kind = _with_options(Kind("capped", capped, "one", options=("qk_norm_epsilon",)))
    rows = kind(jnp.ones((1, 2, 3)))
    np.testing.assert_allclose(rows, 1 / 3, rtol=1e-6)
