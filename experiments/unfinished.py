"""Where a figure that takes hours leaves what it has so far, so that a killed run goes on instead of starting again.

The runner opens a folder around `compute` and removes it once the result is stored; outside a run there is none.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_FOLDER: ContextVar[Path | None] = ContextVar("unfinished", default=None)


@contextmanager
def kept(folder: Path) -> Iterator[None]:
    """Inside, `place` names folders in this one. It stays where the block fails, and goes where it succeeds.

    Work of another state of the code lies beside it, under the same name up to its last dash, and goes now.
    """
    for old in folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*"):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)
    shutil.rmtree(folder, ignore_errors=True)


def place(name: str) -> Path | None:
    """The folder of one piece of a figure's work, or None where nothing is to be kept."""
    folder = _FOLDER.get()
    return None if folder is None else folder / name
