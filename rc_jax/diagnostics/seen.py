"""What each query may see: decided here once for every layer, sample and head. Every measure reads this record.

It comes from what the caller states: a mask, numbers of texts, causality, windows. Where nothing is stated it comes
from exact zeros. A weight of exactly 0 has one of two causes: the key is hidden, or its logit lies so far below others
that its exponential underflows. One zero does not tell them apart; a pattern does. Zeros are taken for a mask where
they fill a whole region with a regular edge, hardly occur elsewhere, and stand beside weights of ordinary size.
Padding and the ends of texts are sought in each sample over all layers and heads; windows, prefixes and blocks in each
layer, then in its samples and in its heads. Whatever else is 0 counts as seen, and a note says so.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rc_jax._numerics import arguments
from rc_jax.diagnostics import inputs

CHANCE = 1e-6
"""Zeros are taken for a mask if scattered zeros of the rate that is seen elsewhere would be so with less chance."""
DIAGONAL = 0.9  # share of the tokens that must have weight on their own key: every mask lets them see it
FEW = 0.9  # a head is looked at by itself if it has weight on a smaller share of the keys that its layer may see
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


class Support(NamedTuple):
    """Where a layer has weight, of the largest magnitude over its heads; axes (sample, query, …)."""

    bits: np.ndarray  # packed along the keys: True where some head has weight
    first: np.ndarray  # the first key with weight, and the last
    last: np.ndarray
    at_first: np.ndarray  # the magnitudes there and one key further inside, on a last axis of two
    at_last: np.ndarray
    largest: np.ndarray  # (sample, key): largest magnitude on a key
    even: np.ndarray  # (sample, query): rows that are even over all keys, as those of a softmax that sees nothing
    void: np.ndarray  # rows that are even, all 0 or not finite
    counts: np.ndarray  # (sample, head, query): keys with weight
    smallest: float  # magnitude of the dtype above 0

    @property
    def seen(self) -> np.ndarray:
        """(sample, query, key)."""
        return np.unpackbits(self.bits, axis=-1, count=self.largest.shape[-1]).astype(bool)


# ---------------------------------------------------------------------------------------------------- what is stated


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


# ------------------------------------------------------------------------------------------------- what zeros tell


@jax.jit
def _peak(weights: Float[Array, "... head query key"]) -> tuple[Array, Array]:
    return jnp.max(jnp.abs(weights), axis=-3), jnp.sum(weights != 0, axis=-1)


def support_of(layers: inputs.Layers, layer: int, mask: np.ndarray | None = None) -> Support:
    """Where the layer has weight, in rows that may see something under the mask (sample, head, query, key)."""
    heads, queries, keys = layers.shape[-3:]
    weights = layers[layer]
    if mask is not None and mask.shape[1] > 1:  # rows that see nothing in one head say nothing of others
        rows = np.broadcast_to(mask.any(-1), (math.prod(weights.shape[:-3]), heads, queries))
        if not rows.all():
            weights = jnp.where(rows[..., None], weights.reshape(-1, heads, queries, keys), 0)
    peak, counts = (np.asarray(each) for each in _peak(weights))
    smallest = float(jnp.finfo(layers.dtype).smallest_subnormal)
    return _support(peak.reshape(-1, queries, keys), counts.reshape(-1, heads, queries), smallest, mask)


def _support(peak: np.ndarray, counts: np.ndarray, smallest: float, mask: np.ndarray | None = None) -> Support:
    n = peak.shape[-1]
    if mask is not None:
        peak = np.where(np.any(mask, axis=(1, 3))[..., None], peak, 0)  # whatever hidden rows hold, NaN included
    seen: np.ndarray = np.not_equal(peak, 0)
    first, last = seen.argmax(-1), n - 1 - seen[..., ::-1].argmax(-1)
    at_first, at_last = (
        np.take_along_axis(peak, np.clip(np.stack([key, key + inward], -1), 0, n - 1), -1)
        for key, inward in ((first, 1), (last, -1))
    )
    # A softmax over keys that are all hidden is even, 0 or NaN.
    most, least = peak.max(-1), peak.min(-1)
    even = seen.all(-1) & (most - least <= 1e-5 * most) & (most <= 1.01 / n)
    void = even | ~seen.any(-1) | np.isnan(most)
    largest = np.where(void[..., None], 0, peak).max(-2)
    return Support(np.packbits(seen, axis=-1), first, last, at_first, at_last, largest, even, void, counts, smallest)


def farthest(layers: inputs.Layers, pairs: Bool[np.ndarray, "query key"]) -> bool:
    """Whether a query that sees something has weight on one of these pairs, in the first layer."""
    support = support_of(layers, 0)
    return bool((support.seen & ~support.void[:, :, None])[:, pairs].any())


def read(
    layers: inputs.Layers,
    *,
    mask: Any = None,
    segment_ids: Any = None,
    causal: bool | None = None,
    texts: np.ndarray | None = None,
    windows: Sequence[np.ndarray | None] | None = None,
    numbers: Sequence[int],
    own: bool,
) -> Found:
    """What the queries of all layers may see, of the arguments of a public function.

    Args:
        layers: the weights.
        mask: an array, a list of them, "causal" or "none"; `None` where nothing is said.
        segment_ids: numbers of texts, as in `segments`.
        causal: whether no query sees a later key; `None` where nobody has said.
        texts: 0 where a token is no padding, −1 where it is, (sample, token); `None` where nobody has said.
        windows: for each layer what its queries may see, (query, key), `None` where it is not known.
        numbers: of the layers, for notes and errors.
        own: whether each query has a key of its own.
    """
    word = isinstance(mask, str)
    if word:
        arguments.one_of(inputs.MASKS)("mask", mask)
        if causal not in (None, mask == "causal"):
            raise ValueError(f"`causal` must agree with mask={mask!r}, got {causal}")
        mask, causal = None, mask == "causal"
    masks, known = masks_of(mask, layers), [word or mask is not None] * len(layers)
    if windows is not None:
        known = [given or each is not None for given, each in zip(known, windows, strict=True)]
        masks = joined(masks, [None if each is None else each[None, None] for each in windows])
    if segment_ids is not None:
        texts = segments("segment_ids", segment_ids, math.prod(layers.shape[:-3]), layers.shape[-1])
    cut = segment_ids is not None or mask is not None
    stated = Stated(masks, known, word or mask is not None, texts, cut, causal, own)
    return find(layers, stated, numbers)


def find(layers: inputs.Layers, stated: Stated, numbers: Sequence[int]) -> Found:
    """What the queries of all layers may see.

    Args:
        layers: the weights.
        stated: what the caller says.
        numbers: of the layers, for notes and errors.

    Raises:
        ValueError: weights contradict what is stated, no row of a layer may see two keys, or axes are not what they
            are taken for.
    """
    supports = [support_of(layers, layer, stated.masks[layer]) for layer in range(len(layers))]
    found = _square(layers, supports, stated, numbers) if stated.own else _rectangular(supports, stated)
    return found._replace(notes=(*found.notes, *of_nothing(found.seen, numbers)))


def _square(layers: inputs.Layers, supports: Sequence[Support], stated: Stated, numbers: Sequence[int]) -> Found:
    """Of queries that are the tokens that they look at."""
    samples, n = supports[0].void.shape
    causal, hidden = _causality(supports, stated, numbers)
    notes: list[str] = []
    texts = stated.texts
    if texts is None and stated.told:
        texts = texts_of(stated.masks, causal, n, samples)
    elif texts is None or not (stated.cut or stated.told):
        if texts is None:
            _check_axes(layers, supports, causal)
        texts, notes = _texts(supports, texts, causal)
    assert texts is not None
    allowed = np.tri(n, dtype=bool)[None] if causal else np.ones((1, n, n), bool)
    if texts.any():
        allowed = allowed & (texts[:, :, None] == texts[:, None]) & (texts >= 0)[:, :, None]
    said = _Said(notes, samples, "causal" if causal else "none")
    record = Texts(texts, texts, np.zeros(samples, int))
    made: dict[Any, Seen] = {}
    seen: list[Seen] = []
    for layer, (each, mask, known, blank) in enumerate(zip(supports, stated.masks, stated.known, hidden, strict=True)):
        found = None if known else _of_layer(layers, layer, each, allowed, blank, said, numbers[layer])
        key = (id(mask), None if found is None and not blank.any() else layer)
        if key not in made:
            whole = allowed[:, None]
            for more in (mask, found, ~blank[:, None, :, None] if blank.any() else None):
                whole = whole if more is None else whole & more
            made[key] = _record(whole, mask is not None or stated.texts is not None, record)
        seen.append(made[key])
    return Found(seen, causal, said.notes())


def _record(whole: np.ndarray, stated: bool, texts: Texts) -> Seen:
    """The record of a layer.

    Rows that see nothing may hold anything, so that they need a mask. In others weights are known to be 0 where zeros
    told that a key is hidden; where a statement did, the mask is there to check them.
    """
    keys = whole.sum(-1)
    mask = whole if stated else None if (keys > 0).all() else (keys > 0)[..., None]
    return Seen(mask, keys, whole.sum(-2), texts)


def seen_by(mask: np.ndarray | None, shape: tuple[int, int], causal: bool, samples: int = 1) -> Seen:
    """The record of a layer whose mask (sample, head, query, key) is known; `None` hides nothing but later keys.

    Args:
        mask: axes of length 1 where samples or heads are alike.
        shape: how many queries look at how many keys.
        causal: whether no query sees a later key.
        samples: how many there are.
    """
    queries, keys = shape
    if mask is None:
        counts = np.arange(1, keys + 1)[keys - queries :] if causal else np.full(queries, keys)
        seen_of = np.arange(keys, 0, -1) if causal else np.full(keys, queries)
        nothing = np.zeros((samples, queries), int), np.zeros((samples, keys), int)
        seen = Seen(None, counts[None, None], seen_of[None, None], Texts(*nothing, np.full(samples, keys - queries)))
    else:
        whole = mask & not_later(queries, keys) if causal else mask
        if queries == keys:
            texts = texts_of([whole], False, keys, samples)
            record = Texts(texts, texts, np.zeros(samples, int))
            if texts.any():
                whole = np.broadcast_to(whole, (samples, *whole.shape[1:])) & (texts >= 0)[:, None, :, None]
        else:
            columns = np.where(whole.any((1, 2)), 0, PADDING)
            columns = np.broadcast_to(columns, (samples, keys))
            record = Texts(np.zeros((samples, queries), int), columns, np.full(samples, keys - queries))
        seen = _record(whole, True, record)
    list(of_nothing([seen], (0,)))
    return seen


def _causality(
    supports: Sequence[Support], stated: Stated, numbers: Sequence[int]
) -> tuple[bool, list[Bool[np.ndarray, "sample query"]]]:
    """Whether no query sees a later key, and for each layer the queries that therefore see nothing.

    The rows of these are even over all keys, later ones among them.
    """
    samples, n = supports[0].void.shape
    kept = np.ones((1, n), bool) if stated.texts is None else stated.texts >= 0
    late = [(each.last > np.arange(n)) & kept for each in supports]
    later = [number for number, each, some in zip(numbers, supports, late, strict=True) if (some & ~each.void).any()]
    if stated.causal and later:
        raise ValueError(f"`weights` must be 0 above the diagonal if `causal`, got others in layer {later[0]}")
    even = [each.even & some for each, some in zip(supports, late, strict=True)]
    causal = not later if stated.causal is None else stated.causal
    if stated.causal is None and causal and any(each.any() for each in even):
        # Even rows say nothing; the others must leave no doubt.
        rows = np.sum([(~each.void & kept).sum(0) for each in supports], axis=0)
        causal = _certain(int((rows * np.arange(n)[::-1]).sum()), 0, int((rows * np.arange(1, n + 1)).sum()))
    nothing = np.zeros((samples, n), bool)
    return causal, [each if causal else nothing for each in even]


def _check_axes(layers: inputs.Layers, supports: Sequence[Support], causal: bool) -> None:
    """Refuse samples in the place of layers, or of heads, where padding tells: both read the same tokens."""
    if layers.stacked and len(layers.shape) == 3:
        parts = zip(*(each[:-1] for each in supports), strict=True)
        whole = Support(*map(np.concatenate, parts), smallest=supports[0].smallest)
        way = (
            "Of nn.MultiheadAttention, which returns (batch, heads, queries, keys), pass [weights]; of layers, pass "
            "`mask`"
        )
        _check_alike(_texts([whole], None, causal)[0], "layers on its first axis, which", way)
    if len(layers.shape) == 3:
        for layer, each in enumerate(supports):
            if (each.counts != each.counts[:, :1]).any():
                peak: np.ndarray = np.abs(np.asarray(layers[layer]))
                way = (
                    'Of samples, averaged over heads, pass axes=("sample", "query", "key"); of heads, pass `mask` or '
                    'axes=("head", "query", "key")'
                )
                if peak[peak > 0].min(initial=1) <= each.smallest**0.5:
                    continue  # zeros may be the end of small weights
                texts, _ = _texts([_support(peak, each.counts.swapaxes(0, 1), each.smallest)], None, causal)
                _check_alike(texts, "heads on the axis before the queries, all of which", way)


def _check_alike(texts: np.ndarray, what: str, way: str) -> None:
    real = texts >= 0
    other = np.flatnonzero((real != real[:1]).any(1))
    if len(other):
        raise ValueError(
            f"`weights` must have {what} read the same tokens, got padding that differs, as that of samples does: "
            f"{real[0].sum()} tokens in entry 0 and {real[other[0]].sum()} in entry {other[0]}. {way}"
        )


def _texts(supports: Sequence[Support], known: np.ndarray | None, causal: bool) -> tuple[np.ndarray, list[str]]:
    """Numbers of texts (sample, token), −1 for padding, and what is said of them.

    Args:
        supports: one for each layer.
        known: −1 where a token is known to be padding; `None` where that is looked for.
        causal: whether no query sees a later key.
    """
    samples, n = supports[0].void.shape
    bits: Any = 0
    for each in supports:
        bits = bits | np.where(each.void[..., None], np.uint8(0), each.bits)
    void = np.all([each.void for each in supports], axis=0)
    empty = np.all([each.void & ~each.even for each in supports], axis=0)
    largest = np.max([each.largest for each in supports], axis=0)
    texts = np.zeros((samples, n), int) if known is None else np.minimum(known, 0)
    doubtful, even = list[int](), list[int]()  # an even last row says nothing, unless it is so in some samples alone
    for sample in range(samples):
        used = np.unpackbits(bits[sample], axis=-1, count=n).astype(bool)
        ordinary = supports[0].smallest ** 0.5
        kept = texts[sample] >= 0
        if known is None:
            kept, doubt = _kept(used, void[sample], empty[sample], largest[sample], ordinary, causal)
            doubtful += [sample] * doubt
            even += [sample] * bool(kept.all() and void[sample, -1] and not used[:, -1].any())
        texts[sample, ~kept] = PADDING
        clear = bool(largest[sample, kept].min(initial=1) > ordinary)
        texts[sample, kept] = _pieces(used[kept][:, kept], clear, causal)
    doubtful = sorted({*doubtful, *even}) if len(even) < samples else doubtful
    notes = [] if known is not None or (texts >= 0).all() else [_of_padding(texts >= 0)]
    several = np.flatnonzero(texts.max(1) > 0)
    if len(several):
        counts = ", ".join(f"{texts[sample].max() + 1} in sample {sample}" for sample in several[:4])
        more = f" and others in {len(several) - 4} samples" if len(several) > 4 else ""
        notes.append(
            f"No weight of any layer goes from one to another of several stretches of tokens, {counts}{more}: each is "
            'taken for a text of its own. Pass `segment_ids` or `mask` to be sure; `mask="WORD"` counts them as one.'
        )
    if doubtful and samples > 1:  # zeros of a single sample are told of elsewhere
        notes.append(_of_doubt(doubtful))
    return texts, notes


def _of_doubt(samples: Sequence[int]) -> str:
    return (
        f"Sample{'s' * (len(samples) > 1)} {', '.join(map(str, samples))}: no query has weight on a token at an end, "
        "itself included. This may be padding, too little to be sure. They count as seen: pass `mask` if one hides "
        "them."
    )


def _open(used: np.ndarray) -> np.ndarray:
    """Places between two tokens over which no query looks: True at k where nothing crosses from k to k + 1."""
    n = len(used)
    index, some = np.arange(n), used.any(1)
    first = np.minimum(np.where(some, used.argmax(1), index), index)
    last = np.maximum(np.where(some, n - 1 - used[:, ::-1].argmax(1), index), index)
    return (np.minimum.accumulate(first[::-1])[::-1][1:] >= index[1:]) & (np.maximum.accumulate(last)[:-1] < index[1:])


def _kept(
    used: np.ndarray, void: np.ndarray, empty: np.ndarray, largest: np.ndarray, ordinary: float, causal: bool
) -> tuple[np.ndarray, bool]:
    """True where a token is no padding, and whether that is in doubt.

    Padding are tokens that no query of any layer has weight on, at an end of the sample or between two texts. `void`
    are rows that may see nothing, `empty` those that have no weight at all.
    """
    n = len(used)
    alive: np.ndarray = np.any(used, axis=0)
    everything = np.ones(n, bool)
    if alive.all() or alive.sum() < 3:
        return everything, False
    index = np.flatnonzero(alive)
    inner = ~_open(used[index][:, index])
    for before, after in zip(index[:-1][inner], index[1:][inner], strict=True):
        alive[before:after] = True  # a token inside a text
    if alive.all():
        return everything, False
    lower = np.tri(n, dtype=bool)
    # Where real tokens see later ones as well as earlier ones, zeros on later keys count too.
    inside = alive[:, None] & alive[None]
    both = not causal and used[inside & ~lower].mean() >= 0.9 * used[inside & lower].mean()
    possible = np.ones((n, n), bool) if both else lower
    inside, outside = inside & possible, ~void[:, None] & ~alive[None] & possible
    # A row that no layer lets see anything settles it, but for a last one that is even, which it may be of itself.
    settled = (void & ~alive)[: n - 1].any() or bool(empty[-1] and not alive[-1])
    hidden = int(outside.sum()) if (outside & lower).any() else 0
    if used.diagonal()[alive].mean() >= DIAGONAL and (
        settled
        or (largest[alive].min() > ordinary and _certain(hidden, int((inside & ~used).sum()), int(inside.sum())))
    ):
        return alive, False
    return everything, bool(hidden)


def _pieces(used: np.ndarray, ordinary: bool, causal: bool) -> np.ndarray:
    """Numbers of the texts of a sample's real tokens; all 0 where zeros leave a doubt that they are several."""
    n = len(used)
    one = np.zeros(n, int)
    if n < 4 or not ordinary or not (ends := _open(used)).any() or used.diagonal().mean() < DIAGONAL:
        return one
    texts = np.concatenate([[0], np.cumsum(ends)])
    same = texts[:, None] == texts
    # Only as far as any query looks: beyond a window zeros tell nothing of texts.
    distance = np.arange(n)[:, None] - np.arange(n)
    possible = (distance <= distance[used].max()) & (distance >= (0 if causal else distance[used].min()))
    inside = same & possible
    zeros, hidden = int((inside & ~used).sum()), int((possible & ~same).sum())
    enough = (inside.sum(1) >= 2).mean() > 0.5
    sure = enough and zeros <= 0.1 * inside.sum() and _certain(hidden, zeros, int(inside.sum()))
    return texts if sure else one


