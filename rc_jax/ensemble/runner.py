"""`run`: an ensemble from its key to its samples: the host's steps, then the program that the devices run."""

import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rc_jax._numerics import arguments
from rc_jax._numerics.jax_names import ClosedJaxpr, PyTree, Tracer, jaxpr_as_fun, process_allgather

CHUNK_BYTES = 2**23  # of the samples of one chunk on one device
CHUNK_ROUNDS = 64
CHUNK_SECONDS = 0.5
GENERATOR = "threefry2x32"

Observable = Callable[[jax.Array], PyTree]


class Plan(NamedTuple):
    """Constants of the program: what computes one sample, samples in a batch, the most rounds, and the devices."""

    sample: ClosedJaxpr
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    batch: int
    capacity: int
    mesh: Mesh


def _key(name: str, value: Any) -> None:
    arguments.random_key(name, value)
    if (generator := f"{jax.random.key_impl(value)}") != GENERATOR:
        raise ValueError(
            f"`{name}` must be of the generator {GENERATOR}, because the numbers of others depend on the batch, got "
            f"one of {generator}; jax.random.key(seed, impl={GENERATOR!r}) makes one"
        )


def _devices(name: str, value: Any) -> None:
    own = jax.local_devices()
    if not (isinstance(value, Sequence) and value and all(device in own for device in value)):
        raise ValueError(f"`{name}` must be several of this process's devices, {own}, got {arguments.describe(value)}")
    if len(set(value)) < len(value):
        raise ValueError(f"`{name}` must name each device once, got {list(value)}; `batch_size` gives a device more")


