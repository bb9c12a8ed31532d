"""The sharpness of softmax: the norm of its gradient, the annealed mean, and the scales that maximise it.

Closed forms: `annealed_objective`, `optimal_scale`, `optimal_scale_exact`. Simulation, no formula
shared with them: `expected_objective`, `typical_objective`, `typical_optimum`, `typical_scale`; for given rows
`per_sample_scale`, over random ones `sample_scales` and `scale_tail`.
"""

from rc_jax.scale import equicorrelated, kinds, quadrature
from rc_jax.scale.closed_forms.annealed import annealed_objective, log_concentration
from rc_jax.scale.closed_forms.decoder import effective_keys
from rc_jax.scale.closed_forms.entropy import (
    annealed_entropy,
    annealed_renyi_entropy,
    entropy_loss_per_dimension,
    fixed_entropy_scale,
    least_entropy,
)
from rc_jax.scale.closed_forms.optimum import optimal_scale, optimal_scale_exact, optimise_scale
from rc_jax.scale.closed_forms.order_statistics import median_gap
from rc_jax.scale.closed_forms.score_variance import layer_variance_spread
from rc_jax.scale.closed_forms.shared_query import shared_query_scale
from rc_jax.scale.fits import fit_coefficient, relative_residual
from rc_jax.scale.gradient.cross_entropy import cross_entropy_gradient
from rc_jax.scale.gradient.entropy import renyi_entropy, softmax_entropy
from rc_jax.scale.gradient.jacobian_norms import (
    jacobian_frobenius_norm,
    jacobian_largest_entry,
    jacobian_spectral_norm,
    jacobian_trace,
)
from rc_jax.scale.gradient.normalisers import (
    annealed_power_gradient,
    entmax15,
    power_gradient_norm,
    sparsemax,
)
from rc_jax.scale.gradient.softmax import gradient_norm, log_gradient_norm
from rc_jax.scale.results import Optimum
from rc_jax.scale.simulated.distribution import sample_scales, scale_tail
from rc_jax.scale.simulated.objectives import expected_objective, typical_objective, typical_optimum, typical_scale
from rc_jax.scale.simulated.per_sample import per_sample_optimum, per_sample_scale
from rc_jax.scale.soft_cap import capped_scale

__all__ = [
    "Optimum",
    "annealed_entropy",
    "annealed_objective",
    "annealed_power_gradient",
    "annealed_renyi_entropy",
    "capped_scale",
    "cross_entropy_gradient",
    "effective_keys",
    "entmax15",
    "entropy_loss_per_dimension",
    "equicorrelated",
    "expected_objective",
    "fit_coefficient",
    "fixed_entropy_scale",
    "gradient_norm",
    "jacobian_frobenius_norm",
    "jacobian_largest_entry",
    "jacobian_spectral_norm",
    "jacobian_trace",
    "kinds",
    "layer_variance_spread",
    "least_entropy",
    "log_concentration",
    "log_gradient_norm",
    "median_gap",
    "optimal_scale",
    "optimal_scale_exact",
    "optimise_scale",
    "per_sample_optimum",
    "per_sample_scale",
    "power_gradient_norm",
    "quadrature",
    "relative_residual",
    "renyi_entropy",
    "sample_scales",
    "scale_tail",
    "shared_query_scale",
    "softmax_entropy",
    "sparsemax",
    "typical_objective",
    "typical_optimum",
    "typical_scale",
]
