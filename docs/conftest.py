"""Pytest reads the pages here; the site's own code needs Sphinx and is tested by tests/test_site.py."""

import importlib.util
import pathlib

import pytest

collect_ignore_glob = ["conf.py", "_ext/*.py"]
HERE = pathlib.Path(__file__).parent
ALWAYS = {"start.md"}  # every other page runs with the slow tests
WRITING = {"your-own-network.md"}  # into the working folder
NEEDED = {"diagnose-transformers.md": "transformers", "entropy-collapse.md": "torch"}  # of the extra `parity`


def pytest_collection_modifyitems(items):
    """Pages of examples are slow tests, but the first that a reader meets."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.name not in ALWAYS:
            item.add_marker(pytest.mark.slow)
        needed = NEEDED.get(item.path.name)
        if needed and importlib.util.find_spec(needed) is None:
            item.add_marker(pytest.mark.skip(reason=f"needs {needed}"))


@pytest.fixture(autouse=True)
def a_folder_to_write_into(request, tmp_path, monkeypatch):
    """Where an example writes a file, that goes into a folder of the test."""
    if request.node.path.name in WRITING:
        monkeypatch.chdir(tmp_path)
