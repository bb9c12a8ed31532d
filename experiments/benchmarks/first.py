"""What the first number costs in fresh processes, and cancellation-free arithmetic beside plain arithmetic."""

import dataclasses
import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import jax
import numpy as np

from experiments.benchmarks.contests import EXACT, PLAIN, SEEN, SMALL, Contest, Shape, Table, close, networks, plain
from rc_jax import collapse, network

UNCHECKED = "rc_jax, cancellation-free arithmetic, check=False"
_NETWORK = """
from rc_jax import attention, collapse, network
layer = attention.AttentionSpec(d_model=64, heads=4)
spec = network.StackSpec(attention=layer, depth=12{more})
params = network.init(jax.random.key(0), spec)
x = jax.random.normal(jax.random.key(1), (32, 64))
params, x = jax.block_until_ready((params, x))
"""
_TRANSFORMER = ', skip=True, norm="pre", mlp=network.MLPSpec(width=256, activation="gelu")'
_OWN = """
from rc_jax import attention, network
def mine(scores, seen, parts):
    return jax.nn.softmax(jax.numpy.where(seen, scores, -jax.numpy.inf), axis=-1)
kind = attention.Kind("mine", mine)
attention.AttentionSpec(d_model=16, weights=kind)
"""
# What is called first, and the most processor seconds that it may take.
CALLS: dict[str, tuple[str, float]] = {
    "collapse.log_residuals, 12 layers": (
        _NETWORK.format(more="") + "collapse.log_residuals(params, x, spec).block_until_ready()",
        2,
    ),
    "collapse.log_residuals, a transformer of 12 layers": (
        _NETWORK.format(more=_TRANSFORMER) + "collapse.log_residuals(params, x, spec).block_until_ready()",
        2,
    ),
    "collapse.sample_log_residuals": (
        _NETWORK.format(more="") + "collapse.sample_log_residuals(jax.random.key(0), x, spec).block_until_ready()",
        2,
    ),
    "collapse.layer_bound": (_NETWORK.format(more="") + "collapse.layer_bound(params, x, spec)", 2),
    "scale.optimal_scale": ("from rc_jax import scale; scale.optimal_scale(1024)", 2),
    "scale.optimal_scale_exact": ("from rc_jax import scale; scale.optimal_scale_exact(1024)", 2),
    "scale.typical_scale": ("from rc_jax import scale; scale.typical_scale(jax.random.key(0), 1024)", 2),
    "scale.expected_objective": ("from rc_jax import scale; scale.expected_objective(jax.random.key(0), 1.0, 1024)", 2),
    "scale.gradient_norm": ("from rc_jax import scale; scale.gradient_norm(jax.numpy.arange(8.0), 1.0)", 2),
    "sparsity.from_kernel": ("from rc_jax import sparsity; sparsity.from_kernel(jax.nn.relu, 1.0, 1.0)", 2),
    "sparsity.exponential": ("from rc_jax import sparsity; sparsity.exponential(1.0)", 2),
    "a Kind of one's own in AttentionSpec": (_OWN, 2),
    "study.kind, softmax": ('from rc_jax import study; study.kind("softmax")', 15),
}
COMMANDS: dict[str, float] = {
    "scale 8192 --head-dim 128": 3,
    "collapse": 4,
    "kind softpick": 20,
}


def first_call(count: int) -> Iterator[Table]:
    """Processor seconds to the first number of public functions and commands, each in a process of its own.

    With fewer than 100 in one call, as `--quick` asks, one function and one command are run.
    """
    few = 1 if count < 100 else None
    calls = [(name, _to_first(code), limit) for name, (code, limit) in list(CALLS.items())[:few]]
    commands = [(f"rc-jax {name}", _of_command(name), limit) for name, limit in list(COMMANDS.items())[:few]]
    columns = ("call", "processor s", "wanted")
    yield Table("from `import jax` to the first number, nothing compiled before", columns, calls)
    yield Table("commands, the whole process", columns, commands)


