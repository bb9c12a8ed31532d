"""The gradient through any kind of attention weights, and the scale that lets most of it through."""

import functools
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from rc_jax._numerics import arguments
from rc_jax.attention import Kind, own_parts
from rc_jax.scale.gradient.rows import score_rows

_GROUPS = 8  # of rows, whose optima give the standard error
_DRAWS = 200  # of as many rows, with replacement, for the error of a median
_GRID = np.geomspace(2.0**-2, 2.0**8, 21)  # of scales
_FLAT = 0.01  # logarithms that differ by less count as equal


@arguments.guard(scores=score_rows, alpha=arguments.positive)
def kind_gradient(
    kind: Kind, scores: Float[Array, "*maps row score"], alpha: float | Array, parts: dict[str, Array] | None = None
) -> Float[Array, " row"]:
    """Half the sum of |∂p_i/∂s_j| of every row, p the weights of the kind at scores αs.

    Softmax has α(1 − Σp²). The derivative is `jax.jvp`'s, one direction for each score, so any kind has one whose rows
    do not depend on each other.

    Args:
        kind: whose rows are independent of each other.
        scores: s, rows of independent scores; with a leading axis for kinds of several score matrices.
        alpha: α > 0, one number.
        parts: the kind's own arrays, for one head.

    Returns:
        ½‖∂p/∂s‖₁ (entrywise) of every row, in the unit of α.

    Raises:
        ValueError: `parts` lacks an array that the kind reads.

    Source: the objective is that of kexue.fm/archives/9812; its form for any kind is this package's own.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.attention import KINDS
        >>> from rc_jax.scale.kinds import kind_gradient
        >>> print(kind_gradient(KINDS["softmax"], jnp.zeros((1, 4)), 2.0))  # 2 (1 − ¼)
        [1.5]
    """
    with own_parts.named(kind, parts):
        return _gradient(kind, jnp.asarray(scores), jnp.asarray(alpha, scores.dtype), parts or {})


class KindOptimum(NamedTuple):
    """The best scale of a kind, the typical gradient there, and why it is none where the search has not converged.

    Attributes:
        scale: the maximiser.
        value: the typical gradient there.
        converged: whether it is a maximum inside of the grid, in every group of rows.
        standard_error: of the scale.
        reason: why it is none; empty where it is one.
    """

    scale: Float[Array, ""]
    value: Float[Array, ""]
    converged: Bool[Array, ""]
    standard_error: Float[Array, ""]
    reason: str


@functools.partial(jax.jit, static_argnames="kind")
def _gradient(kind: Kind, scores: Array, alpha: Array, parts: dict[str, Array]) -> Array:
    scores = scores.reshape(-1, *scores.shape[-2:])

    def weights(scores: Array) -> Array:
        return kind(alpha * scores, None, parts)[0]

    derivative = jax.linearize(weights, scores)[1]  # what does not depend on the direction is computed once

    def add(total: Array, direction: Array) -> tuple[Array, None]:
        return total + jnp.sum(jnp.abs(derivative(jnp.broadcast_to(direction[:, None], scores.shape))), axis=-1), None

    size = scores.shape[0] * scores.shape[-1]
    directions = jnp.eye(size, dtype=scores.dtype).reshape(size, scores.shape[0], scores.shape[-1])
    return jax.lax.scan(add, jnp.zeros(scores.shape[1], scores.dtype), directions)[0] / 2


