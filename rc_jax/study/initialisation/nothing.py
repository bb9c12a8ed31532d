"""What is exactly nothing in a network, told from numbers that have underflowed."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from rc_jax import attention
from rc_jax.attention import AttentionSpec
from rc_jax.network import StackSpec


def alone(spec: StackSpec) -> np.ndarray:
    """In which layers a row sees its own token alone: it is neither even nor uneven."""
    return of_layers(spec, lambda layer: layer.window == 0)


def blind(spec: StackSpec) -> np.ndarray:
    """In which layers weights are the same for all queries and keys, whose gradients are exactly 0."""
    return of_layers(spec, _blind)


def cancelling(spec: StackSpec) -> np.ndarray:
    """In which layers gradients at W_Q and W_K are of the order r² where tokens differ by r.

    What all keys share gives every row the same scores, and even rows of one sum take nothing of what all values
    share: both cancel. Rotations make keys differ by their places, and rows of E by their sums.
    """
    return of_layers(spec, _cancelling)


def of_layers(spec: StackSpec, true: Callable[[AttentionSpec], bool]) -> np.ndarray:
    """Of which layers something is true that their kind decides."""
    kinds = [true(kind.attention) for kind in spec.kinds]
    return np.array([kinds[spec.kind_of(index)] for index in range(spec.depth)])


@functools.cache
def _blind(layer: AttentionSpec) -> bool:
    """A row of one weight that its sum fixes, or scores of its own that stay finite where queries and keys are NaN."""
    kind = layer.kind
    one = layer.window == 0 or layer.rank == 1 or (layer.top_k == 1 and kind.maps == 1)
    if one and kind.row_sum != "any":
        return True
    if kind.own_scores is None:
        return False
    tokens = layer.tokens or 3
    params = attention.init(jax.random.key(0), layer, dtype="float32")
    with jax.debug_nans(False):  # which NaN is looked for here
        params = params._replace(query=jnp.full_like(params.query, jnp.nan), key=jnp.full_like(params.key, jnp.nan))
        weights = attention.attention_weights(params, jnp.ones((tokens, layer.d_model), jnp.float32), layer)
        return bool(jnp.isfinite(weights).all())


@functools.cache
def _cancelling(layer: AttentionSpec) -> bool:
    """What a kind says of itself, or rows that are even and of one sum where tokens agree."""
    if layer.rotary is not None or layer.rank is not None:
        return False
    if layer.kind.shift_invariant or layer.kind.row_sum != "any":
        return True
    params = attention.init(jax.random.key(0), layer, dtype="float32")
    tokens = jnp.repeat(jax.random.normal(jax.random.key(1), (4, 1, layer.d_model), jnp.float32), 3, axis=1)
    weights = np.abs([attention.attention_weights(params, x, layer) for x in tokens])
    times = (weights * np.sum(weights > 0, axis=-1, keepdims=True))[weights > 0]
    return bool(np.ptp(times) < 1e-3) if times.size else True