def _of_padding(real: np.ndarray) -> str:
    padded = np.flatnonzero(~real.all(1))
    counts = ", ".join(f"{int((~real[sample]).sum())} of sample {sample}" for sample in padded[:4])
    more = f" and others of {len(padded) - 4} samples" if len(padded) > 4 else ""
    return (
        f"No query of any layer has weight on {counts}{more}: these tokens are taken for padding and left out. Pass "
        '`attention_mask` or `mask` to be sure; `mask="causal"` or "none" counts them.'
    )


class _Said:
    """Sentences on what zeros were taken for, gathered by the layers, samples and heads that they are true of."""

    def __init__(self, notes: Sequence[str], samples: int, word: str):
        self.first, self.samples, self.word = list(notes), samples, word
        # Layers by text, samples and heads.
        self.places: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[int]] = {}

    def add(self, text: str, layer: int, samples: Sequence[int] = (), heads: Sequence[int] = ()) -> None:
        if text:
            of = tuple(samples) if len(samples) < self.samples else ()
            self.places.setdefault((text, of, tuple(heads)), []).append(layer)

    def notes(self) -> tuple[str, ...]:
        alike: dict[tuple[str, tuple[int, ...], tuple[int, ...]], set[int]] = {}
        for (text, samples, heads), layers in self.places.items():
            alike.setdefault((text, samples, tuple(layers)), set()).update(heads)
        notes = [*self.first]
        for (text, samples, layers), heads in alike.items():
            of = [listed(each, name) for each, name in ((samples, "sample"), (sorted(heads), "head")) if each]
            notes.append(f"{', '.join([listed(layers), *of])}: {text}")
        return tuple(note.replace("WORD", self.word) for note in notes)


