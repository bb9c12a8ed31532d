"""The vision transformer of Dosovitskiy et al. (2021), "An image is worth 16x16 words", by its settings alone."""

import math

import numpy as np

from rc_jax.attention import AttentionSpec
from rc_jax.network import MLPSpec, StackSpec
from rc_jax.pretrained.config import Config
from rc_jax.pretrained.families.shared import Embeddings, Layout, activation
from rc_jax.study.initialisation.design import Start, Tokens

KIND = "vit"
NOTE = (
    "Tokens are that of the class, which is far shorter, and patches of independent normal pixels, through one matrix."
)


def layout(config: Config) -> Layout:
    """X ← X + SA(LN(X)), X ← X + MLP(LN(X)), every token sees all; nothing is stored, so no tensors are named."""
    d, heads = config.integer("hidden_size"), config.divisor("num_attention_heads", "hidden_size")
    config.choice("qkv_bias", (True,), True)
    config.choice("use_mask_token", (False,), False)
    spec = StackSpec(
        attention=AttentionSpec(d_model=d, heads=heads, bias=True),
        depth=config.depth("num_hidden_layers"),
        skip=True,
        mlp=MLPSpec(width=config.integer("intermediate_size"), activation=activation(config, "hidden_act", "gelu")),
        norm="pre",
        norm_epsilon=config.positive("layer_norm_eps", 1e-12),
    )
    tokens = (config.integer("image_size") // config.divisor("patch_size", "image_size", 16)) ** 2 + 1
    table = np.broadcast_to(np.float32(0), (1, d))

    def stored(*_: object) -> None:
        raise NotImplementedError("weights of this family are not read")

    return Layout(
        spec=spec,
        embeddings=lambda _: Embeddings(word=table, position=table),  # pyright: ignore[reportArgumentType]
        layer=stored,  # pyright: ignore[reportArgumentType]
        root="",
        heads=(),
        unused=(),
        most_tokens=tokens,
    )


def patches(config: Config, std: float, start: Start) -> Tokens:
    """The pixels of each patch times one matrix, and a position, whose variance the matrix has here beside its own.

    The first token, that of the class, is one drawn vector and its position.
    """
    pixels = config.integer("patch_size", 16) ** 2 * config.integer("num_channels", 3)
    projection = math.hypot(start.factor(pixels), std)
    return Tokens(own=1.0, narrow=pixels, projection=projection, first=2**0.5 * std / projection)
