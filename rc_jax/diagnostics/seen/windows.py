"""Windows, prefixes and blocks, from zeros: sought in each layer, then in its samples and in its heads."""

from collections.abc import Sequence

import numpy as np

from rc_jax.diagnostics import inputs
from rc_jax.diagnostics.seen.notes import Said
from rc_jax.diagnostics.seen.support import DIAGONAL, Support, certain, support_of_peak

FEW = 0.9  # a head is looked at by itself if it has weight on a smaller share of the keys that its layer may see
NO_PATTERN = "in no pattern that only a mask leaves. They count as seen: pass `mask` if one hides them."


def hidden_by_zeros(
    layers: inputs.Layers,
    layer: int,
    support: Support,
    allowed: np.ndarray,
    blank: np.ndarray,
    said: Said,
    number: int,
    open_pairs: np.ndarray | None = None,
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
        open_pairs: what a statement of all heads lets be seen, so that zeros tell nothing, (sample, query, key);
            `None` where nothing is stated.
    """
    samples, heads, n = support.counts.shape
    causal = said.word == "causal"
    whole = allowed & ~blank[:, :, None] if blank.any() else allowed
    seen = support.seen if open_pairs is None else support.seen | open_pairs & ~support.void[:, :, None]
    mask = _search(support, seen, whole, causal, said, number, ())
    if heads == 1 or open_pairs is not None:
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
        own = support_of_peak(peak, support.counts[:, head : head + 1], support.smallest)
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
    said: Said,
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
    nothing_later = allowed & (distance >= 0)
    readings = [
        (nothing_later, not causal and ahead == 0 and back == n - 1, f"read as causal, because {says}"),
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
            and certain(hidden, zeros, int(mask.sum()))
            and _ordinary(support, mask, allowed)
        ):
            return mask, text
    return None, ""


def _full(seen: np.ndarray, allowed: np.ndarray, distance: np.ndarray, edges: tuple[int, int]) -> bool:
    """Whether the keys at the edges of a window have weight in at least half of the rows that reach them."""
    return min(float(seen[(distance == edge) & allowed].mean()) for edge in set(edges)) >= 0.5


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
