"""The equations table resolves: every function, test and figure that it names exists, and is named once per row."""

import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in (ROOT / "docs" / "equations.md").read_text().splitlines()
    if line.startswith("| ") and "`" in line
]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_row_resolves(row):
    equation, source, functions, tests, figures = row
    assert equation and source and names(functions) and names(tests)
    for name in names(functions):
        room, _, attribute = name.partition(".")
        assert attribute in importlib.import_module(f"rc_jax.{room}").__all__
    for name in names(tests):
        path, _, function = name.partition("::")
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE), name
    for name in names(figures):
        assert (ROOT / "experiments" / "figures" / f"{name}.py").exists(), name


def test_the_three_questions_are_covered_whole():
    """Every public function of collapse, scale and sparsity stands in the table."""
    listed = {name for row in ROWS for name in names(row[2])}
    for room in ("collapse", "scale", "sparsity"):
        module = importlib.import_module(f"rc_jax.{room}")
        functions = {f"{room}.{name}" for name in module.__all__ if not isinstance(getattr(module, name), type)}
        assert functions <= listed, sorted(functions - listed)


def test_links_between_pages_resolve():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
