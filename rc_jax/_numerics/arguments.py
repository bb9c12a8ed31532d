"""Checks of arguments: one clear error that names the argument, what was expected and what was given.

`guard` wraps a public function and looks at its arguments before anything else does, outside `vmap` and `jit`.
Dtypes and shapes are always looked at. Numbers are looked at where that copies nothing: those of Python and NumPy, and
those of JAX in the host's own memory, `SMALL` of them in one array. Others are unknown, as traced ones are: one that
leaves its interval becomes NaN. Indices, and sums of rows, have no NaN to return. They are checked in arrays of any
size (`on_host`), and what an unknown index outside selects is NaN (`among`).
"""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from rc_jax._numerics.dtypes import common_dtype, held, working_dtype
from rc_jax._numerics.jax_names import Tracer
from rc_jax._numerics.text import perhaps

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[str, Any], None]
SMALL = 16  # elements of an array of JAX that are looked at


def guard(**checks: Check | tuple[Check, ...]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Run each named check, several or none, on the argument of that name before the function, but not on a default.

    An argument that is not named has the check that its annotation stands for (`annotated`). Where numbers are unknown,
    those outside the interval of a check become NaN.
    """

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters
        others = set(checks) - set(parameters)
        assert not others, f"guard names arguments that {function.__name__} does not have: {others}"
        of = {name: _several(checks.get(name, annotated(each.annotation))) for name, each in parameters.items()}
        call: Callable[..., R] = function
        optional = {name for name, each in parameters.items() if each.default is None}

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> R:
            # Too many arguments, or too few, are an error of the function itself.
            given = dict(zip(parameters, args, strict=False)) | kwargs
            unknown: dict[str, jax.Array] = {}
            for name, value in given.items():
                if value is None and name in optional:
                    continue
                for check in of.get(name, ()):
                    check(name, value)
                    if isinstance(check, Real) and isinstance(value, jax.Array) and at_hand(value) is None:
                        seen = unknown.get(name, value)  # by another check, which may have made NaN of some
                        unknown[name] = check.nan_outside(seen, common_dtype(*given.values()))
            kwargs |= {name: value for name, value in unknown.items() if name in kwargs}
            first = [unknown.get(name, value) for name, value in zip(parameters, args, strict=False)]
            return call(*first, *args[len(first) :], **kwargs)

        return guarded

    return wrap


def check_fields(record: Any, **checks: Check | tuple[Check, ...]) -> None:
    """Run each named check on the field of that name of a dataclass, and on the others that of their annotation."""
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if value is not None or field.default is not None:
            for check in _several(checks.get(field.name, annotated(field.type))):
                check(field.name, value)


@functools.cache
def annotated(kind: Any) -> tuple[Check, ...]:
    """The check that an annotation stands for, or none.

    `int` stands for a count, which is at least 1; `str` for a text; `ArrayLike` for finite real numbers; `DTypeLike`
    for a floating-point dtype; `Key[Array, ""]` for one typed key; a `Literal` for one of its names; `Float[Array, "row
    token"]` or `Integer[…]`, where all axes have names, for an array with these axes; `bool`, dataclasses and
    named tuples for a value of one of these types; `Callable` for a function.
    """
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    others = [each for each in options if each is not type(None)]
    for union, check in ((ArrayLike, real), (DTypeLike, floating_dtype)):
        if set(others) == set(get_args(union)):
            return (check,)
    if all(isinstance(each, type) and issubclass(each, jaxtyping.AbstractArray) for each in others):
        return _of_arrays({(each.dtype, each.dim_str) for each in others})
    if all(each is bool or dataclasses.is_dataclass(each) or hasattr(each, "_fields") for each in others):
        return (instance(*options),)
    if len(others) != 1:
        return ()
    (only,) = others
    if get_origin(only) is Literal:
        return (one_of(get_args(only) if len(options) == 1 else (None, *get_args(only))),)
    if get_origin(only) is Callable:
        return (function,)
    if only in (int, str):
        return (integer(1) if only is int else text,)
    return ()


def _of_arrays(meant: set[tuple[Any, str]]) -> tuple[Check, ...]:
    """The check of array types of jaxtyping, given by dtype and axes, if they mean the same."""
    if meant == {(jaxtyping.Key, "")}:
        return (random_key,)
    makers = {jaxtyping.Float: float_array, jaxtyping.Int: integer_array, jaxtyping.Integer: integer_array}
    kind, axes = next(iter(meant))
    named = all(axis.isidentifier() for axis in axes.split()) and axes
    return (makers[kind](*axes.split()),) if len(meant) == 1 and kind in makers and named else ()


def _several(checks: Check | tuple[Check, ...]) -> tuple[Check, ...]:
    return checks if isinstance(checks, tuple) else (checks,)


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
    name = kind.__name__
    spelt = "AEFHILMNORSX" if name[:2].isupper() else "AEIOaeio"  # an MLP, a Mask
    return f"{'an' if name[0] in spelt else 'a'} {name}"


def at_hand(value: Any) -> np.ndarray | None:
    """The numbers of `value` if looking costs nothing, else `None`: traced, on a device, more than `SMALL`, or keys."""
    return None if isinstance(value, jax.Array) and value.size > SMALL else on_host(value)


def on_host(value: Any) -> np.ndarray | None:
    """The numbers of `value`, however many, where NumPy reads them without a copy; else `None`."""
    return np.asarray(value) if in_host_memory(value) else None


def in_host_memory(value: Any) -> bool:
    """Whether the numbers of an array are there for NumPy to read without a transfer."""
    if not isinstance(value, jax.Array):
        return True
    if isinstance(value, Tracer) or jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return False
    return value.is_fully_addressable and all(device.platform == "cpu" for device in value.devices())


def outside_traces(name: str, *values: Any) -> None:
    """Refuse a call of a function of that name where a value is traced, or all that is computed, as inside `jit`."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((values, jnp.zeros(())))):
        raise TypeError(
            f"`{name}` must be called outside jit, vmap and grad, as it reads samples on the host, got a trace"
        )


def among(value: ArrayLike, count: int) -> jax.Array:
    """Which integers, known or not, are 0 … count − 1; what an index outside would select becomes NaN."""
    numbers = jnp.asarray(value).astype(int)  # a narrow dtype may not hold `count`
    return (numbers >= 0) & (numbers < count)


def concrete(value: Any) -> np.ndarray | None:
    """All numbers of `value`, copied from the device if need be; `None` where it is traced or on several hosts."""
    if isinstance(value, Tracer) or not getattr(value, "is_fully_addressable", True):
        return None
    return np.asarray(value)


def must(
    expected: str,
    fits: Callable[[Any], Any] = lambda value: True,
    *,
    right: Callable[[Any], Any] = lambda value: True,
    hint: Callable[[Any], str] = lambda value: "",
) -> Check:
    """A check: TypeError unless a value is of the right kind, ValueError, with a hint at the way on, unless it fits."""

    def check(name: str, value: Any) -> None:
        if not right(value):
            raise TypeError(f"`{name}` must be {expected}, got {describe(value)}")
        if not fits(value):
            raise ValueError(f"`{name}` must be {expected}, got {describe(value)}{hint(value)}")

    return check


def float_array(*shape: str, **least: int) -> Check:
    """A check for a floating-point array with one axis per name, some of a least size, after any others if `...`."""
    return _array("a floating-point array", jnp.floating, shape, least)


def integer_array(*shape: str, **least: int) -> Check:
    """A check for an array of integers, as `float_array`."""
    return _array("an array of integers", jnp.integer, shape, least)


def _array(what: str, kind: Any, shape: tuple[str, ...], least: dict[str, int]) -> Check:
    axes = [axis for axis in shape if axis != "..."]
    most = len(axes) if axes == [*shape] else np.inf
    bounds = " and ".join(f"{axis} >= {size}" for axis, size in least.items())

    def fits(value: Any) -> bool:
        sizes = dict(zip(reversed(axes), reversed(value.shape), strict=False))
        return len(axes) <= value.ndim <= most and all(sizes[axis] >= size for axis, size in least.items())

    return must(
        f"{what} of shape ({', '.join(shape)}){' with ' * bool(bounds)}{bounds}",
        fits,
        right=lambda value: isinstance(value, jax.Array | np.ndarray) and jnp.issubdtype(value.dtype, kind),
        hint=lambda value: ": map a batch with jax.vmap" if value.ndim > most else "",
    )


tokens = float_array("token", "feature", token=2)


def instance(*kinds: type) -> Check:
    """A check for a value of one of these types; a NumPy boolean counts as a boolean."""
    names = " or ".join("None" if kind is type(None) else _with_article(kind) for kind in kinds)
    return must(names, right=lambda value: isinstance(value, (*kinds, *[np.bool_] * (bool in kinds))))


def integer(low: int | None = 1, high: int | float = np.inf) -> Check:
    """A check for a Python integer (not a bool) from `low` to `high`."""
    ends = "" if low is None else f" >= {low}" if high == np.inf else f" from {low} to {high}"
    return must(
        f"an integer{ends}",
        lambda value: (low is None or value >= low) and value <= high,
        right=lambda value: isinstance(value, int | np.integer) and not isinstance(value, bool),
    )


def one_of(options: Iterable[Any]) -> Check:
    """A check that the value is one of a fixed set of names."""
    known = tuple(options)
    return must(
        f"one of {', '.join(map(repr, known))}",
        lambda value: any(value is option or value == option for option in known),
        hint=lambda value: perhaps(value, known),
    )


text = must("a string that is not empty", str.strip, right=lambda value: isinstance(value, str))
even = (integer(2), must("even", lambda value: value % 2 == 0))
function = must("a function", right=callable)
static_function = (function, must("hashable, for jit to know it", right=lambda value: isinstance(value, Hashable)))
integers = must(
    "an integer or an array of them",
    right=lambda value: jnp.issubdtype(getattr(value, "dtype", type(value)), jnp.integer),
)
random_key = must(
    "one typed key from jax.random.key",
    right=lambda value: (
        isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and not value.ndim
    ),
)


def floating_dtype(name: str, value: Any) -> None:
    """The name or type of real floating-point numbers; JAX has to hold a name, for a type it takes the next one."""
    try:
        floating = jnp.issubdtype(jnp.dtype(value), jnp.floating)
    except TypeError:
        floating = False
    if not floating:
        raise TypeError(f"`{name}` must be a floating-point dtype, got {value!r}")
    if isinstance(value, str) and jax.dtypes.canonicalize_dtype(value) != jnp.dtype(value):
        way = 'jax.config.update("jax_enable_x64", True)'
        raise ValueError(f"`{name}` must be a dtype that JAX holds, got {value!r}, which needs {way}")


_REAL = "a real number or an array of them"


@dataclasses.dataclass(frozen=True)
class Real:
    """A check for finite real numbers in an interval, none too large for the dtype in which it is computed with.

    A number inside, but on an end point that is left out once it is a float of the working dtype, is refused.

    Attributes:
        low: the least number.
        high: the largest.
        open_low: whether `low` itself is left out.
        open_high: whether `high` is.
        single: whether it must be one number, not an array of them.
    """

    low: int | float = -np.inf
    high: int | float = np.inf
    open_low: bool = False
    open_high: bool = False
    single: bool = False

    def __call__(self, name: str, value: Any) -> None:
        """Raise unless all numbers that can be looked at are in the interval, and so are the floats they become."""
        # Most arguments are plain numbers that single precision holds as well.
        plain = type(value) in (int, float) and (value == 0 or 1e-37 < abs(value) < 1e38)
        if plain and self.inside(value) and self.inside(np.float32(value), np.float32):
            return
        numbers = self.numbers(name, value)
        if numbers is not None:
            dtype = working_dtype(common_dtype(value))
            floats, within = held(name, numbers, dtype), self.inside(numbers)
            refused = ~(within & self.inside(floats, dtype.type))
            if np.any(refused):
                number, kept, fits = (each[refused][0] for each in (numbers, floats, within))
                got = f"{float(number)!r}, which is {kept:g} in {dtype}" if fits else f"{number:g}"
                raise ValueError(f"`{name}` must be {self._bounds()}, got {got}")
        if self.single and np.ndim(value):
            raise ValueError(f"`{name}` must be one number, got {describe(value)}")

    def numbers(self, name: str, value: Any) -> np.ndarray | None:
        """The numbers, if finite, or `None` where a look would cost something."""
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            _real_dtype(name, value)
            numbers = at_hand(value)
        else:
            numbers = _of_python(name, value)
        if numbers is None:
            return None
        numbers = numbers if numbers.dtype == np.float32 else numbers.astype(np.float64)
        if not np.all(np.isfinite(numbers)):
            raise ValueError(f"`{name}` must be finite, got {describe(value)}")
        return numbers

    def inside(self, numbers: Any, float_type: Any = float) -> Any:
        """Which numbers are in the interval, whose end points are floats of a type."""
        low, high = float_type(self.low), float_type(self.high)
        above = numbers > low if self.open_low else numbers >= low
        return above & (numbers < high if self.open_high else numbers <= high)

    def nan_outside(self, value: jax.Array, dtype: Any) -> jax.Array:
        """Unknown numbers, with NaN where they leave the interval; integers become floats of the dtype for that."""
        if not self._bounds():
            return value
        floats = value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(dtype)
        fits = True if floats is value else jnp.isfinite(floats)
        return jnp.where(self.inside(floats) & fits, floats, jnp.asarray(jnp.nan, floats.dtype))

    def _bounds(self) -> str:
        above, below = ">" if self.open_low else ">=", "<" if self.open_high else "<="
        ends = ((above, self.low), (below, self.high))
        return " and ".join(f"{sign} {end:g}" for sign, end in ends if np.isfinite(end))


real, bounded, positive = Real(), Real, Real(0, open_low=True)


def scalar(check: Real) -> Real:
    """The check for one number, not an array of them."""
    return dataclasses.replace(check, single=True)


def _real_dtype(name: str, value: Any) -> None:
    kind = value.dtype
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"`{name}` must be {_REAL}, got a masked array: give its numbers with `.filled(…)`")
    if not jnp.issubdtype(kind, jnp.number) or jnp.issubdtype(kind, jnp.complexfloating) or kind == np.longdouble:
        raise TypeError(f"`{name}` must be {_REAL}, got {describe(value)}")


def _of_python(name: str, value: Any) -> np.ndarray:
    """Python's numbers and lists of them as a NumPy array; an integer too long for a float is ∞."""
    if not isinstance(value, int | float | list | tuple) or isinstance(value, bool):
        raise TypeError(f"`{name}` must be {_REAL}, got {describe(value)}")
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
        raise TypeError(f"`{name}` must be {_REAL}, got a list with traced values: stack them with jnp.stack")
    try:
        numbers = np.asarray(value)
        if numbers.dtype == object and all(type(leaf) in (int, float) for leaf in numbers.flat):
            numbers = numbers.astype(np.float64)
    except ValueError:
        raise ValueError(f"`{name}` must be {_REAL}, got rows of different lengths: {describe(value)}") from None
    except OverflowError:  # an integer past float64
        return np.asarray(np.inf)
    if numbers.dtype.kind not in "iuf":
        raise TypeError(f"`{name}` must be {_REAL}, got {describe(value)}")
    return numbers
