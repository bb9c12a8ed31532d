"""Pytest reads the pages here; the site's own code needs Sphinx and is tested by tests/test_site.py."""

import importlib.util
import pathlib
import re

import pytest

collect_ignore_glob = ["conf.py", "_ext/*.py"]
HERE = pathlib.Path(__file__).parent
ALWAYS = {"start.md"}  # every other page runs with the slow tests
SCRIPTS = {"your-own-network.md"}  # pages with a script to paste, which writes into the working folder
NEEDED = {"diagnose-transformers.md": "transformers", "entropy-collapse.md": "torch"}  # of the extra `parity`


def pytest_collection_modifyitems(items):
    """Pages of examples are slow tests, but the first that a reader meets."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.name not in ALWAYS:
            item.add_marker(pytest.mark.slow)
        needed = NEEDED.get(item.path.name)
        if needed and importlib.util.find_spec(needed) is None:
            item.add_marker(pytest.mark.skip(reason=f"needs {needed}"))


def scripts(text):
    """The blocks of Python of a page that have no prompts."""
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for block in blocks if not block.startswith(">>>")]


@pytest.fixture(autouse=True)
def the_names_of_a_script(request, tmp_path, monkeypatch, doctest_namespace):
    """Run a page's script as a reader does, in a folder of the test; its examples with prompts go on from there."""
    page = request.node.path
    if page.name not in SCRIPTS:
        yield
        return
    monkeypatch.chdir(tmp_path)
    before = dict(doctest_namespace)
    (script,) = scripts(page.read_text("utf-8"))
    exec(compile(script, page, "exec"), doctest_namespace)
    assert (tmp_path / "mine.pdf").read_bytes().startswith(b"%PDF"), "the script has to write its picture"
    yield
    doctest_namespace.clear()
    doctest_namespace.update(before)
