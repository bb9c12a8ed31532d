"""Memory in the number of initialisations: each ensemble in a process of its own, its peak above what was there before.

`python -m experiments.benchmarks.memory WAY COUNT` measures one in this process and prints it as JSON.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from experiments.benchmarks.initialisations import EXACT, WIDTH_FREE, ours
from experiments.benchmarks.machine import Roofline, peak_mebibytes
from experiments.benchmarks.shapes import SMALL
from experiments.benchmarks.table import Table
from rc_jax import ensemble

FACTOR = 200  # initialisations for each one of a benchmark's count: 100 000 by default
WAYS = {"exact": EXACT, "width-free": WIDTH_FREE}


def tables(count: int, machine: Roofline) -> Iterator[Table]:
    """Ten times more initialisations, and no more memory."""
    del machine
    sizes = (FACTOR * count // 10, FACTOR * count)
    rows = [(way, size, *fresh(way, size).values()) for way in WAYS for size in sizes]
    yield Table(
        title=f"Memory of an ensemble, {SMALL.words}, each in a new process",
        columns=("how", "initialisations", "seconds", "peak MiB", "MiB above the process before"),
        rows=tuple((WAYS[str(way)], *rest) for way, *rest in rows),
        note="compilation included; the statistics are means, variances, extremes and quantiles at every depth",
    )


def fresh(way: str, count: int) -> dict[str, float]:
    """What `measure` finds in a new process."""
    command = [sys.executable, "-m", "experiments.benchmarks.memory", way, str(count)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


def measure(way: str, count: int) -> dict[str, float]:
    """Run an ensemble here: seconds, the peak of this process and how much of it the ensemble added (MiB)."""
    fn = ours(SMALL)[WAYS[way]]
    jax.jit(jnp.sin)(1.0).block_until_ready()
    before, start = peak_mebibytes(), time.perf_counter()
    found = ensemble.run(fn, jax.random.key(0), count)
    assert int(found.nonfinite.sum()) == 0
    return {"seconds": time.perf_counter() - start, "peak": peak_mebibytes(), "added": peak_mebibytes() - before}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
