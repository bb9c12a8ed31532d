"""Checks of arguments: one clear error that names the argument, what was expected and what was given.

`guard` wraps a public function and looks at its arguments before anything else does, outside `vmap` and `jit`.
Dtypes and shapes are always looked at. Numbers are looked at where that costs nothing: those of Python and NumPy, and
those of device arrays with at most `SMALL` elements. A traced value has no number yet, and a larger device array would
have to be copied to the host (one that lives on several hosts cannot be): there the functions return NaN out of domain.
Indices, and sums of rows, have no NaN to return. They are checked in arrays of any size, if those are in the host's own
memory (`on_host`).
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rc_jax._numerics.dtypes import common_dtype, held, working_dtype
from rc_jax._numerics.jax_names import Tracer
from rc_jax._numerics.text import perhaps

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[str, Any], None]
SMALL = 16  # elements of a device array that are copied to the host to be checked: the price of one number


def guard(**checks: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Run each named check on the argument of that name before the function; a default value is not checked.

    Arguments annotated as `bool` or as one of the package's specifications (any dataclass) must be of that type; they
    need no check of their own.
    """

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        # Arguments without a check of their own get one from their annotation.
        signature = inspect.signature(function)
        unknown = set(checks) - set(signature.parameters)
        assert not unknown, f"guard names arguments that {function.__name__} does not have: {unknown}"
        for name, parameter in signature.parameters.items():
            kind = parameter.annotation
            if name not in checks and isinstance(kind, type) and (kind is bool or dataclasses.is_dataclass(kind)):
                checks[name] = instance(kind)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            for name, value in bound.arguments.items():
                if name in checks and not (value is None and signature.parameters[name].default is None):
                    checks[name](name, value)
                    if isinstance(value, Tracer):
                        bound.arguments[name] = _nan_outside(checks[name], value)
            return function(*bound.args, **bound.kwargs)

        return guarded

    return wrap


def _nan_outside(check: Check, value: jax.Array) -> jax.Array:
    """A traced number, with NaN where it leaves the interval of a `bounded` check: no formula is right there."""
    inside = getattr(check, "inside", None)
    if inside is None or not jnp.issubdtype(value.dtype, jnp.floating):
        return value
    return jnp.where(inside(value), value, jnp.asarray(jnp.nan, value.dtype))


def describe(value: Any) -> str:
    """Describe a value in few words: `float32[3,4]` for an array, a short `repr` or the type's name otherwise."""
    if isinstance(value, jax.Array | np.ndarray):
        if not value.ndim and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return f"a typed key, {value.dtype}"
        shape = ",".join(map(str, value.shape))
        number = at_hand(value) if not value.ndim else None
        if number is not None:
            return f"{value.dtype} {number}"
        return f"{'traced ' * isinstance(value, Tracer)}{value.dtype}[{shape}]"
    text = repr(value)
    return text if len(text) <= 200 else _with_article(type(value))


def _with_article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOaeio' else 'a'} {kind.__name__}"


def at_hand(value: Any) -> np.ndarray | None:
    """The numbers of `value` if looking costs nothing, else `None`: traced, a large device array, or typed keys."""
    if isinstance(value, jax.Array) and (
        isinstance(value, Tracer)
        or value.size > SMALL
        or not value.is_fully_addressable
        or jnp.issubdtype(value.dtype, jax.dtypes.extended)
    ):
        return None
    return np.asarray(value)


def on_host(value: Any) -> np.ndarray | None:
    """All numbers of `value` where they are in the host's memory, for a check; else as `at_hand`."""
    return concrete(value) if in_host_memory(value) else at_hand(value)


def in_host_memory(value: Any) -> bool:
    """Whether the numbers of an array are there for NumPy to read without a transfer."""
    if isinstance(value, Tracer) or not isinstance(value, jax.Array):
        return not isinstance(value, Tracer)
    return all(device.platform == "cpu" for device in value.devices())


def concrete(value: Any) -> np.ndarray | None:
    """All numbers of `value`, copied from the device if need be; `None` where it is traced or on several hosts."""
    if isinstance(value, Tracer) or not getattr(value, "is_fully_addressable", True):
        return None
    return np.asarray(value)


def is_float(value: Any) -> bool:
    """Whether `value` holds real floating-point numbers (bfloat16 included)."""
    return jnp.issubdtype(jnp.asarray(value).dtype if not hasattr(value, "dtype") else value.dtype, jnp.floating)


def float_array(*shape: str, minimum: dict[str, int] | None = None) -> Check:
    """A check for a floating-point array with one axis per name; `minimum` bounds an axis from below."""
    return _array(f"a floating-point array of shape ({', '.join(shape)})", jnp.floating, shape, minimum or {})


def integer_array(*shape: str) -> Check:
    """A check for an array of integers with one axis per name."""
    return _array(f"an array of integers of shape ({', '.join(shape)})", jnp.integer, shape, {})


def _array(expected: str, kind: Any, shape: tuple[str, ...], minimum: dict[str, int]) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, jax.Array | np.ndarray) or not jnp.issubdtype(value.dtype, kind):
            raise TypeError(f"`{name}` must be {expected}, got {describe(value)}")
        if value.ndim != len(shape):
            raise ValueError(f"`{name}` must be {expected}, got {describe(value)}")
        for axis, least in minimum.items():
            if value.shape[shape.index(axis)] < least:
                raise ValueError(f"`{name}` must be {expected} with {axis} >= {least}, got {describe(value)}")

    return check


