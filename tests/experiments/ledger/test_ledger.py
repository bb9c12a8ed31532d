"""Verdicts follow from the numbers; noise never helps, and a number that is not finite never passes."""

import dataclasses
import functools
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from experiments import ledger
from experiments.ledger import RowType, Verdict, at_least, at_most, interval_text, literature, near, printed, show

SAID = {"source": "dong2021", "place": "section 2", "interval_from": "our tolerance"}
finite = st.floats(-1e6, 1e6)


def said(measured, low, high, **options):
    return published(measured, (low, high), **SAID, **options)


def published(measured, interval, **options):
    """A published row with what it measures, judged."""
    return judged(functools.partial(ledger.published, "key", "It is so."), measured, interval, options)


def law(measured, interval, **options):
    return judged(functools.partial(ledger.law, "k", "So."), measured, interval, options)


def judged(row, measured, interval, options):
    fields = {field.name for field in dataclasses.fields(ledger.Measured)} & set(options)
    found = ledger.Measured(measured, **{name: options.pop(name) for name in fields})
    return row(lambda data: found, interval, **options).judge({})


@pytest.mark.parametrize(
    ("measured", "error", "verdict"),
    [
        (3.0, 0.0, Verdict.AGREES),
        (3.1, 0.0, Verdict.AGREES),
        (3.2, 0.0, Verdict.DIFFERS),
        (3.0, 0.049, Verdict.AGREES),
        (3.0, 0.06, Verdict.UNDECIDED),
        (3.1, 0.01, Verdict.UNDECIDED),
        (3.2, 0.04, Verdict.UNDECIDED),
        (3.2, 0.03, Verdict.DIFFERS),
        (2.7, 0.06, Verdict.DIFFERS),
        (2.7, 10.0, Verdict.UNDECIDED),
        (np.float32(3.0), np.float32(0.0), Verdict.AGREES),
        (np.array([3.0]), 0.0, Verdict.AGREES),
        (math.nan, 0.0, Verdict.NOT_RUN),
        (math.inf, 0.0, Verdict.NOT_RUN),
        (3.0, math.nan, Verdict.NOT_RUN),
        (3.0, math.inf, Verdict.NOT_RUN),
    ],
)
def test_one_number(measured, error, verdict):
    assert said(measured, 2.9, 3.1, standard_error=error).verdict is verdict


@given(finite, finite, st.floats(0, 1e3), st.floats(0, 1e3), st.floats(1, 10))
@settings(deadline=None, max_examples=100)
def test_noise_never_helps(measured, low, width, error, more):
    """A larger standard error makes a verdict undecided or leaves it; it never makes one agree or differ."""
    less, greater = (said(measured, low, low + width, standard_error=each).verdict for each in (error, error * more))
    assert greater in (less, Verdict.UNDECIDED)


def test_one_sided_intervals_still_need_a_finite_number():
    assert said(5.0, *at_least(3)).verdict is Verdict.AGREES
    assert said(math.inf, *at_least(3)).verdict is Verdict.NOT_RUN
    assert said(-5.0, *at_most(3)).verdict is Verdict.AGREES


@pytest.mark.parametrize(
    ("measured", "needs", "verdict", "note"),
    [
        ([1.0, 1.1, 0.9], "all", Verdict.AGREES, "holds at 3 of 3 points"),
        ([1.0, 9.0, 1.0], "all", Verdict.DIFFERS, "holds at 2 of 3 points: 10, 30"),
        ([1.0, 9.0, 1.0], "parts", Verdict.IN_PART, "holds at 2 of 3 points: 10, 30"),
        ([9.0, 1.0, 1.0], "parts", Verdict.IN_PART, "holds at 2 of 3 points: 20 … 30"),
        ([9.0, 9.0, 9.0], "parts", Verdict.DIFFERS, "holds at 0 of 3 points"),
        ([9.0, 1.0, 9.0], "some", Verdict.AGREES, "holds at 1 of 3 points: 20"),
        ([9.0, 9.0, 9.0], "some", Verdict.DIFFERS, "holds at 0 of 3 points"),
    ],
)
def test_points(measured, needs, verdict, note):
    row = said(np.array(measured), 0.8, 1.2, where=np.array([10, 20, 30]), needs=needs)
    assert (row.verdict, row.note) == (verdict, note)


