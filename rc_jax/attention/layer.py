"""The attention layer as pure functions: scores → weights → output."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Bool, Float

from rc_jax._numerics import arguments
from rc_jax.attention import masks
from rc_jax.attention.kinds import Inputs
from rc_jax.attention.kinds.record import everything, with_own_column
from rc_jax.attention.parameters import pool, project, queries_and_keys, unit
from rc_jax.attention.specification import AttentionParams, AttentionSpec, check_layer, own_parts


@arguments.guard(scale=arguments.positive)
def scores(
    params: AttentionParams, x: Float[Array, "token feature"], spec: AttentionSpec, *, scale: ArrayLike | None = None
) -> Float[Array, "head token column"]:
    """The scaled scores (logits) of every query against every key.

    dot: α q_i·k_j; cosine: α q_i·k_j / (|q_i||k_j|); additive: α vᵀtanh(q_i + k_j); with q = x W_Q + b_Q and
    k = x W_K + b_K, both normalised and rotated by their positions where `qk_norm` and `rotary` say so, and α times the
    logarithm of the tokens seen where `scale_law` does. A `soft_cap` c makes each of them c tanh(·/c). With
    `"differential"` there are two matrices for each head, of the first halves of its features, then of the second ones,
    with α = 1/√(d_head/2) by default. With a `rank` the keys are the rows of E K, so there are `rank` columns instead
    of one for each token. Kinds of weights with scores of their own (`attention.Kind.own_scores`) have no α: those of
    `"linear"` and `"channel_decay"` are φ(q_i)·φ(k_j), channel by channel times λ_c^(i−j), or their logarithms where φ
    is exp; those of `"decay"` and `"gated_decay"` are the logarithms of the products of λ between j and i.

    Args:
        params: of one layer.
        x: tokens.
        spec: the layer.
        scale: α, a number or one per head. By default that of `spec`; where it has none, 1/√d_head for dot products
            (Vaswani et al. 2017, eq. 1), √d_head for cosines and for `qk_norm="unit"` (as nGPT uses;
            `rc_jax.scale.optimal_scale` derives a better one) and 1 for additive scores.

    Example:
        >>> import jax
        >>> from rc_jax import attention
        >>> spec = attention.AttentionSpec(d_model=8, heads=2)
        >>> params = attention.init(jax.random.key(0), spec)
        >>> scores(params, jax.random.normal(jax.random.key(1), (5, 8)), spec).shape
        (2, 5, 5)
    """
    check_layer(params, x, spec)
    check_scale_and_mask(scale, None, x, spec)
    return _visible_scores(params, x, spec, scale)


@arguments.guard(scale=arguments.positive, mask=masks.check_mask)
def attention_weights(
    params: AttentionParams,
    x: Float[Array, "token feature"],
    spec: AttentionSpec,
    *,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
) -> Float[Array, "head token token"]:
    """The attention matrix P_h of every head; row i holds how much token i takes from each token.

    Softmax ignores a constant per row, so x_i W_Q·b_K and b_Q·b_K never matter to it: P_h = softmax((X W_QK Xᵀ +
    1 b_Qᵀ W_Kᵀ Xᵀ)·α), W_QK = W_Q W_Kᵀ (DCL21, section 2). The other kinds are listed in `rc_jax.attention.kinds`.
    With a `rank` it is the product of the weights on the rows of E with E.

    Args:
        params: of one layer.
        x: tokens.
        spec: the layer; its `causal` and `window` masks apply.
        scale: as in `scores`.
        mask: True where row i may see column j; joined with the masks of `spec`.

    Raises:
        ValueError: a row of `mask` sees nobody, where the mask is in the host's memory. Of a mask that is traced, or
            lies on a device, such a row has weight 0, and so has its output before a bias of the layer.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from rc_jax import attention
        >>> spec = attention.AttentionSpec(d_model=8, heads=2, causal=True)
        >>> params = attention.init(jax.random.key(0), spec)
        >>> p = attention_weights(params, jax.random.normal(jax.random.key(1), (5, 8)), spec)
        >>> bool(jnp.allclose(p.sum(axis=-1), 1, atol=1e-6)), float(p[0, 0, 1])
        (True, 0.0)
    """
    check_layer(params, x, spec)
    check_scale_and_mask(scale, mask, x, spec)
    return _weights(params, x, spec, scale, mask)


@arguments.guard(scale=arguments.positive, mask=masks.check_mask)
def attend(
    params: AttentionParams,
    x: Float[Array, "token feature"],
    spec: AttentionSpec,
    *,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
) -> Float[Array, "token feature"]:
    """One layer of self-attention: SA(X) = Σ_h P_h (X W_V,h + 1b_V,hᵀ) W_O,h + 1b_Oᵀ.

    Summing the heads' projections is the same as concatenating the heads and projecting once (DCL21, eq. 1). There is
    no skip connection in it. An `output_gate` multiplies a head's rows by sigmoid(x_i G_h) before W_O,h.

    Args:
        params: of one layer. What `spec` has no use for, such as biases without `bias`, is left aside, so that layers
            with and without a part can share their parameters.
        x: tokens, at least one.
        spec: the layer.
        scale: as in `scores`.
        mask: as in `attention_weights`.

    Raises:
        ValueError: a row of `mask` sees nobody, where the mask is in the host's memory. Of a mask that is traced, or
            lies on a device, such a row has weight 0, and so has its output before a bias of the layer.

    Example:
        >>> import jax
        >>> from rc_jax import attention
        >>> spec = attention.AttentionSpec(d_model=8, heads=2)
        >>> params = attention.init(jax.random.key(0), spec)
        >>> batch = jax.random.normal(jax.random.key(1), (3, 5, 8))
        >>> jax.vmap(lambda x: attend(params, x, spec))(batch).shape
        (3, 5, 8)
    """
    check_layer(params, x, spec)
    check_scale_and_mask(scale, mask, x, spec)
    return _attend(params, x, spec, scale, mask)


@functools.partial(jax.jit, static_argnames="spec")
def _attend(
    params: AttentionParams, x: Array, spec: AttentionSpec, scale: ArrayLike | None, mask: Array | None
) -> Array:
    weights = _kernel(params, x, spec, scale, mask)
    value = pool(project(x, params.value, params.value_bias if spec.bias else None, spec), params, spec)
    return from_heads(jnp.einsum("hij,hjk->hik", weights, value, precision=spec.precision), params, x, spec)


def from_heads(
    mixed: Float[Array, "head token width"],
    params: AttentionParams,
    x: Float[Array, "token feature"],
    spec: AttentionSpec,
) -> Float[Array, "token feature"]:
    """The layer's output from the values that its heads have mixed: times their gates, times W_O, summed, plus b_O."""
    if spec.output_gate is not None:
        # The gate's logits x G are one for each feature, or one for the head.
        gate = params.parts["output_gate"]
        gate = gate if spec.output_gate == "elementwise" else gate[..., None]
        mixed = mixed * jax.nn.sigmoid(jnp.einsum("nd,hdk->hnk", x, gate, precision=spec.precision))
    out = jnp.einsum("hik,hkd->id", mixed, params.output, precision=spec.precision)
    return out + params.output_bias[None] if spec.bias and params.output_bias is not None else out


