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
from rc_jax.collapse.exact.state import (
    Columns,
    Logits,
    exp_below,
    log1p_ratio,
    log_softmax,
    sum_at_largest,
)

_NEAR = 1.0  # beyond this |cÊ| the normalisers of rows are subtracted as whole numbers


def level(query: Columns, key: Columns, factor: Float[Array, "head #width"], precision: str) -> Columns:
    """What all logits of a row share: α q̄·k̄, and e^ℓ times α q̂_i·k̄."""
    weighed = factor * key.mean
    mean = jnp.einsum("hk,hk->h", query.mean, weighed, precision=precision)
    rows = jnp.einsum("hik,hk->hi", query.rows, weighed, precision=precision)
    return Columns(mean[:, None], rows[..., None], query.log_size)


def capped(
    levels: Columns, logits: Logits, cap: float, seen: Bool[Array, "#head token column"] | None
) -> tuple[Columns, Logits]:
    """Level, slope and pair part of T(s) = C tanh(s/C) for logits s_ij = w + e^ℓ x_i + e^ℓ' y_j + e^m z_ij.

    Where the parts of columns and pairs are small, the new level is T(w + e^ℓ x_i), the new slope
    T(w + e^ℓ' y_j) − T(w), and the pair part what is left. Where |w| is large all three are of order e^(−2|w|), which
    goes to their logarithms.
    Where a part is large those three cancel, and the first row takes the place of the mean (`_capped_far`).
    """
    slope, log_slope = logits.in_columns
    w, x, y, z = levels.mean[..., None] / cap, levels.rows / cap, slope[:, None] / cap, logits.pair / cap
    size_x, size_y, size_z = (jnp.exp(log)[:, None, None] for log in (levels.log_size, log_slope, logits.log_pair))
    row, column = w + size_x * x, w + size_y * y
    both = row + size_y * y
    # sinh(a − b)/((a − b) cosh a cosh b) is the mean slope of tanh from b to a, here for x, y and z in turn.
    of_row, of_column = _mean_slope(size_x * x, row, w), _mean_slope(size_y * y, column, w)
    of_pair, log_pair = _at_largest(*_mean_slope(size_z * z, both + size_z * z, both))
    # tanh(w+x+y) − tanh(w+x) − tanh(w+y) + tanh(w) = −(tanh(w+x+y) + tanh w) sinh x sinh y/(cosh(w+x) cosh(w+y)), and
    # cosh² w = e^{2|w|} ((1 + e^{−2|w|})/2)². The sum of two tanhs is a slope times a step too, from −w to w+x+y.
    size, of_sum = jnp.abs(w), _mean_slope(both + w, both, -w)
    crossed = x * y * of_row[0] * of_column[0] * jnp.square((1 + jnp.exp(-2 * size)) / 2) * (both + w) * of_sum[0]
    crossed, log_crossed = _at_largest(crossed, of_row[1] + of_column[1] + of_sum[1] + 2 * size)
    (of_row, log_row), (of_column, log_column) = _at_largest(*of_row), _at_largest(*of_column)
    rows = Columns(cap * jnp.tanh(w[..., 0]), cap * x * of_row, levels.log_size + log_row)
    parts, logs = [z * of_pair, -crossed], [logits.log_pair + log_pair, levels.log_size + log_slope + log_crossed]
    rest, log_rest = sum_at_largest(jnp.stack(parts), jnp.stack(logs))
    near = rows, Logits(None, cap * (y * of_column)[:, 0], log_slope + log_column, cap * rest, log_rest)

    far = (jnp.max(jnp.abs(size_y * y), axis=(1, 2)) > 1) | (jnp.max(jnp.abs(size_z * z), axis=(1, 2)) > 1)
    by_first = _capped_far(w, size_x * x, size_y * y, size_z * z, cap, seen)
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
    rest = jnp.where(onside, -2 * side / (1 + jnp.exp(-2 * jnp.abs(whole))), jnp.tanh(whole) - side)
    # From the first row: a mean slope of tanh where the levels are equal, the difference of two rests elsewhere.
    alike, step = side == side[:, :1], x - x[:, :1] + (z - z[:, :1])
    slope, log_slope = _mean_slope(step, whole, jnp.broadcast_to(whole[:, :1], whole.shape))
    parts = [
        _at_largest(jnp.where(alike, step * slope, 0), log_slope),
        _at_largest(jnp.where(alike, 0, rest), power),
        _at_largest(jnp.where(alike, 0, -rest[:, :1]), jnp.broadcast_to(power[:, :1], power.shape)),
    ]
    pair, log_pair = sum_at_largest(*(jnp.stack(list(each)) for each in zip(*parts, strict=True)))
    first, log_first = _at_largest(rest[:, :1], power[:, :1])
    level = Columns(cap * side[:, 0], cap * (side - side[:, :1]), jnp.zeros_like(log_pair))
    return level, Logits(None, cap * first[:, 0], log_first, cap * pair, log_pair)


