"""Sizes of the gradient of a loss in every weight matrix, right at any depth: backpropagation on split tokens.

Tokens X = 1x̄ᵀ + e^ℓ R̂, attention matrix P, and g = G W_Oᵀ for the loss's gradient G at the layer's output. The gradient
at the logits is e^ℓ D with

    D = P ∘ (u − rowsum(P ∘ u)),   u = g (R̂ W_V)ᵀ,

because the mean of the values adds the same to a whole row of P's gradient, and softmax does not see that. The rows
of D sum to 0. So of the keys K = 1k̄ᵀ + e^ℓ K̂ only K̂ is left in D K, and x̄ drops out of Xᵀ Dᵀ Q:

    ∂W_Q = α e^{2ℓ} (x̄ 1ᵀD K̂ + e^ℓ R̂ᵀ D K̂),   ∂W_K = α e^{2ℓ} R̂ᵀ Dᵀ Q,   Q = 1q̄ᵀ + e^ℓ Q̂,
    ∂W_V = x̄ 1ᵀPᵀg + e^ℓ R̂ᵀ Pᵀ g,   ∂W_O = v̄ 1ᵀG + e^ℓ (P V̂)ᵀ G.

Nothing cancels: the square e^{2ℓ} is in the arithmetic, as the cube is in that of the tokens, and D is made of
differences from the largest weight of each row.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from rc_jax._numerics import arguments
from rc_jax.attention import AttentionParams, AttentionSpec, masks
from rc_jax.attention.layer import check_scale_and_mask, default_scale
from rc_jax.collapse.exact import attention, decide
from rc_jax.collapse.exact import state as mean_residual
from rc_jax.collapse.exact.moves import AMOUNTS, COPY, Moves, moved, of_tokens
from rc_jax.collapse.exact.scaled import Scaled, einsum
from rc_jax.collapse.exact.state import MeanResidual, exp_below, log_softmax
from rc_jax.collapse.requirements import BILINEAR, check_covered
from rc_jax.network import LayerParams, Layers, StackSpec, scan_layers
from rc_jax.network.specification import check_stack


class WeightGradients(NamedTuple):
    """log ‖∂loss/∂W‖_F (nats) of every layer's matrices, all heads together, and log ‖res(X)‖_F at its input."""

    query: Float[Array, " layer"]
    key: Float[Array, " layer"]
    value: Float[Array, " layer"]
    output: Float[Array, " layer"]
    log_residual: Float[Array, " layer"]


@arguments.guard(x=arguments.tokens, scale=arguments.positive, mask=masks.check_mask)
def log_weight_gradients(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    cotangent: Float[Array, "token feature"],
    *,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
) -> WeightGradients:
    """The sizes of the gradients of W_Q, W_K, W_V and W_O in every layer, as logarithms that are right at any depth.

    Where tokens have come to agree, with ‖res(X)‖_F = e^ℓ, the gradients of queries and keys are of order e^{2ℓ} and
    those of values and outputs of order 1. Without skip connections ℓ triples with every layer, and floating-point
    backpropagation returns noise from the third or fourth on; here the powers of e^ℓ stand outside the arithmetic.

    A loss that does not change when all tokens move together is different: its gradient G at the output has 1ᵀG = 0,
    the leading terms vanish, and all four gradients of the last layer are of order e^{3ℓ}. That is refused.

    Right is relative to the logarithm. In saturated float32 networks, where log ‖∂W_Q‖ and log ‖∂W_K‖ may be −10³ to
    −10⁶, up to 7 % of them are off by more than 1e-5 of themselves and up to 0.6 % by more than 1e-4, which is several
    nats; the largest error was 7e-4 (docs/arithmetic.md). Where a logarithm is below −100 and its nats matter, compute
    in float64.

    Args:
        params: from `network.init` or `network.random_layers`.
        x: tokens.
        spec: softmax attention by dot products, with or without skip connections; masks and biases as usual.
        cotangent: G, the gradient of the loss at the network's output (for the loss Σ G∘X^L, G itself).
        scale: α of every layer, as in `rc_jax.attention.scores`.
        mask: of every layer, as in `rc_jax.attention.attention_weights`; traced ones as in `log_residuals`.

    Raises:
        ValueError: an MLP, LayerNorm or another kind of attention, or a cotangent whose rows sum to zero.

    Source: that gradients of queries and keys vanish and those of values do not, Noci et al. 2022; the orders and the
        arithmetic are this package's own.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=2), depth=5)
        >>> params = network.init(jax.random.key(0), spec)
        >>> x, g = 0.3 * jax.random.normal(jax.random.key(1), (2, 8, 16))
        >>> sizes = log_weight_gradients(params, x, spec, g)
        >>> bool(sizes.query[-1] < -100), bool(abs(sizes.value[-1]) < 10)
        (True, True)
    """
    only = dict.fromkeys(("mlp", "norm"), "only attention and skip connections are differentiated here")
    check_covered(spec, only | BILINEAR | dict.fromkeys(("top_k", "rank"), "every row must see the tokens themselves"))
    check_stack(params, x, spec)
    check_scale_and_mask(scale, mask, x, spec.attention)
    if cotangent.shape != x.shape or cotangent.dtype != x.dtype:
        wanted, got = arguments.describe(x), arguments.describe(cotangent)
        raise ValueError(f"`cotangent` must have the shape and dtype of `x`, {wanted}, got {got}")
    given = arguments.on_host(cotangent)
    if given is not None:
        given = given.astype(float)
        given = given / (abs(given).max() or 1.0)  # no square under- or overflows
        total, size = np.linalg.norm(given.sum(axis=0)), np.linalg.norm(given)
        if total <= float(jnp.finfo(cotangent.dtype).eps) ** 0.5 * size:
            raise ValueError("`cotangent` must have rows that do not sum to zero, got a loss blind to the tokens' mean")
    return _log_weight_gradients(params, x, spec, cotangent, scale, mask)


