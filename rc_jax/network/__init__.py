"""Depth: a stack of attention layers with independent switches for skip connections, MLP and LayerNorm."""

from rc_jax.network import switches
from rc_jax.network.branches import scale_branches
from rc_jax.network.parameters import LayerParams, MLPParams, NormParams
from rc_jax.network.specification import Experts, Layers, MLPSpec, RandomLayers, StackSpec, init, random_layers
from rc_jax.network.stack import Arithmetic, apply, block, hidden_states, layer_norm, plain_arithmetic, scan_layers

__all__ = [
    "Arithmetic",
    "Experts",
    "LayerParams",
    "Layers",
    "MLPParams",
    "MLPSpec",
    "NormParams",
    "RandomLayers",
    "StackSpec",
    "apply",
    "block",
    "hidden_states",
    "init",
    "layer_norm",
    "plain_arithmetic",
    "random_layers",
    "scale_branches",
    "scan_layers",
    "switches",
]
