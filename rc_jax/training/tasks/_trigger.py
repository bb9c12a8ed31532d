"""Averaging on a trigger: one token of a sequence asks for the mean of all tokens so far, the others for zero."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Key

from rc_jax._numerics import arguments


class Triggered(NamedTuple):
    """Sequences of vectors, what is asked of every token, and the index of the trigger."""

    tokens: Float[Array, "sequence token feature"]
    targets: Float[Array, "sequence token feature"]
    trigger: Integer[Array, " sequence"]


@arguments.guard(tokens=arguments.integer(3), features=arguments.integer(4))
def trigger(key: Key[Array, ""], count: int, *, tokens: int = 16, features: int = 16) -> Triggered:
    """Draw sequences in which one token asks for an average (Ran-Milo 2026, as in the code of the paper).

    Feature 0 is 1 for the first token alone, and feature 1 for the trigger alone. Features 2 … features − 2 are uniform
    in (−1, 1), except that the first token has none. The last feature is 1 for all tokens but these two. The trigger is
    at 2 … tokens − 1, each equally likely. Its target is the mean of tokens 1 … trigger, itself included; every other
    target is 0.

    Args:
        key: a typed key; the same key gives the same sequences.
        count: number of sequences.
        tokens: in each sequence, at least 3.
        features: of a token, at least 4.

    Returns:
        Tokens and targets of shape (count, tokens, features), and triggers of shape (count,).

    Source: https://arxiv.org/abs/2603.11487

    Example:
        >>> import jax
        >>> drawn = trigger(jax.random.key(0), 3, tokens=6, features=5)
        >>> drawn.tokens[:, 0].tolist()[0], int(drawn.tokens[0, :, 1].argmax()) == int(drawn.trigger[0])
        ([1.0, 0.0, 0.0, 0.0, 0.0], True)
    """
    return _draw(key, count, tokens, features)


@functools.partial(jax.jit, static_argnames=("count", "tokens", "features"))
def _draw(key: Array, count: int, tokens: int, features: int) -> Triggered:
    # One stream: the content of all tokens but the first, and the place of the trigger.
    drawn = jax.random.uniform(key, (count, (tokens - 1) * (features - 3) + 1))
    place = 2 + jnp.floor(drawn[:, -1] * (tokens - 2)).astype(jnp.int32)
    place = jnp.minimum(place, tokens - 1)  # rounding must not reach one token too far
    content = 2 * drawn[:, :-1].reshape(count, tokens - 1, features - 3) - 1
    content = jnp.concatenate([jnp.zeros((count, 1, features - 3), content.dtype), content], axis=1)

    # The three markers, and the mean over the tokens from the second to the trigger.
    index = jnp.arange(tokens)[None]
    first, asks = jnp.broadcast_to(index == 0, (count, tokens)), index == place[:, None]
    marks = [mark.astype(content.dtype)[..., None] for mark in (first, asks, ~first & ~asks)]
    x = jnp.concatenate([*marks[:2], content, marks[2]], axis=-1)
    averaged = ((index > 0) & (index <= place[:, None])).astype(content.dtype) / place[:, None].astype(content.dtype)
    mean = jnp.einsum("sn,snd->sd", averaged, x, precision="highest")
    return Triggered(x, marks[1] * mean[:, None], place)
