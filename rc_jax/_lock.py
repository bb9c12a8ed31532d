"""One process at a time: a lock on a file that the system lets go when its process ends, however it ends."""

from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None


def hold(path: Path) -> IO[str] | None:
    """An open file that holds the lock until it is closed; None where another one holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a")
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
    return file