def _of_layer(
    layers: inputs.Layers,
    layer: int,
    support: Support,
    allowed: np.ndarray,
    blank: np.ndarray,
    said: _Said,
    number: int,
) -> np.ndarray | None:
    """What zeros hide in a layer, (sample, head, query, key): in all of its heads, then in single ones.

    Args:
        layers: the weights.
        layer: which of them.
        support: where it has weight.
        allowed: what texts and causality let be seen, (sample, query, key).
        blank: queries that see nothing, (sample, query).
        said: takes what is to be said.
        number: of the layer in the model.
    """
    samples, heads, n = support.counts.shape
    causal = said.word == "causal"
    whole = allowed & ~blank[:, :, None] if blank.any() else allowed
    mask = _search(support, support.seen, whole, causal, said, number, ())
    if heads == 1:
        return None if mask is None else mask[:, None]
    # A head is looked at by itself where it has weight on far fewer keys than its layer.
    open_rows = (whole if mask is None else whole & mask).sum(-1)
    counted = np.where(open_rows[:, None] > 0, support.counts, 0).sum(-1)
    few = np.flatnonzero((counted < FEW * open_rows.sum(-1)[:, None]).any(0))
    parts: dict[int, np.ndarray] = {}
    by_head: np.ndarray | None = None
    for head in few:
        peak = np.abs(np.asarray(layers[layer].reshape(samples, heads, n, n)[:, head]))
        peak = np.where(whole, peak, 0)
        own = _support(peak, support.counts[:, head : head + 1], support.smallest)
        if peak[peak > 0].min(initial=1) > support.smallest**0.5:  # else zeros may be the end of small weights
            inside = whole if mask is None else whole & mask
            found = _search(own, own.seen, inside, causal, said, number, (int(head),))
            if found is not None:
                parts[int(head)] = found
    if parts:
        first = np.ones((1, n, n), bool) if mask is None else mask
        shape = (max(len(each) for each in (first, *parts.values())), n, n)
        by_head = np.stack([np.broadcast_to(parts.get(head, first), shape) for head in range(heads)], 1)
    return by_head if by_head is not None else None if mask is None else mask[:, None]


