"""Parts of the bounds on collapse: the sizes that they compare, layer by layer, and the norms that they read."""

from rc_jax.collapse.bounds.cubic import bound_parts, in_depth
from rc_jax.collapse.bounds.pure_attention import column_norm, row_norm
from rc_jax.collapse.bounds.tanh import diameters_by_layer

__all__ = ["bound_parts", "column_norm", "diameters_by_layer", "in_depth", "row_norm"]
