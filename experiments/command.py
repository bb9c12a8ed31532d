"""The command line: `python -m experiments [NAME …]`. Bad input is one clear line and exit status 2."""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rc_jax.cli.arguments import Usage
from rc_jax.cli.shell import (
    BAD_INPUT,
    DONE,
    FAILED,
    INTERRUPTED,
    LOST,
    NO_READER,
    Program,
    guarded,
    read,
)

if TYPE_CHECKING:
    from experiments.figure import Registry
    from experiments.record import Entry
    from experiments.runner import Run
    from experiments.team import Team


@dataclass(frozen=True)
class Arguments:
    """Make the figures, judge every claim against them, and write one report."""

    name: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME …]")] = ()
    """Figures to make; every one, cheapest first, when none is named."""
    preset: Annotated[str, tyro.conf.arg(metavar="{smoke,quick,full}")] = "quick"
    """How much to compute: smoke (seconds), quick (minutes), full (the sources' own sizes)."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("results")
    """Folder for results; the report is DIR/PRESET/report.html."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of every random number; a seed other than 0 has a folder of its own, DIR/PRESET-seedN."""
    checkpoint: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FOLDER")] = ()
    """A trained model to draw figures of, once for each; without names, only the figures that read one are made."""
    replot: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Draw and judge again from stored results; compute nothing."""
    distributed: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Share the work with other processes, each given the same command by a launcher (Slurm, Open MPI, a TPU pod)."""
    coordinator: Annotated[str, tyro.conf.arg(metavar="HOST:PORT")] = ""
    """Without a launcher: where process 0 listens; give --processes and --process too."""
    processes: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Without a launcher: how many processes there are."""
    process: Annotated[int, tyro.conf.arg(metavar="I")] = -1
    """Without a launcher: which of them this is, from 0."""
    patience: Annotated[int, tyro.conf.arg(metavar="SECONDS")] = 100
    """How long another process may be silent before it counts as dead."""
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """List the figures with the minutes each preset takes on two cores, and stop."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """No bar and no line for each figure on stderr; only what fails is said there."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the summary (or the list) as JSON, and nothing else on stdout."""


PROGRAM = Program(
    name="python -m experiments",
    label="experiments",
    description="Make the figures, judge every claim against them, and write one report.",
    examples={
        "": (
            "",
            "collapse_depth scale_gaussian",
            "--preset full --seed 3 --out runs",
            "--checkpoint models/gpt2",
            "--replot --json --quiet",
            "--list",
        )
    },
    statuses={
        DONE: "every figure was made, or explained where it lacks what it needs",
        FAILED: "a figure failed (the others are finished), or the disk did",
        BAD_INPUT: "bad input: one line on stderr, nothing computed",
        LOST: "another process of a distributed run is lost: start all of them again",
        INTERRUPTED: "interrupted; the same command goes on (143 after SIGTERM)",
        NO_READER: "the reader of the output has gone, as after | head",
    },
)


class Stopped(BaseException):
    """A signal asked the run to end."""

    def __init__(self, number: int):
        self.number = number


def main(argv: Sequence[str] | None = None, package: str = "experiments.figures") -> int:
    """Parse, run, and return the exit status.

    0 all made, 1 some failed, 2 bad input, 75 another process of the run was lost, 130 interrupted, 141 the output's
    reader has gone, otherwise 128 + n where signal n stopped it.
    """
    return guarded(PROGRAM, lambda: _start(sys.argv[1:] if argv is None else argv, package))


def parse(argv: Sequence[str]) -> Any:
    """The arguments; None when help or version was asked for and has been printed.

    Raises:
        Usage: they do not parse.
    """
    return read(PROGRAM, Arguments, argv)


def _start(argv: Sequence[str], package: str) -> int:
    arguments = parse(argv)
    if arguments is None:
        return DONE
    if arguments.list:
        return _list(arguments, package)
    check(arguments, package)
    if arguments.distributed:
        from experiments import distributed

        return distributed.supervise(package, argv)
    return run(arguments, package)


def _list(arguments: Arguments, package: str) -> int:
    from experiments import figure, terminal

    registry = figure.discover(package)
    print(terminal.as_json(terminal.plain_listing(registry)) if arguments.json else terminal.listing(registry))
    return DONE


