"""At the entry: checks of weights, one shape, one dtype, and enough precision and range to work in."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rc_jax import _checks


def broadcast(*values: Any) -> tuple[tuple[jax.Array, ...], Any]:
    """`values` with one common shape in the dtype to compute in, and the dtype the result should have.

    Integers take the floating dtype of the others. Half precisions are computed in float32.
    """
    dtype = jnp.result_type(*[value if _checks.is_float(value) else 0.0 for value in values])
    return tuple(jnp.broadcast_arrays(*[jnp.asarray(value).astype(working(dtype)) for value in values])), dtype


def working(dtype: Any) -> Any:
    """The dtype to compute in: `dtype`, or float32 where it has fewer bits."""
    return dtype if jnp.dtype(dtype).itemsize >= 4 else jnp.float32


def weights(name: str, value: Any) -> None:
    """A check for finite floating-point weights, at least one of them."""
    if not isinstance(value, jax.Array | np.ndarray) or not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(f"`{name}` must be a floating-point array, got {_checks.describe(value)}")
    if value.ndim == 0 or value.size == 0:
        raise ValueError(
            f"`{name}` must be an array with at least one entry and one axis, got {_checks.describe(value)}"
        )
    _checks.real(name, value)


def index(name: str, value: Any) -> None:
    """A check for one integer."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"`{name}` must be an integer, got {_checks.describe(value)}")


def along(name: str, value: Any, axis: int) -> None:
    """Raise unless `value` has that axis."""
    if not -value.ndim <= axis < value.ndim:
        raise ValueError(f"`axis` must name an axis of `{name}`, which has {value.ndim}, got axis={axis}")


def relative(a: jax.Array, axis: int) -> jax.Array:
    """Magnitudes over the largest of their row, so that powers neither overflow nor underflow; rows of zeros are ones.

    No gradient flows through the largest: of scale-free functions none is lost.
    """
    magnitude = jnp.abs(a)
    largest = lax.stop_gradient(jnp.max(magnitude, axis=axis, keepdims=True))
    empty = largest == 0
    inverse_root = lax.rsqrt(jnp.where(empty, 1, largest))  # applied twice: 1/largest may underflow where this does not
    return jnp.where(empty, 1, magnitude * inverse_root * inverse_root)
