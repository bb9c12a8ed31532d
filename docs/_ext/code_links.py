"""Code in a sentence becomes a link where it names something: a public name, a figure, a test, a file.

The Markdown pages stay as they are on GitHub: `scale.optimal_scale`, `collapse_depth` and
`tests/scale/gradient/test_softmax.py::test_limits` are links on the site only. Files and tests get pages of their own.
"""

import functools
import html
import importlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from figures import anchor, places
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

import rc_jax
from experiments.lib import figure

ROOT = pathlib.Path(__file__).parent.parent.parent
FILE = re.compile(r"(?P<path>(?:tests|rc_jax|experiments)/[\w/]+\.py)(?:::(?P<test>\w+))?")
NAME = re.compile(r"(?:rc_jax\.)?(?P<name>[A-Za-z]\w*(?:\.\w+)*)(?:\([^()]*\))?")
REPRODUCE = "reproduce"


def link_code(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turn every literal of a page that names something into a link to it."""
    for literal in list(doctree.findall(nodes.literal)):
        if isinstance(literal.parent, nodes.reference | nodes.title) or "command" in literal["classes"]:
            continue
        target = file_target(literal.astext()) or name_target(app.env, docname, literal.astext())
        if target is None or (target[0] == docname and not target[1]):
            continue
        page, place = target
        link = make_refnode(app.builder, docname, page, place, shortened(literal), literal.astext())
        literal.replace_self(link)


def shortened(literal: nodes.literal) -> nodes.literal:
    """A test in a table by its own name alone: the file is in the link."""
    text = literal.astext()
    in_table = any(isinstance(parent, nodes.entry) for parent in parents(literal))
    return (
        nodes.literal("", text.rpartition("::")[2], classes=["path"])
        if "::" in text and in_table
        else literal.deepcopy()
    )


def parents(node: nodes.Node) -> Iterator[nodes.Node]:
    """The nodes around a node, from the inside outwards."""
    while node.parent is not None:
        node = node.parent
        yield node


def file_target(text: str) -> tuple[str, str] | None:
    """The page and anchor of a file of this repository, or of a test in one."""
    match = FILE.fullmatch(text)
    if match is None or match["path"] not in files():
        return None
    return source_page(match["path"]), match["test"] or ""


@functools.cache
def files() -> frozenset[str]:
    """Python files of the repository that pages may name."""
    return frozenset(
        path.relative_to(ROOT).as_posix()
        for folder in ("rc_jax", "experiments", "tests")
        for path in (ROOT / folder).rglob("*.py")
    )


def source_page(path: str) -> str:
    """The page that shows a file."""
    return f"source/{path.removesuffix('.py')}"


def name_target(env: BuildEnvironment, docname: str, text: str) -> tuple[str, str] | None:
    """The page and anchor of a public name or a figure.

    A name alone counts when it is code for certain (an underscore, capitals, a call) and one subpackage has it.
    """
    match = NAME.fullmatch(text)
    if match is None:
        return None
    name = match["name"]
    here = docname.removeprefix("api/") if docname.startswith("api/") else None
    candidates = [name] if "." in name or text.startswith("rc_jax.") else []
    candidates += [f"{here}.{name}"] if here else []
    if "." not in name and re.search(r"_|\(|[a-z][A-Z]", text):
        candidates += homes()[name] if len(homes().get(name, [])) == 1 else []
    for candidate in candidates:
        entry = env.domains.python_domain.objects.get(f"rc_jax.{candidate}")
        if entry is not None:
            return entry.docname, "" if entry.objtype == "module" else entry.node_id
    if name in figure_names() and here is None:
        return places(env).get(name, REPRODUCE), anchor(name)
    return None


@functools.cache
def homes() -> dict[str, list[str]]:
    """Public names and the subpackages that have them: `optimal_scale` is `scale.optimal_scale`, `init` is in two."""
    destinations: dict[str, list[str]] = {}
    for package in (*rc_jax.__all__, "collapse.audit"):
        for name in importlib.import_module(f"rc_jax.{package}").__all__:
            destinations.setdefault(name, []).append(f"{package}.{name}")
    return destinations


@functools.cache
def figure_names() -> frozenset[str]:
    """Names of all figures."""
    return frozenset(figure.names())


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for every file that a link may lead to, with an anchor at every definition."""
    for path in sorted(files()):
        text = (ROOT / path).read_text(encoding="utf-8")
        if text.strip():
            title = html.escape(path)
            yield source_page(path), {"title": title, "body": f"<h1>{title}</h1>{listing(app, text)}"}, "page.html"


def listing(app: Sphinx, text: str) -> str:
    """A file in colours, its definitions marked so that a link leads there."""
    lines = app.builder.highlighter.highlight_block(text, "python", force=True).splitlines()  # pyright: ignore[reportAttributeAccessIssue]
    for number, line in enumerate(text.splitlines()):
        match = re.match(r"(?:async )?(?:def|class) (\w+)", line)
        if match:
            lines[number] = f'<span id="{match[1]}" class="definition">{lines[number]}</span>'
    return "\n".join(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    """Links once all pages are read; the files' pages with the rest of what is not a document."""
    app.connect("doctree-resolved", link_code)
    app.connect("html-collect-pages", source_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
