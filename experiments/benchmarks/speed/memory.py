"""Memory in the number of initialisations: each ensemble in a process of its own, its peak above what was there before.

The samples themselves grow with the number: 8 bytes for each of their numbers.

`python -m experiments.benchmarks.speed.memory WAY COUNT` measures one in this process and prints it as JSON.
"""

import json
import sys
from collections.abc import Iterator

import jax
import numpy as np

from experiments.benchmarks.contest import Table
from experiments.benchmarks.machine import added_by, in_new_process
from experiments.benchmarks.shapes import SMALL
from experiments.benchmarks.speed.initialisations import EXACT, WIDTH_FREE, ours
from rc_jax import ensemble

MODULE = "experiments.benchmarks.speed.memory"
FACTOR = 200  # initialisations for each one of a benchmark's count: 100 000 by default
WAYS = {"exact": EXACT, "width-free": WIDTH_FREE}


def tables(count: int) -> Iterator[Table]:
    """Ten times more initialisations, and no more memory than their samples take."""
    sizes = (FACTOR * count // 10, FACTOR * count)
    rows = [(way, size, *in_new_process(MODULE, way, str(size)).values()) for way in WAYS for size in sizes]
    yield Table(
        title=f"Memory of an ensemble, {SMALL.words}, each in a new process",
        columns=("how", "initialisations", "seconds", "peak MiB", "MiB above the process before"),
        rows=tuple((WAYS[str(way)], *rest) for way, *rest in rows),
        note="compilation included; the samples are numbers at every depth, 8 bytes each",
    )


def measure(way: str, count: int) -> dict[str, float]:
    """Run an ensemble here: seconds, the peak of this process and how much of it the ensemble added (MiB)."""

    def run() -> None:
        assert np.isfinite(ensemble.run(ours(SMALL)[WAYS[way]], jax.random.key(0), count)).all()

    return added_by(run)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
