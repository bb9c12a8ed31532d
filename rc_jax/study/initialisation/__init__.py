"""A network before it is trained: what its depth, norms, scale and kind do to tokens, rows and gradients."""

from rc_jax.study.initialisation.architecture import architecture
from rc_jax.study.initialisation.report import Architecture

__all__ = ["Architecture", "architecture"]
