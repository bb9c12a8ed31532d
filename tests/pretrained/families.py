"""One small checkpoint of every family, written by hand: settings, and the name and shape of every tensor."""

import pathlib

import numpy as np

from rc_jax.pretrained.config import Config
from rc_jax.pretrained.families import read_layout
from tests.pretrained import made_up

D, WIDE, WORDS, POSITIONS, DEPTH = 8, 12, 20, 10, 2

_ENCODER = {
    "hidden_size": D,
    "num_attention_heads": 2,
    "num_hidden_layers": DEPTH,
    "intermediate_size": WIDE,
    "vocab_size": WORDS,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": 1,
}
_DECODER = _ENCODER | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "rope_theta": 500.0}
CONFIGS = {
    "bert": made_up.CONFIG,
    "roberta": _ENCODER | {"model_type": "roberta", "pad_token_id": 1},
    "distilbert": {
        "model_type": "distilbert",
        "dim": D,
        "n_heads": 2,
        "n_layers": DEPTH,
        "hidden_dim": WIDE,
        "vocab_size": WORDS,
        "max_position_embeddings": POSITIONS,
    },
    "albert": _ENCODER | {"model_type": "albert", "embedding_size": 6, "num_hidden_groups": 2, "num_hidden_layers": 4},
    "gpt2": {"model_type": "gpt2", "n_embd": D, "n_head": 2, "n_layer": DEPTH, "n_positions": POSITIONS}
    | {"vocab_size": WORDS, "n_inner": WIDE},
    "llama": _DECODER | {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral": _DECODER | {"model_type": "mistral", "sliding_window": 3},
    "qwen2": _DECODER | {"model_type": "qwen2"},
    "qwen3": _DECODER | {"model_type": "qwen3"},
    "olmo2": _DECODER | {"model_type": "olmo2"},
    "mixtral": _DECODER | {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2},
    "qwen3_moe": _DECODER
    | {"model_type": "qwen3_moe", "num_experts": 3, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": WIDE},
    "olmoe": _DECODER | {"model_type": "olmoe", "num_experts": 3, "num_experts_per_tok": 2},
    "gemma2": _DECODER | {"model_type": "gemma2", "sliding_window": 3, "query_pre_attn_scalar": 9},
    "gemma3_text": _DECODER | {"model_type": "gemma3_text", "sliding_window": 3, "sliding_window_pattern": 2},
    "gpt_neox": _ENCODER | {"model_type": "gpt_neox", "rotary_pct": 0.5},
}
GEMMA = ("gemma2", "gemma3_text")  # what they store of a norm is the gain less 1


def _linear(parts, *, bias=True):
    """Weights as (out, in), and biases."""
    return {f"{name}.weight": shape for name, shape in parts.items()} | (
        {f"{name}.bias": shape[:1] for name, shape in parts.items()} if bias else {}
    )


def _norms(width, *names):
    return {f"{name}.{part}": (width,) for name in names for part in ("weight", "bias")}


def _tables(width, *, kinds=1):
    tables = {"word_embeddings.weight": (WORDS, width), "position_embeddings.weight": (POSITIONS, width)}
    tables |= {"token_type_embeddings.weight": (kinds, width)} if kinds else {}
    return {f"embeddings.{name}": shape for name, shape in (tables | _norms(width, "LayerNorm")).items()}


def _distilbert():
    layer = _linear({f"attention.{name}": (D, D) for name in ("q_lin", "k_lin", "v_lin", "out_lin")})
    layer |= _linear({"ffn.lin1": (WIDE, D), "ffn.lin2": (D, WIDE)}) | _norms(D, "sa_layer_norm", "output_layer_norm")
    return _tables(D, kinds=0), "transformer.layer.{}.", layer


def _albert():
    layer = _linear({f"attention.{name}": (D, D) for name in ("query", "key", "value", "dense")})
    layer |= _linear({"ffn": (WIDE, D), "ffn_output": (D, WIDE)})
    layer |= _norms(D, "attention.LayerNorm", "full_layer_layer_norm")
    tables = _tables(6) | _linear({"encoder.embedding_hidden_mapping_in": (D, 6)})
    return tables, "encoder.albert_layer_groups.{}.albert_layers.0.", layer


def _gpt2():
    stored = {"attn.c_attn": (D, 3 * D), "attn.c_proj": (D, D), "mlp.c_fc": (D, WIDE), "mlp.c_proj": (WIDE, D)}
    layer = {f"{name}.weight": shape for name, shape in stored.items()}
    layer |= {f"{name}.bias": shape[1:] for name, shape in stored.items()} | _norms(D, "ln_1", "ln_2")
    return {"wte.weight": (WORDS, D), "wpe.weight": (POSITIONS, D)} | _norms(D, "ln_f"), "h.{}.", layer


def _gpt_neox():
    layer = _linear({"attention.query_key_value": (3 * D, D), "attention.dense": (D, D)})
    layer |= _linear({"mlp.dense_h_to_4h": (WIDE, D), "mlp.dense_4h_to_h": (D, WIDE)})
    layer |= _norms(D, "input_layernorm", "post_attention_layernorm")
    return {"embed_in.weight": (WORDS, D)} | _norms(D, "final_layer_norm"), "layers.{}.", layer


def _decoder(family):
    inputs = {f"self_attn.{name}_proj": (heads * 4, D) for name, heads in (("q", 4), ("k", 2), ("v", 2))}
    layer = _linear(inputs, bias=family in ("llama", "qwen2"))
    layer |= _linear({"self_attn.o_proj": (D, 16)}, bias=family == "llama")
    layer |= _linear(_maps(family), bias=family == "llama")
    names = [] if family == "olmo2" else ["input_layernorm"]
    names += ["post_attention_layernorm"] + (["post_feedforward_layernorm"] if family in ("olmo2", *GEMMA) else [])
    names += ["pre_feedforward_layernorm"] if family in GEMMA else []
    layer |= {f"{name}.weight": (D,) for name in names}
    heads = {"qwen3": (1, 1), "qwen3_moe": (1, 1), "olmoe": (4, 2), "gemma3_text": (1, 1), "olmo2": (4, 2)}.get(
        family, ()
    )
    layer |= {f"self_attn.{name}_norm.weight": (4 * count,) for name, count in zip("qk", heads, strict=False)}
    return {"embed_tokens.weight": (WORDS, D), "norm.weight": (D,)}, "layers.{}.", layer


def _maps(family):
    """The gated map of a layer, or a router and three of them."""
    if family not in ("mixtral", "qwen3_moe", "olmoe"):
        return {"mlp.gate_proj": (WIDE, D), "mlp.up_proj": (WIDE, D), "mlp.down_proj": (D, WIDE)}
    part, names = ("block_sparse_moe", ("w1", "w3", "w2")) if family == "mixtral" else ("mlp", ("gate", "up", "down"))
    ends = names if family == "mixtral" else tuple(f"{name}_proj" for name in names)
    maps = {
        f"{part}.experts.{expert}.{name}": shape
        for expert in range(3)
        for name, shape in zip(ends, ((WIDE, D), (WIDE, D), (D, WIDE)), strict=True)
    }
    return {f"{part}.gate": (3, D)} | maps


def shapes(family):
    """Name and shape of every tensor of a family's plain model, as the transformers library stores it."""
    if family in ("bert", "roberta"):
        return made_up.shapes(CONFIGS[family])
    made = {"distilbert": _distilbert, "albert": _albert, "gpt2": _gpt2, "gpt_neox": _gpt_neox}
    tables, layer, parts = made[family]() if family in made else _decoder(family)
    return tables | {layer.format(index) + name: shape for index in range(DEPTH) for name, shape in parts.items()}


def layout(family, **settings):
    """The layout that settings describe."""
    return read_layout(Config(pathlib.Path("config.json"), CONFIGS[family] | settings))


def tensors(family):
    """Random values for all of them, no two alike."""
    random = np.random.default_rng(1)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes(family).items()}
