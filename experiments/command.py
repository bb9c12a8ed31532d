"""The command line: `python -m experiments [NAME …]`. Bad input is one clear line and exit status 2."""

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import tyro

from rc_jax._numerics.text import perhaps, printable
from rc_jax.cli.arguments import Usage
from rc_jax.cli.shell import (
    BAD_INPUT,
    DONE,
    FAILED,
    INTERRUPTED,
    NO_READER,
    Program,
    guarded,
    read,
)

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from experiments.ledger.record import Entry
    from experiments.lib.figure import Broken, Figure, Registry
    from experiments.run.choices import Run


@dataclass(frozen=True)
class Arguments:
    """Make the figures, judge every claim against them, and write one report."""

    name: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME …]")] = ()
    """Figures to make, or topics, for all figures of a topic; the core when none is named."""
    all: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Make every figure, not only the core."""
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
    scheduler: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = ""
    """Have the workers of this dask scheduler compute, such as tcp://host:8786."""
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
            "sparsity --preset full --seed 3 --out runs",
            "--all --scheduler tcp://host:8786",
            "--checkpoint models/gpt2",
            "--replot --json --quiet",
            "--list",
        )
    },
    statuses={
        DONE: "every figure was made, or explained where it lacks what it needs",
        FAILED: "a figure failed (the others are finished), or the disk failed",
        BAD_INPUT: "bad input: one line on stderr, nothing computed",
        INTERRUPTED: "interrupted; the same command goes on (143 after SIGTERM, 129 after SIGHUP)",
        NO_READER: "the reader of the output has gone, as after | head",
    },
)


