"""What is stated of who may see what, and the records that say so: masks, numbers of texts, causality."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rc_jax.diagnostics import inputs

PADDING = -1  # the number of a token that belongs to no text


class Texts(NamedTuple):
    """Which text of its sample each query and each key belongs to, counted from 0; −1 for padding.

    queries: (sample, query). keys: (sample, key). back: how far the key of query i lies behind key i, (sample).
    """

    queries: np.ndarray
    keys: np.ndarray
    back: np.ndarray

    @property
    def most(self) -> int:
        """Texts in the sample that has most."""
        return int(self.keys.max()) + 1

    @property
    def starts(self) -> np.ndarray:
        """The first key of each text, (sample, text); 0 where there is none."""
        return np.stack([(self.keys == text).argmax(1) for text in range(self.most)], 1)


class Seen(NamedTuple):
    """What the queries of a layer may see; axes of length 1 where samples or heads are alike.

    mask: True where a key may be seen and nothing but the statement says so, (sample, head, query, key); `None` where
    weights are known to be 0 wherever nothing may be seen. keys: how many keys each query may see, (sample, head,
    query). queries: how many queries may see each key, (sample, head, key). texts: the same of all layers.
    """

    mask: np.ndarray | None
    keys: np.ndarray
    queries: np.ndarray
    texts: Texts


class Found(NamedTuple):
    """The record of each layer, whether no query sees a later key, and what a reader must know."""

    seen: list[Seen]
    causal: bool
    notes: tuple[str, ...]


class Stated(NamedTuple):
    """What the caller says of a model's layers.

    masks: (sample, head, query, key) for each layer, axes of length 1 where they are alike; `None` where there is none.
    known: whether a layer's zeros say nothing more. told: whether a mask or a word says where texts end and what is
    padding, which windows of a layer do not. texts: numbers of texts, (sample, token), −1 for padding; `None`
    where nobody has said. cut: whether these numbers say where texts end, and not just what is padding. causal: `None`
    where nobody has said. own: whether each query has a key of its own.
    """

    masks: list[np.ndarray | None]
    known: list[bool]
    told: bool
    texts: np.ndarray | None
    cut: bool
    causal: bool | None
    own: bool


def tokens_of(layers: inputs.Layers, mask: Any, segment_ids: Any) -> np.ndarray:
    """Which text each token of hidden states (…, n, features) belongs to, (sample, token), −1 where it is none.

    Args:
        layers: the states.
        mask: True where there is a token, of a shape that broadcasts to (…, n); `None` where all are some.
        segment_ids: as in `segments`; `None` where a sample is one text.
    """
    *samples, n, _ = layers.shape
    there = np.ones(n, bool) if mask is None else inputs.mask_of("mask", mask, layers.shape[:-1])
    there = np.broadcast_to(there, (*samples, n)).reshape(-1, n)
    texts = np.zeros(there.shape, int) if segment_ids is None else segments("segment_ids", segment_ids, len(there), n)
    return np.where(there, texts, PADDING)


def masks_of(mask: Any, layers: inputs.Layers) -> list[np.ndarray | None]:
    """A mask for each layer with axes (sample, head, query, key), of length 1 where it does not depend on them.

    Layers that were given one mask share its array; `None` without a mask.
    """
    if mask is None:
        return [None] * len(layers)
    *samples, _, queries, keys = layers.shape
    several = mask if isinstance(mask, list | tuple) else [mask]
    if len(several) not in (1, len(layers)) or not several:
        raise ValueError(f"`mask` must be one mask or one for each of {len(layers)} layers, got {len(several)}")
    seen: list[np.ndarray | None] = []
    for number, each in enumerate(several):
        inside = inputs.mask_of(f"mask[{number}]" if len(several) > 1 else "mask", each, layers.shape)
        inside = inside.reshape((1,) * (len(layers.shape) - inside.ndim) + inside.shape)
        if any(size > 1 for size in inside.shape[:-3]):
            inside = np.broadcast_to(inside, (*samples, *inside.shape[-3:]))
        seen.append(
            np.broadcast_to(inside, (*inside.shape[:-2], queries, keys)).reshape(-1, inside.shape[-3], queries, keys)
        )
    return seen * (len(layers) // len(seen))


def segments(name: str, value: Any, samples: int, tokens: int) -> np.ndarray:
    """Numbers of texts (sample, token) from 0 in each sample, −1 for padding; texts may not be interleaved.

    Args:
        name: of the argument.
        value: whole numbers from 1; negative ones are padding.
        samples: how many there are.
        tokens: of each.
    """
    ids = inputs.on_host(value) if hasattr(value, "dtype") else np.asarray(value)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must hold whole numbers, got {inputs.described(value)}")
    if ids.shape != (samples, tokens) and ids.shape != (tokens,):
        raise ValueError(f"`{name}` must have the shape {(samples, tokens)}, got {inputs.described(value)}")
    if (ids == 0).any():
        raise ValueError(
            f"`{name}` must number texts from 1, got 0, which is a text for some and padding for others: pass "
            f"`{name} + 1` where 0 is a text, and np.where({name} == 0, -1, {name}) where it is padding"
        )
    ids = np.broadcast_to(ids, (samples, tokens))
    texts = np.full((samples, tokens), PADDING)
    for sample, row in enumerate(ids):
        kept = row[row > 0]
        starts = np.diff(kept, prepend=-1) != 0
        if starts.sum() > len(np.unique(kept)):
            raise ValueError(f"`{name}` must have the tokens of a text side by side, got others in sample {sample}")
        texts[sample, row > 0] = np.cumsum(starts) - 1
    return texts


def joined(masks: Sequence[np.ndarray | None], more: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """What both masks of a layer let be seen; layers that share both share the result."""
    made: dict[tuple[int, int], np.ndarray | None] = {}
    for one, other in zip(masks, more, strict=True):
        key = (id(one), id(other))
        if key not in made:
            made[key] = other if one is None else one if other is None else one & other
    return [made[id(one), id(other)] for one, other in zip(masks, more, strict=True)]


def not_later(queries: int, keys: int) -> np.ndarray:
    """True where a key is no later than a query, (query, key); the queries are the last of the tokens."""
    return np.tri(queries, keys, keys - queries, dtype=bool)


def cut(visible: Array) -> tuple[Array, Array]:
    """Texts that a mask leaves apart, (…, token), counted from 0, and which tokens are none; it may be traced.

    A text ends where no query on one side of the place may see a key on the other. A token is padding if no query may
    see it, unless queries do not see themselves in general and this one sees something.

    Args:
        visible: (…, query, key), True where a query may see a key in some layer and head.
    """
    n = visible.shape[-1]
    index, kept = jnp.arange(n), jnp.any(visible, axis=-2)
    itself = jnp.diagonal(visible, axis1=-2, axis2=-1)
    loops = 10 * jnp.sum(itself, axis=-1, keepdims=True) >= 9 * jnp.sum(kept, axis=-1, keepdims=True)  # as DIAGONAL
    kept = kept | (~loops & jnp.any(visible, axis=-1))
    pairs = visible & kept[..., :, None]
    index = jnp.broadcast_to(index, pairs.shape[:-1])
    first = jnp.minimum(jnp.min(jnp.where(pairs, index[..., None, :], n), axis=-1), index)
    last = jnp.maximum(jnp.max(jnp.where(pairs, index[..., None, :], -1), axis=-1), index)
    # A place is crossed where a query behind it sees a key before it, or the other way round.
    before = jax.lax.cummin(first, axis=first.ndim - 1, reverse=True) < index
    after = jnp.concatenate([jnp.full_like(last[..., :1], -1), jax.lax.cummax(last, axis=last.ndim - 1)[..., :-1]], -1)
    starts = ~(before | (after >= index)) & kept
    return jnp.maximum(jnp.cumsum(starts, axis=-1) - 1, 0), ~kept


def texts_of(masks: Sequence[np.ndarray | None], causal: bool, n: int, samples: int) -> np.ndarray:
    """The texts (sample, token) that the masks of all layers and heads leave apart."""
    distinct = {id(mask): mask for mask in masks}.values()
    if any(mask is None for mask in distinct):
        return np.zeros((samples, n), int)
    visible: Any = False
    for mask in distinct:
        assert mask is not None
        visible = visible | np.any(mask, axis=1)
    visible = np.broadcast_to(visible & np.tri(n, dtype=bool) if causal else visible, (len(visible), n, n))
    numbers, padding = (np.asarray(each) for each in _cut(jnp.asarray(visible)))
    return np.broadcast_to(np.where(padding, PADDING, numbers), (samples, n))


_cut = jax.jit(cut)


def record_of(whole: np.ndarray, stated: bool, texts: Texts) -> Seen:
    """The record of a layer.

    Rows that see nothing may hold anything, so that they need a mask. In others weights are known to be 0 where zeros
    told that a key is hidden; where a statement did, the mask is there to check them.
    """
    keys = whole.sum(-1)
    mask = whole if stated else None if (keys > 0).all() else (keys > 0)[..., None]
    return Seen(mask, keys, whole.sum(-2), texts)


class Traced(NamedTuple):
    """The record of one layer in a compiled step, where nothing is looked for but causality.

    mask: (sample, head, query, key), axes of length 1 where they are alike. texts: of each query, (sample, query), −1
    where it is none. starts: the first key of this text, (sample, query).
    """

    mask: Array
    texts: Array
    starts: Array


def traced(mask: Array) -> Traced:
    """What the queries of a layer may see, of its mask (sample, head, query, key), which may be traced."""
    queries, keys = mask.shape[-2:]
    columns = jnp.where(jnp.any(mask, axis=(1, 2)), 0, PADDING)
    rows = jnp.zeros((len(mask), queries), columns.dtype)
    if queries == keys:
        numbers, padding = cut(jnp.any(mask, axis=1))
        rows = columns = jnp.where(padding, PADDING, numbers)
        mask = mask & ~padding[:, None, :, None]
    own = rows[:, :, None] == columns[:, None]
    starts = jnp.min(jnp.where(own, jnp.arange(keys)[None, None], keys - 1), axis=-1)
    return Traced(mask, rows, starts)


def traced_causal(p: Float[Array, "sample head query key"], mask: Array | None) -> Array:
    """The mask, and where all weights above the diagonals of a square are 0, those of causality with it."""
    queries, keys = p.shape[-2:]
    mask = jnp.ones((1, 1, queries, keys), bool) if mask is None else mask
    if queries != keys:
        return mask
    later = jnp.asarray(np.triu(np.ones((queries, keys), bool), 1))[None, None]
    return mask & (jnp.any(jnp.where(mask & later, p, 0) != 0) | ~later)


def rows_of_text(counted: Bool[Array, "sample head row"], texts: Array | None) -> Int[Array, "sample head row"]:
    """How many of the rows that count the text of each row has.

    Args:
        counted: which rows count.
        texts: of each row, (sample, row); `None` where a sample is one text.
    """
    if texts is None:
        return jnp.broadcast_to(jnp.sum(counted, axis=-1, keepdims=True), counted.shape)
    return jnp.sum(same_text(texts) & counted[:, :, None], axis=-1)


def over_texts(values: Array, counted: Array, texts: Array | None) -> Array:
    """Means over the rows that count, of each text, as a number of every row of it; arguments as in `rows_of_text`."""
    counted = jnp.broadcast_to(counted, values.shape)
    values = jnp.where(counted, values, 0)
    if texts is None:
        total = jnp.broadcast_to(jnp.sum(values, axis=-1, keepdims=True), values.shape)
    else:
        total = jnp.sum(jnp.where(same_text(texts), values[:, :, None], 0), axis=-1)
    return total / rows_of_text(counted, texts).astype(values.dtype)


def same_text(texts: Array) -> Array:
    """True where a query and a key are of one text, (sample, 1, query, key); negative numbers are none."""
    return ((texts[:, :, None] == texts[:, None]) & (texts >= 0)[:, None])[:, None]
