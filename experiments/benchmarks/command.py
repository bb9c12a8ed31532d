"""The command line, the JSON file and the table."""

import datetime
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

NAMES = ("initialisations", "arithmetic", "scale_grid", "width_free")


@dataclass(frozen=True)
class Arguments:
    """Time this package's ways of computing against others, in turns, with the machine's own best rates beside."""

    name: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME …]")] = ()
    """Benchmarks to run: initialisations, arithmetic, scale_grid, width_free; all of them when none is named."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("results/benchmarks")
    """Folder for benchmarks.json and benchmarks.md."""
    seconds: Annotated[float, tyro.conf.arg(metavar="S")] = 20.0
    """Time for each contest (five rounds at least)."""
    count: Annotated[int, tyro.conf.arg(metavar="N")] = 512
    """Networks, or values of n, in one call."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named benchmarks; 0 when all ran, 2 on bad input."""
    arguments = tyro.cli(Arguments, prog="python -m experiments.benchmarks", args=argv)
    problem = _problem(arguments)
    if problem:
        print(f"benchmarks: error: {problem}", file=sys.stderr)
        return 2
    from experiments.benchmarks import contest, machine, report

    roof = machine.roofline(min(1.0, arguments.seconds))
    results = []
    for name in NAMES:
        if name in arguments.name or not arguments.name:
            module = importlib.import_module(f"experiments.benchmarks.{name}")
            for each in module.contests(arguments.count, roof):
                print(f"{each.title} …", file=sys.stderr, flush=True)
                results.append(contest.run(each, arguments.seconds))
    heading = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine.describe(),
        "roofline": asdict(roof),
    }
    table = report.markdown(heading, results)
    (arguments.out / "benchmarks.json").write_text(json.dumps(report.plain(heading, results), indent=1) + "\n")
    (arguments.out / "benchmarks.md").write_text(table, encoding="utf-8")
    print(table, end="")
    return 0


def _problem(arguments: Arguments) -> str | None:
    """What is wrong with the arguments, if anything."""
    for name in arguments.name:
        if name not in NAMES:
            return f"unknown benchmark {name!r}; benchmarks are {', '.join(NAMES)}"
    if not arguments.seconds > 0:
        return f"`--seconds` must be > 0, got {arguments.seconds:g}"
    if arguments.count < 1:
        return f"`--count` must be >= 1, got {arguments.count}"
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "benchmarks.json").touch()
    except OSError as error:
        return f"`--out` must be a folder that can be written to, got {arguments.out}: {error.strerror}"
    return None
