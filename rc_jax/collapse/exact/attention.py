"""Attention on tokens X = 1x̄ᵀ + e^ℓ R̂ (`rc_jax.collapse.exact.state`), without cancellation.

Queries and keys split as the tokens do, q_i = q̄ + e^ℓ q̂_i and k_j = k̄ + e^ℓ k̂_j, also where they are normalised
(`rc_jax.collapse.exact.mlp_and_norms`). Softmax does not see what is the same along a row. Of logits α q_i·k_j it sees

    r_j + c Ê_ij,   r_j = α e^ℓ q̄·k̂_j,   Ê_ij = α q̂_i·k̂_j,   c = e^{2ℓ},

so rows differ at order e^{2ℓ} only. The weights are P = 1p̃ᵀ + c Δ̂ (`state.split_softmax`). Rows of P sum to one: equal
tokens stay equal, and the new difference is the cube of the old one by construction,

    e^{3ℓ} Σ_h Δ̂_h R̂ W_h.

Other layers change the order. Under a mask row i has a p̃ of its own, softmax(r) over the tokens it sees, and adds
e^ℓ res(p̃^(i) R̂ W_h): nothing where all rows see the same tokens, the whole first order where they do not. The k
largest scores are such a mask, and near collapse, where r alone decides, one that all rows share. Positions make rows
differ however alike the tokens are (`rc_jax.collapse.exact.positions`). With a rank the columns are
E X = E1 x̄ᵀ + e^ℓ E R̂: rows of E that sum to 1 change nothing above, other rows make columns that differ at order 1.
Weights other than softmax, capped logits and gates are in `rc_jax.collapse.exact.normalisers`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from rc_jax._numerics import performance
from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.attention.layer import default_scale, largest, weight_function
from rc_jax.attention.parameters import pool, project, shares
from rc_jax.attention.specification import own_parts
from rc_jax.collapse.exact import any_kind, choices, mlp_and_norms, normalisers, positions, unsaturated
from rc_jax.collapse.exact.choices import Kept, Tokens
from rc_jax.collapse.exact.scaled import Scaled, einsum
from rc_jax.collapse.exact.state import Columns, Logits, MeanResidual, Weights, from_rows, split_softmax
from rc_jax.collapse.requirements import SPLIT

# The level of every row, the rest of the logits, and what each row sees and keeps (None: all).
Known = tuple[Columns, Logits, Bool[Array, "#head token column"] | None]


def attend(
    params: AttentionParams,
    state: MeanResidual,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
) -> MeanResidual:
    """One layer of attention on the split tokens, its output split the same way."""
    return _through_output(params, heads(params, state, spec, scale, mask), spec)


def attend_tokens(
    params: AttentionParams,
    tokens: Tokens,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
) -> Tokens:
    """The same of tokens some of which are known to be equal: these may tie in a top k."""
    outputs, kept = _heads(params, tokens.state, spec, scale, mask, tokens.equal)
    out = _through_output(params, outputs, spec)
    return Tokens(out, None, None) if tokens.equal is None else choices.after(tokens, out, kept, mask, spec)


def _through_output(params: AttentionParams, outputs: Columns, spec: AttentionSpec) -> MeanResidual:
    """The sum over heads of their outputs times their output matrices."""
    rest, sizes = outputs.rest, outputs.rest.log_size

    def at_one_size() -> Scaled:
        return Scaled(jnp.einsum("hik,hkd->id", rest.rows, params.output, precision=spec.precision), sizes[0])

    def at_largest() -> Scaled:
        # The largest product counts, not the largest head: the output matrix may map that head to 0.
        return einsum("hik,hkd->hid", rest, params.output, precision=spec.precision).sum()

    sizes_differ = performance.any_in_batch(jnp.any(sizes != sizes[0]))
    out = from_rows(jax.lax.cond(sizes_differ, jax.checkpoint(at_largest), jax.checkpoint(at_one_size)))
    mean = jnp.einsum("hk,hkd->d", outputs.mean, params.output, precision=spec.precision)
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
) -> Columns:
    """The outputs of the heads, before the output matrix.

    Every head has a size of its own, because one head's output may be far below the smallest number beside another's.
    """
    return _heads(params, state, spec, scale, mask, None)[0]


def _heads(
    params: AttentionParams,
    state: MeanResidual,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
    equal: Bool[Array, "token token"] | None,
) -> tuple[Columns, Kept | None]:
    """The outputs of the heads, and the columns that a top k has kept of them."""
    value = _pooled(columns(state, params.value, params.value_bias, spec), params, spec)
    query, key, factor = _queries_and_keys(params, state, spec, scale)
    # Weights that sum to a constant can do without the logits themselves, where no top k reads their order.
    blind = spec.top_k is None and spec.weights in ("softmax", "differential", "sinkhorn")
    known = None if blind else _logits(query, key, factor, spec, mask, equal)
    if spec.weights == "differential":
        # Each half has places of its own in the program, so that its roundings move apart from the other's.
        def of_half(half: int) -> Columns:
            own_query, own_key, own_factor, own_known = _half((query, key, factor, known), half)
            return _by_softmax(own_query, own_key, value, own_factor, spec, mask, own_known)

        outputs = normalisers.difference(of_half(0), of_half(1), params.parts["subtracted"])
    elif known is None or (spec.weights in SPLIT and spec.weights != "sigmoid"):
        outputs = _by_softmax(query, key, value, factor, spec, mask, known)
    elif spec.weights == "sigmoid":
        outputs = normalisers.by_sigmoids(*known, value, spec.precision)
    else:
        weights = weight_function(params, spec, known[1].pair.rows.shape, known[2])
        outputs = any_kind.by_kind(*known, value, spec.kind, weights, spec.precision)
    # One more logit is a gate on the output of softmax; then the gate that tokens make themselves.
    if known is not None and spec.weights in ("softmax_plus_one", "softmax_sink"):
        level, logits, seen = known
        sink = own_parts(params, spec).get("sink", jnp.zeros_like(outputs.rest.log_size))
        sink = jnp.maximum(sink, jnp.finfo(sink.dtype).min / 4)  # −∞, no sink at all, has no difference from a logit
        normaliser = normalisers.log_normaliser(logits, seen)
        outputs = normalisers.gated(outputs, normalisers.above_sink(level, normaliser, sink))
    if spec.output_gate is not None:
        gate = params.parts["output_gate"]
        gate = gate if spec.output_gate == "elementwise" else gate[..., None]
        outputs = normalisers.gated(outputs, columns(state, gate, None, dataclasses.replace(spec, bias=False)))
    return outputs, None if spec.top_k is None or known is None else known[2]


def _by_softmax(
    query: Columns,
    key: Columns,
    value: Columns,
    factor: Float[Array, "head #width"],
    spec: AttentionSpec,
    mask: Bool[Array, "token token"] | None,
    known: Known | None,
) -> Columns:
    """The heads' outputs for softmax (or Sinkhorn's) weights of the given queries and keys, or of `known` logits."""

    def in_general() -> Columns:
        # P V̂ = 1(pᵀV̂) + e^μ D V̂
        weights = _weights(query, key, factor, spec, mask, known)
        shared = einsum("hj,hjk->hk", weights.shared, value.rest, precision=spec.precision)
        rest = einsum("hij,hjk->hik", weights.rest, value.rest, precision=spec.precision)
        return Columns(value.mean + shared.value, rest)

    def by_saturation() -> Columns:
        # Two forms give the same numbers with fewer exponentials. The cheapest form is taken that holds for all heads,
        # and for all members of a batch: a choice by each member would compute every form.
        parts = unsaturated.prepare(query, key, value, factor, spec)
        log_square = query.rest.log_size + key.rest.log_size

        def output(rows: Array) -> Columns:
            log_size = value.rest.log_size
            return Columns(value.mean + Scaled(parts.value_mean, log_size).value, Scaled(rows, log_size + log_square))

        forms = [
            lambda: output(unsaturated.leading_rows(parts, spec.precision)),
            lambda: output(unsaturated.pairwise_rows(parts, spec.precision)),
            in_general,
        ]
        saturated, second_order = (
            performance.any_in_batch(~parts.unsaturated),
            performance.any_in_batch(~parts.first_order),
        )
        index = jnp.where(saturated, 2, second_order.astype(jnp.int32))
        return jax.lax.switch(index, [jax.checkpoint(form) for form in forms])

    if not unsaturated.covers(spec, mask, value.mean.dtype):
        return in_general()
    # Reverse mode would keep what every form needs; a checkpoint computes it again for the one that was taken.
    return performance.on_cpu(by_saturation, jax.checkpoint(in_general))


def weights(
    params: AttentionParams,
    state: MeanResidual,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
) -> Weights:
    """The attention matrices of the heads, P = 1pᵀ + e^μ D."""
    return _weights(*_queries_and_keys(params, state, spec, scale), spec, mask)


def side_by_side(outputs: Columns) -> MeanResidual:
    """The heads' outputs as tokens whose features are those of all heads, one after the other."""
    largest_size = jax.lax.stop_gradient(jnp.max(outputs.rest.log_size))
    reference = jnp.where(jnp.isfinite(largest_size), largest_size, 0)
    rows = Scaled(outputs.rest.rows, outputs.rest.log_size - reference).value
    out = from_rows(Scaled(jnp.moveaxis(rows, 0, 1).reshape(rows.shape[1], -1), reference))
    return out._replace(mean=out.mean + outputs.mean.reshape(-1))


