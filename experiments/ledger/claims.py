"""Rows of the ledger: what a source printed or this package states, what is measured, and a verdict computed from both.

Two kinds of row. *Published*: a statement of a named source, tested where it was made; only these have verdicts about
others. *Law*: a result of this package, with its proof or its evidence and the works next to it.

Every row has an interval and says where the interval comes from. `decision` has the rule for verdicts. A row is a
*formula* where its outcome follows from a definition by algebra, an integral or a count, so that it changes only if
code is wrong. Every other row is *measured*: it could have come out otherwise.
A row gives arrays as `reads` where a count or a comparison hides the numbers behind what it measures.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from experiments.ledger.decision import Points, Verdict
from experiments.ledger.intervals import Interval, ends_text, show
from experiments.ledger.literature import WORKS

OWN = "rc_jax"
PROOFS = ("proved", "derived", "measured")


class Kind(enum.StrEnum):
    """Whose statement a row is, and what may be said of it."""

    PUBLISHED = "published"
    LAW = "law"


NAMES = {Kind.PUBLISHED: "published statement", Kind.LAW: "law"}

OF_OURS = {Verdict.AGREES: Verdict.HELD, Verdict.IN_PART: Verdict.FAILED, Verdict.DIFFERS: Verdict.FAILED}


@dataclass(frozen=True)
class Claim:
    """One row of the ledger; `published` and `law` build it and compute the verdict.

    `source` is a key of `literature.WORKS`, or `OWN`. `interval` has one pair of ends for every point, or one pair for
    all of them. `formula` tells a formula from a measured row; a proved law is one. `proof` and `neighbours` are a
    law's: one of `PROOFS`, and works by their keys.
    """

    key: str
    kind: Kind
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


def interval_text(claim: Claim) -> str:
    """A row's interval as text, with one ellipsis for its ends; several intervals as the first and the last.

    Example:
        >>> from experiments.ledger import at_least
        >>> interval_text(law("x", "It rises.", 1.2, at_least(1), proof="proved", interval_from="our tolerance"))
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


def published(
    key: str,
    statement: str,
    measured: ArrayLike,
    interval: Interval,
    *,
    source: str,
    place: str,
    interval_from: str,
    hypotheses: str = "",
    formula: bool = False,
    always: bool = True,
    elsewhere: str = "",
    **options: Any,
) -> Claim:
    """A statement that a source printed, tested where it was made.

    `measured` is one number, or one number for each point, in which case `where` labels the points; the ends of the
    interval are numbers for all points or for each. `formula` says that the row fails only where code is wrong. With
    `always` one point that differs contradicts the statement; else points that agree beside points that differ agree
    in part. A source that is known second-hand is never said to differ, and nor is one that was not tested where it
    speaks, where `elsewhere` says why: the row is undecided then.

    Options: `standard_error` (a number, or one for each point), `where`, `applies` (points that decide anything),
    `shown` (text in place of the measured numbers), `note`, `reads` (arrays behind `measured`), `left_out` (samples
    that an ensemble left out).

    Raises:
        ValueError: an interval that is empty or not a number; a negative standard error; several points without a
            label for each; an unknown source; no place.

    Example:
        >>> from experiments.ledger import near
        >>> row = published("cube", "The residual is cubed by each layer.", 3.02, near(3, 0.05), source="dong2021",
        ...                 place="section 2", interval_from="our tolerance", standard_error=0.01)
        >>> row.verdict.value, interval_text(row)
        ('agrees', '2.95 … 3.05')
        >>> published("cube", "The residual is cubed by each layer.", 3.02, near(3, 0.05), source="dong2021",
        ...           place="section 2", interval_from="our tolerance", standard_error=0.03).verdict.value
        'undecided'
    """
    if source not in WORKS:
        raise ValueError(f"`source` must be a key of `literature.WORKS`, got {source!r}")
    if not place:
        raise ValueError("`place` must say where the source says it, got ''")
    about = {"source": source, "place": place, "hypotheses": hypotheses, "formula": formula}
    row = _row(Kind.PUBLISHED, key, statement, measured, interval, interval_from, about, always=always, **options)
    weak = "the source is known second-hand" if WORKS[source].second_hand else ""
    verdict = Verdict.UNDECIDED if row.verdict is Verdict.DIFFERS and (weak or elsewhere) else row.verdict
    return replace(row, verdict=verdict, note=_joined(row.note, elsewhere, weak if verdict is not row.verdict else ""))


def law(
    key: str,
    statement: str,
    measured: ArrayLike,
    interval: Interval,
    *,
    proof: str,
    interval_from: str,
    place: str = "",
    hypotheses: str = "",
    neighbours: Sequence[str] = (),
    **options: Any,
) -> Claim:
    """A result of this package: `proved`, `derived` (heuristically) or `measured`, with the works next to it.

    `place` is the page of the docs that has the proof or the evidence. Other options as in `published`.

    Raises:
        ValueError: as `published`; `proof` is none of `PROOFS`; a neighbour is not in `literature.WORKS`.

    Example:
        >>> from experiments.ledger import near
        >>> law("floor", "The floor is √(2/π).", 0.79788, near(0.7978846, 1e-4), proof="proved",
        ...     interval_from="rounding").verdict.value
        'held'
    """
    if proof not in PROOFS:
        raise ValueError(f"`proof` must be one of {', '.join(PROOFS)}, got {proof!r}")
    if unknown := [work for work in neighbours if work not in WORKS]:
        raise ValueError(f"`neighbours` must be keys of `literature.WORKS`, got {', '.join(unknown)}")
    about = {"place": place, "hypotheses": hypotheses, "proof": proof, "neighbours": tuple(neighbours)}
    about["formula"] = proof == "proved"
    return _row(Kind.LAW, key, statement, measured, interval, interval_from, about, **options)


def _row(
    kind: Kind,
    key: str,
    statement: str,
    measured: ArrayLike,
    interval: Interval,
    interval_from: str,
    about: dict[str, Any],
    *,
    always: bool = True,
    standard_error: ArrayLike | None = None,
    where: Sequence[Any] | np.ndarray | None = None,
    applies: ArrayLike | None = None,
    shown: str | None = None,
    note: str = "",
    reads: Sequence[ArrayLike] = (),
    left_out: ArrayLike = 0,
) -> Claim:
    """A judged row; `about` has the fields of `Claim` that only some kinds have."""
    if not interval_from:
        raise ValueError("`interval_from` must say where the interval comes from, got ''")
    points = Points.of(measured, interval, 0.0 if standard_error is None else standard_error, where, applies)

    # The verdict: first whether everything that the row reads is known, then the decision rule.
    unread = points.unread(reads, left_out)
    verdict = Verdict.NOT_RUN if unread else points.verdict(always=always)
    if kind is Kind.LAW:
        verdict = OF_OURS.get(verdict, verdict)

    # What is printed. One pair of ends stands for all points where they share it.
    pairs = tuple(zip(points.low.tolist(), points.high.tolist(), strict=True))
    error = float(points.errors[points.asked].max(initial=0.0)) if standard_error is not None else math.nan
    holds = "" if unread else points.holds()
    return Claim(
        key=key,
        kind=kind,
        statement=statement,
        interval=pairs[:1] if len(set(pairs)) == 1 else pairs,
        interval_from=interval_from,
        measured=points.summary() if shown is None or unread else shown,
        standard_error=error if math.isfinite(error) else None,
        verdict=verdict,
        note=_joined(note, unread, holds),
        **{"source": OWN, "place": "", "hypotheses": "", **about},
    )


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
