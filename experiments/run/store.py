"""Results on disk: arrays in one npz, their provenance in one JSON.

A file is written under a temporary name and renamed, so a killed run leaves nothing half-written; the JSON, written
last, holds the checksum of the npz, so a damaged result is noticed and computed again.
"""

import dataclasses
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.ledger.record import checked, strict
from rc_jax._numerics.files import write_whole as write

MOST_BYTES = 2**30  # of the arrays of one result, unpacked


class Damaged(Exception):
    """A stored result is there but cannot be trusted."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """A finished result: its arrays, and how they came to be."""

    data: dict[str, np.ndarray]
    provenance: dict[str, Any]


def tidy(folder: Path) -> None:
    """Remove temporary files that a killed run left behind; the one run that holds the folder has begun none."""
    for path in folder.rglob(".*.partial"):
        path.unlink(missing_ok=True)


def save(folder: Path, stem: str, data: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    """Store a result as `stem.npz` and `stem.json`; the second, which seals the first, comes last."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **numbers(data))
    seal = hashlib.sha256(buffer.getvalue()).hexdigest()
    write(folder / f"{stem}.npz", buffer.getvalue())
    write(folder / f"{stem}.json", json.dumps({**provenance, "sha256": seal}, indent=1, ensure_ascii=False))


def load(folder: Path, stem: str) -> Stored | None:
    """A stored result, or `None` where there is none.

    Raises:
        Damaged: it is truncated, altered or unreadable.
    """
    arrays, about = folder / f"{stem}.npz", folder / f"{stem}.json"
    if not about.exists() or not arrays.exists():
        return None
    try:
        provenance = checked(strict(about.read_text(encoding="utf-8")))
        content = arrays.read_bytes()
        if hashlib.sha256(content).hexdigest() != provenance["sha256"]:
            raise Damaged(f"{arrays.name} does not match its checksum")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            if (size := sum(each.file_size for each in file.zip.infolist())) > MOST_BYTES:
                raise Damaged(f"{arrays.name} unpacks to {size} bytes, and must to at most {MOST_BYTES}")
            return Stored({key: file[key] for key in file.files}, provenance)
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError, zipfile.BadZipFile) as error:
        raise Damaged(f"{stem} cannot be read: {error}") from error


def numbers(data: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The storable arrays that `compute` returned; narrow floats that npz does not know become float32.

    Raises:
        TypeError: not a mapping of names to arrays of numbers or text.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"`compute` must return a dict of arrays, got {type(data).__name__}")
    arrays = {str(key): np.asarray(value) for key, value in data.items()}
    for key, value in arrays.items():
        if value.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            arrays[key] = value.astype(np.float32)
        elif value.dtype.kind not in "biufcU":
            raise TypeError(f"`compute` must return arrays of numbers or text, got {value.dtype} for {key!r}")
    return arrays


def nonfinite(data: Mapping[str, np.ndarray]) -> list[str]:
    """One line for each array that holds numbers that are not finite."""
    lines = []
    for key, value in data.items():
        bad = int((~np.isfinite(value)).sum()) if value.dtype.kind in "fc" else 0
        if bad:
            lines.append(f"{key}: {bad} of {value.size} numbers are not finite")
    return lines
