"""The BERT layout (Devlin et al. 2019), also of RoBERTa, XLM-RoBERTa, CamemBERT (Liu et al. 2019) and DistilBERT."""

from rc_jax.pretrained.config import Config
from rc_jax.pretrained.families import encoder
from rc_jax.pretrained.families.shared import Layout

NAMES = encoder.Names(
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    mlp_in="intermediate.dense",
    mlp_out="output.dense",
    mlp_norm="output.LayerNorm",
)
DISTILBERT_NAMES = encoder.Names(
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    output="attention.out_lin",
    attention_norm="sa_layer_norm",
    mlp_in="ffn.lin1",
    mlp_out="ffn.lin2",
    mlp_norm="output_layer_norm",
)
DISTILBERT_SETTINGS = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
}


def layout(config: Config) -> Layout:
    """Positions 0, 1, 2, …, two kinds of tokens."""
    return build(config, root="bert.", heads=("cls.*", "classifier.*", "qa_outputs.*"))


def roberta(config: Config) -> Layout:
    """Tokens have positions pad + 1, pad + 2, …; a padding token has position pad and is not counted."""
    padding = config.integer("pad_token_id", 1, least=0)
    return build(config, root="roberta.", heads=("lm_head.*", "classifier.*", "qa_outputs.*"), padding=padding)


def distilbert(config: Config) -> Layout:
    """BERT's block under other names, and no token types (Sanh et al. 2019).

    Learned and sinusoidal positions are both stored as a table.
    """
    heads = ("vocab_*", "pre_classifier.*", "classifier.*", "qa_outputs.*")
    settings = config.under(DISTILBERT_SETTINGS)
    return build(settings, DISTILBERT_NAMES, "transformer.layer", root="distilbert.", heads=heads, token_types=False)


def build(
    config: Config,
    names: encoder.Names = NAMES,
    layers: str = "encoder.layer",
    *,
    root: str,
    heads: tuple[str, ...],
    padding: int | None = None,
    token_types: bool = True,
) -> Layout:
    """The layout under a given prefix; with `padding`, the first padding + 1 positions are no token's."""
    # Causal masks and cross-attention are other networks.
    for name in ("is_decoder", "add_cross_attention"):
        config.choice(name, (False,), False)
    spec = encoder.stack_spec(config, "gelu")
    width, unused_rows = spec.attention.d_model, 0 if padding is None else padding + 1
    return Layout(
        spec=spec,
        embeddings=lambda at: encoder.read_tables(at.under("embeddings"), config, width, token_types=token_types),
        layer=lambda at, index: encoder.read_block(at.under(f"{layers}.{index}"), spec, names),
        root=root,
        heads=heads,
        unused=("embeddings.position_ids", *(("pooler.*", "embeddings.token_type_ids") if token_types else ())),
        most_tokens=config.integer("max_position_embeddings", least=unused_rows + 1) - unused_rows,
        padding=padding,
    )
