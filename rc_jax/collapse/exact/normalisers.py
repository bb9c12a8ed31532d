"""Weights whose rows do not sum to 1, capped logits and gates, on split tokens (`rc_jax.collapse.exact.state`).

A softmax does not see what its row's logits share, α q_i·k̄, here the *level* of the row. These weights see it:

    one more logit b   P = sigmoid(L_i − b) softmax(s)_ij, L_i = log Σ_j e^{s_ij}: softmax whose output passes a gate
    sigmoid            P = sigmoid(level_i + r_j + cÊ_ij − log n)
    a capped logit     C tanh(s_ij/C), whose pair part has a term from the product of the two single ones

Every difference of two sigmoids or tanhs is written as a product, sigmoid(a + δ) − sigmoid(a) = sigmoid(a)
sigmoid(−a−δ)(e^δ − 1), so no digit is lost however small e^ℓ is. A gate multiplies h̄ + e^λ ĥ_i by σ̄ + e^m σ̂_i, which
gives

    σ̄ h̄ + e^m σ̂_i h̄ + e^λ σ_i ĥ_i:

rows of different sums keep a difference of first order, e^ℓ, along h̄, and the cube of softmax is lost. Differences of
two softmaxes, and Sinkhorn's column factors, which all rows share, keep it. This package's own results.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rc_jax._numerics.stable import expm1_ratio
from rc_jax.collapse.exact.moves import Moves
from rc_jax.collapse.exact.scaled import Scaled, einsum, total
from rc_jax.collapse.exact.state import Columns, Logits, exp_below, log1p_ratio, log_softmax

_NEAR = 1.0  # beyond this |cÊ| the normalisers of rows are subtracted as whole numbers


def level(query: Columns, key: Columns, factor: Float[Array, "head #width"], precision: str) -> Columns:
    """What all logits of a row share: α q̄·k̄, and e^ℓ times α q̂_i·k̄."""
    weighed = factor * key.mean
    mean = jnp.einsum("hk,hk->h", query.mean, weighed, precision=precision)
    rest = einsum("hik,hk->hi", query.rest, weighed, precision=precision)
    return Columns(mean[:, None], rest.map(lambda rows: rows[..., None]))


def capped(
    levels: Columns, logits: Logits, cap: float, seen: Bool[Array, "#head token column"] | None
) -> tuple[Columns, Logits]:
    """Level, slope and pair part of T(s) = C tanh(s/C) for logits s_ij = w + e^ℓ x_i + e^ℓ' y_j + e^m z_ij.

    Where the parts of columns and pairs are small, the new level is T(w + e^ℓ x_i), the new slope
    T(w + e^ℓ' y_j) − T(w), and the pair part what is left. Where |w| is large all three are of order e^(−2|w|), which
    goes to their logarithms.
    Where a part is large those three cancel, and the first row takes the place of the mean (`_capped_far`).
    """
    w, x, z = levels.mean[..., None] / cap, levels.rest / cap, logits.pair / cap
    y = logits.in_columns.map(lambda slope: slope[:, None]) / cap
    value_x, value_y, value_z = (part.value for part in (x, y, z))
    row, column = w + value_x, w + value_y
    both = row + value_y
    # sinh(a − b)/((a − b) cosh a cosh b) is the mean slope of tanh from b to a, here for x, y and z in turn.
    row_slope, column_slope = _mean_slope(value_x, row, w), _mean_slope(value_y, column, w)
    of_pair = _by_head(_mean_slope(value_z, both + value_z, both))
    # tanh(w+x+y) − tanh(w+x) − tanh(w+y) + tanh(w) = −(tanh(w+x+y) + tanh w) sinh x sinh y/(cosh(w+x) cosh(w+y)), and
    # cosh² w = e^{2|w|} ((1 + e^{−2|w|})/2)². The sum of two tanhs is a slope times a step too, from −w to w+x+y.
    size, sum_slope = jnp.abs(w), _mean_slope(both + w, both, -w)
    square, step = jnp.square((1 + jnp.exp(-2 * size)) / 2), both + w
    of_steps = row_slope * (x.rows * y.rows) * column_slope * square * step * sum_slope
    crossed = _by_head(of_steps.times_exp(2 * size)).times_exp(x.log_size + y.log_size)
    of_row, of_column = _by_head(row_slope), _by_head(column_slope)
    new_levels = Columns(cap * jnp.tanh(w[..., 0]), x * cap * of_row)
    new_slope = (y * of_column * cap).map(lambda slope: slope[:, 0])
    new_pair = (z * of_pair + crossed.map(jnp.negative)) * cap
    near = new_levels, Logits(None, new_slope, new_pair)

    far = (jnp.max(jnp.abs(value_y), axis=(1, 2)) > 1) | (jnp.max(jnp.abs(value_z), axis=(1, 2)) > 1)
    by_first = _capped_far(w, value_x, value_y, value_z, cap, seen)
    chosen = [
        jnp.where(jnp.expand_dims(far, tuple(range(1, first.ndim))), first, other)
        for first, other in zip(jax.tree.leaves(by_first), jax.tree.leaves(near), strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(near), chosen)


def _capped_far(
    w: Array, x: Array, y: Array, z: Array, cap: float, seen: Bool[Array, "#head token column"] | None
) -> tuple[Columns, Logits]:
    """The same of logits C (w + x_i + y_j + z_ij) that a cap saturates, relative to the first row.

    A row whose logits all have one sign ς has the level Cς, and its logits are C (ς + v_ij) with
    v_ij = −2ς/(1 + e^(2|s_ij|)), a number that keeps its digits. Other rows have the level 0.
    """
    whole = w + x + y + z
    shown = jnp.ones_like(whole, dtype=bool) if seen is None else jnp.broadcast_to(seen, whole.shape)
    positive, negative = (jnp.all(~shown | sign, axis=-1, keepdims=True) for sign in (whole > 0, whole < 0))
    side = positive.astype(whole.dtype) - negative.astype(whole.dtype)
    onside = whole * side > 0  # not so where a column is hidden from the row
    power = jnp.where(onside, -2 * jnp.abs(whole), 0)
    rest = Scaled(jnp.where(onside, -2 * side / (1 + jnp.exp(-2 * jnp.abs(whole))), jnp.tanh(whole) - side), power)
    first = jax.tree.map(lambda entries: entries[:, :1], rest)
    # From the first row: a mean slope of tanh where the levels are equal, the difference of two rests elsewhere.
    alike, step = side == side[:, :1], x - x[:, :1] + (z - z[:, :1])
    slope = _mean_slope(step, whole, jnp.broadcast_to(whole[:, :1], whole.shape))
    parts = [
        (slope * step).map(lambda rows: jnp.where(alike, rows, 0)),
        rest.map(lambda rows: jnp.where(alike, 0, rows)),
        Scaled(jnp.where(alike, 0, -first.rows), jnp.broadcast_to(first.log_size, whole.shape)),
    ]
    pair, first_by_head = total([_by_head(part) for part in parts]), _by_head(first)
    level = Columns(cap * side[:, 0], Scaled.plain(cap * (side - side[:, :1])))
    return level, Logits(None, (first_by_head * cap).map(lambda slope: slope[:, 0]), pair * cap)


def _mean_slope(t: Array, a: Array, b: Array) -> Scaled:
    """sinh(t)/(t cosh a cosh b) for t = a − b, with a logarithm for each entry."""
    # Of e^(|t| − |a| − |b|) the power is 0 across the origin, and −2 times the smaller of |a| and |b| beside it.
    power = -2 * jnp.where((a < 0) != (b < 0), 0, jnp.minimum(jnp.abs(a), jnp.abs(b)))
    both = (1 + jnp.exp(-2 * jnp.abs(a))) * (1 + jnp.exp(-2 * jnp.abs(b)))
    return Scaled(4 * expm1_ratio(-2 * jnp.abs(t)) / both, power)


def _by_head(x: Scaled) -> Scaled:
    """Numbers that have a logarithm each with one for each head instead: the largest among those that are not 0."""
    top = jnp.max(jnp.where(x.rows == 0, -jnp.inf, x.log_size), axis=(1, 2))
    top = jax.lax.stop_gradient(jnp.where(jnp.isneginf(top), jnp.max(x.log_size, axis=(1, 2)), top))
    return Scaled(exp_below(x.log_size, top) * x.rows, top)


def sinkhorn(logits: Logits, seen: Bool[Array, "#head token column"] | None, steps: int) -> Float[Array, "head column"]:
    """r_j plus the logarithm of column j's factor, after `steps` divisions by row and column sums in turn.

    A column's factor is the same for all rows, so an error in it moves no two rows apart.
    """
    common, pair = logits.common, logits.pair.finite_size * logits.pair.rows
    for _ in range(steps // 2):
        whole = common[:, None] + pair
        whole = whole if seen is None else jnp.where(seen, whole, -jnp.inf)
        common = common - jax.nn.logsumexp(log_softmax(whole), axis=-2)
    return common


def log_normaliser(
    logits: Logits, seen: Bool[Array, "#head token column"] | None
) -> tuple[Float[Array, "head 1"], list[Scaled]]:
    """Log Σ_j e^{r_j + cÊ_ij} over what row i sees: the first row's log Σ_j e^{r_j}, and parts of the rest.

    Of n_i columns with small r_j the sum is log n_i + log(1 + Σ_j (e^{r_j} − 1)/n_i), so that rows that see as many
    columns differ at the order of r. This is the first part, and the second is c ẑ_i of `state`. In heads with large r
    or cÊ the first is the whole difference.
    """
    in_columns = logits.in_columns
    square, pair, shown = logits.pair.finite_size, logits.pair.rows, jnp.ones_like(logits.pair.rows, dtype=bool)
    if seen is not None:
        pair, shown = jnp.where(seen, pair, 0), jnp.broadcast_to(seen, pair.shape)
    columns = in_columns.map(lambda slope: jnp.where(shown, slope[:, None], 0))
    slope, size = columns.rows, columns.finite_size
    shared = jnp.where(shown, size * slope, -jnp.inf)
    far = jnp.max(jnp.abs(square * pair), axis=(1, 2), keepdims=True) > _NEAR
    steep = far | (jnp.max(jnp.abs(size * slope), axis=(1, 2), keepdims=True) > _NEAR)

    count = jnp.sum(shown, axis=-1, keepdims=True).astype(pair.dtype)
    gentle = jnp.where(steep, 0, slope)
    mean = jnp.sum(gentle * expm1_ratio(size * gentle), axis=-1, keepdims=True) / count
    of_columns = mean * log1p_ratio(size * mean)
    plain = jax.nn.logsumexp(shared, axis=-1, keepdims=True)
    first = jnp.where(steep, plain, jnp.log(count) + size * of_columns)[:, :1]
    # Rows that see the same columns differ by c ẑ_i only.
    alike = jnp.all(shown == shown[:, :1], axis=-1, keepdims=True)
    whole = jnp.where(far, jax.nn.logsumexp(shared + square * pair, axis=-1, keepdims=True), plain)
    across = jnp.where(steep, jnp.where(alike & ~far, 0, whole - first), jnp.log(count / count[:, :1]))
    near = jnp.where(far, 0, pair)
    growth = jnp.sum(jnp.exp(log_softmax(shared)) * near * expm1_ratio(square * near), axis=-1, keepdims=True)
    parts = [
        Scaled.plain(across),
        Scaled(jnp.where(alike, 0, of_columns - of_columns[:, :1]), columns.log_size),
        Scaled(growth * log1p_ratio(square * growth), logits.pair.log_size),
    ]
    return first[:, 0], parts


def above_sink(
    levels: Columns, normaliser: tuple[Array, list[Scaled]], sink: Float[Array, " head"], moves: Moves
) -> Columns:
    """The logit L_i − b of the gate: level_i + log Σ_j e^{r_j + cÊ_ij} − b."""
    first, parts = normaliser
    rest = total([moves.own_of_heads(levels.rest, 14), *parts])  # with positions the two may cancel
    return Columns(levels.mean + first - sink[:, None], rest)


def gated(outputs: Columns, logits: Columns) -> Columns:
    """Outputs of heads times sigmoid(logits): one logit for each feature of a head, or one for the head."""
    base, change, whole = _sigmoids(logits)
    return Columns(base * outputs.mean, change * outputs.mean[:, None] + whole * outputs.rest)


def by_sigmoids(
    levels: Columns,
    logits: Logits,
    seen: Bool[Array, "#head token column"] | None,
    value: Columns,
    precision: str,
    moves: Moves,
) -> Columns:
    """Heads whose weights are sigmoid(level_i + r_j + cÊ_ij − log n)."""
    log_tokens = math.log(logits.pair.rows.shape[-1])
    apart = levels.rest + logits.pair
    mean = moves.columns((levels.mean + logits.common - log_tokens)[:, None])[:, 0]
    base, moved, _ = _sigmoids(Columns(mean, apart))
    weights, across = base[:, None], Scaled.plain(jnp.zeros_like(moved.rows))
    if seen is not None:
        weights = jnp.where(seen[:, :1], weights, 0)
        logs = jax.nn.log_sigmoid(mean)
        log_across = jax.lax.stop_gradient(jnp.max(logs, axis=-1))
        only_seen = seen.astype(mean.dtype) - seen[:, :1].astype(mean.dtype)
        across = Scaled(only_seen * jnp.exp(logs - log_across[:, None])[:, None], log_across)
        moved = moved.map(lambda rows: jnp.where(seen, rows, 0))

    def through(rows: Array) -> tuple[Array, Scaled]:
        """Rows of weights times v̄, and times V̂."""
        sums = jnp.sum(rows, axis=-1, keepdims=True) * value.mean[:, None]
        return sums, einsum("hij,hjk->hik", rows, value.rest, precision=precision)

    def parts(rows: Scaled) -> list[Scaled]:
        at_mean, at_rest = through(rows.rows)
        return [Scaled(at_mean, rows.log_size), at_rest.times_exp(rows.log_size)]

    # The weights of the first row make the mean; the others differ in what they see, and in their logits.
    centre, spread = through(weights)
    rest = total([*parts(across), *parts(moved)])
    return Columns(centre[:, 0] + spread.value[:, 0], rest)


def difference(first: Columns, second: Columns, subtracted: Float[Array, " head"]) -> Columns:
    """Heads less λ times other heads."""
    factor = subtracted[:, None]
    return Columns(first.mean - factor * second.mean, first.rest + second.rest * -factor[..., None])


def _sigmoids(logits: Columns) -> tuple[Array, Scaled, Scaled]:
    """σ̄ of the mean, the differences of the rows' sigmoids from it, and the rows' own sigmoids.

    The logarithms of each head hold what sigmoids below the smallest number would lose.
    """
    gap = logits.rest.value
    at_rows = logits.mean[:, None] + gap
    # sigmoid(b) − sigmoid(a) = sigmoid(a) sigmoid(−b) (e^δ − 1), δ = b − a, and e^δ − 1 = δ f(−|δ|) e^max(δ, 0). Of the
    # three powers of e nothing is left where a and b have opposite signs, and −min(|a|, |b|) elsewhere.
    mean = logits.mean[:, None]
    power = -jnp.where((mean < 0) != (at_rows < 0), 0, jnp.minimum(jnp.abs(mean), jnp.abs(at_rows)))
    power = power - jnp.log1p(jnp.exp(-jnp.abs(mean))) - jnp.log1p(jnp.exp(-jnp.abs(at_rows)))
    log_whole = jax.nn.log_sigmoid(at_rows)
    top, most = (jax.lax.stop_gradient(jnp.max(logs, axis=(1, 2))) for logs in (power, log_whole))
    change = logits.rest * expm1_ratio(-jnp.abs(gap)) * Scaled(jnp.exp(power - top[:, None, None]), top)
    whole = Scaled(jnp.exp(log_whole - most[:, None, None]), most)
    return jax.nn.sigmoid(logits.mean), change, whole
