"""Scores drawn at random: what the closed forms take averages over."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike


def draw(key: jax.Array, n: int, dim: ArrayLike | None, dtype: Any) -> jax.Array:
    """Draw n independent scores: standard normal, or cosines between a fixed and a uniformly random direction."""
    if dim is None:
        return jax.random.normal(key, (n,), dtype)
    first = jax.random.normal(jax.random.fold_in(key, 0), (n,), dtype)
    half = (jnp.asarray(dim).astype(dtype) - 1) / 2
    others = 2 * jax.random.gamma(jax.random.fold_in(key, 1), half, (n,), dtype)  # squared length of the other entries
    return first / jnp.sqrt(first * first + others)
