"""The scale that is best for one given row of scores: the global maximum of its own gradient."""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import working_dtype
from rc_jax._numerics.roots import falling_root_by_halves
from rc_jax.scale.gradient.rows import logit_rows
from rc_jax.scale.results import Optimum
from rc_jax.scale.simulated.random_rows import Row, even_batch, log_gradient

GRID = 64
HALVINGS = 15  # and one step of Newton
SCORES_TOGETHER = 2**14  # in one vectorised step over rows
TIE = 1.5434046384182085  # 2x, x tanh x = 1/2: the best scale of two scores is TIE over their difference
PAIR = TIE / 2 / math.cosh(TIE / 2) ** 2  # the gradient there is PAIR over their difference
LOWEST = -1e4  # in gaps: e^{−PAIR · 1e4} is 0 in every dtype


@arguments.guard(scores=logit_rows)
def per_sample_scale(scores: Float[Array, "... score"]) -> Float[Array, "..."]:
    """The scale α that maximises the softmax gradient of each given row of scores, over all α > 0.

    Formula: argmax_α α(1 − Σp²), p = softmax(αs). With D = s₁ − s₂ the difference of the two largest scores, it lies
    between 0.4477/D and a multiple of log n over D: the gradient is below α, and other scores only add to the 0.4477/D
    that the largest two have at 1.543/D. There may be several local maxima.

    Args:
        scores: s, dimensionless; the last axis is the softmax's. A key that a mask hides has −inf, or a large negative
            number.

    Returns:
        The maximiser, in the dtype of `scores`, one for each row; inf where the largest score is shared, for then the
        gradient rises for ever; NaN where only one score is not hidden, or the search did not end. Differentiable. Rows
        may be as small or as large as the dtype holds: they are searched in units of D.

    Raises:
        ValueError: all scores of a row are hidden.

    Source: this package's own, for the gradient of Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import per_sample_scale
        >>> print(f"{per_sample_scale(jnp.array([0.0, -1.0])):.4f}")  # x tanh x = 1/2 at x = α/2
        1.5434
    """
    optimum = per_sample_optimum(scores)
    return jnp.where(optimum.converged, optimum.scale, jnp.nan)


@arguments.guard(scores=logit_rows)
def per_sample_optimum(scores: Float[Array, "... score"]) -> Optimum:
    """`per_sample_scale` with the gradient's size there and whether the search ended.

    Raises:
        ValueError: all scores of a row are hidden.

    Source: this package's own.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import per_sample_optimum
        >>> optimum = per_sample_optimum(jnp.array([0.0, -1.0]))
        >>> print(f"{optimum.value:.4f} {optimum.converged}")
        0.4477 True
    """
    scores = jnp.asarray(scores)
    rows = scores.astype(working_dtype(scores.dtype)).reshape(-1, scores.shape[-1])
    scale, value, converged = _optima(rows)
    shape = scores.shape[:-1]
    scale, value = (x.astype(scores.dtype).reshape(shape) for x in (scale, value))
    return Optimum(scale, value, converged.reshape(shape))


