"""Names of `rc_jax.scale` that work as the others do, and that the pages do not teach."""

from rc_jax.scale.closed_forms.annealed import log_concentration
from rc_jax.scale.closed_forms.decoder import decoder_loss, effective_keys, scale_loss
from rc_jax.scale.closed_forms.entropy import annealed_renyi_entropy, entropy_loss_per_dimension
from rc_jax.scale.closed_forms.equicorrelated import (
    equicorrelated_gradient,
    equicorrelated_optimal_gamma,
    equicorrelated_outputs,
    equicorrelated_weight,
    similarity_limit,
    transition_width,
)
from rc_jax.scale.closed_forms.optimum import optimise_scale
from rc_jax.scale.closed_forms.shared_query import shared_query_objective, shared_query_optimum, shared_query_scale
from rc_jax.scale.fits import fit_coefficient, relative_residual
from rc_jax.scale.gradient.cross_entropy import cross_entropy_gradient
from rc_jax.scale.gradient.entropy import renyi_entropy
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
    power_weights,
    sparsemax,
)
from rc_jax.scale.gradient.softmax import log_gradient_norm
from rc_jax.scale.one_more_logit import sink_objective, sink_scale
from rc_jax.scale.results import DecoderLoss, OutputGram
from rc_jax.scale.simulated.distribution import scale_tail
from rc_jax.scale.simulated.objectives import typical_objective
from rc_jax.scale.simulated.per_sample import per_sample_optimum
from rc_jax.scale.soft_cap import capped_objective, capped_scale

__all__ = [
    "DecoderLoss",
    "OutputGram",
    "annealed_power_gradient",
    "annealed_renyi_entropy",
    "capped_objective",
    "capped_scale",
    "cross_entropy_gradient",
    "decoder_loss",
    "effective_keys",
    "entmax15",
    "entropy_loss_per_dimension",
    "equicorrelated_gradient",
    "equicorrelated_optimal_gamma",
    "equicorrelated_outputs",
    "equicorrelated_weight",
    "fit_coefficient",
    "jacobian_frobenius_norm",
    "jacobian_largest_entry",
    "jacobian_spectral_norm",
    "jacobian_trace",
    "log_concentration",
    "log_gradient_norm",
    "optimise_scale",
    "per_sample_optimum",
    "power_gradient_norm",
    "power_weights",
    "relative_residual",
    "renyi_entropy",
    "scale_loss",
    "scale_tail",
    "shared_query_objective",
    "shared_query_optimum",
    "shared_query_scale",
    "similarity_limit",
    "sink_objective",
    "sink_scale",
    "sparsemax",
    "transition_width",
    "typical_objective",
]
