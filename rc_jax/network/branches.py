"""The strength of a branch: one factor on the outputs of attention and MLP."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from rc_jax._numerics import arguments
from rc_jax.network.parameters import scale_layer
from rc_jax.network.specification import Layers, RandomLayers


@arguments.guard()
def scale_branches(params: Layers, strength: ArrayLike, *, attention: bool = True, mlp: bool = True) -> Layers:
    """The same layers with every branch a times as strong: x + a SA(x), then x + a MLP(x).

    Output matrices and output biases are multiplied by a; nothing else changes, so it works with or without skip
    connections, and no LayerNorm is touched. The 1/√L that keeps tokens apart in deep networks with skip connections
    (Noci et al. 2022) is `scale_branches(params, depth**-0.5)`.

    Args:
        params: from `network.init` or `network.random_layers`; the result is of the same kind.
        strength: a, a number; for stored parameters also one for each layer. May be traced.
        attention: whether the attention's output is scaled.
        mlp: whether the MLP's output is scaled, where there is one.

    Returns:
        Parameters of the same kind and dtype.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from rc_jax import network
        >>> from rc_jax.attention import AttentionSpec
        >>> spec = network.StackSpec(attention=AttentionSpec(d_model=8, heads=2), depth=3, skip=True)
        >>> params, x = network.init(jax.random.key(0), spec), jnp.eye(5, 8)
        >>> bool((network.apply(scale_branches(params, 0.0), x, spec) == x).all())
        True
    """
    strength = jnp.asarray(strength)
    # Layers that are not drawn yet keep the factor and apply it when they are.
    if isinstance(params, RandomLayers):
        if strength.ndim:
            raise ValueError(f"`strength` must be one number for RandomLayers, got {arguments.describe(strength)}")
        strength = strength.astype(params.dtype)
        return dataclasses.replace(
            params,
            attention_strength=_times(params.attention_strength, strength) if attention else params.attention_strength,
            mlp_strength=_times(params.mlp_strength, strength) if mlp else params.mlp_strength,
        )
    depth = params.attention.output.shape[0]
    if strength.shape not in ((), (depth,)):
        raise ValueError(f"`strength` must be one number or {depth} of them, got {arguments.describe(strength)}")
    return scale_layer(params, strength if attention else None, strength if mlp else None)


def _times(before: Array | None, strength: Array) -> Array:
    return strength if before is None else before * strength
