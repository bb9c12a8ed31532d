"""Tokens as a common part and a scaled difference, and attention on them without cancellation.

Write X = 1x̄ᵀ + e^ℓ R̂ with columns of R̂ summing to 0 and ‖R̂‖_F = 1. Softmax over all tokens sees

    logits_ij = (row constant) + r_j + c Ê_ij,   r = e^ℓ R̂ W_K (W_Qᵀx̄ + b_Q) α,   Ê = R̂ W_Q W_Kᵀ R̂ᵀ α,   c = e^{2ℓ}

so that with p̃ = softmax(r), the row every token would share, and f(t) = expm1(t)/t, g(t) = log1p(t)/t

    ẑ_i = log Σ_k p̃_k e^{cÊ_ik} / c,    P_ij = p̃_j + c Δ̂_ij,    Δ̂_ij = p̃_j (Ê_ij − ẑ_i) f(c(Ê_ij − ẑ_i))

exactly, and the new difference is e^{3ℓ} Σ_h Δ̂_h R̂ W_h: the cube of the old one by construction, however small it is.
Under a mask row i has a p̃ of its own, softmax(r) over the tokens it sees, and adds e^ℓ res(p̃^(i) R̂ W_h): nothing where
all rows see the same tokens, the whole first order where they do not. Keeping the k largest scores is such a mask, and
near collapse, where r alone decides, one that all rows share.

With a rank the columns are E X = E1 x̄ᵀ + e^ℓ E R̂. Rows of E that sum to 1 keep all of the above, with E R̂ for R̂ in
keys and values; other rows make columns that differ at order 1, and e^ℓ takes the place of e^{2ℓ} and e^{3ℓ}.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.attention.layer import default_scale
from rc_jax.attention.queries import pool, project
from rc_jax.attention.weights import largest

# Up to this |cÊ| rows are compared with the one that all would share, beyond it with each other.
_NEAR = 1.0


class MeanResidual(NamedTuple):
    """X = 1·meanᵀ + e^log_size · direction, with ‖direction‖_F = 1, or direction = 0 where all tokens are equal.

    There log_size is what makes derivatives right: e^log_size · direction still changes as X does.
    """

    mean: Float[Array, " feature"]
    direction: Float[Array, "token feature"]
    log_size: Float[Array, ""]

    @property
    def log_norm(self) -> Float[Array, ""]:
        """Log ‖res(X)‖_F; −inf where all tokens are equal. What is not a number stays that."""
        return jnp.where(jnp.all(self.direction == 0), -jnp.inf, self.log_size)


class Heads(NamedTuple):
    """What every head gives out: its mean, and e^log_size times the tokens' rows; the rows' own means are not taken."""

    mean: Float[Array, "head width"]
    rows: Float[Array, "head token width"]
    log_size: Float[Array, " head"]


def decompose(x: Float[Array, "token feature"]) -> MeanResidual:
    """Split tokens into their mean and the scaled difference from it."""
    mean = jnp.mean(x, axis=0)
    difference = x - mean[None]
    missed = jnp.mean(difference, axis=0)
    return MeanResidual(mean + missed, *_direction(difference - missed[None], jnp.zeros((), x.dtype)))


def normalise(x: Float[Array, "token feature"]) -> tuple[Float[Array, "token feature"], Float[Array, ""]]:
    """x/‖x‖_F and log ‖x‖_F; zeros stay zeros, with log-norm −inf. What is not a number stays that."""
    limits = jnp.finfo(x.dtype)
    size = jax.lax.stop_gradient(jnp.clip(jnp.max(jnp.abs(x)), limits.tiny, limits.max / 16))
    unit = x / size  # its square can underflow neither in the value nor in the derivative
    square = jnp.sum(jnp.square(unit))
    zero = square == 0
    norm = jnp.sqrt(jnp.where(zero, 1, square))
    return unit / norm, jnp.where(zero, -jnp.inf, jnp.log(size * norm))


def _direction(x: Float[Array, "token feature"], log_size: Float[Array, ""]) -> tuple[Array, Float[Array, ""]]:
    """Direction and size of e^log_size · x. Zeros keep a size, at most 1, and the derivative that belongs to it."""
    unit, log_norm = normalise(x)
    zero = jnp.isneginf(log_norm)
    kept = jnp.minimum(log_size, 0)
    factor = jnp.exp(jnp.minimum(jnp.where(zero, log_size - kept, 0), _most(x.dtype)))
    return jnp.where(zero, factor * x, unit), jnp.where(zero, kept, log_size + log_norm)


def recenter(x: Float[Array, "token feature"]) -> tuple[Float[Array, "token feature"], Float[Array, " feature"]]:
    """Split a difference into one whose columns sum to zero, and the column means."""
    mean = jnp.mean(x, axis=0)
    return x - mean[None], mean


def from_rows(rows: Float[Array, "token feature"], log_size: Float[Array, ""]) -> MeanResidual:
    """e^log_size times a matrix that is given at an ordinary size, split into mean and scaled difference."""
    difference, mean = recenter(rows)
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(mean)))
    largest = jnp.where(largest > 0, largest, 1)
    # The size alone may overflow where its product with a small mean does not.
    mean = jnp.exp(log_size + jnp.log(largest)) * (mean / largest)
    return MeanResidual(mean, *_direction(difference, log_size))


def add(a: MeanResidual, b: MeanResidual) -> MeanResidual:
    """The sum of two token matrices, formed at the larger one's size."""
    both = jnp.stack([a.direction, b.direction]), jnp.stack([a.log_size, b.log_size])
    out = from_rows(*sum_at_largest(*both))
    return out._replace(mean=a.mean + b.mean + out.mean)


