"""The GPT-2 layout (Radford et al. 2019): causal pre-norm blocks, queries, keys and values in one matrix.

This family stores a matrix as (in, out), as this package does.
"""

import numpy as np

from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.network import LayerParams, MLPParams, MLPSpec, StackSpec
from rc_jax.pretrained.config import Config
from rc_jax.pretrained.families.shared import Embeddings, Layout, Scope, activation, split_heads
from rc_jax.pretrained.tensor_source import Stored


def layout(config: Config) -> Layout:
    """X ← X + SA(LN(X)), X ← X + MLP(LN(X)), and a LayerNorm after the last layer."""
    # Other scales of the scores and cross-attention are other networks. The specification, then where tensors lie.
    config.choice("scale_attn_weights", (True,), True)
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        config.choice(name, (False,), False)
    d = config.integer("n_embd")
    spec = StackSpec(
        attention=AttentionSpec(d_model=d, heads=config.divisor("n_head", "n_embd"), bias=True, causal=True),
        depth=config.depth("n_layer"),
        skip=True,
        mlp=MLPSpec(
            width=config.integer("n_inner", 4 * d), activation=activation(config, "activation_function", "gelu_new")
        ),
        norm="pre",
        norm_epsilon=config.positive("layer_norm_epsilon", 1e-5),
    )
    positions = config.integer("n_positions")
    return Layout(
        spec=spec,
        embeddings=lambda at: Embeddings(
            word=at.take("wte.weight", config.integer("vocab_size"), d), position=at.take("wpe.weight", positions, d)
        ),
        layer=lambda at, index: _layer(at.under(f"h.{index}"), spec),
        final_norm=lambda at: at.norm("ln_f", d),
        root="transformer.",
        heads=("lm_head.*", "score.*", "classifier.*", "qa_outputs.*", "multiple_choice_head.*"),
        unused=("h.*.attn.bias", "h.*.attn.masked_bias"),  # the causal mask
        most_tokens=positions,
    )


def _layer(at: Scope, spec: StackSpec) -> LayerParams:
    d, heads = spec.attention.d_model, spec.attention.heads
    assert spec.mlp is not None
    weight, bias = _linear(at, "attn.c_attn", d, 3 * d)
    weights: dict[str, Stored] = {}
    for role, part, shift in zip(
        ("query", "key", "value"), np.split(weight, 3, axis=1), np.split(bias, 3), strict=True
    ):
        weights[role], weights[f"{role}_bias"] = split_heads(part, heads), shift.reshape(heads, -1)
    output, output_bias = _linear(at, "attn.c_proj", d, d)
    return LayerParams(
        attention=AttentionParams(**weights, output=output.reshape(heads, -1, d), output_bias=output_bias),
        mlp=MLPParams(*_linear(at, "mlp.c_fc", d, spec.mlp.width), *_linear(at, "mlp.c_proj", spec.mlp.width, d)),
        attention_norm=at.norm("ln_1", d),
        mlp_norm=at.norm("ln_2", d),
    )


def _linear(at: Scope, name: str, inputs: int, outputs: int) -> tuple[Stored, Stored]:
    return at.take(f"{name}.weight", inputs, outputs), at.take(f"{name}.bias", outputs)
