"""Results as JSON values and as a Markdown table."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.benchmarks.contest import Result


def plain(heading: dict[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """Everything measured, each single time included."""
    return {
        **heading,
        "contests": [
            {
                "title": result.contest.title,
                "unit": result.contest.unit,
                "work": result.contest.work,
                "baseline": result.contest.baseline,
                "floor_seconds": result.contest.floor,
                "sides": {
                    name: {
                        "seconds": times.tolist(),
                        "rate_quartiles": result.rate(name).tolist(),
                        "speedup_quartiles": result.speedup(name).tolist(),
                    }
                    for name, times in result.seconds.items()
                },
            }
            for result in results
        ],
    }


def markdown(heading: dict[str, Any], results: Sequence[Result]) -> str:
    """The table that docs/benchmarks.md shows: medians, quartiles in brackets."""
    roof = heading["roofline"]
    lines = [
        f"Machine: {heading['machine']}; {heading['date']}.",
        "",
        f"Best rates in the same run, float32: matrix products {roof['matmul_flops'] / 1e9:.0f} GFLOP/s, "
        f"normals {roof['normals'] / 1e6:.0f} M/s, exponentials {roof['exponentials'] / 1e6:.0f} M/s, "
        f"copying {roof['copied_bytes'] / 1e9:.1f} GB/s.",
        "",
        "| what | how | rate | times faster | of the floor |",
        "|---|---|---:|---:|---:|",
    ]
    for result in results:
        contest = result.contest
        for number, (name, times) in enumerate(result.seconds.items()):
            ratio = "1" if name == contest.baseline else _quartiles(result.speedup(name))
            share = f"{contest.floor / np.median(times):.0%}" if contest.floor else "–"
            what = f"{contest.title} ({len(times)} rounds)" if number == 0 else ""
            lines.append(f"| {what} | {name} | {_quartiles(result.rate(name))} {contest.unit} | {ratio} | {share} |")
    notes = dict.fromkeys(
        f"{result.contest.title}: {result.contest.note}." for result in results if result.contest.note
    )
    return "\n".join([*lines, "", *notes]) + "\n"


def _quartiles(values: np.ndarray) -> str:
    low, middle, high = (f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in values)
    return f"{middle} [{low}, {high}]"