def sum_at_largest(
    parts: Float[Array, "part *shape"], logs: Float[Array, "part *batch"]
) -> tuple[Float[Array, "*shape"], Float[Array, "*batch"]]:
    """Σ e^log · part over e^reference, and the reference: the logarithm of the part whose largest entry is largest.

    A part that is 0 does not set the reference, so that it hides no other; its derivative is kept.
    """
    limits = jnp.finfo(parts.dtype)
    inner = tuple(range(logs.ndim, parts.ndim))
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(parts), axis=inner))
    size = jnp.where(largest > 0, jnp.clip(largest, limits.tiny, limits.max / 16), 1)
    logs = logs + jnp.log(size)
    reference = jnp.max(jnp.where(largest > 0, logs, -jnp.inf), axis=0)
    reference = jnp.where(jnp.isneginf(reference), jnp.max(logs, axis=0), reference)
    reference = jax.lax.stop_gradient(jnp.where(jnp.isfinite(reference), reference, 0))
    factors = jnp.exp(jnp.minimum(logs - reference[None], _most(parts.dtype)))
    return jnp.sum(jnp.expand_dims(factors, inner) * (parts / jnp.expand_dims(size, inner)), axis=0), reference


def _most(dtype: DTypeLike) -> float:
    """The logarithm of the largest factor that a derivative is given; a few of them in a row do not overflow."""
    return math.log(float(jnp.finfo(dtype).max)) / 4


def transform(state: MeanResidual, matrix: Float[Array, "feature out"], precision: str) -> MeanResidual:
    """Every token times a matrix."""
    out = from_rows(jnp.matmul(state.direction, matrix, precision=precision), state.log_size)
    return out._replace(mean=out.mean + jnp.matmul(state.mean, matrix, precision=precision))


def side_by_side(found: Heads) -> MeanResidual:
    """The heads' outputs as one row of features per token."""
    sizes = jax.lax.stop_gradient(jnp.max(found.log_size))
    reference = jnp.where(jnp.isfinite(sizes), sizes, 0)
    rows = jnp.exp(found.log_size - reference)[:, None, None] * found.rows
    out = from_rows(jnp.moveaxis(rows, 0, 1).reshape(rows.shape[1], -1), reference)
    return out._replace(mean=out.mean + found.mean.reshape(-1))


