"""Rows of the ledger: what a source printed or this package states, what is measured, and a verdict computed from both.

Two types of row. *Published*: a statement of a named source, tested where it was made; only these have verdicts about
others. *Law*: a result of this package, with its proof or its evidence and the works next to it.

A row is written before the run and does not change: statement, place, hypotheses, interval and the origin of the
interval are constants, which exist as soon as the figure is imported. Only `measure` reads what a run stored, and it
gives numbers: a `Measured`. `Row.judge` puts the two together into a `Claim`, with a verdict by `decision`'s rule.
Formulas stand between dollar signs in a row's texts, in LaTeX (`formulas`).

A row is a *formula* where its outcome follows from a definition by algebra, an integral or a count, so that it changes
only if code is wrong. Every other row is *measured*: it could have come out otherwise.
"""

import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from experiments.ledger.decision import NEEDS, Points, Verdict
from experiments.ledger.formulas import MARKED, NUMBER, check
from experiments.ledger.intervals import Interval, ends_text, show
from experiments.ledger.literature import WORKS

OWN = "rc_jax"
FIELD = re.compile(r"<([a-z_]{2,})(?::([^<>]*))?>")  # <layers> or <share:.0%>
PROOFS = ("proved", "derived", "measured")


class RowType(enum.StrEnum):
    """Whose statement a row is, and what may be said of it."""

    PUBLISHED = "published"
    LAW = "law"


NAMES = {RowType.PUBLISHED: "published statement", RowType.LAW: "law"}

OF_OURS = {Verdict.AGREES: Verdict.HELD, Verdict.IN_PART: Verdict.FAILED, Verdict.DIFFERS: Verdict.FAILED}


@dataclass(frozen=True)
class Claim:
    """One row of the ledger with what was measured and the verdict, as it is printed and stored.

    `source` is a key of `literature.WORKS`, or `OWN`. `interval` has one pair of ends for every point, or one pair for
    all of them. `formula` tells a formula from a measured row; a proved law is one. `proof` and `neighbours` are a
    law's: one of `PROOFS`, and works by their keys. `after_result`: the criterion, or a part of it, was chosen when
    results were known. `predicted`: a law that was written down as a prediction before its first run.
    """

    key: str
    type: RowType
    statement: str
    source: str
    place: str
    hypotheses: str
    interval: tuple[tuple[float, float], ...]
    interval_from: str
    measured: str | float
    standard_error: float | None
    verdict: Verdict
    formula: bool
    note: str = ""
    proof: str = ""
    neighbours: tuple[str, ...] = ()
    after_result: bool = False
    predicted: bool = False


def interval_text(claim: Claim) -> str:
    """A row's interval as text, with one ellipsis for its ends; several intervals as the first and the last.

    Example:
        >>> from experiments.ledger import at_least
        >>> row = law("x", "It rises.", lambda data: 1.2, at_least(1), proof="proved", interval_from="our tolerance")
        >>> interval_text(row.judge({}))
        '≥ 1'
    """
    texts = [ends_text(*ends) for ends in claim.interval]
    return "".join(texts[:1]) if len(set(texts)) <= 1 else f"{texts[0]}, …, {texts[-1]}, one for each point"


def measured_text(claim: Claim) -> str:
    """The measured value ± its standard error as text."""
    return show(claim.measured, claim.standard_error)


def who(claim: Claim) -> str:
    """The authors and year of a row's source, or this package."""
    return WORKS[claim.source].label if claim.source in WORKS else "this package"


def neighbours_text(claim: Claim) -> str:
    """The works next to a law, by their labels."""
    return ", ".join(WORKS[work].label for work in claim.neighbours)


@dataclass(frozen=True)
class Measured:
    """What a row measures in one run: `values`, one number or one for each point, and what belongs to them.

    `standard_error`: a number, or one for each point. `where`: labels of several points. `applies`: the points that
    decide anything. `reads`: arrays behind `values`, where a count or a comparison hides them; a NaN there leaves the
    row not run. `left_out`: samples that an ensemble left out, which do so too. `numbers` fill the fields of the row's
    texts, such as a depth or a count of the run.
    """

    values: ArrayLike
    standard_error: ArrayLike | None = None
    where: Sequence[Any] | np.ndarray | None = None
    applies: ArrayLike | None = None
    reads: Sequence[ArrayLike] = ()
    left_out: ArrayLike = 0
    numbers: Mapping[str, Any] = field(default_factory=dict)