def _search(
    support: Support,
    seen: np.ndarray,
    allowed: np.ndarray,
    causal: bool,
    said: _Said,
    number: int,
    heads: Sequence[int],
) -> np.ndarray | None:
    """The mask (sample, query, key) that zeros are taken for, in all samples together, then in each; `None` if none."""
    samples, n = support.void.shape
    zeros = allowed & ~seen
    if not zeros.any():
        return None
    where = "in this head" if heads else "in every head"
    everywhere, reached = np.any(allowed, axis=0), np.any(seen & allowed, axis=0)
    mask, text, hidden = None, "", everywhere & ~reached
    if hidden.any():
        mask, text = _mask(support, reached, everywhere, causal, where)
        told = f"{hidden.sum()} of {everywhere.sum()} pairs of query and key have weight exactly 0 {where} and sample"
        said.add(text or f"{told}, {NO_PATTERN}", number, (), heads)
    if samples == 1:
        return None if mask is None else mask[None]
    # What a sample lacks beyond that is its own.
    inside = np.broadcast_to(allowed if mask is None else allowed & mask, seen.shape)
    left, size = (inside & ~seen).sum((1, 2)), inside.sum((1, 2))
    own: dict[int, np.ndarray] = {}
    texts: dict[str, list[int]] = {}
    for sample in np.flatnonzero(left):
        one = Support(*(each[sample : sample + 1] for each in support[:-1]), smallest=support.smallest)
        found, text = _mask(one, seen[sample] & inside[sample], inside[sample], causal, where)
        if found is not None:
            own[int(sample)] = found
        elif left[sample] > (1 - FEW) * size[sample]:
            text = f"more than a tenth of the pairs of query and key have weight exactly 0 {where}, {NO_PATTERN}"
        if text:
            texts.setdefault(text, []).append(int(sample))
    for text, which in texts.items():
        said.add(text, number, which, heads)
    if not own:
        return None if mask is None else mask[None]
    first = np.ones((n, n), bool) if mask is None else mask
    return np.stack([own.get(sample, first) for sample in range(samples)])


