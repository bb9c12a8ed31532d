"""Several processes, one ensemble: their devices, and the exchange of statistics.

Samples never travel. Before a run the processes exchange what they are about to compute and which finished parts they
have. After it each process sends the statistics of its parts to all, and all merge them alike.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from rc_jax._numerics.jax_names import process_allgather
from rc_jax.ensemble.parts import Parts, join
from rc_jax.ensemble.summaries import Moments, capacity

GATHERED_BYTES = 2**27  # the most that arrives in one exchange


class ProcessLost(RuntimeError):
    """Another process has ended or does not answer: the run cannot be finished by those that are left."""


def check_mesh(name: str, value: Any) -> None:
    """Refuse what is no mesh, and one over some of the processes.

    Raises:
        TypeError: `value` is not a mesh.
        ValueError: it has devices of other processes, but not of all, or none of this one.
    """
    if not isinstance(value, Mesh):
        raise TypeError(f"`{name}` must be a jax.sharding.Mesh, got {value!r}")
    weights = _weights(list(value.devices.flat))
    if not (weights.all() or np.flatnonzero(weights).tolist() == [jax.process_index()]):
        raise ValueError(f"`{name}` must hold devices of this process only or of every process, got {value!r}")


_ALONE: ContextVar[bool] = ContextVar("alone", default=False)


@contextmanager
def alone() -> Generator[None, None, None]:
    """Inside, `run` uses all devices of this process and no other, and waits for nobody, where no mesh is given.

    Example:
        >>> import jax
        >>> from rc_jax import ensemble
        >>> with ensemble.alone():
        ...     stats = ensemble.run(jax.random.normal, jax.random.key(0), 100)
        >>> stats.count
        100
    """
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def placed(mesh: Mesh | None) -> tuple[Mesh, list[int]]:
    """The devices on which this process computes, and how many each process brings."""
    everywhere = jax.local_devices() if _ALONE.get() else jax.devices()
    devices = everywhere if mesh is None else list(mesh.devices.flat)
    own = [device for device in devices if device.process_index == jax.process_index()]
    if mesh is None or len(own) < len(devices):
        mesh = Mesh(np.array(own), ("sample",))
    return mesh, _weights(devices).tolist()


def _weights(devices: Sequence[Any]) -> np.ndarray:
    """How many of the devices each process has."""
    return np.bincount([device.process_index for device in devices], minlength=jax.process_count())


def exchange(payload: bytes) -> list[bytes]:
    """The payloads of all processes, in their order; each must call this, and waits until all have.

    Raises:
        ProcessLost: one of them has gone.
    """
    try:
        lengths = np.asarray(process_allgather(np.array([len(payload)], np.int32))).ravel()
        padded = np.zeros(1 << int(lengths.max() - 1).bit_length(), np.uint8)  # few lengths, so few programs
        padded[: len(payload)] = np.frombuffer(payload, np.uint8)
        rows = np.asarray(process_allgather(padded))
    except (ValueError, RuntimeError) as error:
        first = f"{error}".partition("\n")[0]
        raise ProcessLost(
            f"process {jax.process_index()} of {jax.process_count()} cannot go on: another process has ended or does "
            f"not answer ({first:.200})"
        ) from error
    return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]


def agree(identity: str, names: Sequence[str]) -> list[list[str]]:
    """The files that each process has of a run on which all must agree.

    Raises:
        ValueError: another process is at something else.
    """
    contents = exchange("\n".join([identity, *names]).encode())
    answers = [content.decode(errors="replace").split("\n") for content in contents]
    for number, (theirs, *_) in enumerate(answers):
        if theirs != identity:
            raise ValueError(
                f"every process must run the same ensembles in the same order, got {identity} in process "
                f"{jax.process_index()} and {theirs:.200} in process {number}"
            )
    return [files for _, *files in answers]


def gather(parts: Parts, limit: int) -> Parts:
    """The parts of all processes as one, some components at a time, so that what arrives at once stays small.

    Raises:
        ValueError: another process has given up its run.
    """
    components = len(parts.sketches)
    component_bytes = jax.process_count() * 16 * capacity(components)  # a full sketch from each
    step = max(1, GATHERED_BYTES // component_bytes)
    columns = []
    for first in range(0, components, step):
        stop = min(first + step, components)
        received = [Parts.from_bytes(content) for content in exchange(parts.columns(first, stop).to_bytes())]
        pieces = [piece for piece in received if piece is not None]
        if len(pieces) < len(received):
            raise ValueError("every process must run the same ensembles to their end, and another one gave up before")
        columns.append(join(pieces, stop - first, limit))
    fields = zip(*(column.moments for column in columns), strict=True)
    moments = Moments(*(np.concatenate(field, axis=1) for field in fields))
    return Parts(columns[0].numbers, moments, tuple(sketch for column in columns for sketch in column.sketches))
