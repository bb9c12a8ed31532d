"""Bring real arguments to one shape and one working precision, and the result back to the caller's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rc_jax._numerics.jax_names import canonical_dtype


def common_dtype(*values: ArrayLike) -> Any:
    """The widest floating-point dtype among the arrays; Python numbers and integers follow, default float if alone."""
    widest = None
    for value in values:
        dtype = getattr(value, "dtype", None)
        if dtype is None or isinstance(value, float) or not jnp.issubdtype(dtype, jnp.floating):
            continue
        dtype = canonical_dtype(dtype)
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
        ValueError: if the shapes do not broadcast together, or a host number is too large for the working dtype.
    """
    dtype = common_dtype(*values.values())
    shapes = [np.shape(value) for value in values.values()]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        names = ", ".join(f"`{name}` {shape}" for name, shape in zip(values, shapes, strict=True))
        raise ValueError(f"the shapes of the arguments must broadcast together, got {names}") from None
    working = working_dtype(dtype)
    return dtype, [jnp.broadcast_to(converted(name, value, working), shape) for name, value in values.items()]


def common_with_dim(dim: ArrayLike | None, **values: ArrayLike) -> tuple[Any, list[jax.Array], jax.Array | None]:
    """`as_common` of the values and of dim, which may be None and then stays so."""
    if dim is None:
        return *as_common(**values), None
    dtype, arrays = as_common(**values, dim=dim)
    return dtype, arrays[:-1], arrays[-1]


def converted(name: str, value: ArrayLike, dtype: Any) -> jax.Array:
    """Convert host numbers on the host: an integer past int32 must not wrap on its way to a float.

    Raises:
        ValueError: if a host number is too large for the dtype.
    """
    if isinstance(value, jax.Array):
        return value.astype(dtype)
    try:
        numbers = np.asarray(value).astype(float)
    except OverflowError:  # an integer past float64
        numbers = np.asarray(np.inf)
    with np.errstate(over="ignore"):
        kept = numbers.astype(dtype)
    large = np.isinf(kept)
    if large.any():
        limit, got = float(jnp.finfo(dtype).max), numbers[large].flat[0]
        shown = f"{got:g}" if np.isfinite(got) else "a larger integer"
        raise ValueError(f"`{name}` must be at most {limit:.4g} in size, to fit {np.dtype(dtype)}, got {shown}")
    return jnp.asarray(kept)
