"""The command line: run, write after every contest, print, and put what was measured into a page."""

import contextlib
import datetime
import importlib
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rc_jax._numerics import files
from rc_jax.cli.arguments import Usage
from rc_jax.cli.shell import BAD_INPUT, DONE, FAILED, INTERRUPTED, NO_READER, Program, guarded, read

# In the order in which they run; what a module must have stands at the head of the package.
MODULES = {
    name: f"experiments.benchmarks.{folder}.{name}"
    for folder, names in {
        "speed": "initialisations direct arithmetic width_free paths scale_grid compile_time memory distributed",
        "instruments": "diagnosis",
        "devices": "accelerator precision",
    }.items()
    for name in names.split()
}
QUICK_SECONDS, QUICK_COUNT, QUICK_ROUNDS = 0.2, 16, 1


@dataclass(frozen=True)
class Arguments:
    """Time this package's ways of computing against others, in turns, with the machine's own best rates beside."""

    name: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME …]")] = ()
    """Benchmarks to run, all of them when none is named. Results of the others that stand in --out are kept."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("results/benchmarks")
    """Folder for benchmarks.json and benchmarks.md, both written after every contest."""
    seconds: Annotated[float, tyro.conf.arg(metavar="S")] = 20.0
    """Time for each contest (five rounds at least)."""
    count: Annotated[int, tyro.conf.arg(metavar="N")] = 512
    """Networks, or values of n, in one call."""
    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """One round of few and small networks: to see that everything runs, not to read figures from."""
    show: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Run nothing: print the Markdown of the results that stand in --out."""
    page: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A page, such as docs/benchmarks.md, between whose two marks the Markdown is put."""
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """List the benchmarks, and stop."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not say on stderr what is being measured; only what breaks off."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON, as in benchmarks.json, in place of Markdown."""


PROGRAM = Program(
    name="python -m experiments.benchmarks",
    label="benchmarks",
    description=(
        "Time this package's ways of computing against others, in turns, with the machine's own best rates beside."
    ),
    examples={"": ("", "paths memory --seconds 60", "--quick --out /tmp/benchmarks", "--show --json", "--list")},
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
    """Measure, or read what was measured, and print it."""
    arguments: Arguments | None = read(PROGRAM, Arguments, argv)
    if arguments is None:  # help or version was asked for and has been printed
        return DONE
    if arguments.list:
        print(json.dumps([*MODULES], indent=1) if arguments.json else "\n".join(MODULES))
        return DONE
    _check(arguments)
    from experiments.benchmarks import report

    results = _stored(arguments.out)
    with contextlib.redirect_stdout(sys.stderr):  # what a library has to say is no result
        broken = False if arguments.show else _measure(arguments, results)
    table = report.markdown(results)
    if arguments.page is not None:
        arguments.page.write_text(report.put_into(arguments.page.read_text("utf-8"), table), "utf-8")
    if arguments.json:
        print(json.dumps({"benchmarks": _finite(results)}, indent=1, allow_nan=False))
    else:
        print(table, end="")
    return FAILED if broken else DONE


def _check(arguments: Arguments) -> None:
    """Look at every argument before anything is measured.

    Raises:
        Usage: a name, number, page or folder that cannot be used.
    """
    for name in arguments.name:
        if name not in MODULES:
            raise Usage(f"unknown benchmark {name!r}; benchmarks are {', '.join(MODULES)}")
    if not arguments.seconds > 0:
        raise Usage(f"`--seconds` must be > 0, got {arguments.seconds:g}")
    if arguments.count < 1:
        raise Usage(f"`--count` must be >= 1, got {arguments.count}")
    if arguments.page is not None:
        from experiments.benchmarks import report

        try:
            with arguments.page.open("r+", encoding="utf-8") as page:
                report.put_into(page.read(), "")
        except OSError as error:
            raise Usage(f"`--page` must be a file to write to, got {arguments.page}: {error.strerror}") from None
        except ValueError as error:
            raise Usage(str(error)) from None
    if arguments.show:  # reads alone
        if not _stored(arguments.out):
            raise Usage(f"`--show` must find results in `--out`, got none in {arguments.out}")
        return
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "benchmarks.json").touch()
    except OSError as error:
        raise Usage(f"`--out` must be a folder that can be written to, got {arguments.out}: {error.strerror}") from None


def _measure(arguments: Arguments, results: dict[str, Any]) -> bool:
    """Run what is asked for into `results`, by name; whether anything broke off."""
    from experiments.benchmarks import machine

    seconds, count, rounds = arguments.seconds, arguments.count, 5
    if arguments.quick:
        seconds, count, rounds = QUICK_SECONDS, QUICK_COUNT, QUICK_ROUNDS
    roof = machine.roofline(min(1.0, seconds))
    heading = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine.describe(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan"),
        "asked": {"seconds": seconds, "count": count, "rounds": rounds},
        "roofline": asdict(roof),
    }

    # Both files are written after every contest and table, so that an interrupt loses one at most.
    names = arguments.name or [*MODULES]
    for name in names:
        section = results[name] = {"heading": heading, "contests": [], "tables": []}
        try:
            for title in _run(name, seconds, count, rounds, roof, section):
                if not arguments.quiet:
                    print(f"{title} …", file=sys.stderr, flush=True)
                _write(arguments.out, results)
        except Exception as error:  # one broken benchmark does not take the others with it
            section["failed"] = f"{type(error).__name__}: {error}"
            print(f"{name}: {section['failed']}", file=sys.stderr)
        _write(arguments.out, results)
    return any("failed" in results[name] for name in names)


def _run(name: str, seconds: float, count: int, rounds: int, roof: Any, section: dict[str, Any]) -> Iterator[str]:
    """Fill one benchmark's section, and yield the title of each contest before it is run and of each table."""
    from experiments.benchmarks import contest, report

    module = importlib.import_module(MODULES[name])
    for sides in module.contests(count) if hasattr(module, "contests") else ():
        yield sides.title
        try:
            section["contests"].append(report.plain(contest.run(sides, seconds, least=rounds), roof))
        except AssertionError as error:  # nothing is timed; the next contest may be sound
            section["failed"] = " ".join(str(error).split())
            print(f"  {section['failed']}", file=sys.stderr)
    for table in module.tables(count) if hasattr(module, "tables") else ():
        section["tables"].append(asdict(table))
        yield table.title


def _finite(value: Any) -> Any:
    """The same with null for every number that JSON has no word for."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _stored(out: Path) -> dict[str, Any]:
    """Results of earlier runs."""
    try:
        return json.loads((out / "benchmarks.json").read_text("utf-8"))["benchmarks"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write(out: Path, results: dict[str, Any]) -> None:
    """Both files, each whole, so that a killed run leaves the last ones."""
    from experiments.benchmarks import report

    stored = json.dumps({"benchmarks": results}, indent=1, ensure_ascii=False) + "\n"
    for name, text in (("benchmarks.json", stored), ("benchmarks.md", report.markdown(results))):
        files.write_whole(out / name, text)
