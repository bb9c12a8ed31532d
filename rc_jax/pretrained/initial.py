"""The random twin of a checkpoint: the same shapes, drawn as BERT is before training."""

import math
from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike

from rc_jax import _checks, network
from rc_jax.attention.spec import DECAYING
from rc_jax.network import LayerParams, StackSpec
from rc_jax.pretrained.checkpoint import Checkpoint


def _check_like(name: str, value: Any) -> None:
    if not isinstance(value, Checkpoint | StackSpec):
        raise TypeError(f"`{name}` must be a Checkpoint or a StackSpec, got {type(value).__name__}")


@overload
def random_like(
    key: Array, like: Checkpoint, *, std: ArrayLike = 0.02, dtype: DTypeLike | None = None
) -> Checkpoint: ...
@overload
def random_like(
    key: Array, like: StackSpec, *, std: ArrayLike = 0.02, dtype: DTypeLike | None = None
) -> LayerParams: ...
@_checks.guard(key=_checks.random_key, like=_check_like, std=_checks.positive)
def random_like(
    key: Array, like: Checkpoint | StackSpec, *, std: ArrayLike = 0.02, dtype: DTypeLike | None = None
) -> Checkpoint | LayerParams:
    """Draw what BERT is before training: every matrix and table N(0, std²), biases 0, LayerNorms 1 and 0.

    The original code cuts the normal off at two standard deviations; the transformers library, followed here, does not.
    The cut makes entries 12 % smaller.

    Args:
        key: a typed key; layers and embeddings have streams of their own.
        like: a checkpoint, whose layers and embeddings are drawn anew (its settings and tokenizer stay), or a stack,
            whose layers are drawn.
        std: standard deviation of the entries, `initializer_range` in a BERT config.json; may be traced.
        dtype: of the parameters; by default that of the checkpoint, or JAX's default floating type.

    Returns:
        A `Checkpoint` for a checkpoint, stacked `LayerParams` for a stack.

    Raises:
        TypeError: `key` is not a typed key, or `like` is neither of the two.
        ValueError: `std` is not positive, or the stack is one that BERT's recipe says nothing about.

    Source: Devlin et al. 2019, "BERT" (the released code's `initializer_range`).

    Example:
        >>> import jax
        >>> from rc_jax.attention import AttentionSpec
        >>> params = random_like(jax.random.key(0), StackSpec(attention=AttentionSpec(d_model=8, heads=2), depth=3))
        >>> params.attention.query.shape
        (3, 2, 8, 4)
    """
    if isinstance(like, StackSpec):
        if like.attention.weights in DECAYING:
            came = like.attention.weights
            raise ValueError(f"`like` must be a stack that BERT's recipe covers, got attention weights {came!r}")
        shapes = jax.eval_shape(lambda key: network.init(key, like, dtype=dtype), key)
        return _draw(key, shapes, std)
    kind = like.embeddings.word.dtype if dtype is None else dtype
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, kind), (like.params, like.embeddings))
    return like._replace(
        params=_draw(jax.random.fold_in(key, 0), shapes[0], std),
        embeddings=_draw(jax.random.fold_in(key, 1), shapes[1], std),
    )


def _draw(key: Array, shapes: Any, std: ArrayLike) -> Any:
    """One array for each shape of a pytree, by the name of its field; one stream of normals, cut into pieces."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    kind = leaves[0][1].dtype
    sizes = [0 if _constant(path) is not None else math.prod(leaf.shape) for path, leaf in leaves]
    normal = jnp.asarray(std, kind) * jax.random.normal(key, (sum(sizes),), kind)
    drawn, start = [], 0
    for (path, leaf), size in zip(leaves, sizes, strict=True):
        constant = _constant(path)
        piece = (
            normal[start : start + size].reshape(leaf.shape)
            if constant is None
            else jnp.full(leaf.shape, constant, kind)
        )
        drawn.append(piece)
        start += size
    return jax.tree_util.tree_unflatten(structure, drawn)


def _constant(path: Any) -> float | None:
    """The value of a leaf that is not random."""
    name = path[-1].name
    if name == "scale":
        return 1.0
    return 0.0 if name == "shift" or "bias" in name else None
