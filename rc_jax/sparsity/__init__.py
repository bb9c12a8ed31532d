"""Can attention focus? The sparsity of weights: measured, in closed form, and by quadrature for any kernel."""

from rc_jax.sparsity.decaying import decay
from rc_jax.sparsity.features import nonnegative_linear, nonnegative_linear_iid
from rc_jax.sparsity.measure import norm_ratio, sparsity
from rc_jax.sparsity.quadrature import from_kernel
from rc_jax.sparsity.rectified import log_relu_squared, relu_squared
from rc_jax.sparsity.smooth import exponential, identity

__all__ = [
    "decay",
    "exponential",
    "from_kernel",
    "identity",
    "log_relu_squared",
    "nonnegative_linear",
    "nonnegative_linear_iid",
    "norm_ratio",
    "relu_squared",
    "sparsity",
]
