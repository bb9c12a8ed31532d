"""Blocks of pages that show rows of the ledger, or what figures take, with date and machine; no hand types them.

A page says which rows or figures; `python -m experiments.ledger` writes what stands between the two marks:

    <!-- rows: a-key another-key -->
    <!-- end of rows -->

    <!-- figures: collapse_depth circle -->
    <!-- end of figures -->
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from experiments.ledger.claims import measured_text, who
from experiments.ledger.formulas import MARKED
from experiments.ledger.record import Entry
from experiments.lib import figure

MARKS = re.compile(
    r"(<!-- (?P<kind>rows|figures): (?P<names>[\w. -]+?) -->)\n.*?(<!-- end of (?P=kind) -->)", re.DOTALL
)
SPECIAL = re.compile(r"([\\`*_{}\[\]<|~$&])")


def filled(page: str, about: Mapping[str, str | int], entries: Sequence[Entry], to_docs: str = "") -> str:
    """A page whose blocks hold what the ledger says; `to_docs` leads from the page's folder to that of the ledger.

    Raises:
        KeyError: the page names a row or a figure that there is not.
    """

    def block(marks: re.Match[str]) -> str:
        names = marks["names"].split()
        of_rows = marks["kind"] == "rows"
        lines = rows(names, entries) if of_rows else figures(names, entries)
        shown = [
            entry
            for entry in entries
            if (any(claim.key in names for claim in entry.claims) if of_rows else entry.name in names)
        ]
        source = f"Rows of the [ledger]({to_docs}ledger.md): {circumstances(about, shown)}"
        return "\n".join([marks[1], "", *lines, "", source, "", marks[4]])

    return MARKS.sub(block, page)


def rows(keys: Sequence[str], entries: Sequence[Entry]) -> list[str]:
    """A table of rows of the ledger in the order of their keys."""
    claims = {claim.key: claim for entry in entries for claim in entry.claims}
    cells = [
        (
            " · ".join([*map(cell, filter(None, (claim.statement, claim.note))), f"`{claim.key}`"]),
            cell(who(claim)),
            cell(measured_text(claim)),
            str(claim.verdict),
        )
        for claim in map(claims.__getitem__, keys)
    ]
    return table(("statement, and what is measured", "whose", "measured ± s.e.", "outcome"), cells)


def figures(names: Sequence[str], entries: Sequence[Entry]) -> list[str]:
    """A table of figures: command, the minutes that each states for two cores, and the outcomes of its rows."""
    by_name = {entry.name: entry for entry in entries}
    cells = []
    for name in names:
        shown = figure.load(name)
        if isinstance(shown, figure.Broken):
            raise KeyError(name)
        outcomes = Counter(str(claim.verdict) for claim in by_name[name].claims)
        minutes = (f"{shown.ABOUT.minutes[preset]:g}" for preset in ("quick", "full"))
        counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        cells.append((f"`python -m experiments {name}`", *minutes, counts))
    return table(("command", "minutes", "minutes, `full`", "outcomes of its rows"), cells)


def circumstances(about: Mapping[str, str | int], entries: Sequence[Entry]) -> str:
    """Preset, seed, version, date and machine of a run's ledger, as a sentence's end."""
    return f"preset `{about['preset']}`, seed {about['seed']}, rc_jax {about['version']}, {when_and_where(entries)}."


def when_and_where(entries: Sequence[Entry]) -> str:
    """The newest date of the entries, and their machines."""
    date = max((str(entry.provenance.get("date", "")) for entry in entries), default="")[:10]
    names = ("machine", "device")
    told = ([str(entry.provenance[name]) for name in names if name in entry.provenance] for entry in entries)
    machines = sorted({"; ".join(each) for each in told if each})
    return f"{date}, on {', '.join(machines) or 'an unknown machine'}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]


def cell(text: str) -> str:
    r"""Text for a cell: on one line, with nothing that Markdown reads as its own but its formulas.

    Example:
        >>> print(cell(r"|z| < 5 at $\gamma_1$"))
        \|z\| \< 5 at $\gamma_1$
    """
    parts = MARKED.split(" ".join(text.split()))
    return "".join(f"${part}$" if at % 2 else SPECIAL.sub(r"\\\1", part) for at, part in enumerate(parts))
