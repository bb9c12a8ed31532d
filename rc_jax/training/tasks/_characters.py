"""Text that every Python carries, as symbols: the help topics of its own documentation."""

import hashlib
from collections import Counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from rc_jax._numerics import arguments


class Characters(NamedTuple):
    """A text as symbols, in a part to train on and a part held out.

    Symbol i is `symbols[i]`; the symbol `len(symbols)` stands for every other character. Python's versions differ in
    the text: `length` (characters) and `digest` (the first 16 hexadecimal digits of SHA-256) identify it.
    """

    train: Int[Array, " symbol"]
    test: Int[Array, " held_out"]
    symbols: str
    length: int
    digest: str


@arguments.guard(vocabulary=arguments.integer(2), held_out=arguments.bounded(0, 1, open_low=True, open_high=True))
def characters(*, vocabulary: int = 64, held_out: float = 0.1) -> Characters:
    """The help topics of this Python (`pydoc_data.topics`) as a sequence of symbols.

    The topics are joined in the order of their names. The commonest `vocabulary` − 1 characters are symbols 0, 1, …,
    the commonest first and equally common ones in the order of their code. All others are the last symbol.

    Args:
        vocabulary: number of symbols, at least 2. There may be fewer different characters than that.
        held_out: share of the text, at its end, that is not to be trained on.

    Raises:
        ImportError: this Python came without its help topics.

    Source: the Python documentation, under the licence of Python itself.

    Example:
        >>> from rc_jax.training import tasks
        >>> text = tasks.characters(vocabulary=40)
        >>> text.symbols[:2], len(text.symbols), int(text.train.max())
        (' e', 39, 39)
    """
    text = _topics()
    counts = Counter(text)
    common = sorted(counts, key=lambda character: (-counts[character], character))[: vocabulary - 1]
    index = {character: symbol for symbol, character in enumerate(common)}
    whole = np.fromiter((index.get(character, len(common)) for character in text), np.int32, len(text))
    end = len(text) - max(1, round(len(text) * held_out))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Characters(jnp.asarray(whole[:end]), jnp.asarray(whole[end:]), "".join(common), len(text), digest)


@arguments.guard()
def windows(
    key: Key[Array, ""], text: Int[Array, " symbol"], count: int, tokens: int
) -> tuple[Int[Array, "window token"], Int[Array, "window token"]]:
    """Draw pieces of a text, and for each of their symbols the one that follows it.

    Args:
        key: a typed key; the same key gives the same pieces.
        text: symbols.
        count: number of pieces.
        tokens: symbols in a piece.

    Returns:
        The pieces, and the symbols to be predicted.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from rc_jax.training import tasks
        >>> x, following = tasks.windows(jax.random.key(0), jnp.arange(100), 2, 5)
        >>> bool((following == x + 1).all())
        True
    """
    if text.shape[0] <= tokens:
        raise ValueError(f"`text` must have more symbols than a piece of {tokens}, got {text.shape[0]}")
    start = jax.random.randint(key, (count,), 0, text.shape[0] - tokens)
    pieces = text[start[:, None] + jnp.arange(tokens + 1)[None, :]]
    return pieces[:, :-1], pieces[:, 1:]


def _topics() -> str:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ImportError("the text is Python's own help topics (pydoc_data), which this Python lacks") from error
    return "\n".join(topics[name] for name in sorted(topics))
