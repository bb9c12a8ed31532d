"""Numbers at the entry: one shape, one dtype, and enough precision to work in."""

from typing import Any

import jax
import jax.numpy as jnp

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
