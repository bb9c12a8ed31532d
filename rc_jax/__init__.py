"""The theory of attention in JAX: how depth collapses tokens, which softmax scale suits, how sparse attention can be.

Import the subpackages you need: `from rc_jax import attention, network, collapse, scale, sparsity, diagnostics`.
Importing this package imports none of them, touches no JAX setting and starts no backend.

A wrong argument raises one error. It names the argument, what was expected and what came. A wrong type, dtype or key is
a `TypeError`. A wrong shape is a `ValueError`, and so is a number outside the range that its line under "Args" gives.
"Raises" lists only what is not said there. Numbers that are traced, on a device, or in a large array of JAX raise
nothing. A result that depends on one outside its range is NaN.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rc_jax import (
        attention,
        collapse,
        diagnostics,
        ensemble,
        network,
        pretrained,
        scale,
        sparsity,
        special,
        study,
        style,
        training,
    )

__version__ = "0.1.0"
__all__ = [
    "attention",
    "collapse",
    "diagnostics",
    "ensemble",
    "network",
    "pretrained",
    "scale",
    "sparsity",
    "special",
    "study",
    "style",
    "training",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"rc_jax.{name}")
    raise AttributeError(f"module 'rc_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
