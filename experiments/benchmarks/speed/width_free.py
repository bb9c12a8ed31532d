"""Collapse at any width: this package in coordinates, peers who draw every weight, and the shape of GPT-3."""

import json
import os
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np

from experiments.benchmarks.contest import Contest, Table, same_law
from experiments.benchmarks.machine import in_new_process, memory_bytes, peak_mebibytes
from experiments.benchmarks.shapes import Shape
from experiments.benchmarks.speed.initialisations import NUMPY, PLAIN, WIDTH_FREE, averaged, ours, theirs
from rc_jax import attention, collapse, network

WIDTHS = (256, 768, 3072, 12_288)
HEADS, HEAD_WIDTH, TOKENS, DEPTH = 12, 64, 128, 12
LARGE_TOKENS, LARGE_DEPTH = 128, 96
LARGE = attention.AttentionSpec(d_model=12_288, heads=96)


def contests(count: int) -> Iterator[Contest]:
    """At one width after the other beside peers; then all widths against each other, in coordinates."""
    widths = WIDTHS if count >= 128 else WIDTHS[:2]
    for width in widths:
        yield against_peers(shape(width), max(2, min(count // 64, 6144 // width)))
    yield flat(widths, max(2, count // 64))


def shape(width: int) -> Shape:
    """H·d_head is the same at every width."""
    layer = attention.AttentionSpec(d_model=width, heads=HEADS, d_head=HEAD_WIDTH)
    return Shape(f"d={width:,}", network.StackSpec(attention=layer, depth=DEPTH), TOKENS, share=1.0, together=4)


def against_peers(one: Shape, count: int) -> Contest:
    """Equal in law, so means are compared in standard errors."""
    mine = ours(one)
    others = {name: side for name, side in theirs(one, count).items() if name != NUMPY}  # the slowest
    return Contest(
        title=f"Width {one.words}",
        unit="initialisations/s",
        work=count,
        sides=others | {name: averaged(mine[name], count) for name in (PLAIN, WIDTH_FREE)},
        baseline=next(iter(others)),
        agree=same_law,
    )


def flat(widths: tuple[int, ...], count: int) -> Contest:
    """Tokens with normal entries, over √d, have the same law at all widths but for terms of order n/d.

    So nothing more is asked of the widths than to agree to a nat.
    """

    def side(width: int) -> Callable[[], np.ndarray]:
        run = averaged(ours(shape(width))[WIDTH_FREE], count)
        return lambda: run()[0] - np.log(width) / 2

    return Contest(
        title=f"Cost free of width (H·d_head={HEADS * HEAD_WIDTH}, L={DEPTH}, n={TOKENS}), {WIDTH_FREE}",
        unit="initialisations/s",
        work=count,
        sides={f"d={width:,}": side(width) for width in widths},
        baseline=f"d={widths[0]:,}",
        agree=lambda measured, expected: np.testing.assert_allclose(measured, expected, atol=1.0),
        note="'times faster' than the narrowest is 1 where the cost is free of width",
    )


def tables(count: int) -> Iterator[Table]:
    """The weights that peers would have to hold; the shape of GPT-3, all layers with skips, in a process of its own."""
    yield held()
    if count < 128:
        return
    measured = in_new_process("experiments.benchmarks.speed.width_free")
    rest = measured["peak"], measured["peak"] - measured["before"], measured["load"]
    yield Table(
        title=f"GPT-3's shape, d={LARGE.d_model:,}, H={LARGE.heads}, L={LARGE_DEPTH} with skips, n={LARGE_TOKENS}, "
        "one initialisation in a new process",
        columns=("call", "seconds", "processor seconds", "peak MiB", "MiB above the process with its input", "load"),
        rows=tuple(
            (words, measured[call], measured[f"{call}_processor"], *rest)
            for call, words in (("first", "first, compilation included"), ("second", "second"))
        ),
    )


def held() -> Table:
    """Weights that are drawn must be held: one layer's at least, for as many networks as run together."""

    def gigabytes(width: int) -> float:
        return 4 * 4 * width * HEADS * HEAD_WIDTH / 1e9

    free = memory_bytes() / 1e9
    return Table(
        title=f"Weights held at once where they are drawn, float32, H·d_head={HEADS * HEAD_WIDTH}; {free:.0f} GB free",
        columns=("d", "GB, one layer", "GB, 12 layers", "GB, one layer of 256 networks", "networks that fit"),
        rows=tuple(
            (width, one, DEPTH * one, 256 * one, int(free / one)) for width in WIDTHS for one in (gigabytes(width),)
        ),
        note="in coordinates none are held, at any width",
    )


def measure() -> dict[str, float]:
    """One initialisation with skips, all 96 layers, in this process: seconds, processor seconds and peak MiB."""
    x = jax.random.normal(jax.random.key(1), (LARGE_TOKENS, LARGE.d_model)).block_until_ready()
    spec = network.StackSpec(attention=LARGE, depth=LARGE_DEPTH, skip=True)
    measured = {"before": peak_mebibytes(), "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")}
    for call, seed in (("first", 0), ("second", 1)):
        wall, processor = time.perf_counter(), time.process_time()
        logs = collapse.sample_log_residuals(jax.random.key(seed), x, spec).block_until_ready()
        measured |= {call: time.perf_counter() - wall, f"{call}_processor": time.process_time() - processor}
        assert np.all(np.isfinite(logs))
    return measured | {"peak": peak_mebibytes()}


if __name__ == "__main__":
    print(json.dumps(measure()))