def attend(
    params: AttentionParams,
    state: MeanResidual,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
) -> MeanResidual:
    """One layer of softmax dot-product attention on the split tokens, its output split the same way."""
    found = heads(params, state, spec, scale, mask)
    rows = jnp.einsum("hik,hkd->hid", found.rows, params.output, precision=spec.precision)
    out = from_rows(*sum_at_largest(rows, found.log_size))
    mean = jnp.einsum("hk,hkd->d", found.mean, params.output, precision=spec.precision)
    if spec.bias:
        assert params.output_bias is not None
        mean = mean + params.output_bias
    return out._replace(mean=mean + out.mean)


def heads(
    params: AttentionParams,
    state: MeanResidual,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
) -> Heads:
    """The heads' outputs, before the output matrix: the layer up to there, in any number of features.

    Sizes are carried head by head: what one head gives may be far below the smallest number beside another's.
    """
    _, key, log_key = _columns(params, state, spec, params.key, params.key_bias)
    value_mean, value, log_value = _columns(params, state, spec, params.value, params.value_bias)
    slope, pair = score_parts(params, state.mean, state.direction, key, spec, scale)
    seen = None if mask is None else mask[None]
    if spec.top_k is not None:
        # The order of the logits over e^log_key, which may underflow.
        seen = largest(slope[:, None] + jnp.exp(state.log_size) * pair, seen, spec.top_k)
    shared, rest, log_rest = split_weights(jnp.exp(log_key)[:, None] * slope, pair, state.log_size + log_key, seen)
    mean = jnp.exp(log_value)[:, None] * jnp.einsum("hj,hjk->hk", shared, value, precision=spec.precision)
    rows = jnp.einsum("hij,hjk->hik", rest, value, precision=spec.precision)
    return Heads(value_mean + mean, rows, log_value + log_rest)


def score_parts(
    params: AttentionParams,
    mean: Float[Array, " feature"],
    direction: Float[Array, "token feature"],
    key: Float[Array, "head column width"],
    spec: AttentionSpec,
    scale: ArrayLike | None,
) -> tuple[Float[Array, "head column"], Float[Array, "head token column"]]:
    """The mean token's scores and those of the tokens' directions, Ê, against the keys' differences."""
    alpha = jnp.asarray(default_scale(spec) if scale is None else scale, mean.dtype)
    alpha = jnp.broadcast_to(alpha, (spec.heads,))
    query_mean = jnp.einsum("d,hdk->hk", mean, params.query, precision=spec.precision)
    if spec.bias:
        assert params.query_bias is not None
        query_mean = query_mean + params.query_bias
    query = alpha[:, None, None] * project(direction, params.query, None, spec)
    slope = jnp.einsum("hjk,hk->hj", key, alpha[:, None] * query_mean, precision=spec.precision)
    return slope, jnp.einsum("hik,hjk->hij", query, key, precision=spec.precision)


def _columns(
    params: AttentionParams,
    state: MeanResidual,
    spec: AttentionSpec,
    weight: Float[Array, "head feature width"],
    bias: Float[Array, "head width"] | None,
) -> tuple[Float[Array, "head width"], Float[Array, "head column width"], Float[Array, " head"]]:
    """Keys or values of what is attended to, as a row for all columns and e^log_size times their differences from it.

    The columns are the tokens, or with a rank E times them. Its row sums s_r then multiply the mean: columns differ by
    (s_r − s_1) of it beside E's share of the tokens' differences. Sums that are equal but for their rounding count as
    equal; a pool of averages, whose rows sum to 1, so keeps the cube.
    """
    mean = jnp.einsum("d,hdk->hk", state.mean, weight, precision=spec.precision)
    if spec.bias:
        assert bias is not None
        mean = mean + bias
    rows = project(state.direction, weight, None, spec)
    log_size = jnp.broadcast_to(state.log_size, (spec.heads,))
    if spec.rank is None:
        return mean, rows, log_size
    assert params.pool is not None
    sums = jnp.sum(params.pool, axis=-1)
    rounding = 2 * params.pool.shape[-1] * jnp.finfo(sums.dtype).eps * jnp.sum(jnp.abs(params.pool), axis=-1)
    apart = sums - sums[:, :1]
    apart = apart - jax.lax.stop_gradient(jnp.where(jnp.abs(apart) <= rounding, apart, 0))
    parts = jnp.stack([apart[:, :, None] * mean[:, None], pool(rows, params, spec)])
    both, log_size = sum_at_largest(parts, jnp.stack([jnp.zeros_like(log_size), log_size]))
    return sums[:, :1] * mean, both, log_size


