"""`.. subpackage:: rc_jax.scale`: every public name of a subpackage, in one section for each file that defines some."""

import ast
import importlib
import inspect
import math
import operator
import re
import types
from collections import defaultdict
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

OWN_PAGE = ("rc_jax.collapse.audit",)


class Subpackage(SphinxDirective):
    """The reference of one package: its docstring, a table of its names, and every name with its docstring."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Write the page as reStructuredText for autodoc, and parse that."""
        module = importlib.import_module(self.arguments[0])
        return self.parse_text_to_nodes("\n".join(page(module)), allow_section_headings=True)


def page(module: ModuleType) -> list[str]:
    """A subpackage's reference page below its title."""
    package = module.__name__
    lines = [f".. py:module:: {package}", "", *escaped(inspect.getdoc(module) or ""), ""]
    for home, names in groups(module).items():
        inside = importlib.import_module(home)
        title = home.rpartition(".")[2].replace("_", " ").capitalize()
        lines += [title, "-" * len(title), "", *escaped(first_sentence(inside)), "", *summary(package, names)]
        for name in names:
            lines += [*entry(package, name, operator.attrgetter(name)(module)), ""]
    return lines


def groups(module: ModuleType) -> dict[str, list[str]]:
    """Public names of a subpackage by the file that defines them; a topic module is a group of its own functions."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            if value.__name__ not in OWN_PAGE:
                by_file[value.__name__] += [f"{name}.{each}" for each in public(value)]
        else:
            by_file[defined_in(module, name)].append(name)
    # What the docstring of the package names stands first, in its order.
    said = re.findall(r"`(\w+)", inspect.getdoc(module) or "")
    place = {name: at for at, name in reversed(list(enumerate(said)))}
    filled = [home for home, names in by_file.items() if names]
    return {home: by_file[home] for home in sorted(filled, key=lambda home: (_first(by_file[home], place), home))}


def _first(names: list[str], place: dict[str, int]) -> float:
    return min(place.get(name.partition(".")[0], math.inf) for name in names)


def public(module: ModuleType) -> list[str]:
    """Names of a module without `__all__` of its own: the classes and functions that it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = [
        (name, value)
        for name, value in vars(module).items()
        if not name.startswith(("_", "check_"))
        and callable(value)
        and getattr(value, "__module__", "") == module.__name__
    ]
    return [name for name, _ in own]


def defined_in(module: ModuleType, name: str) -> str:
    """The file that defines a name. A constant does not know its file, so the imports of the package say it."""
    home = getattr(getattr(module, name), "__module__", "")
    if home.startswith("rc_jax."):
        return home
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return str(node.module)
    raise ValueError(f"`{name}` of {module.__name__} is imported from nowhere")


def summary(package: str, names: list[str]) -> list[str]:
    """A table of names and their first sentences, where there is more than one."""
    if len(names) < 2:
        return []
    return [
        f".. currentmodule:: {package}",
        "",
        ".. autosummary::",
        "   :nosignatures:",
        "",
        *(f"   {n}" for n in names),
        "",
    ]


def entry(package: str, name: str, value: Any) -> list[str]:
    """The directive that documents one name."""
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, Exception) else "autoclass"
        return [f".. {kind}:: {package}.{name}", "   :members:"]
    if inspect.isroutine(value) or hasattr(value, "__wrapped__"):
        return [f".. autofunction:: {package}.{name}"]
    written = ModuleAnalyzer.for_module(defined_in(importlib.import_module(package), name)).find_attr_docs()
    lines = [line for line in escaped("\n".join(written.get(("", name), [])))]
    return [f".. py:data:: {name}", f"   :type: {kind_of(value)}", "", *(f"   {line}" for line in lines)]


def kind_of(value: Any) -> str:
    """The type of a constant, or what a union of types is made of."""
    if isinstance(value, types.UnionType):
        return readable(str(value))
    return type(value).__name__


def first_sentence(module: ModuleType) -> str:
    """The first paragraph of a module's docstring."""
    return (inspect.getdoc(module) or "").partition("\n\n")[0]


SECTION = re.compile(r"[A-Z]\w*:")

# Docstrings are plain text with `code` in single backquotes and formulas as they are: |x|, ‖res‖_F, *layers.