def test_one_counterexample_needs_three_standard_errors():
    points = {"where": [1, 2], "standard_error": np.array([0.01, 0.1])}
    assert said([1.0, 1.45], 0.8, 1.2, **points).verdict is Verdict.UNDECIDED
    assert said([1.0, 1.55], 0.8, 1.2, **points).verdict is Verdict.DIFFERS
    assert said([1.0, 1.45], 0.8, 1.2, needs="parts", **points).verdict is Verdict.UNDECIDED
    assert said([9.0, 1.45], 0.8, 1.2, needs="some", **points).verdict is Verdict.UNDECIDED


def test_each_point_may_have_its_own_interval():
    row = said([1.0, 2.0], *near([1.0, 2.0], 0.1), where=["a", "b"])
    assert row.verdict is Verdict.AGREES
    assert interval_text(row) == "0.9 … 1.1, …, 1.9 … 2.1, one for each point"
    assert said([1.0, 1.0], *near([1.0, 2.0], 0.1), where=["a", "b"]).verdict is Verdict.DIFFERS


def test_a_point_that_is_not_finite_leaves_the_row_not_run():
    for measured in ([1.0, math.nan, 2.0], [1.0, math.inf, 2.0]):
        row = said(measured, 0, 3, where=[1, 2, 3])
        assert (row.verdict, row.note) == (Verdict.NOT_RUN, "a number is not finite")
    assert said([math.nan] * 2, 0, 3, where=[1, 2]).note == "no finite number"
    assert said([], 0, 3, where=[]).note == "no sample"


def test_points_that_decide_nothing_count_neither_way():
    row = said([1.0, math.nan, 2.0], 0, 3, where=[1, 2, 3], applies=[True, False, True])
    assert row.verdict is Verdict.AGREES
    assert (row.measured, row.note) == ("1 … 2", "holds at 2 of 2 points")
    assert said([1.0, 2.0], 0, 3, where=[1, 2], applies=[False, False]).verdict is Verdict.NOT_RUN


KINDS = [
    lambda **what: said(3.0, 2.9, 3.1, **what),
    lambda **what: law(3.0, near(3, 0.1), proof="proved", interval_from="rounding", **what),
]


@pytest.mark.parametrize("row", KINDS)
def test_what_a_row_reads_must_be_known(row):
    good = row(reads=[np.arange(3), np.ones(2), np.array(-np.inf)], left_out=np.zeros(4, int))
    assert good.verdict in (Verdict.AGREES, Verdict.HELD)
    for broken, note in (
        ({"reads": [np.ones(2), np.array([1.0, math.nan])]}, "a number that it reads is not known"),
        ({"reads": [np.zeros((0, 3))]}, "no sample"),
        ({"left_out": np.array([0, 2])}, "2 samples are not finite"),
    ):
        claim = row(shown="text", **broken)
        assert claim.verdict is Verdict.NOT_RUN
        assert claim.note == note
        assert claim.measured != "text"


def test_only_published_statements_agree_or_differ():
    ours = KINDS[1]
    assert ours().type is RowType.LAW
    assert (ours().verdict, ours(standard_error=1.0).verdict) == (Verdict.HELD, Verdict.UNDECIDED)


def test_a_law_fails_where_one_point_does():
    ours = {"proof": "measured", "interval_from": "our tolerance", "where": [1, 2]}
    assert law([3.0, 1.0], near(3, 0.1), **ours).verdict is Verdict.FAILED


def test_what_was_not_tested_where_the_source_speaks_never_differs():
    rows = [published(value, (2.9, 3.1), **SAID, elsewhere="another setting") for value in (9.0, 3.0)]
    assert [(row.verdict, row.note) for row in rows] == [
        (Verdict.UNDECIDED, "another setting"), (Verdict.AGREES, "another setting")]  # fmt: skip


def test_a_source_known_second_hand_never_differs():
    unread = next(key for key, work in literature.WORKS.items() if work.second_hand)
    options = {**SAID, "source": unread}
    row = published(9.0, (2.9, 3.1), **options)
    assert (row.verdict, row.note) == (Verdict.UNDECIDED, "the source is known second-hand")
    assert published(3.0, (2.9, 3.1), **options).verdict is Verdict.AGREES


