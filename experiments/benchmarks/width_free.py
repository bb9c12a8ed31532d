"""Collapse at any width: in coordinates against drawing every weight, and the shape of GPT-3."""

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from experiments.benchmarks.contest import Contest
from experiments.benchmarks.machine import Roofline
from rc_jax import attention, collapse, ensemble, network

TOKENS = 32
SPEC = network.StackSpec(attention=attention.AttentionSpec(d_model=512, heads=8), depth=12)
LARGE_TOKENS, LARGE_DEPTH = 128, 96
LARGE = attention.AttentionSpec(d_model=12_288, heads=96)
AGREED = 2  # depths compared: equal in law, so their means agree to a standard error


def contests(count: int, machine: Roofline) -> list[Contest]:
    """One width where both ways can be taken; twelve layers of the shape of GPT-3, for which there is one."""
    del machine
    draws = max(16, count // 16)
    x = jax.random.normal(jax.random.key(1), (TOKENS, SPEC.attention.d_model))

    def drawn(key: jax.Array) -> jax.Array:
        return collapse.log_residuals(network.random_layers(key, SPEC), x, SPEC)

    def side(sample: Callable[[jax.Array], jax.Array]) -> Callable[[], np.ndarray]:
        return lambda: ensemble.run(sample, jax.random.key(0), draws).mean[:AGREED]

    twelve = network.StackSpec(attention=LARGE, depth=12)
    wide = jax.random.normal(jax.random.key(1), (LARGE_TOKENS, LARGE.d_model))
    return [
        Contest(
            title=f"Collapse at d={SPEC.attention.d_model}, H={SPEC.attention.heads}, L={SPEC.depth}, n={TOKENS}",
            unit="initialisations/s",
            work=draws,
            sides={
                "weights drawn: log_residuals": side(drawn),
                "in coordinates: sample_log_residuals": side(
                    functools.partial(collapse.sample_log_residuals, x=x, spec=SPEC)
                ),
            },
            baseline="weights drawn: log_residuals",
            tolerance=0.03,
        ),
        Contest(
            title=f"Collapse at d={LARGE.d_model}, H={LARGE.heads}, L={twelve.depth}, n={LARGE_TOKENS}",
            unit="layers/s",
            work=twelve.depth,
            sides={
                "in coordinates: sample_log_residuals": lambda: np.asarray(
                    collapse.sample_log_residuals(jax.random.key(0), wide, twelve)
                )
            },
            baseline="in coordinates: sample_log_residuals",
            tolerance=1e-6,
            note=_in_words(fresh()),
        ),
    ]


def fresh() -> dict[str, float]:
    """What `measure` finds in a new process."""
    command = [sys.executable, "-m", "experiments.benchmarks.width_free"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measure() -> dict[str, float]:
    """One initialisation with skips, all 96 layers, in this process: seconds, processor seconds and peak MiB."""
    x = jax.random.normal(jax.random.key(1), (LARGE_TOKENS, LARGE.d_model)).block_until_ready()
    spec = network.StackSpec(attention=LARGE, depth=LARGE_DEPTH, skip=True)
    found = {"before": peak_mebibytes(), "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")}
    for call, seed in (("first", 0), ("second", 1)):
        wall, processor = time.perf_counter(), time.process_time()
        logs = collapse.sample_log_residuals(jax.random.key(seed), x, spec).block_until_ready()
        found |= {call: time.perf_counter() - wall, f"{call}_processor": time.process_time() - processor}
        assert np.all(np.isfinite(logs))
    return found | {"peak": peak_mebibytes()}


def peak_mebibytes() -> float:
    """The most memory that this process has held; NaN where the system does not tell it.

    Not from `getrusage`: Linux lets a new process begin with the peak of the one that started it.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    lines = (line.split() for line in status.read_text().splitlines())
    return next(int(words[1]) / 1024 for words in lines if words[0] == "VmHWM:")


def _in_words(found: dict[str, float]) -> str:
    return (
        f"all {LARGE_DEPTH} layers with skips in a new process: {found['first']:.1f} s with compilation "
        f"({found['first_processor']:.1f} s of processor time), then {found['second']:.1f} s "
        f"({found['second_processor']:.1f} s) an initialisation; peak {found['peak']:.0f} MiB, "
        f"{found['peak'] - found['before']:.0f} MiB above the process with its input; load {found['load']:.1f}"
    )


if __name__ == "__main__":
    print(json.dumps(measure()))
