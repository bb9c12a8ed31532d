"""The GPT-NeoX layout (Black et al. 2022), also of Pythia: attention and MLP side by side, heads rotated in part."""

import numpy as np

from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.network import LayerParams, MLPParams, MLPSpec, StackSpec
from rc_jax.pretrained.config import Config
from rc_jax.pretrained.families.rope import pairs_together, read_rotary
from rc_jax.pretrained.families.shared import Embeddings, Layout, Scope, activation
from rc_jax.pretrained.tensor_source import Stored


def layout(config: Config) -> Layout:
    """X ← X + SA(LN(X)) + MLP(LN′(X)), and a LayerNorm after the last layer."""
    # Only the attention may lack its biases. A setting puts attention and MLP one after the other.
    d, heads = config.integer("hidden_size"), config.divisor("num_attention_heads", "hidden_size")
    spec = StackSpec(
        attention=AttentionSpec(
            d_model=d,
            heads=heads,
            causal=True,
            bias=config.choice("attention_bias", (False, True), True),
            rotary=read_rotary(config, base="rotary_emb_base", partly=("rotary_pct", 0.25, d // heads)),
        ),
        depth=config.depth("num_hidden_layers"),
        skip=True,
        mlp=MLPSpec(width=config.integer("intermediate_size"), activation=activation(config, "hidden_act", "gelu")),
        norm="pre",
        norm_epsilon=config.positive("layer_norm_eps", 1e-5),
        parallel=config.choice("use_parallel_residual", (False, True), True),
    )
    masks = ("layers.*.attention.bias", "layers.*.attention.masked_bias")
    return Layout(
        spec=spec,
        embeddings=lambda at: Embeddings(word=at.take("embed_in.weight", config.integer("vocab_size"), d)),
        layer=lambda at, index: _layer(at.under(f"layers.{index}"), spec),
        final_norm=lambda at: at.norm("final_layer_norm", d),
        root="gpt_neox.",
        heads=("embed_out.*", "lm_head.*", "score.*", "classifier.*", "qa_outputs.*"),
        unused=(*masks, "layers.*.attention.rotary_emb.inv_freq", "rotary_emb.inv_freq"),
        most_tokens=config.integer("max_position_embeddings"),
    )


def _layer(at: Scope, spec: StackSpec) -> LayerParams:
    layer, d = spec.attention, spec.attention.d_model
    assert spec.mlp is not None and layer.rotary is not None
    # One matrix holds, head by head, the queries, the keys and the values of that head.
    weight = at.take("attention.query_key_value.weight", 3 * d, d).reshape(layer.heads, 3, layer.head_width, d)
    weights: dict[str, Stored] = {}
    for index, role in enumerate(("query", "key", "value")):
        weights[role] = np.swapaxes(weight[:, index], 1, 2)
    weights["output"] = at.take("attention.dense.weight", d, d).T.reshape(layer.heads, layer.head_width, d)
    if layer.bias:
        bias = at.take("attention.query_key_value.bias", 3 * d).reshape(layer.heads, 3, layer.head_width)
        weights |= {f"{role}_bias": bias[:, index] for index, role in enumerate(("query", "key", "value"))}
        weights["output_bias"] = at.take("attention.dense.bias", d)
    for name in ("query", "key", "query_bias", "key_bias"):
        if name in weights:
            weights[name] = pairs_together(weights[name], layer.rotary.width)
    mlp, width = at.under("mlp"), spec.mlp.width
    return LayerParams(
        attention=AttentionParams(**weights),
        mlp=MLPParams(*mlp.linear("dense_h_to_4h", d, width), *mlp.linear("dense_4h_to_h", width, d)),
        attention_norm=at.norm("input_layernorm", d),
        mlp_norm=at.norm("post_attention_layernorm", d),
    )