def _weights(
    query: Columns,
    key: Columns,
    factor: Float[Array, "head #width"],
    spec: AttentionSpec,
    mask: Bool[Array, "token token"] | None,
    known: Known | None = None,
) -> Weights:
    """The same, from queries and keys."""
    _, logits, seen = _logits(query, key, factor, spec, mask) if known is None else known
    common = logits.common
    if spec.weights == "sinkhorn":
        common = normalisers.sinkhorn(logits, seen, spec.sinkhorn_steps)
    return split_softmax(common, logits.pair, seen)


def _logits(
    query: Columns,
    key: Columns,
    factor: Float[Array, "head #width"],
    spec: AttentionSpec,
    mask: Bool[Array, "token token"] | None,
    equal: Bool[Array, "token token"] | None = None,
) -> Known:
    """The level that each row's logits share, the rest of the logits, and which columns each row sees (None: all)."""
    # r_j = e^ℓ (α q̄·k̂_j) and Ê_ij = α q̂_i·k̂_j, or those of logits with positions
    if spec.rotary is None and spec.scale_law == "constant":
        level = normalisers.level(query, key, factor, spec.precision)
        slope = einsum("hjk,hk->hj", key.rest, factor * query.mean, precision=spec.precision)
        pair = einsum("hik,hjk->hij", query.rest * factor[:, None], key.rest, precision=spec.precision)
        logits = Logits(None, slope, pair)
    else:
        level = positions.level(query, key, factor, spec, mask)
        logits = positions.logits(query, key, factor, spec, mask)
    if spec.rotary is not None:
        equal = None  # equal tokens at two positions have two logits
    if equal is not None:
        logits = choices.of_equal_columns(logits, equal)
    seen = None if mask is None else mask[None]
    ordered = logits.ordered if spec.top_k is not None else None
    if spec.soft_cap is not None:
        level, logits = normalisers.capped(level, logits, float(spec.soft_cap), seen)
    if ordered is not None and spec.top_k is not None:
        # A cap keeps the order, in which it leaves ties by rounding. Keys that are ±1 tie exactly, as equal tokens do.
        signs = (spec.scores == "cosine" or spec.qk_norm == "unit") and key.mean.shape[-1] == 1
        seen = largest(ordered, seen, spec.top_k)
        if not signs:
            equal = jnp.eye(ordered.shape[-1], dtype=bool) if equal is None else equal
            tied = choices.ties(ordered, seen, equal, spec.top_k)
            pair = logits.pair.map(lambda rows: jnp.where(tied[:, None, None], jnp.nan, rows))
            logits = logits._replace(pair=pair)
    return level, logits, seen


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


