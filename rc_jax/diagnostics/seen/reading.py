"""The record of every layer, from what is stated and, where nothing is, from zeros."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from rc_jax._numerics import arguments
from rc_jax.diagnostics import inputs
from rc_jax.diagnostics.seen.notes import Said, of_nothing
from rc_jax.diagnostics.seen.other_queries import Place, of_other_queries, place_of, reach
from rc_jax.diagnostics.seen.stated import (
    PADDING,
    Found,
    Seen,
    Stated,
    Texts,
    joined,
    masks_of,
    not_later,
    record_of,
    segments,
    texts_of,
)
from rc_jax.diagnostics.seen.support import Support, certain, support_of
from rc_jax.diagnostics.seen.texts import check_axes, found_texts
from rc_jax.diagnostics.seen.windows import hidden_by_zeros


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
    rows: np.ndarray | None = None,
) -> Found:
    """What the queries of all layers may see, of the arguments of a public function.

    Args:
        layers: the weights.
        mask: an array, a list of them, "causal" or "none"; `None` where nothing is said.
        segment_ids: numbers of texts, as in `segments`.
        causal: whether no query sees a later key; `None` where nobody has said.
        texts: 0 where a token is no padding, −1 where it is, (sample, token); `None` where nobody has said.
        windows: for each layer what its queries may see, (query, key) or (sample, query, key), `None` where it is not
            known.
        numbers: of the layers, for notes and errors.
        own: whether each query has a key of its own.
        rows: True where a query counts, (sample, query); `None` where all do.
    """
    stated = _stated(layers, mask, segment_ids, causal, texts, windows, own, rows)
    return find(layers, stated, numbers)


def _stated(
    layers: inputs.Layers,
    mask: Any,
    segment_ids: Any,
    causal: bool | None,
    texts: np.ndarray | None,
    windows: Sequence[np.ndarray | None] | None,
    own: bool,
    rows: np.ndarray | None = None,
) -> Stated:
    """What the arguments of `read` say."""
    word = isinstance(mask, str)
    if word:
        arguments.one_of(inputs.MASKS)("mask", mask)
        if causal not in (None, mask == "causal"):
            raise ValueError(f"`causal` must agree with mask={mask!r}, got {causal}")
        mask, causal = None, mask == "causal"
    masks, known = masks_of(mask, layers), [word or mask is not None] * len(layers)
    if windows is not None:
        known = [given or each is not None for given, each in zip(known, windows, strict=True)]
        masks = joined(masks, [None if each is None else each.reshape(-1, 1, *each.shape[-2:]) for each in windows])
    if rows is not None:
        masks = joined(
            masks, [np.broadcast_to(rows[:, None, :, None], (*rows.shape[:1], 1, *layers.shape[-2:]))] * len(masks)
        )
    if segment_ids is not None:
        tokens, padding = (math.prod(layers.shape[:-3]), layers.shape[-1]), None if texts is None else texts < 0
        texts = segments("segment_ids", segment_ids, *tokens)
        if padding is not None:  # a token counts where both say so
            texts = segments("segment_ids", np.where(padding | (texts < 0), PADDING, texts + 1), *tokens)
    cut = segment_ids is not None or mask is not None
    return Stated(masks, known, word or mask is not None, texts, cut, causal, own)


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
    found = _square(layers, supports, stated, numbers) if stated.own else of_other_queries(supports, stated)
    return found._replace(notes=(*found.notes, *of_nothing(found.seen, numbers)))


def place(
    layers: inputs.Layers,
    *,
    mask: Any = None,
    segment_ids: Any = None,
    causal: bool | None = None,
    texts: np.ndarray | None = None,
) -> Place:
    """Where the queries of all layers stand among the keys; arguments as of `read`."""
    stated = _stated(layers, mask, segment_ids, causal, texts, None, False)
    return place_of([support_of(layers, layer, stated.masks[layer]) for layer in range(len(layers))], stated)


def keys_used(layers: inputs.Layers) -> int:
    """How many keys there are up to the last one that a query of a layer has weight on."""
    return reach([support_of(layers, layer) for layer in range(len(layers))])


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
            check_axes(layers, supports, causal)
        texts, notes = found_texts(supports, texts, causal)
    assert texts is not None
    allowed = np.tri(n, dtype=bool)[None] if causal else np.ones((1, n, n), bool)
    if texts.any():
        allowed = allowed & (texts[:, :, None] == texts[:, None]) & (texts >= 0)[:, :, None]
    said = Said(notes, samples, "causal" if causal else "none")
    record = Texts(texts, texts, np.zeros(samples, int))
    made: dict[Any, Seen] = {}
    seen: list[Seen] = []
    for layer, (each, mask, known, blank) in enumerate(zip(supports, stated.masks, stated.known, hidden, strict=True)):
        found = None
        if not known:
            found = hidden_by_zeros(layers, layer, each, allowed, blank, said, numbers[layer])
        elif not causal and not stated.told and mask is not None:
            # A window says what lies behind a token: which later keys it sees, as in a prefix or a picture, zeros tell.
            behind = mask[:, 0] & np.tri(n, dtype=bool)
            found = hidden_by_zeros(layers, layer, each, allowed & mask[:, 0], blank, said, numbers[layer], behind)
        key = (id(mask), None if found is None and not blank.any() else layer)
        if key not in made:
            whole = allowed[:, None]
            for more in (mask, found, ~blank[:, None, :, None] if blank.any() else None):
                whole = whole if more is None else whole & more
            made[key] = record_of(whole, mask is not None or stated.texts is not None, record)
        seen.append(made[key])
    return Found(seen, causal, said.notes())


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
        causal = certain(int((rows * np.arange(n)[::-1]).sum()), 0, int((rows * np.arange(1, n + 1)).sum()))
    nothing = np.zeros((samples, n), bool)
    return causal, [each if causal else nothing for each in even]


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
        seen = record_of(whole, True, record)
    list(of_nothing([seen], (0,)))
    return seen
