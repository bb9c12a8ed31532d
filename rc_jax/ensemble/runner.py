"""`run`: an ensemble from its key to its statistics: the host's steps, then the program that the devices run."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Float

from rc_jax._numerics import arguments, performance
from rc_jax._numerics.jax_names import PyTree, Tracer
from rc_jax.ensemble import multiprocess, parts, resume, summaries
from rc_jax.ensemble.parts import Partition
from rc_jax.ensemble.statistics import Layout, Statistics

CHUNK_BYTES = 2**23  # observables of one chunk on one device
CHUNK_ROUNDS = 64
CHUNK_SECONDS = 0.5

Observable = Callable[[jax.Array], PyTree]


class Plan(NamedTuple):
    """Constants of the program: the shape of one sample, samples in a batch, the most rounds, and the devices."""

    tree: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    batch: int
    capacity: int
    mesh: Mesh


def _observable(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"`{name}` must be a function of one key, got {arguments.describe(value)}")
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"`{name}` must be hashable, so that its compiled program is found again, got {value!r}"
        ) from None


def _count(name: str, value: Any) -> None:
    arguments.integer(1)(name, value)
    if value > 2**32:
        raise ValueError(
            f"`{name}` must be an integer <= 2**32, the number of keys that fold_in tells apart, got {value}"
        )


@arguments.guard(
    fn=_observable,
    key=arguments.random_key,
    count=_count,
    batch_size=arguments.integer(1),
    mesh=multiprocess.check_mesh,
)
def run(
    fn: Observable,
    key: jax.Array,
    count: int,
    *,
    batch_size: int | None = None,
    mesh: Mesh | None = None,
    progress: bool = False,
) -> Statistics:
    """Statistics of `fn` over `count` independent random keys, in memory that does not grow with `count`.

    Sample i is `fn(fold_in(key, i))` whatever the batches, chunks, devices and processes, so they change nothing but
    rounding inside `fn`. The statistics themselves are kept on the host in float64 and are bit for bit the same for the
    same samples. One program is compiled per `fn` and batch size and serves every `count`; pass the same function
    object again (not a new lambda) to reuse it.

    After `jax.distributed.initialize` every process computes its share, and all of them return the statistics of the
    whole: each must call `run` with the same arguments, in the same order. What travels is statistics, never samples.
    `kept` lets finished parts outlive a process that is killed.

    Args:
        fn: A pure function from one key to a pytree of floating-point arrays, of a few thousand numbers at most: each
            number costs up to 256 KiB of quantile bins.
        key: One typed key, of Threefry (JAX's default): under `jax.vmap` other generators' numbers depend on the batch.
        count: Number of samples, 1 to 2³².
        batch_size: Samples that one device evaluates at the same time (`jax.vmap`); peak memory is proportional to it.
            Default: 32 on CPU, where a batch should stay in cache, 256 on an accelerator. Never more than a device's
            share of `count`.
        mesh: Devices to share the samples among, all its axes alike: those of this process only, which then computes
            for itself, or of every process. Default: all devices of all processes.
        progress: Show a bar with the time left on stderr where that is a terminal; of several processes the first shows
            it, of its share.

    Returns:
        Mean, variance, standard error, range, quantiles and the number of non-finite samples of every component.

    Raises:
        TypeError: `key` is not a typed key, `fn` is not a hashable function or returns anything but floating-point
            arrays, `count` or `batch_size` is not an integer, or `run` is called inside `jit`, `vmap` or `grad` of
            what `key` or `fn` depends on.
        ValueError: `count` or `batch_size` is less than 1, `count` is above 2³², `mesh` reaches into some other
            processes but not all, or another process runs another ensemble.
        ProcessLost: another process has ended or does not answer.

    Example:
        >>> import jax
        >>> from rc_jax import ensemble
        >>> stats = ensemble.run(jax.random.normal, jax.random.key(0), 10_000)
        >>> bool(abs(stats.mean) < 5 * stats.standard_error), bool(abs(stats.quantile(0.5)) < 0.06)
        (True, True)
        >>> int(stats.nonfinite)
        0
    """
    if isinstance(jax.random.key_data(key), Tracer):
        raise TypeError("`run` must be called outside jit, vmap and grad, as it reads samples on the host, got a trace")
    # What is compiled: one batch per device and round. The parts that the samples are divided into.
    mesh, weights = multiprocess.placed(mesh)
    sample = _one.eval_shape(fn, key)
    plan = _plan(sample, batch_size, -(-count // sum(weights)), mesh)
    components = sum(leaf.size for leaf in plan.leaves)
    partition = Partition.of(count, components)

    # Parts on disk are used first. The processes share the others in proportion to their devices.
    identity, process = _identity(fn, key, plan, count), jax.process_index()
    together = np.count_nonzero(weights) > 1
    files = resume.part_files(lambda: f"{identity} {_one.lower(fn, key).as_text()}")
    available = multiprocess.agree(identity, files.names()) if together else [[]] * process + [files.names()]
    chosen, missing = resume.choose(available, partition.parts)
    stored = [files.load(name) for name, owner in chosen.items() if owner == process]
    pieces = [piece for piece in stored if piece is not None]

    # The missing parts are computed, reduced and stored on the way.
    ranges = parts.missing_ranges(missing, weights, process)
    samples = [partition.samples(first, stop) for first, stop in ranges]
    with _bar(sum(stop - start for start, stop in samples), progress) as bar:
        for (first, _), (start, stop) in zip(ranges, samples, strict=True):
            chunks = _chunks(fn, key, plan, start, stop, bar)
            for piece in parts.reduce(chunks, partition, first, components, files.due):
                pieces.append(piece)
                if files.due():
                    files.save(piece)

    # All parts of all processes are merged in their order.
    limit = summaries.capacity(components)
    own = parts.join(pieces, components, limit)
    merged = parts.whole(multiprocess.gather(own, limit) if together else own, partition)
    return Statistics(count, Layout.of(sample), *merged)


def _plan(sample: PyTree, batch_size: int | None, share: int, mesh: Mesh) -> Plan:
    """The program for samples of this shape, of which a device computes `share` in all."""
    leaves, tree = jax.tree.flatten(sample)
    if batch_size is None:
        batch_size = 32 if mesh.devices.flat[0].platform == "cpu" else 256
    batch = min(batch_size, share)
    batch_bytes = batch * sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    capacity = int(np.clip(CHUNK_BYTES // batch_bytes, 1, CHUNK_ROUNDS))
    return Plan(tree, tuple(leaves), batch, capacity, mesh)


def _identity(fn: Observable, key: jax.Array, plan: Plan, count: int) -> str:
    """The run in words, the same in every process: the function's name, the key, the count and the sample."""
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    words = np.asarray(jax.random.key_data(key)).ravel().tolist()
    leaves = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in plan.leaves)
    return f"{name} of {jax.random.key_impl(key)} {words}, {count} samples of {leaves}"


