"""Results on disk: arrays in one npz, their provenance in one JSON, both named by everything that decides their values.

The name holds a hash of the whole spec (seed and precision are part of it), the figure's name and the package version.
A file is written under a temporary name and renamed, so a killed run leaves nothing half-written; the JSON, written
last, holds the checksum of the npz, so a damaged result is noticed and computed again.
"""

import ast
import dataclasses
import functools
import hashlib
import io
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import rc_jax
from experiments import checkpoints

FORGET_AFTER = 600.0  # seconds after which a temporary file belongs to nobody


class Damaged(Exception):
    """A stored result is there but cannot be trusted."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """A finished result: its arrays, and how they came to be."""

    data: dict[str, np.ndarray]
    provenance: dict[str, Any]


def identity(name: str, spec: Any, version: str = "") -> dict[str, Any]:
    """Everything that decides a result's numbers, as plain JSON values; checkpoints are known by their content."""
    fields = plain(spec)
    if folders := getattr(spec, "checkpoints", ()):
        fields["checkpoints"] = checkpoints.identity(folders)
    return {"figure": name, "spec": fields, "version": version or package_version()}


def fingerprint(name: str, spec: Any, version: str = "") -> str:
    """Twelve hexadecimal digits of the hash of `identity`: any other field, seed, dtype or version gives others."""
    text = json.dumps(identity(name, spec, version), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def plain(value: Any) -> Any:
    """A spec as JSON values: dataclasses become dicts with their type's name, tuples become lists.

    Raises:
        TypeError: a value whose text could differ from run to run.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return fields if type(value).__name__ == "Spec" else {"type": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a spec must hold numbers, text, tuples and dataclasses only, got {value!r}")


def package_version() -> str:
    """The version of rc_jax."""
    return str(getattr(rc_jax, "__version__", "unknown"))


def code_state(figure: Any) -> str:
    """Hash of the code that computes a figure: all of rc_jax, and the figure's file but for what draws and judges.

    Modules of `experiments` that the file imports count too, but for those that only draw and judge.
    Comments and formatting do not count. A stored result of another state of the code is computed again; `--replot`
    shows it all the same and the report says so.
    """
    source = getattr(figure, "__file__", None)
    own = "" if source is None else _meaning(Path(source), skip=("ABOUT", "plot", "animate", "claims"))
    own += "".join(_meaning(path) for path in _helpers(source)) if source else ""
    return hashlib.sha256((_package_code() + own).encode()).hexdigest()[:12]


@functools.cache
def _package_code() -> str:
    root = Path(rc_jax.__file__).parent
    parts = [f"{path.relative_to(root).as_posix()} {_meaning(path)}" for path in sorted(root.rglob("*.py"))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _helpers(source: str) -> list[Path]:
    """Files of `experiments` that a figure imports, those that compute."""
    return _imported(source, os.stat(source).st_mtime_ns)


@functools.cache
def _imported(source: str, changed: int) -> list[Path]:
    """What `_helpers` says; the report asks it of every figure after each, so a file is read again when it changes."""
    names = set()
    for node in ast.walk(ast.parse(Path(source).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    root = Path(__file__).parent.parent
    paths = {root / f"{name.replace('.', '/')}.py" for full in names for name in (full, full.rpartition(".")[0])}
    unused = {Path(__file__).with_name(f"{name}.py") for name in ("animation", "figure", "ledger", "style")}
    return sorted(path for path in paths - unused if path.is_relative_to(Path(__file__).parent) and path.exists())


def _meaning(path: Path, skip: tuple[str, ...] = ()) -> str:
    """A module's syntax tree as text, without the top-level names in `skip`; the plain text where it does not parse."""
    return _tree(path, skip, path.stat().st_mtime_ns)


@functools.cache
def _tree(path: Path, skip: tuple[str, ...], changed: int) -> str:
    text = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    tree.body = [node for node in tree.body if not set(_names(node)) & set(skip)]
    return ast.dump(tree)


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def write(path: Path, content: bytes | str) -> None:
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


def tidy(folder: Path) -> None:
    """Remove temporary files that a killed run left behind."""
    for path in folder.rglob(".*.partial"):
        if time.time() - path.stat().st_mtime > FORGET_AFTER:
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
        provenance = json.loads(about.read_text(encoding="utf-8"))
        content = arrays.read_bytes()
        if hashlib.sha256(content).hexdigest() != provenance["sha256"]:
            raise Damaged(f"{arrays.name} does not match its checksum")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return Stored({key: file[key] for key in file.files}, provenance)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{stem} cannot be read: {error}") from error


def numbers(data: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What `compute` returned as storable arrays; narrow floats that npz does not know become float32.

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
    found = []
    for key, value in data.items():
        bad = int((~np.isfinite(value)).sum()) if value.dtype.kind in "fc" else 0
        if bad:
            found.append(f"{key}: {bad} of {value.size} numbers are not finite")
    return found
