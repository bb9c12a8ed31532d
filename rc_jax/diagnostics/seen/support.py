"""Where a layer has weight, and what its zeros tell: one has two causes, a pattern of many is no chance."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rc_jax.diagnostics import inputs

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
    even: np.ndarray  # (sample, query): rows that are even over all keys, as those of a softmax that sees nothing
    void: np.ndarray  # rows that are even, all 0 or not finite
    counts: np.ndarray  # (sample, head, query): keys with weight
    smallest: float  # magnitude of the dtype above 0

    @property
    def seen(self) -> np.ndarray:
        """(sample, query, key)."""
        return np.unpackbits(self.bits, axis=-1, count=self.largest.shape[-1]).astype(bool)


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
    return support_of_peak(peak.reshape(-1, queries, keys), counts.reshape(-1, heads, queries), smallest, mask)


def support_of_peak(peak: np.ndarray, counts: np.ndarray, smallest: float, mask: np.ndarray | None = None) -> Support:
    """The same of the largest magnitudes (sample, query, key) and the counts of weights other than 0."""
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


def certain(hidden: int, zeros: int, inside: int) -> bool:
    """Whether zeros of the rate inside would hardly fill all that is hidden."""
    return bool(hidden * np.log((zeros + 1) / (inside + 1)) < np.log(CHANCE))


def farthest(layers: inputs.Layers, pairs: Bool[np.ndarray, "query key"]) -> bool:
    """Whether a query that sees something has weight on one of these pairs, in the first layer."""
    support = support_of(layers, 0)
    return bool((support.seen & ~support.void[:, :, None])[:, pairs].any())
