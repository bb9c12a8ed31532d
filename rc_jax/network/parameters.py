"""The parameters of the layers of a stack, and the strength of their branches."""

from typing import NamedTuple, TypeVar

from jaxtyping import Array, Float

from rc_jax.attention import AttentionParams


class MLPParams(NamedTuple):
    """The weights of the token-wise sublayer; those of experts have a leading axis of these, but for the router's."""

    weight_in: Float[Array, "*layers feature hidden"]
    bias_in: Float[Array, "*layers hidden"]
    weight_out: Float[Array, "*layers hidden feature"]
    bias_out: Float[Array, "*layers feature"]
    weight_gate: Float[Array, "*layers feature hidden"] | None = None
    bias_gate: Float[Array, "*layers hidden"] | None = None
    weight_router: Float[Array, "*layers feature expert"] | None = None


class NormParams(NamedTuple):
    """The scale and shift of one LayerNorm; RMSNorm has no shift."""

    scale: Float[Array, "*layers feature"]
    shift: Float[Array, "*layers feature"] | None = None


class LayerParams(NamedTuple):
    """The weights of one layer, or of all of them stacked along a leading axis. Absent parts are `None`."""

    attention: AttentionParams
    mlp: MLPParams | None = None
    attention_norm: NormParams | None = None
    mlp_norm: NormParams | None = None
    attention_out_norm: NormParams | None = None
    mlp_out_norm: NormParams | None = None


Part = TypeVar("Part", AttentionParams, MLPParams, NormParams)


def scale_layer(layer: LayerParams, attention: Array | None, mlp: Array | None) -> LayerParams:
    """Multiply the outputs of a layer's branches by a number, or by one for each stacked layer; None leaves them.

    A norm behind a branch undoes a factor on its input, so there the norm is multiplied.
    """

    def times(part: Part, strength: Array, *names: str) -> Part:
        changed = {}
        for name in names:
            if (weight := getattr(part, name)) is not None:
                factor = strength.astype(weight.dtype)
                changed[name] = weight * factor.reshape(factor.shape + (1,) * (weight.ndim - factor.ndim))
        return part._replace(**changed)

    # The attention's branch, then the MLP's: the norm that ends it, or its output matrix and bias.
    if attention is not None and layer.attention_out_norm is not None:
        layer = layer._replace(attention_out_norm=times(layer.attention_out_norm, attention, "scale", "shift"))
    elif attention is not None:
        layer = layer._replace(attention=times(layer.attention, attention, "output", "output_bias"))
    if mlp is not None and layer.mlp_out_norm is not None:
        layer = layer._replace(mlp_out_norm=times(layer.mlp_out_norm, mlp, "scale", "shift"))
    elif mlp is not None and layer.mlp is not None:
        layer = layer._replace(mlp=times(layer.mlp, mlp, "weight_out", "bias_out"))
    return layer