def _mean_slope(t: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """sinh(t)/(t cosh a cosh b) for t = a − b, as a number of ordinary size and the power of e that multiplies it."""
    # Of e^(|t| − |a| − |b|) the power is 0 across the origin, and −2 times the smaller of |a| and |b| beside it.
    power = -2 * jnp.where((a < 0) != (b < 0), 0, jnp.minimum(jnp.abs(a), jnp.abs(b)))
    both = (1 + jnp.exp(-2 * jnp.abs(a))) * (1 + jnp.exp(-2 * jnp.abs(b)))
    return 4 * expm1_ratio(-2 * jnp.abs(t)) / both, power


def _at_largest(x: Array, power: Array) -> tuple[Array, Array]:
    """e^(power − m) x, and m, the largest power of each head among numbers that are not 0."""
    top = jnp.max(jnp.where(x == 0, -jnp.inf, power), axis=(1, 2))
    top = jax.lax.stop_gradient(jnp.where(jnp.isneginf(top), jnp.max(power, axis=(1, 2)), top))
    return exp_below(power, top) * x, top


def sinkhorn(logits: Logits, seen: Bool[Array, "#head token column"] | None, steps: int) -> Float[Array, "head column"]:
    """r_j plus the logarithm of column j's factor, after `steps` divisions by row and column sums in turn.

    A column's factor is the same for all rows, so an error in it moves no two rows apart.
    """
    common, pair = logits.common, _square(logits) * logits.pair
    for _ in range(steps // 2):
        whole = common[:, None] + pair
        whole = whole if seen is None else jnp.where(seen, whole, -jnp.inf)
        common = common - jax.nn.logsumexp(log_softmax(whole), axis=-2)
    return common


def _square(logits: Logits) -> Float[Array, "head 1 1"]:
    """The factor c = e^log_pair of the pair part, cut at the dtype's largest number."""
    return jnp.minimum(jnp.exp(logits.log_pair), jnp.finfo(logits.pair.dtype).max)[:, None, None]


def log_normaliser(
    logits: Logits, seen: Bool[Array, "#head token column"] | None
) -> tuple[Float[Array, "head 1"], Float[Array, "part head token 1"], Float[Array, "part head"]]:
    """Log Σ_j e^{r_j + cÊ_ij} over what row i sees: the first row's log Σ_j e^{r_j}, parts of the rest, their logs.

    Of n_i columns with small r_j the sum is log n_i + log(1 + Σ_j (e^{r_j} − 1)/n_i), so that rows that see as many
    columns differ at the order of r. This is the first part, and the second is c ẑ_i of `state`. In heads with large r
    or cÊ the first is the whole difference.
    """
    slope, log_slope = logits.in_columns
    square, pair, shown = _square(logits), logits.pair, jnp.ones_like(logits.pair, dtype=bool)
    if seen is not None:
        pair, shown = jnp.where(seen, pair, 0), jnp.broadcast_to(seen, pair.shape)
    slope = jnp.where(shown, slope[:, None], 0)
    size = jnp.minimum(jnp.exp(log_slope), jnp.finfo(slope.dtype).max)[:, None, None]
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
    parts = [across, jnp.where(alike, 0, of_columns - of_columns[:, :1]), growth * log1p_ratio(square * growth)]
    return first[:, 0], jnp.stack(parts), jnp.stack([jnp.zeros_like(log_slope), log_slope, logits.log_pair])


def above_sink(levels: Columns, normaliser: tuple[Array, Array, Array], sink: Float[Array, " head"]) -> Columns:
    """The logit L_i − b of the gate: level_i + log Σ_j e^{r_j + cÊ_ij} − b."""
    first, parts, logs = normaliser
    rows, log_size = sum_at_largest(
        jnp.concatenate([levels.rows[None], parts]), jnp.concatenate([levels.log_size[None], logs])
    )
    return Columns(levels.mean + first - sink[:, None], rows, log_size)


def gated(outputs: Columns, logits: Columns) -> Columns:
    """Outputs of heads times sigmoid(logits): one logit for each feature of a head, or one for the head."""
    base, change, log_change, whole, log_whole = _sigmoids(logits)
    parts = jnp.stack([change * outputs.mean[:, None], whole * outputs.rows])
    return Columns(base * outputs.mean, *sum_at_largest(parts, jnp.stack([log_change, outputs.log_size + log_whole])))


def by_sigmoids(
    levels: Columns,
    logits: Logits,
    seen: Bool[Array, "#head token column"] | None,
    value: Columns,
    precision: str,
) -> Columns:
    """Heads whose weights are sigmoid(level_i + r_j + cÊ_ij − log n)."""
    rows, log_tokens = jnp.broadcast_to(levels.rows, logits.pair.shape), math.log(logits.pair.shape[-1])
    change = sum_at_largest(jnp.stack([rows, logits.pair]), jnp.stack([levels.log_size, logits.log_pair]))
    mean = levels.mean + logits.common - log_tokens
    base, moved, log_moved, *_ = _sigmoids(Columns(mean, *change))
    weights, across, log_across = base[:, None], jnp.zeros_like(moved), jnp.zeros_like(log_moved)
    if seen is not None:
        weights = jnp.where(seen[:, :1], weights, 0)
        logs = jax.nn.log_sigmoid(mean)
        log_across = jax.lax.stop_gradient(jnp.max(logs, axis=-1))
        across = seen.astype(moved.dtype) - seen[:, :1].astype(moved.dtype)
        across = across * jnp.exp(logs - log_across[:, None])[:, None]
        moved = jnp.where(seen, moved, 0)

    def through(rows: Array) -> tuple[Array, Array]:
        """Rows of weights times v̄, and times V̂."""
        sums = jnp.sum(rows, axis=-1, keepdims=True) * value.mean[:, None]
        return sums, jnp.einsum("hij,hjk->hik", rows, value.rows, precision=precision)

    # The weights of the first row make the mean; the others differ in what they see, and in their logits.
    centre, spread = through(weights)
    logs = [log_across, log_across + value.log_size, log_moved, log_moved + value.log_size]
    out = sum_at_largest(jnp.stack([*through(across), *through(moved)]), jnp.stack(logs))
    return Columns(centre[:, 0] + jnp.exp(value.log_size)[:, None] * spread[:, 0], *out)


def difference(first: Columns, second: Columns, subtracted: Float[Array, " head"]) -> Columns:
    """Heads less λ times other heads."""
    factor = subtracted[:, None]
    parts = jnp.stack([first.rows, -factor[..., None] * second.rows])
    rows = sum_at_largest(parts, jnp.stack([first.log_size, second.log_size]))
    return Columns(first.mean - factor * second.mean, *rows)


def _sigmoids(logits: Columns) -> tuple[Array, Array, Array, Array, Array]:
    """σ̄ of the mean; e^−m times the rows' differences from it, and m; e^−k times the rows' own sigmoids, and k.

    The powers m and k of each head hold what sigmoids below the smallest number would lose.
    """
    gap = jnp.exp(logits.log_size)[:, None, None] * logits.rows
    at_rows = logits.mean[:, None] + gap
    # sigmoid(b) − sigmoid(a) = sigmoid(a) sigmoid(−b) (e^δ − 1), δ = b − a, and e^δ − 1 = δ f(−|δ|) e^max(δ, 0). Of the
    # three powers of e nothing is left where a and b have opposite signs, and −min(|a|, |b|) elsewhere.
    mean = logits.mean[:, None]
    power = -jnp.where((mean < 0) != (at_rows < 0), 0, jnp.minimum(jnp.abs(mean), jnp.abs(at_rows)))
    power = power - jnp.log1p(jnp.exp(-jnp.abs(mean))) - jnp.log1p(jnp.exp(-jnp.abs(at_rows)))
    log_whole = jax.nn.log_sigmoid(at_rows)
    top, most = (jax.lax.stop_gradient(jnp.max(logs, axis=(1, 2))) for logs in (power, log_whole))
    change = logits.rows * expm1_ratio(-jnp.abs(gap)) * jnp.exp(power - top[:, None, None])
    whole = jnp.exp(log_whole - most[:, None, None])
    return jax.nn.sigmoid(logits.mean), change, logits.log_size + top, whole, most
