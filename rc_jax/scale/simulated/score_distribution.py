"""The distribution of one random score, Gaussian or a cosine, as a table of its quantiles.

A score is a function of y with a smooth even density: y itself for Gaussian scores, tanh y for cosines, whose density
in y is ∝ cosh(y)^(1−d): where float32 holds no digit of 1 − s, y still has all of its own. The table holds y against
ℓ = log P(score above), from log ½ down, at even steps of ℓ.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rc_jax._numerics import arguments

ROW_CHECKS = {"n": arguments.integer(2), "dim": arguments.scalar(arguments.bounded(3)), "samples": arguments.integer(2)}
CELLS = 2048
ENTRIES = 4096
BEYOND = 30.0  # the table ends where the tail is e^-30/n: no score above it is drawn in 10^12 rows
NODES = 64


class ScoreLaw(NamedTuple):
    """Quantiles y(ℓ) and slopes dy/dℓ at ℓ = log ½ − i·step; `dim` is None for Gaussian scores."""

    dim: jax.Array | None
    step: jax.Array
    quantiles: jax.Array
    slopes: jax.Array


def score_law(n: jax.Array, dim: jax.Array | None) -> ScoreLaw:
    """Tabulate the law far enough out for the largest of n scores; Gauss–Legendre in each cell, then inverted."""
    # Integrate the density cell by cell in y, out to where a tail of e^−BEYOND/n is left.
    dtype = n.dtype
    reach = jnp.log(n) + BEYOND
    if dim is None:
        end = jnp.sqrt(2 * reach)
    else:
        power = reach / (dim - 1)
        end = power + jnp.log1p(jnp.sqrt(-jnp.expm1(-2 * power)))  # cosh(end)^(1−d) = e^−reach
    x, w = (jnp.asarray(table, dtype) for table in np.polynomial.legendre.leggauss(4))
    edges = end * jnp.linspace(0, 1, CELLS + 1, dtype=dtype)
    nodes = edges[:-1, None] + (end / CELLS) * (x[None] + 1) / 2
    cells = (jnp.exp(log_density(nodes, dim)) * w[None]).sum(1)
    beyond = jnp.exp(log_density(end, dim)) / -_log_density_slope(end, dim)  # the tail past it, first order
    above = jnp.cumsum(cells[::-1])[::-1] + 2 * CELLS / end * beyond
    above = jnp.append(above, 2 * CELLS / end * beyond)
    log_above = jnp.log(above) - jnp.log(2 * above[0])
    rate = -above * (end / CELLS / 2) / jnp.exp(log_density(edges, dim))  # dy/dℓ
    # Invert log P(score above) on even steps by cubics between the edges.
    step = (reach - math.log(2)) / (ENTRIES - 1)
    levels = -math.log(2) - step * jnp.arange(ENTRIES, dtype=dtype)
    cell = jnp.clip(jnp.searchsorted(-log_above, -levels, side="right") - 1, 0, CELLS - 1)
    width = log_above[cell + 1] - log_above[cell]
    part = (levels - log_above[cell]) / width
    y, slope = _hermite(part, width, edges[cell], edges[cell + 1], rate[cell], rate[cell + 1])
    return ScoreLaw(dim, step, y, slope)


def quantile(law: ScoreLaw, log_above: jax.Array) -> jax.Array:
    """Find y with log P(score above) = `log_above` <= log ½; use the symmetry for the lower half."""
    cell, part = _cell(law, log_above)
    y, slopes = law.quantiles, law.slopes
    return _hermite(part, -law.step, y[cell], y[cell + 1], slopes[cell], slopes[cell + 1])[0]


def slope_at(law: ScoreLaw, log_above: jax.Array) -> jax.Array:
    """Slope dy/dℓ of the quantile, linear between the table's entries."""
    cell, part = _cell(law, log_above)
    return law.slopes[cell] + part * (law.slopes[cell + 1] - law.slopes[cell])


def _cell(law: ScoreLaw, log_above: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The cell of the table that holds a logarithm, and the position in it from 0 to 1."""
    position = (-jnp.asarray(math.log(2), law.step.dtype) - log_above) / law.step
    position = jnp.clip(position, 0, ENTRIES - 1)
    cell = jnp.minimum(position.astype(jnp.int32), ENTRIES - 2)
    return cell, position - cell.astype(position.dtype)


def score_difference(law: ScoreLaw, y: jax.Array, other: jax.Array) -> jax.Array:
    """Score at y less the score at `other`: y − other, or tanh y − tanh other without cancellation."""
    apart = y - other
    return apart if law.dim is None else jnp.sinh(apart) / jnp.cosh(y) / jnp.cosh(other)


def score_slope(law: ScoreLaw, y: jax.Array) -> jax.Array:
    """Derivative of the score in y."""
    return jnp.ones_like(y) if law.dim is None else 1 / jnp.cosh(y) ** 2


def below(law: ScoreLaw, level: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Nodes y and weights, adding up to 1, of a quadrature over the law given y < `level`, less a tail of e⁻²⁵."""
    x, w = (jnp.asarray(table, level.dtype) for table in np.polynomial.legendre.leggauss(NODES))
    lowest = -quantile(law, jnp.full_like(level, -25))
    y = lowest + (level - lowest) * (x + 1) / 2
    weights = w * jnp.exp(log_density(y, law.dim))
    return y, weights / weights.sum()


def log_density(y: jax.Array, dim: jax.Array | None) -> jax.Array:
    """Logarithm of the density of y, zero at y = 0."""
    return -y * y / 2 if dim is None else -(dim - 1) * jnp.log1p(2 * jnp.sinh(y / 2) ** 2)


def _log_density_slope(y: jax.Array, dim: jax.Array | None) -> jax.Array:
    """Derivative of `log_density` in y."""
    return -y if dim is None else -(dim - 1) * jnp.tanh(y)


def _hermite(
    part: jax.Array, width: jax.Array, left: jax.Array, right: jax.Array, left_rate: jax.Array, right_rate: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Cubic through the values and slopes at both ends of a cell, at a part 0 … 1 of its width, and its slope there."""
    rise = right - left
    a, b = left_rate * width - rise, rise - right_rate * width
    value = left + part * rise + part * (1 - part) * ((1 - part) * a + part * b)
    slope = rise + (1 - 2 * part) * ((1 - part) * a + part * b) + part * (1 - part) * (b - a)
    return value, slope / width
