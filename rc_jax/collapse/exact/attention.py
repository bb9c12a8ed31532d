"""Attention on tokens X = 1x̄ᵀ + e^ℓ R̂ (`rc_jax.collapse.exact.state`), without cancellation.

Queries and keys split as the tokens do, q_i = q̄ + e^ℓ q̂_i and k_j = k̄ + e^ℓ k̂_j, also where they are normalised
(`rc_jax.collapse.exact.mlp_and_norms`). Softmax does not see what is the same along a row. Of logits α q_i·k_j it sees

    r_j + c Ê_ij,   r_j = α e^ℓ q̄·k̂_j,   Ê_ij = α q̂_i·k̂_j,   c = e^{2ℓ},

so rows differ at order e^{2ℓ} only. The weights are P = 1pᵀ + c D (`rc_jax.collapse.exact.softmax`). Rows of P sum to
one: equal tokens stay equal, and the new difference is the cube of the old one by construction,

    e^{3ℓ} Σ_h D_h R̂ W_h.

Other layers change the order. Under a mask row i has a p of its own, softmax(r) over the tokens it sees, and adds
e^ℓ res(p^(i) R̂ W_h): nothing where all rows see the same tokens, the whole first order where they do not. The k
largest scores are such a mask, and near collapse, where r alone decides, one that all rows share. Positions make rows
differ however alike the tokens are (`rc_jax.collapse.exact.positions`). With a rank the columns are
E X = E1 x̄ᵀ + e^ℓ E R̂: rows of E that sum to 1 change nothing above, other rows make columns that differ at order 1.
What a kind of weights makes of queries, keys and values is its rule (`rc_jax.collapse.exact.rules`).
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.attention.layer import default_scale
from rc_jax.attention.parameters import pool, project, shares
from rc_jax.collapse.exact import mlp_and_norms, normalisers, rules
from rc_jax.collapse.exact.moves import STILL, Moves
from rc_jax.collapse.exact.scaled import Scaled, largest_log_factor
from rc_jax.collapse.exact.softmax import split_softmax
from rc_jax.collapse.exact.state import Columns, MeanResidual, Weights, from_rows


def known_scale(
    spec: AttentionSpec,
    scale: ArrayLike | None,
    extra: Bool[Array, "token token"] | None,
    seen: Bool[Array, "token token"] | None,
) -> ArrayLike | None:
    """The scale of a layer, and NaN where its mask leaves a row nothing to see, which only a traced one does unseen.

    Such a row has weights of 0, and not the sum of the others, by which tokens are split here.
    """
    if extra is None or seen is None:
        return scale
    alpha = jnp.asarray(default_scale(spec) if scale is None else scale, float)
    return jnp.where(jnp.all(jnp.any(seen, axis=-1)), alpha, jnp.nan)


def attend(
    params: AttentionParams,
    state: MeanResidual,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
    moves: Moves = STILL,
    split: Callable[[Scaled], MeanResidual] = from_rows,
) -> MeanResidual:
    """One layer of attention on the split tokens, its output split the same way, or as `split` does."""
    outputs = heads(params, state, spec, scale, mask, moves)
    outputs = Columns(*moves.columns_of_heads(*outputs, 4))
    # All heads at the size of the largest one that is not 0.
    rest, sizes = outputs.rest.rows, jax.lax.stop_gradient(outputs.rest.log_size)
    counts = (_largest(rest) > 0) & (_largest(params.output) > 0)
    top = jnp.max(jnp.where(counts, sizes, -jnp.inf))
    top = jnp.where(jnp.isfinite(top), top, jnp.maximum(sizes[0], jnp.finfo(rest.dtype).min))
    below = jnp.minimum(outputs.rest.log_size - top, largest_log_factor(rest.dtype))
    rest = moves.exp(below)[:, None, None] * rest
    out = split(Scaled(jnp.einsum("hik,hkd->id", rest, params.output, precision=spec.precision), top))
    mean = jnp.einsum("hk,hkd->d", outputs.mean, params.output, precision=spec.precision)
    if spec.bias:
        assert params.output_bias is not None
        mean = mean + params.output_bias
    return out._replace(mean=mean + out.mean)


def _largest(rows: Float[Array, "head row column"]) -> Float[Array, " head"]:
    """The largest entry of every head, as a constant."""
    return jax.lax.stop_gradient(jnp.max(jnp.abs(rows), axis=(1, 2)))


def heads(
    params: AttentionParams,
    state: MeanResidual,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
    moves: Moves = STILL,
) -> Columns:
    """The outputs of the heads, before the output matrix.

    Every head has a size of its own, because one head's output may be far below the smallest number beside another's.
    """
    value = _pooled(columns(state, params.value, params.value_bias, spec), params, spec)
    value = Columns(*moves.columns_of_heads(*value, 3))
    outputs = rules.rule(spec)(_head_inputs(params, state, spec, scale, mask, moves), value)
    if spec.output_gate is not None:
        gate = params.parts["output_gate"]
        gate = gate if spec.output_gate == "elementwise" else gate[..., None]
        outputs = normalisers.gated(outputs, columns(state, gate, None, dataclasses.replace(spec, bias=False)))
    return outputs


def weights(
    params: AttentionParams,
    state: MeanResidual,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
    moves: Moves = STILL,
) -> Weights:
    """The attention matrices of the heads of softmax, P = 1pᵀ + e^μ D."""
    inputs = _head_inputs(params, state, spec, scale, mask, moves)
    logits, seen = inputs.logits()
    return split_softmax(logits.common, logits.pair, seen, moves)


def chosen(
    params: AttentionParams,
    state: MeanResidual,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
    moves: Moves = STILL,
) -> Bool[Array, "head token column"]:
    """The columns that each row keeps, where `spec` has a `top_k`."""
    seen = _head_inputs(params, state, spec, scale, mask, moves).logits()[1]
    assert seen is not None
    return seen


def side_by_side(outputs: Columns) -> MeanResidual:
    """The heads' outputs as tokens whose features are those of all heads, one after the other."""
    largest_size = jax.lax.stop_gradient(jnp.max(outputs.rest.log_size))
    reference = jnp.where(jnp.isfinite(largest_size), largest_size, 0)
    rows = Scaled(outputs.rest.rows, outputs.rest.log_size - reference).value
    out = from_rows(Scaled(jnp.moveaxis(rows, 0, 1).reshape(rows.shape[1], -1), reference))
    return out._replace(mean=out.mean + outputs.mean.reshape(-1))


