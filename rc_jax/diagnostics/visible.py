"""Which keys each query may see, from masks, padding and causality."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rc_jax.diagnostics import inputs


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
    for each in several:
        inside = inputs.mask_of("mask", each, layers.shape)
        inside = inside.reshape((1,) * (len(layers.shape) - inside.ndim) + inside.shape)
        if any(size > 1 for size in inside.shape[:-3]):
            inside = np.broadcast_to(inside, (*samples, *inside.shape[-3:]))
        seen.append(
            np.broadcast_to(inside, (*inside.shape[:-2], queries, keys)).reshape(-1, inside.shape[-3], queries, keys)
        )
    return seen * (len(layers) // len(seen))


def joined(masks: Sequence[np.ndarray | None], more: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """What both masks of a layer let be seen; layers that share both share the result."""
    made: dict[tuple[int, int], np.ndarray | None] = {}
    for one, other in zip(masks, more, strict=True):
        key = (id(one), id(other))
        if key not in made:
            made[key] = other if one is None else one if other is None else one & other
    return [made[id(one), id(other)] for one, other in zip(masks, more, strict=True)]


class Visible(NamedTuple):
    """How many keys each query may see, and how many queries each key; axes of length 1 where they are alike."""

    keys: np.ndarray  # (sample, head, query)
    queries: np.ndarray  # (sample, head, key)


def not_later(queries: int, keys: int) -> np.ndarray:
    """True where a key is no later than a query, (query, key); the queries are the last of the tokens."""
    return np.tri(queries, keys, keys - queries, dtype=bool)


def visible_to(masks: Sequence[np.ndarray | None], shape: tuple[int, int], causal: bool) -> list[Visible]:
    """The numbers of keys and queries in each layer, of the masks and of causality together.

    Args:
        masks: one for each layer, or `None`.
        shape: how many queries look at how many keys.
        causal: whether no query sees a later key.
    """
    below = not_later(*shape) if causal else np.ones(shape, bool)
    made: dict[int, Visible] = {}
    for mask in masks:
        if id(mask) not in made:
            inside = below[None, None] if mask is None else mask & below
            made[id(mask)] = Visible(inside.sum(-1), inside.sum(-2))
            if not (made[id(mask)].keys.max(-1) >= 2).all():
                raise ValueError("`mask` must let at least one query of each sample see two keys, got none")
    return [made[id(mask)] for mask in masks]


def to_the_end(real: np.ndarray) -> np.ndarray | None:
    """The order of each sample's tokens that puts padding last; `None` where it stands there."""
    order = np.argsort(~real, axis=1, kind="stable")
    return None if (order == np.arange(real.shape[1])).all() else order


def reordered(weights: Array, order: np.ndarray) -> Array:
    """Rows and columns of each sample of (…, head, query, key) in another order."""
    index = jnp.asarray(order.reshape(*weights.shape[:-3], 1, order.shape[-1]))
    rows = jnp.take_along_axis(weights, index[..., :, None], axis=-2)
    return jnp.take_along_axis(rows, index[..., None, :], axis=-1)


def reordered_mask(mask: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The same of a mask with the axes (sample, head, query, key)."""
    mask = np.broadcast_to(mask, (len(order), *mask.shape[1:]))
    rows = np.take_along_axis(mask, order[:, None, :, None], axis=-2)
    return np.take_along_axis(rows, order[:, None, None, :], axis=-1)
