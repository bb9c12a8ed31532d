"""The best scale of each of many random rows: draws of it, and the tail of its distribution."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Key

from rc_jax._numerics import arguments, stable
from rc_jax._numerics.dtypes import as_common, common_with_dim, converted
from rc_jax.scale.simulated.averages import TOPS, mean_over_rows
from rc_jax.scale.simulated.per_sample import optimum_of
from rc_jax.scale.simulated.random_rows import SPACINGS, Row, bulk, even_batch, inside, make_row, refine_small_gaps
from rc_jax.scale.simulated.score_distribution import ROW_CHECKS, ScoreLaw, score_law

LEAST = 1e-9  # distances w below this are drawn evenly in w only, those above also evenly in log w
NATS = -math.log(LEAST)
ROWS_TOGETHER = 64  # in one vectorised step


@arguments.guard(n=arguments.integer(2), dim=arguments.scalar(arguments.bounded(3)))
def sample_scales(
    key: Key[Array, ""], n: int, dim: ArrayLike | None = None, samples: int = 256
) -> Float[Array, "sample"]:
    """The best scale of each of many random rows: independent draws of `per_sample_scale`.

    Formula: argmax_α α(1 − Σp²), p = softmax(αs), for each row of n independent scores on its own. The law of these has
    a median and quartiles, but P(α* > a) falls like 1/a: it has no mean.

    Args:
        key: one typed key; row i uses `fold_in(key, i)`.
        n: number of scores, at least 2; the cost does not depend on it.
        dim: None for Gaussian scores, or the dimension d ≥ 3 of the vectors whose cosines are the scores. Its dtype,
            where it has one, is the working precision. May be traced.
        samples: number of rows.

    Returns:
        One maximiser for each row; NaN where the search did not end.

    Source: this package's own.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import sample_scales
        >>> print(3 < jnp.median(sample_scales(jax.random.key(0), 64)) < 6)
        True
    """
    dtype, (size,), dim = common_with_dim(dim, n=n)
    return _draw(key, dim, size, samples).astype(dtype)


@arguments.guard(level=arguments.positive, **ROW_CHECKS)
def scale_tail(
    key: Key[Array, ""], level: ArrayLike, n: int, dim: ArrayLike | None = None, samples: int = 256
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Probability that the best scale of a random row exceeds a level, however small, by importance sampling.

    Formula: P(α* > a) → 1.543 ρ(0)/a for large a, with ρ(0) the density at 0 of the difference between the two largest
    scores. Given all scores but the largest, the ratio of its tail probability to the second's is uniform on (0, 1):
    half of the draws take its distance from 1 evenly in the logarithm down to 1e-9, and are weighted accordingly. The
    weights are at most 2 and the estimate is unbiased at every level; beyond 10⁷ times the median hardly any draw gets
    there and the standard error says nothing.

    Args:
        key: one typed key; every level sees the same rows.
        level: a > 0, any shape.
        n: number of scores, at least 2.
        dim: None for Gaussian scores, or the dimension d ≥ 3 of the vectors whose cosines are the scores; traced.
        samples: number of rows, each of them with 16 places of its largest score.

    Returns:
        (probability, standard error), each in level's shape and dtype; NaN where a search did not end. A share of rows
        has no derivative: it is NaN.

    Source: this package's own.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import scale_tail
        >>> chance, error = scale_tail(jax.random.key(0), 1e4, 2, samples=64)
        >>> print(abs(chance - 1.543e-4 / jnp.sqrt(jnp.pi)) < 5 * error)  # |s₁ − s₂| has the density 1/√π at 0
        True
    """
    dtype, (level,) = as_common(level=level)
    dim = None if dim is None else converted("dim", dim, level.dtype)
    chance, error = _tail(key, level, dim, converted("n", n, level.dtype), jnp.asarray(samples))
    one = stable.one(False, level) if dim is None else stable.one(False, level, dim)
    chance, error = chance * one, error * one
    return chance.astype(dtype), error.astype(dtype)


@functools.partial(jax.jit, static_argnums=3)
def _draw(key: jax.Array, dim: jax.Array | None, n: jax.Array, samples: int) -> jax.Array:
    law = score_law(n, dim)
    rest = bulk(law, n)

    def one(i: jax.Array) -> jax.Array:
        """Draw row i, with one largest score, and search for its best scale."""
        numbers = inside(jax.random.uniform(jax.random.fold_in(key, i), (2 + SPACINGS,), n.dtype))
        row = refine_small_gaps(law, make_row(law, rest, n, -jnp.log(numbers[0]), jnp.log(numbers[1:2]), numbers[2:]))
        u, _, converged = optimum_of(row, n)
        return jnp.where(converged, jnp.exp(u), jnp.nan)[0]

    return jax.lax.map(one, jnp.arange(samples), batch_size=even_batch(samples, ROWS_TOGETHER))


@jax.jit
def _tail(
    key: jax.Array, level: jax.Array, dim: jax.Array | None, n: jax.Array, samples: jax.Array
) -> tuple[jax.Array, jax.Array]:
    law = score_law(n, dim)
    chance, error = mean_over_rows(
        functools.partial(_exceeds, law, n, jnp.log(level.ravel())), key, law, n, samples, _log_parts_near_ties
    )
    return chance.reshape(level.shape), error.reshape(level.shape)


def _log_parts_near_ties(uniform: jax.Array) -> jax.Array:
    """log(1 − w) of distances w from a tie: half of the w are even in (0, 1), half even in log w, all stratified."""
    half = TOPS // 2
    strata = inside((jnp.asarray(np.arange(TOPS) % half, uniform.dtype) + uniform) / half)
    return jnp.log1p(-inside(jnp.where(jnp.arange(TOPS) < half, strata, jnp.exp(-NATS * strata))))


def _exceeds(law: ScoreLaw, n: jax.Array, log_level: jax.Array, row: Row) -> jax.Array:
    """Weighted share of a row's largest scores whose best scale exceeds each level."""
    # w = 1 − V₁/V₂ has the density ½ + ½/(w log(1/LEAST)), where a uniform number has 1.
    assert row.log_parts is not None
    u, _, converged = optimum_of(refine_small_gaps(law, row), n)
    w = -jnp.expm1(row.log_parts)
    density = 0.5 + jnp.where(w > LEAST, 0.5 / NATS / w, 0)
    above = jnp.where(u[None] > log_level[:, None], 1 / density[None], 0)
    return jnp.where(converged.all(), above.mean(1), jnp.nan)
