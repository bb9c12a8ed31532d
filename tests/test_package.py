"""What an import of the package does to its user, and that it knows its version."""

import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys

import pytest

import rc_jax

ROOT = pathlib.Path(__file__).parent.parent


def test_importing_changes_no_setting_and_starts_nothing():
    program = """
import sys, jax
before = dict(jax.config.values)
import rc_jax
from rc_jax import attention, collapse, diagnostics, ensemble, network, pretrained, scale, sparsity, special
assert dict(jax.config.values) == before, "a JAX setting was touched"
assert not jax._src.xla_bridge._backends, "a backend was started"
heavy = {"flax", "gguf", "matplotlib", "safetensors", "tokenizers", "torch", "transformers"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_one_version():
    assert importlib.metadata.version("rc_jax") == rc_jax.__version__
    assert f"\nversion: {rc_jax.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


@pytest.fixture(scope="module")
def address():
    spec = importlib.util.spec_from_file_location("address", ROOT / "docs" / "address.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_address_or_the_sentence_that_there_is_none(address):
    """pyproject.toml is the place; what is cited by has it from there."""
    at = address.address((ROOT / "pyproject.toml").read_text("utf-8"))
    for file in address.FILES:
        text = file.read_text("utf-8")
        assert text == address.written(text, at), "run `python docs/address.py`"
        assert (at or "no public address yet") in text


def test_an_address_that_is_set_is_written_and_can_be_taken_back(address):
    new = "https://github.com/someone/attention"
    assert address.address(f'[project]\nname = "x"\n[project.urls]\nRepository = "{new}"\n') == new
    for file, said in zip(address.FILES, (f"\nrepository-code: {new}\n", f"\n  url     = {{{new}}},\n"), strict=True):
        text = address.written(file.read_text("utf-8"), None)
        with_one = address.written(text, new)
        assert said in with_one and "no public address" not in with_one
        assert address.written(with_one, new) == with_one and address.written(with_one, None) == text
    with pytest.raises(ValueError, match="must have a line `repository-code:`"):
        address.written("no place", new)
