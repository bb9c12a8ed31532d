"""The second process: it computes what the first has not begun, once, and nothing depends on it."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from experiments import ahead, record
from experiments.command import main
from tests.experiments.conftest import checkpoint

ROOT = pathlib.Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(ahead._lock.fcntl is None, reason="no locks on this system")


@pytest.fixture
def shared(figures, monkeypatch):
    """Made-up figures that a second process can import too, which note who computed them."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(figures.folder), str(ROOT)]))
    return figures


def noting(folder, then=""):
    return f"import os, pathlib, sys, time\nplace = pathlib.Path({str(folder)!r})\n{then}"


def wait_for(figures, name):
    return noting(figures.folder, until(f"{name!r} in pathlib.Path({str(figures.count)!r}).read_text()"))


def until(condition):
    return f"end = time.time() + 180\nwhile not {condition}:\n    assert time.time() < end\n    time.sleep(0.05)"


def run(figures, out):
    return main(["--out", str(out)], figures.package)


def test_dear_figures_are_computed_meanwhile_and_once(shared, tmp_path, capsys):
    shared.add("cheap", compute=wait_for(shared, "dear"), minutes=0.1)  # ends only if another process computes `dear`
    shared.add("dear", minutes=2.0)
    assert run(shared, tmp_path / "out") == 0
    assert sorted(shared.computed) == ["cheap", "dear"]
    entries = record.read(tmp_path / "out" / "quick")
    assert {name: entry.status for name, entry in entries.items()} == {"cheap": "done", "dear": "done"}
    assert not entries["dear"].reused
    assert "dear: computed in" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("*.claim"))


def test_it_gets_the_checkpoints_too(shared, tmp_path):
    shared.add("cheap", compute=wait_for(shared, "dear"), minutes=0.1, reads=True).add("dear", minutes=2.0, reads=True)
    folder = checkpoint(tmp_path / "bert")
    assert main(["--checkpoint", folder, "--out", str(tmp_path / "out")], shared.package) == 0
    assert sorted(shared.computed) == ["cheap", "dear"]
    assert shared.given == [(folder,), (folder,)]


def test_a_process_that_dies_is_not_missed(shared, tmp_path):
    die = noting(shared.folder, "if sys.argv[0].endswith('ahead.py'):\n    (place / 'died').touch()\n    os._exit(3)")
    wait = noting(shared.folder, until("(place / 'died').exists()"))
    shared.add("cheap", compute=wait, minutes=0.1).add("dear", compute=die, minutes=2.0)
    assert run(shared, tmp_path / "out") == 0
    assert sorted(shared.computed) == ["cheap", "dear", "dear"]


def test_an_error_there_is_reported_here(shared, tmp_path, capsys):
    shared.add("cheap", minutes=0.1).add("dear", compute="raise ValueError('no such head')", minutes=2.0)
    assert run(shared, tmp_path / "out") == 1
    entries = record.read(tmp_path / "out" / "quick")
    assert entries["cheap"].status == "done"
    assert "no such head" in entries["dear"].reason


def test_what_measures_time_runs_alone_and_last(shared, tmp_path):
    me = noting(shared.folder, f"assert os.getpid() == {os.getpid()}, 'in the second process'")
    shared.add("clock", compute=me, minutes=0.05).add("cheap", compute=wait_for(shared, "dear"), minutes=0.1)
    shared.add("dear", minutes=2.0)
    path = shared.path / "clock.py"
    text = path.read_text()
    assert text.count("topic=") == 1
    path.write_text(text.replace("topic=", "alone=True, topic="))
    assert run(shared, tmp_path / "out") == 0
    assert shared.computed[-1] == "clock"
    assert len(shared.computed) == 3


def test_a_claimed_figure_is_somebody_elses(tmp_path):
    held = ahead.claim(tmp_path, "one")
    assert held is not None
    assert ahead.claim(tmp_path, "one") is None
    held.close()
    again = ahead.claim(tmp_path, "one")
    assert again is not None
    again.close()


def test_it_ends_with_the_run_however_that_ends(shared, tmp_path):
    pid = noting(shared.folder, "(place / 'pid').write_text(str(os.getpid()))\ntime.sleep(120)")
    shared.add("cheap", compute="import time\ntime.sleep(120)", minutes=0.1).add("dear", compute=pid, minutes=2.0)
    program = f"from experiments.command import main; main(['--out', {str(tmp_path / 'out')!r}], {shared.package!r})"
    first = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL)
    written = shared.folder / "pid"
    deadline = time.time() + 180
    while not (written.exists() and written.read_text()):
        assert time.time() < deadline
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    while pathlib.Path(f"/proc/{written.read_text()}").exists():
        assert time.time() < deadline
        time.sleep(0.1)