@pytest.mark.parametrize(("text", "low", "high"), [("0.84", 0.835, 0.845), ("3.5", 3.45, 3.55), ("2", 1.5, 2.5)])
def test_printed_digits(text, low, high):
    assert printed(text) == (low, high)
    assert printed(f"{text}e3") == pytest.approx((low * 1e3, high * 1e3), rel=1e-12)


def test_bad_input():
    with pytest.raises(ValueError, match="`interval` must not be empty or NaN"):
        said(1.0, 2.0, 1.0)
    with pytest.raises(ValueError, match="`interval` must not be empty or NaN"):
        said(1.0, math.nan, 1.0)
    with pytest.raises(ValueError, match="`standard_error` must be >= 0"):
        said(1.0, 0.0, 1.0, standard_error=-0.1)
    with pytest.raises(ValueError, match="`where` must have one label for each of 2 points, got 0"):
        said([1.0, 2.0], 0.0, 1.0)
    with pytest.raises(ValueError, match="`applies` must have one flag for each of 2 points, got 1"):
        said([1.0, 2.0], 0.0, 1.0, where=[1, 2], applies=[True])
    with pytest.raises(ValueError, match="`source` must be a key of"):
        published(1.0, (0, 2), source="nobody", place="page 1", interval_from="x")
    with pytest.raises(ValueError, match="`place` must say where"):
        published(1.0, (0, 2), source="dong2021", place="", interval_from="x")
    with pytest.raises(ValueError, match="`interval_from` must say where"):
        law(1.0, (0, 2), proof="proved", interval_from="")
    with pytest.raises(ValueError, match="`proof` must be one of proved, derived, measured, got 'seen'"):
        law(1.0, (0, 2), proof="seen", interval_from="x")
    with pytest.raises(ValueError, match="`neighbours` must be keys of"):
        law(1.0, (0, 2), proof="proved", interval_from="x", neighbours=["nobody"])
    with pytest.raises(ValueError, match="`needs` must be one of all, parts, some, got 'any'"):
        said(1.0, 0, 2, needs="any")
    for name in ("hypotheses", "note", "elsewhere"):
        with pytest.raises(ValueError, match=r"a \} for each \{, got '\^\{x' in '\$\^\{x\$ grows'"):
            said(1.0, 0, 2, **{name: "$^{x$ grows"})
    with pytest.raises(ValueError, match="`seen` must be one of"):
        literature.Work("A", "B", "C", "glanced at")


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.841352, 0.00021, "0.8414 ± 0.0002"),
        (-2707.123, 1.4, "-2707 ± 1"),
        (1.0, 0.0, "1"),
        (math.nan, 0.1, "not finite"),
        (2.0, 1e-17, "2 ± 1e-17"),
        ("3.5 log n", None, "3.5 log n"),
    ],
)
def test_show(value, error, text):
    assert show(value, error) == text


def test_a_standard_error_of_one_seed_is_none():
    """A record on disk has no word for NaN there, and must read back as it was written."""
    row = said(1.0, 0, 2, standard_error=math.nan)
    assert row.standard_error is None and row.verdict is Verdict.NOT_RUN


def test_intervals_as_text():
    texts = [interval_text(said(1.0, *ends)) for ends in ((0.5, 2), at_least(0.5), at_most(2), (1, 1))]
    assert texts == ["0.5 … 2", "≥ 0.5", "≤ 2", "1"]
    assert dataclasses.is_dataclass(said(1.0, 0, 2))


def test_numbers_of_a_run_fill_the_texts_of_a_row():
    texts = {"hypotheses": "<layers> layers", "note": "$e^{2t}$, <share:.0%> of them", "shown": "<layers> of 9"}
    row = said(1.0, 0, 2, numbers={"layers": 8, "share": 0.25}, **texts)
    assert (row.hypotheses, row.note, row.measured) == ("8 layers", "$e^{2t}$, 25% of them", "8 of 9")
    with pytest.raises(ValueError, match="`numbers` of key must have 'layers' for the text"):
        said(1.0, 0, 2, hypotheses="<layers> layers")
