"""Collapse: what depth does to the differences between tokens.

`log_residuals` follows them through any depth; `residual` and the norms beside it measure one matrix of tokens. Bounds:
`layer_bound`, `tanh_bound`. The terms of a network by the length of their paths: `path_length_sums`. Any width without
its weights: `sample_log_residuals`.
"""

from rc_jax.collapse import (
    audit,
    bounds,
    causal_rank,
    certified,
    clustering,
    exact,
    kinds,
    mask_rates,
    softmax_spectrum,
)
from rc_jax.collapse.bounds.cubic import depth_bound, layer_bound, measured_gamma
from rc_jax.collapse.bounds.tanh import tanh_bound, tanh_depth_bound
from rc_jax.collapse.exact.decide import Decided
from rc_jax.collapse.exact.trajectory import explain, log_residuals, product_log_residuals
from rc_jax.collapse.exact.weight_gradients import WeightGradients, log_weight_gradients
from rc_jax.collapse.measures import diameter, effective_rank, frobenius, norm_1inf, residual, stable_rank
from rc_jax.collapse.paths.reruns import path_reruns
from rc_jax.collapse.paths.sizes import PathShares, PathSizes, path_log_sizes, path_shares, sample_path_log_residuals
from rc_jax.collapse.paths.sums import draw_paths, path_counts, path_length_sums
from rc_jax.collapse.random_energy_model import (
    random_energy_participation,
)
from rc_jax.collapse.requirements import NotCovered
from rc_jax.collapse.skip_connections import uniform_correlation, uniform_correlation_limit
from rc_jax.collapse.width_free.sampling import sample_log_residuals

__all__ = [
    "Decided",
    "NotCovered",
    "PathShares",
    "PathSizes",
    "WeightGradients",
    "audit",
    "bounds",
    "causal_rank",
    "certified",
    "clustering",
    "depth_bound",
    "diameter",
    "draw_paths",
    "effective_rank",
    "exact",
    "explain",
    "frobenius",
    "kinds",
    "layer_bound",
    "log_residuals",
    "log_weight_gradients",
    "mask_rates",
    "measured_gamma",
    "norm_1inf",
    "path_counts",
    "path_length_sums",
    "path_log_sizes",
    "path_reruns",
    "path_shares",
    "product_log_residuals",
    "random_energy_participation",
    "residual",
    "sample_log_residuals",
    "sample_path_log_residuals",
    "softmax_spectrum",
    "stable_rank",
    "tanh_bound",
    "tanh_depth_bound",
    "uniform_correlation",
    "uniform_correlation_limit",
]