def exact(count: int) -> Iterator[Table | Contest]:
    """Cancellation-free arithmetic beside plain arithmetic: sizes of programs, first calls, and batches."""
    kinds = {"pure attention": "", "pre-norm GELU transformer": _TRANSFORMER}
    rows: list[tuple[str | float, ...]] = []
    for name in kinds:
        spec = dataclasses.replace(SMALL.spec, **({} if name == "pure attention" else _transformer(256)))
        shape = Shape(name, spec, 32, 1)
        calls = (plain_network, functools.partial(_residuals, check=False), functools.partial(_residuals, check=True))
        rows.append((name, *(float(_fusions(call, shape)) for call in calls)))
    yield Table("fusions of a compiled program of 12 layers", ("network", "plain", "check=False", "checked"), rows)
    first = [
        (name, *(_median(_to_first(_NETWORK.format(more=more) + call, inner=True) for _ in range(3)) for call in ENDS))
        for name, more in kinds.items()
    ]
    ratios = [(name, apply, residuals, residuals / apply) for name, apply, residuals in first]
    yield Table("processor s of the first call", ("network", "network.apply", "log_residuals", "ratio"), ratios)
    yield batches(SMALL, count)
    yield batches(Shape("small transformer", dataclasses.replace(SMALL.spec, **_transformer(256)), 32, 1), count // 4)


# The end of a program, behind the mark from which time counts.
ENDS = (
    "#\nnetwork.apply(params, x, spec).block_until_ready()",
    "#\ncollapse.log_residuals(params, x, spec).block_until_ready()",
)


def batches(shape: Shape, count: int) -> Contest:
    """Networks in one call: their weights are drawn in it, and all sides draw the same ones."""
    count, spec, x = max(2, count), shape.spec, shape.input()

    def side(measure: Callable[[network.Layers], jax.Array]) -> Callable[[], np.ndarray]:
        run = jax.jit(jax.vmap(lambda key: measure(network.init(key, spec))))
        return lambda: np.asarray(run(jax.random.split(jax.random.key(0), count)))[:, :SEEN]

    sides = {
        PLAIN: side(lambda params: plain(params, x, spec)),
        UNCHECKED: side(lambda params: collapse.log_residuals(params, x, spec, check=False)),
        EXACT: side(lambda params: collapse.log_residuals(params, x, spec)),
    }
    return Contest(f"weights drawn and measured, {shape.words}", "networks/s", count, sides, close(0.05))


def plain_network(params: network.Layers, x: jax.Array, spec: network.StackSpec) -> jax.Array:
    """The network itself."""
    return network.apply(params, x, spec)


def _residuals(params: network.Layers, x: jax.Array, spec: network.StackSpec, *, check: bool) -> jax.Array:
    return collapse.log_residuals(params, x, spec, check=check)


def _transformer(width: int) -> dict[str, object]:
    return {"skip": True, "norm": "pre", "mlp": network.MLPSpec(width=width, activation="gelu")}


def _fusions(call: Callable[..., jax.Array], shape: Shape) -> int:
    params = jax.tree.map(lambda leaf: leaf[0], networks(shape, 1))
    compiled = jax.jit(lambda params, x: call(params, x, shape.spec)).lower(params, shape.input()).compile()
    return len(re.findall(r" fusion\(", compiled.as_text() or ""))


def _median(values: Iterator[float]) -> float:
    return float(np.median(list(values)))


def _to_first(code: str, *, inner: bool = False) -> float:
    """Processor seconds of a program in a fresh process, from `import jax` on, or with `inner` from the mark # on."""
    start = "import time, jax\nbefore = time.process_time()\n"
    body = code.replace("#\n", "before = time.process_time()\n") if inner else code
    end = "\nprint('seconds', time.process_time() - before)"
    out = _run([sys.executable, "-c", start + body + end])
    return float(out.rpartition("seconds ")[2])


def _of_command(line: str) -> float:
    """Processor seconds of `rc-jax LINE`, children included."""
    before = _of_children()
    _run([sys.executable, "-c", "import sys; from rc_jax.cli.command import main; sys.exit(main())", *line.split()])
    return _of_children() - before


def _of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _run(command: list[str]) -> str:
    """The output of a process that finds no compiled program of an earlier one.

    Raises:
        RuntimeError: it failed; with its last line.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")}
    done = subprocess.run(command, capture_output=True, text=True, env=kept, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[-1][:60]!r} failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


BENCHMARKS: dict[str, Callable[[int], Iterator[Contest | Table]]] = {"exact": exact, "first_call": first_call}
