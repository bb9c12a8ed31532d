"""Can attention focus? The sparsity of weights: measured, in closed form, and by quadrature for any kernel."""

from rc_jax.sparsity.decaying import decay
from rc_jax.sparsity.features import feature_moments, nonnegative_linear, nonnegative_linear_iid
from rc_jax.sparsity.measure import norm_ratio, sparsity
from rc_jax.sparsity.quadrature import from_kernel
from rc_jax.sparsity.rectified import log_relu_squared, relu_squared
from rc_jax.sparsity.smooth import exponential, identity
from rc_jax.sparsity.taylor import taylor_exponential, taylor_zero

__all__ = [
    "decay",
    "exponential",
    "feature_moments",
    "from_kernel",
    "identity",
    "log_relu_squared",
    "nonnegative_linear",
    "nonnegative_linear_iid",
    "norm_ratio",
    "relu_squared",
    "sparsity",
    "taylor_exponential",
    "taylor_zero",
]
