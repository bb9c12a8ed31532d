"""Can attention focus? The sparsity of weights: measured, in closed form, and by quadrature for any kernel."""

from rc_jax.sparsity.cosines import cosine_similarity_power
from rc_jax.sparsity.decaying import channel_decay, channel_decay_lowest, decay
from rc_jax.sparsity.features import feature_moments, nonnegative_linear, nonnegative_linear_iid
from rc_jax.sparsity.gated_decay import gated_decay, gated_decay_annealed
from rc_jax.sparsity.inequality import entropy_sparsity, gini, hoyer, kurtosis, renyi_sparsity
from rc_jax.sparsity.kernels import KERNELS, Kernel, cosine_power, power
from rc_jax.sparsity.kinks import locate_kinks
from rc_jax.sparsity.measure import norm_ratio, sparsity
from rc_jax.sparsity.moments import from_moments
from rc_jax.sparsity.quadrature import Estimate, from_kernel, from_kernel_with_error
from rc_jax.sparsity.random_feature_rates import positive_feature_moments, positive_features_rate
from rc_jax.sparsity.random_features import (
    positive_random_features,
    random_projections,
    trigonometric_random_features,
)
from rc_jax.sparsity.rectified import log_relu_squared, relu_squared
from rc_jax.sparsity.smooth import exponential, identity
from rc_jax.sparsity.taylor import taylor_exponential, taylor_zero
from rc_jax.sparsity.thresholded import top_share_exponential, top_share_uniform

__all__ = [
    "KERNELS",
    "Estimate",
    "Kernel",
    "channel_decay",
    "channel_decay_lowest",
    "cosine_power",
    "cosine_similarity_power",
    "decay",
    "entropy_sparsity",
    "exponential",
    "feature_moments",
    "from_kernel",
    "from_kernel_with_error",
    "from_moments",
    "gated_decay",
    "gated_decay_annealed",
    "gini",
    "hoyer",
    "identity",
    "kurtosis",
    "locate_kinks",
    "log_relu_squared",
    "nonnegative_linear",
    "nonnegative_linear_iid",
    "norm_ratio",
    "positive_feature_moments",
    "positive_features_rate",
    "positive_random_features",
    "power",
    "random_projections",
    "relu_squared",
    "renyi_sparsity",
    "sparsity",
    "taylor_exponential",
    "taylor_zero",
    "top_share_exponential",
    "top_share_uniform",
    "trigonometric_random_features",
]