NO_PATTERN = "in no pattern that only a mask leaves. They count as seen: pass `mask` if one hides them."


def _mask(
    support: Support, seen: np.ndarray, allowed: np.ndarray, causal: bool, where: str
) -> tuple[np.ndarray | None, str]:
    """The window, the prefix or the blocks that zeros are taken for, and the sentence that says so; `None` and ""."""
    n = len(seen)
    distance = np.arange(n)[:, None] - np.arange(n)[None]  # of a key behind its query
    several, own = allowed.sum(-1) >= 2, allowed.diagonal()
    if not seen.any() or not own.any() or seen.diagonal()[own].mean() < DIAGONAL:
        return None, ""
    back, ahead = int(distance[seen].max()), int(-distance[seen].min())
    window = allowed & (distance <= back) & (distance >= -ahead)
    first, last = seen.argmax(-1), n - 1 - seen[:, ::-1].argmax(-1)
    interval = allowed & (np.arange(n) >= first[:, None]) & (np.arange(n) <= last[:, None])
    regular = all((np.diff(end[several]) >= 0).all() for end in (first, last))
    says = f'all other weights are exactly 0 {where}. Pass `mask`, or `mask="WORD"` if all keys count.'
    reach = f"{back + 1} keys" if causal else f"{back} keys before to {ahead} after"
    prefix = int(last[0]) + 1
    is_prefix = prefix > 1 and (interval == (allowed & ((distance >= 0) | (np.arange(n) < prefix)))).all()
    shape = f"a prefix of {prefix} tokens that all see" if is_prefix else "blocks of tokens that see each other"
    readings = [
        (window, _full(seen, allowed, distance, (back, -ahead)), f"read as a window, {reach}, because {says}"),
        (interval, regular and seen[interval].all(), f"read as {shape}, because {says}"),
    ]
    # Keys that every query sees, such as a sink, beside a window.
    rate = (seen & allowed).sum(0) / np.maximum(allowed.sum(0), 1)
    always = int(np.argmin(np.append(rate >= DIAGONAL, False)))
    rest = seen & (np.arange(n) >= always)
    if 0 < always < n // 2 and rest.any():
        near, far = int(distance[rest].max()), int(-distance[rest].min())
        both = allowed & ((np.arange(n) < always) | (distance <= near) & (distance >= -far))
        keys = "the first key" if always == 1 else f"the first {always} keys"
        reach = f"{near + 1} keys" if causal else f"{near} keys before to {far} after"
        fits = _full(rest, allowed & (np.arange(n) >= always), distance, (near, -far))
        readings.append((both, fits, f"read as {keys} and a window, {reach}, because {says}"))
    for mask, fits, text in readings:
        zeros, hidden = int((mask & ~seen).sum()), int((allowed & ~mask).sum())
        enough = (mask.sum(-1) >= 2)[several].mean() > 0.5
        if (
            fits
            and enough
            and zeros <= 0.1 * mask.sum()
            and _certain(hidden, zeros, int(mask.sum()))
            and _ordinary(support, mask, allowed)
        ):
            return mask, text
    return None, ""


