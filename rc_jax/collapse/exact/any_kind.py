"""Weights of any differentiable kind on split tokens (`rc_jax.collapse.exact.state`), without cancellation.

Row i of the weights is w(c + e^m E_i), with scores c that all rows share and differences e^m E_i. Its difference from
w(c) is the integral of w's own derivative along the way,

    w(c + e^m E) − w(c) = e^m ∫₀¹ J_w(c + t e^m E) E dt,

by Gauss–Legendre quadrature of `jax.jvp` where |e^m E| < 0.1, and the plain difference elsewhere, which has lost one
digit there. The factor e^m is never inside, so no digit is lost however small it is. This package's own result.

What the record of a kind says decides what is left out on paper. Where a constant in a row changes nothing, E holds
the products of two differences alone, e^{2ℓ}; elsewhere also the row's level u_i, e^ℓ. Where rows have equal sums, the
mean of the values drops out, which leaves their difference, e^ℓ; elsewhere the mean stays. What follows for a layer is
`rc_jax.collapse.kinds.predicted_order`.

Rows of equal sums whose columns are alike have one weight at equal scores, whatever the scores are. A level then
changes weights only as far as scores a + v_j of a row differ, which is of order e^{2ℓ} too:

    w(a + u + v) − w(a + v) = ∫₀¹∫₀¹ D²w(a + su + tv)[u, v] ds dt.

A kink on the way, weights below the smallest number, and a derivative that is not finite make the result NaN.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rc_jax.attention import Kind
from rc_jax.collapse.exact.scaled import Scaled, einsum, total
from rc_jax.collapse.exact.state import Columns, Logits

_NEAR = 0.1  # of the largest difference of a score, below which weights are integrated and not subtracted
_ALIKE = 16  # roundings, up to which weights are equal
_LOST = 128  # roundings that slopes may have
_PART = 2.0**-8  # of the weights, above which their difference has lost at most eight bits


def by_kind(
    levels: Columns,
    logits: Logits,
    seen: Bool[Array, "#head token column"] | None,
    value: Columns,
    kind: Kind,
    weights: Callable[[Array], Array],
    precision: str,
) -> Columns:
    """Heads whose weights are `weights(level_i + r_j + cÊ_ij)`, a function that hides what is not seen."""
    shape = logits.pair.rows.shape
    shown = jnp.ones(shape, bool) if seen is None else jnp.broadcast_to(seen, shape)
    level, pair = (part.map(lambda rows: jnp.where(shown, rows, 0)) for part in (levels.rest, logits.pair))
    centre = logits.common if kind.shift_invariant else logits.common + levels.mean
    base = jnp.broadcast_to(centre[:, None], shape)
    before = start = weights(base)
    if kind.shift_invariant:
        # A row moves where its scores move apart; one that sees a single token never does.
        first = jnp.take_along_axis(pair.rows, jnp.argmax(shown, axis=-1, keepdims=True), axis=-1)
        moves = jnp.any(shown & (pair.rows != first), axis=-1, keepdims=True)
        moved = pair.map(lambda rows: jnp.where(moves, rows, 0))
    else:
        moved = level + pair
    crossed = moved.map(jnp.zeros_like)
    if kind.row_sum != "any" and not kind.shift_invariant:
        # Where the level acts through differences of the columns alone, the pairs move rows that have it already.
        crossed, apart = _crossed(weights, levels, logits, shown)
        whole = ~apart[:, None, None]
        base = jnp.where(whole, base, base + level.finite_size * level.rows)
        log_moved = jnp.where(apart, pair.log_size, moved.log_size)
        moved, start = Scaled(jnp.where(whole, moved.rows, pair.rows), log_moved), weights(base)
    change = _change(weights, base, start, moved, kind.sparse) + crossed

    # Rows that see the same columns have the same weights before they move, but for roundings.
    across = before - before[:, :1]
    rounding = _ALIKE * jnp.finfo(before.dtype).eps * jnp.max(jnp.abs(before), axis=-1, keepdims=True)
    alike = jnp.all((shown == shown[:, :1]) & (jnp.abs(across) <= rounding), axis=-1, keepdims=True)
    across = jnp.where(alike, 0, across)
    if kind.row_sum != "any":
        change = change.map(lambda rows: _with_zero_sums(rows, before))
    if kind.row_sum == "one":
        across = _with_zero_sums(across, before)

    def through(rows: Array, *, equal_sums: bool) -> tuple[Array, Scaled]:
        """Rows of weights times v̄, which is nothing where all rows have the same sum, and times V̂."""
        sums = jnp.zeros_like(rows[..., :1]) if equal_sums else jnp.sum(rows, axis=-1, keepdims=True)
        return sums * value.mean[:, None], einsum("hij,hjk->hik", rows, value.rest, precision=precision)

    centre, spread = through(before[:, :1], equal_sums=False)
    across_mean, across_rest = through(across, equal_sums=kind.row_sum == "one")
    change_mean, change_rest = through(change.rows, equal_sums=kind.row_sum != "any")
    of_change = [Scaled(change_mean, change.log_size), change_rest.times_exp(change.log_size)]
    rest = total([Scaled.plain(across_mean), across_rest, *of_change])
    return Columns(centre[:, 0] + spread.value[:, 0], rest)


def _change(
    weights: Callable[[Array], Array],
    base: Float[Array, "head token column"],
    before: Float[Array, "head token column"],
    moved: Scaled,
    sparse: bool,
) -> Scaled:
    """weights(base + moved) − before, for `before` = weights(base)."""
    limits = jnp.finfo(base.dtype)
    step = moved.finite_size * moved.rows
    near = _largest(step) < _NEAR
    short, way = jnp.where(near, step, 0), jnp.where(near, moved.rows, 0)

    def mean_slope(nodes: np.ndarray, node_weights: np.ndarray) -> Array:
        """∫₀¹ J(base + t·short)·way dt, node by node, so that memory does not grow with nodes."""

        def add(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
            return total + node[1] * jax.jvp(weights, (base + node[0] * short,), (way,))[1], None

        rule = jnp.asarray(nodes, base.dtype), jnp.asarray(node_weights, base.dtype)
        return jax.lax.scan(add, jnp.zeros_like(base), rule)[0]

    inner, ends = _RULES[limits.bits > 32]
    integral = mean_slope(*inner)
    plain = weights(base + step) - before
    # A kink between the ends makes two rules disagree by more than roundings do that are a thousandth at most. A jump,
    # with one slope on both sides, makes the integral disagree with the plain difference by more than the roundings of
    # the weights and of their scores. A difference that is a good part of the weights has its digits.
    whole, rounding = _largest(integral), _LOST * float(limits.eps) * _largest(before) * _largest(way)
    allowed = jnp.maximum(float(limits.eps) ** 0.75 * whole, jnp.minimum(rounding, 2.0**-10 * whole))
    lost_digits = _LOST * float(limits.eps) * (_largest(before) + _largest(base) * whole)
    jumps = _largest(plain - moved.finite_size * integral) > lost_digits + 2.0**-10 * moved.finite_size * whole
    smooth = (_largest(integral - mean_slope(*ends)) <= allowed) & ~jumps
    integrated, subtracted = near & smooth, ~near | (_largest(plain) > _PART * _largest(before))
    change = jnp.where(integrated, integral, plain)
    # A change of nearly nothing, where scores have changed, may have lost a part below the smallest number.
    lost = (_largest(change) < limits.tiny / limits.eps) & (_largest(moved.rows) > 0)
    if sparse:  # weights that are 0 before and after have not changed, unless powers of scores have underflowed
        tiny_scores = jnp.maximum(_largest(base), _largest(step)) < float(limits.tiny) ** 0.25
        lost &= (_largest(change) > 0) | tiny_scores
    known = (integrated | subtracted) & ~lost & jnp.isfinite(_largest(step)) & jnp.isfinite(_largest(base))
    return Scaled(jnp.where(known, change, jnp.nan), jnp.where(integrated[:, 0, 0], moved.log_size, 0))


def _crossed(
    weights: Callable[[Array], Array],
    levels: Columns,
    logits: Logits,
    shown: Bool[Array, "head token column"],
) -> tuple[Scaled, Bool[Array, " head"]]:
    """w(a + u + v) − w(a + v), and True for heads in which it holds; it is 0 in the others.

    It holds where the level u_i of a row and the differences v_j of its columns are small, where w changes neither with
    u at v = 0 nor with a kink on the way.
    """
    limits = jnp.finfo(levels.mean.dtype)
    level = levels.rest.map(lambda rows: jnp.where(shown, rows, 0))
    column = logits.in_columns.map(lambda row: jnp.where(shown, row[:, None], 0))
    steps = [way.finite_size * way.rows for way in (level, column)]
    far = _largest(steps[0]) + _largest(steps[1])
    near = far < _NEAR
    along_level, along_column, u, v = (jnp.where(near, each, 0) for each in (level.rows, column.rows, *steps))
    base = jnp.broadcast_to(levels.mean[:, None], u.shape)

    def slopes(x: Array) -> tuple[Array, Array]:
        return jax.jvp(weights, (x,), (along_column,))[1], jax.jvp(weights, (x,), (along_level,))[1]

    def add(totals: Array, node: tuple[Array, ...]) -> tuple[Array, None]:
        at = base + node[0] * u + node[1] * v
        # D²w[level, column]
        second = jax.jvp(lambda x: jax.jvp(weights, (x,), (along_level,))[1], (at,), (along_column,))[1]
        return totals + node[2][:, None, None, None] * second[None], None

    # Its mean over the square of s and t, and along three sides of it; then the slopes in the corners.
    points, totals = _square(5 if limits.bits > 32 else 3)
    rule = tuple(jnp.asarray(part, base.dtype) for part in (points[0], points[1], totals))
    crossed, of_u, of_v, of_v_at_u = jax.lax.scan(add, jnp.zeros((4, *base.shape), base.dtype), rule)[0]
    by_column, by_level = jax.lax.map(slopes, jnp.stack([base, base + u, base + v, base + u + v]))

    # At equal scores a level changes nothing. Along a side slopes change by the second derivative, unless it is kinked.
    rounding, loose = _LOST * float(limits.eps), float(limits.eps) ** 0.75
    most = [jnp.where((size := _largest(way)) > 0, size, 1) for way in (along_column, along_level)]
    slope = _largest(by_column[0]) / most[0]
    holds = near & (_largest(by_level[0]) <= rounding * slope * most[1])
    for (start, end), slope_of, way, part, mean_second, side in (
        ((0, 1), by_column, most[0], level, of_u, most[1]),
        ((0, 2), by_level, most[1], column, of_v, most[0]),
        ((1, 3), by_level, most[1], column, of_v_at_u, most[0]),
    ):
        bend = part.finite_size * mean_second
        left = _largest(slope_of[end] - slope_of[start] - bend)
        # Slopes are rounded, and so is the point a at which they are taken.
        holds &= left <= rounding * (slope * way + _largest(crossed) * _largest(base) / side) + loose * _largest(bend)
    return Scaled(jnp.where(holds, crossed, 0), level.log_size + column.log_size), holds[:, 0, 0]


def _largest(rows: Float[Array, "head token column"]) -> Float[Array, "head 1 1"]:
    """The largest magnitude of each head."""
    return jax.lax.stop_gradient(jnp.max(jnp.abs(rows), axis=(1, 2), keepdims=True))


def _with_zero_sums(
    rows: Float[Array, "head token column"], before: Float[Array, "head token column"]
) -> Float[Array, "head token column"]:
    """Rows that sum to 0: the change of the largest weight, which has lost its digits, is minus that of the others."""
    largest = jax.nn.one_hot(jnp.argmax(jnp.abs(before), axis=-1), rows.shape[-1], dtype=bool)
    others = jnp.where(largest, 0, rows)
    return jnp.where(largest, -jnp.sum(others, axis=-1, keepdims=True), others)


def _gauss_legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    points, doubled = np.polynomial.legendre.leggauss(count)
    return (points + 1) / 2, doubled / 2


def _square(count: int) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Points of the unit square, and four rules on them: the square, and its sides (s, 0), (0, t) and (1, t)."""
    nodes, weights = _gauss_legendre(count)
    zero, one = np.zeros_like(nodes), np.ones_like(nodes)
    of_s, of_t = (part.ravel() for part in np.meshgrid(nodes, nodes))
    s, t = (np.concatenate(parts) for parts in ((of_s, nodes, zero, one), (of_t, zero, nodes, nodes)))
    rules = np.zeros((s.size, 4))
    rules[: of_s.size, 0] = np.outer(weights, weights).ravel()
    for side in range(3):
        rules[of_s.size + side * count :, side + 1][:count] = weights
    return (s, t), rules


def _gauss_lobatto(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1] with both ends, exact for polynomials up to degree 2·count − 3."""
    last = np.polynomial.legendre.Legendre.basis(count - 1)
    points = np.concatenate([[-1.0], np.sort(last.deriv().roots().real), [1.0]])
    return (points + 1) / 2, 1 / (count * (count - 1) * last(points) ** 2)


# By precision: the rule, and another one with both ends in it.
_RULES = {False: (_gauss_legendre(4), _gauss_lobatto(5)), True: (_gauss_legendre(8), _gauss_lobatto(9))}
