"""Devices and real processes on loopback have the samples of one device."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys

import jax
import pytest

from rc_jax import ensemble
from tests.ensemble.worker import digest, observe

ROOT = pathlib.Path(__file__).parent.parent.parent
COUNTS = (1, 5, 1000)


@contextlib.contextmanager
def reserved_port():
    """A port that the system gives to nobody else meanwhile; the coordinator, which knows its number, shares it."""
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        place.bind(("127.0.0.1", 0))
        yield place.getsockname()[1]


def together(processes, devices):
    """What each process says in its last line."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT, "env": environment}
    with reserved_port() as port:
        job = {"address": f"127.0.0.1:{port}", "processes": processes, "counts": COUNTS}
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
    assert all(each.returncode == 0 for each in running), [err[-2000:] for _, err in said]
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


@pytest.mark.parametrize(
    ("processes", "devices"),
    [(1, 4), (2, 1), pytest.param(2, 2, marks=pytest.mark.slow), pytest.param(4, 1, marks=pytest.mark.slow)],
)
def test_devices_and_processes_leave_no_trace(key, processes, devices):
    def alone(count):
        return digest(ensemble.run(observe, key, count, batch_size=8, devices=jax.devices()[:1]))

    expected = {str(count): alone(count) for count in COUNTS}
    for process, said in enumerate(together(processes, devices)):
        assert said["devices"] == processes * devices
        assert {count: said[count] for count in expected} == expected
        assert said["own"] == [100 + process, alone(100 + process)]
        if processes > 1:
            assert said["error"].startswith("every process must run the same ensembles in the same order, got observe")
            assert f"{100 + process} samples of float32[], float32[3] in process {process}" in said["error"]