def split_weights(
    common: Float[Array, "head column"],
    pair: Float[Array, "head token column"],
    log_square: Float[Array, " head"],
    seen: Bool[Array, "#head token column"] | None,
) -> tuple[Float[Array, "head column"], Float[Array, "head token column"], Float[Array, " head"]]:
    """A row p, a matrix D and a logarithm μ with P = 1pᵀ + e^μ D, given r, Ê, log c and what each row sees.

    Near collapse the rows of e^μ D are p̃^(i) − p̃^(1), nothing without a mask, plus cΔ̂. Far from it, where cÊ is large,
    p̃ and the rest could cancel, and whole rows are compared with the first one.
    """
    square = jnp.minimum(jnp.exp(log_square), jnp.finfo(pair.dtype).max)[:, None, None]
    if seen is None:
        log_shared = log_softmax(common)[:, None]
    else:
        pair = jnp.where(seen, pair, 0)
        log_shared = log_softmax(jnp.where(seen, common[:, None], -jnp.inf))
    exponent = square * pair
    far = jnp.max(jnp.abs(exponent), axis=(1, 2), keepdims=True) > _NEAR
    log_rows = jnp.where(far, log_softmax(log_shared + exponent), log_shared)
    alike = ~far if seen is None else ~far & jnp.all(seen == seen[:, :1], axis=-1, keepdims=True)
    across, log_across = _from_first_row(log_rows, alike)
    differences, log_factor = weight_differences(log_shared, jnp.where(far, 0, pair), square)
    logs = jnp.stack([log_across, log_square + log_factor])
    return jnp.exp(log_rows[:, 0]), *sum_at_largest(jnp.stack([across, differences]), logs)


def _from_first_row(
    log_rows: Float[Array, "head token column"], alike: Bool[Array, "head #token #column"]
) -> tuple[Float[Array, "head token column"], Float[Array, " head"]]:
    """D and μ with e^log_rows minus its first row = e^μ D: nothing for rows that are `alike`, with sums of exactly 0.

    μ is the largest logarithm outside each row's largest entry: that is what tells rows of a saturated softmax apart.
    """
    chosen = jnp.argmax(log_rows, axis=-1)
    others = ~jax.nn.one_hot(chosen, log_rows.shape[-1], dtype=bool) & ~alike
    first = jnp.broadcast_to(log_rows[:, :1], log_rows.shape)
    factor = jnp.max(jnp.where(others & (log_rows != first), jnp.maximum(log_rows, first), -jnp.inf), axis=(1, 2))
    factor = jax.lax.stop_gradient(jnp.where(jnp.isfinite(factor), factor, 0))
    rows, first = (jnp.where(others, _exp_below(logs, factor), 0) for logs in (log_rows, first))
    return _close_rows(rows - first, chosen), factor


def _exp_below(logs: Float[Array, "head #token column"], factor: Float[Array, " head"]) -> Array:
    """e^(logs − factor) up to 1: large logarithms that a compiler computes twice may round above their own maximum."""
    below = logs - factor[:, None, None]
    return jnp.exp(jnp.where(below > 0, 0, below))  # not `minimum`, which halves the derivative at the maximum itself


