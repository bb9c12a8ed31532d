"""Bring real arguments to one shape and one working precision, and the result back to the caller's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rc_jax._numerics.jax_names import canonical_dtype


def common_dtype(*values: Any) -> Any:
    """The widest floating-point dtype among the arrays; Python numbers and integers follow, default float if alone."""
    widest = None
    for value in values:
        dtype = getattr(value, "dtype", None)
        if dtype is None or isinstance(value, float) or not jnp.issubdtype(dtype, jnp.floating):
            continue
        dtype = canonical_dtype(dtype)
        widest = dtype if widest is None else wider(widest, dtype)
    return canonical_dtype(np.float64) if widest is None else widest


def working_dtype(dtype: Any) -> Any:
    """Half precisions are computed in float32: a formula with fifty operations has no digit left in eight bits."""
    return wider(dtype, jnp.dtype("float32"))


def wider(a: Any, b: Any) -> Any:
    """The floating-point dtype with the smaller rounding error, whatever promotion rules are in force."""
    return a if jnp.finfo(a).eps <= jnp.finfo(b).eps else b


def as_common(*, positive: tuple[str, ...] = (), **values: ArrayLike) -> tuple[Any, list[jax.Array]]:
    """The result dtype, and the named arguments broadcast to one shape in the working dtype."""
    dtype = common_dtype(*values.values())
    shapes = [np.shape(value) for value in values.values()]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        names = ", ".join(f"`{name}` {shape}" for name, shape in zip(values, shapes, strict=True))
        raise ValueError(f"the shapes of the arguments must broadcast together, got {names}") from None
    working = working_dtype(dtype)
    arrays = [converted(name, value, working, positive=name in positive) for name, value in values.items()]
    return dtype, [jnp.broadcast_to(array, shape) for array in arrays]


def common_with_dim(dim: ArrayLike | None, **values: Any) -> tuple[Any, list[jax.Array], jax.Array | None]:
    """`as_common` of the values and of dim, which may be None and then stays so."""
    if dim is None:
        return *as_common(**values), None
    dtype, arrays = as_common(**values, dim=dim)
    return dtype, arrays[:-1], arrays[-1]


def converted(name: str, value: ArrayLike, dtype: Any, *, positive: bool = False) -> jax.Array:
    """An argument as an array of the dtype; numbers on the host are converted there, and checked by `held`."""
    if isinstance(value, jax.Array):
        return value.astype(dtype)
    return jnp.asarray(held(name, value, dtype, positive=positive))


def held(name: str, value: Any, dtype: Any, *, positive: bool = False) -> np.ndarray:
    """The numbers of `value` as `dtype` holds them once XLA has replaced the smallest (subnormal) ones by 0.

    Args:
        name: of the argument, for errors.
        value: finite numbers on the host.
        dtype: float32 or float64.
        positive: whether one that is not 0 may not become 0.
    """
    # By way of float64: an integer past int32 must not wrap on its way to a float.
    try:
        numbers = np.asarray(value).astype(np.float64)
    except OverflowError:  # an integer past float64
        numbers = np.asarray(np.inf)
    limits = jnp.finfo(dtype)
    with np.errstate(over="ignore", under="ignore"):
        kept = numbers.astype(dtype)
    large = np.isinf(kept)
    if np.any(large):
        got = numbers[large][0]
        shown = f"{got:g}" if np.isfinite(got) else "a larger integer"
        raise ValueError(f"`{name}` must be at most {limits.max:.4g} in size, to fit {dtype}, got {shown}")
    kept[np.abs(kept) < limits.tiny] = 0
    lost = (kept == 0) & (numbers != 0)
    if positive and np.any(lost):
        got = numbers[lost][0]
        raise ValueError(f"`{name}` must be at least {limits.tiny:.4g} in size, to fit {dtype}, got {got:g}")
    return kept
