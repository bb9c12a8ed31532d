"""Bring real arguments to one shape and one working precision, and the result back to the caller's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike


def common_dtype(*values: ArrayLike) -> Any:
    """The widest floating-point dtype among the arrays; Python numbers and integers follow, default float if alone."""
    widest = None
    for value in values:
        dtype = getattr(value, "dtype", None)
        if dtype is None or isinstance(value, float) or not jnp.issubdtype(dtype, jnp.floating):
            continue
        dtype = jax.dtypes.canonicalize_dtype(dtype)
        widest = dtype if widest is None else wider(widest, dtype)
    return jnp.zeros(()).dtype if widest is None else widest


def working_dtype(dtype: Any) -> Any:
    """Half precisions are computed in float32: a formula with fifty operations has no digit left in eight bits."""
    return wider(dtype, jnp.dtype("float32"))


def wider(a: Any, b: Any) -> Any:
    """The floating-point dtype with the smaller rounding error, whatever promotion rules are in force."""
    return a if jnp.finfo(a).eps <= jnp.finfo(b).eps else b


def as_common(**values: ArrayLike) -> tuple[Any, list[jax.Array]]:
    """The result dtype, and the named arguments broadcast to one shape in the working dtype.

    Raises:
        ValueError: if the shapes do not broadcast together.
    """
    dtype = common_dtype(*values.values())
    shapes = [np.shape(value) for value in values.values()]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        names = ", ".join(f"`{name}` {shape}" for name, shape in zip(values, shapes, strict=True))
        raise ValueError(f"the shapes of the arguments must broadcast together, got {names}") from None
    working = working_dtype(dtype)
    return dtype, [jnp.broadcast_to(converted(value, working), shape) for value in values.values()]


def converted(value: ArrayLike, dtype: Any) -> jax.Array:
    """Host numbers are converted on the host: an integer past int32 must not wrap on its way to a float."""
    if isinstance(value, jax.Array):
        return value.astype(dtype)
    return jnp.asarray(np.asarray(value).astype(float), dtype)
