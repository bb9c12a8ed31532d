"""Attention rollout: what the tokens of the last layer take from each token of the first, if layers only mix."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import working_dtype
from rc_jax.diagnostics import inputs


@arguments.guard(skip=arguments.scalar(arguments.bounded(0, 1)))
def rollout(weights: Any, *, skip: float = 0.5) -> Float[Array, "... query key"]:
    r"""The product of the layers' mean weights, each mixed with the identity for the skip connection.

        R = Ã_L Ã_{L−1} ⋯ Ã_1,     Ã_l = λ 1 + (1 − λ) · mean over heads of A_l

    Row i of R says how much token i takes from each token of the input. Rows of softmax add up to one, and so do those
    of R; rows that add up to less, with a sink that is no key, leave less. It knows nothing of values, output weights,
    norms and MLPs.

    Args:
        weights: (…, heads, n, n) for each layer, the first layer first: a list, a mapping such as `torch_weights`
            gives, or one array whose first axis counts layers. Arrays of JAX, NumPy or PyTorch. Axes before the heads
            are samples.
        skip: λ between 0 and 1, the share of the skip connection.

    Returns:
        R of each sample, (…, n, n).

    Raises:
        TypeError: `weights` are traced.
        ValueError: a row adds up to more than one or has a negative weight or NaN.

    Source: Abnar and Zuidema (2020), arXiv 2005.00928, section 3, with λ = ½.

    Example:
        >>> import numpy as np
        >>> from rc_jax import diagnostics
        >>> even = np.full((2, 1, 4, 4), 1 / 4, np.float32)  # two layers of one head
        >>> print(diagnostics.rollout(even)[0])  # λ² of itself, and 1 − λ² in equal parts
        [0.4375 0.1875 0.1875 0.1875]
    """
    listed = list(weights.values()) if isinstance(weights, Mapping) else weights
    layers = inputs.layers_of("weights", listed, ("heads", "tokens", "tokens"), stacked=4)
    if layers.shape[-1] != layers.shape[-2]:
        raise ValueError(f"`weights` must have two last axes of one length, got the shape {layers.shape}")
    *samples, _, n, _ = layers.shape
    rolled: Array = jnp.asarray(np.broadcast_to(np.eye(n), (*samples, n, n)), layers[0].dtype)
    for layer in range(len(layers)):
        rows, least = (np.asarray(each) for each in _sums(layers[layer]))
        limit = inputs.tolerance(layers.dtype, n)
        if not (rows <= 1 + limit).all() or least < 0:
            raise ValueError(
                f"`weights` must be at least 0 and have rows that add up to 1 at most, got a least weight of "
                f"{least:.6g} and sums from {rows.min():.6g} to {rows.max():.6g} in layer {layer}"
            )
        rolled = _step(rolled, layers[layer], skip)
    return rolled


@jax.jit
def _sums(weights: Array) -> tuple[Array, Array]:
    return jnp.sum(weights.astype(working_dtype(weights.dtype)), axis=-1), jnp.min(weights)


@jax.jit
def _step(rolled: Array, weights: Array, skip: ArrayLike) -> Array:
    mixed = (1 - skip) * jnp.mean(lax.stop_gradient(weights), axis=-3)
    return jnp.multiply(skip, rolled) + jnp.matmul(mixed, rolled, precision="highest")
