"""The documentation site: one real build with warnings as errors, and each of its own parts alone."""

import doctest
import importlib
import json
import pathlib
import re
import subprocess
import sys
import types

import pytest

import rc_jax
from experiments.ledger import prediction, record
from experiments.lib import figure
from experiments.running import drawing

pytest.importorskip("sphinx")
pytest.importorskip("myst_nb")
pytest.importorskip("furo")

ROOT = pathlib.Path(__file__).parent.parent
DOCS = ROOT / "docs"
PACKAGES = [*rc_jax.__all__, "collapse.audit"]
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000000000400010be0022b"
    "0000000049454e44ae426082"
)


@pytest.fixture
def ext(monkeypatch):
    """The site's own modules, as conf.py makes them importable."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    names = ("figures", "reference", "reproduce", "code_links")
    extensions = types.SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    yield extensions
    for name in names:
        sys.modules.pop(name, None)


def pictures_of_everything(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name in figure.names():
        for suffix in drawing.THEMES.values():
            (folder / f"{name}{suffix}.png").write_bytes(PIXEL)
    return folder


def entry(status=record.DONE, **fields):
    return record.Entry(**{"name": "x", "title": "x", "status": status, "command": "x", **fields})


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_has_everything(tmp_path):
    """Every public name is in the inventory; code in sentences leads to it, to figures and to tests."""
    results = pictures_of_everything(tmp_path / "results" / "quick")
    command = [sys.executable, "-m", "sphinx", "-n", "-W", "--keep-going", "-q", "-b", "html"]
    command += ["-D", "nb_execution_mode=off", "-D", f"figures_results={results}", str(DOCS), str(tmp_path / "site")]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-4000:]

    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((tmp_path / "site" / "objects.inv").read_bytes(), uri="")
    documented = {name for kind in inventory.data.values() for name in kind}
    for package in PACKAGES:
        module = importlib.import_module(f"rc_jax.{package}")
        for name in module.__all__:
            value = getattr(module, name)
            inside = [f"{name}.{each}" for each in value.__all__] if hasattr(value, "__all__") else [name]
            if not isinstance(value, types.ModuleType) or hasattr(value, "__all__"):
                absent = {f"rc_jax.{package}.{each}" for each in inside} - documented
                assert not absent, absent

    page = (tmp_path / "site" / "equations.html").read_text()
    assert re.search(r'href="api/scale.html#rc_jax.scale.optimal_scale"', page)
    assert re.search(r'href="collapse.html#figure-collapse-depth"', page)
    match = re.search(r'href="(source/tests/scale/[^"#]+)#(test_\w+)"', page)
    assert f'id="{match[2]}"' in (tmp_path / "site" / match[1]).read_text()

    page = (tmp_path / "site" / "collapse.html").read_text()
    assert "_images/collapse_depth.png" in page and "_images/collapse_depth.dark.png" in page
    assert "python -m experiments collapse_depth" in re.sub("<[^>]+>", "", page) and "only-dark" in page
    for path in (tmp_path / "site" / "api").glob("*.html"):
        assert not re.search(r"jaxtyping\.(?!PyTree)|jaxlib\._jax", path.read_text()), path.name
    page = (tmp_path / "site" / "reproduce.html").read_text()
    assert all(f'id="figure-{name.replace("_", "-")}"' in page for name in figure.names())
    external = re.findall(r'<(?:script|link)[^>]*(?:src|href)="https?:[^"]*"', page)
    assert not external, external


def test_every_page_is_in_a_table_of_contents():
    listed = set()
    for index, fence in (
        (DOCS / "index.md", r"```\{toctree\}\n(.*?)```"),
        (DOCS / "api" / "index.rst", r"toctree::(.*)"),
    ):
        for block in re.findall(fence, index.read_text(), re.DOTALL):
            here = index.parent.relative_to(DOCS)
            listed |= {
                (here / line.strip()).as_posix() for line in block.split("\n") if re.fullmatch(r"\s*[\w./-]+", line)
            }
    written = (path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md"))
    pages = {page for page in written if page.parts[0] not in ("dev", "notebooks", "api")}
    pages |= {pathlib.Path("api", path.name.rpartition(".")[0]) for path in (DOCS / "api").iterdir()}
    pages |= {path.relative_to(DOCS).with_suffix("") for path in (DOCS / "notebooks").glob("*.ipynb")}
    assert listed == {page.as_posix() for page in pages} - {"index"}
    shown = {
        match
        for path in (DOCS / "api").glob("*.rst")
        for match in re.findall(r"subpackage:: rc_jax\.(\S+)", path.read_text())
    }
    assert shown == set(PACKAGES)


@pytest.mark.parametrize("question", ["collapse", "scale", "sparsity"])
def test_the_three_questions_show_figures_that_exist(question):
    shown = re.findall(r"^!\[.+\]\(pictures/(\w+)\.webp\)$", (DOCS / f"{question}.md").read_text(), re.MULTILINE)
    assert shown and set(shown) <= set(figure.names())


def test_a_figure_that_there_is_not_is_refused_with_the_names_of_those_there_are(ext):
    with pytest.raises(ext.figures.NoPicture, match=r"no figure is called 'colapse'; figures are .*collapse_depth.*"):
        ext.figures.known("colapse")


def test_pictures_are_taken_from_results_where_both_themes_are_there(ext, tmp_path):
    assert ext.figures.pictures("temperature", tmp_path) == {}  # so the page keeps the small one of the repository
    results = pictures_of_everything(tmp_path / "results")
    expected = {"light": results / "temperature.png", "dark": results / "temperature.dark.png"}
    assert ext.figures.pictures("temperature", results) == expected
    assert ext.figures.preset_of(results) == "quick"
    (results / "claims.json").write_text(json.dumps({"preset": "full"}))
    assert ext.figures.preset_of(results) == "full"
    (results / "temperature.dark.png").unlink()
    assert ext.figures.pictures("temperature", results) == {}


def test_what_stands_under_a_picture(ext):
    about = figure.load("collapse_depth").ABOUT
    block = ext.figures.block("collapse_depth", about, {"light": "a.png", "dark": "b.png"}, "full")
    text = block.astext()
    assert about.caption in text and about.formula in text
    assert f"python -m experiments collapse_depth --preset full · about {about.minutes['full']:g} min" in text
    assert [image["classes"] for image in block.findall(lambda node: node.tagname == "image")] == [
        ["only-light"],
        ["only-dark"],
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_one_place_in_its_package(ext, package):
    module = importlib.import_module(f"rc_jax.{package}")
    names = [name for group in ext.reference.groups(module).values() for name in group]
    plain = [name for name in module.__all__ if not isinstance(getattr(module, name), types.ModuleType)]
    assert sorted(name for name in names if "." not in name) == sorted(plain)
    assert len(set(names)) == len(names)
    lines = ext.reference.page(module)
    placed = {line.rpartition(":: ")[2].removeprefix(f"rc_jax.{package}.") for line in lines if line.startswith(".. ")}
    assert set(names) <= placed


def test_docstrings_mean_what_they_say(ext):
    from docutils.core import publish_doctree

    text = (
        "The norm |x|_F of *layers and x_ (`code|s`s): a*b.\n\nNames `of_two\nlines` too:\n\n    mean     |a|  `b`\n"
        "    median   *c*\n\nExample:\n    >>> 1 * 2 | 4\n    6"
    )
    tree = publish_doctree("\n".join(ext.reference.escaped(text)), settings_overrides={"halt_level": 2})
    flat = tree.astext()
    assert "The norm |x|_F of *layers and x_ (code|ss): a*b." in flat
    assert "mean     |a|  `b`\nmedian   *c*" in flat and ">>> 1 * 2 | 4\n6" in flat and "of_two\nlines" in flat


def test_signatures_read_like_the_source(ext):
    assert doctest.testmod(ext.reference).failed == 0
    like = "jax.jaxlib._jax.Array | numpy.ndarray | numpy.bool | numpy.number | bool | int | float | complex"
    assert (
        ext.reference.readable(f"(n: {like}, dim: {like} | None = None)")
        == "(n: ArrayLike, dim: ArrayLike | None = None)"
    )
    assert (
        ext.reference.readable("rc_jax.network.specification.LayerParams | collections.abc.Callable")
        == "LayerParams | Callable"
    )


def test_names_that_two_packages_have_lead_nowhere(ext):
    homes = ext.code_links.homes()
    assert homes["optimal_scale"] == ["scale.optimal_scale"]
    assert len(homes["init"]) == 2
    assert ext.code_links.file_target("tests/test_site.py::test_x") == ("source/tests/test_site", "test_x")
    assert ext.code_links.file_target("tests/nowhere.py") is None


def test_numbers_to_expect_come_from_the_ledger(ext, tmp_path):
    """The committed ledger goes before a folder of results, and its numbers and verdicts are in the page."""
    docs, results = tmp_path / "docs", tmp_path / "results"
    docs.mkdir()
    assert ext.reproduce.snapshot(docs, results) == results
    claim = prediction("cube", "falls triple", 3.01, (2.9, 3.1), interval_from="our tolerance", standard_error=0.002)
    record.write(docs, [entry(name="collapse_depth", claims=(claim,))])
    assert ext.reproduce.snapshot(docs, results) == docs
    entries = record.read(docs)
    text = ext.reproduce.section("collapse_depth", entries["collapse_depth"]).astext()
    assert "falls triple" in text and "3.010 ± 0.002" in text and "held" in text
    assert "python -m experiments collapse_depth --preset quick" in text
    assert "no run of it" in ext.reproduce.section("temperature", None).astext()
    rows = ext.reproduce.overview(figure.names(), entries).astext()
    assert all(name in rows for name in figure.names()) and "1 held" in rows