class Signals:
    """Inside, the first of SIGINT, SIGTERM and SIGHUP is written down as `asked`; a second one ends what is being done.

    What the caller has the process ignore, as `nohup` does, stays ignored.
    """

    asked = 0  # the signal that came

    def __enter__(self) -> "Signals":
        numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
        heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        self.handlers = {number: signal.signal(number, self.stop) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def stop(self, number: int, _frame: FrameType | None) -> None:
        """Write the signal down."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = number


def main(argv: Sequence[str] | None = None, package: str = "experiments.figures") -> int:
    """Parse, run, and return the exit status.

    0 all made, 1 some failed, 2 bad input, 130 interrupted, 141 the output's reader has gone, otherwise 128 + n where
    signal n stopped it.
    """
    return guarded(PROGRAM, lambda: _begin(sys.argv[1:] if argv is None else argv, package))


def _begin(argv: Sequence[str], package: str) -> int:
    try:
        arguments: Arguments | None = read(PROGRAM, Arguments, argv)
        if arguments is None:  # help or version was asked for and has been printed
            return DONE
        if arguments.list:
            from experiments.lib import figure
            from experiments.run.report import terminal

            registry = figure.discover(package)
            print(terminal.as_json(terminal.plain_listing(registry)) if arguments.json else terminal.listing(registry))
            return DONE
        os.environ.pop("MPLBACKEND", None)  # nothing is shown in a window
        check(arguments, package)
        with Signals() as signals:
            return run(arguments, package, _executor(arguments.scheduler), signals)
    except KeyboardInterrupt:  # before anything was made, or for the second time
        print("experiments: interrupted", file=sys.stderr)
        return INTERRUPTED


def _executor(address: str) -> Callable[[], Executor]:
    """A function that makes the executor. A scheduler is called at once, so that an absent one is reported first.

    Raises:
        Usage: it does not answer.
    """
    from experiments.run import executors

    if not address:
        return executors.Processes
    try:
        cluster = executors.cluster(address)
    except ImportError:
        raise Usage("`--scheduler` needs dask.distributed: pip install 'rc_jax[cluster]'") from None
    except executors.Unreachable as error:
        raise Usage(f"`--scheduler` must be the address of a dask scheduler that answers, got {error}") from None
    return lambda: cluster


def run(arguments: Arguments, package: str, executor: Callable[[], Executor], signals: Signals) -> int:
    """Make the figures and return the exit status; arguments have been checked."""
    from experiments.lib import figure
    from experiments.run.choices import Run

    try:
        from experiments.run.report import html, terminal
        from experiments.run.runner import EARLY, make_all
    except ModuleNotFoundError as absent:
        raise Usage(f"figures need {absent.name}: pip install 'rc_jax[figures]'") from None

    registry = figure.discover(package, arguments.preset)
    choices = Run(
        arguments.out,
        arguments.preset,
        arguments.seed,
        arguments.replot,
        arguments.checkpoint,
        arguments.quiet,
        package,
    )
    names = chosen(choices, arguments, registry)

    # The figures, then the report of all that were made, also where a signal or the disk ends the run.
    entries: dict[str, Entry] = {}
    problems = list[str]()
    lock = None
    try:
        with contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext():
            lock = hold(choices, signals)
            for known in make_all(choices, names, registry, executor, lambda: bool(signals.asked)):
                entries = known
                if len(entries) <= EARLY:  # a page of many pictures takes seconds
                    html.write(choices, registry, entries)
            if len(entries) > EARLY:
                html.write(choices, registry, entries)
    except OSError as error:
        problems.append(f"cannot write to {choices.folder}: {error.strerror or error}")
    finally:
        if lock is not None:
            lock.release()

    # The summary, what went wrong, and the status.
    made = [entry for name, entry in entries.items() if name in names]
    stopped = signals.asked
    told = {"total": len(names), "stopped": bool(stopped)}
    if arguments.json:
        print(terminal.as_json(terminal.plain_summary(choices, made, **told)))
    else:
        print(terminal.summary(choices, made, **told))
    for problem in problems:
        print(printable(f"experiments: error: {problem}"), file=sys.stderr)
    if stopped:
        return 128 + stopped
    return FAILED if problems or any(entry.status == "failed" for entry in made) else DONE


def hold(run: "Run", signals: Signals) -> "BaseFileLock | None":
    """The lock of a run's folder; while another run holds it, wait until that has ended. None when asked to stop."""
    from rc_jax._numerics import files

    lock, told = files.hold(run.folder / ".lock"), False
    while lock is None and not signals.asked:
        if not told:
            print(printable(f"experiments: waiting for another run in {run.folder} to end"), file=sys.stderr)
        lock, told = files.hold(run.folder / ".lock", seconds=1.0), True
    return lock


def _is_stored(run: "Run", figure: "Figure | Broken", name: str) -> bool:
    from experiments.lib.figure import Broken
    from experiments.run.runner import load_stored

    return not isinstance(figure, Broken) and load_stored(run, name, figure) is not None


def check(arguments: Arguments, package: str) -> None:
    """Check every argument before anything is imported or computed.

    Raises:
        Usage: a figure, preset, seed or folder that cannot be used.
    """
    from experiments.lib import checkpoints
    from experiments.lib.figure import PRESET_NAMES, TOPICS, names

    # Names and numbers.
    if arguments.preset not in PRESET_NAMES:
        near = perhaps(arguments.preset, PRESET_NAMES)
        raise Usage(f"unknown preset {arguments.preset!r}; presets are {', '.join(PRESET_NAMES)}{near}")
    if not 0 <= arguments.seed < 2**32:
        raise Usage(f"`--seed` must be an integer from 0 to 2**32 - 1, got {arguments.seed}")
    known = names(package)
    for name in arguments.name:
        if name not in known and name not in TOPICS:
            near = perhaps(name, [*known, *TOPICS])
            listed = f"; figures are {', '.join(known) or 'none'}; topics are {', '.join(TOPICS)}"
            raise Usage(f"unknown figure {name!r}{near or listed}")
    if arguments.all and arguments.name:
        raise Usage(f"`--all` must go without names, got {', '.join(arguments.name)}")
    if arguments.scheduler and arguments.replot:
        raise Usage("`--replot` computes nothing: leave out `--scheduler`")
    if not known:
        raise Usage(f"there is no figure in {package}")

    # Folders: the one where the processes begin, checkpoints that can be read, and one that can be written to.
    try:
        os.getcwd()
    except OSError:
        raise Usage("the working folder is gone: go to another one") from None
    for name, place in (("--out", str(arguments.out)), *(("--checkpoint", place) for place in arguments.checkpoint)):
        if any("\ud800" <= letter <= "\udfff" for letter in place):
            raise Usage(f"`{name}` must be a path in the encoding of this system, UTF-8 as a rule, got {place!r}")
    if re.match(r"[A-Za-z][\w+.-]+:/", str(arguments.out)):
        raise Usage(f"`--out` must be a folder of a file system, got the address {arguments.out}")
    try:
        checkpoints.check(arguments.checkpoint)
    except checkpoints.Unusable as error:
        raise Usage(f"{error}") from None
    probe = arguments.out / f".{os.getpid()}.partial"
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise Usage(f"`--out` must be a folder that can be written to, got {arguments.out}: {error.strerror}") from None


def chosen(run: "Run", arguments: Arguments, registry: "Registry") -> list[str]:
    """The figures to make: those named or of a named topic, else those that read the checkpoints, all, or the core.

    A figure that cannot be imported counts as core. Where no figure is core, all are made. To draw again, only figures
    that are stored.

    Raises:
        Usage: checkpoints for figures none of which reads one; to draw again, nothing stored of a named figure, or
            nothing at all.
    """
    from experiments.lib.figure import Broken

    # By name or topic, else by what else was asked for.
    broken = {name for name, figure in registry.items() if isinstance(figure, Broken)}
    about = {name: figure.ABOUT for name, figure in registry.items() if not isinstance(figure, Broken)}
    if arguments.name:
        names = [name for name in registry if {name, name in about and about[name].topic} & {*arguments.name}]
    elif run.checkpoints or arguments.all or not any(entry.core for entry in about.values()):
        names = [name for name, figure in registry.items() if run.shows(figure)]
    else:
        names = [name for name in registry if name in broken or about[name].core]
    if not any(run.shows(registry[name]) or name in broken for name in names):
        reading = ", ".join(name for name, figure in registry.items() if run.shows(figure)) or "none"
        raise Usage(
            f"`--checkpoint` must go with a figure that reads one ({reading}), got {', '.join(names) or 'none'}"
        )
    if not run.replot:
        return names

    # Only what is stored can be drawn again.
    stored = [name for name in names if _is_stored(run, registry[name], name)]
    for name in names:
        if arguments.name and name not in stored and name not in broken:
            raise Usage(f"no stored result of {name} to draw again: run `{run.command(name)}` first")
    if not stored:
        raise Usage(f"nothing is stored in {run.folder} to draw again: run without `--replot` first")
    return [name for name in names if name in stored or name in broken]