@functools.partial(jax.jit, static_argnames="spec")
def _log_weight_gradients(
    params: Layers, x: Array, spec: StackSpec, cotangent: Array, scale: ArrayLike | None, mask: Array | None
) -> WeightGradients:
    layer = spec.attention
    seen = masks.combine(x.shape[0], causal_mask=layer.causal, radius=layer.window, extra=mask)
    scale = attention.known_scale(layer, scale, mask, seen)
    alpha = jnp.broadcast_to(jnp.asarray(default_scale(layer) if scale is None else scale, x.dtype), layer.heads)

    tokens = of_tokens(x)

    def run(amount: Array) -> tuple[WeightGradients, MeanResidual]:
        moves = Moves(amount, tokens)

        def forward(state: MeanResidual, weights: LayerParams) -> tuple[MeanResidual, tuple[MeanResidual, LayerParams]]:
            state = moved(state, moves, 0)
            out = attention.attend(weights.attention, state, layer, scale, seen, moves)
            return mean_residual.add(state, out) if spec.skip else out, (state, weights)

        # The gradients are linear in G, the cotangent at the layer's output: `_backward` takes it without its size.
        def backward(cotangent: Scaled, saved: tuple[MeanResidual, LayerParams]) -> tuple[Scaled, WeightGradients]:
            state, weights = saved
            at_input, logs = _backward(weights.attention, state, cotangent.rows, layer, alpha, seen, moves)
            out = mean_residual.normalise(cotangent.rows + at_input if spec.skip else at_input)
            query, key, value, output = (log + cotangent.log_size for log in logs)
            return out.times_exp(cotangent.log_size), WeightGradients(query, key, value, output, state.log_norm)

        saved = scan_layers(forward, mean_residual.decompose(x), params, spec)[1]
        return jax.lax.scan(backward, mean_residual.normalise(cotangent), saved, reverse=True)[1], saved[0]

    copies, states = jax.vmap(run, axis_name=COPY)(jnp.asarray(AMOUNTS, x.dtype))
    # Tokens that are not known are not known to any later layer.
    same = jax.vmap(decide.same, in_axes=1)(states)
    known = jnp.cumprod(same.astype(jnp.int32)) > 0
    return WeightGradients(*(decide.first(logs, known) for logs in copies))


