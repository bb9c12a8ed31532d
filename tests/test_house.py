"""The rules of the house: who imports whom, what importing costs, and which names are taught."""

import ast
import functools
import importlib
import importlib.util
import pathlib
import re
import subprocess
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).parent.parent
ORDER = (
    {"_numerics"},
    {"special"},
    {"attention"},
    {"network"},
    {"collapse", "scale", "sparsity"},
    {"diagnostics"},
    {"ensemble"},
    {"training", "pretrained"},
    {"cli"},
)
LEVEL = {package: level for level, packages in enumerate(ORDER) for package in packages}


def imports(path):
    """Dotted names of everything a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_packages_import_only_earlier_packages():
    for path in (ROOT / "rc_jax").rglob("*.py"):
        package = path.relative_to(ROOT / "rc_jax").parts[0].removesuffix(".py")
        if package == "__init__":
            continue
        for name in imports(path):
            parts = name.split(".")
            assert parts[0] not in ("experiments", "tests", "docs"), f"{path} imports {name}, which no wheel has"
            if parts[0] == "rc_jax" and len(parts) > 1 and parts[1] not in (package, "__version__"):
                assert LEVEL[parts[1]] < LEVEL[package], f"{path} imports {name}"


def offered(module):
    """The `__all__` of a file below the root; nothing for a file without one."""
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text()).body if path.exists() else ():
        if isinstance(node, ast.Assign) and [target.id for target in node.targets] == ["__all__"]:
            return ast.literal_eval(node.value)
    return ()


def test_a_package_uses_of_another_only_what_its_all_names():
    """The package's own names with its `more`, or those of its `blocks`, parts that are kept within rc_jax."""
    for path in (ROOT / "rc_jax").rglob("*.py"):
        package = path.relative_to(ROOT / "rc_jax").parts[0].removesuffix(".py")
        for name in imports(path):
            module, _, imported = name.rpartition(".")
            parts = module.split(".")
            if parts[0] != "rc_jax" or len(parts) < 2 or parts[1] in (package, "_numerics", "__version__"):
                continue
            assert parts[2:] in ([], ["blocks"], ["tasks"], ["masks"]), f"{path} reaches into {module}"
            known = [*offered(module), *offered(f"{module}.more")]
            assert imported in known, f"{path} imports {imported}, which {module} does not offer"


def test_no_module_has_the_name_of_what_its_package_exports():
    """`pretrained.trace` is one thing: a function, never also a file."""
    for path in (ROOT / "rc_jax").rglob("__init__.py"):
        modules = {file.stem for file in path.parent.glob("*.py")} | {each.name for each in path.parent.iterdir()}
        for name in offered(".".join(path.parent.relative_to(ROOT).parts)):
            value = getattr(importlib.import_module(".".join(path.parent.relative_to(ROOT).parts)), name)
            assert isinstance(value, types.ModuleType) or name not in modules, f"{path.parent} has a file called {name}"


def without_tests(sources, tests):
    """Folders of `sources` that have neither a folder in `tests` nor a file `test_` and their name there."""
    for folder in sorted(path.parent.relative_to(sources) for path in sources.rglob("__init__.py")):
        mirror = tests.joinpath(*(part.lstrip("_") for part in folder.parts))
        if not mirror.is_dir() and not (mirror.parent / f"test_{mirror.name}.py").exists():
            yield folder.as_posix()


def without_sources(tests, sources):
    """Folders of `tests` that mirror no folder of `sources`."""
    for folder in sorted(path.parent.relative_to(tests) for path in tests.rglob("__init__.py")):
        if not any((sources / folder.parent / name).is_dir() for name in (folder.name, f"_{folder.name}")):
            yield folder.as_posix()


def test_tests_mirror_the_tree(tmp_path):
    tests = ROOT / "tests"
    assert list(without_tests(ROOT / "rc_jax", tests)) == []
    assert list(without_sources(tests / "experiments", ROOT / "experiments")) == []
    others = [folder for folder in without_sources(tests, ROOT / "rc_jax") if not folder.startswith("experiments")]
    assert others == ["oracles"]
    # Both directions see a folder that is alone.
    for name in ("a", "b"):
        (tmp_path / name / name).mkdir(parents=True)
        (tmp_path / name / name / "__init__.py").touch()
    assert list(without_tests(tmp_path / "a", tmp_path / "b")) == ["a"]
    assert list(without_sources(tmp_path / "b", tmp_path / "a")) == ["b"]


# Their agreement is evidence only while neither uses the other. What both start from, a definition or a root finder,
# stands beside them.
@pytest.mark.parametrize("side, other", [("closed_forms", "simulated"), ("closed_forms", "quadrature")])
def test_closed_forms_and_their_checks_do_not_import_each_other(side, other):
    for near, far in ((side, other), (other, side)):
        folders = [path for path in (ROOT / "rc_jax").rglob(near) if (path.parent / far).is_dir()]
        assert folders
        for folder in folders:
            package = ".".join(folder.parent.relative_to(ROOT).parts)
            for path in folder.rglob("*.py"):
                for name in imports(path):
                    assert not f"{name}.".startswith(f"{package}.{far}."), f"{path} imports {name}"


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


# One file knows what JAX may take away, one knows for which compiler a form is chosen, and no check copies an array
# from a device.
@pytest.mark.parametrize(
    ("names", "places"),
    [
        (r"jax\.(_src|core|experimental|extend|interpreters|dtypes\.canonicalize_dtype)\b", {"jax_names"}),
        (r"\b(platform_dependent|default_backend|xla_\w+)\b", {"performance"}),
        (r"\barguments\.concrete\(", {"adaptive", "kinks"}),  # copies to the host: the search for kinks runs there
    ],
)
def test_some_names_stand_in_few_files(names, places):
    users = {path.stem for path in (ROOT / "rc_jax").rglob("*.py") if re.search(names, path.read_text("utf-8"))}
    assert users == places


def test_no_program_switches_64_bit_types_on():
    """Commands do, before they trace anything; the library never does, inside a trace or outside of one."""
    users = {path for path in (ROOT / "rc_jax").rglob("*.py") if "with jax.enable_x64(" in path.read_text("utf-8")}
    assert users and {path.relative_to(ROOT / "rc_jax").parts[0] for path in users} == {"cli"}


def test_slow_examples_exist():
    """A function that is renamed or moved must be renamed in the list, too."""
    spec = importlib.util.spec_from_file_location("root_conftest", ROOT / "conftest.py")
    listed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(listed)
    assert listed.SLOW_EXAMPLES
    for name in listed.SLOW_EXAMPLES:
        parts = name.split(".")
        cut = max(
            n for n in range(len(parts)) if (ROOT / "rc_jax" / pathlib.Path(*parts[:n])).with_suffix(".py").exists()
        )
        module = importlib.import_module(".".join(["rc_jax", *parts[:cut]]))
        assert ">>>" in functools.reduce(getattr, parts[cut:], module).__doc__, name


def test_the_taught_names_are_about_ninety():
    """What the pages teach, eight names of the diagnoses among them; `more` of a package holds what else works."""
    packages = [path for path in (ROOT / "rc_jax").iterdir() if (path / "__init__.py").exists()]
    taught = {path.name: offered(f"rc_jax.{path.name}") for path in packages}
    assert sum(map(len, taught.values())) <= 92, taught
    for path in packages:
        more = offered(f"rc_jax.{path.name}.more")
        assert not set(more) & set(taught[path.name])
        assert all(hasattr(importlib.import_module(f"rc_jax.{path.name}"), name) for name in more)
