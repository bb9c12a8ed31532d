"""Collapse: what depth does to the differences between tokens."""

from rc_jax.collapse.log_residuals import log_residuals, product_log_residuals
from rc_jax.collapse.norms import diameter, effective_rank, frobenius, norm_1inf, stable_rank
from rc_jax.collapse.residual import residual

__all__ = [
    "diameter",
    "effective_rank",
    "frobenius",
    "log_residuals",
    "norm_1inf",
    "product_log_residuals",
    "residual",
    "stable_rank",
]