Data = Mapping[str, np.ndarray]
Measure = Callable[[Data], Measured | ArrayLike]


@dataclass(frozen=True)
class Row:
    """A statement with the interval that decides it, and `measure`, which reads the numbers off a run's data.

    `published` and `law` build it. `hypotheses`, `note`, `elsewhere` and `shown`, a text in place of the measured
    numbers, may have fields such as `<layers>` or `<share:.0%>` for `Measured.numbers`.
    """

    key: str
    type: RowType
    statement: str
    measure: Measure
    interval: Interval
    interval_from: str
    source: str = OWN
    place: str = ""
    hypotheses: str = ""
    formula: bool = False
    proof: str = ""
    neighbours: tuple[str, ...] = ()
    needs: str = "all"
    elsewhere: str = ""
    note: str = ""
    shown: str = ""
    after_result: bool = False
    predicted: bool = False

    def __post_init__(self) -> None:
        if not self.interval_from:
            raise ValueError("`interval_from` must say where the interval comes from, got ''")
        low, high = (np.asarray(end, float) for end in self.interval)
        if not (low <= high).all():
            raise ValueError(f"`interval` must not be empty or NaN, got {np.ravel(low)} … {np.ravel(high)}")
        if self.needs not in NEEDS:
            raise ValueError(f"`needs` must be one of {', '.join(NEEDS)}, got {self.needs!r}")
        for text in (self.statement, self.hypotheses, self.interval_from, self.note, self.elsewhere):
            check(text)

    def judge(self, data: Data) -> Claim:
        """The row with what `data` measures, and the verdict.

        Raises:
            ValueError: a negative standard error; several points without a label for each; a text with a field that
                the measurement does not fill.
        """
        found = self.measure(data)
        found = found if isinstance(found, Measured) else Measured(found)
        error = 0.0 if found.standard_error is None else found.standard_error
        points = Points.of(found.values, self.interval, error, found.where, found.applies)

        # The verdict: first whether everything that the row reads is known, then the decision rule, then whether the
        # source was tested where it speaks, and is known at first hand.
        unread = points.unread(found.reads, found.left_out)
        verdict = Verdict.NOT_RUN if unread else points.verdict(self.needs)
        weak = ""
        if self.type is RowType.LAW:
            verdict = OF_OURS.get(verdict, verdict)
        elif verdict is Verdict.DIFFERS:
            weak = "the source is known second-hand" if WORKS[self.source].second_hand else ""
            verdict = Verdict.UNDECIDED if weak or self.elsewhere else verdict

        # What is printed. One pair of ends stands for all points where they share it.
        low, high = np.broadcast_arrays(*self.interval)
        pairs = tuple(zip(low.ravel().tolist(), high.ravel().tolist(), strict=True))
        largest = float(points.errors[points.asked].max(initial=0.0)) if found.standard_error is not None else math.nan
        return Claim(
            key=self.key,
            type=self.type,
            statement=self.statement,
            source=self.source,
            place=self.place,
            hypotheses=self._filled(self.hypotheses, found),
            interval=pairs[:1] if len(set(pairs)) == 1 else pairs,
            interval_from=self.interval_from,
            measured=self._filled(self.shown, found) if self.shown and not unread else points.summary(),
            standard_error=largest if math.isfinite(largest) else None,
            verdict=verdict,
            formula=self.formula,
            note=_joined(
                self._filled(self.note, found),
                unread,
                "" if unread else points.holds(),
                self._filled(self.elsewhere, found),
                weak,
            ),
            proof=self.proof,
            neighbours=self.neighbours,
            after_result=self.after_result,
            predicted=self.predicted,
        )

    def _filled(self, text: str, found: Measured) -> str:
        """A text with the numbers of the run; 2e-14 in a formula is a power of ten."""

        def value(name: re.Match[str]) -> str:
            if name[1] not in found.numbers:
                raise ValueError(f"`numbers` of {self.key} must have {name[1]!r} for the text {text!r}")
            return format(found.numbers[name[1]], name[2] or "")

        def in_formula(formula: re.Match[str]) -> str:
            return FIELD.sub(lambda name: NUMBER.sub(_power, value(name)), formula[0])

        return FIELD.sub(value, MARKED.sub(in_formula, text))


