"""Small checkpoints in the published layout, written from scratch so that one thing at a time can be wrong."""

import json

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from rc_jax import network

CONFIG = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 12,
    "vocab_size": 20,
    "max_position_embeddings": 10,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "rank", "collapse", "attention"]


def shapes(config=CONFIG):
    """Name and shape of every tensor of a BertModel of this size, as the transformers library stores it."""
    d, width = config["hidden_size"], config["intermediate_size"]
    tensors = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], d),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], d),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], d),
        "embeddings.LayerNorm.weight": (d,),
        "embeddings.LayerNorm.bias": (d,),
    }
    linear = {
        "attention.self.query": (d, d),
        "attention.self.key": (d, d),
        "attention.self.value": (d, d),
        "attention.output.dense": (d, d),
        "intermediate.dense": (width, d),
        "output.dense": (d, width),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        for name, shape in linear.items():
            tensors |= {f"{at}{name}.weight": shape, f"{at}{name}.bias": shape[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            tensors |= {f"{at}{name}.weight": (d,), f"{at}{name}.bias": (d,)}
    return tensors


def tensors(config=CONFIG, dtype=np.float32):
    """Random values for all of them."""
    random = np.random.default_rng(0)
    return {name: random.normal(size=shape).astype(dtype) for name, shape in shapes(config).items()}


def states(checkpoint, ids):
    """Hidden states of every layer of a loaded checkpoint; the last has passed the final norm."""
    inner = network.hidden_states(checkpoint.params, checkpoint.embed(ids), checkpoint.spec)
    return np.stack([*inner[:-1], checkpoint.finish(inner[-1])])


def write(folder, config=CONFIG, values=None, *, tokenizer=False):
    """Write a checkpoint and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors() if values is None else values, folder / "model.safetensors")
    if tokenizer:
        made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        made.enable_truncation(4)
        made.enable_padding(length=8)
        made.save(str(folder / "tokenizer.json"))
    return folder
