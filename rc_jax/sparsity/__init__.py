"""Can attention focus? The sparsity of weights: measured, in closed form, and by quadrature for any kernel."""

from rc_jax.sparsity.closed_forms.decays import decay
from rc_jax.sparsity.closed_forms.exponential_identity import exponential, identity
from rc_jax.sparsity.closed_forms.linear_features import nonnegative_linear
from rc_jax.sparsity.closed_forms.squared_relu import relu_squared
from rc_jax.sparsity.inequality import gini, hoyer, renyi_sparsity
from rc_jax.sparsity.measures import norm_ratio, sparsity
from rc_jax.sparsity.more import *  # noqa: F403
from rc_jax.sparsity.quadrature.adaptive import from_kernel, from_kernel_with_error
from rc_jax.sparsity.quadrature.kernels import KERNELS

__all__ = [
    "KERNELS",
    "decay",
    "exponential",
    "from_kernel",
    "from_kernel_with_error",
    "gini",
    "hoyer",
    "identity",
    "nonnegative_linear",
    "norm_ratio",
    "relu_squared",
    "renyi_sparsity",
    "sparsity",
]
