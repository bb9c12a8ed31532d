"""Can attention focus? The sparsity of weights: measured, in closed form, and by quadrature for any kernel."""

from rc_jax.sparsity import kinds
from rc_jax.sparsity.closed_forms.cosines import cosine_similarity_power
from rc_jax.sparsity.closed_forms.decays import (
    channel_decay,
    channel_decay_lowest,
    decay,
    gated_decay,
    gated_decay_annealed,
)
from rc_jax.sparsity.closed_forms.exponential_identity import exponential, identity
from rc_jax.sparsity.closed_forms.linear_features import (
    feature_map_rates,
    feature_moments,
    nonnegative_linear,
    nonnegative_linear_iid,
)
from rc_jax.sparsity.closed_forms.random_feature_rates import positive_feature_moments, positive_features_rate
from rc_jax.sparsity.closed_forms.spectra import decay_spectrum
from rc_jax.sparsity.closed_forms.squared_relu import log_relu_squared, relu_squared
from rc_jax.sparsity.closed_forms.taylor import taylor_exponential, taylor_order
from rc_jax.sparsity.closed_forms.top_k import top_share_exponential
from rc_jax.sparsity.inequality import entropy_sparsity, gini, hoyer, kurtosis, renyi_sparsity
from rc_jax.sparsity.measures import from_moments, norm_ratio, sparsity
from rc_jax.sparsity.normalisers import differential, sinkhorn
from rc_jax.sparsity.quadrature.adaptive import Estimate, from_kernel, from_kernel_with_error
from rc_jax.sparsity.quadrature.kernels import KERNELS, Kernel, power
from rc_jax.sparsity.quadrature.kinks import locate_kinks
from rc_jax.sparsity.random_features import random_projections, trigonometric_random_features

__all__ = [
    "KERNELS",
    "Estimate",
    "Kernel",
    "channel_decay",
    "channel_decay_lowest",
    "cosine_similarity_power",
    "decay",
    "decay_spectrum",
    "differential",
    "entropy_sparsity",
    "exponential",
    "feature_map_rates",
    "feature_moments",
    "from_kernel",
    "from_kernel_with_error",
    "from_moments",
    "gated_decay",
    "gated_decay_annealed",
    "gini",
    "hoyer",
    "identity",
    "kinds",
    "kurtosis",
    "locate_kinks",
    "log_relu_squared",
    "nonnegative_linear",
    "nonnegative_linear_iid",
    "norm_ratio",
    "positive_feature_moments",
    "positive_features_rate",
    "power",
    "random_projections",
    "relu_squared",
    "renyi_sparsity",
    "sinkhorn",
    "sparsity",
    "taylor_exponential",
    "taylor_order",
    "top_share_exponential",
    "trigonometric_random_features",
]
