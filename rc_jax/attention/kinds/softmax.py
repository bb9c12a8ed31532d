"""Softmax, and weights made of exponentials as it is."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rc_jax.attention.kinds.record import Kind, Parts, Rows, Seen, of_each_head, shown


def softmax(scores: Rows, seen: Seen, parts: Parts) -> Rows:
    """e^s over its row sum, shifted by the row maximum."""
    return jax.nn.softmax(shown(scores, seen, -jnp.inf), axis=-1)


def l2(scores: Rows, seen: Seen, parts: Parts) -> Rows:
    """e^s over the Euclidean norm of its row, shifted by the row maximum: softmax over its own Euclidean norm."""
    weights = softmax(scores, seen, parts)
    return weights * jax.lax.rsqrt(jnp.sum(jnp.square(weights), axis=-1, keepdims=True))


def signed(scores: Rows, seen: Seen, parts: Parts) -> Rows:
    """sign(s) e^|s| over the row sum of e^|s|, shifted by the largest |s|; a score of 0 counts for nothing."""
    counted = (scores != 0) & seen
    size = jnp.where(counted, jnp.abs(scores), -jnp.inf)
    empty = ~jnp.any(counted, axis=-1, keepdims=True)
    return jnp.sign(scores) * jnp.where(empty, 0, jax.nn.softmax(jnp.where(empty, 0, size), axis=-1))


def softmax_plus_one(scores: Rows, seen: Seen, parts: Parts) -> Rows:
    """e^s over one more than its row sum: softmax with one more logit, 0, whose weight goes nowhere."""
    return _with_sink(scores, seen, jnp.zeros(scores.shape[:1], scores.dtype))


def softmax_sink(scores: Rows, seen: Seen, parts: Parts) -> Rows:
    """e^s over e^b plus its row sum, with a logit b of each head."""
    return _with_sink(scores, seen, parts["sink"])


def _with_sink(scores: Rows, seen: Seen, sink: Float[Array, " head"]) -> Rows:
    """Shifted by the largest logit of them all."""
    scores, sink = shown(scores, seen, -jnp.inf), sink[:, None, None]
    top = jax.lax.stop_gradient(jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), sink))
    powers = jnp.exp(scores - top)
    return powers / (jnp.exp(sink - top) + jnp.sum(powers, axis=-1, keepdims=True))


def sigmoid(scores: Rows, seen: Seen, parts: Parts) -> Rows:
    """1/(1 + e^(−(s − log n))), n the number of columns, hidden ones too: one bias for all rows, as in the source."""
    return shown(jax.nn.sigmoid(scores - math.log(scores.shape[-1])), seen, 0)


def differential(scores: Float[Array, "heads token column"], seen: Seen, parts: Parts) -> Rows:
    """Softmax of the scores of the first half of a head's features less λ times that of the second half."""
    first, second = jnp.split(softmax(scores, seen, parts), 2)
    return first - parts["subtracted"][:, None, None] * second


def sinkhorn(scores: Rows, seen: Seen, parts: Parts, *, sinkhorn_steps: int = 5) -> Rows:
    """e^s with rows and columns in turn divided by their sums, in logarithms; an odd number of steps ends with rows.

    A row that sees nothing, or a column that nobody sees, is 0, and no part of any sum.
    """
    logs = shown(scores, seen, -jnp.inf)
    for step in range(sinkhorn_steps):
        axis = -2 if step % 2 else -1
        some = jnp.any(seen, axis=axis, keepdims=True)
        logs = jnp.where(seen, jax.nn.log_softmax(jnp.where(some, logs, 0), axis=axis), -jnp.inf)
    return jnp.exp(logs)


def _start(spec: Any, dtype: DTypeLike) -> dict[str, Array]:
    return {"subtracted": jnp.full(spec.heads, 0.8, dtype)}


def _needs_even_heads(spec: Any) -> tuple[str, str] | None:
    if spec.scores == "additive":
        return "scores", "be 'dot' or 'cosine' when weights='differential'"
    if spec.head_width % 2:
        return "d_head", f"be even when weights='differential', whose heads have two halves, not {spec.head_width}"
    return None


def _needs_a_square(spec: Any) -> tuple[str, str] | None:
    if spec.sinkhorn_steps % 2 == 0:
        return "sinkhorn_steps", "be odd: rows are divided first and last"
    if spec.causal:
        only = "the only triangular matrix whose rows and columns sum to 1 is the identity"
        return "causal", f"be False when weights='sinkhorn': {only}"
    if spec.rank is not None:
        return "rank", "be None when weights='sinkhorn', whose matrix is square"
    return None


SOFTMAX = (
    Kind("softmax", softmax, "one", shift_invariant=True, increasing=True),
    Kind("l2", l2, "any", shift_invariant=True, increasing=True),
    Kind("signed", signed, "any"),
    Kind("softmax_plus_one", softmax_plus_one, "any", increasing=True),
    Kind("softmax_sink", softmax_sink, "any", increasing=True, shapes=of_each_head("sink")),
    Kind("sigmoid", sigmoid, "any", increasing=True),
    Kind(
        "differential", differential, "fixed", shift_invariant=True, maps=2,
        shapes=of_each_head("subtracted"), start=_start, refuses=_needs_even_heads,
    ),
    Kind(
        "sinkhorn", sinkhorn, "one", shift_invariant=True, options=("sinkhorn_steps",), empty_rows=True,
        refuses=_needs_a_square,
    ),
)  # fmt: skip