def escaped(text: str) -> list[str]:
    """A docstring's lines as reStructuredText: bars, stars, underscores mean themselves, tables stay tables."""
    out, doctest, table, open_code, sections, above = [], False, False, False, False, ""
    for line in text.split("\n"):
        blank = not line.strip()
        sections = sections or bool(SECTION.fullmatch(line))
        doctest = not blank and (doctest or line.lstrip().startswith(">>>"))
        starts_table = line.startswith("    ") and not (above.strip() or sections or doctest or table)
        table = (table and (blank or line.startswith("    "))) or (starts_table and not blank)
        if starts_table and table:
            out += ["::", ""]
        if blank:
            open_code = False
        if doctest or table:
            out.append(line)
        else:
            safe, open_code = _escape(line, open_code)
            out.append(safe)
        above = line
    return out


def _escape(line: str, open_code: bool) -> tuple[str, bool]:
    """One line; `open_code`: whether code started on the line before, and whether it goes on on the next."""
    parts = line.split("`")
    pieces = []
    for index, part in enumerate(parts):
        code = (index % 2 == 1) != open_code
        if code:
            pieces.append(part)
            continue
        safe = "".join(_script(text) if at % 2 else _plain(text) for at, text in enumerate(SCRIPT.split(part)))
        if index > 0 and safe and not safe[0].isspace():
            safe = r"\ " + safe  # `x`s: literal text must end before something that is not a letter
        if index < len(parts) - 1 and safe and not safe[-1].isspace():
            safe += r"\ "
        pieces.append(safe)
    return "``".join(pieces), (len(parts) % 2 == 0) != open_code


# An index or a power of formulas in the text: X^l, ‖·‖_{1,∞}, e^(−γ²/2), p_j; not the underscore of a name.
SCRIPT = re.compile(
    r"((?<=\S)\^(?:\{[^{}]+\}|\([^()]+\)|−?[A-Za-z0-9Α-ω∞]+)|(?<=\S)_\{[^{}]+\}|(?<![A-Za-z]{2})(?<=[^\s_])_[A-Za-z0-9Α-ω∞]{1,2}(?![^\W²³]))"
)


def _script(text: str) -> str:
    """`^{l + 1}` as a raised l + 1, `_{1,∞}` as a lowered 1,∞."""
    inside = text[2:-1] if text[1] in "{(" else text[1:]
    return rf"\ :{'sup' if text[0] == '^' else 'sub'}:`{_plain(inside)}`\ "


def _plain(text: str) -> str:
    return re.sub(r"_(?!\w)", r"\\_", re.sub(r"([*|\\])", r"\\\1", text))


def on_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Before napoleon reads a docstring: plain text becomes safe reStructuredText."""
    lines[:] = escaped("\n".join(lines))


ARRAY = r"(?:jax\.)?jaxlib\._jax\.Array"
NUMBER = rf"(?:{ARRAY}|Array|(?:numpy\.)?(?:ndarray|bool_?|number)|bool|int|float|complex)"
LIKE = rf"\b{NUMBER}(?:(?: \||,) {NUMBER}){{5,}}"  # in the order that a version of JAX and Python has
SHORT = (
    (rf"Union\[{LIKE}, NoneType\]", "ArrayLike | None"),
    (rf"Union\[{LIKE}\]", "ArrayLike"),
    (LIKE, "ArrayLike"),
    (r"str \| type\[(?:typing\.)?Any\] \| numpy\.dtype \| jax\._src\.typing\.SupportsDType", "DTypeLike"),
    (ARRAY, "Array"),
    (r"\b(?:jaxtyping|typing|collections\.abc|collections|pathlib|numpy|jax)\.(?:_?[a-z]\w*\.)*(?=[A-Za-z])", ""),
    (r"\brc_jax\.(?:\w+\.)+(?=[A-Z])", ""),
)


def readable(signature: str) -> str:
    """A signature's types as the source writes them: `Float[Array, 'token feature']`, `ArrayLike`, `AttentionSpec`.

    Example:
        >>> readable("(x: jaxtyping.Float[jaxlib._jax.Array, 'n d'], spec: rc_jax.network.specification.StackSpec)")
        "(x: Float[Array, 'n d'], spec: StackSpec)"
    """
    for long, short in SHORT:
        signature = re.sub(long, short, signature)
    return signature


def on_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Every signature made readable."""
    return (signature and readable(signature), returns and readable(returns))


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out what only repeats a field: the docstring that a named tuple gives each of them."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and what reads docstrings."""
    app.add_directive("subpackage", Subpackage)
    app.connect("autodoc-process-docstring", on_docstring, priority=400)
    app.connect("autodoc-process-signature", on_signature)
    app.connect("autodoc-skip-member", skip)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
