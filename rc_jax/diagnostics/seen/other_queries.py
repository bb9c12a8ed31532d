"""Queries that are not the tokens that they look at: the last of them, or those of another sequence."""

from collections.abc import Sequence

import numpy as np

from rc_jax.diagnostics import inputs
from rc_jax.diagnostics.seen.notes import looking, of_doubt, of_padding
from rc_jax.diagnostics.seen.stated import PADDING, Found, Seen, Stated, Texts, record_of
from rc_jax.diagnostics.seen.support import Support, certain, support_of


def behind(layers: inputs.Layers) -> int | None:
    """How far the own key of query i lies behind key i, in every sample; `None` where rows do not show it.

    Rows of a causal decoder end at their own keys, but for those of padding: all of a sample do, or most of a batch.
    """
    queries, keys = layers.shape[-2:]
    supports = [support_of(layers, layer) for layer in range(len(layers))]
    looks = np.stack([~each.void for each in supports])
    ends = np.stack([each.last for each in supports]) - np.arange(queries)
    if not looks.any():
        return None
    back = int(ends[looks].max())
    exact = (ends == back) | ~looks
    whole = (exact & looks.any(-1, keepdims=True)).all((0, 2)).any()
    return back if 0 <= back <= keys - queries and (whole or exact[looks].mean() >= 0.5) else None


def of_other_queries(supports: Sequence[Support], stated: Stated) -> Found:
    """Causality, of queries that are the last of the tokens, and keys that are padding or empty places of a cache."""
    samples, queries = supports[0].void.shape
    keys = supports[0].largest.shape[1]
    told = any(mask is not None for mask in stated.masks)
    if told:
        seen = [np.ones((1, keys), bool) if mask is None else np.any(mask, axis=(1, 2)) for mask in stated.masks]
        real, doubtful = np.broadcast_to(np.any(np.broadcast_arrays(*seen), axis=0), (samples, keys)), []
    else:
        real, doubtful = np.ones((samples, keys), bool), []
        if not all(stated.known):
            real, doubtful = _filled(supports, stated.causal)
    # The last query sees the last key that is filled, if queries are the last of the tokens: in its own sample, where
    # nobody has said what is filled; else in any, or the last one of all, as where all texts end in padding.
    used = np.any([each.seen & ~(each.void & ~each.even)[..., None] for each in supports], axis=0)
    possible, back, later = False, np.zeros(samples, int), np.zeros((samples, queries, keys), bool)
    for some in (*([] if told else [real]), np.any(real, axis=0)[None], np.ones((1, keys), bool)):
        back = np.broadcast_to(keys - some[:, ::-1].argmax(1) - queries, (samples,))
        later = np.arange(keys) > np.arange(queries)[:, None] + back[:, None, None]
        possible = bool((back >= 0).all()) and not bool((used & later).any())
        if possible:
            break
    if stated.causal and not possible:
        raise ValueError(
            f"`weights` must have, if `causal`, queries that are the last of the tokens, and no weight on later keys, "
            f"got others of {queries} queries and {keys} keys"
        )
    causal = possible and queries > 1 if stated.causal is None else stated.causal
    allowed = np.broadcast_to(real[:, None], (samples, queries, keys)) & (~later if causal else True)
    if possible and causal and not told:  # padding sees nothing
        own = np.arange(queries) + back[:, None]
        allowed = allowed & np.take_along_axis(real, own, 1)[:, :, None]
    together = np.any(used, axis=0)
    if not told and not all(stated.known):
        _check_offsets(together)
    hidden = int((np.any(allowed, axis=0) & ~together).sum())
    doubtful = doubtful if hidden == 0 else []  # or they are told of below
    padded = not real.all()
    which = "as the last of them" if causal else "padding apart" if padded else "all of them"
    notes = [f"{looking(queries, keys)}{'' if hidden and which == 'all of them' else f', {which}'}."]
    if padded and causal and real[:, 0].all() and not told:
        slots = ", ".join(map(str, sorted({int(each) for each in real.sum(1)})))
        which = "padding or empty places of a cache"
        notes.append(f"Keys behind the last one with weight are taken for {which}: {slots} are filled.")
    elif padded and not told:
        notes.append(of_padding(real))
    if doubtful:
        notes.append(of_doubt(doubtful))
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
            made[id(mask)] = record_of(whole, mask is not None, texts)
    return Found([made[id(mask)] for mask in stated.masks], causal, tuple(notes))


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
        if ordinary and certain(hidden, zeros, inside.size):
            real[sample] = ends
        elif hidden:
            doubtful.append(sample)
    return real, doubtful
