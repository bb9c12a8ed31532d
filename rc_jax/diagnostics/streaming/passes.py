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


class Terms(NamedTuple):
    """What stands beside scale·q·k; `None` where there is none.

    bias: added to the logits, after the cap. of_mask, of_bias: which mask and which bias each head has. start: the key
    of each row whose weight is asked for, 0 by default. sink: a logit of each head that is no key. cap: c of
    c·tanh(s/c).
    """

    bias: Float[Array, "bias query key"] | None = None
    of_mask: Int[Array, " head"] | None = None
    of_bias: Int[Array, " head"] | None = None
    start: Int[Array, "head query"] | None = None
    sink: Float[Array, " head"] | None = None
    cap: Float[Array, ""] | None = None


class Streamed(NamedTuple):
    """What one pass gives, for each head: the rows' numbers, the weight of each row on its first key, largest logits.

    With a sink rows add up to what it leaves. logit: −∞ where a row sees nothing.
    """

    rows: Rows
    first: Float[Array, "head query"]
    logit: Float[Array, "head query"]


def stream(
    q: Float[Array, "head query width"],
    k: Float[Array, "group key width"],
    scale: Float[Array, " head"],
    mask: Bool[Array, "mask query key"] | None,
    *,
    causal: bool,
    block: int | None = None,
    terms: Terms | None = None,
) -> Streamed:
    """One pass over blocks of `block` × `block` scores; heads are shared out evenly among the groups of keys.

    By default a block is chosen by the device. No gradient flows.
    """
    operands = lax.stop_gradient((q, k, scale)), mask, lax.stop_gradient(Terms() if terms is None else terms)
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
    operands: tuple[Array, Array, Array], mask: Bool[Array, "mask query key"] | None, terms: Terms, *, causal: bool,
    block: int,
) -> Streamed:  # fmt: skip
    q, k, scale = operands
    (heads, queries, _), (groups, keys) = q.shape, k.shape[:2]
    tall, wide = min(block, queries), min(block, keys)
    # A number common to all scores of a row changes no weight: without the keys' mean, scores are smaller and keep more
    # digits. A last column of ones lets a product subtract the reference. A cap needs the scores as they are.
    common = jnp.mean(k, axis=1) if terms.cap is None else jnp.zeros_like(k[:, 0])
    k = k - common[:, None]
    key_blocks = _in_blocks(jnp.concatenate([k, jnp.ones_like(k[..., :1])], axis=-1), wide)
    query_blocks = _in_blocks(q * scale[:, None, None], tall)
    start = jnp.zeros((heads, queries), int) if terms.start is None else terms.start
    start_blocks = _in_blocks(start[..., None], tall)[..., 0]
    # What fills up the last block of keys is hidden.
    padded = [(0, 0), (0, 0), (0, -keys % wide)]
    seen, bias = (None if each is None else _in_blocks(jnp.pad(each, padded), tall) for each in (mask, terms.bias))
    at_head = jnp.arange(heads)
    of_mask, of_bias = (at_head * 0 if each is None else each for each in (terms.of_mask, terms.of_bias))

    # Every block of queries of every head. Heads that are a single block each go through together.
    def of_head(args: tuple[Array, Array, Array]) -> tuple[_Sums, Array]:
        of_queries, starts, head = args
        index = head // (heads // groups)
        of_keys = key_blocks[index]
        allowed = None if seen is None else seen[of_mask[head]]
        added = None if bias is None else bias[of_bias[head]]

        def of_block(args: tuple[Array, Array, Array, Array | None, Array | None]) -> tuple[_Sums, Array]:
            at, rows, first, allowed, added = args
            sums = _block(at, rows, of_keys, allowed, added, terms.cap, keys=keys, causal=causal)
            # Relative to the reference, as all scores: e to this, over Z, is the weight on the first key.
            score = _capped(jnp.sum(rows * k[index][first], axis=-1), terms.cap)
            if added is not None:
                score = score + jnp.take_along_axis(added, first[:, None], axis=1)[:, 0]
            return sums, score - sums.reference

        return lax.map(of_block, (jnp.arange(len(of_queries)), of_queries, starts, allowed, added))

    single = tall == queries and wide == keys
    together = max(1, block**2 // (tall * wide)) if single else None
    sums, first = lax.map(of_head, (query_blocks, start_blocks, at_head), batch_size=together)
    sums, first = jax.tree.map(lambda each: each.reshape(heads, -1)[:, :queries], (sums, first))

    # Weights from sums. The largest score is the reference.
    level = jnp.einsum("hqd,hd->hq", q, jnp.repeat(common, heads // groups, axis=0), precision="highest")
    some = sums.total > 0
    logit = jnp.where(
        some, sums.reference + level * scale[:, None], jnp.where(jnp.isnan(sums.total), jnp.nan, -jnp.inf)
    )
    share = jnp.where(some, 1, sums.total)  # 0 where a row sees nothing, and NaN stays
    if terms.sink is not None:
        share = share * jax.nn.sigmoid(jnp.where(some, logit + jnp.log(sums.total), 0) - terms.sink[:, None])
    total, whole = jnp.where(sums.total == 0, 1, sums.total), jnp.where(share == 0, 1, share)
    rows = Rows(
        total=share,
        negative=jnp.where(jnp.isnan(share), share, 0),
        squares=sums.squares / jnp.square(total) * jnp.square(share),
        entropy=share * jnp.maximum(jnp.log(total) - sums.tilted / total, 0) - share * jnp.log(whole),
        largest=share / total,
    )
    # The score of the first key is computed twice: by another product it may come out above the largest, which it is
    # not.
    return Streamed(rows, share * jnp.exp(jnp.minimum(first, 0)) / total, logit)


def _capped(scores: Array, cap: Array | None) -> Array:
    return scores if cap is None else cap * jnp.tanh(scores / cap)


def _in_blocks(x: Array, size: int) -> Array:
    """The last axis but one in blocks, the last of them filled up with zeros."""
    rows = x.shape[-2]
    count = -(-rows // size)
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, count * size - rows), (0, 0)])
    return padded.reshape(*x.shape[:-2], count, size, x.shape[-1])


def _product(a: Array, b: Array) -> Array:
    return jnp.einsum("id,jd->ij", a, b, precision="highest")


def _block(
    at: Array,
    rows: Array,
    of_keys: Array,
    allowed: Array | None,
    added: Array | None,
    cap: Array | None,
    *,
    keys: int,
    causal: bool,
) -> _Sums:
    """The sums of the rows of block `at` of the queries over all keys that they may see."""
    (tall, _), (count, wide, _) = rows.shape, of_keys.shape
    last = at if causal else jnp.asarray(count - 1)  # blocks are square under a causal mask: it cuts the last one alone
    hidden = float(jnp.finfo(rows.dtype).min) / 4

    def visible(j: Array, x: Array, cut: bool) -> Array:
        """Scores of block j of the keys, or a number so low that its exponential is 0."""
        if added is not None:
            x = x + lax.dynamic_slice_in_dim(added, j * wide, wide, axis=1)
        if allowed is not None:
            return jnp.where(lax.dynamic_slice_in_dim(allowed, j * wide, wide, axis=1), x, hidden)
        row, key = at * tall + jnp.arange(tall)[:, None], j * wide + jnp.arange(wide)[None]
        return jnp.where(key <= row if causal else key < keys, x, hidden) if cut else x

    # The last block comes first: it is the one that a causal mask, or the end of the keys, cuts. Its largest scores are
    # the first references.
    cut = causal or keys % wide != 0
    x = visible(last, _capped(_product(rows, of_keys[last][:, :-1]), cap), cut)
    largest = jnp.max(x, axis=1)
    reference = jnp.where(largest > hidden, largest, 0)
    none = jnp.zeros_like(reference)
    start = _add(_Sums(reference, none, none, none), x - reference[:, None], hidden)

    def step(j: Array, sums: _Sums) -> _Sums:
        if cap is not None:
            x = _capped(_product(rows, of_keys[j][:, :-1]), cap) - sums.reference[:, None]
        else:
            x = _product(jnp.concatenate([rows, -sums.reference[:, None]], axis=1), of_keys[j])
        return _add(sums, visible(j, x, cut=False), hidden)

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
