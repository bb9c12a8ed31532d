"""The host's part of an ensemble: which samples next, on which devices, and how far along it is."""

import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from rc_jax import _checks
from rc_jax.ensemble.sampling import Observable, Plan, evaluate, sample_shape
from rc_jax.ensemble.statistics import Accumulator, Layout, Statistics

CHUNK_BYTES = 2**23  # observables of one chunk on one device
CHUNK_ROUNDS = 64
CHUNK_SECONDS = 0.5


def _observable(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"`{name}` must be a function of one key, got {value!r}")
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"`{name}` must be hashable, so that its compiled program is found again, got {value!r}"
        ) from None


def _local_mesh(name: str, value: Any) -> None:
    if not isinstance(value, Mesh):
        raise TypeError(f"`{name}` must be a jax.sharding.Mesh, got {value!r}")
    if any(device.process_index != jax.process_index() for device in value.devices.flat):
        raise ValueError(f"`{name}` must hold devices of this process only, got {value!r}")


def _count(name: str, value: Any) -> None:
    _checks.integer(1)(name, value)
    if value > 2**32:
        raise ValueError(
            f"`{name}` must be an integer <= 2**32, the number of keys that fold_in tells apart, got {value}"
        )


@_checks.guard(fn=_observable, key=_checks.random_key, count=_count, batch_size=_checks.integer(1), mesh=_local_mesh)
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

    Sample i is `fn(fold_in(key, i))` whatever the batches, chunks and devices, so they change nothing but rounding
    inside `fn`. The statistics themselves are kept on the host in float64 and are bit for bit the same for the same
    samples. One program is compiled per `fn` and batch size and serves every `count`; pass the same function object
    again (not a new lambda) to reuse it.

    Args:
        fn: A pure function from one key to a pytree of floating-point arrays, of a few thousand numbers at most: each
            number costs up to 256 KiB of quantile bins.
        key: One typed key.
        count: Number of samples, 1 to 2³².
        batch_size: Samples that one device evaluates at the same time (`jax.vmap`); peak memory is proportional to it.
            Default: 32 on CPU, where a batch should stay in cache, 256 on an accelerator. Never more than a device's
            share of `count`.
        mesh: Devices to share the samples among, all its axes alike. Default: all devices of this process.
        progress: Show a bar with the time left on stderr.

    Returns:
        Mean, variance, standard error, range, quantiles and the number of non-finite samples of every component.

    Raises:
        TypeError: `key` is not a typed key, `fn` is not a hashable function or returns anything but floating-point
            arrays, `count` or `batch_size` is not an integer.
        ValueError: `count` or `batch_size` is less than 1, or `mesh` reaches into other processes.

    Example:
        >>> import jax
        >>> from rc_jax import ensemble
        >>> stats = ensemble.run(jax.random.normal, jax.random.key(0), 10_000)
        >>> bool(abs(stats.mean) < 5 * stats.standard_error), bool(abs(stats.quantile(0.5)) < 0.06)
        (True, True)
        >>> int(stats.nonfinite)
        0
    """
    mesh = Mesh(np.array(jax.local_devices()), ("sample",)) if mesh is None else mesh
    if batch_size is None:
        batch_size = 32 if mesh.devices.flat[0].platform == "cpu" else 256
    plan = _plan(sample_shape(fn, key), min(batch_size, -(-count // mesh.size)), mesh)
    accumulator = Accumulator(Layout.of(plan.tree.unflatten(plan.leaves)))
    with _bar(count, progress) as bar:
        for samples, size in _chunks(fn, key, count, plan):
            accumulator.add(samples)
            bar.update(size)
    return accumulator.finish()


def _plan(sample: PyTree, batch: int, mesh: Mesh) -> Plan:
    leaves, tree = jax.tree.flatten(sample)
    batch_bytes = batch * sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    capacity = int(np.clip(CHUNK_BYTES // batch_bytes, 1, CHUNK_ROUNDS))
    return Plan(tree, tuple(leaves), batch, capacity, mesh)


def _chunks(fn: Observable, key: jax.Array, count: int, plan: Plan) -> Iterator[tuple[PyTree, int]]:
    """All samples in order, in chunks that grow from one round to about `CHUNK_SECONDS`; padding is cut off.

    The next chunk is handed to the devices before the last one is read, so neither waits for the other.
    """
    per_round = plan.batch * plan.mesh.size
    start, rounds, running, clock = 0, 1, None, time.perf_counter()
    while start < count or running is not None:
        ahead = None
        if start < count:
            rounds = min(rounds, -(-(count - start) // per_round))
            size = min(rounds * per_round, count - start)
            ahead = evaluate(fn, key, np.uint32(start), np.int32(rounds), plan), size
            start += size
        if running is not None:
            yield _read(*running), running[1]
            now = time.perf_counter()
            if now - clock < CHUNK_SECONDS / 2:
                rounds = min(2 * rounds, plan.capacity)
            clock = now
        running = ahead


def _read(chunk: PyTree, size: int) -> PyTree:
    """The first `size` samples of a chunk as NumPy arrays with one leading axis."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[3:])[:size], chunk)


def _bar(count: int, shown: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=count, unit=" samples", unit_scale=True, file=sys.stderr, disable=not shown, dynamic_ncols=True)
