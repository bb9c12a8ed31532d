"""Collapse: what depth does to the differences between tokens."""

from rc_jax.collapse import audit
from rc_jax.collapse.bounds.cubic import depth_bound, layer_bound
from rc_jax.collapse.bounds.tanh import tanh_bound
from rc_jax.collapse.exact.trajectory import log_residuals
from rc_jax.collapse.measures import diameter, effective_rank, frobenius, norm_1inf, residual, stable_rank
from rc_jax.collapse.more import *  # noqa: F403
from rc_jax.collapse.paths.sizes import path_shares
from rc_jax.collapse.paths.sums import path_length_sums
from rc_jax.collapse.requirements import NotCovered
from rc_jax.collapse.width_free.sampling import sample_log_residuals

__all__ = [
    "NotCovered",
    "audit",
    "depth_bound",
    "diameter",
    "effective_rank",
    "frobenius",
    "layer_bound",
    "log_residuals",
    "norm_1inf",
    "path_length_sums",
    "path_shares",
    "residual",
    "sample_log_residuals",
    "stable_rank",
    "tanh_bound",
]
