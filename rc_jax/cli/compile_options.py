"""Programs that run once: half a second of compiling saved is worth more than their milliseconds."""

from collections.abc import Callable
from typing import Any

import jax

QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def once(function: Callable[..., Any], *arguments: Any) -> Any:
    """Compile for speed of compiling, where this XLA knows how, and call."""
    lowered = jax.jit(function).lower(*arguments)
    try:
        program = lowered.compile(QUICK if jax.default_backend() == "cpu" else None)
    except (RuntimeError, ValueError, TypeError):  # other versions of XLA have other options
        program = lowered.compile()
    return jax.block_until_ready(program(*arguments))
