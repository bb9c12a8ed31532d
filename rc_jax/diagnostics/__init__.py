"""Measures of anyone's attention weights and hidden states: arrays in, a table out."""

from rc_jax.diagnostics.hooks.flax_modules import flax_weights
from rc_jax.diagnostics.hooks.monitoring import append_line, metrics, score_metrics
from rc_jax.diagnostics.hooks.torch_modules import torch_weights
from rc_jax.diagnostics.hooks.transformers_outputs import from_transformers
from rc_jax.diagnostics.massive import Activation, massive_activations
from rc_jax.diagnostics.measures import SINK, importance, qk_clip
from rc_jax.diagnostics.record import Diagnosis
from rc_jax.diagnostics.report.comparison import Comparison, compare
from rc_jax.diagnostics.rollout import rollout
from rc_jax.diagnostics.show import attach
from rc_jax.diagnostics.states import hidden_states
from rc_jax.diagnostics.streaming.queries_and_keys import scores
from rc_jax.diagnostics.weights import attention

attach()  # diagnoses get their tables and figures

__all__ = [
    "SINK",
    "Activation",
    "Comparison",
    "Diagnosis",
    "append_line",
    "attention",
    "compare",
    "flax_weights",
    "from_transformers",
    "hidden_states",
    "importance",
    "massive_activations",
    "metrics",
    "qk_clip",
    "rollout",
    "score_metrics",
    "scores",
    "torch_weights",
]
