"""Which keys each query may see, from masks and causality."""

from typing import Any, NamedTuple

import numpy as np

from rc_jax.diagnostics import inputs


def masks_of(mask: Any, layers: inputs.Layers, causal: bool | None) -> list[np.ndarray | None]:
    """Masks with axes (sample, head, query, key), each axis of length 1 where they do not depend on it.

    One mask for all layers, or one for each; `None` without a mask.
    """
    if mask is None:
        return [None]
    *samples, _, n, _ = layers.shape
    several = mask if isinstance(mask, list | tuple) else [mask]
    if len(several) not in (1, len(layers)) or not several:
        raise ValueError(f"`mask` must be one mask or one for each of {len(layers)} layers, got {len(several)}")
    # All get the axes (sample, head, query, key), and one shape.
    seen: list[np.ndarray] = []
    for each in several:
        inside = inputs.mask_of("mask", each, layers.shape)
        inside = inside.reshape((1,) * (len(layers.shape) - inside.ndim) + inside.shape)
        if any(size > 1 for size in inside.shape[:-3]):
            inside = np.broadcast_to(inside, (*samples, *inside.shape[-3:]))
        inside = np.broadcast_to(inside, (*inside.shape[:-2], n, n)).reshape(-1, inside.shape[-3], n, n)
        seen.append(inside & np.tri(n, dtype=bool) if causal else inside)
    return list(np.broadcast_arrays(*seen))


class Visible(NamedTuple):
    """How many keys each query may see, and how many queries each key; axes of length 1 where they are alike."""

    keys: Any  # (layer, sample, head, query)
    queries: Any  # (layer, sample, head, key)


def visible_to(masks: list[np.ndarray | None], n: int, causal: bool) -> Visible:
    """The numbers of keys and queries, of the masks and of causality together.

    Raises:
        ValueError: in some sample no query may see two keys.
    """
    below = np.tri(n, dtype=bool) if causal else np.ones((n, n), bool)
    inside = np.stack([np.broadcast_to(below, (1, 1, n, n)) if each is None else each & below for each in masks])
    keys, queries = inside.sum(-1), inside.sum(-2)
    if not (keys.max(-1) >= 2).all():
        raise ValueError("`mask` must let at least one query of each sample see two keys, got none")
    return Visible(keys, queries)
