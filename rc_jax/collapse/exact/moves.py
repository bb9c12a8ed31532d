"""Moved roundings: what tells a number that is known from one whose digits are lost.

A computation is done as it is, and twice with its numbers moved by a few roundings. Where digits are lost the results
differ, in their size or in the direction of the tokens' differences. This is Monte-Carlo arithmetic (Parker 1997;
Vignes 1993 has it as CESTAC) with two samples beside the result. Moves stand where sums are made: before and after
every product with a matrix. Results that have lost all but a few units of the last digit agree by chance: of 6052
ordinary random networks one moved computation left 0 to 3 wrong ones unseen, and 4 of 27 that were chosen for it; two
left none. Two that are each other's opposite see less: an even function makes the same of both.

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
from rc_jax.collapse.exact.state import MeanResidual

COPY = "copy"  # the axis of the computations
AMOUNTS = (0.0, 2.0, -3.0)  # how far the computations move: the result is that of the first one
FARTHEST = 4  # roundings that a number moves at most, times an amount
LOST = 16  # times as far move tokens of which nothing but a rounding is left
_FEW = 1024  # roundings of a token's difference from the mean, below which nothing but a rounding is left of both


class Moves(NamedTuple):
    """How far the numbers of one computation move; nothing moves where `amount` is None.

    `tokens` holds a number of roundings for every entry of the tokens, the same for equal tokens, and `equal` the first
    token that each token is equal to, where that is asked for. Numbers move inside `jax.vmap(…, axis_name=COPY)` over
    the amounts.
    """

    amount: Float[Array, ""] | None = None
    tokens: Float[Array, "token feature"] | None = None
    equal: Int[Array, " token"] | None = None

    def features(self, x: Array, place: int) -> Array:
        """Entries times 1 + δ, with a δ for each index of the last axis: the columns of a matrix have moved."""
        if self.amount is None:
            return x
        return x * (1 + self._rounding(x.dtype) * _pattern_of(x, place))

    def mean(self, x: Float[Array, " feature"], place: int) -> Float[Array, " feature"]:
        """Each entry's neighbour above or below, 0 for 0: the mean is a rounded number, and no sum follows."""
        if self.amount is None:
            return x
        # ¾ to 3/2 of the distance to a neighbour, to which the sum rounds (or to the next but one, below a power of
        # two). `nextafter` is compiled longer.
        step = 0.75 * float(jnp.finfo(x.dtype).eps) * jnp.sign(_pattern_of(x, place)) * jnp.sign(self.amount)
        return x + jax.lax.stop_gradient(x * step.astype(x.dtype))

    def of_heads(self, mean: Float[Array, "head width"], place: int) -> Float[Array, "head width"]:
        """Entries times 1 + δ, with a δ for each feature of each head."""
        return mean if self.amount is None else mean * self._factor(mean, place)

    def columns_of_heads(self, mean: Float[Array, "head width"], rest: Scaled, place: int) -> tuple[Array, Scaled]:
        """A mean and rows of every head, moved by the same δ."""
        if self.amount is None:
            return mean, rest
        factor = self._factor(mean, place)
        return mean * factor, rest.map(lambda rows: rows * factor[:, None])

    def own_of_heads(self, rest: Scaled, place: int) -> Scaled:
        """Rows of every head times 1 + δ, with a δ of each token's own in each feature."""
        if self.amount is None or self.tokens is None or rest.rows.shape[1] != self.tokens.shape[0]:
            return rest
        steps = self.tokens[None, :, :1] * jnp.sign(_pattern_of(rest.rows, place))
        return rest.map(lambda rows: rows * (1 + self._rounding(rows.dtype) * steps))

    def _factor(self, mean: Array, place: int) -> Array:
        steps = jnp.asarray(_pattern(place, mean.size).reshape(mean.shape), mean.dtype)
        return 1 + self._rounding(mean.dtype) * steps

    def entries(
        self, x: Float[Array, "token feature"], place: int, lost: Bool[Array, "token 1"] | None = None
    ) -> Float[Array, "token feature"]:
        """Entries times 1 + δ, with a δ of each token's own in each feature.

        A token of which nothing but a rounding is left moves in all computations, farther, and in those that move not
        to the side of the others: a choice that it makes falls both ways.
        """
        if self.amount is None or self.tokens is None:
            return x
        steps = self._rounding(x.dtype) * self.tokens * jnp.sign(_pattern_of(x, place))
        if lost is not None and x.itemsize > 2:  # so many roundings of 16 bits are a part of the number itself
            size = jnp.where(self.amount != 0, jnp.roll(jnp.abs(self.tokens), 1, axis=-1), -jnp.abs(self.tokens))
            other = LOST * float(jnp.finfo(x.dtype).eps) * jnp.sign(self.tokens) * size
            steps = jnp.where(lost, other, steps)
        return x * (1 + steps)

    def columns(self, scores: Float[Array, "head token column"]) -> Array:
        """Scores times 1 + δ, with a δ for each column: scores that a rounding has made equal move apart."""
        steps = self._of_columns(scores)
        return scores if steps is None else scores * (1 + steps)

    def beside(self, scores: Float[Array, "head token column"]) -> Array:
        """Scores moved by a few roundings of the largest of them, or of 1; the same where nothing moves."""
        steps = self._of_columns(scores)
        if steps is None:
            return scores
        return scores + 2 * steps * jax.lax.stop_gradient(jnp.maximum(jnp.max(jnp.abs(scores)), 1))

    def _of_columns(self, scores: Array) -> Array | None:
        if self.amount is None or self.tokens is None or scores.shape[-1] != self.tokens.shape[0]:
            return None
        return self._rounding(scores.dtype) * self.tokens[:, 0][None, None]

    def sums(self, x: Float[Array, "head token column"], size: Array, place: int) -> Array:
        """Entries x + δ·size, with a δ of each row and column: x is a sum of numbers of that size."""
        if self.amount is None or self.tokens is None:
            return x
        return x + self._rounding(x.dtype) * size * self.tokens[None, :, :1] * jnp.sign(_pattern_of(x, place))

    def scaled(self, x: Scaled, place: int) -> Scaled:
        """The features of numbers with a size of their own."""
        return x.map(lambda rows: self.features(rows, place))

    def tie(self, x: Array) -> Array:
        """Columns of equal tokens with the same numbers to the last bit, and derivatives of their own."""
        if self.equal is None or x.shape[-1] != self.equal.shape[0]:
            return x
        return x + jax.lax.stop_gradient(jnp.take(x, self.equal, axis=-1) - x)

    def differ(
        self, chosen: Bool[Array, "head token column"], scores: Float[Array, "head token column"]
    ) -> Bool[Array, "head 1 1"]:
        """True for heads in which the computations choose differently, or where the gap that decides has moved by half.

        The gap is that of the smallest score among the chosen and the largest among the others.
        """
        if self.amount is None:
            return jnp.zeros((chosen.shape[0], 1, 1), bool)
        every = jax.lax.all_gather(scores, COPY)
        least = jnp.min(jnp.where(chosen, every, jnp.inf), axis=-1)
        gaps = least - jnp.max(jnp.where(chosen, -jnp.inf, every), axis=-1)
        widest, narrowest = jnp.max(gaps, axis=0), jnp.min(gaps, axis=0)
        mine = jnp.any(2 * narrowest < widest, axis=-1)[:, None, None]
        return jax.lax.pmax(mine, COPY)

    def exp(self, logs: Array) -> Array:
        """e^logs; what underflows becomes a number that products keep where numbers move, and only e^(−∞) is 0."""
        powers = jnp.exp(logs)
        if self.amount is None:
            return powers
        limits = jnp.finfo(powers.dtype)
        least = jnp.abs(self.amount).astype(powers.dtype) * (limits.tiny / limits.eps)
        return jnp.where(logs < limits.min, powers, jnp.maximum(powers, least))

    def _rounding(self, dtype: DTypeLike) -> Array:
        assert self.amount is not None
        return self.amount.astype(dtype) * jnp.asarray(jnp.finfo(dtype).eps, dtype)


