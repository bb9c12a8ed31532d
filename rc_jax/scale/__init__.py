"""The sharpness of softmax: the norm of its gradient, the annealed mean, and the scales that maximise it.

Closed forms: `annealed_objective`, `optimal_scale`, `optimal_scale_exact`. Simulation, no formula
shared with them: `expected_objective`, `typical_objective`, `typical_optimum`, `typical_scale`; for given rows
`per_sample_scale`, over random ones `sample_scales` and `scale_tail`.
"""

from rc_jax.scale.closed_forms.annealed import annealed_objective
from rc_jax.scale.closed_forms.decoder import decoder_scale
from rc_jax.scale.closed_forms.entropy import annealed_entropy, fixed_entropy_scale
from rc_jax.scale.closed_forms.equicorrelated import critical_gamma
from rc_jax.scale.closed_forms.optimum import optimal_scale, optimal_scale_exact
from rc_jax.scale.gradient.entropy import softmax_entropy
from rc_jax.scale.gradient.softmax import gradient_norm
from rc_jax.scale.more import *  # noqa: F403
from rc_jax.scale.results import Optimum
from rc_jax.scale.simulated.distribution import sample_scales
from rc_jax.scale.simulated.objectives import expected_objective, typical_optimum, typical_scale
from rc_jax.scale.simulated.per_sample import per_sample_scale

__all__ = [
    "Optimum",
    "annealed_entropy",
    "annealed_objective",
    "critical_gamma",
    "decoder_scale",
    "expected_objective",
    "fixed_entropy_scale",
    "gradient_norm",
    "optimal_scale",
    "optimal_scale_exact",
    "per_sample_scale",
    "sample_scales",
    "softmax_entropy",
    "typical_optimum",
    "typical_scale",
]
