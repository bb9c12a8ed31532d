"""A design from what describes it: a stack, the settings of a published family, or the file that holds these."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rc_jax._numerics import arguments
from rc_jax.attention import AttentionSpec
from rc_jax.network import StackSpec
from rc_jax.pretrained.config import MOST_SETTINGS, Config, read_object
from rc_jax.pretrained.families import FAMILIES, REFUSED, Layout, Scope, read_layout
from rc_jax.pretrained.families.shared import Embeddings
from rc_jax.study.initialisation import images
from rc_jax.study.initialisation.design import Design, Start, Tokens

STD = 0.02  # where a config states no `initializer_range`, as in `pretrained.random_like`
# Settings that change what a layer computes, refused where the family does not read them, and their values that change
# nothing: of factors 1, of switches False, of numbers of experts 0 and 1.
CHANGE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            *("residual_multiplier", "embedding_multiplier", "scale_emb", "key_multiplier", "attention_in_multiplier"),
            *("attention_out_multiplier", "mlp_multipliers", "mup_attn_multiplier", "mup_embedding_multiplier"),
            *("rotary_pct", "global_attn_every_n_layers"),
        ),
        (1,),
    ),
    **dict.fromkeys(
        (
            *("layer_norm_scaling", "qk_layernorm", "qk_norm", "use_qk_norm", "alibi", "relative_attention"),
            *("sinusoidal_pos_embds", "use_bidirectional_attention", "parallel_attn", "use_parallel_residual"),
            *("new_decoder_architecture", "multi_query", "apply_residual_connection_post_layernorm"),
        ),
        (False,),
    ),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), (0, 1)),
    "n_shared_experts": (0,),
    # what no value switches off: widths, ranks and factors in the place of others
    **dict.fromkeys(
        (
            *("attention_multiplier", "scale_depth", "attn_logit_softcapping", "query_pre_attn_scalar", "clip_qkv"),
            *("relative_attention_num_buckets", "rotary_dim", "rope_scaling", "rope_parameters", "rope_theta"),
            *("no_rope_layers", "no_rope_layer_interval", "sliding_window", "attention_window", "attention_chunk_size"),
            *("attention_types", "local_attention", "cross_attention_hidden_size", "q_lora_rank", "kv_lora_rank"),
        ),
        (),
    ),
}
# Settings of training, of tokens, of heads for tasks and of files.
ELSEWHERE = re.compile(
    r"_token_id$|drop|^summary_|^_|dtype|^architectures$|version|^use_cache$|^task_|^tie_|label|^n_ctx$|^output_|"
    r"^return_|^vocab_size$|^tokenizer|^problem_type$|^chunk_size|checkpointing|^pretraining_tp$|^prun|"
    r"^router_(aux|jitter|z_loss|dtype)|^final_logit|^cache_|^max_window_layers$|^directionality$|^pooler_|^is_encoder|^use_bfloat16$|^gradient|"
    r"^initializer_range$|^model_type$|^tensor_parallel|^bad_words|^finetuning|^num_return|^vision_config$|^image_|^encoder_stride$|"
    r"^is_decoder$|^reorder_and_upcast_attn$"
)


class Looked(dict[str, Any]):
    """Settings that remember which of them were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """The setting, or the default."""
        self.read.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)


class Shapes:
    """Tensors of the shapes that a layout asks for, which take no memory."""

    def take(self, name: str, *shape: int) -> np.ndarray:
        """Zeros of that shape."""
        return np.broadcast_to(np.int8(0), shape)