@arguments.guard(n=arguments.integer(2), rows=arguments.integer(_GROUPS))
def kind_best_scale(
    key: Key[Array, ""],
    kind: Kind,
    n: int,
    rows: int = 256,
    parts: dict[str, Array] | None = None,
    *,
    typical: Literal["mean log", "median"] | None = None,
) -> KindOptimum:
    """The scale that maximises the typical gradient of rows of n standard normal scores.

    The typical gradient is the geometric mean over rows, as in `typical_scale`. Where weights may be exactly 0 a row
    may let nothing through, and the median over rows stands for it. The two have maxima at different scales, softmax's
    of 64 keys at 2.9 and 4.8, so compare two kinds by the same one. The same rows are used at every scale, and a
    quartic goes through the best five of a grid of factors √2 from 1/4 to 256, or a parabola through three of medians.

    Args:
        key: of the rows.
        kind: whose rows are independent of each other.
        n: scores of a row.
        rows: how many; the error falls as its root.
        parts: the kind's own arrays, for one head.
        typical: how the typical gradient is taken over rows; by default "median" for kinds that are `sparse`.

    Returns:
        The scale with its standard error, from eight groups of rows (of a median, from 200 draws of rows among those
        that there are), and the typical gradient there. Not converged,
        with an error of NaN and a `reason`, is what is no maximum: NaN, where no scale of the grid does better than
        another by 1 %, or the gradient is no number at one of them; ∞, where it still rises at 256; 0, where 1/4 or
        less is best; the scale from which on it is flat, where no larger one does better by 1 %; and the scale of a
        maximum that some of the groups do not have.

    Raises:
        TypeError: it is called inside `jit`, `vmap` or `grad`.
        ValueError: `parts` lacks an array that the kind reads.

    Source: this package's own.

    Example:
        >>> import jax
        >>> from rc_jax.attention import KINDS
        >>> from rc_jax.scale.kinds import kind_best_scale
        >>> best = kind_best_scale(jax.random.key(0), KINDS["softmax"], 64)
        >>> bool(2 < best.scale < 4)
        True
        >>> kind_best_scale(jax.random.key(0), KINDS["identity"], 8, rows=16).reason
        'rises beyond 256'
    """
    arguments.outside_traces("kind_best_scale", key, parts)
    scores = jax.random.normal(key, (kind.maps, rows, n))
    gradients = np.stack([np.asarray(kind_gradient(kind, scores, alpha, parts), float) for alpha in _GRID])

    of_median = kind.sparse if typical is None else typical == "median"

    def peak(columns: np.ndarray) -> "_Peak":
        values = gradients[:, columns]
        with np.errstate(divide="ignore"):
            typical = np.log(np.median(values, axis=1)) if of_median else np.mean(np.log(values), axis=1)
        return _peak(typical, not of_median)

    every = np.arange(rows)
    groups = np.array_split(every, _GROUPS)
    whole, parts_of = peak(every), [peak(group) for group in groups]
    spread = 1 / math.sqrt(_GROUPS)
    if not all(each.inside for each in parts_of):  # eighths are too few rows: all but an eighth, a jackknife
        parts_of = [peak(np.setdiff1d(every, group)) for group in groups]
        spread = (_GROUPS - 1) / math.sqrt(_GROUPS)
    reason = whole.reason
    if not reason and not all(each.inside for each in parts_of):
        reason = f"a maximum near {whole.scale:.3g} that some groups of rows do not have"
    error = math.nan
    if not reason:
        deviation = spread * float(np.std([each.scale for each in parts_of], ddof=1))
        if of_median:  # of few rows it jumps, so that groups of them differ otherwise than all rows do
            draws = np.random.default_rng(0).integers(rows, size=(_DRAWS, rows))
            deviation = float(np.std([each.scale for each in map(peak, draws) if each.inside], ddof=1))
        error = math.hypot(deviation, whole.coarse)
    scale, value, converged, error_of = map(jnp.asarray, (whole.scale, math.exp(whole.value), not reason, error))
    return KindOptimum(scale, value, converged, error_of, reason)


class _Peak(NamedTuple):
    """Where the typical gradient is largest, its logarithm there, and why that is no maximum inside of the grid.

    `coarse` is the scale's error where it is a point of the grid.
    """

    scale: float
    value: float
    reason: str = ""
    coarse: float = 0.0

    @property
    def inside(self) -> bool:
        """Whether it is a maximum inside of the grid."""
        return not self.reason


def _peak(values: np.ndarray, smooth: bool) -> _Peak:
    """The top of a parabola in log α through the largest of the values and its neighbours, or of a quartic.

    `smooth`: the values are those of a smooth function of α, as means are and medians are not.
    """
    best = int(np.argmax(values))  # the first NaN where there is one
    top = float(values[best])
    if math.isnan(top) or top == math.inf:
        return _Peak(math.nan, top, f"the gradient is no number at scale {_GRID[best]:.3g}")
    if top == -math.inf:
        return _Peak(math.nan, top, "no gradient in a typical row")
    lower = np.flatnonzero(values < top - _FLAT)
    if not lower.size:
        return _Peak(math.nan, top, "the same at every scale")
    if lower[-1] < len(values) - 1:
        start = int(lower[-1]) + 1
        if start == len(values) - 1:
            return _Peak(math.inf, top, f"rises beyond {_GRID[-1]:g}")
        return _Peak(float(_GRID[start]), top, f"flat from {_GRID[start - 1]:.3g} … {_GRID[start]:.3g} on")
    if lower[0] > 0:
        return _Peak(0.0, top, f"{_GRID[0]:g} or less")
    low, middle, high = (float(value) for value in values[best - 1 : best + 2])
    bend, ratio = low - 2 * middle + high, math.log(_GRID[1] / _GRID[0])
    if not np.isfinite(bend):  # the maximum lies anywhere between the neighbours: an even distribution over ± ratio
        return _Peak(float(_GRID[best]), middle, coarse=float(_GRID[best]) * ratio / math.sqrt(3))
    shift = 0.5 * (low - high) / bend if bend < 0 else 0.0
    value = middle - 0.25 * (low - high) * shift
    five = values[best - 2 : best + 3] if best > 1 else values[:0]
    if smooth and len(five) == 5 and np.isfinite(five).all():
        # The peak is not symmetric: where a parabola is up to 2 % off, the quartic through five points is not.
        curve = np.polynomial.Polynomial(np.linalg.solve(np.vander(np.arange(-2.0, 3.0), increasing=True), five))
        tops = [float(at.real) for at in curve.deriv().roots() if abs(at.imag) < 1e-9 and abs(at.real) <= 1]
        if tops:
            shift = max(tops, key=lambda at: float(curve(at)))
            value = float(curve(shift))
    return _Peak(float(_GRID[best]) * math.exp(shift * ratio), value)
