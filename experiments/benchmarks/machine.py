"""The machine and the best it can do, measured here and now."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Roofline:
    """Best rates of this machine, per second, in float32."""

    matmul_flops: float
    normals: float
    exponentials: float
    copied_bytes: float


def describe() -> str:
    """One line: processor, cores, device and the versions that matter."""
    device = jax.devices()[0]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{processor()}, {cores} cores; jax on {len(jax.devices())} x {device.device_kind} ({device.platform}), "
        f"jax {jax.__version__}, Python {platform.python_version()}"
    )


def processor() -> str:
    """The processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def roofline(seconds: float = 1.0) -> Roofline:
    """Measure each rate for about `seconds`: large matrix products, and streams cut to stay in cache."""
    size, rows, block = 1024, 256, 2**14
    square = jnp.ones((size, size))
    product = jax.jit(lambda a: jnp.matmul(a, a, precision="highest"))
    # The sum keeps the numbers from being optimised away and is cheap beside them.
    normal = jax.jit(
        lambda key: jax.lax.map(lambda k: jax.random.normal(k, (block,)).sum(), jax.random.split(key, rows))
    )
    exponential = jax.jit(lambda x: jax.lax.map(lambda row: jnp.exp(row).sum(), x))
    copy = jax.jit(lambda x: x + 1)
    stream, large = jnp.ones((rows, block)), jnp.ones(2**24)
    return Roofline(
        matmul_flops=2 * size**3 / _best(lambda: product(square), seconds),
        normals=rows * block / _best(lambda: normal(jax.random.key(0)), seconds),
        exponentials=rows * block / _best(lambda: exponential(stream), seconds),
        copied_bytes=2 * large.nbytes / _best(lambda: copy(large), seconds),
    )


def _best(call: Callable[[], jax.Array], seconds: float) -> float:
    """The shortest of many calls: what the machine can do when nothing disturbs it."""
    call().block_until_ready()
    shortest, deadline = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        before = time.perf_counter()
        call().block_until_ready()
        shortest = min(shortest, time.perf_counter() - before)
    return shortest
