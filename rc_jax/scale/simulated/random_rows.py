"""Rows of independent scores of any length, at a cost that does not grow with it: the largest ones and the bulk.

In falling order, the tail probabilities of n scores are those of sorted uniform numbers. They are drawn one after the
other from independent exponentials, down from the largest (Rényi). Rows of up to `PLACES` scores are drawn completely.
In longer ones only the scores above a fixed level are drawn, which `DRAWN` of them exceed on average. The others enter
through random counts on the nodes of a quadrature: these give every sum Σ g(s) its exact mean, and every two of them
their exact covariance, given how many scores are left. At any α a score has p ≤ 1/rank, so those below the level have
p < 1/`DRAWN` or so. The counts do not match third cumulants, which are of the order Σ p³ ≤ DRAWN^-2, 2e-4 at most.

The largest score is not part of a row: given the others, its tail probability V₁ is uniform on (0, V₂), with V₂ that of
the second score. The ratio V₁/V₂ is called its *part*. So averages over the largest score need no new row.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import log1mexp

from rc_jax.scale.simulated.score_distribution import (
    NODES,
    ScoreLaw,
    below,
    quantile,
    score_difference,
    score_slope,
    slope_at,
)

DRAWN = 64
PLACES = 160  # places for scores above the level; more than that come with probability 1e-22
SPACINGS = PLACES - 2 + NODES  # uniform numbers that `make_row` needs for the scores below the second
NEWTON_STEPS = 8


class Bulk(NamedTuple):
    """The law below the level: log P(score above the level), nodes y of a quadrature below it, and their weights."""

    log_level: jax.Array
    nodes: jax.Array
    share: jax.Array


class Row(NamedTuple):
    """A row of scores s₁ ≥ s₂ ≥ …, as differences to the second; there may be several s₁ to the same rest.

    `offsets` are s_i − s₂ for i ≥ 3 and for nodes of the quadrature, `weights` how many scores each stands for, `gaps`
    s₁ − s₂ for each s₁. `log_second` is log V₂ and `log_parts` are log(V₁/V₂), V_i = P(score above s_i).
    """

    offsets: jax.Array
    weights: jax.Array
    gaps: jax.Array
    log_second: jax.Array | None = None
    log_parts: jax.Array | None = None


def bulk(law: ScoreLaw, n: jax.Array) -> Bulk:
    """The common law of rows of n scores below the level; a row that is drawn completely has the level log 1."""
    log_level = math.log(DRAWN) - jnp.log(jnp.maximum(n, PLACES))
    return Bulk(jnp.where(n <= PLACES, 0, log_level), *below(law, quantile(law, log_level)))


def inside(uniform: jax.Array) -> jax.Array:
    """Bound a rounded uniform number away from the ends of (0, 1)."""
    info = jnp.finfo(uniform.dtype)
    return jnp.clip(uniform, info.tiny, 1 - info.epsneg)


def even_batch(count: int, most: int) -> int:
    """The largest size of at most `most` that divides a number of rows, so that all batches are one program."""
    return max((size for size in range(1, min(count, most) + 1) if count % size == 0), default=1)


def make_row(
    law: ScoreLaw, rest: Bulk, n: jax.Array, second: jax.Array, log_parts: jax.Array, others: jax.Array
) -> Row:
    """Make a row of n scores from numbers uniform on (0, 1).

    `second` is −log of a uniform number, the level whose quantile the second score is. `log_parts` are log(V₁/V₂) of
    several largest scores that share the rest of the row. `others` are uniform numbers for the spacings of the scores
    below and for the counts on the nodes.
    """
    dtype = law.step.dtype
    drawn = PLACES - 2
    # Tail probabilities V in falling order of the scores, from the second on: log(1 − V) falls by an exponential over
    # the number of scores left (Rényi). The second one itself stands last.
    left = n - 2 - jnp.arange(drawn, dtype=dtype)
    log_not = -_second(second, n)
    logs_not = jnp.append(log_not + jnp.cumsum(jnp.log(others[:drawn]) / jnp.maximum(left, 1)), log_not)
    logs = log1mexp(-logs_not)
    tops = logs[-1] + log_parts
    y = _score(law, jnp.append(logs, tops), jnp.append(logs_not, log1mexp(-tops)))
    # Scores below the level are dropped; random counts on the nodes take their place, of the right mean and covariance.
    above = (logs[:drawn] < rest.log_level) & (left > 0)
    count = jnp.maximum(n - 2 - above.sum().astype(dtype), 0)
    noise = math.sqrt(12) * (others[drawn:] - 0.5)  # of mean 0 and variance 1; sums over nodes are near normal
    root = jnp.sqrt(rest.share)
    counts = count * rest.share + jnp.sqrt(count) * (root * noise - rest.share * (root * noise).sum())
    weights = jnp.append(above.astype(dtype), counts)
    # Differences to the second score. Places without a score get it, and the weight 0; their difference is set to 0,
    # which that of a number with itself need not be where a compiler computes it twice.
    taken = jnp.append(above, jnp.broadcast_to(count > 0, rest.nodes.shape))
    places = jnp.where(taken, jnp.append(y[:drawn], rest.nodes), y[drawn])
    offsets = jnp.where(taken, score_difference(law, places, y[drawn]), 0)
    return Row(offsets, weights, score_difference(law, y[drawn + 1 :], y[drawn]), logs[-1], log_parts)


def refine_small_gaps(law: ScoreLaw, row: Row) -> Row:
    """The row with gaps s₁ − s₂ from the quantile's slope where they are so small that a difference loses digits."""
    assert row.log_second is not None and row.log_parts is not None
    slope = _slope_of_score(law, row.log_second + row.log_parts / 2)
    return row._replace(gaps=jnp.where(row.log_parts > -1e-2, slope * row.log_parts, row.gaps))


