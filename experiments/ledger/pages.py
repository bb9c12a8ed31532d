"""The ledger in the docs: `docs/claims.json`, one run's ledger, and the pages made of it.

`python -m experiments.ledger results/quick/claims.json` writes the snapshot, `ledger.md` with a page for each type of
row, the headline of the first pages, the table of works on `citation.md`, and on all pages the blocks of
`experiments.ledger.included`. `--only NAME` takes the rows of one figure from the run, and all others from the
snapshot that there is. Without a file it writes the pages of the snapshot again. Pages are Markdown that GitHub
and Sphinx read alike.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from experiments.ledger import included, record
from experiments.ledger.claims import NAMES, Claim, RowType, interval_text, measured_text, neighbours_text
from experiments.ledger.decision import SYMBOL, Verdict
from experiments.ledger.included import cell, circumstances, table, when_and_where
from experiments.ledger.literature import WORKS
from experiments.ledger.record import DONE, Entry
from experiments.ledger.sections import by_topic, headline, sections
from rc_jax._numerics.files import write_whole
from rc_jax.cli import shell
from rc_jax.cli.arguments import Usage

PAGE = "ledger.md"
# The page of each type of row.
PARTS = {
    RowType.PUBLISHED: "ledger/published.md",
    RowType.LAW: "ledger/laws.md",
}
DOCS = Path(__file__).parents[2] / "docs"
KEPT = ("date", "machine", "device", "version", "jax")  # of a result's provenance
HEADS = ("statement (place)", "how it is tested", "result", "verdict")
TOP = """<!-- Made by `{command}`; edits are lost. -->

# Ledger

*For somebody who asks what of the literature was measured again, and how it came out.*

{headline}

