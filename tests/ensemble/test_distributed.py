"""Real processes on loopback: the numbers of one, and what is left when one of them is killed."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from rc_jax import ensemble
from rc_jax.ensemble import resume, runner
from rc_jax.ensemble.parts import Partition
from tests.ensemble.worker import digest, observe

ROOT = pathlib.Path(__file__).parent.parent.parent


@contextlib.contextmanager
def reserved_port():
    """A port that the system gives to nobody else meanwhile; the coordinator, which knows its number, shares it."""
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        place.bind(("127.0.0.1", 0))
        yield place.getsockname()[1]


def together(processes, devices=1, **job):
    """What each process says in its last line; None for one that was killed."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT, "env": environment}
    with reserved_port() as port:
        job |= {"address": f"127.0.0.1:{port}", "processes": processes}
        commands = [
            [sys.executable, "-m", "tests.ensemble.worker", json.dumps({**job, "process": process})]
            for process in range(processes)
        ]
        running = [subprocess.Popen(command, **pipes) for command in commands]
        try:
            said = [each.communicate(timeout=600) for each in running]
        finally:
            for each in running:
                each.kill()
    assert all(each.returncode in (0, -signal.SIGKILL) for each in running), [err[-2000:] for _, err in said]
    pairs = zip(running, said, strict=True)
    return [json.loads(out.splitlines()[-1]) if each.returncode == 0 else None for each, (out, _) in pairs]


def alone(key, count):
    return digest(ensemble.run(observe, key, count, batch_size=8, mesh=Mesh(np.array(jax.devices()[:1]), ("sample",))))


@pytest.mark.slow
def test_two_processes_and_one_of_them_killed(key, tmp_path, monkeypatch):
    first, second = together(2, devices=2, counts=[1000], local=True, folder=str(tmp_path), dies=1)
    assert second is None
    assert first["1000"] == alone(key, 1000)
    assert first["local"] == digest(ensemble.run(observe, key, 100))  # a mesh of its own: nobody is waited for
    assert first["error"].startswith("ProcessLost: process 0 of 2 cannot go on: another process has ended")

    # The next run, here by one process with eight devices, takes up what both have finished.
    read, asked = runner._read, []
    monkeypatch.setattr(runner, "_read", lambda chunk, size: asked.append(size) or read(chunk, size))
    partition = Partition.of(3000, 4)
    done = [part for path in tmp_path.rglob("*.npz") for part in resume.parts_of(path.name)]
    assert len(set(done)) == len(done) and partition.parts // 2 < len(done) < partition.parts
    with ensemble.kept(tmp_path):
        shared = digest(ensemble.run(observe, key, 3000, batch_size=8))
    assert sum(asked) < 3000 - 0.9 * len(done) * partition.size
    assert shared == alone(key, 3000)


@pytest.mark.slow
def test_four_processes_and_a_disagreement(key):
    said = together(4, counts=[5, 1000], differ=True)
    for each in said:
        assert {count: each[count] for count in ("5", "1000")} == {str(n): alone(key, n) for n in (5, 1000)}
        assert "every process must run the same ensembles in the same order" in each["error"]