def text(name: str, value: Any) -> None:
    """A string with something in it besides white space."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a string, got {describe(value)}")
    if not value.strip():
        raise ValueError(f"`{name}` must be a string that is not empty, got {value!r}")


_REAL = "a real number or an array of them"


def real(name: str, value: Any) -> None:
    """A finite real number or an array of them, none too large for the dtype in which it will be computed with."""
    real_numbers(name, value)


def real_numbers(name: str, value: Any) -> np.ndarray | None:
    """Check as `real` does; return the numbers in float32 or float64, or `None` where a look would cost something."""
    if isinstance(value, jax.Array):
        _real_dtype(name, value)
        numbers = at_hand(value)
        if numbers is None:
            return None
    else:
        numbers = _host_numbers(name, value)
    dtype = working_dtype(common_dtype(value))
    if numbers.dtype != dtype:
        numbers = numbers.astype(np.float64)
    if not np.all(np.isfinite(numbers)):
        raise ValueError(f"`{name}` must be finite, got {describe(value)}")
    if numbers.dtype != dtype:
        held(name, numbers, dtype)
    return numbers


def _real_dtype(name: str, value: Any) -> None:
    kind = value.dtype
    if not jnp.issubdtype(kind, jnp.number) or jnp.issubdtype(kind, jnp.complexfloating) or kind == np.longdouble:
        raise TypeError(f"`{name}` must be {_REAL}, got {describe(value)}")


def _host_numbers(name: str, value: Any) -> np.ndarray:
    """Python's numbers, lists of them and NumPy's arrays as a NumPy array; an integer too long for a float is ∞."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"`{name}` must be {_REAL}, got a masked array: give its numbers with `.filled(…)`")
    if isinstance(value, np.ndarray | np.generic):
        _real_dtype(name, value)
        return np.asarray(value)
    if not isinstance(value, int | float | list | tuple) or isinstance(value, bool):
        raise TypeError(f"`{name}` must be {_REAL}, got {describe(value)}")
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
        raise TypeError(f"`{name}` must be {_REAL}, got a list with traced values: stack them with jnp.stack")
    try:
        numbers = np.asarray(value)
    except ValueError:
        raise ValueError(f"`{name}` must be {_REAL}, got rows of different lengths: {describe(value)}") from None
    if numbers.dtype == object:  # integers past 64 bits
        leaves = numbers.ravel().tolist()
        if any(isinstance(leaf, bool) or not isinstance(leaf, int | float) for leaf in leaves):
            raise TypeError(f"`{name}` must be {_REAL}, got {describe(value)}")
        return np.array([_as_float(leaf) for leaf in leaves]).reshape(numbers.shape)
    if numbers.dtype.kind not in "iuf":
        raise TypeError(f"`{name}` must be {_REAL}, got {describe(value)}")
    return numbers


def _as_float(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return np.inf


def bounded(
    low: int | float = -np.inf, high: int | float = np.inf, *, open_low: bool = False, open_high: bool = False
) -> Check:
    """A check for real numbers in an interval; `open_low` and `open_high` leave the end points out.

    A number that is inside, but on an end point that is left out once it is a float of the working dtype, is refused.
    """
    above, below = (">" if open_low else ">="), ("<" if open_high else "<=")
    parts = ([f"{above} {low:g}"] if np.isfinite(low) else []) + ([f"{below} {high:g}"] if np.isfinite(high) else [])

    def inside(numbers: Any) -> Any:
        return (numbers > low if open_low else numbers >= low) & (numbers < high if open_high else numbers <= high)

    def check(name: str, value: Any) -> None:
        # The numbers as given lie in the interval, and so do the floats that they become.
        numbers = real_numbers(name, value)
        if numbers is None:
            return
        allowed = inside(numbers)
        if not np.all(allowed):
            raise ValueError(f"`{name}` must be {' and '.join(parts)}, got {float(numbers[~allowed].flat[0]):g}")
        if not open_low and not open_high:
            return
        dtype = working_dtype(common_dtype(value))
        cast = held(name, numbers, dtype)
        on_end = ((cast == dtype.type(low)) & open_low) | ((cast == dtype.type(high)) & open_high)
        if np.any(on_end):
            number, rounded = float(numbers[on_end].flat[0]), cast[on_end].flat[0]
            raise ValueError(f"`{name}` must be {' and '.join(parts)}, got {number!r}, which is {rounded:g} in {dtype}")

    return _with_interval(check, inside)


def _with_interval(check: Check, inside: Callable[[Any], Any] | None) -> Check:
    """The check, which tells `guard` the interval that a traced number must not leave."""
    if inside is not None:
        setattr(check, "inside", inside)  # noqa: B010
    return check


positive = bounded(0, open_low=True)


def both(first: Check, second: Check) -> Check:
    """A check that passes the first and then the second."""

    def check(name: str, value: Any) -> None:
        first(name, value)
        second(name, value)

    return _with_interval(check, getattr(first, "inside", getattr(second, "inside", None)))


def scalar(check: Check) -> Check:
    """A check for one number, not an array of them, that also passes `check`."""

    def checked(name: str, value: Any) -> None:
        check(name, value)
        if np.ndim(value):
            raise ValueError(f"`{name}` must be one number, got {describe(value)}")

    return _with_interval(checked, getattr(check, "inside", None))


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
            listed = ", ".join(map(repr, known))
            raise ValueError(f"`{name}` must be one of {listed}, got {value!r}{perhaps(value, known)}")

    return check


def random_key(name: str, value: Any) -> None:
    """A single typed key made by `jax.random.key`."""
    if not isinstance(value, jax.Array) or not jnp.issubdtype(value.dtype, jax.dtypes.prng_key) or value.ndim:
        raise TypeError(f"`{name}` must be one typed key from jax.random.key, got {describe(value)}")