@arguments.guard(fn=arguments.static_function, key=_key, count=arguments.integer(1, 2**32), devices=_devices)
def run(
    fn: Observable,
    key: jax.Array,
    count: int,
    *,
    batch_size: int | None = None,
    devices: Sequence[Any] | None = None,
    progress: bool = False,
) -> PyTree:
    """Samples of `fn` over `count` independent random keys.

    Sample i is `fn(fold_in(key, i))` whatever the batches, devices and processes, so they change nothing but rounding
    inside `fn`. One program is compiled per `fn` and batch size and serves every `count`; pass the same function object
    again (not a new lambda) to reuse it.

    The samples come back as NumPy arrays in float64, whatever their dtype on the device, so that sums over many of them
    lose no digits. A sample that is not finite stays as it is: look for it before you trust a mean.

    The host holds all samples, the devices a few batches. What memory cannot hold is a loop over keys, as in the second
    example.

    After `jax.distributed.initialize` every process computes its share, and all of them return the samples of all: each
    must call `run` with the same arguments, in the same order.

    Args:
        fn: A pure function from one key to a pytree of floating-point arrays. Keys that it makes are Threefry's too.
        key: One typed key, of Threefry (JAX's default).
        count: Number of samples, 1 to 2³².
        batch_size: Samples that one device evaluates at the same time (`jax.vmap`); its peak memory is proportional to
            it. Default: 32 on CPU, where a batch should stay in cache, 256 on an accelerator. Never more than a
            device's share of `count`.
        devices: Devices of this process to share the samples among; it then waits for no other process. Default: all
            devices of all processes.
        progress: Show a bar with the time left on stderr where that is a terminal; of several processes the first shows
            it, of its share.

    Returns:
        The tree of one sample, with leaves (count, …).

    Raises:
        TypeError: `fn` returns anything but floating-point arrays, or `run` is called inside `jit`, `vmap` or `grad` of
            what `key` or `fn` depends on.
        ValueError: `key` is of another generator than Threefry, whose numbers under `jax.vmap` depend on the batch;
            another process runs another ensemble.

    Example:
        >>> import jax, numpy as np
        >>> from rc_jax import ensemble
        >>> key = jax.random.key(0)
        >>> samples = ensemble.run(jax.random.normal, key, 10_000)
        >>> samples.shape, bool(abs(samples.mean()) < 5 * samples.std(ddof=1) / 100)
        ((10000,), True)
        >>> bool(abs(np.quantile(samples, 0.5)) < 0.06)
        True

        More samples than memory holds, reduced on the way:

        >>> total = 0.0
        >>> for block in range(10):
        ...     total += ensemble.run(jax.random.normal, jax.random.fold_in(key, block), 1_000).sum()
        >>> bool(abs(total / 10_000) < 0.05)
        True
    """
    arguments.outside_traces("run", key)
    # Processes have equal shares of the samples, the last ones less, and devices equal shares of a process's.
    processes = jax.process_count() if devices is None else 1
    process = jax.process_index() if processes > 1 else 0
    mesh = Mesh(np.array(jax.local_devices() if devices is None else list(devices)), ("sample",))
    share = -(-count // processes)
    first, stop = min(process * share, count), min((process + 1) * share, count)
    traced = _one.trace(fn, key)
    plan = _plan(traced.jaxpr, traced.out_info, batch_size, -(-share // mesh.size), mesh)
    arrays = _arrays(plan, processes)
    if processes > 1:
        _agree(fn, key, plan, count)

    # The rows of this process's share are filled in order. What is sent to other processes has the devices' dtype.
    rows = [np.zeros((share, *leaf.shape), leaf.dtype if processes > 1 else np.float64) for leaf in plan.leaves]
    with _bar(stop - first, progress) as bar:
        for at, size, chunk in _chunks(arrays, key, plan, first, stop):
            for row, leaf in zip(rows, chunk, strict=True):
                row[at - first : at - first + size] = leaf.reshape(math.prod(leaf.shape[:3]), *leaf.shape[3:])[:size]
            bar.update(size)
    if processes > 1:
        gathered = (np.asarray(process_allgather(row)) for row in rows)
        rows = [row.reshape(-1, *row.shape[2:])[:count].astype(np.float64) for row in gathered]
    return jax.tree.structure(traced.out_info).unflatten(rows)


def _plan(sample: ClosedJaxpr, shape: PyTree, batch_size: int | None, share: int, mesh: Mesh) -> Plan:
    """The program for samples of this shape, of which a device computes `share` in all."""
    leaves = jax.tree.leaves(shape)
    if batch_size is None:
        batch_size = 32 if mesh.devices.flat[0].platform == "cpu" else 256
    batch = min(batch_size, share)
    batch_bytes = batch * sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    capacity = int(np.clip(CHUNK_BYTES // batch_bytes, 1, CHUNK_ROUNDS))
    return Plan(sample, tuple(leaves), batch, capacity, mesh)


def _arrays(plan: Plan, processes: int) -> list[Any]:
    """The arrays that `fn` holds, on the devices: constants of a program would be computed with as it is compiled."""
    arrays = plan.sample.consts
    # What a trace around `run` traces is an input beside the key.
    if len(plan.sample.in_avals) > 1 or any(isinstance(each, Tracer) for each in arrays):
        raise TypeError("`fn` must not use values that are traced by a jit, vmap or grad around `run`")
    is_key = [jnp.issubdtype(each.dtype, jax.dtypes.prng_key) for each in arrays]
    arrays = [each if key else np.asarray(each) for each, key in zip(arrays, is_key, strict=True)]
    return arrays if processes > 1 else jax.device_put(arrays, NamedSharding(plan.mesh, PartitionSpec()))


def _agree(fn: Observable, key: jax.Array, plan: Plan, count: int) -> None:
    """Compare this run with that of the other processes: the function's name, the key, the count and the sample."""
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    leaves = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in plan.leaves)
    words = f"{name} of {np.asarray(jax.random.key_data(key)).tolist()}, {count} samples of {leaves}"
    digest = np.frombuffer(hashlib.sha256(words.encode()).digest(), np.uint32)
    others = np.flatnonzero((np.asarray(process_allgather(digest)) != digest).any(axis=1)).tolist()
    if others:
        raise ValueError(
            f"every process must run the same ensembles in the same order, got {words} in process "
            f"{jax.process_index()} and another in processes {others}"
        )


def _bar(count: int, shown: bool) -> Any:
    from tqdm import tqdm

    silent = not shown or jax.process_index() > 0 or not sys.stderr.isatty()
    return tqdm(total=count, unit=" samples", unit_scale=True, file=sys.stderr, disable=silent, dynamic_ncols=True)


def _chunks(
    arrays: list[Any], key: jax.Array, plan: Plan, start: int, stop: int
) -> Iterator[tuple[int, int, list[np.ndarray]]]:
    """Samples `start` to `stop` in chunks: the number of the first, how many, and the leaves (round, device, batch, …).

    Chunks grow from one round to about `CHUNK_SECONDS`. The next one is handed to the devices before the last one is
    read, so neither waits for the other.
    """
    per_round = plan.batch * plan.mesh.size
    rounds, running, clock = 1, None, time.perf_counter()
    while start < stop or running is not None:
        ahead = None
        if start < stop:
            rounds = min(rounds, -(-(stop - start) // per_round))
            size = min(rounds * per_round, stop - start)
            ahead = start, size, evaluate(arrays, key, start, rounds, plan)
            start += size
        if running is not None:
            at, size, chunk = running
            yield at, size, [np.asarray(leaf) for leaf in chunk]
            now = time.perf_counter()
            if now - clock < CHUNK_SECONDS / 2:
                rounds = min(2 * rounds, plan.capacity)
            clock = now
        running = ahead


def evaluate(arrays: list[Any], key: jax.Array, start: int, rounds: int, plan: Plan) -> list[jax.Array]:
    """Hand the samples from number `start` on to the devices: leaves (capacity, devices, batch, ...), not waited for.

    The first `rounds` entries of the first axis are filled. In row-major order the first three axes count samples, so
    device d of D takes batch r·D + d in round r. `start` and `rounds` are traced: a short last chunk runs the same
    program and stops early.
    """
    return _rounds(arrays, key, np.uint32(start), np.int32(rounds), plan)


@partial(jax.jit, static_argnames="plan")
def _rounds(arrays: list[Any], key: jax.Array, start: Any, rounds: Any, plan: Plan) -> list[jax.Array]:
    """The program: a number of rounds, each one batch per device, drawn where the numbers are used."""
    axes, devices = plan.mesh.axis_names, jnp.uint32(plan.mesh.size)

    def on_device(arrays: list[jax.Array], key: jax.Array, start: jax.Array, rounds: jax.Array) -> list[jax.Array]:
        device = lax.axis_index(axes).astype(jnp.uint32)
        fn = jaxpr_as_fun(ClosedJaxpr(plan.sample.jaxpr, arrays))

        def one_batch(index: jax.Array) -> list[jax.Array]:
            first = start + (index.astype(jnp.uint32) * devices + device) * jnp.uint32(plan.batch)
            samples = first + jnp.arange(plan.batch, dtype=jnp.uint32)
            return jax.vmap(lambda sample: fn(jax.random.fold_in(key, sample)))(samples)

        def step(index: jax.Array, filled: list[jax.Array]) -> list[jax.Array]:
            return [old.at[index, 0].set(new) for old, new in zip(filled, one_batch(index), strict=True)]

        empty = [jnp.zeros((plan.capacity, 1, plan.batch, *leaf.shape), leaf.dtype) for leaf in plan.leaves]
        return lax.fori_loop(jnp.int32(0), rounds, step, empty)

    # Nothing is communicated, and `fn` may well carry constants through its scans: no replication to check.
    mapped = jax.shard_map(
        on_device, mesh=plan.mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(None, axes), check_vma=False
    )
    return mapped(arrays, key, start, rounds)


@partial(jax.jit, static_argnames="fn")
def _one(fn: Observable, key: jax.Array) -> PyTree:
    """One sample, traced once for each function: for its shape, and for the program."""
    sample = fn(key)
    leaves, _ = jax.tree.flatten_with_path(sample)
    for path, leaf in leaves:
        if not jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.floating):
            where = jax.tree_util.keystr(path) or "its result"
            raise TypeError(f"`fn` must return a pytree of floating-point arrays, got {leaf!r:.120} at {where}")
    if not sum(jnp.size(leaf) for _, leaf in leaves):
        raise TypeError(f"`fn` must return a pytree of floating-point arrays, got no number at all: {sample!r:.120}")
    return jax.tree.map(jnp.asarray, sample)