def read(network: Any, *, gain: float | None, std: float | None) -> tuple[str, Design, tuple[str, ...]]:
    """A name, the design, and what a reader must know of it."""
    if isinstance(network, StackSpec):
        started = Start(std=std) if std is not None else Start(gain=1.0 if gain is None else gain)
        name = f"{network.depth} layers of width {network.attention.d_model}"
        return name, Design(network, started), ("Tokens enter with entries N(0, 1).",)
    config = _config(network)
    # The text part of a model of images and text is what is read of it.
    if isinstance(config.get("text_config"), dict):
        config = config.section("text_config")
    looked = Looked(config.values)
    settings = Config(config.file, looked, config.within)
    kind = config.get("model_type")
    images_only = kind == images.KIND
    if not isinstance(kind, str) or kind not in {*FAMILIES, *REFUSED, images.KIND}:
        names = ", ".join(map(repr, (*FAMILIES, images.KIND)))
        raise config.refuse("model_type", f"be one of {names} (a `network.StackSpec` describes many others)", kind)
    layout = images.layout(settings) if images_only else read_layout(settings)
    stated = config.deviation()
    deviation = (STD if stated is None else stated) if std is None else std
    # GPT-2 draws the last matrix of every branch smaller (Radford et al. 2019, section 2.3).
    smaller = (2 * layout.spec.depth) ** -0.5 if kind == "gpt2" else 1.0
    started = Start(std=deviation, branches=smaller) if gain is None else Start(gain=gain)
    tables: Embeddings = layout.embeddings(Scope(Shapes()))  # pyright: ignore[reportArgumentType]
    sinusoids = kind == "distilbert" and settings.get("sinusoidal_pos_embds") is True
    tokens = _tokens(tables, layout, deviation, started, sinusoids=sinusoids)
    if images_only:
        tokens = images.patches(settings, deviation, started)
    design = Design(
        layout.spec,
        started,
        tokens,
        layout.key_value_heads,
        layout.shared_layers,
        most_tokens=layout.most_tokens,
        words=None if images_only else tables.word.shape[0],
    )
    notes = list(_unread(config, looked, layout.spec.attention)) + [images.NOTE] * images_only
    if stated is None and std is None:
        what = "matrices" if gain is None else "tables"
        notes.append(f"The config states no initializer_range: {what} have deviation {STD}.")
    if len(set(layout.shared_layers)) < layout.spec.depth:
        notes.append("Layers share weights; the gradient at a matrix is what one layer adds to it.")
    return kind, design, tuple(notes)


def _config(network: Any) -> Config:
    if isinstance(network, Mapping):
        for name in network:
            if not isinstance(name, str):
                raise TypeError(f"`network` must have settings named by strings, got {arguments.describe(name)}")
        return Config(Path("config"), dict(network))
    if not isinstance(network, str | os.PathLike):
        raise TypeError(
            f"`network` must be a StackSpec, a dict or the path of a config, got {arguments.describe(network)}"
        )
    path = Path(network)
    if not path.exists():
        raise FileNotFoundError(f"`network` must be a folder or a file of settings that exists, got '{path}'")
    return Config.read(path) if path.is_dir() else Config(path, read_object(path, MOST_SETTINGS))


def _tokens(tables: Embeddings, layout: Layout, std: float, start: Start, *, sinusoids: bool) -> Tokens:
    """What the family's tables give: words and positions of each token, a type that all share."""
    factor = layout.embedding_factor
    own = std * (2 if tables.position is not None and not sinusoids else 1) ** 0.5
    narrow = None if tables.projection is None else tables.word.shape[1]
    return Tokens(
        own=own * factor,
        common=std * factor if tables.token_type is not None else 0.0,
        sinusoids=sinusoids,
        normed=tables.norm is not None,
        narrow=narrow,
        projection=start.factor(narrow or 1),
        rooted=factor != 1,
    )


def _unread(config: Config, looked: Looked, layer: AttentionSpec) -> list[str]:
    """What the settings say beyond the arithmetic, or an error for what would change it."""
    rest = {name: value for name, value in config.values.items() if name not in looked.read and value is not None}
    same = CHANGE | {
        "num_key_value_heads": (layer.heads,),
        "head_dim": (layer.head_width,),
        "is_causal": (layer.causal,),
        "position_embedding_type": ("absolute",) if layer.rotary is None else ("rope", "rotary"),
    }
    if layer.qk_norm is not None:
        same |= dict.fromkeys(("qk_layernorm", "qk_norm", "use_qk_norm"), (True,))
    if layer.rotary is not None:  # of two descriptions the family reads one
        del same["rope_scaling"], same["rope_parameters"]
    for name, values in same.items():
        value = rest.get(name)
        if value is not None and not any(value == each and (value is True) == (each is True) for each in values):
            needed = "be absent" if values is CHANGE.get(name) else f"be absent or {values[0]!r}"
            raise config.refuse(name, f"{needed}, because this family's layers are modelled without it,", value)
    kinds = rest.pop("layer_types", None)
    if kinds is not None and (not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds)):
        raise config.refuse(
            "layer_types", "be a list of full_attention alone, because this family has no other,", kinds
        )
    for name in ("rope_scaling", "rope_parameters"):
        part = config.get(name)
        if isinstance(part, dict) and part.get("rope_type", part.get("type")) in (None, "default"):
            section = config.section(name)
            section.choice("factor", (1, 1.0), 1)  # a factor without a kind of scaling changes nothing
    notes = []
    dropout = [name for name, value in rest.items() if "drop" in name and isinstance(value, float) and value > 0]
    if dropout:
        notes.append(f"Dropout is off ({', '.join(sorted(dropout))}).")
    others = [name for name in rest if not (ELSEWHERE.search(name) or name in same)]
    if others:
        notes.append(f"Settings that this family does not read: {', '.join(sorted(others))}.")
    return notes
