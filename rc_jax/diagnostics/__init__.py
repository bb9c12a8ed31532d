"""Measures of anyone's attention weights and hidden states: arrays in, a table out."""

from rc_jax.diagnostics.hooks.flax_modules import flax_weights
from rc_jax.diagnostics.hooks.monitoring import append_line, metrics, score_metrics
from rc_jax.diagnostics.hooks.transformers_outputs import from_transformers
from rc_jax.diagnostics.measures import SINK, importance
from rc_jax.diagnostics.record import Diagnosis
from rc_jax.diagnostics.report.comparison import Comparison, compare
from rc_jax.diagnostics.states import hidden_states
from rc_jax.diagnostics.streaming.queries_and_keys import scores
from rc_jax.diagnostics.weights import attention

__all__ = [
    "SINK",
    "Comparison",
    "Diagnosis",
    "append_line",
    "attention",
    "compare",
    "flax_weights",
    "from_transformers",
    "hidden_states",
    "importance",
    "metrics",
    "score_metrics",
    "scores",
]
