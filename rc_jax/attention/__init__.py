"""What attention is: scores → weights → layer, as pure functions of parameters and tokens."""

from rc_jax.attention import constructions, masks
from rc_jax.attention.cost import LayerCosts, LayerKind, layer_costs, multiplications, operations
from rc_jax.attention.kinds import KINDS, Kind
from rc_jax.attention.kinds.decays import elu_plus_one
from rc_jax.attention.layer import attend, attention_weights, scores
from rc_jax.attention.linear import average_pool, linear_attend
from rc_jax.attention.parameters import init, project
from rc_jax.attention.positions import Rotary, rotary, sinusoidal
from rc_jax.attention.specification import AttentionParams, AttentionSpec, Precision

__all__ = [
    "KINDS",
    "AttentionParams",
    "AttentionSpec",
    "Kind",
    "LayerCosts",
    "LayerKind",
    "Precision",
    "Rotary",
    "attend",
    "attention_weights",
    "average_pool",
    "constructions",
    "elu_plus_one",
    "init",
    "layer_costs",
    "linear_attend",
    "masks",
    "multiplications",
    "operations",
    "project",
    "rotary",
    "scores",
    "sinusoidal",
]
