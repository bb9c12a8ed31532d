"""The files that a module's code is made of, and their meaning: the part of a result's identity that is code.

Only the standard library is needed here, and every version of Python from 3.11 on gives the same answers.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Two threads that parse at once end in a SystemError in Python 3.11 (CPython issue 106905).
ONE_AT_A_TIME = threading.Lock()


def closure(name: str, path: Path) -> dict[str, Path]:
    """Every module of `rc_jax`, `experiments` and the module's own package that importing and calling it can reach.

    Imports count wherever they stand, also inside functions, and so do the packages around each imported module. What
    only a type checker imports does not count. The module itself is the first.

    Args:
        name: Dotted name of the module.
        path: Its file.
    """
    roots = {"rc_jax": _place("rc_jax"), "experiments": ROOT / "experiments"}
    roots.setdefault(name.partition(".")[0], _around(name, path))
    reached, waiting = {name: path}, [(name, path)]
    while waiting:
        # What a module imports, and the packages around each, which Python runs first.
        module, file = waiting.pop()
        names = {*_parents(module)}
        for imported in _imports(module, file):
            names |= {*_parents(imported), imported}
        for dotted in sorted(names - reached.keys()):
            top, _, rest = dotted.partition(".")
            if top in roots and (source := _file(roots[top], rest)):
                reached[dotted] = source
                waiting.append((dotted, source))
    return reached


def _place(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else ROOT / package


def _around(name: str, path: Path) -> Path:
    """The folder of a module's outermost package; for a module in no package its own path, to which nothing belongs."""
    depth = name.count(".")
    return path.parents[depth - 1] if depth else path


def _parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts)))


def _file(root: Path, rest: str) -> Path | None:
    base = root.joinpath(*rest.split(".")) if rest else root
    return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)


def remember() -> None:
    """Read the files of this package that the process has imported, before somebody edits them."""
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if file and name.partition(".")[0] in ("rc_jax", "experiments"):
            with contextlib.suppress(OSError):
                _text(Path(file))


@functools.cache
def _text(path: Path) -> str:
    """A file as this process read it first: an edit of it does not change what has been imported."""
    return path.read_text(encoding="utf-8")


def _parse(text: str) -> ast.Module:
    with ONE_AT_A_TIME:
        return ast.parse(text)


@functools.cache
def _imports(module: str, path: Path) -> frozenset[str]:
    """Dotted names that a file may import."""
    try:
        tree = _parse(_text(path))
    except SyntaxError:
        return frozenset()
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    names: set[str] = set()
    for node in _run(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING`."""
    yield node
    hidden = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    below: Iterable[ast.AST] = node.orelse if hidden and isinstance(node, ast.If) else ast.iter_child_nodes(node)
    for child in below:
        yield from _run(child)


@functools.cache
def meaning(path: Path, skip: tuple[str, ...] = ()) -> str:
    """Hash of what a file does: comments, docstrings, formatting and the top-level names in `skip` do not count.

    Where it does not parse, the plain text counts.
    """
    text = _text(path)
    try:
        tree = _parse(text)
    except SyntaxError:
        return hashlib.sha256(text.encode()).hexdigest()
    tree.body = [node for node in tree.body if not set(_names(node)) & set(skip)]
    parts: list[str] = []
    _write(tree, parts)
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def _write(node: object, parts: list[str]) -> None:
    """A syntax tree as text that no version of Python writes otherwise.

    Versions differ in fields that are empty, in how an f-string's text is cut into pieces and in which characters
    `repr` shows. So empty fields are left out, pieces that touch are joined, and text is written in ASCII.
    """
    # A node, a list of nodes, or a value. A text that stands alone is a docstring.
    if isinstance(node, ast.AST):
        parts.append(f"({type(node).__name__}")
        for field in node._fields:
            value = getattr(node, field, None)
            if field not in ("ctx", "kind", "type_comment", "type_ignores") and value is not None and value != []:
                parts.append(f" {field}=")
                _write(_joined(value) if isinstance(node, ast.JoinedStr) else value, parts)
            elif field == "value" and isinstance(node, ast.Constant):
                parts.append(" None")
        parts.append(")")
    elif isinstance(node, list):
        parts.append("[")
        for item in node:
            if not (isinstance(item, ast.Expr) and _is_text(item.value)):
                _write(item, parts)
        parts.append("]")
    else:
        parts.append(ascii(node) + " ")


def _joined(pieces: list[ast.expr]) -> list[ast.expr]:
    """The pieces of an f-string, those of plain text that follow each other put together, empty ones left out."""
    joined: list[ast.expr] = []
    text = ""
    for piece in [*pieces, None]:
        if piece is not None and _is_text(piece):
            text += ast.literal_eval(piece)
            continue
        joined += [ast.Constant(text)] if text else []
        joined += [] if piece is None else [piece]
        text = ""
    return joined


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