A row is a statement, an interval, and what is measured. The verdict is computed from the interval and the standard
error ([how](experiments.md#verdicts)). The interval stands in the code before the run. Where a source prints no number,
the tolerance is our choice. A row whose criterion was chosen when a result was known says **criterion after the
result**, and the headline counts published ones apart; of laws that were reworded it is said since 29 November 2026. A
law that was a **prediction before its first run** stays when it fails;
[62 earlier predictions](earlier_predictions.md) are a list of their own. Only published statements are said to
agree or to differ. The package's own laws have a page of their own.

A **formula** follows from a definition by algebra, an integral or a count, or from a theorem. Its row changes only if
code is wrong.
A **measured** row could have come out otherwise. Parts of a work, its code and comments under it count as one work.
The [notation](notation.md) defines the symbols. A result is a number ± its standard error, or the least and the
largest of several.

If you find a row about your work unfair,
[dispute it](citation.md#if-you-disagree-with-a-row-about-your-work) by its key.

The rows are those of the newest run of each figure: {circumstances}
`{command}` makes these pages of its ledger; [claims.json](claims.json) holds the same for programs.
`python -m experiments FIGURE` makes the figure of a row again.

"""
PART = """<!-- Made by `{command}`; edits are lost. -->

# Ledger: {title}

*For somebody who looks for one row, or for all rows of a work.*

How to read a row, and rows of the other types: [ledger](../ledger.md).
The rows are those of the newest run of each figure: {circumstances}
"""
HEADLINE = re.compile(r"(<!-- headline -->)\n.*?(<!-- /headline -->)", re.DOTALL)
TABLE_OF_WORKS = re.compile(r"(<!-- works: made by [^>]* -->)\n.*?(<!-- end of works -->)", re.DOTALL)


@dataclass(frozen=True)
class Arguments:
    """Write docs/claims.json, a snapshot of a run's ledger, and the pages made of it."""

    file: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE]")] = None
    """A run's claims.json; without it the pages are made again, of the snapshot there is."""
    docs: Annotated[Path, tyro.conf.arg(metavar="D", help_behavior_hint="(default: docs)")] = DOCS
    """Folder to write into."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="N")] = ()
    """Figures whose rows replace those of the snapshot that there is; every other figure keeps its own."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not print where the page is."""


PROGRAM = shell.Program(
    name="python -m experiments.ledger",
    label="ledger",
    description="Write docs/claims.json, a snapshot of a run's ledger, and the pages made of it.",
    examples={"": ("results/quick/claims.json", "")},
    statuses={
        shell.DONE: "the page holds every figure of the run",
        shell.FAILED: "figures were left out; stderr names them",
        shell.BAD_INPUT: "bad input: one line on stderr, nothing written",
    },
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its exit status is one of `PROGRAM.statuses`."""
    return shell.guarded(PROGRAM, lambda: _write(sys.argv[1:] if argv is None else argv))


def _write(argv: Sequence[str]) -> int:
    """Write the snapshot where a run is given, then every page that there is."""
    asked: Arguments | None = shell.read(PROGRAM, Arguments, argv)
    if asked is None:
        return shell.DONE
    try:
        about, entries = read(asked.file or asked.docs / record.FILE)
        if asked.only:
            entries = merged(asked, about, entries)
    except ValueError as error:
        raise Usage(str(error)) from None
    # Figures that were not made are left out of the snapshot and of every page.
    made = [entry for entry in entries if entry.status == DONE]
    if asked.file:
        record.write(asked.docs, [_kept(entry, about) for entry in made], **about)
    for page, text in markdown(about, entries).items():
        write_whole(asked.docs / page, text)
    for page, filled in (("index.md", headed), ("../README.md", headed), ("citation.md", with_works)):
        path = asked.docs / page
        if path.exists():
            write_whole(path, filled(path.read_text(encoding="utf-8"), made))
    for path, text in with_rows(asked.docs, about, made):
        write_whole(path, text)
    for entry in entries:
        if entry not in made:
            print(f"left out: {entry.name}, which was not made", file=sys.stderr)
    if not asked.quiet:
        print(asked.docs / PAGE)
    return shell.DONE if len(made) == len(entries) else shell.FAILED


def read(path: Path) -> tuple[dict[str, str | int], list[Entry]]:
    """A ledger's preset, seed and version, and its entries by topic.

    Raises:
        ValueError: no ledger, or one without claims.
    """
    try:
        entries = list(record.read(path.parent).values()) if path.name == record.FILE else []
    except record.Damaged:
        entries = []
    if not any(entry.claims for entry in entries):
        raise ValueError(f"`file` must be a {record.FILE} that a run wrote, got {path}")
    content = json.loads(path.read_text(encoding="utf-8"))
    about = {name: content.get(name) for name in ("preset", "seed", "version")}
    if [type(value) for value in about.values()] != [str, int, str]:
        raise ValueError(f"`file` must say its preset, seed and version, got {about} in {path}")
    return about, _by_topic(entries)


def _by_topic(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for _, group in by_topic(sorted(entries, key=lambda entry: entry.name)) for entry in group]


def merged(asked: Arguments, about: Mapping[str, str | int], run: Sequence[Entry]) -> list[Entry]:
    """The snapshot with the rows of some figures replaced by those of a run of the same preset, seed and version.

    Raises:
        ValueError: no run is given, it has not made a figure, or it is of another preset, seed or version.
    """
    if asked.file is None:
        raise ValueError("`only` must come with the file of a run, got none")
    whole, snapshot = read(asked.docs / record.FILE)
    if whole != about:
        raise ValueError(f"`file` must be of the snapshot's preset, seed and version, {whole}, got {about}")
    made = {entry.name: entry for entry in run if entry.status == DONE and entry.name in asked.only}
    if missing := [name for name in asked.only if name not in made]:
        raise ValueError(f"`only` must name figures that the run made, got {', '.join(missing)}")
    every = {entry.name: entry for entry in snapshot} | made
    return _by_topic(every.values())


def _kept(entry: Entry, about: Mapping[str, str | int]) -> Entry:
    """An entry of the snapshot: every claim, and of how it came about what a reader needs."""
    provenance = {name: entry.provenance[name] for name in KEPT if name in entry.provenance}
    command = f"python -m experiments {entry.name} --preset {about['preset']}"
    return Entry(entry.name, entry.title, DONE, command, entry.topic, claims=entry.claims, provenance=provenance)


def made_by(about: Mapping[str, str | int]) -> str:
    """The command that makes the page of a run's ledger."""
    seed = f"-seed{about['seed']}" if about["seed"] else ""
    return f"python -m experiments.ledger results/{about['preset']}{seed}/{record.FILE}"


def markdown(about: Mapping[str, str | int], entries: Sequence[Entry]) -> dict[str, str]:
    """The pages by name: one with counts by type and verdict, and one for each type with tables by source or topic."""
    made = [entry for entry in entries if entry.status == DONE]
    where = {"command": made_by(about), "circumstances": circumstances(about, made)}
    claims = [claim for entry in made for claim in entry.claims]

    # The first page: how many rows there are of each type and verdict, each type with a link to its page.
    rows = []
    for row_type, part in PARTS.items():
        for formula in (False, True):
            counts = Counter(claim.verdict for claim in claims if claim.type is row_type and claim.formula is formula)
            link = f"[{NAMES[row_type]}s]({part}), {_decided(row_type, formula=formula)}"
            rows.append((link, str(counts.total()), *(str(counts[verdict] or "") for verdict in Verdict)))
    top = TOP.format(headline=headline(claims), **where)
    pages = {PAGE: "\n".join([*top.splitlines(), *table(("rows", "number", *Verdict), rows)]) + "\n"}

    # A page for each type. A source names a group of published statements, a topic one of any other type.
    every = sections(made)
    for row_type, part in PARTS.items():
        lines = PART.format(title=f"{NAMES[row_type]}s", **where).splitlines()
        for section in (each for each in every if each.rows[0][1].type is row_type):
            lines += ["", f"## {section.title}", "", section.about]
            suffix = "" if row_type is RowType.PUBLISHED else f": {section.title.lower()}"
            for group in section.groups:
                lines += ["", f"### {group.title}{suffix}"]
                lines += ["", cell(group.about)] if group.about else []
                lines += ["", *table(HEADS, [_row(entry, claim) for entry, claim in group.rows])]
        pages[part] = "\n".join(lines) + "\n"
    return pages


def headed(page: str, entries: Sequence[Entry]) -> str:
    """A page with the ledger's headline, its date and its machine between the two marks."""
    text = headline(claim for entry in entries for claim in entry.claims)
    text += f" Run of {when_and_where(entries)}."
    return HEADLINE.sub(lambda marks: f"{marks[1]}\n{text}\n{marks[2]}", page)


def with_works(page: str, entries: Sequence[Entry] = ()) -> str:
    """The page on citation with the table of all works, cited by entries or not, between its two marks."""
    works = sorted(WORKS.values(), key=lambda work: work.label.casefold())
    rows = [(w.label, w.title, f"<{w.address}>" if w.address else w.unaddressed, w.seen) for w in works]
    text = "\n".join(table(("work", "title", "where", "read here"), rows))
    return TABLE_OF_WORKS.sub(lambda marks: f"{marks[1]}\n\n{text}\n\n{marks[2]}", page)


def with_rows(docs: Path, about: Mapping[str, str | int], entries: Sequence[Entry]) -> Iterator[tuple[Path, str]]:
    """Every page with marks for rows or figures, and its text with what belongs between them."""
    for path in sorted(docs.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if included.MARKS.search(text):
            yield path, included.filled(text, about, entries, "../" * (len(path.relative_to(docs).parts) - 1))


def _decided(row_type: RowType, *, formula: bool) -> str:
    """What decides rows: a law that is not proved may be derived, which is no measurement."""
    if formula:
        return "formula" if row_type is RowType.PUBLISHED else "proved"
    return "measured" if row_type is RowType.PUBLISHED else "derived or measured"


def _row(entry: Entry, claim: Claim) -> tuple[str, ...]:
    decided = claim.proof or _decided(claim.type, formula=claim.formula)
    tested = [
        decided + (f", next to {neighbours_text(claim)}" if claim.neighbours else ""),
        claim.hypotheses,
        claim.note,
        f"interval {interval_text(claim)}: {claim.interval_from}",
    ]
    place = f" ({cell(claim.place)})" if claim.place else ""
    statement = f'<a id="{claim.key}"></a>{cell(claim.statement)}{place} · `{claim.key}`'
    late = ["**criterion after the result**"] if claim.after_result else []
    late += ["**prediction before its first run**"] if claim.predicted else []
    how = " · ".join([*(cell(part) for part in tested if part), *late, f"`{entry.name}`"])
    return statement, how, cell(measured_text(claim)), f"{SYMBOL[claim.verdict]} {claim.verdict}"
