"""What a `top_k` keeps, and which tokens are exactly equal: what decides whether its choice is known.

Logits that tie are equal, or equal by their rounding. They are equal where their keys are: of tokens that are equal,
and of keys of one feature and the length 1, which are ±1. Tokens become equal in a layer by what they keep. Rows that
keep tokens of one class alone, whose weights sum to 1, become that class's value; so rows that keep one token become
equal where they keep the same one. No number is compared for this, so tokens that round to the same are not equal.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rc_jax.attention import AttentionSpec
from rc_jax.collapse.exact.state import Logits, MeanResidual
from rc_jax.network import StackSpec

Kept = Bool[Array, "head token column"]


class Tokens(NamedTuple):
    """Split tokens, which of them are equal, and a number made of all choices up to here; None without a `top_k`."""

    state: MeanResidual
    equal: Bool[Array, "token token"] | None
    choice: Int[Array, ""] | None


def start(x: Float[Array, "token feature"], state: MeanResidual, spec: StackSpec) -> Tokens:
    """The tokens before the first layer."""
    if all(kind.attention.top_k is None for kind in spec.kinds):
        return Tokens(state, None, None)
    return Tokens(state, jnp.all(x[:, None] == x[None], axis=-1), jnp.asarray(0, jnp.int32))


def after(
    tokens: Tokens, out: MeanResidual, kept: Kept | None, mask: Bool[Array, "token token"] | None, spec: AttentionSpec
) -> Tokens:
    """The output of a layer in which the rows have kept these columns of every head, or all that they see."""
    assert tokens.equal is not None and tokens.choice is not None
    if kept is None:
        kept = (jnp.ones_like(tokens.equal) if mask is None else mask)[None]
    # Rows of equal tokens that see and keep the same columns, unless the positions differ.
    alike = jnp.all(kept[:, :, None] == kept[:, None], axis=(0, 3)) & tokens.equal & (spec.rotary is None)
    if mask is not None:
        alike &= jnp.all(mask[:, None] == mask[None], axis=-1)
    if spec.kind.shift_invariant and spec.output_gate is None:
        numbers = kept.astype(out.mean.dtype)
        others = jnp.einsum("hij,jk,hlk->hil", numbers, 1 - tokens.equal.astype(out.mean.dtype), numbers)
        same = others == 0
        if spec.kind.row_sum != "one":
            single = jnp.sum(kept, axis=-1) == 1
            same &= single[:, :, None] & single[:, None]
        alike |= jnp.all(same, axis=0)
    alike |= jnp.eye(alike.shape[0], dtype=bool)
    # Each choice has an odd number of its own.
    odd = np.random.default_rng(0).integers(-(2**30), 2**30, kept.shape) * 2 + 1
    choice = 31 * tokens.choice + jnp.sum(jnp.where(kept, jnp.asarray(odd, jnp.int32), 0), dtype=jnp.int32)
    difference = out.difference.map(lambda rows: jnp.where(jnp.all(alike), 0, _as_first(rows, alike, 0)))
    return Tokens(out._replace(difference=difference), alike, choice)


def both(a: Tokens, b: Tokens, state: MeanResidual) -> Tokens:
    """Tokens made of two others, one by one."""
    if a.equal is None or b.equal is None or a.choice is None or b.choice is None:
        return Tokens(state, None, None)
    return Tokens(state, a.equal & b.equal, 31 * a.choice + b.choice)


def of_equal_columns(logits: Logits, equal: Bool[Array, "token token"]) -> Logits:
    """Logits that are the same to the last bit in columns of equal tokens."""
    zeroth = None if logits.zeroth is None else _as_first(logits.zeroth, equal, -1)
    slope, pair = (part.map(lambda rows: _as_first(rows, equal, -1)) for part in (logits.slope, logits.pair))
    return Logits(zeroth, slope, pair)


def ties(ordered: Float[Array, "head token column"], kept: Kept, equal: Array, count: int) -> Bool[Array, " head"]:
    """True for heads in which a row keeps more than `count` columns because of a tie, of tokens that are not `equal`.

    Logits of other tokens are equal by their rounding, and which of them is the larger one is not known.
    """
    last = ordered == jnp.min(jnp.where(kept, ordered, jnp.inf), axis=-1, keepdims=True)
    last = (last & kept).astype(ordered.dtype)
    pairs = jnp.einsum("hij,jk,hik->hi", last, 1 - equal.astype(ordered.dtype), last)
    return jnp.any((pairs > 0) & (jnp.sum(kept, axis=-1) > count), axis=-1)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _as_first(x: Array, equal: Bool[Array, "token token"], axis: int) -> Array:
    """Each token's part of x is that of the first token of its class; its derivative is its own."""
    return jnp.take(x, jnp.argmax(equal, axis=-1), axis=axis)


@_as_first.defjvp
def _as_first_jvp(axis: int, values: tuple[Array, Array], changes: tuple[Array, Any]) -> tuple[Array, Array]:
    return _as_first(*values, axis), changes[0]