def near_ties(law: ScoreLaw, row: Row, alpha: jax.Array) -> tuple[Row, jax.Array]:
    """The row with largest scores drawn where they matter at scale α, and the logarithms of their importance weights.

    w = 1 − V₁/V₂ is uniform on (0, 1). The gradient falls off where α times the gap, α s′w for small w, exceeds
    1 + log Σ e^{α(s − s₂)}, the sum over all scores but the largest. With c the quotient of αs′ by that number, w is
    drawn with the density (1 + c)/(1 + cw)²: uniform for small α, some 1/α wide for large. The row's own parts V₁/V₂
    serve as the uniform numbers. Where the second score of two is far down s′ is no measure of the gaps, which then
    are never much above twice the one at w = ½: there that stands for s′, or the weights had an infinite variance.
    """
    assert row.log_second is not None and row.log_parts is not None
    logs = row.log_second - jnp.asarray([math.log(2), 0], law.step.dtype)
    above, second = _score(law, logs, log1mexp(-logs))
    reach = jnp.minimum(-_slope_of_score(law, row.log_second), 2 * score_difference(law, above, second))
    c = alpha * reach / (1 + jnp.log(_sum(row, alpha)))
    # w by inversion of its distribution function
    w = -jnp.expm1(row.log_parts) / (1 + c * jnp.exp(row.log_parts))
    log_parts = jnp.log1p(-w)
    tops = jnp.append(row.log_second + log_parts, row.log_second)
    y = _score(law, tops, log1mexp(-tops))
    gaps = jnp.maximum(score_difference(law, y[:-1], y[-1]), 0)
    return refine_small_gaps(law, row._replace(gaps=gaps, log_parts=log_parts)), 2 * jnp.log1p(c * w) - jnp.log1p(c)


def _score(law: ScoreLaw, log_above: jax.Array, log_not: jax.Array) -> jax.Array:
    """The score variable y whose tail probability has this logarithm, given that of the complement too."""
    sign = jnp.where(log_above <= log_not, 1, -1).astype(log_above.dtype)
    return sign * quantile(law, jnp.minimum(log_above, log_not))


def _slope_of_score(law: ScoreLaw, log_above: jax.Array) -> jax.Array:
    """Derivative of the score in the logarithm of its tail probability."""
    log_not = log1mexp(-log_above)
    mirrored = jnp.where(log_above <= log_not, 1, jnp.exp(log_above - log_not))
    slope = slope_at(law, jnp.minimum(log_above, log_not)) * mirrored
    return slope * score_slope(law, _score(law, log_above, log_not))


def _sum(row: Row, alpha: jax.Array) -> jax.Array:
    """Σ e^{α(s − s₂)} over all scores but the largest; the second contributes 1."""
    return jnp.maximum(1 + (row.weights * jnp.exp(alpha * row.offsets)).sum(), 1)


def log_gradient(row: Row, alpha: jax.Array) -> jax.Array:
    """Logarithm of α(1 − Σp²) for each largest score of a row."""
    # With R = `rest` the sum of all other exponentials over the largest's, 1 − Σp² = R(2 + R(1 − Σq²))/(1 + R)², where
    # q is the softmax of the others alone.
    once = _sum(row, alpha)
    twice = 1 + (row.weights * jnp.exp(2 * (alpha * row.offsets))).sum()
    spread = jnp.maximum(1 - twice / once / once, 0)  # 1 − Σq²
    log_rest = jnp.log(once) - alpha * row.gaps
    rest = jnp.exp(log_rest)
    return jnp.log(alpha) + log_rest + jnp.log(2 + rest * spread) - 2 * jnp.log1p(rest)


def _second(target: jax.Array, n: jax.Array) -> jax.Array:
    """Find w = −log(1 − V) for the second smallest V of n uniforms, from P(V > v) = (1 − v)^n + n v (1 − v)^(n−1).

    `target` is −log P(V > v). Newton's steps are in z = n w.
    """

    def step(_: jax.Array, z: jax.Array) -> jax.Array:
        grown = n * jnp.expm1(z / n)
        value = z - jnp.log1p(grown) - target
        return z - value * (1 + grown) / ((1 - 1 / n) * grown)

    start = target + jnp.sqrt(2 * target / (1 - 1 / n)) + jnp.log1p(target)
    return jax.lax.fori_loop(0, NEWTON_STEPS, step, start) / n
