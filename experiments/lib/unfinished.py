"""A folder for the work of a figure that takes hours, so that a killed run goes on instead of starting again.

The process that computes opens a folder around `compute`; the run removes it once the result is stored. Outside a run
there is none.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

import numpy as np
from filelock import BaseFileLock

from experiments.run import store
from rc_jax._numerics import files

_FOLDER: ContextVar[Path | None] = ContextVar("unfinished", default=None)


@contextmanager
def kept(folder: Path) -> Iterator[None]:
    """Inside, `place` names folders in this one.

    It stays until `forget`. Work of the same figure (the name up to the first dash) for another spec or by another
    state of the code goes now, unless a process is at it.
    """
    lock = _hold(folder)
    for old in folder.parent.glob(f"{folder.name.partition('-')[0]}-*"):
        if old != folder and (old_lock := _hold(old)):
            shutil.rmtree(old, ignore_errors=True)
            _release(old, old_lock)
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)
        if lock is not None:
            _release(folder, lock)


def forget(folder: Path) -> None:
    """Remove a figure's work, once its result is stored."""
    shutil.rmtree(folder, ignore_errors=True)


def place(name: str) -> Path | None:
    """The folder of one training of a figure, or None where nothing is to be kept."""
    folder = _FOLDER.get()
    return None if folder is None else folder / name


def once(name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays that `make` returns; those that it returned in a run which was stopped later, where they are whole."""
    kept_in = _FOLDER.get()
    if kept_in is None:
        return make()
    folder = kept_in / "arrays"
    with suppress(store.Damaged):
        if stored := store.load(folder, name):
            return stored.data
    made = make()
    store.save(folder, name, made, {})
    return made


def _hold(folder: Path) -> BaseFileLock | None:
    return files.hold(folder.with_name(f".{folder.name}.lock"))


def _release(folder: Path, lock: BaseFileLock) -> None:
    folder.with_name(f".{folder.name}.lock").unlink(missing_ok=True)
    lock.release()
