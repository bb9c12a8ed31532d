"""Parts of an ensemble: fixed by its size alone, reduced one by one, and merged in their order.

Every process and device gets the same numbers for the same samples, bit for bit, whatever its chunks are. Each part has
moments of its own, because their merge depends on the order; a sketch does not, so one sketch serves many parts.
"""

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from rc_jax.ensemble import summaries
from rc_jax.ensemble.summaries import EMPTY, Moments, Sketch, merge_sketches, sketches_of

LEAST, MOST = 64, 4096  # parts of an ensemble, where it has that many samples
MOMENT_BYTES = 2**25  # of all parts together, six numbers for each component of a part
BLOCK_BYTES = 2**25  # of the samples that are reduced at a time
SKETCHED = 1024  # samples that wait for their sketch


@dataclass(frozen=True)
class Partition:
    """`count` samples in parts of `size`, each reduced in blocks of `block`; only the last part may be shorter."""

    count: int
    size: int
    block: int

    @classmethod
    def of(cls, count: int, components: int) -> "Partition":
        """64 parts, more for more samples: about 256 to a part, up to 4 096 parts or 32 MiB of moments.

        A block has up to 1 024 samples, or fewer where that is more than 32 MiB of doubles.
        """
        most = int(np.clip(MOMENT_BYTES // (48 * components), LEAST, MOST))
        size = -(-count // int(np.clip(count // 256, LEAST, most)))
        block = min(size, int(np.clip(BLOCK_BYTES // (8 * components), 1, 1024)))
        return cls(count, -(-size // block) * block, block)

    @property
    def parts(self) -> int:
        """The number of parts."""
        return -(-self.count // self.size)

    def samples(self, first: int, stop: int) -> tuple[int, int]:
        """The first sample of parts `first` to `stop` (not included), and the one after their last."""
        return first * self.size, min(stop * self.size, self.count)


class Parts(NamedTuple):
    """Some reduced parts: their places among all, the moments of each (leading axis), a sketch for each component."""

    numbers: Int[np.ndarray, "part"]
    moments: Moments
    sketches: tuple[Sketch, ...]

    def columns(self, first: int, stop: int) -> "Parts":
        """The components from `first` to `stop`, not included."""
        moments = Moments(*(field[:, first:stop] for field in self.moments))
        return Parts(self.numbers, moments, self.sketches[first:stop])

    def to_bytes(self) -> bytes:
        """The content of an npz file, which `from_bytes` reads."""
        file = io.BytesIO()
        arrays = summaries.to_arrays(self.moments, self.sketches)
        np.savez(file, parts=self.numbers, **arrays)  # pyright: ignore[reportArgumentType]
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Parts | None":
        """The parts that `to_bytes` wrote; None where the content is damaged."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return cls(np.asarray(arrays["parts"]), *summaries.from_arrays(arrays))
        except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):  # a flag of encryption, say
            return None


def _blocks(
    chunks: Iterable[Float[np.ndarray, "sample component"]], length: int
) -> Iterator[Float[np.ndarray, "sample component"]]:
    """The same samples in blocks of one length, so that no sum depends on the chunks; the last may be shorter."""
    waiting: list[np.ndarray] = []
    for chunk in chunks:
        waiting.append(chunk)
        if sum(map(len, waiting)) >= length:
            rows = np.concatenate(waiting)
            whole = len(rows) - len(rows) % length
            yield from np.split(rows[:whole], whole // length)
            waiting = [rows[whole:].copy()]
    if sum(map(len, waiting)):
        yield np.concatenate(waiting)


def reduce(
    chunks: Iterable[Float[np.ndarray, "sample component"]],
    partition: Partition,
    first: int,
    components: int,
    due: Callable[[], bool] = lambda: False,
) -> Iterator[Parts]:
    """Reduce the samples of consecutive parts, from part `first` on, as they come in chunks of any length.

    After a part, if `due()` is true, and at the end, the parts finished since the last time are yielded.
    """
    limit = summaries.capacity(components)
    nothing = (EMPTY,) * components
    finished: list[Moments] = []
    unsketched: list[np.ndarray] = []
    running, sketches, taken = None, nothing, 0

    def all_sketched() -> tuple[Sketch, ...]:
        if not unsketched:
            return sketches
        return merge_sketches(sketches, sketches_of(np.concatenate(unsketched), limit), limit)

    def finished_parts() -> Parts:
        numbers = np.arange(first, first + len(finished))
        return Parts(numbers, Moments(*(np.stack(fields) for fields in zip(*finished, strict=True))), all_sketched())

    for block in _blocks(chunks, partition.block):
        # The moments of a part are merged block by block, in order.
        moments = Moments.of(block)
        running = moments if running is None else running.merged(moments)
        taken += len(block)
        # Sketches are made of many samples at a time, because each merge costs as much as the bins it has.
        unsketched.append(block)
        if sum(map(len, unsketched)) >= SKETCHED:
            sketches, unsketched = all_sketched(), []
        # A part is finished after `size` samples, the last one of all perhaps earlier.
        if taken % partition.size == 0:
            finished.append(running)
            running = None
            if due():
                yield finished_parts()
                first, finished, unsketched, sketches = first + len(finished), [], [], nothing
    if running is not None:
        finished.append(running)
    if finished:
        yield finished_parts()


def join(pieces: Sequence[Parts], components: int, limit: int) -> Parts:
    """Several sets of parts as one; `limit` is what `summaries.capacity` gives for the whole sample."""
    sketches = (EMPTY,) * components
    for piece in pieces:
        sketches = merge_sketches(sketches, piece.sketches, limit)
    no_parts = Moments(*(field[None][:0] for field in Moments.of(np.empty((0, components)))))
    moments = Moments(*map(np.concatenate, zip(no_parts, *(piece.moments for piece in pieces), strict=True)))
    return Parts(np.concatenate([np.empty(0, np.int64), *(piece.numbers for piece in pieces)]), moments, sketches)


def whole(parts: Parts, partition: Partition) -> tuple[Moments, tuple[Sketch, ...]]:
    """Moments and sketches of all parts; moments are merged in pairs of neighbours, and the results in pairs again."""
    order = np.argsort(parts.numbers)
    if not np.array_equal(parts.numbers[order], np.arange(partition.parts)):
        raise AssertionError(f"every part must be there once, of {partition.parts}, got {parts.numbers.tolist()}")
    stack = Moments(*(field[order] for field in parts.moments))
    while len(stack.mean) > 1:
        paired = len(stack.mean) // 2 * 2
        first, second = (Moments(*(field[start:paired:2] for field in stack)) for start in (0, 1))
        merged = zip(first.merged(second), stack, strict=True)
        stack = Moments(*(np.concatenate([new, old[paired:]]) for new, old in merged))
    return Moments(*(field[0] for field in stack)), parts.sketches


def missing_ranges(missing: np.ndarray, weights: Sequence[int], process: int) -> list[tuple[int, int]]:
    """A process's part of the missing parts in proportion to its devices, as ranges without a gap.

    `weights` are the numbers of devices of all processes.
    """
    ends = len(missing) * np.cumsum([0, *weights]) // sum(weights)
    own = missing[ends[process] : ends[process + 1]]
    pieces = np.split(own, np.flatnonzero(np.diff(own) != 1) + 1)
    return [(int(piece[0]), int(piece[-1]) + 1) for piece in pieces if len(piece)]