def judged(rows: Iterable[Row], data: Data) -> tuple[Claim, ...]:
    """Every row of a figure with what `data` measures.

    Raises:
        ValueError: a row cannot be judged; the message begins with its key.
    """
    claims = list[Claim]()
    for row in rows:
        try:
            claims.append(row.judge(data))
        except ValueError as error:
            raise ValueError(f"row {row.key}: {error}") from error
    return tuple(claims)


def published(
    key: str,
    statement: str,
    measure: Measure,
    interval: Interval,
    *,
    source: str,
    place: str,
    interval_from: str,
    hypotheses: str = "",
    formula: bool = False,
    needs: str = "all",
    elsewhere: str = "",
    note: str = "",
    shown: str = "",
    after_result: bool = False,
) -> Row:
    """A statement that a source printed, tested where it was made.

    The ends of the interval are numbers for all points or for each. `formula` says that the row fails only where code
    is wrong. `needs`, one of `NEEDS`, says which points the statement needs. `after_result` marks a criterion that was
    chosen when results were known; the headline counts such rows apart. A source that is known second-hand is
    never said to differ, and nor is one that was not tested where it speaks, where `elsewhere` says why: the row is
    undecided then.

    Raises:
        ValueError: an interval that is empty or not a number; an unknown source or need; no place or origin of the
            interval; a formula that cannot be read.

    Example:
        >>> from experiments.ledger import Measured, near
        >>> row = published("cube", "The residual is cubed by each layer.",
        ...                 lambda data: Measured(data["exponent"], data["error"]), near(3, 0.05), source="dong2021",
        ...                 place="section 2", interval_from="our tolerance")
        >>> claim = row.judge({"exponent": 3.02, "error": 0.01})
        >>> claim.verdict.value, interval_text(claim)
        ('agrees', '2.95 … 3.05')
        >>> row.judge({"exponent": 3.02, "error": 0.03}).verdict.value
        'undecided'
    """
    if source not in WORKS:
        raise ValueError(f"`source` must be a key of `literature.WORKS`, got {source!r}")
    if not place:
        raise ValueError("`place` must say where the source says it, got ''")
    return Row(
        key, RowType.PUBLISHED, statement, measure, interval, interval_from, source=source, place=place,
        hypotheses=hypotheses, formula=formula, needs=needs, elsewhere=elsewhere, note=note, shown=shown,
        after_result=after_result,
    )  # fmt: skip


def law(
    key: str,
    statement: str,
    measure: Measure,
    interval: Interval,
    *,
    proof: str,
    interval_from: str,
    place: str = "",
    hypotheses: str = "",
    neighbours: Sequence[str] = (),
    note: str = "",
    shown: str = "",
    after_result: bool = False,
    predicted: bool = False,
) -> Row:
    r"""A result of this package: `proved`, `derived` (heuristically) or `measured`, with the works next to it.

    `place` is the page of the docs that has the proof or the evidence. `after_result` marks a statement or a criterion
    that was written when its numbers were known. `predicted` marks a prediction that was written
    down before its first run: such a row stays when it fails, and the headline counts both outcomes. Other options as
    in `published`.

    Raises:
        ValueError: as `published`; `proof` is none of `PROOFS`; a neighbour is not in `literature.WORKS`.

    Example:
        >>> from experiments.ledger import near
        >>> row = law("floor", r"The floor is $\sqrt{2/\pi}$.", lambda data: data["floor"], near(0.7978846, 1e-4),
        ...           proof="proved", interval_from="rounding")
        >>> row.judge({"floor": 0.79788}).verdict.value
        'held'
    """
    if proof not in PROOFS:
        raise ValueError(f"`proof` must be one of {', '.join(PROOFS)}, got {proof!r}")
    if unknown := [work for work in neighbours if work not in WORKS]:
        raise ValueError(f"`neighbours` must be keys of `literature.WORKS`, got {', '.join(unknown)}")
    return Row(
        key, RowType.LAW, statement, measure, interval, interval_from, place=place, hypotheses=hypotheses,
        formula=proof == "proved", proof=proof, neighbours=tuple(neighbours), note=note, shown=shown,
        after_result=after_result, predicted=predicted,
    )  # fmt: skip


def _power(number: re.Match[str]) -> str:
    """A number with an exponent, in LaTeX."""
    power = f"10^{{{int(number[2])}}}"
    return power if number[1] == "1" else rf"{number[1]}\cdot{power}"


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