def scale_of(layer: AttentionSpec, scale: ArrayLike | None) -> ArrayLike | None:
    """What a network's scale is to one of its layers: itself where the layer reads scores, and none elsewhere."""
    return scale if layer.kind.reads == "scores" else None


def check_scale_and_mask(scale: ArrayLike | None, mask: Array | None, x: Array, spec: AttentionSpec) -> None:
    """Raise unless the scale is one number or one per head, and every token sees one under all masks together."""
    if scale is not None and spec.kind.reads != "scores":
        raise ValueError(
            f"`scale` must be None when weights={spec.kind.name!r}, which read {spec.kind.reads} and no scores, got "
            f"{arguments.describe(scale)}"
        )
    if scale is not None and np.shape(scale) not in ((), (spec.heads,)):
        raise ValueError(f"`scale` must be one number or one for each of {spec.heads} heads, got {np.shape(scale)}")
    if mask is None:
        return
    if spec.rank is not None:
        raise ValueError(f"`mask` must be None when the layer has a rank: E mixes all tokens, got {mask.shape}")
    n = x.shape[0]
    if mask.shape[0] != n:
        raise ValueError(f"`mask` must have one row and column for each of {n} tokens, got {mask.shape}")
    # Only the masks together may leave a row empty: `mask` alone has been checked.
    given = arguments.at_hand(mask)
    if given is not None and spec.weights == "sinkhorn" and not (given == given.T).all():
        raise ValueError("`mask` must be symmetric when weights='sinkhorn', whose columns sum to 1 as its rows do")
    if given is not None and (spec.causal or spec.window is not None):
        index = np.arange(n)
        gap = index[:, None] - index[None, :]
        reach = (gap >= 0 if spec.causal else True) & (abs(gap) <= (n if spec.window is None else spec.window))
        if not (given & reach).any(axis=1).all():
            raise ValueError(
                "`mask` must leave every token something to see under the masks of `spec`, got an empty row"
            )


def default_scale(spec: AttentionSpec) -> float:
    """The logit multiplier of a call that gives none: the layer's own, or the usual one of its scores."""
    if spec.scale is not None:
        return float(spec.scale)
    if spec.qk_norm == "unit":
        return spec.score_width**0.5
    return {"dot": spec.score_width**-0.5, "cosine": spec.score_width**0.5, "additive": 1.0}[spec.scores]


