"""The command line: compare the sides, time them in turns, print tables, and put them into a page."""

import datetime
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from rc_jax._numerics.text import perhaps
from rc_jax.cli.arguments import Usage
from rc_jax.cli.shell import BAD_INPUT, DONE, FAILED, INTERRUPTED, NO_READER, Program, guarded, read

if TYPE_CHECKING:
    from experiments.benchmarks.contests import Contest

NAMES = (
    "initialisations", "direct", "scale_grid", "width_free", "diagnosis", "exact", "first_call", "device", "precision",
)  # fmt: skip
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
MOST = 40  # rounds


@dataclass(frozen=True)
class Arguments:
    """Time this package's ways of computing against others, in turns."""

    name: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME …]")] = ()
    """Benchmarks to run, all but `precision` when none is named. Results of the others that stand in --out are kept."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("results/benchmarks")
    """Folder for benchmarks.json, written after every contest."""
    seconds: Annotated[float, tyro.conf.arg(metavar="S")] = 20.0
    """Time for each contest (five rounds at least)."""
    count: Annotated[int, tyro.conf.arg(metavar="N")] = 512
    """Networks, or values of n, in one call."""
    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """One round of few and small networks: to see that everything runs, not to read figures from."""
    page: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A page, such as docs/benchmarks.md, between whose two marks the tables of --out are put."""
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """List the benchmarks, and stop."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not say on stderr what is being measured; only what breaks off."""


