"""Names of `rc_jax.collapse` that work as the others do, and that the pages do not teach."""

from rc_jax.collapse.bounds.cubic import measured_gamma
from rc_jax.collapse.bounds.tanh import tanh_depth_bound, tanh_layer_bound
from rc_jax.collapse.closed_forms.clustering import (
    Equiangular,
    circle_mode_growth,
    equiangular_flow,
    equiangular_layers,
    equiangular_time,
    expected_circle_clusters,
    fastest_circle_mode,
)
from rc_jax.collapse.closed_forms.mask_rates import critical_sink_value, log_sink_rate, log_sink_sensitivity
from rc_jax.collapse.closed_forms.random_energy_model import (
    random_energy_correlation,
    random_energy_entropy,
    random_energy_participation,
)
from rc_jax.collapse.closed_forms.skip_connections import uniform_correlation, uniform_correlation_limit
from rc_jax.collapse.closed_forms.softmax_spectrum import (
    gaussian_first_singular_value,
    gaussian_largest_weight,
    gaussian_second_singular_value,
    gaussian_spiked_singular_value,
    gaussian_squared_norm,
    gaussian_stable_rank,
    layer_second_singular_value,
)
from rc_jax.collapse.exact.trajectory import product_log_residuals
from rc_jax.collapse.exact.weight_gradients import WeightGradients, log_weight_gradients
from rc_jax.collapse.paths.reruns import path_reruns
from rc_jax.collapse.paths.sizes import PathShares, PathSizes, path_log_sizes, sample_path_log_residuals
from rc_jax.collapse.paths.sums import path_counts

__all__ = [
    "Equiangular",
    "PathShares",
    "PathSizes",
    "WeightGradients",
    "circle_mode_growth",
    "critical_sink_value",
    "equiangular_flow",
    "equiangular_layers",
    "equiangular_time",
    "expected_circle_clusters",
    "fastest_circle_mode",
    "gaussian_first_singular_value",
    "gaussian_largest_weight",
    "gaussian_second_singular_value",
    "gaussian_spiked_singular_value",
    "gaussian_squared_norm",
    "gaussian_stable_rank",
    "layer_second_singular_value",
    "log_sink_rate",
    "log_sink_sensitivity",
    "log_weight_gradients",
    "measured_gamma",
    "path_counts",
    "path_log_sizes",
    "path_reruns",
    "product_log_residuals",
    "random_energy_correlation",
    "random_energy_entropy",
    "random_energy_participation",
    "sample_path_log_residuals",
    "tanh_depth_bound",
    "tanh_layer_bound",
    "uniform_correlation",
    "uniform_correlation_limit",
]
