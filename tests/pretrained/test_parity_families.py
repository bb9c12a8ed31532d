"""The same states and attention as the transformers library's, layer by layer, for random small models."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, pretrained
from rc_jax.network.stack import NORMS
from tests.pretrained import made_up

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

IDS = np.array([5, 9, 1, 2, 28, 7, 7, 3, 1, 1, 11, 0, 4, 4, 17, 29, 21, 8, 13, 6])
ENCODER = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "intermediate_size": 24,
    "vocab_size": 30,
    "max_position_embeddings": 40,
    "hidden_act": "gelu",
}
ROBERTA = ENCODER | {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-12}
DISTILBERT = {"dim": 16, "n_heads": 2, "n_layers": 4, "hidden_dim": 24, "vocab_size": 30, "max_position_embeddings": 40}
GPT2 = {"n_embd": 16, "n_head": 2, "n_layer": 4, "n_positions": 40, "vocab_size": 30, "bos_token_id": 1}
DECODER = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 24,
    "vocab_size": 30,
    "max_position_embeddings": 64,
    "head_dim": 8,
}


def rotary(kind, **more):
    """Frequencies of which some rotate fully within 12 tokens and some do not; 20 tokens are read."""
    return DECODER | {"rope_parameters": {"rope_type": kind, "rope_theta": 50.0, "factor": 4.0} | more}


def partly(kind, share, **more):
    """GPT-NeoX's rotation of a share of every head."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 50.0, "partial_rotary_factor": share} | more}


LINEAR = {"rope_type": "linear", "rope_theta": 900.0, "factor": 4.0}
NEAR = {"rope_type": "default", "rope_theta": 30.0}
NEOX = {name: value for name, value in DECODER.items() if name not in ("head_dim", "num_key_value_heads")} | {
    "hidden_size": 32,
    "hidden_act": "gelu",
    "eos_token_id": 1,
}
ORIGINAL = {"original_max_position_embeddings": 12}
LLAMA_TEXT = DECODER | {"model_type": "llama"}
GEMMA_TEXT = DECODER | {"model_type": "gemma3_text", "num_hidden_layers": 4, "sliding_window": 4}
VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 24,
    "image_size": 8,
    "patch_size": 4,
}
EXPERTS = DECODER | {"num_experts_per_tok": 2}
CASES = {
    "bert": ("BertForMaskedLM", "BertConfig", ENCODER),
    "bert, relu": ("BertModel", "BertConfig", ENCODER | {"hidden_act": "relu"}),
    "bert, gelu_new": ("BertModel", "BertConfig", ENCODER | {"hidden_act": "gelu_new"}),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", ROBERTA),
    "xlm-roberta": ("XLMRobertaModel", "XLMRobertaConfig", ROBERTA),
    "camembert": ("CamembertForMaskedLM", "CamembertConfig", ROBERTA),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig", DISTILBERT),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", ENCODER | {"embedding_size": 6}),
    "albert in groups": ("AlbertModel", "AlbertConfig", ENCODER | {"embedding_size": 6, "num_hidden_groups": 2}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2 | {"eos_token_id": 1}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", DECODER | {"attention_bias": True, "mlp_bias": True}),
    "linear": ("LlamaModel", "LlamaConfig", rotary("linear")),
    "llama3": ("LlamaModel", "LlamaConfig", rotary("llama3", **ORIGINAL, low_freq_factor=0.5, high_freq_factor=2.0)),
    "yarn": ("LlamaModel", "LlamaConfig", rotary("yarn", **ORIGINAL, beta_fast=2.0, beta_slow=0.25)),
    "mistral": ("MistralForCausalLM", "MistralConfig", DECODER | {"sliding_window": 4}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", DECODER | {"tie_word_embeddings": True}),
    "qwen3": (
        "Qwen3ForCausalLM",
        "Qwen3Config",
        DECODER | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
    ),
    "qwen3, mixed": (
        "Qwen3Model",
        "Qwen3Config",
        DECODER | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
    ),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", DECODER | {"eos_token_id": 1, "attention_bias": True}),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        DECODER | {"sliding_window": 4, "query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        DECODER
        | {"num_hidden_layers": 4, "sliding_window_pattern": 3, "sliding_window": 4, "query_pre_attn_scalar": 48}
        | {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": NEAR}},
    ),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", EXPERTS | {"num_local_experts": 4, "sliding_window": 4}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", EXPERTS | {"num_experts": 4, "moe_intermediate_size": 12}),
    "qwen3_moe, window": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        EXPERTS | {"num_experts": 4, "moe_intermediate_size": 12, "use_sliding_window": True, "sliding_window": 4},
    ),
    "qwen3_moe, normalised": (
        "Qwen3MoeModel",
        "Qwen3MoeConfig",
        EXPERTS | {"num_experts": 4, "moe_intermediate_size": 12, "norm_topk_prob": True},
    ),
    "olmoe": (
        "OlmoeForCausalLM",
        "OlmoeConfig",
        NEOX | {"num_experts": 4, "num_experts_per_tok": 2, "hidden_act": "silu"},
    ),
    "llava": ("LlavaForConditionalGeneration", "LlavaConfig", {"text_config": LLAMA_TEXT, "vision_config": VISION}),
    "gemma3 of images": (
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        {"text_config": GEMMA_TEXT, "vision_config": VISION | {"model_type": "siglip_vision_model"}}
        | {"mm_tokens_per_image": 4},
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", NEOX | partly("default", 0.5)),
    "gpt_neox, one after the other": (
        "GPTNeoXModel",
        "GPTNeoXConfig",
        NEOX | partly("linear", 0.5, factor=4.0) | {"use_parallel_residual": False, "attention_bias": False},
    ),
}


