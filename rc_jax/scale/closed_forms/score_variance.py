"""How much the variance of scores differs from one random layer to the next."""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common


@arguments.guard(d_head=arguments.bounded(1), d_model=arguments.bounded(1))
def layer_variance_spread(d_head: ArrayLike, d_model: ArrayLike) -> Float[Array, "..."]:
    """Relative variance, over random layers, of the variance of q·k over normal tokens: 4/(kd) + 2(k + 1)/(kd²).

    k is the width of a head and d that of the model. Over normal tokens a score of a given layer has the variance
    tr(W_QᵀW_Q W_KᵀW_K), a product of two Wishart matrices for weights with independent N(0, 1/d) entries.

    Args:
        d_head: k, at least 1; any shape.
        d_model: d, at least 1; broadcast.

    Returns:
        The relative variance, of the broadcast shape.

    Source: docs/anatomy.md derives it.

    Example:
        >>> round(float(layer_variance_spread(32.0, 64.0)), 6)
        0.002457
    """
    dtype, (k, d) = as_common(d_head=d_head, d_model=d_model)
    return (4 / (k * d) + 2 * (k + 1) / (k * jnp.square(d))).astype(dtype)
