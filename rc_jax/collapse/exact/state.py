"""Tokens and rows of softmax as a common part and a scaled difference: X = 1x̄ᵀ + e^ℓ R̂ and P = 1pᵀ + e^μ D.

The columns of R̂ sum to 0 and its largest entry is next to ±1; the rows of D sum to 0. Nothing that all tokens share is
subtracted from them again, so a difference keeps all its digits however small e^ℓ is.

Rows of softmax are split in `rc_jax.collapse.exact.softmax`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rc_jax.collapse.exact.scaled import Scaled, exponent, largest_log_factor, power_of_two, total
from rc_jax.collapse.measures import over_largest


class MeanResidual(NamedTuple):
    """X = 1·meanᵀ + difference, a difference e^log_size · direction whose largest entry is next to ±1.

    Where all tokens are equal, direction is 0, and log_size is stored so that derivatives with respect to X are right.
    The rows of `difference` have the shape (token, feature) and one logarithm.
    """

    mean: Float[Array, " feature"]
    difference: Scaled

    @property
    def direction(self) -> Float[Array, "token feature"]:
        """The difference over a power of two next to its largest entry."""
        return self.difference.rows

    @property
    def log_size(self) -> Float[Array, ""]:
        """The logarithm of that power of two, or what is stored where the difference is 0."""
        return self.difference.log_size

    @property
    def log_norm(self) -> Float[Array, ""]:
        """Log ‖res(X)‖_F; −inf where all tokens are equal, NaN where an entry is NaN."""
        square = jnp.sum(jnp.square(self.direction))
        zero = square == 0
        return jnp.where(zero, -jnp.inf, self.log_size + jnp.log(jnp.where(zero, 1, square)) / 2)

    @property
    def over_norm(self) -> Scaled:
        """The difference with rows of norm 1."""
        return normalise(self.direction).times_exp(self.log_size)


class Columns(NamedTuple):
    """Queries, keys, values or outputs of every head, or a number for each token: 1·meanᵀ + rest.

    `rest` has the shape (head, column, width) and one logarithm for each head. Its own mean over the columns is 0,
    except for outputs, where it may be anything.
    """

    mean: Float[Array, "head width"]
    rest: Scaled


class Logits(NamedTuple):
    """Logits of row i and column j: zeroth_j + slope_j + pair_ij, and a constant of the row.

    The three parts are of order 1, e^ℓ and e^{2ℓ} in the tokens' difference; `zeroth` is None where it is 0. `slope`
    has the shape (head, column), `pair` (head, token, column), both with one logarithm for each head.
    """

    zeroth: Float[Array, "head column"] | None
    slope: Scaled
    pair: Scaled

    @property
    def common(self) -> Float[Array, "head column"]:
        """The part r_j = zeroth_j + slope_j, which all rows share."""
        first = self.slope.value
        return first if self.zeroth is None else self.zeroth + first

    @property
    def in_columns(self) -> Scaled:
        """The same r_j with its size apart."""
        return self.slope if self.zeroth is None else Scaled.plain(self.zeroth) + self.slope

    @property
    def ordered(self) -> Float[Array, "head token column"]:
        """The logits over a factor of each head that prevents underflow: numbers in the order of the logits."""
        of_columns = [self.slope] if self.zeroth is None else [Scaled.plain(self.zeroth), self.slope]
        return total([*(part.map(lambda row: row[:, None]) for part in of_columns), self.pair]).rows


class Weights(NamedTuple):
    """Attention matrices P = 1·sharedᵀ + rest, whose rest, (head, token, column), has rows that sum to 0."""

    shared: Float[Array, "head column"]
    rest: Scaled


def decompose(x: Float[Array, "token feature"]) -> MeanResidual:
    """Split tokens into their mean and the scaled difference from it."""
    # The first token is subtracted first: a common part then cancels exactly, however a compiler rounds the mean.
    # Differences of small numbers are formed in larger units: they may have no normal number of their own.
    limits = jnp.finfo(x.dtype)
    lowest = float(limits.tiny / limits.eps**2) if limits.nexp >= 8 else 0.0  # float16 has no room for such units
    small = jax.lax.stop_gradient(jnp.max(jnp.abs(x))) < lowest
    unit = jnp.where(small, jnp.asarray(limits.eps, x.dtype) ** -2 if lowest else 1, 1).astype(x.dtype)
    scaled = x * unit
    difference, mean = recenter(scaled - scaled[:1])
    return MeanResidual(x[0] + mean / unit, _over_largest(Scaled(difference, -jnp.log(unit))))


def has_subnormal(x: Array) -> Bool[Array, ""]:
    """Whether an entry is below the smallest normal number and not 0: compilers take such a number for 0."""
    bits = jax.lax.bitcast_convert_type(x, {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}[x.itemsize])
    rest = bits << 1  # without the sign
    digits = jnp.finfo(x.dtype).nmant + 1
    return jnp.any((rest != 0) & (rest >> digits == 0))


def normalise(x: Float[Array, "token feature"]) -> Scaled:
    """The rows x/‖x‖_F and the logarithm log ‖x‖_F; zeros stay zeros with −inf, and NaN stays NaN."""
    unit, size = over_largest(x)  # neither its square nor the derivative of its square underflows
    square = jnp.sum(jnp.square(unit))
    zero = square == 0
    norm = jnp.sqrt(jnp.where(zero, 1, square))
    return Scaled(unit / norm, jnp.where(zero, -jnp.inf, jnp.log(size * norm)))


def _over_largest(x: Scaled) -> Scaled:
    """The same with rows whose largest entry is next to 1, by a power of two. Zeros get the log-size min(log_size, 0).

    Their rows are 0, with the derivative in x that belongs to that size.
    """
    dtype = x.rows.dtype
    largest, log_size = jax.lax.stop_gradient((jnp.max(jnp.abs(x.rows)), x.log_size))
    most = largest_log_factor(dtype) / math.log(2)
    stored = -jnp.floor(jnp.clip(log_size / math.log(2), 0, most)).astype(jnp.int32)
    power = jnp.where(largest == 0, stored, exponent(largest))
    factor = jnp.where(jnp.isnan(largest), jnp.nan, power_of_two(-power, dtype))
    return Scaled(factor * x.rows, x.log_size + math.log(2) * power.astype(dtype))


def recenter(x: Float[Array, "token feature"]) -> tuple[Float[Array, "token feature"], Float[Array, " feature"]]:
    """Split a difference into one whose columns sum to zero, and the column means."""
    mean = jnp.mean(x, axis=0)
    return x - mean[None], mean


def from_rows(x: Scaled) -> MeanResidual:
    """Split tokens into mean and scaled difference."""
    out = summand(x)
    return out._replace(difference=_over_largest(out.difference))


def summand(x: Scaled) -> MeanResidual:
    """The same, with a difference of whatever size: `add` brings what it is given to one size."""
    difference, mean = recenter(x.rows)
    # e^log_size alone may overflow where its product with a small mean does not.
    root = jnp.exp(x.log_size / 2)
    return MeanResidual(root * (root * mean), Scaled(difference, x.log_size))


def add(a: MeanResidual, b: MeanResidual) -> MeanResidual:
    """The sum of two token matrices, formed at the size of the larger one."""
    out = from_rows(a.difference + b.difference)
    return out._replace(mean=a.mean + b.mean + out.mean)


def transform(state: MeanResidual, matrix: Float[Array, "feature out"], precision: str) -> MeanResidual:
    """Every token times a matrix."""
    out = from_rows(state.difference.map(lambda rows: jnp.matmul(rows, matrix, precision=precision)))
    return out._replace(mean=out.mean + jnp.matmul(state.mean, matrix, precision=precision))


def with_zero_sums(
    differences: Float[Array, "head token column"], largest: Int[Array, "head token"]
) -> Float[Array, "head token column"]:
    """The differences with rows that sum to exactly 0: the entry at `largest` becomes minus the sum of the others.

    The difference of two weights close to 1 has lost its digits; the differences of the small weights have not.
    """
    chosen = jax.nn.one_hot(largest, differences.shape[-1], dtype=bool)
    others = jnp.where(chosen, 0, differences)
    return jnp.where(chosen, -jnp.sum(others, axis=-1, keepdims=True), others)


def exp_below(logs: Float[Array, "head #token column"], factor: Float[Array, " head"]) -> Array:
    """e^(logs − factor), at most 1: a compiler that computes large logarithms twice may round one above the maximum.

    What is cut off is a constant. The derivative at the maximum is whole on whichever side of it a rounding falls.
    """
    below = logs - factor[:, None, None]
    return jnp.exp(below - jax.lax.stop_gradient(jnp.maximum(below, 0)))


def log_softmax(logits: Float[Array, "*rows token"]) -> Float[Array, "*rows token"]:
    """Logarithms of softmax over the last axis, as `softmax_and_log` has them."""
    return softmax_and_log(logits)[1]


def softmax_and_log(
    logits: Float[Array, "*rows token"],
) -> tuple[Float[Array, "*rows token"], Float[Array, "*rows token"]]:
    """Softmax over the last axis and its logarithms, also of logits whose rounding is large, by one exponential.

    A compiler may compute a row twice, once for its maximum, and round it twice. An excess over the maximum is set to
    0, and the largest entry counts as e^0 in the sum whatever became of the others.
    """
    largest = jnp.argmax(logits, axis=-1, keepdims=True)
    below = logits - jnp.take_along_axis(logits, largest, axis=-1)
    below = jnp.where(jax.nn.one_hot(largest[..., 0], logits.shape[-1], dtype=bool) | (below > 0), 0, below)
    powers = jnp.exp(below)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    return powers / total, below - jnp.log(total)


def log1p_ratio(t: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(1 + t)/t, by its series where t is small."""
    small = jnp.abs(t) < 1e-2
    safe, near = jnp.where(small, 1, t), jnp.where(small, t, 0)
    series = jnp.full_like(near, 1 / 9)
    for k in range(8, 0, -1):
        series = 1 / k - near * series
    return jnp.where(small, series, jnp.log1p(safe) / safe)
