"""The rows of a ledger in the order in which a reader meets them: what others published, by source; then ours.

The report and the page of the docs show the same sections.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiments.ledger.claims import Claim, RowType
from experiments.ledger.decision import Verdict
from experiments.ledger.literature import WORKS, work
from experiments.ledger.record import Entry
from experiments.lib.figure import TOPICS

Row = tuple[Entry, Claim]
SECOND_HAND = "known second-hand, so that none of its statements is said to differ"
OTHER = "Not read"  # topic of a figure whose file cannot be imported


@dataclass(frozen=True)
class Group:
    """Rows of one source or one topic; `about` says what the source is."""

    title: str
    about: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Section:
    """Groups of one type of row, under a heading and a sentence."""

    title: str
    about: str
    groups: tuple[Group, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, group by group."""
        return tuple(row for group in self.groups for row in group.rows)


def by_topic(entries: Iterable[Entry]) -> list[tuple[str, list[Entry]]]:
    """Entries under the titles of their topics, in the order of `TOPICS`; those without one come last."""
    groups: dict[str, list[Entry]] = {title: [] for title in (*TOPICS.values(), OTHER)}
    for entry in entries:
        groups[TOPICS.get(entry.topic, OTHER)].append(entry)
    return [(title, group) for title, group in groups.items() if group]


# Title and explanation of each type of row.
SECTIONS = {
    RowType.PUBLISHED: (
        "Published statements",
        "What each source says, in our words, and what is measured where the source says it.",
    ),
    RowType.LAW: (
        "Laws of this package",
        "Results of this package. Each says whether it is proved, derived heuristically or measured, and which "
        "published works are next to it.",
    ),
}


def sections(entries: Iterable[Entry]) -> list[Section]:
    """Every row once, published statements by source and all others by topic; empty sections are left out."""
    rows = [(entry, claim) for entry in entries for claim in entry.claims]
    order = {name: at for at, name in enumerate([*(source.label for source in WORKS.values()), *TOPICS.values()])}
    made = []
    for row_type, (title, about) in SECTIONS.items():
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            if row[1].type is row_type:
                groups.setdefault(_heading(row), []).append(row)
        ordered = sorted(groups.items(), key=lambda item: order.get(item[0][0], len(order)))
        if ordered:
            made.append(Section(title, about, tuple(Group(*heading, tuple(group)) for heading, group in ordered)))
    return made


def _heading(row: Row) -> tuple[str, str]:
    """Title of the group to which a row belongs, and what is said under the title."""
    entry, claim = row
    if claim.type is not RowType.PUBLISHED:
        return TOPICS.get(entry.topic, OTHER), ""
    source = WORKS[claim.source]
    parts = [source.title, source.address or source.unaddressed, SECOND_HAND if source.second_hand else ""]
    return source.label, "; ".join(part for part in parts if part)


# One statement, or several.
OUTCOMES = {
    Verdict.AGREES: ("agrees as made", "agree as made"),
    Verdict.IN_PART: ("agrees in part", "agree in part"),
    Verdict.DIFFERS: ("differs", "differ"),
    Verdict.HELD: ("held", "held"),
    Verdict.FAILED: ("failed", "failed"),
    Verdict.UNDECIDED: ("is undecided", "are undecided"),
}


def headline(claims: Iterable[Claim]) -> str:
    """How many published statements of how many works there are, and how many agree: measurements, and formulas.

    Those whose criterion came after a result are told once more, apart. Last are this package's own predictions, held
    and failed.

    Parts of a work, its released code and comments under it count as that work. Rows that were not run count apart.

    Example:
        >>> headline([])
        'No published statement is checked yet.'
    """
    claims = list(claims)
    every = [claim for claim in claims if claim.type is RowType.PUBLISHED]
    rows = [claim for claim in every if claim.verdict is not Verdict.NOT_RUN]
    if not rows:
        return "No published statement is checked yet."
    works = len({work(claim.source) for claim in rows})
    measured, formulas = ([claim for claim in rows if claim.formula is flag] for flag in (False, True))
    more = len(every) - len(rows)
    not_run = f"; {more} more {'was' if more == 1 else 'were'} not run" if more else ""
    parts = [
        f"{len(rows)} published {_number(rows, 'statement')} of {works} {'work' if works == 1 else 'works'} "
        f"{'is' if len(rows) == 1 else 'are'} checked{not_run}."
    ]
    if measured:
        parts.append(f"{len(measured)} {_number(measured, 'measurement')}: {_outcomes(measured)}.")
    if formulas:
        whose = "whose number changes beyond sampling" if len(formulas) == 1 else "whose numbers change beyond sampling"
        name = _number(formulas, "formula")
        parts.append(f"{len(formulas)} {name}, {whose} only if code is wrong: {_outcomes(formulas)}.")
    if late := [claim for claim in rows if claim.after_result]:
        owns = "its criterion" if len(late) == 1 else "their criteria"
        parts.append(f"{len(late)} of all these had {owns} chosen after a result was known: {_outcomes(late)}.")
    if own := [claim for claim in claims if claim.predicted and claim.verdict is not Verdict.NOT_RUN]:
        were = "prediction of our own was" if len(own) == 1 else "predictions of our own were"
        parts.append(f"Since 28 November 2026 {len(own)} {were} written before the run: {_outcomes(own)}.")
    return " ".join(parts)


def _number(rows: Sequence[Claim], name: str) -> str:
    return name if len(rows) == 1 else f"{name}s"


def _outcomes(rows: Sequence[Claim]) -> str:
    """How many rows have each verdict, as a list in words."""
    counts = Counter(claim.verdict for claim in rows)
    parts = [
        f"{counts[verdict]} {words[counts[verdict] != 1]}" for verdict, words in OUTCOMES.items() if counts[verdict]
    ]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
