"""Measures of attention rows from queries and keys, in passes over blocks: no array of queries × keys is ever held.

With s the scores of a row, m a number near their maximum and t = s − m, three sums say all that is needed:

    Z = Σ eᵗ,   A = Σ t eᵗ,   W = Σ e²ᵗ:   Σp² = W/Z²,   H = −Σ p log p = log Z − A/Z,   max p = e^(max t)/Z.

They are summed over blocks of keys. Where a block holds a larger score, m becomes that score, and the sums of the
blocks before are multiplied by powers of e, as in the streaming softmax of Milakov and Gimelshein (2018).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from rc_jax._numerics import performance
from rc_jax.diagnostics.measures import Rows


class _Sums(NamedTuple):
    """Of each row of a block of queries: m, and Z, A and W relative to it, over the keys that were seen so far."""

    reference: Float[Array, " query"]
    total: Float[Array, " query"]
    tilted: Float[Array, " query"]
    squares: Float[Array, " query"]


class Streamed(NamedTuple):
    """What one pass gives, for each head: the rows' numbers, the weight of each row on key 0, and what rows may see.

    logit: the largest logit of each row; −∞ where it sees nothing. keys: how many keys each row may see. first_seen:
    the rows that may see key 0.
    """

    rows: Rows
    first: Float[Array, "head query"]
    logit: Float[Array, "head query"]
    keys: Int[Array, " query"]
    first_seen: Bool[Array, " query"]


def stream(
    q: Float[Array, "head query width"],
    k: Float[Array, "group key width"],
    scale: Float[Array, " head"],
    mask: Bool[Array, "query key"] | None,
    *,
    causal: bool,
    block: int | None = None,
) -> Streamed:
    """One pass over blocks of `block` × `block` scores; heads are shared out evenly among the groups of keys.

    By default a block is chosen by the device. No gradient flows.
    """
    operands = lax.stop_gradient((q, k, scale)), mask
    if block is not None:
        return _stream(*operands, causal=causal, block=block)
    small, large = (functools.partial(_stream, causal=causal, block=size) for size in BLOCKS)
    return performance.on_cpu(small, large, *operands)


BLOCKS = 1024, 4096
"""Queries, and keys, of a block on CPUs, where it fits into the cache with its exponentials, and on other devices.