def made(case):
    """A model whose biases, gains and shifts are away from their initial 0 and 1."""
    model, config, settings = CASES[case]
    torch.manual_seed(0)
    built = getattr(transformers, model)(getattr(transformers, config)(**settings))
    for value in built.parameters():
        value.data += 0.2 * torch.randn_like(value)
    built.set_attn_implementation("eager")
    return built.eval()


def reference(model, ids=IDS):
    """Hidden states and attention of every layer by the other library; the last state has passed the final norm."""
    ids = torch.tensor(np.asarray(ids), dtype=torch.long)[None]
    with torch.no_grad():
        out = model(
            input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True, output_attentions=True
        )
    return tuple(np.stack([part[0].numpy() for part in parts]) for parts in (out.hidden_states, out.attentions))


def ours(checkpoint, ids=IDS):
    """The same by this package."""
    spec, states = checkpoint.spec, made_up.states(checkpoint, ids)
    rows = []
    for index in range(spec.depth):
        params = jax.tree.map(lambda leaf, index=index: leaf[index], checkpoint.params)
        x = jnp.asarray(states[index])
        if spec.norm in ("pre", "peri"):
            x = NORMS[spec.norm_kind](x, params.attention_norm, spec.norm_epsilon)
        layer = spec.kinds[spec.kind_of(index)].attention
        rows.append(attention.attention_weights(params.attention, x, layer))
    return states, np.stack(rows)


def compared(folder, model):
    """Our states and attention, and the other library's."""
    model.save_pretrained(folder, max_shard_size="10KB")
    assert (folder / "model.safetensors.index.json").is_file()
    return ours(pretrained.load(folder)), reference(model)


# Learned positions and rotary ones, caps, branches side by side; the others with the slow tests.
FIRST = ("gpt2", "llama", "gemma2", "gpt_neox")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in FIRST else pytest.mark.slow) for case in CASES]
)
def test_random_small_model_agrees_layer_by_layer(tmp_path, case):
    for mine, theirs in zip(*compared(tmp_path, made(case)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


def test_the_table_of_the_page_has_every_case_and_numbers_below_the_tolerance():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    block = page[page.index("<!-- parity -->") : page.index("<!-- end of parity -->")]
    rows = re.findall(r"^\| (.+) \| `(\w+)` \| (\S+) \| (\S+) \|$", block, re.MULTILINE)
    assert [(case, model) for case, model, *_ in rows] == [(case, names[0]) for case, names in CASES.items()]
    assert all(0 < float(number) < 1e-5 for _, _, *numbers in rows for number in numbers)
