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

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rc_jax.attention import Kind
from rc_jax.collapse.exact.moves import Moves
from rc_jax.collapse.exact.scaled import Scaled, einsum, total
from rc_jax.collapse.exact.state import Columns, Logits

_NEAR = 0.1  # of the largest difference of a score, below which weights are integrated and not subtracted
_ALIKE = 16  # roundings, up to which weights are equal
_LOST = 128  # roundings that slopes may have
_JUMP = 0.125  # of the weights, which no few roundings of the scores change smoothly
_PART = 2.0**-8  # of the weights, above which their difference has lost at most eight bits
_CANCELLED = 1024  # roundings of their parts, below which scores may be nothing else


def by_kind(
    levels: Columns,
    logits: Logits,
    seen: Bool[Array, "#head token column"] | None,
    value: Columns,
    kind: Kind,
    weights: Callable[[Array], Array],
    precision: str,
    moves: Moves,
) -> Columns:
    """Heads whose weights are `weights(level_i + r_j + cÊ_ij)`, a function that hides what is not seen."""
    if kind.maps > 1:  # the scores of a head's matrices move together
        levels = levels._replace(rest=_alike(levels.rest, kind.maps))
        logits = Logits(logits.zeroth, _alike(logits.slope, kind.maps), _alike(logits.pair, kind.maps))
    shape = logits.pair.rows.shape
    shown = jnp.ones(shape, bool) if seen is None else jnp.broadcast_to(seen, shape)
    level, pair = (part.map(lambda rows: jnp.where(shown, rows, 0)) for part in (levels.rest, logits.pair))
    centre = logits.common if kind.shift_invariant else logits.common + levels.mean
    # Scores that a rounding has made equal, or cut in two by their place, move apart where numbers move.
    base = moves.columns(jnp.broadcast_to(centre[:, None], shape))
    before = start = weights(base)
    if kind.shift_invariant:
        # A row moves where its scores move apart; one that sees a single token never does.
        first = jnp.take_along_axis(pair.rows, jnp.argmax(shown, axis=-1, keepdims=True), axis=-1)
        apart = jnp.any(shown & (pair.rows != first), axis=-1, keepdims=True)
        moved = pair.map(lambda rows: jnp.where(apart, rows, 0))
    else:
        moved = level + pair
    crossed = moved.map(jnp.zeros_like)
    if kind.row_sum != "any" and not kind.shift_invariant and kind.maps == 1:
        # Where the level acts through differences of the columns alone, the pairs move rows that have it already.
        crossed, holds = _crossed(weights, levels, logits, shown)
        whole = ~holds[:, None, None]
        base = jnp.where(whole, base, base + level.finite_size * level.rows)
        log_moved = jnp.where(holds, pair.log_size, moved.log_size)
        moved, start = Scaled(jnp.where(whole, moved.rows, pair.rows), log_moved), weights(base)
    count = before.shape[0]
    parts = jnp.where(shown, _parts(levels, logits), 0)
    change = _change(weights, base, start, moved, shown, parts, kind, moves) + Scaled(
        crossed.rows[:count], crossed.log_size[:count]
    )

    shown = shown[:count]
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
    of_mean = Scaled(change_mean, change.log_size)
    if kind.row_sum == "any" and kind.shift_invariant and kind.maps == 1:
        sums, holds = _row_sums(weights, logits, moved, change, shown)
        log_sums = jnp.where(holds, sums.log_size, change.log_size)
        of_mean = Scaled(jnp.where(holds[:, None, None], sums.rows * value.mean[:, None], change_mean), log_sums)
    of_change = [of_mean, change_rest.times_exp(change.log_size)]
    rest = total([Scaled.plain(across_mean), across_rest, *of_change])
    return Columns(centre[:, 0] + spread.value[:, 0], rest)


