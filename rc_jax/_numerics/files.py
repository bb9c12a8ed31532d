"""Files: a lock that the system lets go when its process ends, writing whole or not at all, lines of strict JSON."""

import errno
import functools
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import BaseFileLock, FileLock, Timeout

# What a file system answers that has no locks: some network mounts do.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}


def hold(path: Path, seconds: float = 0.0) -> BaseFileLock | None:
    """A lock, held until its `release`; None where another process holds it for so many seconds.

    On a file system without locks nothing is locked, and a warning says so once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, fallback_to_soft=False, thread_local=False)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        return None
    except NotImplementedError:
        _warn(path.parent)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _warn(path.parent)
    return lock


@functools.cache
def _warn(folder: Path) -> None:
    logging.getLogger(__name__).warning(
        "%s is on a file system without locks: let only one process at a time work there", folder
    )


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file whole or not at all: to a temporary name beside it, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def strict(value: Any) -> Any:
    """Nested lists of numbers as strict JSON has them: NaN is null, infinities are the texts that `float` reads."""
    if isinstance(value, list):
        return [strict(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def json_line(line: Mapping[str, Any]) -> str:
    """Named numbers and arrays as a line of strict JSON, as `strict` gives them."""
    values = {name: strict(np.asarray(value).tolist()) for name, value in line.items()}
    return json.dumps(values, allow_nan=False) + "\n"


def append_json_line(path: Path, line: Mapping[str, Any]) -> bytes:
    """Add a line to a file, on a line of its own also where a killed run left half a line; returns what was added."""
    content = json_line(line).encode()
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            content = content if file.read(1) == b"\n" else b"\n" + content
        file.write(content)
    return content


def json_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Each line of a file and what `json_line` wrote there, None where it is no such line; nothing without a file."""

    def number(value: Any) -> Any:
        if isinstance(value, list):
            return [number(entry) for entry in value]
        return math.nan if value is None else float(value) if isinstance(value, str) else value

    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                yield line, {name: number(value) for name, value in json.loads(line).items()}
            except (ValueError, AttributeError, RecursionError):  # no JSON, no UTF-8, no object, brackets without end
                yield line, None
