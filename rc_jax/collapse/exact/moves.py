"""Moved roundings: what tells a number that is known from one whose digits are lost.

A computation is done twice, with its numbers moved by a few roundings one way and by twice as many the other way. Where
digits are lost the two results differ: a number that is made of the moves alone is twice as large in one of them, and a
choice that hangs on a rounding falls the other way. This is Monte-Carlo arithmetic (Parker 1997; Vignes 1993 has it as
CESTAC) with two samples. Moves stand where sums are made: before and after every product with a matrix.

Two kinds of move are enough. A *feature* of all tokens moves together, which is what rounding the rows or columns of a
weight matrix does. A *token* moves by its own amounts, which are made of its bits, so equal tokens move alike and stay
equal. No number is compared with another one for this.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, UInt

from rc_jax.collapse.exact.scaled import Scaled

COPY = "copy"  # the axis of the computations
# How far the two computations move, in units of `SIZE` roundings. In their average the first order of the moves is 0.
AMOUNTS = (1.0, -2.0)
AVERAGE = (2 / 3, 1 / 3)
SIZE = 2.0


class Moves(NamedTuple):
    """How far the numbers of one computation move; nothing moves where `amount` is None.

    `tokens` holds numbers of variance 1, the same for equal tokens, and `equal` the first token that each token is
    equal to, where that is asked for. Numbers move inside `jax.vmap(…, axis_name=COPY)` over the amounts.
    """

    amount: Float[Array, ""] | None = None
    tokens: Float[Array, "token feature"] | None = None
    equal: Int[Array, " token"] | None = None

    def features(self, x: Array, place: int) -> Array:
        """Entries times 1 + δ, with a δ for each index of the last axis: the columns of a matrix have moved."""
        if self.amount is None:
            return x
        return x * (1 + self._rounding(x.dtype) * _pattern_of(x, place))

    def entries(self, x: Float[Array, "token feature"], place: int) -> Array:
        """Entries times 1 + δ, with a δ of each token's own and one of each feature."""
        if self.amount is None or self.tokens is None:
            return x
        return x * (1 + self._rounding(x.dtype) * self.tokens * _pattern_of(x, place))

    def columns(self, scores: Float[Array, "head token column"]) -> Array:
        """Scores times 1 + δ, with a δ for each column: scores that a rounding has made equal move apart."""
        if self.amount is None or self.tokens is None or scores.shape[-1] != self.tokens.shape[0]:
            return scores
        return scores * (1 + self._rounding(scores.dtype) * self.tokens[:, 0][None, None])

    def scaled(self, x: Scaled, place: int) -> Scaled:
        """The features of numbers with a size of their own."""
        return x.map(lambda rows: self.features(rows, place))

    def tie(self, x: Array) -> Array:
        """Columns of equal tokens with the same numbers to the last bit, and derivatives of their own."""
        if self.equal is None or x.shape[-1] != self.equal.shape[0]:
            return x
        return x + jax.lax.stop_gradient(jnp.take(x, self.equal, axis=-1) - x)

    def differ(self, chosen: Bool[Array, "head token column"]) -> Bool[Array, "head 1 1"]:
        """True for heads in which the computations have chosen differently."""
        if self.amount is None:
            return jnp.zeros((chosen.shape[0], 1, 1), bool)
        every = jax.lax.all_gather(chosen, COPY)
        return jnp.any(every != every[:1], axis=(0, 2, 3))[:, None, None]

    def exp(self, logs: Array) -> Array:
        """e^logs; what underflows becomes the smallest normal number where numbers move, and only e^(−∞) is 0."""
        powers = jnp.exp(logs)
        if self.amount is None:
            return powers
        limits = jnp.finfo(powers.dtype)
        least = jnp.abs(self.amount).astype(powers.dtype) * limits.tiny
        return jnp.where(logs < limits.min, powers, jnp.maximum(powers, least))

    def _rounding(self, dtype: DTypeLike) -> Array:
        assert self.amount is not None
        return self.amount.astype(dtype) * jnp.asarray(SIZE * float(jnp.finfo(dtype).eps), dtype)


STILL = Moves()


def _pattern_of(x: Array, place: int) -> Array:
    """A number for each index of the last axis, broadcast over the others."""
    return jnp.asarray(_pattern(place, x.shape[-1]).reshape((1,) * (x.ndim - 1) + (-1,)), x.dtype)


@functools.cache
def _pattern(place: int, size: int) -> np.ndarray:
    """Numbers of variance 1 between −√3 and √3, others at every place."""
    return np.random.default_rng((place, size)).uniform(-(3**0.5), 3**0.5, size)


def of_tokens(
    x: Float[Array, "token feature"], places: UInt[Array, "token column"] | None = None
) -> Float[Array, "token feature"]:
    """Numbers of variance 1 for every entry of the tokens, made of each token's bits and of what else tells it apart.

    No pair of tokens is compared: tokens that are equal get equal numbers.
    """
    x = jax.lax.stop_gradient(x)
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0, x), jnp.uint16 if x.itemsize == 2 else jnp.uint32)
    bits = bits.reshape(x.shape[0], -1).astype(jnp.uint32)
    bits = bits if places is None else jnp.concatenate([bits, places], axis=1)
    columns, features = (jnp.arange(size, dtype=jnp.uint32)[None] for size in (bits.shape[1], x.shape[1]))
    token = jnp.sum(_hashed(bits + _hashed(columns)), axis=1, keepdims=True, dtype=jnp.uint32)
    # The upper half of the bits becomes a number of variance 1 between −√3 and √3.
    uniform = (_hashed(token + _hashed(features)) >> 16).astype(jnp.float32) / 2**15 - 1
    return (3**0.5 * uniform).astype(x.dtype)


def _hashed(x: UInt[Array, "*shape"]) -> UInt[Array, "*shape"]:
    """Irregular bits, a different pattern for every pattern (the finalizer of MurmurHash3, Appleby 2011)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