def _backward(
    params: AttentionParams,
    state: MeanResidual,
    cotangent: Float[Array, "token feature"],
    spec: AttentionSpec,
    alpha: Float[Array, " head"],
    seen: Array | None,
    moves: Moves,
) -> tuple[Float[Array, "token feature"], tuple[Array, Array, Array, Array]]:
    """The gradient at a layer's input without its skip, and the log-norms of those of W_Q, W_K, W_V and W_O."""
    product = functools.partial(jnp.einsum, precision=spec.precision)
    size, mean, difference = jnp.exp(state.log_size), state.mean, state.direction

    # The layer again: Q = 1q̄ᵀ + e^ℓ Q̂, K̂, V = 1v̄ᵀ + e^ℓ V̂, and P = softmax(α e^ℓ Q K̂ᵀ).
    query, key, value = (
        attention.columns(state, *each, spec)
        for each in (
            (params.query, params.query_bias),
            (params.key, params.key_bias),
            (params.value, params.value_bias),
        )
    )
    keys, values = key.rest.rows, value.rest.rows
    queries = query.mean[:, None] + size * query.rest.rows
    logits = alpha[:, None, None] * size * product("hik,hjk->hij", queries, keys)
    log_p = log_softmax(logits if seen is None else jnp.where(seen[None], logits, -jnp.inf))
    p = moves.exp(log_p)

    # Backward through the output matrix and through softmax: g = G W_Oᵀ, u = g V̂ᵀ, and α D of every head.
    g = product("nd,hkd->hnk", cotangent, params.output)
    # Columns that a rounding has made equal move apart; those of equal tokens stay equal.
    u = moves.columns(product("hik,hjk->hij", g, values))
    d = _softmax_gradient(log_p, u) * alpha[:, None, None]

    # The gradients at queries, keys and values are e^{2ℓ} D K̂, e^ℓ Dᵀ Q and Pᵀ g; their powers of e^ℓ are added last.
    at_query, at_key, at_value = (
        einsum("hij,hjk->hik", d, keys, precision=spec.precision),
        einsum("hij,hik->hjk", d, queries, precision=spec.precision),
        product("hij,hik->hjk", p, g),
    )

    def of_weight(at_rows: Float[Array, "head token width"]) -> Float[Array, "head feature width"]:
        """Xᵀ times the gradient at the rows: x̄ 1ᵀ(·) + e^ℓ R̂ᵀ(·)."""
        return mean[None, :, None] * jnp.sum(at_rows, axis=1)[:, None] + size * product(
            "nd,hnk->hdk", difference, at_rows
        )

    # The rows of D sum to 0, so x̄ is not in ∂W_K.
    of_key = at_key.map(lambda rows: product("nd,hnk->hdk", difference, rows))
    attended = product("hij,hjk->hik", p, values)
    of_output = value.mean[:, :, None] * jnp.sum(cotangent, axis=0)[None, None] + size * product(
        "hik,id->hkd", attended, cotangent
    )

    at_input = product("hjk,hdk->jd", at_value, params.value)
    sized = d.size
    at_input = at_input + jnp.square(size) * product("hik,hdk->id", sized * at_query.rows, params.query)
    at_input = at_input + size * product("hjk,hdk->jd", sized * at_key.rows, params.key)
    nothing = jnp.zeros_like(d.log_size)
    slopes = (at_query.map(of_weight), of_key, Scaled(of_weight(at_value), nothing), Scaled(of_output, nothing))
    log_query, log_key, log_value, log_output = (_log_norm(slope) for slope in slopes)
    return at_input, (2 * state.log_size + log_query, 2 * state.log_size + log_key, log_value, log_output)


def _softmax_gradient(log_p: Float[Array, "head token column"], u: Float[Array, "head token column"]) -> Scaled:
    """D = P ∘ (u − rowsum(P ∘ u)), with a logarithm for each head.

    Differences are taken from u at the largest weight of a row, and the entry there is minus the sum of the others. So
    nothing of size one cancels where softmax is saturated. Entries are compared by their own logarithms: a weight that
    does not move, such as one of two equal columns, may be the largest and hide all others.
    """
    largest = jnp.argmax(log_p, axis=-1)
    apart = u - jnp.take_along_axis(u, largest[..., None], axis=-1)
    apart = apart - jnp.sum(jnp.exp(log_p) * apart, axis=-1, keepdims=True)
    others = ~jax.nn.one_hot(largest, u.shape[-1], dtype=bool) & (log_p > -jnp.inf)
    logs = jnp.where(others, log_p + jnp.log(jnp.abs(apart)), -jnp.inf)
    top = jnp.max(logs, axis=(1, 2))
    top = jnp.where(jnp.isfinite(top), top, 0)
    return Scaled(mean_residual.with_zero_sums(jnp.sign(apart) * exp_below(logs, top), largest), top)


def _log_norm(slopes: Scaled) -> Float[Array, ""]:
    """The logarithm of the norm of all heads' matrices together."""
    by_head = jax.vmap(lambda slope: mean_residual.normalise(slope).log_size)(slopes.rows) + slopes.log_size
    return jax.nn.logsumexp(2 * by_head) / 2
