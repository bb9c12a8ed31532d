"""Balls of `python-flint`, an optional dependency: every module imports without it, and `log_residuals` asks for it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import flint
    from flint import arb
else:
    try:
        import flint
        from flint import arb
    except ModuleNotFoundError:

        class arb:
            """Stands where a module names a ball."""

            def __init__(self, *parts: Any) -> None:
                del parts

            def __getattr__(self, name: str) -> Any:
                raise ModuleNotFoundError("balls need python-flint: pip install 'rc_jax[certified]'")

            @classmethod
            def neg_inf(cls) -> "arb":
                """Another such number."""
                return cls()

        flint = arb()

__all__ = ["arb", "flint"]
