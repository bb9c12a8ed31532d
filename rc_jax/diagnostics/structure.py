"""What each query may see, found in the weights: the exact zeros that padding, windows and blocks leave.

A weight of exactly 0 has one of two causes: the key is hidden, or its logit lies so far below others that its
exponential underflows. One zero does not tell them apart; a pattern does. Zeros are taken for a mask where they agree
in every head and sample, fill a whole region with a regular edge, hardly occur elsewhere, and stand beside weights of
ordinary size. Whatever else is 0 in every head and sample counts as seen, and a note says so.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rc_jax.diagnostics import inputs
from rc_jax.diagnostics.visible import not_later

CHANCE = 1e-6
"""Zeros are taken for a mask if scattered zeros of the rate that is seen elsewhere would be so with less chance."""
DIAGONAL = 0.9  # share of the tokens that must have weight on their own key: every mask lets them see it


class Support(NamedTuple):
    """Where a layer has weight, of the largest magnitude over its heads; axes (sample, query, …)."""

    bits: np.ndarray  # packed along the keys: True where some head has weight
    first: np.ndarray  # the first key with weight, and the last
    last: np.ndarray
    at_first: np.ndarray  # the magnitudes there and one key further inside, on a last axis of two
    at_last: np.ndarray
    largest: np.ndarray  # (sample, key): largest magnitude on a key
    void: np.ndarray  # (sample, query): rows that are even over all keys or all 0, as those of fully masked queries are
    smallest: float  # magnitude of the dtype above 0

    @property
    def seen(self) -> np.ndarray:
        """(sample, query, key)."""
        return np.unpackbits(self.bits, axis=-1, count=self.largest.shape[-1]).astype(bool)


class Found(NamedTuple):
    """What queries may see.

    real: True where a token is no padding, (sample, token); `None` where all are, or where queries are no tokens of
    their own. masks: for each layer (sample, head, query, key), axes of length 1 where they are alike; `None` where a
    query sees all keys, or all up to its own if `causal`.
    """

    real: np.ndarray | None
    masks: list[np.ndarray | None]
    causal: bool
    notes: tuple[str, ...]


@jax.jit
def _peak(weights: Float[Array, "... head query key"]) -> Float[Array, "... query key"]:
    return jnp.max(jnp.abs(weights), axis=-3)


def support_of(layers: inputs.Layers, layer: int, mask: np.ndarray | None = None) -> Support:
    """Where the layer has weight, in rows that may see something under the mask (sample, head, query, key)."""
    n = layers.shape[-1]
    peak: np.ndarray = np.asarray(_peak(layers[layer])).reshape(-1, *layers.shape[-2:])
    if mask is not None:
        peak = np.where(np.any(mask, axis=(1, 3))[..., None], peak, 0)  # whatever hidden rows hold, NaN included
    seen: np.ndarray = np.not_equal(peak, 0)  # NaN counts as weight; it is refused later
    first, last = seen.argmax(-1), n - 1 - seen[..., ::-1].argmax(-1)
    at_first, at_last = (
        np.take_along_axis(peak, np.clip(np.stack([key, key + inward], -1), 0, n - 1), -1)
        for key, inward in ((first, 1), (last, -1))
    )
    # A softmax over keys that are all hidden is even, or 0.
    most, least = peak.max(-1), peak.min(-1)
    void = seen.all(-1) & (most - least <= 1e-5 * most) & (most <= 1.01 / n) | ~seen.any(-1)
    largest = np.where(void[..., None], 0, peak).max(-2)
    smallest = float(jnp.finfo(layers.dtype).smallest_subnormal)
    return Support(np.packbits(seen, axis=-1), first, last, at_first, at_last, largest, void, smallest)


def find(
    supports: Sequence[Support],
    *,
    real: Bool[np.ndarray, "sample token"] | None,
    causal: bool | None,
    padding: bool,
    known: Sequence[bool],
    numbers: Sequence[int],
) -> Found:
    """What queries may see, from where the layers have weight.

    Args:
        supports: one for each layer.
        real: True where a token is known to be no padding; `None` where nothing is known.
        causal: whether no query sees a later key, where that is known.
        padding: whether padding is looked for.
        known: for each layer, whether it is known what queries see beside causality and padding, so that nothing is
            looked for.
        numbers: of the layers, for the notes.
    """
    notes: list[str] = []
    if real is None and padding:
        real, doubtful = _padding(supports, causal)
        notes += [] if real is None else _of_padding(real)
        if doubtful and len(supports[0].void) > 1:  # zeros of a single sample are told of below
            notes.append(
                f"Sample{'s' * (len(doubtful) > 1)} {', '.join(map(str, doubtful))}: no query has weight on a token at "
                "an end, itself included. This may be padding, too little to be sure. They count as seen: pass `mask` "
                "if one hides them."
            )
    n = supports[0].void.shape[1]
    there = np.ones((1, n), bool) if real is None else real
    both = there[:, :, None] & there[:, None, :]
    pairs: np.ndarray = np.any(both, axis=0)
    together: list[np.ndarray] = [np.any(each.seen & both, axis=0) for each in supports]
    later = [number for number, each in zip(numbers, together, strict=True) if np.triu(each, 1).any()]
    if causal and later:
        raise ValueError(f"`weights` must be 0 above the diagonal if `causal`, got others in layer {later[0]}")
    causal = not later if causal is None else causal
    allowed = pairs & np.tri(n, dtype=bool) if causal else pairs
    masks: list[np.ndarray | None] = []
    said: dict[str, list[int]] = {}
    for each, seen, given, number in zip(supports, together, known, numbers, strict=True):
        hidden = allowed & ~seen
        mask = text = None
        if hidden.any() and not given:
            mask, text = _mask(each, seen, allowed, causal)
            text = text or (
                f"{hidden.sum()} of {allowed.sum()} pairs of query and key have weight exactly 0 in every head and "
                "sample, in no pattern that only a mask leaves. They count as seen: pass `mask` if one hides them."
            )
            said.setdefault(text, []).append(number)
        masks.append(None if mask is None else mask[None, None])
    word = "causal" if causal else "none"
    notes += [f"{listed(layers)}: {text.replace('WORD', word)}" for text, layers in said.items()]
    return Found(real, masks, causal, tuple(notes))


def rectangular(supports: Sequence[Support], *, causal: bool | None, padding: bool, known: Sequence[bool]) -> Found:
    """What queries may see that are not the tokens that they look at: causality, as the last of these, and padding.

    Args:
        supports: one for each layer.
        causal: whether the queries are the last of the tokens and see no later one; `None` finds it out, of two
            queries at least.
        padding: whether keys that are padding are looked for.
        known: for each layer, whether it is known what queries see beside causality.
    """
    queries, keys = supports[0].void.shape[1], supports[0].largest.shape[1]
    real = _padded_keys(supports) if padding else None
    there = np.ones((1, keys), bool) if real is None else real
    together = np.any([np.any(each.seen & there[:, None], axis=0) for each in supports], axis=0)
    allowed = not_later(queries, keys)
    possible = queries <= keys and not bool(together[~allowed].any())
    if causal and not possible:
        raise ValueError(
            f"`weights` must have, if `causal`, queries that are the last of the tokens, and no weight on later keys, "
            f"got others of {queries} queries and {keys} keys"
        )
    # The last of the tokens sees the last key: where that is padding, zeros before it say nothing of causality.
    last = possible and queries > 1 and bool(there[:, -1].all()) if causal is None else causal
    hidden = int((np.any(there, axis=0) & (allowed if last else np.ones_like(allowed)) & ~together).sum())
    which = "as the last of them" if last else "padding apart" if real is not None else "all of them"
    notes = [f"{looking(queries, keys)}{'' if hidden and which == 'all of them' else f', {which}'}."]
    notes += [] if real is None else _of_padding(real)
    if hidden and not all(known):
        notes.append(
            f"{hidden} pairs of query and key have weight exactly 0 in every head, layer and sample. They count as "
            "seen: pass `mask` if padding or a window hides them."
        )
    mask = None if real is None else np.broadcast_to(real[:, None, None], (len(real), 1, queries, keys))
    return Found(None, [mask] * len(supports), last, tuple(notes))


def _padded_keys(supports: Sequence[Support]) -> np.ndarray | None:
    """True where a key is no padding, (sample, key). Padding are keys at one end that no query of a layer looks at."""
    samples, keys = supports[0].largest.shape
    largest = np.max([each.largest for each in supports], axis=0)
    real = np.ones((samples, keys), bool)
    for sample in range(samples):
        rows = [each.seen[sample][~each.void[sample]] for each in supports]
        alive = np.any([each.any(0) for each in rows], axis=0)
        if not _rest_at_one_end(alive):
            continue
        inside = np.concatenate([each[:, alive] for each in rows])
        hidden = len(inside) * int((~alive).sum())
        ordinary = largest[sample, alive].min() > supports[0].smallest ** 0.5
        if ordinary and _certain(hidden, int((~inside).sum()), inside.size):
            real[sample] = alive
    return None if real.all() else real


def _rest_at_one_end(alive: np.ndarray) -> bool:
    """Whether some are alive, in one piece, and all others stand at one end."""
    places = np.flatnonzero(alive)
    if not 0 < len(places) < len(alive) or len(places) != places[-1] - places[0] + 1:
        return False
    return bool(places[0] == 0 or places[-1] == len(alive) - 1)


def looking(queries: int, keys: int) -> str:
    """How many queries look at how many keys, in words."""
    return f"The {queries} queries look at {keys} keys" if queries > 1 else f"The query looks at {keys} keys"


def check_layers(supports: Sequence[Support], causal: bool | None) -> None:
    """Refuse samples in the place of layers, where padding tells: layers read the same tokens, samples do not."""
    arrays = zip(*(each[:-1] for each in supports), strict=True)
    real, _ = _padding([Support(*map(np.concatenate, arrays), smallest=supports[0].smallest)], causal)
    if real is not None and (real != real[:1]).any():
        tokens = real.sum(1)
        other = int(np.flatnonzero((real != real[:1]).any(1))[0])
        raise ValueError(
            f"`weights` must have layers on its first axis, which read the same tokens, got padding that differs, as "
            f"that of samples does: {tokens[0]} tokens in entry 0 and {tokens[other]} in entry {other}. Of "
            "nn.MultiheadAttention, which returns (batch, heads, queries, keys), pass [weights]; of layers, pass `mask`"
        )


def _padding(supports: Sequence[Support], causal: bool | None) -> tuple[np.ndarray | None, list[int]]:
    """True where a token is no padding, and samples in doubt.

    Padding are tokens at one end of a sample that no query of any layer has weight on.
    """
    used = np.zeros((), bool)
    for each in supports:
        used = used | (each.seen & ~each.void[:, :, None])
    void = np.all([each.void for each in supports], axis=0)
    samples, n = void.shape
    lower = np.tri(n, dtype=bool)
    largest = np.max([each.largest for each in supports], axis=0)
    real, doubtful = np.ones((samples, n), bool), list[int]()
    for sample in range(samples):
        seen, blind, alive = used[sample], void[sample], used[sample].any(0)
        if alive.sum() < 3 or not _rest_at_one_end(alive):
            continue
        # Where real tokens see later ones as well as earlier ones, zeros on later keys count too.
        inside = alive[:, None] & alive[None]
        both = not causal and seen[inside & ~lower].mean() >= 0.9 * seen[inside & lower].mean()
        possible = np.ones((n, n), bool) if both else lower
        inside, outside = inside & possible, ~blind[:, None] & ~alive[None] & possible
        # A row that no layer lets see anything settles it, but for the last one, which may be even of itself.
        settled = (blind & ~alive)[: n - 1].any()
        hidden = int(outside.sum()) if (outside & lower).any() else 0
        ordinary = largest[sample, alive].min() > supports[0].smallest ** 0.5
        if seen.diagonal()[alive].mean() >= DIAGONAL and (
            settled or (ordinary and _certain(hidden, int((inside & ~seen).sum()), int(inside.sum())))
        ):
            real[sample] = alive
        elif hidden:
            doubtful.append(sample)
    return None if real.all() else real, doubtful


def _of_padding(real: np.ndarray) -> list[str]:
    padded = np.flatnonzero(~real.all(1))
    counts = ", ".join(f"{int((~real[sample]).sum())} of sample {sample}" for sample in padded[:4])
    more = f" and others of {len(padded) - 4} samples" if len(padded) > 4 else ""
    return [
        f"No query of any layer has weight on {counts}{more}: these tokens at one end are taken for padding and left "
        'out. Pass `attention_mask` or `mask` to be sure; `mask="causal"` or "none" counts them.'
    ]


def _mask(support: Support, seen: np.ndarray, allowed: np.ndarray, causal: bool) -> tuple[np.ndarray | None, str]:
    """The window or the blocks that the zeros are taken for, and the sentence that says so; `None` and "" if none."""
    n = len(seen)
    distance = np.arange(n)[:, None] - np.arange(n)[None]  # of a key behind its query
    several = allowed.sum(-1) >= 2
    if not seen.any() or seen.diagonal()[allowed.diagonal()].mean() < DIAGONAL:
        return None, ""
    back, ahead = int(distance[seen].max()), int(-distance[seen].min())
    window = allowed & (distance <= back) & (distance >= -ahead)
    edges = [seen[(distance == d) & allowed].mean() for d in {back, -ahead}]
    first, last = seen.argmax(-1), n - 1 - seen[:, ::-1].argmax(-1)
    interval = allowed & (np.arange(n) >= first[:, None]) & (np.arange(n) <= last[:, None])
    regular = all((np.diff(end[several]) >= 0).all() for end in (first, last))
    says = 'all other weights are exactly 0 in every head. Pass `mask`, or `mask="WORD"` if all keys count.'
    reach = f"{back + 1} keys" if causal else f"{back} keys before to {ahead} after"
    for mask, fits, text in (
        (window, min(edges) >= 0.5, f"read as a window, {reach}, because {says}"),
        (interval, regular and seen[interval].all(), f"read as blocks of tokens that see each other, because {says}"),
    ):
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


def listed(layers: Sequence[int]) -> str:
    """Layers as "Layer 3" or "Layers 1–4, 7"."""
    return f"Layer{'s' * (len(layers) > 1)} {', '.join(_runs(np.asarray(layers)))}"


def _runs(layers: np.ndarray) -> Iterator[str]:
    for run in np.split(layers, np.flatnonzero(np.diff(layers) > 1) + 1):
        yield f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}"
