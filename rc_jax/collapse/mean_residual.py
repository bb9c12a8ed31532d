"""Tokens as a common part and a scaled difference, and attention on them without cancellation.

Write X = 1x̄ᵀ + e^ℓ R̂ with columns of R̂ summing to 0 and ‖R̂‖_F = 1. Softmax over all tokens sees

    logits_ij = (row constant) + r_j + c Ê_ij,   r = e^ℓ R̂ W_K (W_Qᵀx̄ + b_Q) α,   Ê = R̂ W_Q W_Kᵀ R̂ᵀ α,   c = e^{2ℓ}

so that with p̃ = softmax(r), the row every token would share, and f(t) = expm1(t)/t, g(t) = log1p(t)/t

    ẑ_i = log Σ_k p̃_k e^{cÊ_ik} / c,    P_ij = p̃_j + c Δ̂_ij,    Δ̂_ij = p̃_j (Ê_ij − ẑ_i) f(c(Ê_ij − ẑ_i))

exactly, and the new difference is e^{3ℓ} Σ_h Δ̂_h R̂ W_h: the cube of the old one by construction, however small it is.
Under a mask row i has a p̃ of its own, softmax(r) over the tokens it sees, and adds e^ℓ res(p̃^(i) R̂ W_h): nothing where
all rows see the same tokens, the whole first order where they do not.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.attention.layer import default_scale, project

# Below this exponent the small-difference forms are used, above it the plain ones, which then lose no digits.
_SWITCH = 1.0


class MeanResidual(NamedTuple):
    """X = 1·meanᵀ + e^log_size · direction, with ‖direction‖_F = 1; log_size = −inf where all tokens are equal."""

    mean: Float[Array, " feature"]
    direction: Float[Array, "token feature"]
    log_size: Float[Array, ""]


def decompose(x: Float[Array, "token feature"]) -> MeanResidual:
    """Split tokens into their mean and the scaled difference from it."""
    mean = jnp.mean(x, axis=0)
    difference = x - mean[None]
    missed = jnp.mean(difference, axis=0)
    direction, log_norm = normalise(difference - missed[None])
    return MeanResidual(mean + missed, direction, log_norm)


def normalise(x: Float[Array, "token feature"]) -> tuple[Float[Array, "token feature"], Float[Array, ""]]:
    """x/‖x‖_F and log ‖x‖_F; zeros stay zeros, with log-norm −inf. What is not a number stays that."""
    size = jax.lax.stop_gradient(jnp.max(jnp.abs(x)))
    size = jnp.where(size == 0, 1, size)
    unit = x / size  # its square can underflow neither in the value nor in the derivative
    square = jnp.sum(jnp.square(unit))
    zero = square == 0
    norm = jnp.sqrt(jnp.where(zero, 1, square))
    return unit / norm, jnp.where(zero, -jnp.inf, jnp.log(size * norm))


def recenter(x: Float[Array, "token feature"]) -> tuple[Float[Array, "token feature"], Float[Array, " feature"]]:
    """Split a difference into one whose columns sum to zero, and the column means."""
    mean = jnp.mean(x, axis=0)
    return x - mean[None], mean


def from_rows(rows: Float[Array, "token feature"], log_size: Float[Array, ""]) -> MeanResidual:
    """e^log_size times a matrix that is given at an ordinary size, split into mean and scaled difference."""
    difference, mean = recenter(rows)
    direction, log_norm = normalise(difference)
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(mean)))
    largest = jnp.where(largest > 0, largest, 1)
    # The size alone may overflow where its product with a small mean does not.
    return MeanResidual(jnp.exp(log_size + jnp.log(largest)) * (mean / largest), direction, log_size + log_norm)


def add(a: MeanResidual, b: MeanResidual) -> MeanResidual:
    """The sum of two token matrices, formed at the larger one's size."""
    larger = jnp.maximum(a.log_size, b.log_size)
    reference = jnp.where(jnp.isfinite(larger), larger, 0)
    difference = jnp.exp(a.log_size - reference) * a.direction + jnp.exp(b.log_size - reference) * b.direction
    difference, missed = recenter(difference)
    direction, log_norm = normalise(difference)
    return MeanResidual(a.mean + b.mean + jnp.exp(reference) * missed, direction, reference + log_norm)


def transform(state: MeanResidual, matrix: Float[Array, "feature out"], precision: str) -> MeanResidual:
    """Every token times a matrix."""
    out = from_rows(jnp.matmul(state.direction, matrix, precision=precision), state.log_size)
    return out._replace(mean=out.mean + jnp.matmul(state.mean, matrix, precision=precision))


