"""The documentation site: one real build with warnings as errors, and how the reference reads docstrings."""

import doctest
import importlib
import pathlib
import subprocess
import sys
import types

import pytest

import rc_jax

pytest.importorskip("sphinx")
pytest.importorskip("myst_nb")
pytest.importorskip("furo")

DOCS = pathlib.Path(__file__).parent.parent / "docs"
PACKAGES = [*rc_jax.__all__, "collapse.audit"]


@pytest.fixture
def reference(monkeypatch):
    """The site's own module for the reference, as conf.py makes it importable."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    yield importlib.import_module("reference")
    sys.modules.pop("reference", None)


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_has_every_public_name(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-n", "-W", "--keep-going", "-q", "-b", "html"]
    built = subprocess.run(
        [*command, "-D", "nb_execution_mode=off", str(DOCS), str(tmp_path)], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr[-4000:]

    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((tmp_path / "objects.inv").read_bytes(), uri="")
    documented = {name for kind in inventory.data.values() for name in kind}
    for package in PACKAGES:
        module = importlib.import_module(f"rc_jax.{package}")
        names = [name for name in module.__all__ if not isinstance(getattr(module, name), types.ModuleType)]
        assert {f"rc_jax.{package}.{name}" for name in names} <= documented


def test_docstrings_mean_what_they_say(reference):
    from docutils import nodes
    from docutils.core import publish_doctree

    text = (
        "The norm |x|_F of *layers and x_ (`code|s`s): a*b.\n\nNames `of_two\nlines` too:\n\n    mean     |a|  `b`\n"
        "    median   *c*\n\nExample:\n    >>> 1 * 2 | 4\n    6"
    )
    tree = publish_doctree("\n".join(reference.escaped(text)), settings_overrides={"halt_level": 2})
    flat = tree.astext()
    assert "The norm |x|F of *layers and x_ (code|ss): a*b." in flat  # F is lowered
    (lowered,) = tree.findall(nodes.subscript)
    assert lowered.astext() == "F"
    assert "mean     |a|  `b`\nmedian   *c*" in flat and ">>> 1 * 2 | 4\n6" in flat and "of_two\nlines" in flat


@pytest.mark.parametrize(
    ("text", "lowered", "raised", "plain"),
    [
        ("‖res(X^{l+1})‖_{1,∞} ≤ c", ["1,∞"], ["l+1"], "‖res(Xl+1)‖1,∞ ≤ c"),
        ("‖X‖_F² and e^(−γ²/2), W_QK x", ["F", "QK"], ["−γ²/2"], "‖X‖F² and e−γ²/2, WQK x"),
        ("d_head, of `x_i` and names_of_it", [], [], "d_head, of x_i and names_of_it"),
    ],
)
def test_indices_and_powers_are_set_as_such(reference, text, lowered, raised, plain):
    from docutils import nodes
    from docutils.core import publish_doctree

    tree = publish_doctree("\n".join(reference.escaped(text)), settings_overrides={"halt_level": 2})
    assert [node.astext() for node in tree.findall(nodes.subscript)] == lowered
    assert [node.astext() for node in tree.findall(nodes.superscript)] == raised
    assert tree.astext() == plain


def test_what_the_docstring_names_stands_first(reference):
    from rc_jax import collapse

    homes = list(reference.groups(collapse))
    assert homes[0] == "rc_jax.collapse.exact.trajectory"
    assert sorted(homes) != homes and len(set(homes)) == len(homes)


def test_signatures_read_like_the_source(reference):
    assert doctest.testmod(reference).failed == 0
    like = "jax.jaxlib._jax.Array | numpy.ndarray | numpy.bool | numpy.number | bool | int | float | complex"
    assert (
        reference.readable(f"(n: {like}, dim: {like} | None = None)") == "(n: ArrayLike, dim: ArrayLike | None = None)"
    )
    other = "Array | ndarray | bool | number | bool | int | float | complex | None"  # of another version
    assert reference.readable(f"(n: {other} = None)") == "(n: ArrayLike | None = None)"
    assert (
        reference.readable("rc_jax.network.specification.LayerParams | collections.abc.Callable")
        == "LayerParams | Callable"
    )
