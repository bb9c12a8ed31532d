"""What goes out with a release agrees with itself: versions, citation, extras, entry points, files of the wheel."""

import ast
import datetime
import importlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement

import rc_jax

ROOT = pathlib.Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
PACKAGE = "rc_jax"  # what the wheel installs
SOURCES = (PACKAGE, "experiments")  # what the project's dependencies are for
# Whom to ask for what is imported under another name. Matplotlib cannot be installed without Pillow and cycler.
DISTRIBUTIONS = {"PIL": "matplotlib", "cycler": "matplotlib", "orbax": "orbax-checkpoint", "sklearn": "scikit-learn"}


def plain(requirement):
    return Requirement(requirement).name.replace("_", "-").lower()


def sources():
    for folder in SOURCES:
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_one_version():
    version = rc_jax.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert PROJECT["project"]["version"] == CITATION["version"] == version
    assert importlib.metadata.version("rc_jax") == version


def test_changelog_is_of_this_version():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert headings in (released, ["Unreleased", *released])
    matches = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) \((\d{4}-\d\d-\d\d)\)", heading) for heading in released]
    assert all(matches), released
    versions = [tuple(map(int, match.groups()[:3])) for match in matches]
    assert versions == sorted(set(versions), reverse=True)
    assert ".".join(matches[0].groups()[:3]) == rc_jax.__version__
    dates = [datetime.date.fromisoformat(match[4]) for match in matches]
    assert dates == sorted(dates, reverse=True)
    assert dates[0] == CITATION["date-released"], "CITATION.cff has the date of the newest version"
    assert datetime.date(2026, 1, 1) < dates[0] <= datetime.date.today() + datetime.timedelta(days=1)


def test_citation_is_valid():
    cffconvert = pytest.importorskip("cffconvert")
    text = (ROOT / "CITATION.cff").read_text()
    assert cffconvert.Citation(text).cffobj["title"] == CITATION["title"]
    cffconvert.Citation(text).validate()
    with pytest.raises(Exception, match="'authors'"):  # so validation looks
        cffconvert.Citation(text.replace("\nauthors:", "\nwriters:")).validate()


def test_citation_has_what_is_asked_for():
    assert {"cff-version", "message", "title", "authors", "license", "date-released"} <= set(CITATION)
    assert CITATION["license"] == PROJECT["project"]["license"] == "Apache-2.0"
    assert CITATION["type"] == "software" and len(CITATION["references"]) >= 6


def entries():
    """Every BibTeX entry of the page: its kind and its fields."""
    text = (ROOT / "docs" / "citation.md").read_text()
    for kind, key, body in re.findall(r"^@(\w+)\{(\w+),\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        fields = dict(re.findall(r"^  (\w+)\s*= \{(.*)\},$", body, re.MULTILINE))
        assert len(fields) == body.count("\n"), f"{key} has a line that is no field"
        yield kind, key, fields


def test_bibtex_is_what_the_citation_file_says():
    (kind, key, software), *others = entries()
    assert (kind, key) == ("software", "rc_jax")
    assert software["title"] == CITATION["title"] and software["version"] == CITATION["version"]
    assert software["author"] == "{" + CITATION["authors"][0]["name"] + "}"
    assert software["year"] == str(CITATION["date-released"].year) and software["license"] == CITATION["license"]
    assert len({key for _, key, _ in others}) == len(others) == len(CITATION["references"])
    for (_, key, fields), reference in zip(others, CITATION["references"], strict=True):
        authors = " and ".join(f"{each['family-names']}, {each['given-names']}" for each in reference["authors"])
        expected = {"title": reference["title"], "author": authors, "year": str(reference["year"])}
        if "collection-title" in reference:
            expected["booktitle"] = reference["collection-title"]
        if "url" in reference:
            expected["url"] = reference["url"]
        for each in reference.get("identifiers", ()):
            archive, _, number = each["value"].partition(":")
            expected |= {"eprint": number, "archiveprefix": archive}
        assert fields == expected, key


def test_every_arxiv_number_in_the_code_is_in_the_citation():
    """Papers that the packages of theory name by number are in CITATION.cff, but for those named on a page alone."""
    cited = " ".join(each["value"] for ref in CITATION["references"] for each in ref.get("identifiers", ()))
    cited += " ".join(ref.get("url", "") for ref in CITATION["references"])
    named = set()
    for path in (ROOT / "rc_jax").rglob("*.py"):
        named |= set(re.findall(r"arXiv[ :](\d{4}\.\d{5})", path.read_text()))
    assert named and all(number in cited for number in named), sorted(named)
    assert all(number in cited for number in ("9812", "9889", "8823", "2103.03404", "1706.03762"))


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "rc_jax" / "py.typed").read_bytes() == b""
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]