def log_softmax(logits: Float[Array, "*rows token"]) -> Float[Array, "*rows token"]:
    """Logarithms of softmax over the last axis, also of logits so large that their rounding is.

    A compiler may compute a row twice, once for its maximum, and round it twice. What then exceeds the maximum is cut
    off, and the largest counts as 1 in the sum: e^0 is there whatever became of the others.
    """
    largest = jnp.argmax(logits, axis=-1, keepdims=True)
    below = logits - jnp.take_along_axis(logits, largest, axis=-1)
    below = jnp.where(jax.nn.one_hot(largest[..., 0], logits.shape[-1], dtype=bool) | (below > 0), 0, below)
    return below - jnp.log(jnp.sum(jnp.exp(below), axis=-1, keepdims=True))


def weight_differences(
    log_shared: Float[Array, "head #token column"],
    pair: Float[Array, "head token column"],
    square: Float[Array, "#head 1 1"],
) -> tuple[Float[Array, "head token column"], Float[Array, " head"]]:
    """D and μ with Δ̂ = e^μ D and P = p̃ + cΔ̂, given log p̃, Ê and c with |cÊ| ≤ 1; precise for every c, zero included.

    p̃ is one row for all tokens, or a row for each; where log p̃ = −inf the weight is zero. Where softmax is saturated,
    all weights but the largest of each row may be below the smallest number: μ is the logarithm of the largest of them.
    """
    shared = jnp.exp(log_shared)
    # Σ p̃ Ê f(cÊ) is Σ p̃ (e^{cÊ} − 1) over c, so g of c times it gives the log of the normaliser over c.
    growth = jnp.sum(shared * pair * expm1_ratio(square * pair), axis=-1, keepdims=True)
    gap = pair - growth * log1p_ratio(square * growth)

    chosen = jnp.argmax(log_shared + square * pair, axis=-1)
    others = ~jax.nn.one_hot(chosen, pair.shape[-1], dtype=bool) & (log_shared > -jnp.inf)
    factor = jnp.max(jnp.where(others, log_shared, -jnp.inf), axis=(1, 2))
    factor = jax.lax.stop_gradient(jnp.where(jnp.isfinite(factor), factor, 0))
    scaled = jnp.where(others, _exp_below(log_shared, factor), 0)
    return _close_rows(scaled * gap * expm1_ratio(square * gap), chosen), factor


def _close_rows(
    differences: Float[Array, "head token column"], largest: Int[Array, "head token"]
) -> Float[Array, "head token column"]:
    """Rows that sum to exactly 0, by making each row's entry for its largest weight minus the sum of the others.

    Where a weight is close to 1 its difference is 1 − 1 and has lost its digits; the others are small and have not.
    """
    chosen = jax.nn.one_hot(largest, differences.shape[-1], dtype=bool)
    others = jnp.where(chosen, 0, differences)
    return jnp.where(chosen, -jnp.sum(others, axis=-1, keepdims=True), others)


def expm1_ratio(t: Float[Array, "..."]) -> Float[Array, "..."]:
    """(e^t − 1)/t, with its series where t is small (so that its derivative is right there as well)."""
    small = jnp.abs(t) < 1e-2
    safe = jnp.where(small, 1, t)
    near = jnp.where(small, t, 0)
    series = 1 + near / 2 * (1 + near / 3 * (1 + near / 4 * (1 + near / 5 * (1 + near / 6 * (1 + near / 7)))))
    return jnp.where(small, series, jnp.expm1(safe) / safe)


def log1p_ratio(t: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(1 + t)/t, with its series where t is small."""
    small = jnp.abs(t) < 1e-2
    safe = jnp.where(small, 1, t)
    near = jnp.where(small, t, 0)
    series = jnp.full_like(near, 1 / 9)
    for k in range(8, 0, -1):
        series = 1 / k - near * series
    return jnp.where(small, series, jnp.log1p(safe) / safe)