Of width 64, a pair takes 2.4 ns of a core's time in blocks of 1024, 2.7 in blocks of 512 and 3.6 in blocks of 2048. Its
product and exponential alone take 1.9 (measured 2026-11).
"""


@functools.partial(jax.jit, static_argnames=("causal", "block"))
def _stream(
    operands: tuple[Array, Array, Array], mask: Bool[Array, "query key"] | None, *, causal: bool, block: int
) -> Streamed:
    q, k, scale = operands
    (heads, queries, _), (groups, keys) = q.shape, k.shape[:2]
    tall, wide = min(block, queries), min(block, keys)
    # A number common to all scores of a row changes no weight: without the keys' mean, scores are smaller and keep more
    # digits. A last column of ones lets a product subtract the reference.
    common = jnp.mean(k, axis=1)
    k = k - common[:, None]
    key_blocks = _in_blocks(jnp.concatenate([k, jnp.ones_like(k[..., :1])], axis=-1), wide)
    query_blocks = _in_blocks(q * scale[:, None, None], tall)
    seen = None
    if mask is not None:  # what fills up the last block of keys is hidden
        seen = _in_blocks(jnp.pad(mask, [(0, 0), (0, -keys % wide)]), tall)

    # Every block of queries of every head. Heads that are a single block each go through together.
    def of_head(args: tuple[Array, Array]) -> tuple[_Sums, Array]:
        of_queries, index = args
        of_keys = key_blocks[index]
        first = k[index, 0]

        def of_block(args: tuple[Array, Array, Array | None]) -> tuple[_Sums, Array]:
            at, rows, allowed = args
            sums = _block(at, rows, of_keys, allowed, keys=keys, causal=causal)
            # Relative to the reference, as all scores: e to this, over Z, is the weight on key 0.
            return sums, _product(rows, first[None])[:, 0] - sums.reference

        return lax.map(of_block, (jnp.arange(len(of_queries)), of_queries, seen))

    single = tall == queries and wide == keys
    together = max(1, block**2 // (tall * wide)) if single else None
    index = jnp.arange(heads) // (heads // groups)
    sums, first = lax.map(of_head, (query_blocks, index), batch_size=together)
    sums, first = jax.tree.map(lambda each: each.reshape(heads, -1)[:, :queries], (sums, first))

    # Weights from sums.
    counts = jnp.full(queries, keys) if mask is None else jnp.sum(mask, axis=1)
    counts = jnp.arange(1, queries + 1) if causal else counts
    first_seen = jnp.ones(queries, bool) if mask is None else mask[:, 0]
    ones = jnp.ones_like(sums.total)
    rows = Rows(
        total=ones,
        magnitude=ones,
        squares=sums.squares / jnp.square(sums.total),
        entropy=jnp.maximum(jnp.log(sums.total) - sums.tilted / sums.total, 0),
        largest=1 / sums.total,  # the reference is the largest score
    )
    level = jnp.einsum("hqd,hd->hq", q, jnp.repeat(common, heads // groups, axis=0), precision="highest")
    logit = jnp.where(sums.total > 0, sums.reference + level * scale[:, None], -jnp.inf)
    # The score of key 0 is computed twice: by another product it may come out above the largest, which it is not.
    return Streamed(
        rows, jnp.where(first_seen, jnp.exp(jnp.minimum(first, 0)) / sums.total, 0), logit, counts, first_seen
    )


def _in_blocks(x: Array, size: int) -> Array:
    """The last axis but one in blocks, the last of them filled up with zeros."""
    rows = x.shape[-2]
    count = -(-rows // size)
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, count * size - rows), (0, 0)])
    return padded.reshape(*x.shape[:-2], count, size, x.shape[-1])


def _product(a: Array, b: Array) -> Array:
    return jnp.einsum("id,jd->ij", a, b, precision="highest")


def _block(at: Array, rows: Array, of_keys: Array, allowed: Array | None, *, keys: int, causal: bool) -> _Sums:
    """The sums of the rows of block `at` of the queries over all keys that they may see."""
    (tall, _), (count, wide, _) = rows.shape, of_keys.shape
    last = at if causal else jnp.asarray(count - 1)  # blocks are square under a causal mask: it cuts the last one alone
    hidden = float(jnp.finfo(rows.dtype).min) / 4

    def visible(j: Array, x: Array, cut: bool) -> Array:
        """Scores of block j of the keys, or a number so low that its exponential is 0."""
        if allowed is not None:
            return jnp.where(lax.dynamic_slice_in_dim(allowed, j * wide, wide, axis=1), x, hidden)
        row, key = at * tall + jnp.arange(tall)[:, None], j * wide + jnp.arange(wide)[None]
        return jnp.where(key <= row if causal else key < keys, x, hidden) if cut else x

    # The last block comes first: it is the one that a causal mask, or the end of the keys, cuts. Its largest scores are
    # the first references.
    cut = causal or keys % wide != 0
    x = visible(last, _product(rows, of_keys[last][:, :-1]), cut)
    largest = jnp.max(x, axis=1)
    reference = jnp.where(largest > hidden, largest, 0)
    none = jnp.zeros_like(reference)
    start = _add(_Sums(reference, none, none, none), x - reference[:, None], hidden)

    def step(j: Array, sums: _Sums) -> _Sums:
        with_reference = jnp.concatenate([rows, -sums.reference[:, None]], axis=1)
        return _add(sums, visible(j, _product(with_reference, of_keys[j]), cut=False), hidden)

    return lax.fori_loop(0, last, step, start)


def _add(sums: _Sums, x: Float[Array, "query key"], hidden: float) -> _Sums:
    """Add a block of keys; `x` are their scores minus the reference."""
    # The reference rises to the largest score. A row that has seen nothing yet takes it over, even if that is lower.
    largest = jnp.max(x, axis=1)
    rise = jnp.where(sums.total > 0, jnp.maximum(largest, 0), jnp.where(largest > hidden, largest, 0))
    # XLA would write e·e as e²ᵗ and compute twice the exponentials.
    e = lax.optimization_barrier(jnp.exp(x - rise[:, None]))
    total = jnp.sum(e, axis=1)
    tilted, squares = jnp.sum(x * e, axis=1) - rise * total, jnp.sum(e * e, axis=1)
    # The sums of the blocks before, relative to the new reference.
    shrink = jnp.where(sums.total > 0, jnp.exp(-rise), 0)
    return _Sums(
        sums.reference + rise,
        sums.total * shrink + total,
        (sums.tilted - rise * sums.total) * shrink + tilted,
        sums.squares * jnp.square(shrink) + squares,
    )
