"""A randomly initialised copy of a checkpoint: the same shapes, drawn as its family is before training."""

import math
from pathlib import Path
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Key

from rc_jax import network
from rc_jax._numerics import arguments
from rc_jax.attention.specification import is_bias
from rc_jax.network import LayerParams, StackSpec
from rc_jax.network.parameters import scale_layer
from rc_jax.pretrained.checkpoint import Checkpoint
from rc_jax.pretrained.config import CONFIG, Config
from rc_jax.special import normals

STD = 0.02


@overload
def random_like(
    key: Array, like: Checkpoint, *, std: ArrayLike | None = None, dtype: DTypeLike | None = None
) -> Checkpoint: ...
@overload
def random_like(
    key: Array, like: StackSpec, *, std: ArrayLike | None = None, dtype: DTypeLike | None = None
) -> LayerParams: ...
@arguments.guard(std=arguments.positive)
def random_like(
    key: Key[Array, ""], like: Checkpoint | StackSpec, *, std: ArrayLike | None = None, dtype: DTypeLike | None = None
) -> Checkpoint | LayerParams:
    """Draw a model as it is before training: every matrix and table N(0, std²), biases 0, norms 1 and 0.

    In GPT-2 the two matrices of a layer that write into the residual stream, the output of the attention and the last
    of the MLP, are smaller, N(0, std²/2L) in L layers. Layers that share their weights share them in the copy, and so
    do heads that share keys and values. What a kind of attention weights starts at (`attention.Kind.start`) is as in
    `network.init`. DistilBERT's sinusoidal positions, which are not learned, stay. BERT's original code truncates the
    normal at two standard deviations, which makes entries 12 % smaller; GPT-NeoX's own code draws entries whose
    deviation falls with the width (Black et al. 2022, section 2.1). The transformers library, followed here, does
    neither.

    Args:
        key: a typed key; layers and embeddings have streams of their own.
        like: a checkpoint, whose layers and embeddings are drawn anew (its settings and tokenizer stay), or a stack,
            whose layers are drawn as BERT's are.
        std: standard deviation of the entries; may be traced. By default `initializer_range` in the checkpoint's
            config.json, and 0.02 where that is not given.
        dtype: of the parameters; by default that of the checkpoint, or JAX's default floating type.

    Returns:
        A `Checkpoint` for a checkpoint, stacked `LayerParams` for a stack.

    Source: Devlin et al. 2019, "BERT" (the released code's `initializer_range`); Radford et al. 2019, "GPT-2", section
    2.3 (there 1/√N for N residual layers); Touvron et al. 2023 as in the transformers library.

    Example:
        >>> import jax
        >>> from rc_jax.attention import AttentionSpec
        >>> params = random_like(jax.random.key(0), StackSpec(attention=AttentionSpec(d_model=8, heads=2), depth=3))
        >>> params.attention.query.shape
        (3, 2, 8, 4)
    """
    if isinstance(like, StackSpec):
        shapes = jax.eval_shape(lambda key: network.init(key, like, dtype=dtype), key)
        return _started(_draw(key, shapes, STD if std is None else std), like)
    kind = like.embeddings.word.dtype if dtype is None else dtype
    if std is None:
        own = Config(Path(CONFIG), like.config).deviation()
        std = STD if own is None else own
    tables = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, kind), (like.embeddings, like.final_norm))
    embeddings, final_norm = _draw(jax.random.fold_in(key, 1), tables, std)
    if like.config.get("model_type") == "distilbert" and like.config.get("sinusoidal_pos_embds") is True:
        embeddings = embeddings._replace(position=like.embeddings.position)
    # Every stored layer and head is drawn once, and repeated where it is used.
    layers = np.array(like.shared_layers)
    times = like.spec.attention.heads // like.key_value_heads

    def shared(path: Any) -> bool:
        return times > 1 and _name(path) in ("key", "value", "key_bias", "value_bias")

    def stored(path: Any, leaf: Array) -> jax.ShapeDtypeStruct:
        heads = (like.key_value_heads,) if shared(path) else leaf.shape[1:2]
        return jax.ShapeDtypeStruct((max(like.shared_layers) + 1, *heads, *leaf.shape[2:]), kind)

    def used(path: Any, leaf: Array) -> Array:
        leaf = leaf if len(layers) == leaf.shape[0] else leaf[layers]
        return jnp.repeat(leaf, times, axis=1) if shared(path) else leaf

    drawn = _draw(jax.random.fold_in(key, 0), jax.tree_util.tree_map_with_path(stored, like.params), std)
    params = _started(jax.tree_util.tree_map_with_path(used, drawn), like.spec)
    if like.config.get("model_type") == "gpt2":
        smaller = jnp.full(like.spec.depth, (2 * like.spec.depth) ** -0.5)
        params = scale_layer(params, smaller, smaller)
    return like._replace(params=params, embeddings=embeddings, final_norm=final_norm)


def _draw(key: Array, shapes: Any, std: ArrayLike) -> Any:
    """One array for each shape of a pytree, by the name of its field; one stream of normals for all."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    kind = leaves[0][1].dtype
    constants = [_constant(path) for path, _ in leaves]
    sizes = [math.prod(leaf.shape) if value is None else 0 for value, (_, leaf) in zip(constants, leaves, strict=True)]
    normal = jnp.asarray(std, kind) * normals(key, (sum(sizes),), kind)
    pieces = jnp.split(normal, np.cumsum(sizes)[:-1])
    drawn = [
        piece.reshape(leaf.shape) if value is None else jnp.full(leaf.shape, value, kind)
        for piece, value, (_, leaf) in zip(pieces, constants, leaves, strict=True)
    ]
    return jax.tree_util.tree_unflatten(structure, drawn)


def _started(layers: LayerParams, stack: StackSpec) -> LayerParams:
    """Layers whose kind of attention weights has the parameters that it starts with."""
    start = stack.attention.kind.start(stack.attention, layers.attention.query.dtype)
    parts = {name: jnp.broadcast_to(value, (stack.depth, *value.shape)) for name, value in start.items()}
    return layers._replace(attention=layers.attention.with_parts(**parts))


def _name(path: Any) -> str:
    """The name of a leaf: a field, or a key of `parts`."""
    return path[-1].key if isinstance(path[-1], jax.tree_util.DictKey) else path[-1].name


def _constant(path: Any) -> float | None:
    """The value of a leaf that is not random; a kind's own parameters are known by `attention.Kind.start` alone."""
    name = _name(path)
    if name in ("query_norm", "key_norm"):
        return 1.0
    if isinstance(path[-1], jax.tree_util.DictKey):
        return 0.0 if is_bias(name) else None
    if name == "scale":
        return 1.0
    return 0.0 if name == "shift" or is_bias(name) or name.startswith("bias") else None
