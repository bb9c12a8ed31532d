"""Tasks on sequences of random symbols: sorting, and labels that must be memorised because no rule gives them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Integer, Key

from rc_jax._numerics import arguments


@arguments.guard()
def sorting(
    key: Key[Array, ""], count: int, *, length: int = 8, symbols: int = 10
) -> tuple[Integer[Array, "sequence token"], Integer[Array, "sequence token"]]:
    """Draw sequences of random symbols, repeats allowed, and the same symbols in ascending order.

    The label of a token depends on its position and on all symbols, not on its own. The position alone is informative:
    the first answer is often 0.

    Args:
        key: a typed key; the same key gives the same sequences.
        count: number of sequences.
        length: symbols in each.
        symbols: size of the alphabet; symbols are independent and equally likely.

    Returns:
        Tokens 0 … symbols − 1 and labels 0 … symbols − 1, both of shape (count, length).

    Source: the task of Dong, Cordonnier & Loukas 2021, section 4, with the sizes of their released code.

    Example:
        >>> import jax
        >>> tokens, labels = sorting(jax.random.key(0), 1)
        >>> sorted(tokens[0].tolist()) == labels[0].tolist()
        True
    """
    tokens = jax.random.randint(key, (count, length), 0, symbols)
    return tokens, jnp.sort(tokens, axis=1)


@arguments.guard()
def memorisation(
    key: Key[Array, ""], count: int, *, length: int = 64, symbols: int = 256
) -> tuple[Integer[Array, "sequence token"], Integer[Array, "sequence token"]]:
    """Draw sequences of random symbols, every token with a random label of its own, 0 or 1.

    Labels say nothing about other sequences, so there is no test set. Where a symbol is rare at its position, symbol
    and position suffice, without any other token. With the default sizes and 500 sequences, the commonest label of each
    (symbol, position) is right in about three quarters of cases, that of each symbol in little more than half.

    Args:
        key: a typed key; the same key gives the same sequences and labels.
        count: number of sequences.
        length: tokens in each.
        symbols: size of the vocabulary; symbols are independent and equally likely.

    Returns:
        Tokens 0 … symbols − 1 and labels 0 or 1, both of shape (count, length).

    Source: the task of Dong, Cordonnier & Loukas 2021, section 4, whose tokens come from English sentences. These are
        random.

    Example:
        >>> import jax
        >>> tokens, labels = memorisation(jax.random.key(0), 3, length=5)
        >>> tokens.shape, labels.shape, int(labels.max())
        ((3, 5), (3, 5), 1)
    """
    tokens = jax.random.randint(jax.random.fold_in(key, 0), (count, length), 0, symbols)
    return tokens, jax.random.randint(jax.random.fold_in(key, 1), (count, length), 0, 2)
