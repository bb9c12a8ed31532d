"""Memory in the number of initialisations: each ensemble in a process of its own, its peak above what was there before.

`python -m experiments.benchmarks.speed.memory WAY COUNT` measures one in this process and prints it as JSON.
"""

import json
import sys
from collections.abc import Iterator

import jax

from experiments.benchmarks.contest import Table
from experiments.benchmarks.machine import added_by, in_new_process
from experiments.benchmarks.shapes import SMALL
from experiments.benchmarks.speed.initialisations import EXACT, WIDTH_FREE, ours
from rc_jax import ensemble

MODULE = "experiments.benchmarks.speed.memory"
FACTOR = 200  # initialisations for each one of a benchmark's count: 100 000 by default
WAYS = {"exact": EXACT, "width-free": WIDTH_FREE}


def tables(count: int) -> Iterator[Table]:
    """Ten times more initialisations, and no more memory."""
    sizes = (FACTOR * count // 10, FACTOR * count)
    rows = [(way, size, *in_new_process(MODULE, way, str(size)).values()) for way in WAYS for size in sizes]
    yield Table(
        title=f"Memory of an ensemble, {SMALL.words}, each in a new process",
        columns=("how", "initialisations", "seconds", "peak MiB", "MiB above the process before"),
        rows=tuple((WAYS[str(way)], *rest) for way, *rest in rows),
        note="compilation included; the statistics are means, variances, extremes and quantiles at every depth",
    )


def measure(way: str, count: int) -> dict[str, float]:
    """Run an ensemble here: seconds, the peak of this process and how much of it the ensemble added (MiB)."""

    def run() -> None:
        statistics = ensemble.run(ours(SMALL)[WAYS[way]], jax.random.key(0), count)
        assert int(statistics.nonfinite.sum()) == 0

    return added_by(run)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
