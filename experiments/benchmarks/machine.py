"""The machine and the best it can do, measured here and now."""

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.counts import Counts
from experiments.running.provenance import cores, processor
from rc_jax.special import normals


@dataclass(frozen=True)
class Roofline:
    """Best rates of this machine, per second, in float32, whoever reaches them; `reached_by` says who, rate by rate."""

    matmul_flops: float
    normals: float
    exponentials: float
    copied_bytes: float
    factorising_flops: float = float("nan")
    reached_by: Mapping[str, str] = field(default_factory=dict)

    def seconds(self, counts: Counts) -> dict[str, float]:
        """The least time that each kind of operation takes at its best rate, one kind after the other."""
        rates = {
            "normals": self.normals,
            "operations": self.matmul_flops,
            "exponentials": self.exponentials,
            "factorising": self.factorising_flops,
        }
        return {kind: getattr(counts, kind) / rate if getattr(counts, kind) else 0.0 for kind, rate in rates.items()}


def describe() -> str:
    """One line: processor, cores, device and the versions that matter."""
    device = jax.devices()[0]
    return (
        f"{processor()}, {cores()} cores; jax on {len(jax.devices())} x {device.device_kind} ({device.platform}), "
        f"jax {jax.__version__}, {_torch()}Python {platform.python_version()}"
    )


def _torch() -> str:
    try:
        import torch
    except ImportError:
        return "no PyTorch, "
    return f"PyTorch {torch.__version__} on {torch.get_num_threads()} threads, "


def roofline(seconds: float = 1.0) -> Roofline:
    """Measure every candidate of each rate for about `seconds`; a rate is that of the best."""
    rates: dict[str, float] = {}
    reached_by: dict[str, str] = {}
    for (kind, name), (work, call) in (_of_jax() | _of_others()).items():
        rate = work / best(call, seconds)
        if rate > rates.get(kind, 0.0):
            rates[kind], reached_by[kind] = rate, name
    return Roofline(**rates, reached_by=reached_by)


Candidates = dict[tuple[str, str], tuple[float, Callable[[], object]]]


def _of_jax() -> Candidates:
    """Large matrix products, streams cut to stay in cache, factorisations of the size of an attention matrix."""
    size, rows, block, small, many = 2048, 256, 2**14, 128, 32
    square = jnp.ones((size, size))
    tall = jax.random.normal(jax.random.key(0), (many, small, small))
    definite = tall @ tall.mT + small * jnp.eye(small)

    # Maxima keep the numbers from being optimised away and are cheap beside them.
    def stream(draw: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        return jax.jit(lambda xs: jax.lax.map(lambda x: jnp.max(draw(x).reshape(-1, 64), axis=0), xs))

    def call(program: Callable[[jax.Array], jax.Array], x: jax.Array) -> Callable[[], object]:
        compiled = jax.jit(program)
        return lambda: compiled(x).block_until_ready()

    keys, numbers, large = jax.random.split(jax.random.key(0), rows), jnp.ones((rows, block)), jnp.ones(2**24)
    scores = jnp.ones((1024, 1024))
    return {
        ("matmul_flops", "JAX"): (2 * size**3, call(lambda a: jnp.matmul(a, a, precision="highest"), square)),
        ("normals", "jax.random.normal"): (
            rows * block,
            call(stream(lambda key: jax.random.normal(key, (block,))), keys),
        ),
        ("normals", "rc_jax.special.normals"): (rows * block, call(stream(lambda key: normals(key, (block,))), keys)),
        ("exponentials", "JAX"): (rows * block, call(stream(jnp.exp), numbers)),
        ("exponentials", "JAX, a row at a time"): (scores.size, call(lambda x: jnp.sum(jnp.exp(x), axis=1), scores)),
        ("copied_bytes", "JAX"): (2 * large.nbytes, call(lambda x: x + 1, large)),
        ("factorising_flops", "JAX, QR"): (many * 4 / 3 * small**3, call(lambda a: jnp.linalg.qr(a, mode="r"), tall)),
        ("factorising_flops", "JAX, Cholesky"): (many / 3 * small**3, call(jnp.linalg.cholesky, definite)),
    }


def _of_others() -> Candidates:
    """The rates that peers depend on, by NumPy, and by PyTorch where it is installed."""
    square = np.ones((2048, 2048), np.float32)
    candidates: Candidates = {("matmul_flops", "NumPy"): (2 * 2048**3, lambda: square @ square)}
    try:
        import torch
    except ImportError:
        return candidates
    tensor, numbers, out = torch.ones(2048, 2048), torch.empty(2**18), torch.empty(2**18)
    return candidates | {
        ("matmul_flops", "PyTorch"): (2 * 2048**3, lambda: tensor @ tensor),
        ("normals", "PyTorch"): (2**18, numbers.normal_),
        ("exponentials", "PyTorch"): (2**18, lambda: torch.exp(numbers, out=out)),
    }


def in_new_process(module: str, *words: str) -> dict[str, float]:
    """The JSON that `python -m module words` prints, without the memory of this process."""
    done = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{module}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


def peak_mebibytes() -> float:
    """The most memory that this process has held; NaN where the system does not tell it.

    Not from `getrusage`: Linux lets a new process begin with the peak of the one that started it.
    """
    return _kibibytes("/proc/self/status", "VmHWM:", float("nan")) / 1024


def added_by(call: Callable[[], object]) -> dict[str, float]:
    """Seconds of one call, the peak of this process and how much of it the call added (MiB)."""
    jax.jit(jnp.sin)(1.0).block_until_ready()
    before, start = peak_mebibytes(), time.perf_counter()
    call()
    return {"seconds": time.perf_counter() - start, "peak": peak_mebibytes(), "added": peak_mebibytes() - before}


def memory_bytes() -> float:
    """Memory that a new array could get; infinity where the system does not tell it."""
    return 1024 * _kibibytes("/proc/meminfo", "MemAvailable:", float("inf"))


def _kibibytes(file: str, name: str, unknown: float) -> float:
    """A number that Linux tells; `unknown` on other systems."""
    path = Path(file)
    lines = (line.split() for line in path.read_text().splitlines()) if path.exists() else ()
    return next((float(words[1]) for words in lines if words[0] == name), unknown)


def best(call: Callable[[], object], seconds: float) -> float:
    """The shortest of many calls: what the machine can do when nothing disturbs it."""
    call()
    shortest, deadline = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        before = time.perf_counter()
        call()
        shortest = min(shortest, time.perf_counter() - before)
    return shortest
