"""The gradient through any kind of attention weights, and the scale that lets most of it through."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from rc_jax._numerics import arguments
from rc_jax.attention import Kind
from rc_jax.scale.gradient.rows import score_rows
from rc_jax.scale.results import Optimum

_GROUPS = 8  # of rows, whose optima give the standard error
_GRID = np.geomspace(2.0**-2, 2.0**8, 21)  # of scales


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

    Source: the objective is that of kexue.fm/archives/9812; its form for any kind is this package's own.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.attention import KINDS
        >>> from rc_jax.scale.kinds import kind_gradient
        >>> print(kind_gradient(KINDS["softmax"], jnp.zeros((1, 4)), 2.0))  # 2 (1 − ¼)
        [1.5]
    """
    return _gradient(kind, jnp.asarray(scores), jnp.asarray(alpha, scores.dtype), parts or {})


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
    key: Key[Array, ""], kind: Kind, n: int, rows: int = 256, parts: dict[str, Array] | None = None
) -> Optimum:
    """The scale that maximises the typical gradient of rows of n standard normal scores.

    The typical gradient is the geometric mean over rows, as in `typical_scale`. Where weights may be exactly 0 a row
    may let nothing through, and the median over rows stands for it. The same rows are used at every scale, and a
    parabola goes through the three best of a grid of factors √2.

    Args:
        key: of the rows.
        kind: whose rows are independent of each other.
        n: scores of a row.
        rows: how many; the error falls as its root.
        parts: the kind's own arrays, for one head.

    Returns:
        The scale with its standard error, from eight groups of rows, and the typical gradient there. Not converged are:
        an infinite scale, where the gradient still rises at α = 256, and NaN, where it is the same at every scale.

    Source: this package's own.

    Example:
        >>> import jax
        >>> from rc_jax.attention import KINDS
        >>> from rc_jax.scale.kinds import kind_best_scale
        >>> best = kind_best_scale(jax.random.key(0), KINDS["softmax"], 64)
        >>> bool(2 < best.scale < 4)
        True
    """
    scores = jax.random.normal(key, (kind.maps, rows, n))
    gradients = np.stack([np.asarray(kind_gradient(kind, scores, alpha, parts), float) for alpha in _GRID])

    def typical(values: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(np.median(values, axis=1)) if kind.sparse else np.mean(np.log(values), axis=1)

    whole, value = _peak(typical(gradients))
    groups = [_peak(typical(part))[0] for part in np.array_split(gradients, _GROUPS, axis=1)]
    error = float(np.std(groups, ddof=1)) / math.sqrt(_GROUPS) if np.isfinite(groups).all() else math.nan
    return Optimum(
        jnp.asarray(whole), jnp.asarray(math.exp(value)), jnp.asarray(math.isfinite(whole)), jnp.asarray(error)
    )


def _peak(values: np.ndarray) -> tuple[float, float]:
    """Where a parabola in log α through the largest of the values and its neighbours has its top, and the top."""
    best = int(np.argmax(values))
    if np.ptp(values) < 1e-3 or not np.isfinite(values[best]):
        return math.nan, float(values[best])
    if best in (0, len(values) - 1):
        return (math.inf if best else 0.0), float(values[best])
    low, middle, high = (float(value) for value in values[best - 1 : best + 2])
    bend = low - 2 * middle + high
    if not np.isfinite(bend):
        return float(_GRID[best]), middle
    shift = 0.5 * (low - high) / bend if bend < 0 else 0.0
    ratio = math.log(_GRID[1] / _GRID[0])
    return float(_GRID[best]) * math.exp(shift * ratio), middle - 0.25 * (low - high) * shift
