"""Names of JAX that its compatibility policy does not cover, or that depend on its flags: they stand here alone."""

from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, get_opaque_trace_state, jaxpr_as_fun
from jax.typing import DTypeLike

# jaxtyping hides its own type from static checkers, which then count every function that takes one as not fully typed.
if TYPE_CHECKING:
    PyTree: TypeAlias = Any
else:
    from jaxtyping import PyTree

__all__ = [
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "PyTree",
    "Tracer",
    "canonical_dtype",
    "jaxpr_as_fun",
    "process_allgather",
    "trace_state",
    "with_64_bits",
]


def canonical_dtype(dtype: DTypeLike) -> Any:
    """The dtype that JAX gives where this one is asked for: float32 for float64 unless 64-bit types are on."""
    return jax.dtypes.canonicalize_dtype(dtype)


def with_64_bits(on: bool) -> Any:
    """A context in which this thread computes in float64 where it is asked for, or not, for a look at a function.

    The package changes no setting that a caller's own programs would see.
    """
    return jax.enable_x64(on)


def process_allgather(numbers: np.ndarray) -> Any:
    """One array of each process, stacked in the order of the processes; each must call this with one shape."""
    from jax.experimental.multihost_utils import process_allgather

    return process_allgather(numbers)


def trace_state() -> Any:
    """What is equal in one trace and unequal in any other, such as that of a `jax.vmap` inside a `jax.jit`."""
    return get_opaque_trace_state(convention="nnx")
