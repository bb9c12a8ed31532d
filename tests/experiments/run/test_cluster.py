"""`--scheduler`: the workers of a dask scheduler compute; one that is killed loses nothing."""

import json
import signal
import socket
import subprocess
import sys
import threading

import pytest

from experiments.command import main
from experiments.run import pool
from tests.experiments.conftest import statuses, until

pytest.importorskip("distributed")


def begin(module, *words, figures):
    environment = figures.environment | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", f"distributed.cli.{module}", *words, "--no-dashboard"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def cluster(figures, tmp_path, monkeypatch):
    """A scheduler on loopback, waited for as long as a busy machine needs, and what starts a worker of it."""
    monkeypatch.setattr(pool, "PATIENCE", 300)
    known = tmp_path / "scheduler.json"
    place = ["--scheduler-file", str(known)]
    here = ["--host", "127.0.0.1"]
    running = [begin("dask_scheduler", *here, "--port", "0", *place, figures=figures)]

    def worker():
        words = [*place, *here, "--nthreads", "1", "--no-nanny", "--local-directory", str(tmp_path / "dask")]
        running.append(begin("dask_worker", *words, figures=figures))
        return running[-1]

    until(lambda: known.exists() and known.read_text().strip().endswith("}"))
    yield json.loads(known.read_text())["address"], worker, running[0]
    for each in running:
        each.kill()
        each.wait()


def test_a_worker_computes_and_this_process_writes(figures, cluster, tmp_path, capsys):
    address, worker, _ = cluster
    process = worker()
    pid = f"(__import__('pathlib').Path({str(tmp_path)!r}) / 'pid').write_text(str(__import__('os').getpid()))"
    figures.add("one", compute=pid, minutes=0.1).add("bad", compute="raise ValueError('no such head')", minutes=0.2)
    out = tmp_path / "out"
    assert main(["--out", str(out), "--scheduler", address], figures.package) == 1
    assert (tmp_path / "pid").read_text() == str(process.pid)
    assert statuses(out / "quick") == {"one": "done", "bad": "failed"}
    assert "bad: ValueError: no such head" in capsys.readouterr().out
    assert not list((out / "quick" / "unfinished").glob("*"))


@pytest.mark.slow
def test_one_of_two_workers_is_killed_and_its_figure_is_computed_again(figures, cluster, tmp_path):
    address, worker, _ = cluster
    marker = tmp_path / "pid"
    wait = f"""import os, pathlib, time
place = pathlib.Path({str(marker)!r})
if not place.exists():
    place.write_text(str(os.getpid()))
    time.sleep(300)"""
    figures.add("hangs", compute=wait, minutes=0.1)
    for number in range(4):
        figures.add(f"figure_{number}", compute="import time\ntime.sleep(0.5)", minutes=0.2)
    workers = {process.pid: process for process in (worker(), worker())}

    out = tmp_path / "out"
    stored = set()

    def kill():
        """Where one figure computes and another is stored: what is stored by then is not computed again."""
        until(lambda: marker.exists() and marker.read_text() and statuses(out / "quick"))
        stored.update(statuses(out / "quick"))
        workers[int(marker.read_text())].send_signal(signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    assert main(["--out", str(out), "--scheduler", address], figures.package) == 0
    thread.join()
    assert [process.poll() for process in workers.values()].count(-signal.SIGKILL) == 1
    assert statuses(out / "quick") == dict.fromkeys(["hangs", *(f"figure_{number}" for number in range(4))], "done")
    assert figures.computed.count("hangs") == 2
    assert stored and "hangs" not in stored
    assert {figures.computed.count(name) for name in stored} == {1}
    assert max(map(figures.computed.count, figures.computed)) == 2
    assert len(list(out.rglob("report.html"))) == 1


# Dask waits for half a minute whether it comes back; these processes need not.
IMPATIENT = """from experiments.run import pool
begin = pool.Cluster.__init__
def begin_and_be_impatient(self, address):
    begin(self, address)
    self.client._timeout = 2
pool.Cluster.__init__ = begin_and_be_impatient"""


@pytest.mark.slow
def test_a_scheduler_that_is_killed_ends_the_run_in_a_line_for_each_figure(figures, cluster, tmp_path):
    address, worker, scheduler = cluster
    worker()
    begun = tmp_path / "begun"
    figures.add("first", minutes=0.1)
    figures.add("second", compute=f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(60)", minutes=0.2)
    figures.add("third", about=", alone=True", minutes=0.3)
    process = figures.process("--out", str(tmp_path / "out"), "--scheduler", address, first=IMPATIENT)
    until(lambda: (begun.exists() and "first" in statuses(tmp_path / "out" / "quick")) or process.poll() is not None)
    scheduler.kill()
    out, err = process.communicate(timeout=600)
    assert process.returncode == 1, err
    assert statuses(tmp_path / "out" / "quick") == {"first": "done", "second": "failed", "third": "failed"}
    assert out.count("the scheduler has gone: run the same command again") == 2, err
    assert "Traceback" not in out + err and "Error" not in err, err


@pytest.mark.parametrize("address", ["localhost", "nonsense://x", "127.0.0.1:1", "tls://127.0.0.1:1"])
def test_an_address_where_no_scheduler_is(figures, tmp_path, capsys, address):
    figures.add("one")
    assert main(["--out", str(tmp_path), "--scheduler", address], figures.package) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"must be the address of a dask scheduler that answers, got {address} (" in err


def test_a_listener_that_says_nothing_is_not_waited_for_long(figures, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pool, "PATIENCE", 0.5)
    figures.add("one")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert main(["--out", str(tmp_path), "--scheduler", address], figures.package) == 2
    assert "(it does not answer)" in capsys.readouterr().err
