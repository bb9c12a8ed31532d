"""A second process that computes dear figures while the first makes cheap ones; two cores are then both at work.

It only fills the store: whatever it has not finished, or failed at, the run computes itself, with its own errors and
reports. A figure belongs to the process that holds its claim, a locked file, so that none is computed twice. Figures
that measure time (`About.alone`) are left to the run, after this process has ended.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from experiments.figure import Broken, Registry, cost
from rc_jax import _lock

WORTH_MINUTES = 1.0  # below, starting Python and JAX again costs more than it brings


class Helper:
    """The process, or None where a run is too short for one, and the claims of this run."""

    def __init__(self, folder: Path, process: "subprocess.Popen[bytes] | None" = None):
        self.folder, self.process = folder, process

    @property
    def working(self) -> bool:
        """Whether it may still finish a figure."""
        return self.process is not None and self.process.poll() is None

    def claim(self, stem: str) -> IO[str] | None:
        """A figure's claim, to be closed once it is made; None while the other process is at it."""
        return claim(self.folder, stem)

    def stop(self) -> None:
        """End it; what it was at is lost, or goes on from its checkpoints."""
        if self.working and self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def claim(folder: Path, stem: str) -> IO[str] | None:
    """The lock on one figure's result."""
    return _lock.hold(folder / "data" / f".{stem}.claim")


def forget_claims(folder: Path) -> None:
    """Remove the locked files, once nobody is at anything."""
    for path in (folder / "data").glob(".*.claim"):
        path.unlink(missing_ok=True)


@contextmanager
def helper(run: Any, names: Sequence[str], registry: Registry, package: str) -> Iterator[Helper]:
    """Start the process where there is enough for it to do; it ends with the block, however that ends."""
    shared = [name for name in names if not isinstance(registry[name], Broken) and not alone(registry, name)]
    minutes = sum(cost(registry[name], run.preset) for name in shared)
    started = Helper(run.folder)
    if len(shared) > 1 and minutes > WORTH_MINUTES and not run.replot and _two_can_work():
        options = {"out": str(run.out), "preset": run.preset, "seed": run.seed, "checkpoints": run.checkpoints}
        order = json.dumps([package, list(reversed(shared)), options])
        quiet = subprocess.DEVNULL
        command = [sys.executable, "-m", "experiments.ahead", order]
        started.process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        yield started
    finally:
        started.stop()
        forget_claims(run.folder)


def _two_can_work() -> bool:
    """Whether there are locks and cores for two, and no accelerator, whose memory the first process takes."""
    import jax

    return _lock.fcntl is not None and (os.cpu_count() or 1) > 1 and jax.default_backend() == "cpu"


def alone(registry: Registry, name: str) -> bool:
    """Whether nothing else should run beside a figure."""
    figure = registry[name]
    return not isinstance(figure, Broken) and figure.ABOUT.alone


def work(package: str, names: Sequence[str], options: dict[str, Any]) -> None:
    """What the process does: compute and store each figure that nobody has claimed, the dearest first."""
    from experiments import store
    from experiments.figure import load
    from experiments.runner import Run, obtain

    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    run = Run(Path(options["out"]), options["preset"], options["seed"], checkpoints=tuple(options["checkpoints"]))
    for name in names:
        figure = load(name, package)
        if isinstance(figure, Broken):
            continue
        held = claim(run.folder, run.stem(name, figure))
        if held is None:
            return  # the run has come this far: what is left is cheaper, and its own
        try:
            obtain(run, name, figure, store.code_state(figure))
        except Exception:  # the run will meet the same error, and report it
            continue
        finally:
            held.close()


def end_with(parent: int) -> None:
    """End this process when the run that started it has gone without a word."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    work(*json.loads(sys.argv[1]))
