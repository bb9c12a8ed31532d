"""Attention rollout: what the tokens of the last layer take from each token of the first, if layers only mix."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import working_dtype
from rc_jax.diagnostics import inputs
from rc_jax.diagnostics.seen import read
from rc_jax.diagnostics.weights import masked


@arguments.guard(skip=arguments.scalar(arguments.bounded(0, 1)))
def rollout(
    weights: Any,
    *,
    skip: float = 0.5,
    mask: Any = None,
    segment_ids: Any = None,
    axes: Sequence[str] | None = None,
) -> Float[Array, "... query key"]:
    r"""The product of the layers' mean weights, each mixed with the identity for the skip connection.

        R = Ã_L Ã_{L−1} ⋯ Ã_1,     Ã_l = λ 1 + (1 − λ) · mean over heads of A_l

    Row i of R says how much token i takes from each token of the input. Rows of softmax add up to one, and so do those
    of R; rows that add up to less, with a sink that is no key, leave less. It knows nothing of values, output weights,
    norms and MLPs.

    What a query may see is decided as in `attention`. A query that may see nothing in a head is left out of the mean
    over heads; where that is so in all heads, its weight is 0, so that it keeps λ of itself. Rows and columns of
    padding are 0. A warning counts such queries, and tokens that are taken for padding although nobody said so.

    Args:
        weights: (…, heads, n, n) for each layer, the first layer first: a list, a mapping such as `torch_weights`
            gives, or one array whose first axis counts layers. Arrays of JAX, NumPy or PyTorch. An axis before the
            heads is that of samples.
        skip: λ between 0 and 1, the share of the skip connection.
        mask: as in `attention`. Rows that see nothing under it may hold anything, NaN included.
        segment_ids: as in `attention`.
        axes: as in `attention`.

    Returns:
        R of each sample, (…, n, n).

    Raises:
        TypeError: `weights` are traced.
        ValueError: a row adds up to more than one, has a negative weight or NaN, or has weight where it may not see.

    Source: Abnar and Zuidema (2020), arXiv 2005.00928, section 3, with λ = ½.

    Example:
        >>> import numpy as np
        >>> from rc_jax import diagnostics
        >>> even = np.full((2, 1, 4, 4), 1 / 4, np.float32)  # two layers of one head
        >>> print(diagnostics.rollout(even)[0])  # λ² of itself, and 1 − λ² in equal parts
        [0.4375 0.1875 0.1875 0.1875]
    """
    listed = list(weights.values()) if isinstance(weights, Mapping) else weights
    listed = listed if axes is None else inputs.arranged("weights", listed, axes)
    layers = inputs.layers_of("weights", listed, ("heads", "tokens", "tokens"), stacked=4)
    inputs.four_axes(layers, ("query", "key"))
    if layers.shape[-1] != layers.shape[-2]:
        raise ValueError(f"`weights` must have two last axes of one length, got the shape {layers.shape}")
    *samples, heads, n, _ = layers.shape
    found = read(layers, mask=mask, segment_ids=segment_ids, numbers=range(len(layers)), own=True)
    real = found.seen[0].texts.keys >= 0
    rolled: Array = jnp.asarray(np.eye(n) * real[:, None], layers[0].dtype)
    empty = 0
    for layer, seen in enumerate(found.seen):
        a = jnp.reshape(layers[layer], (-1, heads, n, n))
        outside = np.zeros(1)
        if seen.mask is not None:
            a, outside = masked(a, seen.mask)
        rows, least = (np.asarray(each) for each in _sums(a))
        limit = inputs.tolerance(layers.dtype, n)
        if not (rows <= 1 + limit).all() or least < 0:
            raise ValueError(
                f"`weights` must be at least 0 and have rows that add up to 1 at most, got a least weight of "
                f"{least:.6g} and sums from {rows.min():.6g} to {rows.max():.6g} in layer {layer}"
            )
        if np.max(outside) > 0:
            raise ValueError(
                f"`weights` must be 0 where `mask` is False, got a magnitude of {np.max(outside):.6g} in layer {layer}"
            )
        some = np.broadcast_to(seen.keys > 0, (len(seen.keys), heads, n)).sum(1)
        empty += int(((some == 0) & real).sum())
        rolled = _step(rolled, a, jnp.asarray(np.maximum(some, 1)), skip)
    guessed = mask is None and segment_ids is None and not real.all()
    if empty or guessed:
        tokens = f", and {(~real).sum()} tokens are taken for padding: pass `mask` or `segment_ids`" if guessed else ""
        warnings.warn(f"{empty} queries of all layers see nothing, and have weight 0{tokens}.", stacklevel=3)
    return rolled.reshape(*samples, n, n)


@jax.jit
def _sums(weights: Array) -> tuple[Array, Array]:
    return jnp.sum(weights.astype(working_dtype(weights.dtype)), axis=-1), jnp.min(weights)


@jax.jit
def _step(rolled: Array, weights: Array, heads: Array, skip: ArrayLike) -> Array:
    """One more layer, the mean over so many `heads` (sample, query) of its weights (sample, head, query, key)."""
    mean = jnp.sum(lax.stop_gradient(weights), axis=-3) / heads[..., None].astype(weights.dtype)
    return jnp.multiply(skip, rolled) + jnp.matmul((1 - skip) * mean, rolled, precision="highest")
