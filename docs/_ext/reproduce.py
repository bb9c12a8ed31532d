"""The directive `reproduce`: for every figure the command, the minutes and the numbers to expect, from code and ledger.

Nothing of it is typed: figures are those that `experiments.lib.figure` finds, numbers those of a ledger that a run at
the preset `quick` left (docs/claims.json, else the one in the folder of results).
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from docutils import nodes
from figures import anchor, known
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from experiments import ledger
from experiments.ledger import pages, record
from experiments.ledger.included import circumstances
from experiments.lib import figure
from experiments.lib.figure import PRESET_NAMES
from experiments.running import runner


class Reproduce(SphinxDirective):
    """`{reproduce}`: which run, a table of all figures, then each with its command and its numbers."""

    def run(self) -> list[nodes.Node]:
        """The run, the table, then one section for every figure."""
        folder = snapshot(pathlib.Path(self.env.srcdir), pathlib.Path(self.config.figures_results))
        try:
            about, made = pages.read(folder / record.FILE)
        except ValueError as error:
            raise self.error(str(error)) from None
        self.env.note_dependency(str(folder / record.FILE))
        names, entries = list(figure.discover()), {entry.name: entry for entry in made}
        run = nodes.paragraph("", f"Numbers are those of one run: {circumstances(about, made).replace('`', '')}")
        return [run, overview(names, entries), *(section(name, entries.get(name)) for name in names)]


def snapshot(docs: pathlib.Path, results: pathlib.Path) -> pathlib.Path:
    """The folder whose ledger holds the numbers to expect: the committed one first."""
    return docs if (docs / record.FILE).is_file() else results


def overview(names: Sequence[str], entries: Mapping[str, record.Entry]) -> nodes.table:
    """Every figure in a line: minutes by preset and what became of its claims."""
    rows = []
    for name in names:
        about = known(name).ABOUT
        link = nodes.reference("", "", nodes.literal(name, name), internal=True, refid=anchor(name))
        rows.append(
            [nodes.paragraph("", "", link), nodes.paragraph("", about.title)]
            + [nodes.paragraph("", f"{about.minutes[preset]:g}") for preset in PRESET_NAMES]
            + [nodes.paragraph("", tally(entries.get(name)))]
        )
    heads = ["figure", "what it shows", *(f"{preset}, min" for preset in PRESET_NAMES), "claims"]
    return table(heads, rows)


def tally(entry: record.Entry | None) -> str:
    """The number of claims that a figure has, by verdict."""
    if entry is None or not entry.claims:
        return "–"
    verdicts = [claim.verdict.value for claim in entry.claims]
    return ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts))


def section(name: str, entry: record.Entry | None) -> nodes.section:
    """One figure: title, command, minutes, and a table of what to expect."""
    module = known(name)
    about = module.ABOUT
    made = nodes.section(ids=[anchor(name)], names=[name])
    made += nodes.title("", about.title)
    command = runner.Run().command(name)
    made += nodes.literal_block(command, command, language="none")
    made += nodes.literal_block(about.formula, about.formula, language="none", classes=["formula"])
    minutes = ", ".join(f"{preset} {about.minutes[preset]:g}" for preset in PRESET_NAMES)
    made += nodes.paragraph("", f"Minutes on two cores: {minutes}. {sizes(module)}")
    if entry is None or not entry.claims:
        reason = entry.reason if entry is not None and entry.reason else "the ledger of this page has no run of it"
        made += nodes.paragraph("", f"No numbers here: {reason}.")
        return made
    rows = [
        [
            nodes.paragraph("", text)
            for text in (c.statement, ledger.who(c), ledger.interval_text(c), ledger.measured_text(c), c.verdict.value)
        ]
        for c in entry.claims
    ]
    made += table(["what", "source", "interval", "expected number", "verdict"], rows)
    return made


def sizes(module: figure.Figure) -> str:
    """The sizes of the preset quick: its fields that are whole numbers."""
    spec = module.PRESETS["quick"]
    fields = {each.name: getattr(spec, each.name) for each in dataclasses.fields(spec)}
    whole = [f"{name} {value}" for name, value in fields.items() if isinstance(value, int) and name != "seed"]
    return f"quick: {', '.join(whole)}." if whole else ""


def table(heads: Sequence[str], rows: Sequence[Sequence[nodes.Node]]) -> nodes.table:
    """A table with a line of heads."""
    made = nodes.table(classes=["wide"])
    group = nodes.tgroup(cols=len(heads))
    made += group
    group += [nodes.colspec(colwidth=1) for _ in heads]
    group += nodes.thead("", line([nodes.paragraph("", head) for head in heads]))
    group += nodes.tbody("", *(line(row) for row in rows))
    return made


def line(cells: Sequence[nodes.Node]) -> nodes.row:
    """One row of a table."""
    return nodes.row("", *(nodes.entry("", cell) for cell in cells))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("reproduce", Reproduce)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
