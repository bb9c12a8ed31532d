"""What attention is: scores → weights → layer, as pure functions of parameters and tokens."""

from rc_jax.attention import masks
from rc_jax.attention.cost import layer_costs, multiplications
from rc_jax.attention.layer import attend, attention_weights, scores
from rc_jax.attention.more import *  # noqa: F403
from rc_jax.attention.parameters import init
from rc_jax.attention.positions import Rotary, rotary
from rc_jax.attention.specification import AttentionParams, AttentionSpec

__all__ = [
    "AttentionParams",
    "AttentionSpec",
    "Rotary",
    "attend",
    "attention_weights",
    "init",
    "layer_costs",
    "masks",
    "multiplications",
    "rotary",
    "scores",
]
