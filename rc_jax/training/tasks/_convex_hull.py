"""The convex hull task: find the points of a set that lie on its hull."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Key

from rc_jax._numerics import arguments


@arguments.guard(shift=arguments.scalar(arguments.bounded(0)))
def convex_hull(
    key: Key[Array, ""], count: int, *, points: int = 10, shift: float = 0.66
) -> tuple[Float[Array, "set token 2"], Integer[Array, "set token"]]:
    """Draw sets of points, each point with the label 1 if it lies on the convex hull of its set, else 0.

    Points are uniform in the square [−1, 1]², which is then moved as a whole by a normal vector.

    Args:
        key: a typed key; the same key gives the same points.
        count: number of sets.
        points: points in each.
        shift: standard deviation of both coordinates of the move.

    Returns:
        Points of shape (count, points, 2) and labels of shape (count, points).

    Source: the task of Dong, Cordonnier & Loukas 2021, section 4. Their released code takes a square of side 10 and a
        shift of 3.3, which are five times these lengths.

    Example:
        >>> import jax
        >>> points, labels = convex_hull(jax.random.key(0), 2)
        >>> points.shape, bool((labels.sum(axis=1) >= 3).all())
        ((2, 10, 2), True)
    """
    return _draw(key, count, points, jnp.asarray(shift, float))


@functools.partial(jax.jit, static_argnames=("count", "points"))
def _draw(key: Array, count: int, points: int, shift: Array) -> tuple[Array, Array]:
    square = jax.random.uniform(jax.random.fold_in(key, 0), (count, points, 2), minval=-1.0)
    moved = square + shift * jax.random.normal(jax.random.fold_in(key, 1), (count, 1, 2))
    moved = jax.lax.optimization_barrier(moved)  # labels are those of the points as they are rounded
    return moved, jax.lax.map(_on_hull, moved, batch_size=256).astype(int)


@arguments.guard(points=arguments.float_array("point", "2", point=1))
def on_hull(points: Float[Array, "point 2"]) -> Bool[Array, " point"]:
    """Find the points on the boundary of their convex hull, by n³ products.

    Point i lies there if some line through it and another point has no point on its left, i.e. some j ≠ i has

        (p_j − p_i) × (p_k − p_i) ≤ 0   for all k.

    Points on an edge between corners count. If all points coincide or lie on one line, all of them count. Rounding
    decides where three points are that near to one line.

    Args:
        points: n points of the plane.

    Example:
        >>> import jax.numpy as jnp
        >>> on_hull(jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.2, 0.2]])).tolist()
        [True, True, True, False]
    """
    if points.shape[1] != 2:
        raise ValueError(f"`points` must have 2 coordinates each, got {arguments.describe(points)}")
    known = arguments.on_host(points)
    if known is not None and not np.isfinite(known.astype(float)).all():
        raise ValueError("`points` must be finite, got some that are not")
    return _on_hull(points)


@jax.jit
def _on_hull(points: Array) -> Array:
    difference = points[None] - points[:, None]
    size = jnp.max(jnp.abs(difference))
    difference = difference / jnp.where(size > 0, size, 1)  # products of tiny or huge numbers under- or overflow
    x, y = difference[..., 0], difference[..., 1]
    left = x[:, :, None] * y[:, None, :] - y[:, :, None] * x[:, None, :] > 0
    same = jnp.eye(points.shape[0], dtype=bool)
    left = left & ~(same[None] | same[:, None, :])  # k = j or k = i: fused arithmetic may not give 0
    other = jnp.any(difference != 0, axis=-1) & ~same
    return jnp.any(other & ~jnp.any(left, axis=2), axis=1) | ~jnp.any(other, axis=1)
