"""One file per family of published checkpoints, and the list of them by `model_type`."""

import dataclasses
from collections.abc import Callable

from rc_jax.pretrained.config import Config
from rc_jax.pretrained.families import albert, bert, gpt2, gpt_neox, llama
from rc_jax.pretrained.families.shared import Embeddings, Layout, Scope

FAMILIES: dict[str, Callable[[Config], Layout]] = {
    "bert": bert.layout,
    "albert": albert.layout,
    "roberta": bert.roberta,
    "xlm-roberta": bert.roberta,
    "camembert": bert.roberta,
    "distilbert": bert.distilbert,
    "gpt2": gpt2.layout,
    "gpt_neox": gpt_neox.layout,
    **dict.fromkeys(llama.FAMILIES, llama.layout),
}

# Why some others are not read.
REFUSED = {
    "modernbert": "its first layer has no norm before the attention, and layers here are alike",
    "qwen2_moe": "its layers have an expert that all tokens take beside the others",
    "deepseek_v2": "its keys and values are expanded from a common one",
    "deepseek_v3": "its keys and values are expanded from a common one",
    "gpt_oss": "its experts clip their gates",
}
TEXT = "text_config"
# Where models of images and text keep their text part, and what stands beside it.
ROOTS = ("language_model.model.", "model.language_model.", "language_model.")
BESIDE = (
    *("vision_tower.*", "vision_model.*", "visual.*", "multi_modal_projector.*", "image_newline", "connector.*"),
    *("model.vision_tower.*", "model.vision_model.*", "model.visual.*", "model.multi_modal_projector.*"),
    *("model.image_newline", "model.connector.*", "lm_head.*", "language_model.lm_head.*"),
)

__all__ = ["FAMILIES", "REFUSED", "Embeddings", "Layout", "Scope", "read_layout"]


def read_layout(config: Config) -> Layout:
    """The layout that a checkpoint's settings describe; of a model of images and text, that of its text part."""
    if isinstance(config.get(TEXT), dict):
        layout = read_layout(config.section(TEXT))
        return dataclasses.replace(layout, root=ROOTS, heads=BESIDE)
    if (kind := config.get("quantization_config")) is not None:
        raise config.refuse("quantization_config", "be absent: the weights must be floating-point numbers", kind)
    if (reason := REFUSED.get(config.get("model_type", ""))) is not None:
        raise config.refuse("model_type", f"be of a family that is read: {reason},", config.get("model_type"))
    return FAMILIES[config.choice("model_type", tuple(FAMILIES))](config)