def _full(seen: np.ndarray, allowed: np.ndarray, distance: np.ndarray, edges: tuple[int, int]) -> bool:
    """Whether the keys at the edges of a window have weight in at least half of the rows that reach them."""
    return min(float(seen[(distance == edge) & allowed].mean()) for edge in set(edges)) >= 0.5


def _certain(hidden: int, zeros: int, inside: int) -> bool:
    """Whether zeros of the rate inside would hardly fill all that is hidden."""
    return bool(hidden * np.log((zeros + 1) / (inside + 1)) < np.log(CHANCE))


def _ordinary(support: Support, mask: np.ndarray, allowed: np.ndarray) -> bool:
    """Whether weights at the edge of a mask are such that the next one would not underflow, so that it is hidden.

    The logits of local attention fall with the distance. From the last two keys the next is guessed. It lies three
    times as far below the last as that lies below the one before, as where logits fall with the square of the distance,
    but at least a third as far as the last lies below 1.
    """
    n = len(mask)
    ends = (
        (support.first, support.at_first, mask.argmax(-1), allowed.argmax(-1)),
        (support.last, support.at_last, n - 1 - mask[:, ::-1].argmax(-1), n - 1 - allowed[:, ::-1].argmax(-1)),
    )
    for key, weights, edge, end in ends:
        cut = (key == edge[None]) & (edge != end)[None]
        if cut.any():
            with np.errstate(divide="ignore"):
                last, inner = np.median(np.log(weights[cut]), axis=0)
            if not last - max(3 * max(0, inner - last), -last / 3) > np.log(support.smallest):
                return False
    return True