def _queries_and_keys(
    params: AttentionParams, state: MeanResidual, spec: AttentionSpec, scale: ArrayLike | None
) -> tuple[Columns, Columns, Float[Array, "head #width"]]:
    """Queries and keys of dot products or cosines, normalised as `spec` says, and the factors α of their products.

    A rank occurs with plain dot products only.
    """
    alpha = jnp.asarray(default_scale(spec) if scale is None else scale, state.mean.dtype)
    factor = jnp.broadcast_to(alpha, (spec.heads,))[:, None]
    query = columns(state, params.query, params.query_bias, spec)
    key = _pooled(columns(state, params.key, params.key_bias, spec), params, spec)
    if spec.weights == "differential":
        query, key, factor = _in_halves(query, spec), _in_halves(key, spec), jnp.concatenate([factor, factor])
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
    return query, key, factor


def _half(tree: Any, half: int) -> Any:
    """The first or the second half of the heads; what has one head is for all of them."""
    return jax.tree.map(lambda part: part if part.shape[0] == 1 else jnp.split(part, 2)[half], tree)


def _in_halves(vectors: Columns, spec: AttentionSpec) -> Columns:
    """The first halves of all heads' features, then the second ones, each as a head of its own."""
    mean = shares(vectors.mean[:, None], spec)[:, 0]
    log_size = vectors.rest.log_size
    return Columns(mean, Scaled(shares(vectors.rest.rows, spec), jnp.concatenate([log_size, log_size])))


def _normalised(vectors: Columns, gain: Float[Array, "head width"], spec: AttentionSpec) -> Columns:
    """Queries or keys over their root mean square, less their means first where `spec` says so, times their gains."""
    if spec.qk_norm == "rms_joint":  # over the features of all heads, side by side
        mean, joint = mlp_and_norms.over_root_mean_square(*side_by_side(vectors), spec.qk_norm_epsilon, False)
        rows = jnp.moveaxis(joint.rows.reshape(joint.rows.shape[0], *gain.shape), 1, 0)
        rest = Scaled(gain[:, None] * rows, jnp.full(gain.shape[:1], joint.log_size))
        return Columns(gain * mean.reshape(gain.shape), rest)
    mean, rest = mlp_and_norms.over_root_mean_square(*vectors, spec.qk_norm_epsilon, spec.qk_norm == "layer")
    return Columns(gain * mean, rest * gain[:, None])
