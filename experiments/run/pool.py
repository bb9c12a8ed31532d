"""Executors that compute figures: processes of this machine, or the workers of a dask scheduler.

Both are a `concurrent.futures.Executor`; `slots` says how many figures it is given at a time.
"""

import contextlib
import gc
import importlib.metadata
import logging
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from experiments.run import work

MOST_PROCESSES = 8
MANY = 1_000_000
PATIENCE = 15  # seconds in which a scheduler must answer
# One module for LLVM in place of 32: a fifth less processor time of compiling, where every core has a figure of its
# own. An XLA that does not know a flag ends its process, so that only versions get it that are known to know it.
ONE_MODULE, KNOWING = "--xla_cpu_parallel_codegen_split_count=1", ("0.10.",)


class Unreachable(Exception):
    """A scheduler that does not answer, in one line for the user."""


class Processes(Executor):
    """One process for each core, started when first needed, each a pool of its own: a crash is that of one figure."""

    call = staticmethod(work.compute_here)

    def __init__(self) -> None:
        self.calls: dict[ProcessPoolExecutor, Future[Any]] = {}  # the last call of each process
        self.started = set[int]()
        self.asked: Future[int] | None = None

    @property
    def slots(self) -> int:
        """The number of figures at a time: one, until the first process says whether others can work beside it."""
        known = self.asked is not None and self.asked.done() and not self.asked.exception()
        return self.asked.result() if self.asked is not None and known else 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have an idle process call a function; one that has died, at work or idle, is replaced."""
        for pool in [pool for pool, call in self.calls.items() if call.done()]:
            try:
                self.calls[pool] = call = pool.submit(fn, *args, **kwargs)
                return call
            except BrokenProcessPool:
                del self.calls[pool]

        with _no_terminal(), _one_core():  # the process inherits both, and is the run's to end from its first moment
            pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)
            self.asked = self.asked or pool.submit(_processes)
            self.calls[pool] = call = pool.submit(fn, *args, **kwargs)
        self.started |= {process.pid or 0 for process in multiprocessing.active_children()}
        return call

    def look(self) -> None:
        """End what a process that has died left running: it holds the pipe that would tell of the death."""
        alive = {process.pid for process in multiprocessing.active_children()}
        for number in self.started - alive:
            self.started.remove(number)
            if hasattr(os, "killpg"):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(number, signal.SIGKILL)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes, at once where they need not be waited for."""
        if not wait:
            for process in multiprocessing.active_children():
                process.terminate()
        for pool in self.calls:
            pool.shutdown(wait=wait, cancel_futures=cancel_futures)
        self.calls.clear()


@contextmanager
def _no_terminal() -> Iterator[None]:
    """Hear of no Ctrl-C, and of no terminal that is closed, until the block is left, where the system can do that."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker  # where there are such signals

    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        resource_tracker.ensure_running()  # begins with the first process, and lets Ctrl-C through again
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_core() -> Iterator[None]:
    """Have NumPy's and SciPy's BLAS use one thread, where the user says nothing else, until the block is left.

    Their threads wait for each other by counting, which takes the core that another figure works on.
    """
    name = "OPENBLAS_NUM_THREADS"
    given = os.environ.get(name)
    os.environ.setdefault(name, "1")
    try:
        yield
    finally:
        if given is None:
            del os.environ[name]


def _begin() -> None:
    """Prepare a process: the terminal is the run's to hear, and the process ends when the run has, however it ended."""
    for number in filter(None, (signal.SIGINT, getattr(signal, "SIGHUP", None))):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # what it leaves running can be ended with it
    os.environ.setdefault("TQDM_MININTERVAL", "30")  # its bars go to a log
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system's, which a process that is ended leaves
    if importlib.metadata.version("jaxlib").startswith(KNOWING):
        os.environ["XLA_FLAGS"] = f"{ONE_MODULE} {os.environ.get('XLA_FLAGS', '')}"  # the user's come last and count
    gc.set_threshold(50_000, 20, 50)  # a trace makes many objects and hardly any rubbish
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _processes() -> int:
    """The number of processes that can work at a time: one a core; one where one takes the accelerator's memory."""
    import jax

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES) if jax.default_backend() == "cpu" else 1


class Cluster(Executor):
    """The workers of a dask scheduler. The figure of a worker that is lost is computed again by another one.

    Args:
        address: Where the scheduler listens, such as tcp://host:8786.

    Raises:
        ImportError: dask.distributed is not installed.
        Unreachable: nobody answers there.
    """

    slots = MANY

    def __init__(self, address: str):
        from distributed import Client

        for name in ("distributed", "distributed.client", "asyncio"):  # what matters becomes a line of the run's own
            logging.getLogger(name).setLevel(logging.CRITICAL)
        patient = type("Client", (Client,), {"__del__": lambda self: None})  # else one that failed is waited for
        answer: Future[Any] = Future()

        def call() -> None:
            try:
                _listens(address)
                answer.set_result(patient(address, timeout=2 * PATIENCE, set_as_default=False))
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=call, daemon=True).start()  # whoever listens may say nothing, or what is no answer
        error = answer.exception(PATIENCE) if wait([answer], PATIENCE).done else TimeoutError("it does not answer")
        if error is not None:
            raise Unreachable(f"{address} ({str(error) or type(error).__name__})") from None
        self.client: Any = answer.result()
        self.executor = self.client.get_executor(pure=False)
        if not self.client.scheduler_info()["workers"]:
            print(f"the scheduler at {address} has no worker yet; figures wait for one", file=sys.stderr)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a worker call a function; where the scheduler has gone, the call has failed."""
        try:
            return self.executor.submit(fn, *args, **kwargs)
        except Exception as error:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the scheduler, which forgets what was not finished."""
        with contextlib.suppress(Exception):  # it may have gone first
            self.executor.shutdown(wait=wait)
            self.client.close()


def _listens(address: str) -> None:
    """Look whether anybody listens at HOST:PORT, with or without tcp:// before it.

    Raises:
        ValueError: the address is of another form, or of one that takes certificates, which cannot be given.
        OSError: nobody listens.
    """
    parts = re.fullmatch(r"(?:tcp://)?\[?([^/\[\]]+)\]?:(\d+)", address)
    if parts is None:
        raise ValueError("it must be HOST:PORT or tcp://HOST:PORT")
    socket.create_connection((parts[1], int(parts[2])), timeout=PATIENCE).close()