PROGRAM = Program(
    name="python -m experiments.benchmarks",
    label="benchmarks",
    description="Time this package's ways of computing against others, in turns.",
    examples={"": ("", "direct --seconds 60", "--quick --out /tmp/benchmarks", "--page docs/benchmarks.md", "--list")},
    statuses={
        DONE: "every benchmark ran",
        FAILED: "one broke off; stderr says which, the others are finished",
        BAD_INPUT: "bad input: one line on stderr, nothing measured",
        INTERRUPTED: "interrupted; contests that were finished are written",
        NO_READER: "the reader of the output has gone, as after | head",
    },
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named benchmarks; 0 when all ran, 1 when one broke off, 2 on bad input, 130 interrupted."""
    return guarded(PROGRAM, lambda: _start(sys.argv[1:] if argv is None else argv))


def _start(argv: Sequence[str]) -> int:
    arguments: Arguments | None = read(PROGRAM, Arguments, argv)
    if arguments is None:  # help or version was asked for and has been printed
        return DONE
    if arguments.list:
        print("\n".join(NAMES))
        return DONE
    _check(arguments)
    file = arguments.out / "benchmarks.json"
    try:
        results = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        results = {}
    broken = _measure(arguments, results, file)
    text = markdown(results)
    if arguments.page is not None:
        before, _, rest = arguments.page.read_text("utf-8").partition(BEGIN)
        arguments.page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}", "utf-8")
    print(text, end="")
    return FAILED if broken else DONE


def _check(arguments: Arguments) -> None:
    """Look at every argument before anything is measured.

    Raises:
        Usage: a name, number, page or folder that cannot be used.
    """
    for name in arguments.name:
        if name not in NAMES:
            raise Usage(f"unknown benchmark {name!r}; benchmarks are {', '.join(NAMES)}{perhaps(name, NAMES)}")
    if not arguments.seconds > 0:
        raise Usage(f"`--seconds` must be > 0, got {arguments.seconds:g}")
    if arguments.count < 1:
        raise Usage(f"`--count` must be >= 1, got {arguments.count}")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "benchmarks.json").touch()
        page = arguments.page.read_text("utf-8") if arguments.page else BEGIN + END
    except OSError as error:
        raise Usage(f"cannot write to {error.filename}: {error.strerror}") from None
    if page.count(BEGIN) != 1 or page.partition(BEGIN)[2].count(END) != 1:
        raise Usage(f"`--page` must hold the line {BEGIN} and, after it, {END} once each")


def _measure(arguments: Arguments, results: dict[str, Any], file: Path) -> bool:
    """Run what is asked for into `results`, by name, written after every contest; whether anything broke off."""
    from experiments.benchmarks import contests, first

    benchmarks = contests.BENCHMARKS | first.BENCHMARKS

    seconds, count, least = (0.2, 16, 1) if arguments.quick else (arguments.seconds, arguments.count, 5)
    names = arguments.name or NAMES[:-1]
    for name in names:
        section: dict[str, Any] = {"run": _circumstances(), "contests": [], "tables": []}
        results[name] = section
        try:
            for each in benchmarks[name](count):
                if not arguments.quiet:
                    print(f"{name}: {each.title} …", file=sys.stderr, flush=True)
                if isinstance(each, contests.Contest):
                    section["contests"].append(timed(each, seconds, least))
                else:
                    section["tables"].append(asdict(each))
                file.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
        except Exception as error:  # one broken benchmark does not take the others with it
            section["failed"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
            print(f"{name}: {section['failed']}", file=sys.stderr)
    return any("failed" in results[name] for name in names)


def _circumstances() -> str:
    """Date, machine, versions and load."""
    import jax

    from experiments.run.provenance import cores, processor

    day, device = datetime.datetime.now(datetime.UTC).date(), jax.devices()[0].device_kind
    load = f"{os.getloadavg()[0]:.2g}" if hasattr(os, "getloadavg") else "unknown"
    versions = f"jax {jax.__version__}, Python {platform.python_version()}"
    return f"{day}; {processor()}, {cores()} cores; device {device}; {versions}; load {load} at the start"


def timed(contest: "Contest", seconds: float, least: int) -> dict[str, Any]:
    """Call every side once, which compiles it, and compare; then time sides and bounds in turns.

    A side that raises, for want of PyTorch or of memory, is left out with its reason.

    Raises:
        AssertionError: two sides disagree, so that nothing is timed.
    """
    given: dict[str, np.ndarray] = {}
    failed: dict[str, str] = {}
    for name, side in contest.sides.items():
        try:
            given[name] = side()
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {(str(error).strip() or '–').splitlines()[0]}"
            continue
        first = next(iter(given))
        try:
            contest.agree(given[name], given[first])
        except AssertionError as error:
            raise AssertionError(f"{contest.title}: {name} against {first}: {error}") from None

    # Forwards and backwards by turns, until the seconds have gone.
    calls = {name: (contest.work, contest.sides[name]) for name in given} | dict(contest.bounds)
    for _, call in contest.bounds.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    deadline = time.perf_counter() + seconds
    for turn in range(MOST if given else 0):
        if turn >= least and time.perf_counter() > deadline:
            break
        for name in calls if turn % 2 == 0 else reversed(calls):
            before = time.perf_counter()
            calls[name][1]()
            times[name].append((time.perf_counter() - before) / calls[name][0])

    first = next(iter(given), None)
    sides = {
        name: {
            "seconds": taken,
            "rate": _quartiles(1 / np.array(taken)),
            "ratio": _quartiles(np.array(times[str(first)]) / taken),
        }
        for name, taken in times.items()
        if taken
    }
    return {"title": contest.title, "unit": contest.unit, "first": first, "sides": sides, "failed": failed}


def _quartiles(values: np.ndarray) -> list[float]:
    return np.quantile(values, [0.25, 0.5, 0.75]).tolist()


def markdown(results: dict[str, Any]) -> str:
    """A section for each benchmark: circumstances, its tables, and one table of its contests, medians [quartiles]."""
    parts: list[str] = []
    for name in filter(results.get, NAMES):
        section = results[name]
        parts += [f"### {name}", f"{section['run']}."]
        for table in section["tables"]:
            parts += [f"{table['title'].capitalize()}:", _table(table["columns"], table["rows"])]
        if section["contests"]:
            rows = [row for contest in section["contests"] for row in _rows(contest)]
            parts.append(_table(("what", "how", "rate", "times faster"), rows))
        if "failed" in section:
            parts.append(f"Not run to its end: {section['failed']}.")
    return "\n\n".join(parts) + "\n"


def _rows(contest: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """One for each side; the title stands in the first."""
    sides = {
        name: (
            f"{_shown(taken['rate'])} {contest['unit']}",
            "1" if name == contest["first"] else _shown(taken["ratio"]),
        )
        for name, taken in contest["sides"].items()
    } | {name: (f"did not run: {why}", "–") for name, why in contest["failed"].items()}
    for name, cells in sides.items():
        yield contest["title"] if name == next(iter(sides)) else "", name, *cells


def _table(columns: Sequence[str], rows: Iterable[Sequence[str | float]]) -> str:
    return "\n".join([_line(columns), "|" + "---|" * len(columns), *map(_line, rows)])


def _line(cells: Sequence[str | float]) -> str:
    return f"| {' | '.join(cell if isinstance(cell, str) else _number(cell) for cell in cells)} |"


def _shown(quartiles: Sequence[float]) -> str:
    low, middle, high = map(_number, quartiles)
    return middle if low == high else f"{middle} [{low}, {high}]"


def _number(value: float) -> str:
    """Three digits, without an exponent where that can be read."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


if __name__ == "__main__":
    # A device for each core: by default all cores are one device, on which a small network uses one core.
    flag = "--xla_force_host_platform_device_count"
    if flag not in os.environ.get("XLA_FLAGS", ""):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}={cores}".strip()
    sys.exit(main())