# ------------------------------------------------------------------- queries that are not the tokens that they look at


def _rectangular(supports: Sequence[Support], stated: Stated) -> Found:
    """Causality, of queries that are the last of the tokens, and keys that are padding or empty places of a cache."""
    samples, queries = supports[0].void.shape
    keys = supports[0].largest.shape[1]
    told = any(mask is not None for mask in stated.masks)
    if told:
        seen = [np.any(mask, axis=(1, 2)) for mask in stated.masks if mask is not None]
        real, doubtful = np.broadcast_to(np.any(np.broadcast_arrays(*seen), axis=0), (samples, keys)), []
    else:
        real, doubtful = np.ones((samples, keys), bool), []
        if not all(stated.known):
            real, doubtful = _filled(supports, stated.causal)
    # The last query sees the last key that is filled, if queries are the last of the tokens.
    back = keys - real[:, ::-1].argmax(1) - queries
    later = np.arange(keys) > np.arange(queries)[:, None] + back[:, None, None]
    used = np.any([each.seen & ~(each.void & ~each.even)[..., None] for each in supports], axis=0)
    possible = bool((back >= 0).all()) and not bool((used & later).any())
    if stated.causal and not possible:
        raise ValueError(
            f"`weights` must have, if `causal`, queries that are the last of the tokens, and no weight on later keys, "
            f"got others of {queries} queries and {keys} keys"
        )
    causal = possible and queries > 1 if stated.causal is None else stated.causal
    allowed = np.broadcast_to(real[:, None], (samples, queries, keys)) & (~later if causal else True)
    together = np.any(used, axis=0)
    if not told and not all(stated.known):
        _check_offsets(together)
    hidden = int((np.any(allowed, axis=0) & ~together).sum())
    doubtful = doubtful if hidden == 0 else []  # or they are told of below
    padded = not told and not real.all()
    which = "as the last of them" if causal else "padding apart" if padded else "all of them"
    notes = [f"{looking(queries, keys)}{'' if hidden and which == 'all of them' else f', {which}'}."]
    if padded and causal and real[:, 0].all():
        slots = ", ".join(map(str, sorted({int(each) for each in real.sum(1)})))
        notes.append(f"Keys behind the last one with weight are taken for empty places of a cache: {slots} are filled.")
    elif padded:
        notes.append(_of_padding(real))
    if doubtful:
        notes.append(_of_doubt(doubtful))
    if hidden and not all(stated.known):
        notes.append(
            f"{hidden} pairs of query and key have weight exactly 0 in every head, layer and sample. They count as "
            "seen: pass `mask` if padding or a window hides them."
        )
    texts = Texts(np.zeros((samples, queries), int), np.where(real, 0, PADDING), back)
    made: dict[int, Seen] = {}
    for mask in stated.masks:
        if id(mask) not in made:
            whole = allowed[:, None] if mask is None else allowed[:, None] & mask
            made[id(mask)] = _record(whole, mask is not None, texts)
    return Found([made[id(mask)] for mask in stated.masks], causal, tuple(notes))


