"""One of several processes that make figures together: a worker, and a supervisor that says what became of it.

JAX ends a process from within, with pages of its own, when the one that coordinates has gone. So the work is done in a
process of its own whose parent waits, and tells in one line that another process was lost. What libraries write past
Python goes to `logs/process-I.log`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rc_jax.cli.shell import LOST

if TYPE_CHECKING:
    from experiments.command import Arguments

WAIT = 7 * 24 * 3600  # seconds that a process which has nothing left to do waits for the others


def supervise(package: str, argv: Sequence[str]) -> int:
    """Start the worker, pass signals on, and return its exit status, or `LOST` where another process was lost."""
    command = [sys.executable, "-m", "experiments.distributed", json.dumps([package, list(argv)])]
    worker = subprocess.Popen(command)
    previous = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),  # a terminal sends it to the worker too
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, _: worker.send_signal(number)),
    }
    try:
        status = worker.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if status in (LOST, -signal.SIGABRT):
        print(
            "experiments: error: stopped, because another process of this run has ended or does not answer; what is "
            "finished is kept: start all processes again with the same commands",
            file=sys.stderr,
        )
        return LOST
    return status if status >= 0 else 128 - status


def work(package: str, argv: Sequence[str]) -> int:
    """What the worker does: join the others, then make figures (process 0) or help (every other one)."""
    from experiments.ahead import end_with

    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    from experiments import command, figure, team
    from experiments.runner import Run
    from rc_jax.ensemble import ProcessLost

    arguments = command.parse(argv)
    choices = Run(
        arguments.out, arguments.preset, arguments.seed, checkpoints=arguments.checkpoint, quiet=arguments.quiet
    )
    try:
        process = join(arguments, choices.folder / "logs")
        if process == 0:
            return command.run(arguments, package, team.Team)
        registry = figure.discover(package, arguments.preset)
        team.follow(choices, command.chosen(choices, arguments.name, registry), registry)
        return 0
    except command.Usage as error:
        print(f"experiments: error: {error}", file=sys.stderr)
        return 2
    except ProcessLost:
        return LOST


def join(arguments: "Arguments", logs: Path) -> int:
    """Find the other processes, connect, and return the number of this one.

    Raises:
        Usage: no launcher was recognised, and none of the options says who the others are.
    """
    import jax

    from experiments.command import Usage
    from rc_jax.ensemble.processes import exchange

    named = {
        "coordinator_address": arguments.coordinator,
        "num_processes": arguments.processes,
        "process_id": arguments.process,
        "cluster_detection_method": "deactivate",
    }
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
    try:
        jax.distributed.initialize(
            **(named if arguments.coordinator else {}),
            heartbeat_timeout_seconds=arguments.patience,
            shutdown_timeout_seconds=WAIT,
        )
    except ValueError as error:
        raise Usage(
            f"no launcher was recognised ({error}): give `--coordinator`, `--processes` and `--process`"
        ) from error
    _quiet(logs / f"process-{jax.process_index()}.log")
    exchange(b"")  # connections are made while all are there
    return jax.process_index()


def _quiet(log: Path) -> None:
    """Send what is written past Python to a file; Python goes on writing where it did."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        for number, name in ((1, "stdout"), (2, "stderr")):
            stream = getattr(sys, name)
            stream.flush()
            own = os.fdopen(os.dup(number), "w", buffering=1, encoding=stream.encoding, errors="replace")
            setattr(sys, name, own)
            os.dup2(file.fileno(), number)


def finish(status: int) -> None:
    """End this process: after all others are through, or at once where one of them is lost or a signal came."""
    import jax

    sys.stdout.flush()
    sys.stderr.flush()
    if status in (0, 1):
        jax.distributed.shutdown()
    os._exit(status)


if __name__ == "__main__":
    finish(work(*json.loads(sys.argv[1])))
