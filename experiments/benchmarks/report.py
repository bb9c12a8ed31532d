"""Results as JSON values, and the Markdown that is made of them alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from experiments.benchmarks.contest import Result
from experiments.benchmarks.machine import Roofline
from experiments.benchmarks.targets import rows

KINDS = {"normals": "normals", "operations": "matrix products", "exponentials": "exponentials", "factorising": "QR, …"}
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"


def plain(result: Result, roof: Roofline) -> dict[str, Any]:
    """One contest, each single time included, with what every unit takes and the least time that this could take."""
    contest = result.contest
    sides: dict[str, Any] = {}
    for name in contest.sides:
        if name in result.failed:
            sides[name] = {"failed": result.failed[name]}
            continue
        times = result.seconds[name]
        sides[name] = {
            "seconds": times.tolist(),
            "rate_quartiles": result.rate(name).tolist(),
            "speedup_quartiles": result.speedup(name).tolist(),
        }
        # The least time of one unit: every kind of operation at the machine's best rate.
        if name in contest.counts:
            least = roof.seconds(contest.counts[name])
            share = contest.work * sum(least.values()) / float(np.median(times))
            sides[name] |= {"counts": asdict(contest.counts[name]), "least_seconds": least, "share_of_best": share}
    return {
        "title": contest.title,
        "unit": contest.unit,
        "work": contest.work,
        "baseline": result.baseline,
        "note": contest.note,
        "sides": sides,
    }


def markdown(results: Mapping[str, Any]) -> str:
    """The tables that docs/benchmarks.md shows: medians, quartiles in brackets, one section for each benchmark."""
    lines: list[str] = []
    heading = None
    targets = [(words, bound, value, "yes" if met else "no") for words, bound, value, met in rows(results)]
    for name, section in results.items():
        # Results of one run share a heading; the targets stand under the first.
        if section["heading"] != heading:
            lines += [*_heading(section["heading"]), ""]
            if targets and heading is None:
                lines += ["### Targets", "", "| what | target | measured | met |", "|---|---:|---:|---|"]
                lines += [*map(_line, targets), ""]
            heading = section["heading"]
        lines += [f"### {name}", ""]
        if section["contests"]:
            lines += [*_contests(section["contests"]), ""]
        for table in section["tables"]:
            lines += [*_table(table), ""]
        if section.get("failed"):
            lines += [f"Not run to its end: {section['failed']}.", ""]
    return "\n".join(lines)


def put_into(page: str, table: str) -> str:
    """The page with what stands between its two marks replaced.

    Raises:
        ValueError: the page does not have each mark once, in order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or END in after or BEGIN in rest:
        raise ValueError(f"`--page` must hold the line {BEGIN} and, after it, {END} once each")
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"


def _heading(heading: Mapping[str, Any]) -> list[str]:
    roof = heading["roofline"]
    # Words, unit and its size for every rate.
    scales = {
        "matmul_flops": ("matrix products", 1e9, "GFLOP/s"),
        "normals": ("normals", 1e6, "M/s"),
        "exponentials": ("exponentials", 1e6, "M/s"),
        "factorising_flops": ("factorisations", 1e9, "GFLOP/s"),
        "copied_bytes": ("copying", 1e9, "GB/s"),
    }
    rates = [
        f"{words} {number(roof[key] / scale)} {unit} ({roof['reached_by'].get(key, '?')})"
        for key, (words, scale, unit) in scales.items()
    ]
    return [
        f"Machine: {heading['machine']}; {heading['date']}; load {number(heading['load'])} at the start.",
        "",
        f"Best rates in the same run, float32, and who reached them: {', '.join(rates)}.",
    ]


def _contests(contests: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| what | how | rate | times faster | of the best possible |", "|---|---|---:|---:|---:|"]
    for contest in contests:
        what = contest["title"]
        for name, side in contest["sides"].items():
            cells = [f"did not run: {side.get('failed')}", "–", "–"]
            if "failed" not in side:
                what = what and f"{what} ({len(side['seconds'])} rounds)"
                rate = f"{_quartiles(side['rate_quartiles'])} {contest['unit']}"
                ratio = "1" if name == contest["baseline"] else _quartiles(side["speedup_quartiles"])
                cells = [rate, ratio, f"{side['share_of_best']:.0%}" if "share_of_best" in side else "–"]
            lines.append(_line((what, name, *cells)))
            what = ""  # a title stands in the first line of its contest only
    lines += _budget(contests)
    notes = [f"{contest['title']}: {contest['note']}." for contest in contests if contest["note"]]
    return [*lines, *([""] if notes else []), *notes]


def _budget(contests: Sequence[Mapping[str, Any]]) -> list[str]:
    """The distance of a side from the best possible: milliseconds of each kind of operation at its best rate."""
    rows = []
    for contest in contests:
        for name, side in contest["sides"].items():
            if "least_seconds" not in side:
                continue
            least = [1e3 * side["least_seconds"][kind] for kind in KINDS]
            rows.append((f"{contest['title']}: {name}", *least, sum(least), 1e3 / side["rate_quartiles"][1]))
    if not rows:
        return []
    head = ("milliseconds of one unit", *KINDS.values(), "together", "measured")
    return ["", _line(head), "|---|" + "---:|" * (len(KINDS) + 2), *map(_line, rows)]


def _table(table: Mapping[str, Any]) -> list[str]:
    numeric = [all(not isinstance(row[i], str) for row in table["rows"]) for i in range(len(table["columns"]))]
    rule = "|" + "".join("---:|" if right else "---|" for right in numeric)
    note = ["", f"{table['note']}."] if table["note"] else []
    return [f"{table['title']}:", "", _line(table["columns"]), rule, *map(_line, table["rows"]), *note]


def _line(cells: Sequence[str | float]) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(cell if isinstance(cell, str) else number(cell) for cell in cells)} |"


def number(value: float) -> str:
    """Three digits, without an exponent where that can be read."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _quartiles(values: Sequence[float]) -> str:
    low, middle, high = (number(value) for value in values)
    return f"{middle} [{low}, {high}]"
