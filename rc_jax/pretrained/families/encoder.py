"""The block of the encoder families, X ← LN(X + SA(X)), X ← LN(X + MLP(X)), under each family's names."""

from typing import NamedTuple

from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.network import LayerParams, MLPParams, MLPSpec, StackSpec
from rc_jax.pretrained.config import Config
from rc_jax.pretrained.families.shared import Embeddings, Scope, activation, split_heads
from rc_jax.pretrained.tensor_source import Stored


class Names(NamedTuple):
    """The names that a family gives to the parts of its block."""

    query: str
    key: str
    value: str
    output: str
    attention_norm: str
    mlp_in: str
    mlp_out: str
    mlp_norm: str


def stack_spec(config: Config, default_activation: str) -> StackSpec:
    """Post-norm blocks with skips, biases everywhere."""
    config.choice("position_embedding_type", ("absolute",), "absolute")  # relative positions are another network
    d, heads = config.integer("hidden_size"), config.divisor("num_attention_heads", "hidden_size")
    return StackSpec(
        attention=AttentionSpec(d_model=d, heads=heads, bias=True),
        depth=config.depth("num_hidden_layers"),
        skip=True,
        mlp=MLPSpec(
            width=config.integer("intermediate_size"), activation=activation(config, "hidden_act", default_activation)
        ),
        norm="post",
        norm_epsilon=config.positive("layer_norm_eps", 1e-12),
    )


def read_block(at: Scope, spec: StackSpec, names: Names) -> LayerParams:
    """One layer."""
    d, heads = spec.attention.d_model, spec.attention.heads
    assert spec.mlp is not None
    weights: dict[str, Stored] = {}
    for role in ("query", "key", "value"):
        weight, bias = at.linear(getattr(names, role), d, d)
        weights[role], weights[f"{role}_bias"] = split_heads(weight, heads), bias.reshape(heads, -1)
    weight, bias = at.linear(names.output, d, d)
    return LayerParams(
        attention=AttentionParams(**weights, output=weight.reshape(heads, -1, d), output_bias=bias),
        mlp=MLPParams(*at.linear(names.mlp_in, d, spec.mlp.width), *at.linear(names.mlp_out, spec.mlp.width, d)),
        attention_norm=at.norm(names.attention_norm, d),
        mlp_norm=at.norm(names.mlp_norm, d),
    )


def read_tables(at: Scope, config: Config, width: int, *, token_types: bool = True) -> Embeddings:
    """Word, position and token type, with a LayerNorm."""
    kinds = config.integer("type_vocab_size") if token_types else 0
    return Embeddings(
        word=at.take("word_embeddings.weight", config.integer("vocab_size"), width),
        position=at.take("position_embeddings.weight", config.integer("max_position_embeddings"), width),
        token_type=at.take("token_type_embeddings.weight", kinds, width) if kinds else None,
        norm=at.norm("LayerNorm", width),
    )