def _bar(count: int, shown: bool) -> Any:
    from tqdm import tqdm

    silent = not shown or jax.process_index() > 0 or not sys.stderr.isatty()
    return tqdm(total=count, unit=" samples", unit_scale=True, file=sys.stderr, disable=silent, dynamic_ncols=True)


def _chunks(
    fn: Observable, key: jax.Array, plan: Plan, start: int, stop: int, bar: Any
) -> Iterator[Float[np.ndarray, "sample component"]]:
    """Samples `start` to `stop` in order, in chunks that grow from one round to about `CHUNK_SECONDS`, without padding.

    The next chunk is handed to the devices before the last one is read, so neither waits for the other.
    """
    # `running` is on the devices, `ahead` is handed to them before `running` is read.
    per_round = plan.batch * plan.mesh.size
    rounds, running, clock = 1, None, time.perf_counter()
    while start < stop or running is not None:
        ahead = None
        if start < stop:
            rounds = min(rounds, -(-(stop - start) // per_round))
            size = min(rounds * per_round, stop - start)
            ahead = evaluate(fn, key, start, rounds, plan), size
            start += size
        if running is not None:
            yield _read(*running)
            bar.update(running[1])
            now = time.perf_counter()
            if now - clock < CHUNK_SECONDS / 2:
                rounds = min(2 * rounds, plan.capacity)
            clock = now
        running = ahead


def _read(chunk: PyTree, size: int) -> Float[np.ndarray, "sample component"]:
    """The first `size` samples of a chunk, in double precision."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(chunk)]
    rows = [leaf.reshape(math.prod(leaf.shape[:3]), math.prod(leaf.shape[3:]))[:size] for leaf in leaves]
    return np.concatenate([leaf.astype(np.float64) for leaf in rows], axis=1)


def evaluate(fn: Observable, key: jax.Array, start: int, rounds: int, plan: Plan) -> PyTree:
    """Hand the samples from number `start` on to the devices: leaves (capacity, devices, batch, ...), not waited for.

    The first `rounds` entries of the first axis are filled. In row-major order the first three axes count samples, so
    device d of D takes batch r·D + d in round r. `start` and `rounds` are traced: a short last chunk runs the same
    program and stops early.

    Raises:
        TypeError: `fn` uses values of a trace around `run`.
    """
    refused = "`fn` must not use values that are traced by a jit, vmap or grad around `run`"
    try:
        options = performance.wide_vectors(plan.mesh.devices.flat[0].platform)
        chunk = _compiled(tuple(options.items()))(fn, key, np.uint32(start), np.int32(rounds), plan)
    except ValueError:  # compiler options are refused inside a trace
        if any(isinstance(value, Tracer) for value in jax.make_jaxpr(fn)(key).consts):
            raise TypeError(refused) from None
        raise
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(chunk)):
        raise TypeError(refused)
    return chunk


@cache
def _compiled(options: tuple[tuple[str, Any], ...]) -> Callable[..., PyTree]:
    return jax.jit(_rounds, static_argnames=("fn", "plan"), compiler_options=dict(options))


def _rounds(fn: Observable, key: jax.Array, start: Any, rounds: Any, plan: Plan) -> PyTree:
    """The program: a number of rounds, each one batch per device, drawn where the numbers are used."""
    axes, devices = plan.mesh.axis_names, jnp.uint32(plan.mesh.size)

    def on_device(key: jax.Array, start: jax.Array, rounds: jax.Array) -> PyTree:
        device = lax.axis_index(axes).astype(jnp.uint32)

        def one_batch(index: jax.Array) -> PyTree:
            first = start + (index.astype(jnp.uint32) * devices + device) * jnp.uint32(plan.batch)
            samples = first + jnp.arange(plan.batch, dtype=jnp.uint32)
            return jax.vmap(lambda sample: jax.tree.map(jnp.asarray, fn(jax.random.fold_in(key, sample))))(samples)

        def step(index: jax.Array, filled: PyTree) -> PyTree:
            return jax.tree.map(lambda old, new: old.at[index, 0].set(new), filled, one_batch(index))

        shapes = ((plan.capacity, 1, plan.batch, *leaf.shape) for leaf in plan.leaves)
        empty = plan.tree.unflatten(map(jnp.zeros, shapes, (leaf.dtype for leaf in plan.leaves)))
        return lax.fori_loop(jnp.int32(0), rounds, step, empty)

    # Nothing is communicated, and `fn` may well carry constants through its scans: no replication to check.
    mapped = jax.shard_map(
        on_device, mesh=plan.mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(None, axes), check_vma=False
    )
    return mapped(key, start, rounds)


@partial(jax.jit, static_argnames="fn")
def _one(fn: Observable, key: jax.Array) -> PyTree:
    """One sample. Its program as text, constants included, tells two functions apart from run to run.

    Raises:
        TypeError: a leaf is not a floating-point array, or there is not a single number in the sample.
    """
    sample = fn(key)
    leaves, _ = jax.tree.flatten_with_path(sample)
    for path, leaf in leaves:
        if not jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.floating):
            where = jax.tree_util.keystr(path) or "its result"
            raise TypeError(f"`fn` must return a pytree of floating-point arrays, got {leaf!r:.120} at {where}")
    if not sum(jnp.size(leaf) for _, leaf in leaves):
        raise TypeError(f"`fn` must return a pytree of floating-point arrays, got no number at all: {sample!r:.120}")
    return jax.tree.map(jnp.asarray, sample)