def run(arguments: Arguments, package: str, team: "type[Team] | None" = None) -> int:
    """Make the figures and return the exit status; arguments have been checked."""
    from experiments import figure, terminal
    from experiments.runner import Run, make_all

    registry = figure.discover(package, arguments.preset)
    choices = Run(
        arguments.out, arguments.preset, arguments.seed, arguments.replot, arguments.checkpoint, arguments.quiet
    )
    names = chosen(choices, arguments.name, registry)
    if choices.replot:
        names = replottable(choices, names, registry, strict=bool(arguments.name))
    made: list[Entry] = []
    stopped = 0
    previous = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext():
            for entry in make_all(choices, names, registry, package, team and team(choices.folder)):
                made.append(entry)
    except Stopped as stop:
        stopped = stop.number
    except OSError as error:
        print(f"experiments: error: cannot write to {choices.folder}: {error.strerror or error}", file=sys.stderr)
        return FAILED
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    told = {"total": len(names), "stopped": bool(stopped)}
    if arguments.json:
        print(terminal.as_json(terminal.plain_summary(choices, made, **told)))
    else:
        print(terminal.summary(choices, made, **told))
    if stopped:
        return 128 + stopped
    return FAILED if any(entry.status == "failed" for entry in made) else DONE


def _stop(number: int, _frame: FrameType | None) -> None:
    raise Stopped(number)


def check(arguments: Arguments, package: str) -> None:
    """Look at every argument before anything is imported or computed.

    Raises:
        Usage: a figure, preset, seed or folder that cannot be used.
    """
    from experiments.checkpoints import Unusable
    from experiments.checkpoints import check as check_folders
    from experiments.figure import PRESET_NAMES, names

    _check_processes(arguments)
    if arguments.preset not in PRESET_NAMES:
        raise Usage(f"unknown preset {arguments.preset!r}; presets are {', '.join(PRESET_NAMES)}")
    if not 0 <= arguments.seed < 2**32:
        raise Usage(f"`--seed` must be an integer from 0 to 2**32 - 1, got {arguments.seed}")
    known = names(package)
    for name in arguments.name:
        if name not in known:
            raise Usage(f"unknown figure {name!r}; figures are {', '.join(known) or 'none'}")
    if not known:
        raise Usage(f"there is no figure in {package}")
    try:
        check_folders(arguments.checkpoint)
    except Unusable as error:
        raise Usage(f"{error}") from None
    probe = arguments.out / f".{os.getpid()}.partial"
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise Usage(f"`--out` must be a folder that can be written to, got {arguments.out}: {error.strerror}") from None


def _check_processes(arguments: Arguments) -> None:
    named = bool(arguments.coordinator), arguments.processes > 0, arguments.process >= 0
    if any(named) and not (all(named) and arguments.distributed and arguments.process < arguments.processes):
        raise Usage(
            "`--coordinator`, `--processes` and `--process` must come together, with `--distributed`, and a process "
            f"be from 0 to {max(arguments.processes, 1) - 1}"
        )
    if arguments.coordinator and not arguments.coordinator.rpartition(":")[2].isdigit():
        raise Usage(f"`--coordinator` must be HOST:PORT, got {arguments.coordinator!r}")
    if arguments.patience < 1:
        raise Usage(f"`--patience` must be >= 1, got {arguments.patience}")
    if arguments.distributed and arguments.replot:
        raise Usage("`--replot` computes nothing to share: leave out `--distributed`")


def chosen(run: "Run", wanted: tuple[str, ...], registry: "Registry") -> list[str]:
    """The figures to make: those named, else all that belong on the run's page.

    Raises:
        Usage: checkpoints for figures none of which reads one.
    """
    from experiments.figure import Broken

    names = [name for name, figure in registry.items() if (name in wanted if wanted else run.shows(figure))]
    if not any(run.shows(registry[name]) or isinstance(registry[name], Broken) for name in names):
        reading = ", ".join(name for name, figure in registry.items() if run.shows(figure)) or "none"
        raise Usage(
            f"`--checkpoint` must go with a figure that reads one ({reading}), got {', '.join(names) or 'none'}"
        )
    return names


def replottable(run: "Run", names: list[str], registry: "Registry", *, strict: bool) -> list[str]:
    """The figures that have a stored result; every one must, when they were named.

    Raises:
        Usage: nothing is stored for a named figure, or nothing at all.
    """
    from experiments.figure import Broken
    from experiments.runner import stored_result

    present = []
    for name in names:
        figure = registry[name]
        if isinstance(figure, Broken) or stored_result(run, name, figure) is not None:
            present.append(name)
        elif strict:
            raise Usage(f"no stored result of {name} to draw again: run `{run.command(name)}` first")
    if not present:
        raise Usage(f"nothing is stored in {run.folder} to draw again: run without `--replot` first")
    return present
