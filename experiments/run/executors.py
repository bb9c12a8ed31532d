"""Executors of calls (`concurrent.futures`): a process for each call here, or the workers of a dask scheduler.

A figure is one call. `slots`, where an executor has it, says how many calls are given to it at a time.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

MOST = 8
PATIENCE = 15  # seconds in which a scheduler must answer
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # threads wait by counting, which takes the core that another figure works on
    "TQDM_MININTERVAL": "30",  # bars go to a log
}


class Died(Exception):
    """A process that ended without an answer."""


class Unreachable(Exception):
    """A scheduler that does not answer, in one line for the user."""


class Processes(ThreadPoolExecutor):
    """Makes each call in a new process of its own: a crash is that of one call, and what a call does to it stays there.

    A thread waits for each process. The process ends when this one has ended, however that came, and with a process
    ends all that it left running.
    """

    apart = True

    def __init__(self, slots: int | None = None) -> None:
        self.slots = slots or most_at_once()
        super().__init__(self.slots)
        self.running = set[subprocess.Popen[bytes]]()
        self.lock, self.ended = threading.Lock(), False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function in a process of its own.

        The future raises `Died` where the process ended without an answer.
        """
        return super().submit(self._call, fn, args, kwargs)

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "answer"
            with self.lock:
                if self.ended:
                    raise Died("the run has ended")
                process = subprocess.Popen(
                    [sys.executable, "-m", "experiments.run.process", str(answer)],
                    env={**ENVIRONMENT, **os.environ, "PYTHONPATH": _path()},
                    stdin=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C of a terminal is for the run to hear
                )
                self.running.add(process)
            assert process.stdin is not None
            try:
                with contextlib.suppress(BrokenPipeError):  # it has died already
                    process.stdin.write(pickle.dumps((fn, args, kwargs)))
                    process.stdin.flush()  # and the pipe stays open: its end tells the process that the run has ended
                status = process.wait()
            finally:
                self.running.discard(process)
                end(process)
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            if not answer.exists():
                raise Died(f"exit status {status}")
            result, error = pickle.loads(answer.read_bytes())
        if error is not None:
            raise error
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes, at once where they need not be waited for."""
        if not wait:
            with self.lock:
                self.ended = True
                for process in list(self.running):
                    end(process)
        super().shutdown(wait=wait, cancel_futures=cancel_futures)


def _path() -> str:
    """Where the process finds modules, as this one does."""
    return os.pathsep.join(place or os.getcwd() for place in sys.path)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it left running."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def most_at_once() -> int:
    """One call for each core, eight at most; one where a process takes an accelerator's memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # JAX finds accelerators by plugins. To ask JAX itself would take their memory here.
    plugins = importlib.metadata.entry_points(group="jax_plugins") or importlib.util.find_spec("libtpu")
    return 1 if plugins and os.environ.get("JAX_PLATFORMS") != "cpu" else min(cores, MOST)


def cluster(address: str) -> Executor:
    """The workers of a dask scheduler. The call of a worker that is lost is made again by another one.

    Args:
        address: Where the scheduler listens, such as tcp://host:8786.

    Raises:
        ImportError: dask.distributed is not installed.
        Unreachable: nobody answers there.
    """
    import logging

    from distributed import Client

    for name in ("distributed", "distributed.client", "asyncio"):  # what matters becomes a line of the run's own
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise Unreachable(f"{address} ({str(error).splitlines()[0] if str(error) else type(error).__name__})") from None
    if not client.scheduler_info()["workers"]:
        print(f"the scheduler at {address} has no worker yet; figures wait for one", file=sys.stderr)
    return client.get_executor(pure=False)
