"""Checks at the door: one clear error that names the argument, what was expected and what came.

`guard` wraps a public function and looks at its arguments before anything else does, outside `vmap` and `jit`.
A traced value has no number yet, so only its dtype and shape are looked at.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[str, Any], None]


def guard(**checks: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Run each named check on the argument of that name before the function; a default value is not checked.

    Arguments annotated as `bool` or as one of the package's specifications (any dataclass) must be of that type; they
    need no check of their own.
    """

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        unknown = set(checks) - set(signature.parameters)
        assert not unknown, f"guard names arguments that {function.__name__} does not have: {unknown}"
        for name, parameter in signature.parameters.items():
            kind = parameter.annotation
            if name not in checks and isinstance(kind, type) and (kind is bool or dataclasses.is_dataclass(kind)):
                checks[name] = instance(kind)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                if name in checks and not (value is None and signature.parameters[name].default is None):
                    checks[name](name, value)
            return function(*args, **kwargs)

        return guarded

    return wrap


def describe(value: Any) -> str:
    """What came, in few words: `float32[3,4]` for an array, a short `repr` or the type's name otherwise."""
    if isinstance(value, jax.Array | np.ndarray):
        shape = ",".join(map(str, value.shape))
        return f"{value.dtype}[{shape}]" if value.ndim else f"{value.dtype} {concrete(value)}"
    text = repr(value)
    return text if len(text) <= 200 else _with_article(type(value))


def _with_article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}"


def concrete(value: Any) -> np.ndarray | None:
    """The numbers of `value`, or `None` while it is being traced."""
    return None if isinstance(value, Tracer) else np.asarray(value)


def is_float(value: Any) -> bool:
    """Whether `value` holds real floating-point numbers (bfloat16 included)."""
    return jnp.issubdtype(jnp.asarray(value).dtype if not hasattr(value, "dtype") else value.dtype, jnp.floating)


def float_array(*shape: str, minimum: dict[str, int] | None = None) -> Check:
    """A check for a floating-point array with one axis per name; `minimum` bounds an axis from below."""

    def check(name: str, value: Any) -> None:
        wanted = f"a floating-point array of shape ({', '.join(shape)})"
        if not isinstance(value, jax.Array | np.ndarray) or not jnp.issubdtype(value.dtype, jnp.floating):
            raise TypeError(f"`{name}` must be {wanted}, got {describe(value)}")
        if value.ndim != len(shape):
            raise ValueError(f"`{name}` must be {wanted}, got {describe(value)}")
        for axis, least in (minimum or {}).items():
            if value.shape[shape.index(axis)] < least:
                raise ValueError(f"`{name}` must be {wanted} with {axis} >= {least}, got {describe(value)}")

    return check


def integer_array(*shape: str) -> Check:
    """A check for an array of integers with one axis per name."""

    def check(name: str, value: Any) -> None:
        wanted = f"an array of integers of shape ({', '.join(shape)})"
        if not isinstance(value, jax.Array | np.ndarray) or not jnp.issubdtype(value.dtype, jnp.integer):
            raise TypeError(f"`{name}` must be {wanted}, got {describe(value)}")
        if value.ndim != len(shape):
            raise ValueError(f"`{name}` must be {wanted}, got {describe(value)}")

    return check


def text(name: str, value: Any) -> None:
    """A string with something in it besides white space."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a string, got {describe(value)}")
    if not value.strip():
        raise ValueError(f"`{name}` must be a string that is not empty, got {value!r}")


def real(name: str, value: Any) -> None:
    """A finite real number or an array of them."""
    kind = getattr(value, "dtype", None)
    number = isinstance(value, int | float | list | tuple) and not isinstance(value, bool)
    if not number and (
        kind is None or not jnp.issubdtype(kind, jnp.number) or jnp.issubdtype(kind, jnp.complexfloating)
    ):
        raise TypeError(f"`{name}` must be a real number or an array of them, got {describe(value)}")
    numbers = concrete(value)
    if numbers is None:
        return
    if numbers.dtype.kind in "OUSb":
        raise TypeError(f"`{name}` must be a real number or an array of them, got {describe(value)}")
    if not np.all(np.isfinite(numbers.astype(float))):
        raise ValueError(f"`{name}` must be finite, got {describe(value)}")


def bounded(
    low: int | float = -np.inf, high: int | float = np.inf, *, open_low: bool = False, open_high: bool = False
) -> Check:
    """A check for real numbers in an interval; `open_low` and `open_high` leave the end points out."""
    above, below = (">" if open_low else ">="), ("<" if open_high else "<=")
    parts = ([f"{above} {low:g}"] if np.isfinite(low) else []) + ([f"{below} {high:g}"] if np.isfinite(high) else [])

    def check(name: str, value: Any) -> None:
        real(name, value)
        numbers = concrete(value)
        if numbers is None:
            return
        numbers = numbers.astype(float)
        inside = (numbers > low if open_low else numbers >= low) & (numbers < high if open_high else numbers <= high)
        if not np.all(inside):
            worst = numbers if numbers.ndim == 0 else numbers[~inside].flat[0]
            raise ValueError(f"`{name}` must be {' and '.join(parts)}, got {float(worst):g}")

    return check


positive = bounded(0, open_low=True)


def scalar(check: Check) -> Check:
    """A check for one number, not an array of them, that also passes `check`."""

    def checked(name: str, value: Any) -> None:
        check(name, value)
        if jnp.ndim(value):
            raise ValueError(f"`{name}` must be one number, got {describe(value)}")

    return checked


def instance(kind: type) -> Check:
    """A check for a value of one type; a NumPy boolean counts as a boolean."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, kind) and not (kind is bool and isinstance(value, np.bool_)):
            raise TypeError(f"`{name}` must be {_with_article(kind)}, got {describe(value)}")

    return check


def floating_dtype(name: str, value: Any) -> None:
    """The name or type of real floating-point numbers."""
    try:
        floating = jnp.issubdtype(jnp.dtype(value), jnp.floating)
    except TypeError:
        floating = False
    if not floating:
        raise TypeError(f"`{name}` must be a floating-point dtype, got {value!r}")


def integer(low: int = 1) -> Check:
    """A check for a Python integer (not a bool) that is at least `low`."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"`{name}` must be an integer >= {low}, got {describe(value)}")
        if value < low:
            raise ValueError(f"`{name}` must be an integer >= {low}, got {value}")

    return check


def one_of(options: Iterable[Any]) -> Check:
    """A check that the value is one of a fixed set of names."""
    known = tuple(options)

    def check(name: str, value: Any) -> None:
        if not any(value is option or value == option for option in known):
            raise ValueError(f"`{name}` must be one of {', '.join(map(repr, known))}, got {value!r}")

    return check


def random_key(name: str, value: Any) -> None:
    """A single typed key made by `jax.random.key`."""
    if not isinstance(value, jax.Array) or not jnp.issubdtype(value.dtype, jax.dtypes.prng_key) or value.ndim:
        raise TypeError(f"`{name}` must be one typed key from jax.random.key, got {describe(value)}")