@jax.jit
def _optima(rows: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Best scale, gradient there and status of every row, searched in units of the gap between the two largest scores.

    Scale and gradient of a row are both inverse to the unit of its scores.
    """
    count, n = rows.shape

    def one(scores: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(value[0] for value in optimum_of(_as_row(scores), jnp.asarray(n, rows.dtype)))

    # A power of two first brings the gap and its inverse into range; scores far below may leave the range with it.
    tops = jax.lax.stop_gradient(jax.lax.top_k(rows, 2)[0])
    power = jnp.where(jnp.abs(tops).max(-1, keepdims=True) > 1, 2.0**-8, 2.0**64).astype(rows.dtype)
    rows, tops = rows * power, tops * power
    gap = tops[:, :1] - tops[:, 1:]
    gap = jnp.where(gap > 0, gap, 1)
    batch = even_batch(count, max(1, SCORES_TOGETHER // n))
    units = jnp.maximum((rows - tops[:, :1]) / gap, LOWEST)
    u, value, converged = jax.lax.map(one, units, batch_size=batch)
    scale, value = (jnp.exp(x) / gap[:, 0] * power[:, 0] for x in (u, value))
    return scale, value, converged


def _as_row(scores: jax.Array) -> Row:
    """A given row as the differences of its scores to the second largest, and the gap between the two largest."""
    index = jnp.arange(scores.size)
    first = scores.argmax()
    second = jnp.where(index == first, -jnp.inf, scores).argmax()
    used = (index != first) & (index != second)
    offsets = jnp.where(used, scores, scores[second]) - scores[second]
    return Row(offsets, used.astype(scores.dtype), (scores[first] - scores[second])[None])


def optimum_of(row: Row, n: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log of the best scale, log of the gradient there, and whether the search ended, for each largest score of a row.

    A grid over all scales between the bounds, then the root of the slope by halving beside the two best local maxima
    of the grid. f/α falls with α, so that f between two points of the grid exceeds the left one by their ratio at most.
    """
    tied = row.gaps <= 0
    row = row._replace(gaps=jnp.where(tied, 1, row.gaps))
    constant = jax.lax.stop_gradient(row)
    centres, reach = _best_of_grid(constant, n)

    # Halve the interval around both maxima, where the slope changes its sign.
    slopes = jax.vmap(functools.partial(_slope, constant))
    both = falling_root_by_halves(slopes, centres - reach, centres + reach, HALVINGS)
    ended = (slopes(both - 1e-3 * reach) >= 0) & (slopes(both + 1e-3 * reach) <= 0)
    # The higher of the two is the maximum; two steps of Newton give it its last digits. Two more with one bend give it
    # two derivatives, also in reverse through a loop, where JAX forgets a derivative that is defined by hand.
    heights = jax.vmap(functools.partial(_log_gradients, constant))(both)
    is_second = heights[1] > heights[0]
    u, converged = (jnp.where(is_second, x[1], x[0]) for x in (both, ended))
    u, bend = _newton_step(constant, _newton_step(constant, u)[0])
    for _ in range(2):
        u = u - jnp.clip(_slope(row, u) / bend, -1e-3, 1e-3)
    # At its maximum the gradient moves with the scores alone: the slope that rounding leaves there is taken off.
    log_value = _log_gradients(row, u)
    log_value = log_value - jax.lax.stop_gradient(_slope(constant, u)) * (u - jax.lax.stop_gradient(u))
    return jnp.where(tied, jnp.inf, u), jnp.where(tied, jnp.inf, log_value), converged | tied


def _best_of_grid(row: Row, n: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The two best local maxima on a grid between the bounds of log α, (2, gap), and the step of the grid."""
    # From where α is the gradient of a tie, or from TIE/R, below which the slope is a sum of positive terms over pairs
    # of scores with the range R, to the α where n scores' gradient is below that of a tie.
    log_gaps, log_range = jnp.log(row.gaps), jnp.log(row.gaps - jnp.minimum(row.offsets.min(initial=0), 0))
    low = jnp.maximum(math.log(TIE) - log_range, math.log(PAIR) - log_gaps) - 0.01
    most = jnp.log(4.5 * n)
    high = jnp.log(most + 2 * jnp.log(most + 1) + 1) - log_gaps
    parts = jnp.arange(GRID, dtype=row.gaps.dtype) / (GRID - 1)
    grid = jax.lax.map(lambda part: _log_gradients(row, low + part * (high - low)), parts)
    # Local maxima by the height of the parabola through three points, and among them the best and the second best.
    edge = jnp.full_like(grid[:1], -jnp.inf)
    before, after = jnp.concatenate([edge, grid[:-1]]), jnp.concatenate([grid[1:], edge])
    bend = 2 * grid - before - after
    height = grid + jnp.where(jnp.isfinite(bend) & (bend > 0), jnp.square(after - before) / (8 * bend), 0)
    ranked = jnp.where((grid >= before) & (grid > after), height, -jnp.inf)
    best = ranked.argmax(0)
    other = jnp.where(jnp.arange(GRID)[:, None] == best[None], -jnp.inf, ranked).argmax(0)
    step = (high - low) / (GRID - 1)
    return jnp.stack([low + step * index.astype(step.dtype) for index in (best, other)]), step[None]


def _log_gradients(row: Row, u: jax.Array) -> jax.Array:
    """Logarithm of the gradient for each largest score at a scale e^u of its own."""
    return jax.vmap(lambda gap, u: log_gradient(row._replace(gaps=gap), jnp.exp(u)))(row.gaps, u)


def _slope(row: Row, u: jax.Array) -> jax.Array:
    """Derivative of `_log_gradients` in u."""
    return jax.jvp(functools.partial(_log_gradients, row), (u,), (jnp.ones_like(u),))[1]


def _newton_step(row: Row, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step of Newton for slope = 0, and the derivative of the slope there; both are constants."""
    value, bend = jax.jvp(functools.partial(_slope, row), (u,), (jnp.ones_like(u),))
    return jax.lax.stop_gradient((u - jnp.clip(value / bend, -1e-3, 1e-3), bend))
