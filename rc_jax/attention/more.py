"""Names of `rc_jax.attention` that work as the others do, and that the pages do not teach."""

from rc_jax.attention.constructions import convolution_layer, convolution_tokens, convolve, message_passing_layer
from rc_jax.attention.cost import LayerCosts, operations
from rc_jax.attention.linear import average_pool, linear_attend
from rc_jax.attention.parameters import differential_start
from rc_jax.attention.positions import sinusoidal

__all__ = [
    "LayerCosts",
    "average_pool",
    "convolution_layer",
    "convolution_tokens",
    "convolve",
    "differential_start",
    "linear_attend",
    "message_passing_layer",
    "operations",
    "sinusoidal",
]