STILL = Moves()


def _pattern_of(x: Array, place: int) -> Array:
    """A number for each index of the last axis, broadcast over the others."""
    return jnp.asarray(_pattern(place, x.shape[-1]).reshape((1,) * (x.ndim - 1) + (-1,)), x.dtype)


@functools.cache
def _pattern(place: int, size: int) -> np.ndarray:
    """Whole numbers between 1 and `FARTHEST` with either sign, others at every place; never 0."""
    random = np.random.default_rng((place, size))
    return random.integers(1, FARTHEST, size, endpoint=True) * random.choice([-1.0, 1.0], size)


def of_tokens(
    x: Float[Array, "token feature"], places: UInt[Array, "token column"] | None = None
) -> Float[Array, "token feature"]:
    """Numbers of that size for every entry of the tokens, made of each token's bits and of what else tells it apart.

    No pair of tokens is compared: tokens that are equal get equal numbers.
    """
    x = jax.lax.stop_gradient(x)
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0, x), jnp.uint16 if x.itemsize == 2 else jnp.uint32)
    bits = bits.reshape(x.shape[0], -1).astype(jnp.uint32)
    bits = bits if places is None else jnp.concatenate([bits, places], axis=1)
    columns, features = (jnp.arange(size, dtype=jnp.uint32)[None] for size in (bits.shape[1], x.shape[1]))
    token = jnp.sum(_hashed(bits + _hashed(columns)), axis=1, keepdims=True, dtype=jnp.uint32)
    hashed = _hashed(token + _hashed(features))
    sizes = 1 + (FARTHEST - 1) * (hashed >> 16).astype(jnp.float32) / 2**16
    return jnp.where(hashed & 1, 1, -1).astype(x.dtype) * sizes.astype(x.dtype)


def _hashed(x: UInt[Array, "*shape"]) -> UInt[Array, "*shape"]:
    """Irregular bits, a different pattern for every pattern (the finalizer of MurmurHash3, Appleby 2011)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def moved(state: MeanResidual, moves: Moves, place: int) -> MeanResidual:
    """Tokens whose mean and differences have moved by roundings."""
    if moves.amount is None:
        return state
    rows, mean = state.direction, state.mean[None] * jnp.exp(-state.log_size).astype(state.mean.dtype)
    left, size = (jnp.max(jnp.abs(each), axis=1, keepdims=True) for each in (mean + rows, rows))
    lost = left < float(_FEW * jnp.finfo(rows.dtype).eps) * size
    return MeanResidual(
        moves.mean(state.mean, place), state.difference.map(lambda rows: moves.entries(rows, place, lost))
    )
