"""The identity of a result: the figure's whole spec, and the code that computes it.

The spec names the stored result. The code is every source of `rc_jax` and of `experiments.lib`, what `compute` uses of
the figure's own file, the helpers that it imports, and the version of JAX. A helper is a module of the figure's own
package, `experiments.ledger` left out, on which no number depends.
"""

import ast
import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import rc_jax
from experiments.lib import checkpoints
from experiments.lib.figure import Figure
from experiments.run.choices import Run

HERE = Path(__file__).parent
LIBRARY = (Path(rc_jax.__file__).parent, HERE.parent / "lib")
DRAWING = (HERE / "drawing.py", HERE / "pictures.py")
JUDGING = tuple(sorted((HERE.parent / "ledger").glob("*.py")))
COMPUTING = ("Spec", "PRESETS", "compute")  # the parts of a figure on which its numbers depend; others draw and judge


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
    """Hash of the code that computes a figure, as this process read it first.

    A stored result of another state of the code is computed again; `--replot` shows it all the same and the report says
    so.
    """
    own = _file(figure)
    parts = [] if own is None else [_of_numbers(own), *map(_text, _helpers(figure.__name__, own))]
    return _short([f"jax {importlib.metadata.version('jax')}", *library().values(), *parts])


def drawing_state(figure: Any, seal: str, *, draft: bool) -> str:
    """Hash of all that decides how a figure is drawn: its code, the checksum of its numbers, matplotlib's version."""
    own = _file(figure)
    files = [*([] if own is None else [own]), *DRAWING]
    version = f"matplotlib {importlib.metadata.version('matplotlib')}"
    return _short([version, seal, str(draft), code_state(figure), *map(_text, files)])


def judging_state(figure: Any) -> str:
    """Hash of all that decides the rows of a figure but its numbers: its code, and that of the ledger."""
    own = _file(figure)
    return _short([code_state(figure), *map(_text, [*([] if own is None else [own]), *JUDGING])])


@functools.cache
def library() -> dict[Path, str]:
    """Hash of each source of `rc_jax` and `experiments.lib`, as this process read it first."""
    _imported()
    files = [path for folder in LIBRARY for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".json")]
    return {path: _digest(path) for path in files}


@functools.cache
def _imported() -> frozenset[str]:
    """The modules that this process had imported when it asked first."""
    return frozenset(sys.modules)


def edited() -> list[str]:
    """Modules that were imported after an edit, which `code_state` does not know of."""
    new = {name: getattr(sys.modules[name], "__file__", None) for name in sys.modules.keys() - _imported()}
    known = library()
    return sorted(
        name for name, file in new.items() if file and (path := Path(file)) in known and known[path] != _digest(path)
    )


def _file(figure: Any) -> Path | None:
    """The file of a figure; None for one that was made in a program."""
    file = getattr(figure, "__file__", None)
    return None if file is None else Path(file)


def _helpers(name: str, path: Path) -> list[Path]:
    """Files of the helpers that a module imports, wherever in the file, and of those that they import."""
    top, *inner = name.split(".")
    folder = path.parents[len(inner) - 1] if inner else path
    found, waiting = set[Path](), [path]
    while waiting:
        for head, *rest in map(lambda dotted: dotted.split("."), _imports(waiting.pop(), folder)):
            file = folder.joinpath(*rest).with_suffix(".py")
            if head == top and rest and rest[0] not in ("lib", "ledger") and file not in found and file.is_file():
                found.add(file)
                waiting.append(file)
    return sorted(found)


@functools.cache
def _imports(path: Path, folder: Path) -> frozenset[str]:
    """Dotted names that a file below the folder of its outermost package may import."""
    package = ".".join([folder.name, *path.relative_to(folder).parts[:-1]]) if path != folder else ""
    names = set[str]()
    for node in ast.walk(ast.parse(_text(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names |= {f"{base}.{alias.name}" for alias in node.names} | {base}
    return frozenset(names)


@functools.cache
def _of_numbers(path: Path) -> str:
    """What `compute` uses of a figure's file, directly or through names that it defines.

    What may act on names without defining one counts too: statements that define none, and definitions with decorators.
    """
    lines, body = _text(path).splitlines(), ast.parse(_text(path)).body
    waiting = [node for node in body if not _names(node) or getattr(node, "decorator_list", []) or _is_part(node)]
    kept = set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) not in kept:
            kept.add(id(node))
            used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            waiting += [other for other in body if used & _names(other)]
    return "\n".join(line for node in body if id(node) in kept for line in lines[_first(node) - 1 : node.end_lineno])


def _is_part(node: ast.stmt) -> bool:
    return bool(_names(node) & set(COMPUTING))


def _names(node: ast.stmt) -> set[str]:
    """The names that a statement defines, or changes an entry of, where it does nothing else."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def _first(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    return min([node.lineno, *(each.lineno for each in decorators)])


@functools.cache
def _text(path: Path) -> str:
    """A file as this process read it first: an edit of it does not change what has been imported."""
    return path.read_text(encoding="utf-8")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _short(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
