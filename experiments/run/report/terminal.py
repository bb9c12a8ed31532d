"""The lines that the command prints: the list of figures, and at the end the ledger in short."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from experiments.ledger import record
from experiments.ledger.claims import NAMES, Claim, RowType, interval_text, measured_text
from experiments.ledger.decision import SYMBOL, Verdict
from experiments.ledger.formulas import plain
from experiments.ledger.record import DONE, FAILED, UNAVAILABLE, Entry
from experiments.lib.figure import PRESET_NAMES, Broken, Registry
from experiments.run.choices import Run
from rc_jax import __version__
from rc_jax._numerics.text import printable

RED, GREEN, YELLOW, PURPLE = "31", "32", "33", "35"
COLOUR = {
    Verdict.AGREES: GREEN,
    Verdict.IN_PART: YELLOW,
    Verdict.DIFFERS: RED,
    Verdict.HELD: GREEN,
    Verdict.FAILED: RED,
    Verdict.UNDECIDED: YELLOW,
    Verdict.NOT_RUN: PURPLE,
}
PLURAL = {Verdict.AGREES: "agree", Verdict.IN_PART: "agree in part", Verdict.DIFFERS: "differ"}


def paint(text: str, colour: str) -> str:
    """Colour for a terminal; plain where output is no terminal, or a dumb one, or NO_COLOR is set."""
    text = printable(text)
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if plain else f"\033[{colour}m{text}\033[0m"


def listing(registry: Registry) -> str:
    """Name, title and minutes at each preset; a star marks the core."""
    width = max((len(name) for name in registry), default=4)
    presets = "  ".join(f"{preset:>6}" for preset in PRESET_NAMES)
    lines = [f"{'name':{width}}  {presets}  title (minutes on two cores; * core)"]
    for name, figure in registry.items():
        if isinstance(figure, Broken):
            lines.append(f"{name:{width}}  cannot be used: {figure.reason}")
            continue
        minutes = "  ".join(f"{figure.ABOUT.minutes.get(preset, float('nan')):6g}" for preset in PRESET_NAMES)
        lines.append(f"{name:{width}}  {minutes}  {'* ' if figure.ABOUT.core else ''}{figure.ABOUT.title}")
    return "\n".join(lines)


def plain_listing(registry: Registry) -> list[dict[str, Any]]:
    """The same for programs: title, topic and minutes of each figure, or the error of one that cannot be used."""
    listed: list[dict[str, Any]] = []
    for name, figure in registry.items():
        if isinstance(figure, Broken):
            listed.append({"name": name, "error": figure.reason})
        else:
            about = figure.ABOUT
            fields = {"title": about.title, "topic": about.topic, "core": about.core, "minutes": dict(about.minutes)}
            listed.append({"name": name, **fields})
    return listed


def plain_summary(run: Run, made: Sequence[Entry], *, total: int, stopped: bool) -> dict[str, Any]:
    """The same as `summary` for programs; claims as in `claims.json`, but of the figures of this run only."""
    # The run, counts over all its figures, then each figure.
    verdicts = [claim.verdict for entry in made for claim in entry.claims]
    return {
        "command": "experiments",
        "version": __version__,
        "preset": run.preset,
        "seed": run.seed,
        "checkpoints": list(run.checkpoints),
        "folder": str(run.folder),
        "report": str(run.folder / "report.html") if made else None,
        "ledger": str(run.folder / record.FILE) if made else None,
        "total": total,
        "done": sum(entry.status == DONE for entry in made),
        "stopped": stopped,
        "verdicts": {str(verdict): verdicts.count(verdict) for verdict in Verdict},
        "figures": {
            entry.name: {
                "status": entry.status,
                "title": entry.title,
                "reason": entry.reason,
                "log": str(run.log(entry.name)) if entry.status == FAILED else None,
                "loaded": entry.reused,
                "seconds": entry.provenance.get("seconds"),
                "command": entry.command,
                "files": sorted(str(path) for path in run.folder.glob(f"{entry.name}.*") if path.is_file()),
                "not_finite": list(entry.warnings),
                "claims": record.plain_claims(entry),
            }
            for entry in made
        },
    }


def as_json(value: Any) -> str:
    """Text for a program: ASCII, so that no terminal's encoding matters, and no NaN."""
    return json.dumps(value, indent=1, allow_nan=False)


def summary(run: Run, made: Sequence[Entry], *, total: int, stopped: bool) -> str:
    """The claims of this run in short, what failed and why, and where the report is."""
    # The rows, their number, then what is missing.
    claims = [claim for entry in made for claim in entry.claims]
    lines = ["", *(table(claims) if claims else []), *legend(claims)]
    done = sum(entry.status == DONE for entry in made)
    lines.append(f"{done} of {total} figures, {tally(claims)}" + ("; stopped before the end" if stopped else ""))
    for entry in made:
        if entry.status == FAILED:
            lines.append(paint(f"failed: {entry.name}: {entry.reason} (see {run.log(entry.name)})", RED))
        if entry.status == UNAVAILABLE:
            lines.append(paint(f"unavailable: {entry.name}: {entry.reason}", YELLOW))
        for warning in entry.warnings:
            lines.append(paint(f"not finite: {entry.name}: {warning}", YELLOW))
    if stopped:
        lines.append("run the same command again to go on from here")
    if made and (report := run.folder / "report.html").exists():
        lines.append(printable(f"report: {report}"))
    return "\n".join(lines)


def table(claims: Sequence[Claim]) -> list[str]:
    """Each row: verdict and sentence, wrapped to the terminal, and under it what was expected and measured."""
    verdicts = max(len(claim.verdict) for claim in claims) + 4
    width = max(shutil.get_terminal_size((120, 24)).columns - verdicts - 1, 40)
    lines = []
    for claim in claims:
        first, *more = textwrap.wrap(printable(plain(claim.statement)), width)
        lines.append(paint(f"{f'{SYMBOL[claim.verdict]} {claim.verdict}':{verdicts}}", COLOUR[claim.verdict]) + first)
        values = f"expected {interval_text(claim) or 'nothing'}, measured {measured_text(claim)}"
        lines += [" " * verdicts + line for line in (*more, *textwrap.wrap(printable(values), width))]
    return lines


def legend(claims: Sequence[Claim]) -> list[str]:
    """What a verdict means that could be taken for an error of the program."""
    meanings = {
        Verdict.FAILED: "failed: measured otherwise than this package had said; the program itself worked",
        Verdict.DIFFERS: "differs: measured otherwise than the source says",
        Verdict.UNDECIDED: "undecided: near the edge of what was expected, or tested elsewhere than in the source",
    }
    seen = {claim.verdict for claim in claims}
    return [f"{SYMBOL[verdict]} {text}" for verdict, text in meanings.items() if verdict in seen]


def worded(verdict: Verdict, count: int) -> str:
    """A verdict as the verb of so many rows."""
    return verdict if count == 1 else PLURAL.get(verdict, verdict)


def tally(claims: Sequence[Claim]) -> str:
    """The number of rows of each type and verdict: `3 published statements: 2 agree, 1 undecided; 1 law: 1 held`."""
    parts = []
    for row_type in RowType:
        verdicts = [claim.verdict for claim in claims if claim.type is row_type]
        if not verdicts:
            continue
        counts = {verdict: verdicts.count(verdict) for verdict in Verdict if verdict in verdicts}
        words = [f"{count} {worded(verdict, count)}" for verdict, count in counts.items()]
        parts.append(f"{len(verdicts)} {NAMES[row_type]}{'' if len(verdicts) == 1 else 's'}: {', '.join(words)}")
    return "; ".join(parts) or "no rows"
