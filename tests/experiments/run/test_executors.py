"""What computes figures: a process for each of them here, or the workers of a dask scheduler."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from experiments.command import main
from experiments.run import executors
from tests.experiments.conftest import PROCESSES, statuses, until


def test_each_call_has_a_process_of_its_own_with_the_environment_of_this_one(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    executor = PROCESSES(2)
    calls = [executor.submit(*call) for call in ((os.getpid,), (os.getpid,), (os.getenv, "OPENBLAS_NUM_THREADS"))]
    one, other, threads = (call.result() for call in calls)
    assert len({os.getpid(), one, other}) == 3 and threads == "1"
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
    assert executor.submit(os.getenv, "OPENBLAS_NUM_THREADS").result() == "4"
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 1, 0).result()
    with pytest.raises(executors.Died):
        executor.submit(os.kill, 0, signal.SIGKILL).result()
    executor.shutdown()


def test_a_run_that_is_left_waits_for_no_process():
    executor = PROCESSES(1)
    calls = [executor.submit(time.sleep, 300) for _ in range(2)]
    until(lambda: executor.running)
    executor.shutdown(wait=False)
    for call in calls:
        assert isinstance(call.exception(timeout=60), executors.Died)
    assert not executor.running


def leave_a_child_in_a_session_of_its_own(file):
    """End by a signal, and leave a process that the end of this one's group does not reach."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
    file.write_text(str(child.pid))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_died_is_told_while_what_it_left_in_another_session_runs(tmp_path):
    """Such a process holds the pipes of its parent: nobody may wait for their end."""
    executor, file = PROCESSES(1), tmp_path / "pid"
    with pytest.raises(executors.Died):
        executor.submit(leave_a_child_in_a_session_of_its_own, file).result(timeout=120)
    child = psutil.Process(int(file.read_text()))
    assert child.status() != psutil.STATUS_ZOMBIE  # it runs, and the figure's failure is known
    child.kill()
    executor.shutdown()


@pytest.mark.parametrize(("plugins", "platforms", "slots"), [([], "", 3), (["gpu"], "", 1), (["gpu"], "cpu", 3)])
def test_one_process_at_a_time_has_an_accelerator(monkeypatch, plugins, platforms, slots):
    monkeypatch.setattr(executors.importlib.metadata, "entry_points", lambda group: plugins)
    monkeypatch.setattr(executors.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(3), raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert executors.most_at_once() == slots


def begin(module, *words, figures):
    command = [sys.executable, "-m", f"distributed.cli.{module}", *words, "--no-dashboard"]
    return subprocess.Popen(command, env=figures.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def cluster(figures, tmp_path, monkeypatch):
    """A scheduler on loopback, waited for as long as a busy machine needs, and what starts a worker of it."""
    pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "PATIENCE", 300)
    known = tmp_path / "scheduler.json"
    place = ["--scheduler-file", str(known)]
    here = ["--host", "127.0.0.1"]
    running = [begin("dask_scheduler", *here, "--port", "0", *place, figures=figures)]

    def worker():
        words = [*place, *here, "--nthreads", "1", "--no-nanny", "--local-directory", str(tmp_path / "dask")]
        running.append(begin("dask_worker", *words, figures=figures))
        return running[-1]

    until(lambda: known.exists() and known.read_text().strip().endswith("}"))
    yield json.loads(known.read_text())["address"], worker
    for each in running:
        each.kill()
        each.wait()


@pytest.mark.slow
def test_one_of_two_workers_is_killed_and_its_figure_is_computed_again(figures, cluster, tmp_path, capsys):
    """A figure that fails there fails here, and what is stored by then is not computed again."""
    address, worker = cluster
    marker, out = tmp_path / "pid", tmp_path / "out"
    wait = f"""import os, pathlib, time
place = pathlib.Path({str(marker)!r})
if not place.exists():
    place.write_text(str(os.getpid()))
    time.sleep(300)"""
    figures.add("hangs", compute=wait, minutes=0.1).add("bad", compute="raise ValueError('no such head')", minutes=0.2)
    for number in range(3):
        figures.add(f"figure_{number}", compute="import time\ntime.sleep(0.5)", minutes=0.3)
    workers = {process.pid: process for process in (worker(), worker())}
    stored = set()

    def kill():
        until(lambda: marker.exists() and marker.read_text() and statuses(out / "quick"))
        stored.update(statuses(out / "quick"))
        workers[int(marker.read_text())].send_signal(signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    assert main(["--out", str(out), "--scheduler", address], figures.package) == 1
    thread.join()
    assert [process.poll() for process in workers.values()].count(-signal.SIGKILL) == 1
    made = dict.fromkeys(["hangs", *(f"figure_{number}" for number in range(3))], "done")
    assert statuses(out / "quick") == {"bad": "failed", **made}
    assert "bad: ValueError: no such head" in capsys.readouterr().out
    assert figures.computed.count("hangs") == 2 and stored and "hangs" not in stored
    assert {figures.computed.count(name) for name in stored - {"bad"}} <= {1}


@pytest.mark.parametrize("address", ["nonsense://x", "127.0.0.1:1", "tls://127.0.0.1:1"])
def test_an_address_where_no_scheduler_is(figures, tmp_path, capsys, monkeypatch, address):
    pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "PATIENCE", 1)
    figures.add("one")
    assert main(["--out", str(tmp_path), "--scheduler", address], figures.package) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"must be the address of a dask scheduler that answers, got {address} (" in err