def log_tokens(
    n: int, seen: Bool[Array, "*head token token"] | None, dtype: DTypeLike
) -> Float[Array, "*head token 1"]:
    """The logarithm of the number of tokens that each row sees, of n where nothing is hidden."""
    if seen is None:
        return jnp.full((n, 1), math.log(n), dtype)
    return jnp.log(jnp.sum(seen, axis=-1, keepdims=True).astype(dtype))


@functools.partial(jax.jit, static_argnames="spec")
def _visible_scores(params: AttentionParams, x: Array, spec: AttentionSpec, scale: ArrayLike | None) -> Array:
    seen = masks.combine(x.shape[0], causal_mask=spec.causal, radius=spec.window, extra=None)
    return _scores(params, x, spec, scale, seen)


def _scores(
    params: AttentionParams, x: Array, spec: AttentionSpec, scale: ArrayLike | None, seen: Array | None
) -> Array:
    query, key = queries_and_keys(params, x, spec)
    if spec.kind.own_scores is not None:
        return spec.kind.own_scores(Inputs(x, query, key, spec.precision), own_parts(params, spec), **_options(spec))

    # The factor on the logits: α of each head, and log n_i of each row where the specification says so.
    factor = jnp.asarray(default_scale(spec) if scale is None else scale, x.dtype)
    if factor.ndim:
        factor = jnp.resize(factor, (query.shape[0],))[:, None, None]  # every score matrix of a head has its scale
    if spec.scale_law == "log_tokens":
        factor = factor * log_tokens(x.shape[0], seen, x.dtype)[None]
    if spec.scores == "additive":
        hidden, vector = jnp.tanh(query[:, :, None] + key[:, None]), params.parts["score_vector"]
        return capped(factor * jnp.einsum("hijk,hk->hij", hidden, vector, precision=spec.precision), spec)
    if spec.scores == "cosine":
        query, key = unit(query), unit(key)
    # The factor goes into the queries: a compiler that fuses it with softmax's "minus the maximum" rounds the two
    # differently, and the exponential of the gap overflows when logits are large.
    return capped(jnp.einsum("hik,hjk->hij", factor * query, key, precision=spec.precision), spec)


def capped(logits: Float[Array, "head token column"], spec: AttentionSpec) -> Float[Array, "head token column"]:
    """The logits l, or c tanh(l/c) where the layer has a cap c (Gemma team 2024, "Gemma 2", section 2)."""
    if spec.soft_cap is None:
        return logits
    cap = jnp.asarray(spec.soft_cap, logits.dtype)
    return cap * jnp.tanh(logits / cap)


@functools.partial(jax.jit, static_argnames="spec")
def _weights(
    params: AttentionParams, x: Array, spec: AttentionSpec, scale: ArrayLike | None, mask: Array | None
) -> Array:
    weights = _kernel(params, x, spec, scale, mask)
    if spec.rank is None:
        return weights
    return jnp.einsum("hir,hrj->hij", weights, params.parts["pool"], precision=spec.precision)


def _kernel(
    params: AttentionParams, x: Array, spec: AttentionSpec, scale: ArrayLike | None, mask: Array | None
) -> Array:
    """The weights on the tokens, or with a rank on the rows of E."""
    visible = masks.combine(x.shape[0], causal_mask=spec.causal, radius=spec.window, extra=mask)
    some = None
    if mask is not None and visible is not None:
        # A row that sees nothing has weight 0. For the kind it sees its own column, so that no NaN arises in it, nor in
        # gradients, unless the kind knows such rows.
        some = jnp.any(visible, axis=-1, keepdims=True)
        visible = visible if spec.kind.empty_rows else with_own_column(visible, some)
    rows = _scores(params, x, spec, scale, visible)
    seen = None if visible is None else visible[None]
    if spec.top_k is not None:
        seen = largest(rows, seen, spec.top_k)
    weights = weight_function(params, spec, rows.shape, seen)(rows).astype(x.dtype)
    return weights if some is None else jnp.where(some[None], weights, 0)


def weight_function(
    params: AttentionParams, spec: AttentionSpec, shape: tuple[int, ...], seen: Bool[Array, "#head token column"] | None
) -> Callable[[Array], Array]:
    """The map from scores of this shape to weights, with the layer's own parts and options and what each row sees."""
    columns = everything(shape) if seen is None else seen
    parts = own_parts(params, spec)
    return lambda rows: spec.kind.weights(rows, columns, parts, **_options(spec))


def _options(spec: AttentionSpec) -> dict[str, object]:
    """The fields of the specification that its kind of weights reads."""
    return {name: getattr(spec, name) for name in spec.kind.options}


def largest(
    scores: Float[Array, "head token column"], mask: Bool[Array, "#head token column"] | None, k: int
) -> Bool[Array, "head token column"]:
    """True at the k largest scores of each row among those that it sees, and at scores equal to the k-th."""
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    if k >= scores.shape[-1]:
        return scores > -jnp.inf
    last = jax.lax.top_k(jax.lax.stop_gradient(scores), k)[0][..., -1:]
    return (scores >= last) & (scores > -jnp.inf)
