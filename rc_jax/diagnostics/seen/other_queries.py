"""Queries that are not the tokens that they look at: the last of them, or those of another sequence."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rc_jax.diagnostics.seen.notes import looking, of_doubt, of_padding
from rc_jax.diagnostics.seen.stated import PADDING, Found, Seen, Stated, Texts, record_of
from rc_jax.diagnostics.seen.support import DIAGONAL, Support, certain


class Place(NamedTuple):
    """Where queries stand among the keys, alike in all samples of a batch: query i on key i + `back`.

    filled: how many keys there are; those behind are empty places of a cache. causal: whether no query has weight on a
    later key, so that they may stand there. stated: whether a statement hides the keys behind, and not zeros alone.
    """

    back: int
    filled: int
    causal: bool
    stated: bool


def place_of(supports: Sequence[Support], stated: Stated) -> Place:
    """Where queries stand: no further ahead than their weights reach.

    Keys that a statement hides from all queries of all samples, at the end, are no more than padding or empty places,
    and zeros are asked about the others alone. Padding in a sample does not move the queries, nor does its own end.
    Rows that are even over all keys, as those of queries that are padding, say nothing of it.
    """
    queries, keys = supports[0].void.shape[1], supports[0].largest.shape[1]
    index, causal = np.arange(queries), stated.causal
    visible = _visible(stated, keys)
    end = 1 + max(int(np.flatnonzero(each.any((0, 1))).max(initial=-1)) for each in visible)
    firm = _firm(supports)
    last = np.stack([each.last for each in supports])
    nowhere = Place(keys - queries, keys, False, False)
    if causal is False or not firm.any():
        return nowhere
    back, used = int((last - index)[firm].max()), int(last[firm].max()) + 1
    filled = back + queries
    limit = max(end, filled)
    if back < 0 or filled > keys:
        return nowhere
    stated_end = Place(limit - queries, limit, True, limit < keys)
    if queries > 1 and not any((each & _later(queries, keys, limit - queries)).any() for each in visible):
        return stated_end  # the statement says it all
    later = _later(queries, keys, back)
    pairs = [row[..., None] & each for row, each in zip(firm, visible, strict=True)]
    if causal is None and queries > 1:
        # Where all samples end in padding, and where even rows tell nothing, zeros must leave no doubt.
        even = any((each.even & ~row).any() for each, row in zip(supports, firm, strict=True))
        hidden, inside = (sum(int((each & where)[..., :used].sum()) for each in pairs) for where in (later, ~later))
        if (even or filled > used) and not certain(hidden, 0, inside):
            return nowhere
    if filled < limit and (causal is None or end < keys):
        largest = np.max([each.largest for each in supports], axis=0)
        alive = largest > 0
        hidden = zeros = inside = 0
        for each, some in zip(supports, pairs, strict=True):
            hidden += int(some[..., filled:limit].sum())
            open_pairs = some & ~later & alive[:, None]
            zeros, inside = zeros + int((open_pairs & ~each.seen).sum()), inside + int(open_pairs.sum())
        ordinary = largest[alive].min(initial=1) > supports[0].smallest ** 0.5
        if not (ordinary and certain(hidden, zeros, inside)):
            return stated_end
    return Place(back, filled, True, filled == limit and end < keys)


def reach(supports: Sequence[Support]) -> int:
    """How many keys there are up to the last one that a query has weight on; all, where no row tells."""
    firm, last = _firm(supports), np.stack([each.last for each in supports])
    return int(last[firm].max()) + 1 if firm.any() else supports[0].largest.shape[1]


def _later(queries: int, keys: int, back: int) -> np.ndarray:
    """True where a key is later than a query on key i + `back`, (query, key)."""
    return np.arange(keys) > np.arange(queries)[:, None] + back


def _visible(stated: Stated, keys: int) -> list[np.ndarray]:
    """What masks and numbers of texts let be seen in some head of each layer, (sample, query, key)."""
    made: dict[int, np.ndarray] = {}
    real = np.ones((1, 1, keys), bool) if stated.texts is None else (stated.texts >= 0)[:, None]
    for mask in stated.masks:
        if id(mask) not in made:
            made[id(mask)] = real if mask is None else mask.any(1) & real
    return [made[id(mask)] for mask in stated.masks]


def _firm(supports: Sequence[Support]) -> np.ndarray:
    """Rows that tell what they see, (layer, sample, query).

    An even last row does where others stand so that it sees all keys, unless no row of its sample tells anything.
    """
    firm = np.stack([~each.void for each in supports])
    queries, keys = firm.shape[-1], supports[0].largest.shape[1]
    last = np.stack([each.last for each in supports])
    if not firm.any() or (last - np.arange(queries))[firm].max() >= keys - queries:
        firm[..., -1] |= np.stack([each.even[:, -1] for each in supports]) & (firm.any(-1) | (queries == 1))
    return firm


class _Read(NamedTuple):
    """Which text queries and keys belong to, as in `Texts`, and what that was read from.

    visible: what masks let be seen in some layer and head, (sample, query, key). real: False where zeros were taken for
    padding, (sample, key). doubtful: samples in which they may be.
    """

    queries: np.ndarray
    keys: np.ndarray
    visible: np.ndarray
    real: np.ndarray
    doubtful: list[int]


def of_other_queries(supports: Sequence[Support], stated: Stated) -> Found:
    """Causality, of queries that are the last of the tokens, and keys that are padding or empty places of a cache."""
    samples, queries = supports[0].void.shape
    keys = supports[0].largest.shape[1]
    place = place_of(supports, stated)
    if stated.causal and not place.causal:
        raise ValueError(
            f"`weights` must have, if `causal`, queries that are the last of the tokens, and no weight on later keys, "
            f"got others of {queries} queries and {keys} keys"
        )
    causal = place.causal and queries > 1 if stated.causal is None else stated.causal
    later = _later(queries, keys, place.back) & causal
    read = _read(supports, stated, place, later)
    allowed = (read.queries[..., None] == read.keys[:, None]) & (read.queries >= 0)[..., None] & ~later
    # A row that is even over later keys too sees nothing.
    blank = [each.even & later.any(1) for each in supports]
    looks = [~(each.void & ~each.even | out) for each, out in zip(supports, blank, strict=True)]
    used = np.any([each.seen & row[..., None] for each, row in zip(supports, looks, strict=True)], axis=0)
    # Windows say what lies behind a token, and nothing of later keys.
    known = stated.told or (causal and all(stated.known))
    if not known:
        _check_offsets(np.any(used, axis=0))
    notes = _notes(read, stated, place, allowed, used, causal, known)
    record = Texts(read.queries, read.keys, np.full(samples, place.back))
    made: dict[tuple[int, int | None], Seen] = {}
    seen: list[Seen] = []
    for layer, (mask, out) in enumerate(zip(stated.masks, blank, strict=True)):
        key = (id(mask), layer if out.any() else None)
        if key not in made:
            whole = (allowed & ~out[..., None])[:, None]
            whole = whole if mask is None else whole & mask
            made[key] = record_of(whole, mask is not None or stated.texts is not None, record)
        seen.append(made[key])
    return Found(seen, causal, tuple(notes))


def _read(supports: Sequence[Support], stated: Stated, place: Place, later: np.ndarray) -> _Read:
    """Texts and padding, of what is stated, and of zeros where nothing is."""
    samples, queries = supports[0].void.shape
    keys = later.shape[1]
    texts, real, doubtful = np.zeros((samples, keys), int), np.ones((samples, keys), bool), list[int]()
    visible = np.ones((1, queries, keys), bool)
    if not any(mask is None for mask in stated.masks):
        visible = np.any(np.broadcast_arrays(*[mask.any(1) for mask in stated.masks if mask is not None]), axis=0)
    if stated.texts is not None:
        texts = stated.texts.copy()
    elif not stated.told:
        real, doubtful = _filled(supports, visible & ~later, place.filled)
        texts[~real] = PADDING
    texts = np.where(visible.any(1), texts, PADDING)
    texts[:, place.filled :] = PADDING
    # A query whose own key is padding is padding, where queries have keys of their own.
    of_queries = np.zeros((samples, queries), int)
    if later.any() or (place.causal and (stated.causal or stated.texts is not None)):
        own = np.arange(queries) + place.back
        kept = texts[:, own] >= 0
        itself = np.broadcast_to(visible[:, np.arange(queries), own], kept.shape)
        if stated.texts is not None or (itself & kept).sum() >= DIAGONAL * kept.sum():
            of_queries = texts[:, own]
    elif texts.max() > 0:
        raise ValueError(
            "`segment_ids`, or the numbers of an `attention_mask`, must be those of one text where queries are not the "
            f"last of the keys, got {int(texts.max()) + 1}"
        )
    return _Read(of_queries, texts, visible, real, doubtful)


def _notes(
    read: _Read, stated: Stated, place: Place, allowed: np.ndarray, used: np.ndarray, causal: bool, known: bool
) -> list[str]:
    """What a reader must know, where queries are allowed to see pairs and have weight on those that are used."""
    queries, keys = allowed.shape[1:]
    hidden = int((np.any(allowed & read.visible, axis=0) & ~np.any(used, axis=0)).sum())
    real = read.keys[:, : place.filled] >= 0
    masks = stated.told and any(mask is not None for mask in stated.masks)
    which = (
        "as the last of them"
        if causal
        else "those that a mask leaves"
        if masks
        else "all of them"
        if real.all()
        else ""
    )
    which = which or "padding apart"
    notes = [f"{looking(queries, keys)}{'' if hidden and which == 'all of them' else f', {which}'}."]
    if place.filled < keys:
        notes.append(empty_places(place))
    found = read.real[:, : place.filled]
    if not found.all():
        notes.append(of_padding(found))
    if read.doubtful and not hidden:  # or they are told of below
        notes.append(of_doubt(read.doubtful))
    if hidden and not known:
        behind = place.causal and not used[:, :, place.filled - 1].any()
        empty = ", and an `attention_mask` that is 0 there if the last keys are empty places of a cache" * behind
        notes.append(
            f"{hidden} pairs of query and key have weight exactly 0 in every head, layer and sample. They count as "
            f"seen: pass `mask` if padding or a window hides them{empty}."
        )
    unused = int(((allowed & read.visible).any(1) & ~used.any(1)).sum())
    if unused and known:
        notes.append(f"{unused} keys that may be seen have weight exactly 0 of every query. They count as seen.")
    return notes


def empty_places(place: Place) -> str:
    """That keys at the end are empty places, or taken for some."""
    are = "that may be seen are" if place.stated else "with weight are taken for"
    return f"Keys behind the last one {are} empty places of a cache: {place.filled} are filled."


def _check_offsets(used: np.ndarray) -> None:
    """Refuse columns that are distances of keys from their queries: those beyond the ends of the text are empty."""
    queries, columns = used.shape
    half = columns // 2
    if columns % 2 and half and queries > columns:
        key = np.arange(queries)[:, None] + np.arange(columns) - half
        beyond = (key < 0) | (key >= queries)
        if not used[beyond].any() and certain(int(beyond.sum()), int((~used[~beyond]).sum()), int((~beyond).sum())):
            raise ValueError(
                f"`weights` must have a column for each key, got {columns} columns of {queries} queries, which may be "
                f"keys, or, as in Longformer, the distances from {-half} to {half} of keys from their queries: "
                'axes=("sample", "head", "query", "offset") reads those; pass `mask` if they are keys'
            )


def _filled(supports: Sequence[Support], visible: np.ndarray, filled: int) -> tuple[np.ndarray, list[int]]:
    """True where a key is no padding, (sample, key), and samples in which that is in doubt.

    Padding are keys at the ends that no query of a layer looks at.

    Args:
        supports: one for each layer.
        visible: pairs that neither causality nor a mask hides, (sample, query, key).
        filled: how many keys are no empty places of a cache.
    """
    samples, keys = supports[0].largest.shape
    largest = np.max([each.largest for each in supports], axis=0)
    real, doubtful = np.ones((samples, keys), bool), list[int]()
    firm = _firm(supports)
    possible = np.broadcast_to(visible & (np.arange(keys) < filled), (samples, *visible.shape[1:]))
    for sample in range(samples):
        rows = [each.seen[sample][row[sample]] for each, row in zip(supports, firm, strict=True)]
        pairs = np.concatenate([possible[sample, row[sample]] for row in firm])
        used = np.concatenate(rows)
        alive: np.ndarray = np.any(used, axis=0)
        if not alive.any():
            continue
        start, end = int(alive.argmax()), keys - int(alive[::-1].argmax())
        ends = (np.arange(keys) >= start) & (np.arange(keys) < end)
        hidden, inside = int((pairs & ~ends).sum()), pairs & ends
        ordinary = largest[sample, alive].min() > supports[0].smallest ** 0.5
        if ordinary and certain(hidden, int((inside & ~used).sum()), int(inside.sum())):
            real[sample] = ends | (np.arange(keys) >= filled) | ~possible[sample].any(0)
        elif hidden:
            doubtful.append(sample)
    return real, doubtful
