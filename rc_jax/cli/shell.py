"""Common to every command line: help with examples and exit statuses, errors in one line."""

import contextlib
import errno
import io
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from rc_jax import __version__
from rc_jax._numerics.text import perhaps, printable
from rc_jax.cli.arguments import Usage

DONE, FAILED, BAD_INPUT, INTERRUPTED, NO_READER = 0, 1, 2, 130, 141


@dataclass(frozen=True)
class Program:
    """A command line: how it is called, the name in its errors, examples by subcommand, and its exit statuses.

    A program without subcommands has its examples under the empty name. `pages` gives the commands that show its pages.
    """

    name: str
    label: str
    description: str
    examples: Mapping[str, Sequence[str]]
    statuses: Mapping[int, str]
    pages: Callable[[], Sequence[str]] = tuple


def guarded(program: Program, body: Callable[[], int]) -> int:
    """Run the body and return the exit status; bad input, Ctrl-C and output that cannot be written leave no traceback.

    Characters that the terminal's encoding lacks are replaced, not refused.
    """
    if sys.stderr is None:  # closed by the caller, as by `2>&-`
        _discard(2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        print(f"{program.label}: error: there is no standard output to write to", file=sys.stderr)
        return FAILED
    # Flushing inside the guard makes a closed pipe or a full disk raise here, not at the exit of the interpreter.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        status = body()
        sys.stdout.flush()
        return status
    except Usage as error:
        print(printable(f"{program.label}: error: {error}"), file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard(1)
        return NO_READER
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        _discard(1)
        print(f"{program.label}: error: cannot write the output: {error.strerror or error}", file=sys.stderr)
        return FAILED


def _discard(stream: int) -> None:
    """Send a standard stream to the null device, also for child processes, so that the last flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.set_inheritable(stream, True)


def keep_programs() -> None:
    """Keep what XLA compiles in the user's cache, `$XDG_CACHE_HOME/rc_jax` or `~/.cache/rc_jax`, unless they say where.

    The next call of a command then compiles nothing.
    """
    import jax

    if jax.config.jax_compilation_cache_dir is None and (folder := _cache()) is not None:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _cache() -> Path | None:
    """The user's cache; none for a user without a home, as in containers."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rc_jax")
    except RuntimeError:
        return None


def read(program: Program, kind: Any, argv: Sequence[str]) -> Any:
    """The arguments as a `kind`; None when help or version was asked for and has been printed."""
    if "--version" in argv:
        print(f"{program.name} {__version__}")
        return None
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return tyro.cli(kind, prog=program.name, description=program.description, args=list(argv))
    except SystemExit as stop:
        if stop.code in (0, None):
            print(f"{out.getvalue().rstrip()}\n\n{_epilogue(program, argv[:1])}")
            return None
        raise Usage(_refusal(program, err.getvalue() or out.getvalue(), argv)) from None


def _refusal(program: Program, message: str, argv: Sequence[str]) -> str:
    """The parser's message as one line, with the name that is spelt most alike, and whose help says more."""
    text, commands = _one_line(message), [name for name in program.examples if name]
    near = ""
    if (unknown := re.search(r"Unrecognized options: ([^\s,]+)", text)) is not None:
        # The parser knows the options of the command; of the commands only the first word can be one.
        known = re.findall(r"--[\w-]+", message.partition("Perhaps")[2])
        near = perhaps(unknown[1], known if unknown[1].startswith("-") else commands)
    command = "".join(f" {name}" for name in commands if name in argv[:1])
    return f"{text}{near.rstrip('?')}; see {program.name}{command} --help"


def _epilogue(program: Program, command: Sequence[str]) -> str:
    """The lines below the parser's help: pages, examples (of one command, or of all), exit statuses."""
    about = [name for name in program.examples if name in command] or list(program.examples)
    examples = [f"  {program.name} {example}".rstrip() for name in about for example in program.examples[name]]
    statuses = [f"  {status:<3}  {meaning}" for status, meaning in program.statuses.items()]
    version = f" --version shows the version: {__version__}"
    commands = [] if command and command[0] in program.examples else program.pages()
    pages = ["", " pages", *(f"  {program.name} {page}" for page in commands)] if commands else []
    return "\n".join([version, *pages, "", " examples", *examples, "", " exit status", *statuses])


def _one_line(message: str) -> str:
    """The title and the first paragraph of a parser's error message, which is drawn in a box, as one line."""
    title, *lines = [line.strip(" |│╭╮╰╯─") for line in message.strip().splitlines()]
    lines = list(itertools.dropwhile(lambda line: not line.strip("-+="), lines))
    text = " ".join(itertools.takewhile(lambda line: line.strip("-+="), lines))
    return (text if text.startswith(title) else f"{title}: {text}").rstrip(". :")
