"""Diagnosis of attention: from weights, against the plain NumPy of a careful user; from queries and keys, streaming.

`python -m experiments.benchmarks.instruments.diagnosis TOKENS` measures the memory of the second in this process.
"""

import json
import sys
from collections.abc import Iterator

import jax
import numpy as np
import scipy.sparse.linalg

from experiments.benchmarks.contest import Contest, Table
from experiments.benchmarks.counts import Counts
from experiments.benchmarks.machine import added_by, in_new_process
from rc_jax import diagnostics

MODULE = "experiments.benchmarks.instruments.diagnosis"
LAYERS, HEADS, TOKENS, WIDTH = 12, 12, 1024, 64
LONG = 256  # tokens of the longest sequence for each one of a benchmark's count
LONGEST = 131_072  # that many by default
ROWS, SPECTRUM, OURS = (
    "NumPy, rows and sinks alone",
    "NumPy, and SciPy's svds for σ₂/σ₁",
    "rc_jax.diagnostics.attention",
)
BLOCKS, STREAMING = "NumPy, by blocks of queries", "rc_jax.diagnostics.scores"
SHARED = ("sparsity", "relative_entropy", "participation", "largest_weight", "sink_weight")


def contests(count: int) -> Iterator[Contest]:
    """Weights of so many layers of 12 heads and 1024 tokens; then scores of a head, up to 131 072 tokens."""
    yield weights(min(LAYERS, max(1, LAYERS * count // 512)))
    longest = LONG * count
    for tokens, causal in ((longest // 16, False), (longest // 16, True), (longest, True)):
        yield streaming(tokens, causal, alone=tokens == longest)


def tables(count: int) -> Iterator[Table]:
    """Sixteen times more tokens."""
    longest = LONG * count
    rows = [(tokens, *in_new_process(MODULE, str(tokens)).values()) for tokens in (longest // 16, longest)]
    yield Table(
        title=f"Memory of a streaming diagnosis, one causal head of width {WIDTH}, each in a new process",
        columns=("tokens", "seconds", "peak MiB", "MiB above the process before", "MiB of the weights alone"),
        rows=tuple((*row, row[0] ** 2 * 4 / 2**20) for row in rows),
        note="compilation included",
    )


def weights(layers: int) -> Contest:
    """Softmax of Gaussian logits under a causal mask, in float32."""
    # Logits, weights, and the sides.
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((layers, HEADS, TOKENS, TOKENS), np.float32)
    logits[..., ~np.tri(TOKENS, dtype=bool)] = -np.inf
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)

    def ours() -> np.ndarray:
        measures = diagnostics.attention(p)
        return np.stack([measures[name] for name in SHARED])

    return Contest(
        title=f"Diagnosis of weights ({layers}, {HEADS}, {TOKENS}, {TOKENS}), float32",
        unit="layers/s",
        work=layers,
        sides={ROWS: lambda: of_rows(p), SPECTRUM: lambda: (second_values(p), of_rows(p))[1], OURS: ours},
        baseline=ROWS,
        tolerance=1e-4,
        note="rc_jax reads two singular values of each matrix as well, and checks that rows are causal and add up to 1",
    )


def of_rows(p: np.ndarray) -> np.ndarray:
    """The shared measures in NumPy, a layer at a time: (measure, layer, head)."""
    keys = np.arange(1, p.shape[-1] + 1)[1:]
    by_layer = []
    for layer in p:
        rows = layer[:, 1:]
        squares = np.einsum("hij,hij->hi", rows, rows)
        entropy = -np.sum(rows * np.log(np.where(rows > 0, rows, 1)), axis=-1)
        values = [1 / np.sqrt(keys * squares), entropy / np.log(keys), 1 / squares, rows.max(-1)]
        by_layer.append([*(value.mean(-1) for value in values), layer[..., 0].mean(-1)])
    return np.swapaxes(by_layer, 0, 1)


def second_values(p: np.ndarray) -> np.ndarray:
    """σ₂/σ₁ of every head by SciPy's Lanczos iteration."""
    flat = p.reshape(-1, *p.shape[-2:])
    largest_two = np.array([scipy.sparse.linalg.svds(a, k=2, return_singular_vectors=False) for a in flat])
    return largest_two.min(-1) / largest_two.max(-1)


def drawn(tokens: int) -> tuple[jax.Array, jax.Array]:
    """Queries and keys of one head, logits of deviation 1."""
    q, k = jax.random.normal(jax.random.key(0), (2, tokens, WIDTH))
    return q, k


def streaming(tokens: int, causal: bool, *, alone: bool) -> Contest:
    """A product of width 64 and one exponential for every pair that is seen; NumPy where it is not too slow."""
    # The pairs that are seen are the unit.
    q, k = drawn(tokens)
    mask, pairs = ("causal", tokens * (tokens + 1) // 2) if causal else ("none", tokens**2)

    def ours() -> np.ndarray:
        measures = diagnostics.scores(q, k, mask=mask)
        return np.array([measures[name] for name in SHARED]).ravel()

    theirs = {} if alone else {BLOCKS: lambda: by_blocks(np.asarray(q), np.asarray(k), causal)}
    counts = Counts(operations=2 * WIDTH, exponentials=1)
    return Contest(
        title=f"Streaming diagnosis, one head of width {WIDTH}, n = {tokens:,}, {'causal' if causal else 'no mask'}",
        unit="pairs/s",
        work=pairs,
        sides={**theirs, STREAMING: ours},
        baseline=STREAMING if alone else BLOCKS,
        tolerance=1e-3,
        counts={STREAMING: counts, **dict.fromkeys(theirs, counts)},
    )


def by_blocks(q: np.ndarray, k: np.ndarray, causal: bool, size: int = 256) -> np.ndarray:
    """The shared measures in NumPy, without the whole array: softmax of some rows at a time."""
    # Sums over rows of the measures, of which the first row of a causal head is no part.
    totals, first, tokens = np.zeros(4), 0.0, len(q)
    for start in range(0, tokens, size):
        rows = np.arange(start, min(start + size, tokens))
        seen = k[: rows[-1] + 1] if causal else k
        s = q[rows] @ seen.T * np.float32(WIDTH**-0.5)
        if causal:
            s[rows[:, None] < np.arange(len(seen))] = -np.inf
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        first += p[:, 0].sum()
        keys = rows + 1 if causal else np.full(len(rows), tokens)
        squares, several = np.einsum("ij,ij->i", p, p), keys >= 2
        entropy = -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=-1)
        values = 1 / np.sqrt(keys * squares), entropy / np.log(np.maximum(keys, 2)), 1 / squares, p.max(-1)
        totals += [value[several].sum(dtype=float) for value in values]
    return np.array([*(totals / (tokens - causal)), first / tokens])


def measure(tokens: int) -> dict[str, float]:
    """Diagnose here: seconds, the peak of this process and how much of it this added (MiB)."""
    q, k = jax.block_until_ready(drawn(tokens))
    return added_by(lambda: diagnostics.scores(q, k, mask="causal"))


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
