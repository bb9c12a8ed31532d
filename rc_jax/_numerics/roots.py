"""The root of a rising function: Newton's or secant steps kept inside a bracket that the steps themselves find."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

MAX_STEPS = 60
LONGEST_STEP = 2.0
Root = tuple[jax.Array, jax.Array]


def implicit_root(
    function: Callable[..., jax.Array],
    start: jax.Array,
    *parameters: jax.Array | None,
    search: Callable[..., Root] | None = None,
) -> Root:
    """Solve function(u, *parameters) = 0 elementwise, with the derivatives of u in the parameters.

    Returns the root and, elementwise, whether the search succeeded. `search(start, *parameters)` finds both; it is
    `rising_root` of the function by default. Both functions must be defined at module level, because they are static
    arguments. The start has no derivative.
    """
    return _implicit_root(function, search, start, *parameters)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _implicit_root(
    function: Callable[..., jax.Array],
    search: Callable[..., Root] | None,
    start: jax.Array,
    *parameters: jax.Array | None,
) -> Root:
    if search is not None:
        return search(start, *parameters)
    return rising_root(lambda u: function(u, *parameters), start)


def _implicit_root_jvp(
    function: Callable[..., jax.Array],
    search: Callable[..., Root] | None,
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Implicit differentiation of h(u, θ) = 0: du = −(∂h/∂θ dθ)/(∂h/∂u), over the parameters with a tangent only."""
    start, *parameters = primals
    u, converged = _implicit_root(function, search, start, *parameters)
    moving = [i for i, t in enumerate(tangents[1:]) if t is not None and not isinstance(t, SymbolicZero)]

    def moved(*values: jax.Array) -> jax.Array:
        new = dict(zip(moving, values, strict=True))
        return function(u, *(new.get(i, parameter) for i, parameter in enumerate(parameters)))

    slope = jax.jvp(lambda u: function(u, *parameters), (u,), (jnp.ones_like(u),))[1]
    change = jnp.zeros_like(u)
    if moving:
        change = jax.jvp(moved, tuple(parameters[i] for i in moving), tuple(tangents[1 + i] for i in moving))[1]
    return (u, converged), (-change / slope, np.zeros(converged.shape, jax.dtypes.float0))


_implicit_root.defjvp(_implicit_root_jvp, symbolic_zeros=True)


def rising_root(function: Callable[[jax.Array], jax.Array], start: jax.Array) -> Root:
    """Solve function(u) = 0 elementwise for a function that rises through zero, and say where it succeeded.

    Each element's bracket starts as the whole line, and each value moves the end that has its sign. An element stops
    after a step shorter than a tenth of the square root of rounding: Newton has then doubled its digits.
    """
    enough = 0.1 * float(jnp.finfo(start.dtype).eps) ** 0.5

    def unfinished(state: tuple[jax.Array, ...]) -> jax.Array:
        _, _, _, done, count = state
        return (count < MAX_STEPS) & ~done.all()

    def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        u, low, high, done, count = state
        # Newton's step inside the bracket; elements that are done stay.
        value, slope = jax.jvp(function, (u,), (jnp.ones_like(u),))
        new, low, high = bracketed(u, value, slope, low, high)
        finished = done | (jnp.abs(new - u) < enough)
        return jnp.where(done, u, new), low, high, finished, count + 1

    infinite = jnp.full_like(start, jnp.inf)
    state = (start, -infinite, infinite, jnp.zeros(start.shape, bool), jnp.zeros((), jnp.int32))
    u, _, _, done, _ = jax.lax.while_loop(unfinished, step, state)
    return u, done & jnp.isfinite(u)


def rising_root_by_secants(
    function: Callable[[jax.Array], jax.Array], start: jax.Array, slope: jax.Array, eps: float | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`rising_root` by secants: the root, the slope there and where it succeeded; `slope` is a guess at the start.

    The function is not differentiated. The error of a secant step is about the product of the last two steps, if the
    curvature of the function is moderate. An element stops when a tenth of `eps` (rounding, where it is None) exceeds
    that product. The first step, whose slope is a guess, must itself be that short.
    """
    rounding = float(jnp.finfo(start.dtype).eps)
    eps = rounding if eps is None else eps

    def unfinished(state: tuple[jax.Array, ...]) -> jax.Array:
        done, count = state[-2:]
        return (count < MAX_STEPS) & ~done.all()

    def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        u, value, slope, move, low, high, done, count = state
        before, value = value, function(u)
        # the slope between the last two points, unless they are so close that rounding decides it
        secant = ~done & (count > 0) & (jnp.abs(move) > 64 * rounding)
        slope = jnp.where(secant, (value - before) / move, slope)
        new, low, high = bracketed(u, value, slope, low, high)
        last, move = jnp.where(count == 0, 1, move), new - u
        small = (jnp.abs(move * last) < 0.1 * eps) | (jnp.abs(move) < 2 * rounding) | jnp.isnan(value)
        return jnp.where(done, u, new), value, slope, move, low, high, done | small, count + 1

    infinite = jnp.full_like(start, jnp.inf)
    zero, false = jnp.zeros_like(start), jnp.zeros(start.shape, bool)
    state = (start, zero, slope, zero, -infinite, infinite, false, jnp.zeros((), jnp.int32))
    u, _, slope, *_, done, _ = jax.lax.while_loop(unfinished, step, state)
    return u, slope, done & jnp.isfinite(u)


def falling_root_by_halves(
    function: Callable[[jax.Array], jax.Array], low: jax.Array, high: jax.Array, times: int
) -> jax.Array:
    """The middle of every bracket from `low` to `high` after it was halved so many times about the sign's change."""

    def halve(_: int | jax.Array, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        middle = (ends[0] + ends[1]) / 2
        positive = function(middle) > 0
        return jnp.where(positive, middle, ends[0]), jnp.where(positive, ends[1], middle)

    low, high = jax.lax.fori_loop(0, times, halve, (low, high))
    return (low + high) / 2


def bracketed(
    u: jax.Array, value: jax.Array, slope: jax.Array, low: jax.Array, high: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The next point and bracket: Newton's step, cut to `LONGEST_STEP`; the bracket's middle where it leaves that."""
    low, high = jnp.where(value < 0, u, low), jnp.where(value < 0, high, u)
    new = jnp.where(value == 0, u, u + jnp.clip(-value / slope, -LONGEST_STEP, LONGEST_STEP))
    return jnp.where((new >= low) & (new <= high), new, (low + high) / 2), low, high
