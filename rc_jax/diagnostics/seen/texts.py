"""Texts and padding, from zeros: sought in each sample, over all layers and heads."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rc_jax.diagnostics import inputs
from rc_jax.diagnostics.seen.notes import of_doubt, of_padding
from rc_jax.diagnostics.seen.stated import PADDING
from rc_jax.diagnostics.seen.support import DIAGONAL, Support, certain, support_of_peak


def check_axes(layers: inputs.Layers, supports: Sequence[Support], causal: bool) -> None:
    """Refuse samples in the place of layers, or of heads, where padding tells: both read the same tokens."""
    if layers.stacked and len(layers.shape) == 3:
        parts = zip(*(each[:-1] for each in supports), strict=True)
        whole = Support(*map(np.concatenate, parts), smallest=supports[0].smallest)
        way = (
            "Of nn.MultiheadAttention, which returns (batch, heads, queries, keys), pass [weights]; of layers, pass "
            "`mask`"
        )
        _check_alike(found_texts([whole], None, causal)[0], "layers on its first axis, which", way)
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
                texts, _ = found_texts([support_of_peak(peak, each.counts.swapaxes(0, 1), each.smallest)], None, causal)
                _check_alike(texts, "heads on the axis before the queries, all of which", way)


def _check_alike(texts: np.ndarray, what: str, way: str) -> None:
    real = texts >= 0
    other = np.flatnonzero((real != real[:1]).any(1))
    if len(other):
        raise ValueError(
            f"`weights` must have {what} read the same tokens, got padding that differs, as that of samples does: "
            f"{real[0].sum()} tokens in entry 0 and {real[other[0]].sum()} in entry {other[0]}. {way}"
        )


def found_texts(supports: Sequence[Support], known: np.ndarray | None, causal: bool) -> tuple[np.ndarray, list[str]]:
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
    notes = [] if known is not None or (texts >= 0).all() else [of_padding(texts >= 0)]
    several = np.flatnonzero(texts.max(1) > 0)
    if len(several):
        counts = ", ".join(f"{texts[sample].max() + 1} in sample {sample}" for sample in several[:4])
        more = f" and others in {len(several) - 4} samples" if len(several) > 4 else ""
        notes.append(
            f"No weight of any layer goes from one to another of several stretches of tokens, {counts}{more}: each is "
            "taken for a text of its own. Pass `attention_mask` if one of them is padding, `segment_ids` or `mask` to "
            'be sure; `mask="WORD"` counts them as one.'
        )
    if doubtful and samples > 1:  # zeros of a single sample are told of elsewhere
        notes.append(of_doubt(doubtful))
    return texts, notes


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
        settled or (largest[alive].min() > ordinary and certain(hidden, int((inside & ~used).sum()), int(inside.sum())))
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
    sure = enough and zeros <= 0.1 * inside.sum() and certain(hidden, zeros, int(inside.sum()))
    return texts if sure else one
