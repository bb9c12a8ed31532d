"""Rows of softmax(1rᵀ + cÊ) as a common row and a scaled rest, P = 1pᵀ + e^μ D, by one formula.

With p = softmax(r), G_ij = Ê_ij − Σ_k p_k Ê_ik, t = cG, z_i = log Σ_j p_j e^{t_ij} ≥ 0 and u = t − z = log P − log p,

    P_ij − p_j = c g_ij e^{max(log P_ij, log p_j)} φ(|u_ij|),   g = u/c = G − z/c,   φ(u) = (1 − e^{−u})/u,

exactly and for every c, because P − p = p(e^u − 1) is P(1 − e^{−u}) where u ≥ 0. For c → 0 it is p_j G_ij. Nothing of
size one is subtracted from something of size one: z/c comes from Σ p (e^t − 1 − t)/c where t is small. The largest
weight of a row changes by minus the sum of the other changes. Under masks p is one row for each set of columns that are
seen, and rows of different sets differ by whole weights. This package's own result.

Where every |cÊ| is below a rounding, P V̂ is 1(pᵀV̂) + c α q̂_iᵀ Cov_p(k̂, v̂): no exponential for each pair of tokens.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rc_jax._numerics.stable import expm1_ratio
from rc_jax.collapse.exact.moves import STILL, Moves
from rc_jax.collapse.exact.scaled import Scaled
from rc_jax.collapse.exact.state import Weights, softmax_and_log

_SMALL = 0.5  # of |t|, below which e^t − 1 − t is a series
_FAR = 1.0  # of |cÊ| under a mask, beyond which a row is compared with the first one and not with p
# (e^s − 1 − s)/s² = ½ + s/6 + s²/24 + …, by precision: what is left out at `_SMALL` is below a rounding
_BEND = {bits: [1 / math.factorial(k + 2) for k in range(terms)] for bits, terms in ((32, 7), (64, 13))}
# artanh(s)/s = 1 + s²/3 + s⁴/5 + …, by precision, for s² up to 0.06
_ODD = {bits: [1 / (2 * k + 1) for k in range(terms)] for bits, terms in ((32, 7), (64, 15))}


def split_softmax(
    common: Float[Array, "head column"],
    pair: Scaled,
    seen: Bool[Array, "#head token column"] | None,
    moves: Moves = STILL,
) -> Weights:
    """P = 1pᵀ + e^μ D, given r, the pair part cÊ and the columns that each row sees; NaN where a logit overflows."""
    if seen is None:
        p, log_p = (part[:, None] for part in softmax_and_log(common))
        return Weights(p[:, 0], _finite(_change(log_p, p, pair, moves), common, pair))
    pair = pair.map(lambda rows: jnp.where(seen, rows, 0))
    # In heads far from collapse the base has the whole logit, and nothing is left to change.
    exponent = pair.finite_size * pair.rows
    far = jnp.max(jnp.abs(exponent), axis=(1, 2), keepdims=True) > _FAR
    base = jnp.where(seen, common[:, None] + jnp.where(far, exponent, 0), -jnp.inf)
    p, log_p = softmax_and_log(base)
    alike = ~far & jnp.all(seen == seen[:, :1], axis=-1, keepdims=True)
    across = _less_first_row(log_p, p, alike, moves)
    near = _change(log_p, p, pair.map(lambda rows: jnp.where(far, 0, rows)), moves)
    return Weights(p[:, 0], _finite(across + near, common, pair))


def _finite(rest: Scaled, common: Float[Array, "head column"], pair: Scaled) -> Scaled:
    """The rest, or NaN for heads of which a logit has no place in the dtype."""
    largest = jnp.log(jnp.finfo(common.dtype).max)
    size = jnp.max(jnp.abs(pair.rows), axis=(1, 2))
    finite = jnp.isfinite(jnp.max(jnp.abs(common), axis=-1)) & jnp.isfinite(pair.finite_size[:, 0, 0] * size)
    finite &= (pair.log_size <= largest) | (size == 0)
    return rest.map(lambda rows: jnp.where(finite[:, None, None], rows, jnp.nan))


def _change(
    log_p: Float[Array, "head #token column"], p: Float[Array, "head #token column"], pair: Scaled, moves: Moves
) -> Scaled:
    """softmax(log p + cÊ) − p by the formula above; weights below the smallest number keep their logarithm."""
    c = pair.finite_size
    centred = pair.rows - jnp.sum(p * pair.rows, axis=-1, keepdims=True)  # G
    t = jnp.where(log_p > -jnp.inf, c * centred, 0)
    small = jnp.max(jnp.abs(t), axis=-1, keepdims=True) < _SMALL
    short, terms = jnp.where(small, t, 0), _BEND[max(32, jnp.finfo(t.dtype).bits)]
    bend = jnp.full_like(short, terms[-1])
    for term in reversed(terms[:-1]):
        bend = term + short * bend
    bend = jnp.where(small, p * centred * short * bend, 0)
    excess = jnp.sum(bend, axis=-1, keepdims=True)  # (Σ p e^t − 1)/c
    growth = c * excess
    ratio = _log1p_ratio(growth)
    log_sum = jnp.where(small, growth * ratio, _log_sum(log_p + t))  # z
    u = t - log_sum
    g = centred - jnp.where(small, excess * ratio, log_sum / jnp.where(small, 1, c))
    phi = expm1_ratio(-jnp.abs(u))

    # The largest of the weights that count is taken out of the exponent; that of the largest is minus the others' sum.
    largest = jax.nn.one_hot(jnp.argmax(log_p + t, axis=-1), t.shape[-1], dtype=bool)
    others = ~largest & (log_p > -jnp.inf)
    log_weight = _at_most_0(log_p + jnp.maximum(u, 0))  # a rounding of a large logit may be above 0
    factor, powers = _over_largest(log_weight, others, moves)
    # Where c is large u is the number of ordinary size, and c counts as 1.
    far = pair.log_size > 0
    changes = jnp.where(others, jnp.where(far[:, None, None], u, g) * phi * powers, 0)
    rows = jnp.where(largest, -jnp.sum(changes, axis=-1, keepdims=True), changes)
    return Scaled(rows, factor + jnp.where(far, 0, pair.log_size))


def _log_sum(logs: Array) -> Array:
    """The logarithm of the sum of e^logs in each row, of which one entry at least is finite."""
    top = jax.lax.stop_gradient(jnp.max(logs, axis=-1, keepdims=True))
    return top + jnp.log(jnp.sum(jnp.exp(_at_most_0(logs - top)), axis=-1, keepdims=True))


def _log1p_ratio(x: Array) -> Array:
    """Log(1 + x)/x by 2 artanh(s)/x with s = x/(2 + x), for 0 ≤ x < 0.65: a logarithm would be compiled longer."""
    inverse = 1 / (2 + x)
    square = jnp.square(x * inverse)
    terms = _ODD[max(32, jnp.finfo(x.dtype).bits)]
    series = jnp.full_like(x, terms[-1])
    for term in reversed(terms[:-1]):
        series = term + square * series
    return 2 * inverse * series


def _less_first_row(
    log_p: Float[Array, "head token column"],
    p: Float[Array, "head token column"],
    alike: Bool[Array, "head #token #column"],
    moves: Moves,
) -> Scaled:
    """Weights less those of the first row, 0 for rows that are `alike`; sums of rows are exactly 0."""
    largest = jax.nn.one_hot(jnp.argmax(p, axis=-1), p.shape[-1], dtype=bool)
    others = ~largest & ~alike
    first = jnp.broadcast_to(log_p[:, :1], log_p.shape)
    factor, _ = _over_largest(jnp.maximum(log_p, first), others & (log_p != first), moves)
    rows, first = (
        jnp.where(others & (logs > -jnp.inf), moves.exp(_at_most_0(logs - factor[:, None, None])), 0)
        for logs in (log_p, first)
    )
    changes = rows - first
    return Scaled(jnp.where(largest, -jnp.sum(changes, axis=-1, keepdims=True), changes), factor)


def _over_largest(
    logs: Float[Array, "head token column"], counted: Bool[Array, "head token column"], moves: Moves
) -> tuple[Float[Array, " head"], Float[Array, "head token column"]]:
    """The largest logarithm of those that count in a head, and e^(logs − largest), at most 1."""
    top = jnp.max(jnp.where(counted, logs, -jnp.inf), axis=(1, 2))
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    # A compiler that computes a logarithm twice may round one of them above the largest.
    return top, moves.exp(_at_most_0(logs - top[:, None, None]))


def _at_most_0(logs: Array) -> Array:
    """Numbers that only a rounding makes positive, at most 0, with whole derivatives at 0."""
    return logs - jax.lax.stop_gradient(jnp.maximum(logs, 0))
