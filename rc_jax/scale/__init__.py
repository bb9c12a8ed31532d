"""How sharp should softmax be? The gradient's norm, its annealed mean, and the scales that maximise it.

Closed forms: `annealed_objective`, `optimize_scale`, `optimal_scale`, `optimal_scale_exact`. Simulation, no formula
shared with them: `expected_objective`, `typical_optimum`, `typical_scale`.
"""

from rc_jax.scale.annealed import annealed_objective, log_concentration
from rc_jax.scale.critical import (
    OutputGram,
    critical_gamma,
    equicorrelated_gradient,
    equicorrelated_optimal_gamma,
    equicorrelated_outputs,
    equicorrelated_weight,
    similarity_limit,
    transition_width,
)
from rc_jax.scale.exact import optimal_scale_exact
from rc_jax.scale.expected import expected_objective
from rc_jax.scale.fit import fit_coefficient, relative_residual
from rc_jax.scale.gradient import gradient_norm, log_gradient_norm
from rc_jax.scale.optimum import Optimum, optimal_scale, optimize_scale
from rc_jax.scale.typical import TypicalOptimum, typical_optimum, typical_scale

__all__ = [
    "Optimum",
    "OutputGram",
    "TypicalOptimum",
    "annealed_objective",
    "critical_gamma",
    "equicorrelated_gradient",
    "equicorrelated_optimal_gamma",
    "equicorrelated_outputs",
    "equicorrelated_weight",
    "expected_objective",
    "fit_coefficient",
    "gradient_norm",
    "log_concentration",
    "log_gradient_norm",
    "optimal_scale",
    "optimal_scale_exact",
    "optimize_scale",
    "relative_residual",
    "similarity_limit",
    "transition_width",
    "typical_optimum",
    "typical_scale",
]
