"""Where a figure that takes hours leaves what it has so far, so that a killed run goes on instead of starting again.

The runner opens a folder around `compute` and removes it once the result is stored; outside a run there is none.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO

import numpy as np

from experiments import store
from rc_jax import _lock, ensemble

_FOLDER: ContextVar[Path | None] = ContextVar("unfinished", default=None)


@contextmanager
def kept(folder: Path) -> Iterator[None]:
    """Inside, `place` names folders in this one, and ensembles leave their finished parts there.

    It stays where the block fails, and goes where it succeeds.

    Work of the same figure (the name up to the first dash) for another spec or by another state of the code goes now,
    unless a process is at it.
    """
    held = _hold(folder)
    for old in folder.parent.glob(f"{folder.name.partition('-')[0]}-*"):
        if old != folder and (lock := _hold(old)):
            shutil.rmtree(old, ignore_errors=True)
            _release(old, lock)
    token = _FOLDER.set(folder)
    try:
        with ensemble.kept(parts(folder)):
            yield
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        _FOLDER.reset(token)
        if held is not None:
            _release(folder, held)


def parts(folder: Path) -> Path:
    """Where in a figure's folder its ensembles leave what they have finished."""
    return folder / "ensembles"


def place(name: str) -> Path | None:
    """The folder of one training of a figure, or None where nothing is to be kept.

    Nor is anything beside other processes: orbax would wait for all of them to save with it.
    """
    import jax

    folder = _FOLDER.get()
    return None if folder is None or jax.process_count() > 1 else folder / name


def once(name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays that `make` returns; those that it returned in a run which was stopped later, where they are whole."""
    kept_in = _FOLDER.get()
    if kept_in is None:
        return make()
    folder = kept_in / "arrays"
    with suppress(store.Damaged):
        if found := store.load(folder, name):
            return found.data
    made = make()
    store.save(folder, name, made, {})
    return made


def _hold(folder: Path) -> IO[str] | None:
    return _lock.hold(folder.with_name(f".{folder.name}.lock"))


def _release(folder: Path, lock: IO[str]) -> None:
    folder.with_name(f".{folder.name}.lock").unlink(missing_ok=True)
    lock.close()
