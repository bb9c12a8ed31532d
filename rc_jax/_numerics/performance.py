"""The forms that exist because of XLA's compiler for CPUs, and the one switch that chooses them.

A form has a place here where it takes a CPU at most 1/1.3 of the plain form's time. It gives the same numbers to
rounding. GPUs and TPUs get the plain form.

- `rc_jax._numerics.random`: two normal numbers from one evaluation of the generator, three times as fast as
  `jax.random.normal` from 65 536 numbers on.
- `rc_jax._numerics.linear_algebra`: factors of Gram matrices by products alone. At 128 × 128 they are 5 times as fast
  as Householder's reflections, and below about 64 × 64 slower. They are there because LAPACK hangs where several CPU
  devices call it at once.
- `rc_jax.diagnostics.streaming`: blocks that fit into the cache.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool


def on_cpu(cpu: Callable[..., Any], default: Callable[..., Any], *operands: Any) -> Any:
    """`cpu(*operands)` in a program for CPUs, `default(*operands)` in one for other devices."""
    return jax.lax.platform_dependent(*operands, cpu=cpu, default=default)


@jax.custom_batching.custom_vmap
def any_in_batch(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """The flag; under `vmap`, whether it is true in any member of the batch, so that a `lax.cond` runs one branch."""
    return flag


@any_in_batch.def_vmap
def _any_in_batch(size: int, batched: list[bool], flags: Bool[Array, " member"]) -> tuple[Bool[Array, ""], bool]:
    del size
    return any_in_batch(jnp.any(flags, axis=0) if batched[0] else flags), False
