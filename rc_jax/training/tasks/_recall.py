"""Associative recall: pairs of a key and a value, then one of the keys; the answer is its value."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Integer, Key

from rc_jax._numerics import arguments


class Pairs(NamedTuple):
    """Sequences of pairs; `place` in [0, 1) says which pair is asked for, from the last (0) to the first."""

    keys: Integer[Array, "sequence pair"]
    values: Integer[Array, "sequence pair"]
    place: Float[Array, " sequence"]


class Question(NamedTuple):
    """The index of the pair that is asked for, its key (the question) and its value (the answer)."""

    pair: Integer[Array, " sequence"]
    key: Integer[Array, " sequence"]
    answer: Integer[Array, " sequence"]


@arguments.guard()
def recall(key: Key[Array, ""], count: int, *, pairs: int = 8, keys: int = 64, values: int = 16) -> Pairs:
    """Draw sequences of random pairs in which no key occurs twice; `recall_question` asks about them.

    Keys are drawn without replacement, and every order is equally likely. Values are independent and equally likely, so
    a guess is right once in `values` times.

    Args:
        key: a typed key; the same key gives the same sequences.
        count: number of sequences.
        pairs: in each sequence.
        keys: how many keys there are.
        values: how many values there are.

    Returns:
        Keys 0 … keys − 1 and values 0 … values − 1, both of shape (count, pairs), and places of shape (count,).

    Example:
        >>> import jax
        >>> drawn = recall(jax.random.key(0), 2, pairs=4, keys=4)
        >>> sorted(drawn.keys[1].tolist()), drawn.values.shape
        ([0, 1, 2, 3], (2, 4))
    """
    if keys < pairs:
        raise ValueError(f"`keys` must be at least the {pairs} pairs, because no key occurs twice, got {keys}")
    return _draw(key, count, pairs, keys, values)


@functools.partial(jax.jit, static_argnames=("count", "pairs", "keys", "values"))
def _draw(key: Array, count: int, pairs: int, keys: int, values: int) -> Pairs:
    drawn = jax.random.uniform(key, (count, keys + pairs + 1), jnp.float32)  # one stream: less to compile
    order = jax.lax.top_k(drawn[:, :keys], pairs)[1]
    labels = jnp.floor(drawn[:, keys:-1] * values).astype(jnp.int32)
    return Pairs(order, labels, drawn[:, -1])


def _check_length(length: ArrayLike | None, pairs: int) -> None:
    if length is None:
        return
    arguments.scalar(arguments.bounded(1, pairs))("length", length)
    if not jnp.issubdtype(jnp.asarray(length).dtype, jnp.integer):
        raise TypeError(f"`length` must be an integer, got {arguments.describe(length)}")


@arguments.guard()
def recall_question(drawn: Pairs, *, length: ArrayLike | None = None) -> Question:
    """Ask for one of the last `length` pairs of each sequence.

    The pair is ⌊place · length⌋ before the last one. Each of the `length` pairs is equally likely, and the same
    sequences serve every length.

    Args:
        drawn: from `recall`.
        length: a number of pairs, 1 … pairs; may be traced. All of them where it is not given.

    Example:
        >>> import jax
        >>> drawn = recall(jax.random.key(0), 3)
        >>> asked = recall_question(drawn, length=1)
        >>> (asked.answer == drawn.values[:, -1]).tolist(), (asked.key == drawn.keys[:, -1]).tolist()
        ([True, True, True], [True, True, True])
    """
    pairs = drawn.keys.shape[1]
    _check_length(length, pairs)
    count = jnp.asarray(pairs if length is None else length)
    back = jnp.floor(drawn.place * count.astype(drawn.place.dtype)).astype(jnp.int32)
    pair = pairs - 1 - jnp.minimum(back, count.astype(jnp.int32) - 1)  # rounding must not reach one pair too far
    rows = jnp.arange(len(pair))
    return Question(pair, drawn.keys[rows, pair], drawn.values[rows, pair])


@arguments.guard()
def recall_mask(pairs: int, *, length: ArrayLike | None = None) -> Bool[Array, "token token"]:
    """The attention mask of `pairs` tokens and a question: every token sees the last `length` pairs.

    The question does not see itself, because it has its own key and no value. A pair always sees itself, so that no row
    is empty. With one layer only the question's row is read.

    Args:
        pairs: tokens before the question.
        length: as in `recall_question`; may be traced.

    Example:
        >>> recall_mask(3, length=2).astype(int).tolist()
        [[1, 1, 1, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 1, 0]]
    """
    _check_length(length, pairs)
    token = jnp.arange(pairs + 1)
    is_pair = token < pairs
    seen = is_pair & (token >= pairs - (pairs if length is None else jnp.asarray(length)))
    return seen[None] | (jnp.eye(pairs + 1, dtype=bool) & is_pair[:, None])