def test_the_wheel_takes_one_package_and_every_file_of_it():
    """Hatch takes a whole package but for what git ignores: so nothing may be left out, and nothing be ignored."""
    build = PROJECT["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"] == {"packages": [PACKAGE]}
    others = {"include", "exclude", "only-include", "force-include", "artifacts", "packages", "sources", "hooks"}
    assert not others & (set(build) | set(build["targets"].get("sdist", {})))
    files = [path for path in (ROOT / PACKAGE).rglob("*") if path.is_file()]
    data = [str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts]
    assert "rc_jax/py.typed" in data
    tests = [name for name in data if re.search(r"(^|/)(conftest|test_[^/]*)\.py$", name)]
    assert not tests, f"tests of the package would be installed with it: {tests}"
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout: what git ignores is unknown")
    asked = subprocess.run(["git", "check-ignore", *data], cwd=ROOT, capture_output=True, text=True)
    assert asked.stdout == "" and asked.returncode == 1, asked


def test_extras_resolve():
    extras = PROJECT["project"]["optional-dependencies"]

    def reach(name, above=()):
        assert name not in above, f"extras in a circle: {above}"
        for line in extras[name]:
            requirement = Requirement(line)
            if requirement.name == "rc_jax":
                assert requirement.extras, line
                for extra in requirement.extras:
                    assert extra in extras, f"{name} asks for the extra {extra}, which there is not"
                    yield from reach(extra, (*above, name))
            else:
                yield plain(line)

    reached = {name: set(reach(name)) for name in extras}
    assert {"safetensors", "tokenizers"} <= reached["pretrained"] <= reached["test"] & reached["docs"]
    assert reached["training"] <= reached["test"] <= reached["parity"]
    assert {"pytest", "hypothesis", "beartype"} <= reached["test"] and "torch" not in reached["test"]


def test_everything_imported_is_asked_for():
    project = PROJECT["project"]
    always = {plain(line) for line in project["dependencies"]}
    sometimes = {plain(line) for lines in project["optional-dependencies"].values() for line in lines}
    known = set(sys.stdlib_module_names) | set(SOURCES)
    for path in sources():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in {name.partition(".")[0] for name in names} - known:
                distribution = DISTRIBUTIONS.get(name, name).lower()
                allowed = always if node in tree.body else always | sometimes
                assert distribution in allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_commands_and_scripts_are_there():
    for target in PROJECT["project"]["scripts"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
    assert os.access(ROOT / ".ci" / "package", os.X_OK)


def test_provenance_has_the_version_and_no_commit_outside_a_checkout(tmp_path):
    from experiments.lib import figure
    from experiments.running import provenance

    assert provenance.commit(tmp_path) is None
    about = provenance.provenance("x", figure.Spec(), 1.0, "code")
    assert about["version"] == rc_jax.__version__


def test_an_installed_copy_inside_another_checkout_has_no_commit(tmp_path):
    """A virtual environment often lies in somebody's repository, whose commit says nothing about this package."""
    from experiments.running import provenance

    if shutil.which("git") is None:
        pytest.skip("there is no git")
    installed = tmp_path / ".venv" / "experiments"
    installed.mkdir(parents=True)
    (installed / "figure.py").touch()
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert provenance.commit(installed) is None