def columns(
    state: MeanResidual,
    weight: Float[Array, "head feature width"],
    bias: Float[Array, "head width"] | None,
    spec: AttentionSpec,
) -> Columns:
    """Every head's linear map of the tokens, x W_h + b_h."""
    # One product for the differences and the mean: weights are read once.
    both = project(jnp.concatenate([state.direction, state.mean[None]]), weight, None, spec)
    mean, rows = both[:, -1], both[:, :-1]
    if spec.bias:
        assert bias is not None
        mean = mean + bias
    return Columns(mean, Scaled(rows, jnp.broadcast_to(state.log_size, (spec.heads,))))


def _pooled(vectors: Columns, params: AttentionParams, spec: AttentionSpec) -> Columns:
    """Keys or values of the columns that are attended to: the tokens, or with a rank E times them.

    With s_r the sum of row r of E, column r is s_r x̄ and E's part of the tokens' differences. So columns differ by
    (s_r − s_1) x̄ too. Sums that are equal but for their rounding count as equal: with averages, whose sums are 1,
    differences are still cubed.
    """
    if spec.rank is None:
        return vectors
    matrix = params.parts["pool"]
    sums = jnp.sum(matrix, axis=-1)
    rounding = 2 * matrix.shape[-1] * jnp.finfo(sums.dtype).eps * jnp.sum(jnp.abs(matrix), axis=-1)
    apart = sums - sums[:, :1]
    apart = apart - jax.lax.stop_gradient(jnp.where(jnp.abs(apart) <= rounding, apart, 0))
    of_mean, of_rest = (
        apart[:, :, None] * vectors.mean[:, None],
        vectors.rest.map(lambda rows: pool(rows, params, spec)),
    )
    return Columns(sums[:, :1] * vectors.mean, Scaled.plain(of_mean) + of_rest)


def _head_inputs(
    params: AttentionParams,
    state: MeanResidual,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
    moves: Moves,
) -> rules.HeadInputs:
    """Queries and keys of dot products or cosines, normalised as `spec` says, and the factors α of their products.

    A rank occurs with plain dot products only.
    """
    alpha = jnp.asarray(default_scale(spec) if scale is None else scale, state.mean.dtype)
    factor = jnp.broadcast_to(alpha, (spec.heads,))[:, None]
    query = columns(state, params.query, params.query_bias, spec)
    key = _pooled(columns(state, params.key, params.key_bias, spec), params, spec)
    query, key = Columns(*moves.columns_of_heads(*query, 1)), Columns(*moves.columns_of_heads(*key, 2))
    if spec.qk_norm is not None or spec.scores == "cosine":  # vectors in one line have directions that roundings make
        query, key = (part._replace(rest=moves.own_of_heads(part.rest, 9)) for part in (query, key))
    if spec.kind.maps > 1:
        query, key, factor = _in_shares(query, spec), _in_shares(key, spec), jnp.concatenate([factor] * spec.kind.maps)
    if spec.qk_norm in ("rms", "rms_joint", "layer"):
        query, key = (
            _normalised(query, params.parts["query_norm"], spec),
            _normalised(key, params.parts["key_norm"], spec),
        )
    if spec.qk_norm == "unit" or spec.scores == "cosine":
        query, key = Columns(*mlp_and_norms.unit(*query)), Columns(*mlp_and_norms.unit(*key))
    elif spec.rotary is not None:  # a temperature has no effect on unit vectors
        factor = factor * jnp.asarray(spec.rotary.temperature**2, factor.dtype)
    if spec.qk_norm == "unit":  # these gains follow the rotation, so both may multiply the queries
        factor = factor * params.parts["query_norm"] * params.parts["key_norm"]
    return rules.HeadInputs(params, spec, query, key, factor, mask, moves)


def _in_shares(vectors: Columns, spec: AttentionSpec) -> Columns:
    """The first shares of all heads' features, then the second ones, each as a head of its own."""
    mean = shares(vectors.mean[:, None], spec)[:, 0]
    log_size = jnp.concatenate([vectors.rest.log_size] * spec.kind.maps)
    return Columns(mean, Scaled(shares(vectors.rest.rows, spec), log_size))


def _normalised(vectors: Columns, gain: Float[Array, "head width"], spec: AttentionSpec) -> Columns:
    """Queries or keys over their root mean square, less their means first where `spec` says so, times their gains."""
    if spec.qk_norm == "rms_joint":  # over the features of all heads, side by side
        mean, joint = mlp_and_norms.over_root_mean_square(*side_by_side(vectors), spec.qk_norm_epsilon, False)
        rows = jnp.moveaxis(joint.rows.reshape(joint.rows.shape[0], *gain.shape), 1, 0)
        rest = Scaled(gain[:, None] * rows, jnp.full(gain.shape[:1], joint.log_size))
        return Columns(gain * mean.reshape(gain.shape), rest)
    mean, rest = mlp_and_norms.over_root_mean_square(*vectors, spec.qk_norm_epsilon, spec.qk_norm == "layer")
    return Columns(gain * mean, rest * gain[:, None])
