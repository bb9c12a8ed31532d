"""The benchmark for an accelerator; it runs on a CPU too.

Best rates by precision, how far each precision is from float64, what bounds each kernel (operations or bytes), and how
many networks fit at once. Rates are those of JAX's default device.
"""

import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from experiments.benchmarks import machine as host
from experiments.benchmarks.contest import Table
from experiments.benchmarks.devices import precision
from experiments.benchmarks.devices.precision import Kind
from experiments.benchmarks.devices.quantities import ABSOLUTE, Quantity
from experiments.benchmarks.shapes import BASE, SMALL, Shape
from rc_jax import collapse, network
from rc_jax.attention import Precision

# What a precision of matrix products means is the device's: `default` is TF32 on NVIDIA's recent GPUs and one bfloat16
# pass on TPUs; a CPU computes all three of float32 alike.
PRECISIONS = {
    "float32, highest": Kind(jnp.float32),
    "float32, high": Kind(jnp.float32, "high"),
    "float32, default": Kind(jnp.float32, "default"),
    "bfloat16": Kind(jnp.bfloat16, "default"),
}
SECONDS = 0.5  # for each rate
FULL = 512  # the benchmarks' default count; with fewer, everything here is smaller


def tables(count: int) -> Iterator[Table]:
    """All four tables."""
    full, device = count >= FULL, jax.devices()[0]
    size = (2048 if device.platform == "cpu" else 8192) if full else 128
    rates, copied = matmul_rates(size), copy_rate(2**24 if full else 2**16)
    yield Table(
        title=f"Best rates on {device.device_kind}, products of {size} x {size} matrices",
        columns=("what", "per second"),
        rows=(*((f"operations, {name}", rate) for name, rate in rates.items()), ("bytes copied", copied)),
    )
    shapes = (SMALL, BASE) if full else (SMALL,)
    measures = {"tokens after one layer": one_layer}
    if full:  # slow to compile
        measures["log-residuals of 3 layers, nats"] = collapse.log_residuals
    yield Table(
        title="Distance from float64, the largest over all numbers",
        columns=("shape", "precision", *measures),
        rows=tuple(
            (shape.name, name, *(distance(measure, shape, kind) for measure in measures.values()))
            for shape in shapes
            for name, kind in PRECISIONS.items()
        ),
        note="the same rounded weights and tokens on both sides; tokens in units of their root mean square",
    )
    yield Table(
        title="What bounds each kernel, one layer of a batch of networks, float32, highest",
        columns=("kernel", "networks", "ms", "ms of operations", "ms of bytes", "bound by", "of the bound"),
        rows=tuple(
            bound(name, make, batch if full else 2, rates["float32, highest"], copied)
            for shape, batch in zip(shapes, (256, 8), strict=False)
            for name, make in list(kernels(shape).items())[: None if full else 2]
        ),
        note="operations and bytes as XLA counts them, at the best rates above; bytes that stay in a cache are faster",
    )
    yield Table(
        title=f"Largest batch, weights drawn, plain arithmetic, {SMALL.words}",
        columns=("networks at once", "MiB", "initialisations/s"),
        rows=tuple(growing(SMALL, most=(2**10 if device.platform == "cpu" else 2**18) if full else 4)),
        note="until the device's memory or a call of 5 s; on a CPU 1 024",
    )


def matmul_rates(size: int) -> dict[str, float]:
    """Operations per second of a large square product in every precision."""

    def rate(kind: Kind) -> float:
        square = jnp.ones((size, size), kind.dtype)
        product = jax.jit(lambda a: jnp.matmul(a, a, precision=kind.precision))
        return 2 * size**3 / _best(lambda: product(square))

    return {name: rate(kind) for name, kind in PRECISIONS.items()}


def copy_rate(size: int) -> float:
    """Bytes read and written per second when an array that fits in no cache is copied."""
    large, copy = jnp.ones(size), jax.jit(lambda x: x + 1)
    return 2 * large.nbytes / _best(lambda: copy(large))


