"""From the files of a checkpoint to stacked parameters, one layer at a time, so that no second copy ever exists."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from rc_jax._numerics.jax_names import canonical_dtype
from rc_jax.network import LayerParams, NormParams
from rc_jax.pretrained.families import Embeddings, Layout, Scope
from rc_jax.pretrained.tensor_source import Tensors

MOST_COPIES = 64  # of a stored number; ALBERT has 24 layers of one
ALIGNMENT = 64  # bytes; where numpy's memory is aligned so, JAX takes it over on a CPU instead of copying it


def read(
    tensors: Tensors, layout: Layout, dtype: DTypeLike | None
) -> tuple[LayerParams, Embeddings, NormParams | None]:
    """Layers, embeddings and the norm after the last layer in one dtype; every tensor is accounted for."""
    for new, old in (("weight", "gamma"), ("bias", "beta")):  # the names of the first released files
        tensors.rename(f".LayerNorm.{old}", f".LayerNorm.{new}")
    roots = (layout.root,) if isinstance(layout.root, str) else layout.root
    root = next((root for root in roots if any(name.startswith(root) for name in tensors.left)), "")
    tensors.ignore((*(f"{root}{pattern}" for pattern in layout.unused), *(layout.heads if root else ())))
    at, stored = Scope(tensors, root), sum(math.prod(location.shape) for location in tensors.left.values())
    if dtype is None:
        dtype = canonical_dtype({"BF16": jnp.bfloat16, "F64": jnp.float64}.get(tensors.widest(), jnp.float32))
    kind = tensors.kind = jnp.dtype(dtype)
    once = layout.embeddings(at), layout.final_norm(at) if layout.final_norm else None
    embeddings, final_norm = jax.tree.map(lambda leaf: jnp.asarray(_filled(leaf, kind)), once)
    params = _stack(lambda index: layout.layer(at, index), layout.shared_layers, kind, MOST_COPIES * stored)
    tensors.finish()
    return params, embeddings, final_norm


def _stack(read_layer: Callable[[int], LayerParams], shared: tuple[int, ...], kind: np.dtype, most: int) -> LayerParams:
    """All layers along a new leading axis; a stored layer is read once, however many layers it is."""
    stacks: list[np.ndarray] = []
    structure: Any = None
    last = max(shared)
    for stored in (last, *range(last)):  # that the last one is there is known before memory is asked for
        leaves, structure = jax.tree.flatten(read_layer(stored))
        if (wanted := len(shared) * sum(leaf.size for leaf in leaves)) > most:
            raise ValueError(
                f"the layers must have at most {MOST_COPIES} times the numbers that are stored, {most} in all, got "
                f"{len(shared)} layers of {wanted // len(shared)} numbers: the settings do not fit the file"
            )
        stacks = stacks or [_empty((len(shared), *leaf.shape), kind) for leaf in leaves]
        for stack in stacks:
            stack[np.equal(shared, stored)] = leaves.pop(0)
        del leaves
    # Each array is let go of as it is handed over, so that it is freed where JAX made a copy.
    stacks.reverse()
    return jax.tree.unflatten(structure, [jnp.asarray(stacks.pop()) for _ in range(len(stacks))])


def _filled(leaf: np.ndarray, kind: np.dtype) -> np.ndarray:
    filled = _empty(leaf.shape, kind)
    filled[...] = leaf
    return filled


def _empty(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """An aligned array of that shape."""
    size = int(np.prod(shape)) * kind.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(kind).reshape(shape)
