"""Masks of attention: boolean (n, n) matrices, True at (i, j) where token i sees token j."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Key

from rc_jax._numerics import arguments


@arguments.guard()
def causal(n: int) -> Bool[Array, "token token"]:
    """Token i sees tokens j ≤ i.

    Example:
        >>> causal(3).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return jnp.tri(n, dtype=bool)


@arguments.guard(radius=arguments.integer(0))
def window(n: int, radius: int) -> Bool[Array, "token token"]:
    """Token i sees tokens with |i − j| ≤ radius.

    Example:
        >>> window(3, 1).astype(int).tolist()
        [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    """
    index = jnp.arange(n)
    return jnp.abs(index[:, None] - index[None, :]) <= radius


@arguments.guard()
def block(n: int, size: int) -> Bool[Array, "token token"]:
    """Token i sees the tokens of its own block: ⌊i/size⌋ = ⌊j/size⌋; the last block may be shorter.

    No block sees another one: differences between blocks do not collapse at any depth.

    Example:
        >>> block(3, 2).astype(int).tolist()
        [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    index = jnp.arange(n) // size
    return index[:, None] == index[None, :]


@arguments.guard(radius=arguments.integer(0), count=arguments.integer(0))
def window_with_global(n: int, radius: int, count: int) -> Bool[Array, "token token"]:
    """Token i sees |i − j| ≤ radius; the first `count` tokens see everyone and are seen by everyone.

    Any two tokens are then at most two layers apart (Beltagy et al. 2020, "Longformer", section 3.1).

    Example:
        >>> window_with_global(4, 0, 1).astype(int).tolist()
        [[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]
    """
    chosen = jnp.arange(n) < count
    return window(n, radius) | chosen[:, None] | chosen[None, :]


@arguments.guard(density=arguments.bounded(0, 1))
def random(key: Key[Array, ""], n: int, density: ArrayLike, *, self_loops: bool = True) -> Bool[Array, "token token"]:
    """Token i sees each other token with probability `density`, independently, and always itself.

    Args:
        key: a typed key. A larger `density` with the same key only adds edges.
        n: number of tokens.
        density: a probability; may be traced.
        self_loops: whether a token always sees itself. Without them it does so with probability `density`, and a row
            may see nobody: the layer gives it weight 0, and refuses it in a mask of NumPy.

    Example:
        >>> mask = random(jax.random.key(0), 100, 0.25)
        >>> bool(mask.diagonal().all()), bool(abs(mask.mean() - 0.2575) < 0.03)
        (True, True)
    """
    uniform = jax.random.uniform(key, (n, n), jnp.float32)
    mask = uniform < jnp.asarray(density, jnp.float32)
    return mask | jnp.eye(n, dtype=bool) if self_loops else mask


def graph(adjacency: ArrayLike, *, self_loops: bool = True) -> Bool[Array, "token token"]:
    """Token i sees its neighbours: the non-zero entries of row i of an adjacency matrix, and itself.

    Args:
        adjacency: (n, n); any non-zero entry is an edge from row i, the token that sees, to column j, which is seen.
        self_loops: whether every token sees itself as well.

    Raises:
        ValueError: a token sees nobody.

    Example:
        >>> graph(jnp.array([[0, 1], [0, 0]])).astype(int).tolist()
        [[1, 1], [0, 1]]
    """
    if getattr(adjacency, "dtype", None) != jnp.bool_:
        arguments.real("adjacency", adjacency)
    edges = (adjacency if isinstance(adjacency, jax.Array) else np.asarray(adjacency)) != 0
    if edges.ndim != 2 or edges.shape[0] != edges.shape[1]:
        raise ValueError(f"`adjacency` must be a square matrix, got {arguments.describe(edges)}")
    mask = edges | np.eye(edges.shape[0], dtype=bool) if self_loops else edges
    for check in check_mask:
        check("adjacency", mask)
    return jnp.asarray(mask)


def _empty_rows(name: str, mask: Any) -> None:
    """Refuse a token that sees nobody; in large masks on a device it has a row of zeros."""
    seen = arguments.at_hand(mask)
    if seen is not None and not seen.any(axis=1).all():
        row = int(np.flatnonzero(~seen.any(axis=1))[0])
        raise ValueError(f"`{name}` must let every token see at least one token, got an empty row {row}")


# A boolean (n, n) matrix in which every token sees at least one token.
check_mask = (
    arguments.must(
        "a boolean array of shape (token, token)",
        lambda mask: np.ndim(mask) == 2 and np.shape(mask)[0] == np.shape(mask)[1],
        right=lambda mask: getattr(mask, "dtype", None) == jnp.bool_,
    ),
    _empty_rows,
)


def combine(
    n: int, *, causal_mask: bool, radius: int | None, extra: Bool[Array, "token token"] | None
) -> Bool[Array, "token token"] | None:
    """The conjunction of the masks that are switched on; `None` when every token sees every token."""
    near = window(n, radius) if radius is not None and radius < n - 1 else None
    parts = [mask for mask in (causal(n) if causal_mask else None, near, extra) if mask is not None]
    return functools.reduce(jnp.logical_and, parts) if parts else None
