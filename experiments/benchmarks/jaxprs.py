"""Programs inside programs, as JAX writes them down."""

from typing import Any


def programs_in(value: Any) -> list[Any]:
    """The programs that a parameter of an equation holds."""
    if hasattr(value, "eqns"):
        return [value]
    if hasattr(value, "jaxpr"):
        return [value.jaxpr]
    return [held for each in value for held in programs_in(each)] if isinstance(value, tuple | list) else []
