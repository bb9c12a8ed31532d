"""Made-up figures, written to a package of their own, so that no real one has to run."""

import ast
import contextlib
import importlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
from concurrent.futures import Executor, Future

import pytest

from experiments.ledger import record
from experiments.run import executors
from experiments.run.report import pictures

TEMPLATE = """
from dataclasses import dataclass
import numpy as np
from experiments import ledger
from experiments.lib import figure, style

ABOUT = figure.About("Title of {name}", "Caption of {name} with <b>&</b>.", "y = x² for {name}",
                     {{"smoke": {minutes}, "quick": {minutes}, "full": 1.0}}, topic="{topic}"{about})

class Spec(figure.Spec):
    points: int = 5
{field}
PRESETS = {{"smoke": Spec(points=3), "quick": Spec(), "full": Spec(points=9)}}

def compute(spec):
    with open({count!r}, "a") as file:
        file.write("{name}\\n")
    with open({given!r}, "a") as file:
        file.write(repr(getattr(spec, "checkpoints", None)) + "\\n")
{compute}
    x = np.arange(1.0, spec.points + 1.0)
    return {{"x": x, "y": x**2 + 0.1 * spec.seed}}

def plot(data):
    drawing, (ax,) = style.figure()
    ax.plot(data["x"], data["y"], color=style.colour("measured"))
    style.labels(ax, "x (points)", "y (units)")
    return drawing

def measure(data):
{measure}
    return ledger.Measured(np.polyfit(np.log(data["x"]), np.log(data["y"]), 1)[0], standard_error=1e-3)

{rows}
"""
ROWS = """ROWS = (
    ledger.published("{name}-exponent", "The exponent of {name} is 2.", measure, (1.9, 2.1), source="dong2021",
                     place="II.4", interval_from="our tolerance"),
)"""
ROOT = pathlib.Path(__file__).parent.parent.parent
_serial = itertools.count()


class Figures:
    """A package of made-up figures, each in a folder of its own.

    `package` is its name and `computed` lists which were computed, in order.

    `given` lists the checkpoints each of those got; only figures added with `reads=True` have a field for them.
    """

    def __init__(self, folder, package):
        self.folder, self.package = folder, package
        self.path = folder / package
        self.path.mkdir()
        (self.path / "__init__.py").write_text("")
        self.count, self.folders = folder / "computed.txt", folder / "given.txt"

    def add(self, name, compute="", measure="", minutes=0.01, *, rows=ROWS, reads=False, topic="collapse", about=""):
        text = TEMPLATE.format(
            name=name,
            minutes=minutes,
            topic=topic,
            about=about,
            count=str(self.count),
            given=str(self.folders),
            field="    checkpoints: tuple[str, ...] = ()\n" if reads else "",
            compute=_indent(compute),
            measure=_indent(measure),
            rows=rows.replace("{name}", name),
        )
        (self.path / name).mkdir(exist_ok=True)
        (self.path / name / "__init__.py").touch()
        (self.path / name / f"{name}.py").write_text(text)
        self.forget()
        return self

    def forget(self):
        """Have the figures imported anew."""
        importlib.invalidate_caches()  # a file added within a tick of the clock changes no time of its folder
        for module in [each for each in sys.modules if each.startswith(self.package)]:
            del sys.modules[module]

    @property
    def environment(self):
        """For other processes, so that they can import the figures too."""
        paths = [str(self.folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}

    def process(self, *words, computes=False, **options):
        """`python -m experiments` on these figures in a process of its own, which `computes` itself or has others.

        It hears signals as one of a terminal does, also where these tests run in the background and hear none.
        """
        heard = "from signal import *; signal(SIGINT, default_int_handler); signal(SIGHUP, SIG_DFL)"
        code = f"{heard}; import sys; from experiments.command import main; sys.exit(main(package={self.package!r}))"
        here = "from experiments.run import executors; from tests.experiments.conftest import Here"
        here += "; executors.Processes = Here"
        code = "\n".join([here * computes, code])
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": self.environment}
        return subprocess.Popen([sys.executable, "-c", code, *words], **pipes, **options)

    @property
    def computed(self):
        return self.count.read_text().split() if self.count.exists() else []

    @property
    def given(self):
        return [ast.literal_eval(line) for line in self.folders.read_text().splitlines()]


def strict_json(text):
    """What strict JSON says: the words NaN and Infinity are none of it."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def statuses(folder):
    """The status of each figure in a folder's ledger."""
    return {name: entry.status for name, entry in record.read(folder).items()}


def until(condition, seconds=600.0):
    """Wait for a condition; it is an error if it does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_ended(process):
    """True where a process runs no more, also where nobody has asked yet how it ended."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return True


def checkpoint(place, weights="weights"):
    """A folder with what is asked of the folder of a checkpoint; no made-up figure loads it."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text("{}")
    (place / "tokenizer.json").write_text("{}")
    (place / "model.safetensors").write_text(weights)
    return str(place)


def _indent(text):
    return "\n".join(f"    {line}" for line in text.splitlines())


class Here(Executor):
    """Computes where it is called: most tests need no other process."""

    slots = 1

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


PROCESSES = executors.Processes


@pytest.fixture(scope="session", autouse=True)
def here():
    """Figures are computed in the process of the test, and drawn with few dots."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executors, "Processes", Here)
        yield


@pytest.fixture
def processes(monkeypatch):
    """Figures are computed by processes, as for a user."""
    monkeypatch.setattr(executors, "Processes", PROCESSES)


@contextlib.contextmanager
def made_up(folder):
    """A package of made-up figures in a folder, drawn with few dots, for as long as the block lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "DPI", 40)
        patch.setattr(pictures, "DRAFT", 40)
        patch.syspath_prepend(str(folder))
        patch.setattr(sys, "dont_write_bytecode", True)  # files are rewritten within a second
        made = Figures(folder, f"made_up_{next(_serial)}")
        yield made
        made.forget()


@pytest.fixture
def figures(tmp_path):
    with made_up(tmp_path) as made:
        yield made


@pytest.fixture
def one_thread():
    """PyTorch on one thread: small matrices need no second, and where others work too, waiting for it takes long."""
    try:
        import torch
    except ImportError:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
