"""One file per family of published checkpoints, and the list of them by `model_type`."""

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

__all__ = ["FAMILIES", "Embeddings", "Layout", "Scope", "read_layout"]


def read_layout(config: Config) -> Layout:
    """The layout that a checkpoint's settings describe."""
    if (kind := config.get("quantization_config")) is not None:
        raise config.refuse("quantization_config", "be absent: the weights must be floating-point numbers", kind)
    return FAMILIES[config.choice("model_type", tuple(FAMILIES))](config)
