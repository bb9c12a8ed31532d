"""The root of a rising function: Newton's steps kept inside a bracket that the steps themselves find."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

MAX_STEPS = 60
LONGEST_STEP = 2.0


def rising_root(function: Callable[[jax.Array], jax.Array], start: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Solve function(u) = 0 elementwise for a function that rises through zero, and say where it succeeded.

    Each element's bracket starts open and closes as signs are seen; a Newton step that leaves it is replaced by its
    middle. An element stops after a step shorter than the square root of rounding: Newton has then doubled its digits.
    """
    enough = 0.1 * float(jnp.finfo(start.dtype).eps) ** 0.5

    def unfinished(state: tuple) -> jax.Array:
        _, _, _, done, count = state
        return (count < MAX_STEPS) & ~done.all()

    def step(state: tuple) -> tuple:
        u, low, high, done, count = state
        value, slope = jax.jvp(function, (u,), (jnp.ones_like(u),))
        low, high = jnp.where(value < 0, u, low), jnp.where(value < 0, high, u)
        move = jnp.clip(-value / slope, -LONGEST_STEP, LONGEST_STEP)
        new = jnp.where(value == 0, u, u + move)
        new = jnp.where((new >= low) & (new <= high), new, (low + high) / 2)
        finished = done | (jnp.abs(new - u) < enough)
        return jnp.where(done, u, new), low, high, finished, count + 1

    infinite = jnp.full_like(start, jnp.inf)
    state = (start, -infinite, infinite, jnp.zeros(start.shape, bool), jnp.zeros((), jnp.int32))
    u, _, _, done, _ = jax.lax.while_loop(unfinished, step, state)
    return u, done & jnp.isfinite(u)
