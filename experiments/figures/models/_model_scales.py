"""Logits of a model's layers, the scale of each of their rows, and scales that published models put on cosines."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rc_jax import attention, network, scale


class Used(NamedTuple):
    """A factor on cosines in `dim` dimensions before a softmax over `n` of them; n and dim are our choice of case."""

    name: str
    scale: float
    n: int
    dim: int
    case: str


USED = (
    Used("nGPT, √d_k", 64**0.5, 8192, 64, "attention, context 8192, heads of 64"),
    Used("QK-norm with unit gain, √d", 128**0.5, 8192, 128, "attention, context 8192, heads of 128"),
    Used("Swin v2, initial 10", 10, 64, 32, "attention in windows of 8 × 8, heads of 32"),
    Used("Swin v2, clamp 100", 100, 64, 32, "the same"),
    Used("CLIP, initial 1/0.07", 1 / 0.07, 32768, 512, "contrastive, batch 32 768, embeddings of 512"),
    Used("CLIP, clamp 100", 100, 32768, 512, "the same"),
    Used("SimCSE, 1/0.05", 20, 64, 768, "contrastive, batch 64, embeddings of 768"),
    Used("AM-Softmax 30", 30, 10516, 512, "classes: 10 516 (CASIA-WebFace, as released), embeddings of 512"),
    Used("CosFace 64", 64, 10575, 512, "classes: 10 575 (CASIA-WebFace), embeddings of 512"),
    Used("ArcFace 64", 64, 85742, 512, "classes: 85 742 (MS1MV2), embeddings of 512"),
)
ROWS = 4096  # in one program


@functools.partial(jax.jit, static_argnames="spec")
def layer_inputs(params: network.LayerParams, x: jax.Array, spec: network.StackSpec) -> jax.Array:
    """Tokens before each layer of the whole model, of several texts: (text, layer, token, feature)."""
    return jax.lax.map(lambda tokens: network.hidden_states(params, tokens, spec)[:-1], x)


@functools.partial(jax.jit, static_argnames="spec")
def layer_logits(
    params: attention.AttentionParams, states: jax.Array, spec: attention.AttentionSpec, factor: ArrayLike | None = None
) -> jax.Array:
    """Scaled logits of every layer on its own tokens: (text, layer, head, row, key)."""

    def one(text: jax.Array) -> jax.Array:
        return jax.vmap(lambda layer, state: attention.scores(layer, state, spec, scale=factor))(params, text)

    return jax.lax.map(one, states)


def row_scales(logits: np.ndarray) -> dict[str, np.ndarray]:
    """For each row of logits (row, key): their standard deviation, the best one, and the share of the gradient reached.

    `implied`: α of logits = α s with s of unit variance over the keys; `best`: the α that maximises α(1 − Σp²) for the
    row's own s; `share`: that norm at the implied α over the largest.
    """
    count, keys = logits.shape
    # One program for any number of rows: the last part is filled up with the first row.
    padded = np.concatenate([logits, np.repeat(logits[:1], -count % ROWS, axis=0)]).reshape(-1, ROWS, keys)
    parts = [_row_scales(jnp.asarray(part)) for part in padded]
    return {name: np.concatenate([np.asarray(part[name]) for part in parts])[:count] for name in parts[0]}


@jax.jit
def _row_scales(logits: jax.Array) -> dict[str, jax.Array]:
    implied = logits.std(axis=-1)
    s = (logits - logits.mean(axis=-1, keepdims=True)) / implied[:, None]
    optimum = scale.per_sample_optimum(s)
    return {"implied": implied, "best": optimum.scale, "share": scale.gradient_norm(s, implied) / optimum.value}
