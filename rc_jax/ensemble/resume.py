"""Finished parts of ensembles on disk, so that a run that was stopped goes on instead of starting again."""

import hashlib
import itertools
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rc_jax._numerics import arguments, files
from rc_jax.ensemble.parts import Parts


class _Folder(NamedTuple):
    """The folder of several runs, the seconds between two files, and the number of the next run."""

    path: Path
    every: float
    numbers: Iterator[int]


_FOLDER: ContextVar[_Folder | None] = ContextVar("folder", default=None)


def _check_folder(name: str, value: Any) -> None:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"`{name}` must be the path of a folder, got {value!r}")


@arguments.guard(folder=_check_folder, every=arguments.bounded(0))
@contextmanager
def kept(folder: str | os.PathLike[str], every: int | float = 5.0) -> Generator[None, None, None]:
    """Inside, `run` leaves what it has finished in `folder` every so often, and takes up what it finds there.

    A part on disk serves whoever computes the same ensemble next, on however many devices or processes, if the runs
    inside come in the same order. It is known by the function's compiled program (in it are constants and settings),
    the key and the count; anything else is computed again. Nothing is removed: that is left to you, once you have the
    result. Processes on several hosts use each other's parts where they share the folder, else each its own.

    Args:
        folder: Made where it does not exist.
        every: Seconds between two files of one run; a run that takes less leaves nothing.

    Raises:
        TypeError: `folder` is not a path.
        ValueError: `every` is negative.

    Example:
        >>> import tempfile, jax
        >>> from rc_jax import ensemble
        >>> with tempfile.TemporaryDirectory() as folder, ensemble.kept(folder, every=0):
        ...     stats = ensemble.run(jax.random.normal, jax.random.key(0), 100)
        >>> stats.count
        100
    """
    token = _FOLDER.set(_Folder(Path(folder), float(every), itertools.count()))
    try:
        yield
    finally:
        _FOLDER.reset(token)


@dataclass
class PartFiles:
    """The files of one run, each named by the parts in it. Outside `kept` there is no folder, and no file is ever due.

    The folder's name is asked of `identity` only once something is read or written, because it takes a compilation.
    """

    identity: Callable[[], str]
    parent: Path | None
    every: float
    number: str
    last: float = field(default_factory=time.monotonic)

    @cached_property
    def folder(self) -> Path:
        """The folder of the files."""
        assert self.parent is not None
        return self.parent / f"{self.number}-{hashlib.sha256(self.identity().encode()).hexdigest()[:12]}"

    def names(self) -> list[str]:
        """The names of all files that can be read."""
        if self.parent is None or not any(self.parent.glob(f"{self.number}-*")):
            return []
        names = sorted(path.name for path in self.folder.glob("*.npz") if not path.name.startswith("."))
        return [name for name in names if self.load(name) is not None]

    def load(self, name: str) -> Parts | None:
        """The parts in one file; None where it is damaged."""
        try:
            return Parts.from_bytes((self.folder / name).read_bytes())
        except OSError:
            return None

    def due(self) -> bool:
        """True if the last file is old enough for the next."""
        return self.parent is not None and time.monotonic() - self.last >= self.every

    def save(self, piece: Parts) -> None:
        """Write parts whole or not at all."""
        name = file_name(int(piece.numbers[0]), int(piece.numbers[-1]) + 1)
        files.write_whole(self.folder / name, piece.to_bytes())
        self.last = time.monotonic()


def part_files(identity: Callable[[], str]) -> PartFiles:
    """The files of the next run."""
    folder = _FOLDER.get()
    if folder is None:
        return PartFiles(identity, None, 0.0, "")
    return PartFiles(identity, folder.path, folder.every, f"{next(folder.numbers):04d}")


def choose(available: Sequence[Sequence[str]], parts: int) -> tuple[dict[str, int], np.ndarray]:
    """Files to use, no part twice, each with the first process that has it; and the parts that are in no file.

    Longer files go first. All processes get the same answer.
    """
    # Later assignments win, so the processes are gone through backwards.
    owner = {name: number for number in reversed(range(len(available))) for name in available[number]}
    missing, chosen = np.ones(parts, bool), {}
    for name in sorted(owner, key=lambda name: (-len(parts_of(name)), name)):
        stored = parts_of(name)
        if stored.stop <= parts and missing[stored.start : stored.stop].all():
            missing[stored.start : stored.stop] = False
            chosen[name] = owner[name]
    return chosen, np.flatnonzero(missing)


def file_name(first: int, stop: int) -> str:
    """The name of the file with parts `first` to `stop` (not included)."""
    return f"{first:06d}-{stop:06d}.npz"


def parts_of(name: str) -> range:
    """The parts in a file."""
    first, stop = name.removesuffix(".npz").split("-")
    return range(int(first), int(stop))
