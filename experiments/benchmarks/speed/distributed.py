"""Devices and processes: one ensemble on more and more of them.

Every process is bound to one core, in turn, so that on a machine with fewer cores than processes some share one: the
ideal is as many times faster as there are cores in use. Each team of processes stays for all rounds and has compiled
before the first.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import jax
import numpy as np

from experiments.benchmarks.contest import Contest
from experiments.benchmarks.machine import cores
from experiments.benchmarks.shapes import SMALL
from experiments.benchmarks.speed.initialisations import EXACT, ours
from rc_jax import ensemble

TEAMS = ((1, 1), (1, 8), (2, 1), (4, 1))  # processes, and virtual devices of each


class Team:
    """Processes that wait for orders, started when the first one comes."""

    def __init__(self, processes: int, devices: int, count: int):
        self.processes, self.devices, self.count = processes, devices, count
        self.running: list[subprocess.Popen[str]] = []

    def __call__(self) -> np.ndarray:
        """Have them run the ensemble once; its means, which must be the same for all."""
        if not self.running:
            self._start()
        for process in self.running:
            print("go", file=process.stdin, flush=True)
        answers = [self._answer(process) for process in self.running]
        assert len(set(answers)) == 1, "processes computed different numbers"
        return np.array(json.loads(answers[0]))

    def stop(self) -> None:
        """End the processes."""
        for process in self.running:
            process.kill()
            process.wait()

    def _start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        flags = f"--xla_force_host_platform_device_count={self.devices}"
        environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        order = [address, str(self.processes), str(self.count)]
        words = [sys.executable, "-m", "experiments.benchmarks.speed.distributed", *order]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.running = [
            subprocess.Popen([*words, str(number)], env=environment, **pipes) for number in range(self.processes)
        ]

    @staticmethod
    def _answer(process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("[") and not line.startswith("[Gloo]"):
                return line
        raise RuntimeError(f"a process ended with status {process.wait()}")


def contests(count: int) -> Iterator[Contest]:
    """The same ensemble by one device, by eight of one process, and by two and four processes."""
    teams = {_words(processes, devices): Team(processes, devices, count) for processes, devices in TEAMS}
    try:
        yield Contest(
            title=f"One ensemble on {cores()} cores, {SMALL.words}, {count} initialisations",
            unit="initialisations/s",
            work=count,
            sides=teams,
            baseline=_words(*TEAMS[0]),
            tolerance=1e-4,
            note="each process is bound to one core, the one with eight devices to none",
        )
    finally:
        for team in teams.values():
            team.stop()


def _words(processes: int, devices: int) -> str:
    return f"{processes} process{'es' if processes > 1 else ''}, {devices} device{'s' if devices > 1 else ''} each"


def work(address: str, processes: int, count: int, process: int) -> None:
    """One process of a team: run the ensemble at every line that comes in."""
    if hasattr(os, "sched_setaffinity") and "count=1" in os.environ["XLA_FLAGS"]:
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[process % len(allowed)]})
    if processes > 1:
        jax.distributed.initialize(address, processes, process, cluster_detection_method="deactivate")
    fn = ours(SMALL)[EXACT]
    for _ in sys.stdin:
        print(json.dumps(ensemble.run(fn, jax.random.key(0), count).mean(axis=0).tolist()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