def _check_offsets(used: np.ndarray) -> None:
    """Refuse columns that are distances of keys from their queries: those beyond the ends of the text are empty."""
    queries, columns = used.shape
    half = columns // 2
    if columns % 2 and half and queries > columns:
        key = np.arange(queries)[:, None] + np.arange(columns) - half
        beyond = (key < 0) | (key >= queries)
        if not used[beyond].any() and _certain(int(beyond.sum()), int((~used[~beyond]).sum()), int((~beyond).sum())):
            raise ValueError(
                f"`weights` must have a column for each key, got {columns} columns of {queries} queries, which may be "
                f"keys, or, as in Longformer, the distances from {-half} to {half} of keys from their queries: "
                'axes=("sample", "head", "query", "offset") reads those; pass `mask` if they are keys'
            )


def looking(queries: int, keys: int) -> str:
    """How many queries look at how many keys, in words."""
    return f"The {queries} queries look at {keys} keys" if queries > 1 else f"The query looks at {keys} keys"


def _filled(supports: Sequence[Support], causal: bool | None) -> tuple[np.ndarray, list[int]]:
    """True where a key is no padding, (sample, key), and samples in which that is in doubt.

    Padding are keys at the ends that no query of a layer looks at. An even row of the last query is not one that sees
    nothing: padding at the start has its own queries first, and at the end it sees the tokens before it.
    """
    samples, keys = supports[0].largest.shape
    largest = np.max([each.largest for each in supports], axis=0)
    real, doubtful = np.ones((samples, keys), bool), list[int]()
    for sample in range(samples):
        looks = [~each.void[sample] for each in supports]
        for each, row in zip(supports, looks, strict=True):
            row[-1] |= each.even[sample, -1]
        rows = [each.seen[sample][row] for each, row in zip(supports, looks, strict=True)]
        alive = np.any([each.any(0) for each in rows], axis=0)
        if not alive.any():
            continue
        start, end = int(alive.argmax()), keys - int(alive[::-1].argmax())
        ends = (np.arange(keys) >= start) & (np.arange(keys) < end)
        if causal:  # the last query sees itself, whatever its weight
            real[sample, end:] = False
        inside = np.concatenate([each[:, ends] for each in rows])
        hidden = len(inside) * int((~ends).sum())
        ordinary = largest[sample, alive].min() > supports[0].smallest ** 0.5
        # In a triangle at the end of what is filled queries see no later key.
        triangle = min(len(rows[0]), inside.shape[1])
        zeros = max(0, int((~inside).sum()) - len(rows) * triangle * (triangle - 1) // 2)
        if ordinary and _certain(hidden, zeros, inside.size):
            real[sample] = ends
        elif hidden:
            doubtful.append(sample)
    return real, doubtful


# --------------------------------------------------------------------------------------------------- what is said


def of_nothing(seen: Sequence[Seen], numbers: Sequence[int]) -> Iterator[str]:
    """Notes on queries, heads and texts that see too little, which are left out of means."""
    empty: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    texts = seen[0].texts
    within = texts.queries >= 0
    counted = np.zeros((len(within), texts.most), bool)
    for each, number in zip(seen, numbers, strict=True):
        several = each.keys >= 2
        if not several.any():
            raise ValueError(f"`mask` must let at least one query see two keys, got none in layer {number}")
        some = several.any(1) & within
        for text in range(texts.most):
            counted[:, text] |= (some & (texts.queries == text)).any(1)
        blind = (each.keys == 0) & within[:, None]
        heads = np.flatnonzero(~several.any((0, 2)))
        rows = int(np.delete(blind, heads if blind.shape[1] > 1 else [], axis=1).any(1).sum())
        if rows or len(heads):
            empty.setdefault((rows, tuple(heads.tolist())), []).append(number)
    for (rows, heads), layers in empty.items():
        if rows:
            queries = "1 query sees" if rows == 1 else f"{rows} queries see"
            yield f"{listed(layers)}: {queries} nothing and {'is' if rows == 1 else 'are'} left out of all means."
        if heads:
            yield f"{listed(layers)}, {listed(heads, 'head')}: no query sees two keys, so that measures are NaN."
    there = np.stack([(texts.queries == text).any(1) for text in range(texts.most)], 1)
    short = np.argwhere(there & ~counted)
    if len(short):
        of = sorted({int(sample) for sample, _ in short})
        texts_of_them = f"{len(short)} of {there.sum()} texts, in {listed(of, 'sample')},"
        yield f"{texts_of_them} have no query that sees two keys and are left out."


def listed(places: Sequence[int], name: str = "layer") -> str:
    """Places as "Layer 3" or "Layers 1–4, 7"."""
    numbers = ", ".join(runs(np.asarray(places)))
    return f"{(name.capitalize() if name == 'layer' else name)}{'s' * (len(places) > 1)} {numbers}"


def runs(places: np.ndarray) -> Iterator[str]:
    """Whole numbers in order as "1–4" and "7"."""
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
        yield f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}"
