"""What is exactly nothing in a network, told from numbers that have underflowed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from rc_jax import attention
from rc_jax.attention import AttentionSpec
from rc_jax.network import StackSpec


def alone(spec: StackSpec) -> np.ndarray:
    """In which layers a row sees its own token alone: it is neither even nor uneven."""
    return _of_layers(spec, [kind.attention.window == 0 for kind in spec.kinds])


def blind(spec: StackSpec) -> np.ndarray:
    """In which layers weights are the same for all queries and keys, whose gradients are exactly 0."""
    return _of_layers(spec, [_blind(kind.attention) for kind in spec.kinds])


def _of_layers(spec: StackSpec, kinds: list[bool]) -> np.ndarray:
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
