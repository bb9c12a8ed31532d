"""The identity of a result: the figure's whole spec, and the code that computes it.

The spec names the stored result. The code is every module that the figure can reach by imports, without comments and
docstrings, and the version of JAX.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import rc_jax
from experiments.lib import checkpoints
from experiments.lib.figure import Figure
from experiments.lib.run import Run
from experiments.running import sources

# Modules that only draw and judge, and the names in a figure's file that do: no number depends on them.
LEDGER = ("ledger.claims", "ledger.decision", "ledger.intervals", "ledger.literature")
DRAWING = frozenset(f"experiments.{name}" for name in ("lib.figure", "lib.style", "ledger", *LEDGER))
DRAWN = ("ABOUT", "plot", "animate", "claims")


def identity(name: str, spec: Any) -> dict[str, Any]:
    """A result's spec as plain JSON values, seed and precision among them; checkpoints are known by their content."""
    fields = plain(spec)
    if folders := getattr(spec, "checkpoints", ()):
        fields["checkpoints"] = checkpoints.identity(folders)
    return {"figure": name, "spec": fields, "version": rc_jax.__version__}


def fingerprint(name: str, spec: Any) -> str:
    """Twelve hexadecimal digits of the hash of `identity`: any other field, seed, dtype or version gives others."""
    return _short([json.dumps(identity(name, spec), sort_keys=True)])


def stem(run: Run, name: str, figure: Figure) -> str:
    """The name of a figure's stored result."""
    return f"{name}-{fingerprint(name, run.spec(figure))}"


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


def code_state(figure: Any) -> str:
    """Hash of the code that computes a figure, and of JAX's version.

    A stored result of another state of the code is computed again; `--replot` shows it all the same and the report says
    so.
    """
    own = getattr(figure, "__file__", None)
    parts = [f"{name} {sources.meaning(path, DRAWN if str(path) == own else ())}" for name, path in computing(figure)]
    return _short([f"jax {importlib.metadata.version('jax')}", *parts])


def drawing_state(figure: Any, seal: str, *, draft: bool) -> str:
    """Hash of all that decides how a figure is drawn: its code, the checksum of its numbers, matplotlib's version."""
    own = [Path(__file__).parent / name for name in ("drawing.py", "pictures.py")]
    parts = [f"{path.name} {sources.meaning(path)}" for path in (*_modules(figure).values(), *own)]
    return _short([f"matplotlib {importlib.metadata.version('matplotlib')}", seal, str(draft), *sorted(parts)])


def computing(figure: Any) -> list[tuple[str, Path]]:
    """Name and file of each module that a figure's numbers may depend on."""
    return sorted((name, path) for name, path in _modules(figure).items() if name not in DRAWING)


def _modules(figure: Any) -> dict[str, Path]:
    source = getattr(figure, "__file__", None)
    return {} if source is None else sources.closure(getattr(figure, "__name__", Path(source).stem), Path(source))


def _short(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
