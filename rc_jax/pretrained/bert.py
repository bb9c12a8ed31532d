"""The BERT layout: which setting and which tensor of a published checkpoint is which of this package's.

A linear layer is stored as (out, in) and applied as x Wᵀ + b; here matrices multiply from the right, heads apart.
"""

from typing import NamedTuple

from jaxtyping import Array, Float

from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.network import LayerParams, MLPParams, MLPSpec, NormParams, StackSpec
from rc_jax.network.spec import Activation
from rc_jax.pretrained.files import Config, Stored, Tensors

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
TASK_HEADS = ("cls.", "classifier.", "qa_outputs.")


class Embeddings(NamedTuple):
    """What turns token ids into the first hidden state: three tables, added, and a LayerNorm."""

    word: Float[Array, "vocabulary feature"]
    position: Float[Array, "position feature"]
    token_type: Float[Array, "kind feature"]
    norm: NormParams


def read_spec(config: Config) -> StackSpec:
    """The stack that the settings describe: post-norm blocks with skips, biases everywhere."""
    d_model, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if d_model % heads:
        raise ValueError(f"`num_attention_heads` must divide hidden_size={d_model} in '{config.file}', got {heads}")
    activation = config.choice("hidden_act", tuple(ACTIVATIONS), "gelu")
    config.choice("position_embedding_type", ("absolute",), "absolute")
    for name in ("is_decoder", "add_cross_attention"):
        config.choice(name, (False,), False)
    return StackSpec(
        attention=AttentionSpec(d_model=d_model, heads=heads, bias=True),
        depth=config.integer("num_hidden_layers"),
        skip=True,
        mlp=MLPSpec(width=config.integer("intermediate_size"), activation=ACTIVATIONS[activation]),
        norm="post",
        norm_epsilon=config.positive("layer_norm_eps", 1e-12),
    )


def read_tensors(tensors: Tensors, config: Config, spec: StackSpec) -> tuple[list[LayerParams], Embeddings]:
    """One `LayerParams` of numpy arrays per layer, and the embeddings; every tensor is accounted for."""
    tensors.rename(".LayerNorm.gamma", ".LayerNorm.weight")  # the names of the first released files
    tensors.rename(".LayerNorm.beta", ".LayerNorm.bias")
    root = "bert." if any(name.startswith("bert.") for name in tensors.left) else ""
    tensors.ignore((f"{root}pooler.", *(TASK_HEADS if root else ())), (f"{root}embeddings.position_ids",))
    embeddings = _embeddings(tensors, config, spec, f"{root}embeddings.")
    layers = [_layer(tensors, spec, f"{root}encoder.layer.{index}.") for index in range(spec.depth)]
    tensors.finish()
    return layers, embeddings


def _embeddings(tensors: Tensors, config: Config, spec: StackSpec, at: str) -> Embeddings:
    d = spec.attention.d_model
    return Embeddings(
        word=tensors.take(f"{at}word_embeddings.weight", config.integer("vocab_size"), d),
        position=tensors.take(f"{at}position_embeddings.weight", config.integer("max_position_embeddings"), d),
        token_type=tensors.take(f"{at}token_type_embeddings.weight", config.integer("type_vocab_size"), d),
        norm=_norm(tensors, f"{at}LayerNorm", d),
    )


def _layer(tensors: Tensors, spec: StackSpec, at: str) -> LayerParams:
    d = spec.attention.d_model
    assert spec.mlp is not None
    weight_in, bias_in = _linear(tensors, f"{at}intermediate.dense", d, spec.mlp.width)
    weight_out, bias_out = _linear(tensors, f"{at}output.dense", spec.mlp.width, d)
    return LayerParams(
        attention=_attention(tensors, spec.attention, f"{at}attention."),
        mlp=MLPParams(weight_in, bias_in, weight_out, bias_out),
        attention_norm=_norm(tensors, f"{at}attention.output.LayerNorm", d),
        mlp_norm=_norm(tensors, f"{at}output.LayerNorm", d),
    )


def _attention(tensors: Tensors, spec: AttentionSpec, at: str) -> AttentionParams:
    d, heads = spec.d_model, spec.heads
    width = d // heads
    found: dict[str, Stored] = {}
    for role in ("query", "key", "value"):
        weight, bias = _linear(tensors, f"{at}self.{role}", d, d)
        found[role] = weight.reshape(d, heads, width).transpose(1, 0, 2)
        found[f"{role}_bias"] = bias.reshape(heads, width)
    weight, bias = _linear(tensors, f"{at}output.dense", d, d)
    return AttentionParams(
        **found, output=weight.reshape(heads, width, d), output_bias=bias, score_vector=None, decay=None
    )


def _linear(tensors: Tensors, at: str, inputs: int, outputs: int) -> tuple[Stored, Stored]:
    """The matrix as (in, out), and the bias."""
    return tensors.take(f"{at}.weight", outputs, inputs).T, tensors.take(f"{at}.bias", outputs)


def _norm(tensors: Tensors, at: str, width: int) -> NormParams:
    return NormParams(scale=tensors.take(f"{at}.weight", width), shift=tensors.take(f"{at}.bias", width))