def _change(
    weights: Callable[[Array], Array],
    base: Float[Array, "matrix token column"],
    before: Float[Array, "head token column"],
    moved: Scaled,
    shown: Bool[Array, "matrix token column"],
    parts: Float[Array, "matrix token column"],
    kind: Kind,
    moves: Moves,
) -> Scaled:
    """weights(base + moved) − before, for `before` = weights(base) of scores that are sums of `parts`."""
    limits = jnp.finfo(base.dtype)
    heads = before.shape[0]
    step = moved.finite_size * moved.rows
    largest_step = _by_head(_largest(step), heads)
    near = largest_step < _NEAR
    every = jnp.tile(near, (kind.maps, 1, 1))
    short, way = jnp.where(every, step, 0), jnp.where(every, moved.rows, 0)

    def slope(node: Array) -> Array:
        return jax.jvp(weights, (base + node * short,), (way,))[1]

    # ∫₀¹ J(base + t·short)·way dt by two rules at once, node by node, so that memory does not grow with nodes.
    nodes, inner, ends = _RULES[limits.bits > 32]

    def add(totals: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
        return totals + node[1][:, None, None, None] * slope(node[0])[None], None

    rule = jnp.asarray(nodes, base.dtype), jnp.asarray(np.stack([inner, ends], axis=1), base.dtype)
    integral, other = jax.lax.scan(add, jnp.zeros((2, *before.shape), base.dtype), rule)[0]
    plain = weights(base + step) - before
    # A kink between the ends makes two rules disagree by more than roundings do that are a thousandth at most, and a
    # jump makes the integral disagree with the plain difference by more than the roundings of the weights.
    size, most = _largest(before), _by_head(_largest(way), heads)
    whole, rounding = _largest(integral), _LOST * float(limits.eps) * size * most
    allowed = jnp.maximum(float(limits.eps) ** 0.75 * whole, jnp.minimum(rounding, 2.0**-10 * whole))
    scale = moved.finite_size[:heads]
    apart = _largest(plain - scale * integral)
    lost_digits = _LOST * float(limits.eps) * (size + _by_head(_largest(base), heads) * whole)
    witness = apart <= lost_digits + 2.0**-10 * scale * whole
    smooth = (_largest(integral - other) <= allowed) & (witness | ~near)
    integrated, subtracted = near & smooth, ~near | (_largest(plain) > _PART * size)
    change = jnp.where(integrated, integral, plain)
    # A change of nearly nothing, where scores have changed, may have lost a part below the smallest number.
    moves_scores = _by_head(_largest(moved.rows), heads) > 0
    lost = (_largest(change) < limits.tiny / limits.eps) & moves_scores
    if kind.sparse:  # weights that are 0 before and after have not changed, unless powers of scores have underflowed
        largest_base = _by_head(_largest(base), heads)
        lost &= (_largest(change) > 0) | (jnp.maximum(largest_base, largest_step) < float(limits.tiny) ** 0.25)
        lost |= _saturated(weights, base, before, change, kind) & moves_scores
    if kind.sparse and kind.shift_invariant and moves.amount is not None:
        # Weights that change by more than a few roundings do when scores move by some have made a choice.
        end = base + step
        lost |= _largest(weights(moves.beside(end)) - weights(end)) > _JUMP * _largest(before)
    if not kind.shift_invariant and moves.amount is not None:
        # Of scores that cancel in a whole row, or have no place, a kind without a scale sees nothing but roundings:
        # others in their place, or zeros, make other weights. Computations differ there, far more than roundings move.
        smallest, end = float(limits.tiny / limits.eps), base + step
        parts = jax.lax.stop_gradient(jnp.max(parts, axis=-1, keepdims=True))
        parts = jnp.where(parts > 0, parts + smallest, 0)
        left = jnp.max(jnp.where(shown, jnp.abs(end), 0), axis=-1, keepdims=True)
        cancelled = left < _CANCELLED * float(limits.eps) * parts
        drawn, there = moves.sums(jnp.zeros_like(end), _CANCELLED * parts, 13), weights(end)
        others = [weights(jnp.where(cancelled, other, end)) - there for other in (drawn, jnp.zeros_like(end))]
        most = jnp.maximum(jnp.maximum(_largest(before), _largest(there)), smallest)
        blind = jnp.maximum(*map(_largest, others)) > _PART * most
        # In these rows they differ by whole weights, and where changes count beside them, by as much as those.
        rows = jnp.any((cancelled & shown).reshape(kind.maps, *before.shape), axis=0)
        whole_weights = jnp.where(blind & rows & ~integrated, _largest(before) / float(limits.eps), 0)
        change = moves.sums(jnp.where(blind, change * (1 + jnp.abs(moves.amount)), change), whole_weights, 15)
    finite = jnp.isfinite(largest_step) & jnp.isfinite(_by_head(_largest(base), heads))
    known = (integrated | subtracted) & ~lost & finite
    # A change is a sum of terms of the size of the weight; what a saturated weight has lost shows in this move.
    change = moves.sums(change, jnp.abs(before) * jnp.where(integrated, _by_head(_largest(way), heads), 1), 9)
    return Scaled(jnp.where(known, change, jnp.nan), jnp.where(integrated[:, 0, 0], moved.log_size[:heads], 0))


def _parts(levels: Columns, logits: Logits) -> Array:
    """The magnitudes of what scores are sums of, added up."""
    whole, shared = (jnp.abs(part.finite_size * part.rows) for part in (levels.rest, logits.pair)), logits.slope
    of_columns = jnp.abs(shared.finite_size * shared.rows) + jnp.abs(levels.mean)
    of_columns += 0 if logits.zeroth is None else jnp.abs(logits.zeroth)
    return functools.reduce(jnp.add, whole, of_columns[:, None])


def _saturated(
    weights: Callable[[Array], Array], base: Array, before: Array, change: Array, kind: Kind
) -> Bool[Array, "head 1 1"]:
    """True where weights do not change, but do when their scores are divided by 4: a rounding has made them flat.

    Where a constant in a row changes nothing, scores of a flat row may differ by any number, and nothing is told.
    """
    if kind.shift_invariant:
        return jnp.zeros((before.shape[0], 1, 1), bool)
    flat = (_largest(change) == 0) & (_largest(before) > 0)
    return flat & (_largest(weights(base / 4) - before) > 0)


def _alike(part: Scaled, maps: int) -> Scaled:
    """The same numbers with one logarithm for all score matrices of a head."""
    top = jax.lax.stop_gradient(jnp.max(part.log_size.reshape(maps, -1), axis=0))
    top = jnp.tile(jnp.where(jnp.isfinite(top), top, 0), maps)
    return Scaled(jnp.expand_dims(jnp.exp(part.log_size - top), tuple(range(1, part.rows.ndim))) * part.rows, top)


def _by_head(sizes: Float[Array, "matrix 1 1"], heads: int) -> Float[Array, "head 1 1"]:
    """The largest over the score matrices of each head."""
    return jnp.max(sizes.reshape(-1, heads, 1, 1), axis=0)


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


def _row_sums(
    weights: Callable[[Array], Array],
    logits: Logits,
    pair: Scaled,
    change: Scaled,
    shown: Bool[Array, "head token column"],
) -> tuple[Scaled, Bool[Array, " head"]]:
    """The changes of the sums of rows under a constant in a row, and True for heads in which they are told.

    Where columns are alike and a constant in a row changes nothing, the sum σ of a row of equal scores is stationary:
    its derivative has equal entries that add up to 0. So with scores v_j of the columns and z_ij of the pairs

        σ(v + z) − σ(v) = ∫₀¹∫₀¹ D²σ(s(v + tz))[v + tz, z] ds dt,

    where summing the changes of a row's weights would lose as many digits as scores are small. It is told where scores
    are small and it agrees with that sum but for roundings.
    """
    limits = jnp.finfo(pair.rows.dtype)
    column = logits.in_columns.map(lambda row: jnp.where(shown, row[:, None], 0))
    top = jnp.maximum(column.log_size, pair.log_size)
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))[:, None, None]
    v, z = column.times_exp(-top[:, 0, 0]).value, pair.times_exp(-top[:, 0, 0]).value  # in units of the larger
    unit = jnp.minimum(jnp.exp(top), limits.max)
    near = unit * (_largest(v) + _largest(z)) < _NEAR
    unit, along = jnp.where(near, unit, 0), pair.rows

    def slope(x: Array) -> Array:
        return jax.jvp(weights, (x,), (along,))[1]

    def add(total: Array, node: tuple[Array, Array, Array]) -> tuple[Array, None]:
        way = v + node[1] * z
        second = jax.jvp(slope, (node[0] * unit * way,), (way,))[1]
        return total + node[2] * jnp.sum(second, axis=-1, keepdims=True), None

    (s, t), rules = _square(5 if limits.bits > 32 else 3)
    inside = rules[:, 0] > 0
    s, t, weight = (jnp.asarray(part[inside], v.dtype) for part in (s, t, rules[:, 0]))
    sums = Scaled(
        jax.lax.scan(add, jnp.zeros((*v.shape[:-1], 1), v.dtype), (s, t, weight))[0], pair.log_size + top[:, 0, 0]
    )
    plain = jnp.sum(change.rows, axis=-1, keepdims=True)
    apart = jnp.abs(plain - sums.times_exp(-change.log_size).value)
    allowed = _LOST * float(limits.eps) * jnp.sum(jnp.abs(change.rows), axis=-1, keepdims=True)
    return sums, near[:, 0, 0] & jnp.all(apart <= allowed, axis=(1, 2))


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


def _two_rules(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes, and the weights of two rules on them: one within, another with both ends in it."""
    (inner, weights), (ends, others) = _gauss_legendre(count), _gauss_lobatto(count + 1)
    zeros = np.zeros_like
    return np.concatenate([inner, ends]), np.append(weights, zeros(others)), np.append(zeros(weights), others)


_RULES = {False: _two_rules(4), True: _two_rules(8)}  # by precision
