"""The ALBERT layout (Lan et al. 2020): layers of a group share their weights, and the tables are narrow."""

from rc_jax.pretrained.config import Config
from rc_jax.pretrained.families import encoder
from rc_jax.pretrained.families.shared import Embeddings, Layout, Scope

NAMES = encoder.Names(
    query="attention.query",
    key="attention.key",
    value="attention.value",
    output="attention.dense",
    attention_norm="attention.LayerNorm",
    mlp_in="ffn",
    mlp_out="ffn_output",
    mlp_norm="full_layer_layer_norm",
)


def layout(config: Config) -> Layout:
    """Layer l of L belongs to group ⌊l/(L/groups)⌋, in floating point, as in the transformers library."""
    config.choice("inner_group_num", (1,), 1)
    spec, narrow = encoder.stack_spec(config, "gelu_new"), config.integer("embedding_size")
    # A group is one stored layer.
    groups = config.integer("num_hidden_groups", 1)
    if groups > spec.depth:
        raise config.refuse("num_hidden_groups", f"be at most num_hidden_layers={spec.depth}", groups)

    def embeddings(at: Scope) -> Embeddings:
        tables = encoder.read_tables(at.under("embeddings"), config, narrow)
        projection, bias = at.linear("encoder.embedding_hidden_mapping_in", narrow, spec.attention.d_model)
        return tables._replace(projection=projection, projection_bias=bias)

    group = "encoder.albert_layer_groups.{}.albert_layers.0"
    return Layout(
        spec=spec,
        embeddings=embeddings,
        layer=lambda at, index: encoder.read_block(at.under(group.format(index)), spec, NAMES),
        root="albert.",
        heads=("predictions.*", "sop_classifier.*", "classifier.*", "qa_outputs.*"),
        unused=("pooler.*", "embeddings.position_ids", "embeddings.token_type_ids"),
        most_tokens=config.integer("max_position_embeddings"),
        shared=tuple(int(layer / (spec.depth / groups)) for layer in range(spec.depth)),
    )