def attend(
    params: AttentionParams,
    state: MeanResidual,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
) -> MeanResidual:
    """One layer of softmax dot-product attention on the split tokens, its output split the same way."""
    output = params.output.reshape(-1, params.output.shape[-1])
    out = transform(heads(params, state, spec, scale, mask), output, spec.precision)
    if spec.bias:
        assert params.output_bias is not None
        out = out._replace(mean=out.mean + params.output_bias)
    return out


def heads(
    params: AttentionParams,
    state: MeanResidual,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
) -> MeanResidual:
    """The heads' outputs side by side, before the output matrix: the layer up to there, in any number of features."""
    alpha = jnp.asarray(default_scale(spec) if scale is None else scale, state.mean.dtype)
    alpha = jnp.broadcast_to(alpha, (spec.heads,))
    size = jnp.exp(state.log_size)
    query_mean = jnp.einsum("d,hdk->hk", state.mean, params.query, precision=spec.precision)
    value_mean = jnp.einsum("d,hdk->hk", state.mean, params.value, precision=spec.precision)
    if spec.bias:
        assert params.query_bias is not None and params.value_bias is not None
        query_mean, value_mean = query_mean + params.query_bias, value_mean + params.value_bias
    query = alpha[:, None, None] * project(state.direction, params.query, None, spec)
    key = project(state.direction, params.key, None, spec)
    value = project(state.direction, params.value, None, spec)
    common = size * jnp.einsum("hjk,hk->hj", key, alpha[:, None] * query_mean, precision=spec.precision)
    pair = jnp.einsum("hik,hjk->hij", query, key, precision=spec.precision)

    def mix(weights: Float[Array, "head token token"]) -> Float[Array, "token feature"]:
        mixed = jnp.einsum("hij,hjk->ihk", weights, value, precision=spec.precision)
        return mixed.reshape(mixed.shape[0], -1)

    if mask is None:
        log_shared = log_softmax(common)[:, None]
    else:
        pair = jnp.where(mask[None], pair, 0)
        log_shared = log_softmax(jnp.where(mask[None], common[:, None], -jnp.inf))
    out = from_rows(mix(weight_differences(log_shared, pair, size)), 3 * state.log_size)
    shared = jnp.exp(log_shared)
    if mask is not None:
        # Against the first row, so that rows that see the same tokens differ by exactly nothing.
        out = add(out, from_rows(mix(shared - shared[:, :1]), state.log_size))
    mean = value_mean + size * jnp.einsum("hj,hjk->hk", shared[:, 0], value, precision=spec.precision)
    return out._replace(mean=out.mean + mean.reshape(-1))


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
    log_shared: Float[Array, "head #token token"], pair: Float[Array, "head token token"], size: Float[Array, ""]
) -> Float[Array, "head token token"]:
    """Δ̂ with P = p̃ + e^{2ℓ}Δ̂, given log p̃, Ê and e^ℓ; relative precision is kept for every e^ℓ, zero included.

    p̃ is one row for all tokens, or a row for each; where log p̃ = −inf the weight is zero.

    Each entry takes the plain difference e^{log p̃ + t} − p̃ where its exponent t = c(Ê − ẑ) is large, and expm1 where it
    is small; both are exact, so where they change over is a matter of rounding only.
    """
    square = jnp.square(jnp.minimum(size, jnp.sqrt(jnp.finfo(pair.dtype).max)))
    shared = jnp.exp(log_shared)
    exponent = square * pair

    largest = jnp.max(jnp.abs(exponent), axis=-1, keepdims=True)
    near = largest <= _SWITCH
    near_exponent = jnp.where(near, exponent, 0)
    # Σ p̃ Ê f(cÊ) is Σ p̃ (e^{cÊ} − 1) over c, so g of c times it gives the log of the normaliser over c.
    growth = jnp.sum(shared * pair * expm1_ratio(near_exponent), axis=-1, keepdims=True)
    near_shift = growth * log1p_ratio(jnp.where(near, square * growth, 0))
    far_log = jax.scipy.special.logsumexp(log_shared + exponent, axis=-1, keepdims=True)
    # Where a branch is not taken its divisor is 1, for a gradient through 0/0 would spoil the branch that is.
    shift = jnp.where(near, near_shift, far_log / jnp.where(near, 1, square))

    gap = pair - shift
    exponent = jnp.where(near, square * gap, square * pair - far_log)
    small = exponent <= _SWITCH
    small_exponent = jnp.where(small, exponent, 0)
    large_exponent = jnp.where(small, 0, exponent)
    by_expm1 = shared * gap * expm1_ratio(small_exponent)
    by_difference = (jnp.exp(log_shared + large_exponent) - shared) / jnp.where(small, 1, square)
    differences = jnp.where(small, by_expm1, by_difference)
    return _close_rows(differences, jnp.argmax(log_shared + square * pair, axis=-1))


def _close_rows(
    differences: Float[Array, "head token token"], largest: Int[Array, "head token"]
) -> Float[Array, "head token token"]:
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
