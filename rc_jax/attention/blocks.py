"""Parts of an attention layer that networks, exact arithmetic and tracing are built of; kept within the package."""

from rc_jax.attention.kernels import elu_plus_one, largest
from rc_jax.attention.layer import check_scale_and_mask, default_scale, log_tokens
from rc_jax.attention.parameters import halves, pool, project, queries_and_keys, split_normals, standardised
from rc_jax.attention.positions import angles, rotate_pairs
from rc_jax.attention.specification import DECAYING, QKNorm, check_layer, shapes

__all__ = [
    "DECAYING",
    "QKNorm",
    "angles",
    "check_layer",
    "check_scale_and_mask",
    "default_scale",
    "elu_plus_one",
    "halves",
    "largest",
    "log_tokens",
    "pool",
    "project",
    "queries_and_keys",
    "rotate_pairs",
    "shapes",
    "split_normals",
    "standardised",
]