def one_layer(params: network.LayerParams, x: jax.Array, spec: network.StackSpec) -> jax.Array:
    """The tokens after the first layer, divided by the size of a typical number."""
    out = network.hidden_states(params, x, spec)[1]
    return out / jnp.sqrt(jnp.mean(jnp.square(out)))


def distance(
    measure: Callable[[network.LayerParams, jax.Array, network.StackSpec], jax.Array], shape: Shape, kind: Kind
) -> float:
    """The largest distance of what is measured on a network of 3 layers from float64 on the host."""

    def measured(inputs: tuple[network.LayerParams, jax.Array], products: Precision) -> jax.Array:
        layer = dataclasses.replace(shape.spec.attention, precision=products)
        return measure(*inputs, network.StackSpec(attention=layer, depth=3))

    spec = dataclasses.replace(shape.spec, depth=3)
    inputs = network.init(jax.random.key(0), spec, dtype=kind.dtype), shape.input().astype(kind.dtype)
    return precision.distance(Quantity("", ABSOLUTE, inputs, measured), kind)


def kernels(shape: Shape) -> dict[str, Callable[[jax.Array], jax.Array]]:
    """One layer, its weights drawn on the way, of one network; a function of its key."""
    x, spec = shape.input(), dataclasses.replace(shape.spec, depth=1)
    return {
        f"{shape.name}: weights drawn": lambda key: network.init(key, spec).attention.output,
        f"{shape.name}: apply": lambda key: network.apply(network.random_layers(key, spec), x, spec),
        f"{shape.name}: log_residuals": lambda key: collapse.log_residuals(network.random_layers(key, spec), x, spec),
        f"{shape.name}: sample_log_residuals": lambda key: collapse.sample_log_residuals(key, x, spec),
    }


def bound(
    name: str, kernel: Callable[[jax.Array], jax.Array], batch: int, flops: float, copied: float
) -> tuple[str | int | float, ...]:
    """A kernel's time beside the least that its operations and its bytes would take."""
    program = jax.jit(jax.vmap(kernel)).lower(jax.random.split(jax.random.key(0), batch)).compile()
    keys = jax.random.split(jax.random.key(1), batch)
    counted = program.cost_analysis() or {}
    operations, moved = counted.get("flops", 0.0) / flops, counted.get("bytes accessed", 0.0) / copied
    taken = _best(lambda: program(keys))
    kind = "operations" if operations > moved else "bytes"
    return name, batch, 1e3 * taken, 1e3 * operations, 1e3 * moved, kind, max(operations, moved) / taken


def growing(shape: Shape, most: int, seconds: float = 5.0) -> Iterator[tuple[int, float, float]]:
    """Batches four times as large each, until one does not fit or takes too long."""
    x, spec, batch = shape.input(), shape.spec, 1
    run = jax.jit(jax.vmap(lambda key: network.apply(network.random_layers(key, spec), x, spec)))
    while batch <= most:
        keys = jax.random.split(jax.random.key(0), batch)
        program = run.lower(keys).compile()
        memory = program.memory_analysis()
        needed = memory.temp_size_in_bytes + memory.output_size_in_bytes if memory is not None else 0
        if needed > _free() / 2:
            return
        try:
            taken = _best(lambda program=program, keys=keys: program(keys))
        except jax.errors.JaxRuntimeError:  # the device has no more memory
            return
        yield batch, needed / 2**20, batch / taken
        if taken > seconds:
            return
        batch *= 4


def _free() -> float:
    """Bytes that the default device has, or this machine where the device does not tell."""
    stats = jax.devices()[0].memory_stats() or {}
    return float(stats["bytes_limit"]) if "bytes_limit" in stats else host.memory_bytes()


def _best(call: Callable[[], jax.Array]) -> float:
    return host.best(lambda: jax.block_until_ready(call()), SECONDS)
