"""The published bounds on the residual, DCL21's cube for one layer and for depth, with the factor γ measured.

Both rest on the proof as repaired in docs/proof.md, for X = 1x̄ᵀ + R and any number of heads:

    ‖res(SA(X))‖_{1,∞} ≤ √(Σ_h ‖d_h‖₁‖W_h‖₁) √(Σ_h ‖d_h‖_∞‖W_h‖_∞) ‖R‖_{1,∞},   d_h,i = 2 max_{j,j'} |E_ij − E_ij'|

with E = α R W_QK Rᵀ. ‖·‖_{1,∞} has no triangle inequality, so heads are added inside the two norms that have one. The
source writes the same as 4γ α‖W_QK‖₁‖W‖_{1,∞} ‖R‖³; γ is then what makes the two equal.
"""

import functools
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from rc_jax._numerics import arguments
from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.attention.parameters import project
from rc_jax.collapse.bounds.pure_attention import (
    check_bounded,
    column_norm,
    cubed,
    logit_scale,
    row_norm,
    safe_log,
    scan_exact,
)
from rc_jax.collapse.exact.state import MeanResidual
from rc_jax.collapse.measures import norm_1inf, residual
from rc_jax.network import Layers, StackSpec

Center = Literal["mean", "argmin"]


@arguments.guard(x=arguments.tokens, scale=arguments.positive)
def measured_gamma(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
    center: Center = "mean",
) -> Float[Array, " depth"]:
    """The factor γ of DCL21's bounds at every layer, measured on the tokens that reach it.

    The source leaves γ to the attention weights; this package's own definition, for one head and `center="argmin"`, is

        √(‖D1‖₁ ‖D1‖_∞) = 2γ α‖W_QK‖₁ ‖R‖²_{1,∞},   D_ii = max_{j,j'} |E_ij − E_ij'|,   E = α R W_QK Rᵀ

    and it carries three things more, so that the bounds hold without a condition. *Heads*: with several, γ is the
    quotient of √(Σ‖D_h1‖₁‖W_h‖₁)√(Σ‖D_h1‖_∞‖W_h‖_∞) and 2 Σ α‖W_QK,h‖₁‖W_h‖_{1,∞} ‖R‖². *Centre*: the mean does not
    minimise ‖·‖_{1,∞}, so with `center="mean"` D1 is replaced by |I − 11ᵀ/n| D1, at most 2(1 − 1/n) times larger.
    *Condition*: where D_ii > 1.256 the linear 2D_ii is no bound and e^{D_ii} − 1 takes its place, which meets it there.
    For one head, `center="argmin"` and all D_ii ≤ 1.256, γ ≤ √min(tokens, d_model).

    Args:
        params: from `network.init` or `network.random_layers`.
        x: at least two tokens.
        spec: the network: pure softmax attention on dot products; biases are allowed, they do not enter.
        scale: α of every layer, a number or one per head; 1/√d_head by default; may be traced.
        center: which residual is bounded and enters the bound, as in `residual`; "argmin" takes some seconds.

    Returns:
        One number per layer; 0 where all tokens are equal already.

    Raises:
        ValueError: a mask, skip, MLP, LayerNorm, or another score or weight than dot-product softmax, for none of which
            the theorem holds.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16), depth=4)
        >>> params = network.init(jax.random.key(0), spec)
        >>> gamma = measured_gamma(params, 0.1 * jax.random.normal(jax.random.key(1), (8, 16)), spec, center="argmin")
        >>> gamma.shape, bool((gamma < 8**0.5).all())
        ((4,), True)
    """
    check_bounded(params, x, spec)
    parts = bound_parts(params, x, spec, scale, center)
    return jnp.exp(parts.log_gamma).astype(x.dtype)


@arguments.guard(x=arguments.tokens, scale=arguments.positive)
def layer_bound(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
    center: Center = "mean",
) -> Float[Array, " depth"]:
    """The log of DCL21's one-layer bound on the residual, at every layer, for the tokens that really reach it.

    log ‖res(X^(l+1))‖_{1,∞} ≤ log( 4γ_l Σ_h α‖W_QK,h‖₁‖W_h‖_{1,∞} ‖res(X^l)‖³_{1,∞} ),   W_h = W_V,h W_O,h

    with γ_l from `measured_gamma`, which says what it carries (DCL21, section 2; repaired, docs/proof.md). The tokens
    are carried in cancellation-free arithmetic, so it can be asked at any depth; compare it with `audit.layer`.

    Args and errors as in `measured_gamma`.

    Returns:
        One number per layer (nats), entry l bounds the tokens after layer l + 1; −inf where all tokens are equal.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> from rc_jax.collapse import norm_1inf, residual
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=2), depth=1)
        >>> params, x = network.init(jax.random.key(0), spec), jax.random.normal(jax.random.key(1), (8, 16))
        >>> measured = jax.numpy.log(norm_1inf(residual(network.apply(params, x, spec))))
        >>> bool(measured < layer_bound(params, x, spec)[0])
        True
    """
    check_bounded(params, x, spec)
    return bound_parts(params, x, spec, scale, center).log_bound.astype(x.dtype)


@arguments.guard(x=arguments.tokens, scale=arguments.positive)
def depth_bound(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
    center: Center = "mean",
) -> Float[Array, " layer"]:
    """The log of DCL21's doubly exponential bound on the residual, from the first tokens alone.

    log ‖res(X^l)‖_{1,∞} ≤ (3^l − 1)/2 · log(4γβHα) + 3^l log ‖res(X)‖_{1,∞},   β = max ‖W_QK,h‖₁‖W_h‖_{1,∞}

    with β and γ the largest over the heads and the first l layers, γ from `measured_gamma` (DCL21, section 2; λ = 1,
    for there is no MLP). It says something where 4γβHα‖res(X)‖² < 1 only.

    Args and errors as in `measured_gamma`.

    Returns:
        depth + 1 numbers (nats); the first is log ‖res(X)‖_{1,∞} itself.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=2), depth=4)
        >>> params = network.init(jax.random.key(0), spec)
        >>> bound = depth_bound(params, 1e-3 * jax.random.normal(jax.random.key(1), (8, 16)), spec)
        >>> bool(bound[-1] < -100)
        True
    """
    check_bounded(params, x, spec)
    return in_depth(bound_parts(params, x, spec, scale, center)).astype(x.dtype)


class Parts(NamedTuple):
    """The logarithms that the bounds are made of, per layer."""

    log_bound: Float[Array, "*depth"]
    log_gamma: Float[Array, "*depth"]
    log_beta_h_alpha: Float[Array, "*depth"]  # of β H α
    log_residual: Float[Array, "*depth"]  # of the layer's input
    log_after: Float[Array, "*depth"]  # of its output


def in_depth(parts: Parts) -> Float[Array, " layer"]:
    """`depth_bound` from the parts of every layer: entry l takes the largest γ and β of the first l layers."""
    constants = math.log(4) + jax.lax.cummax(parts.log_gamma) + jax.lax.cummax(parts.log_beta_h_alpha)
    return cubed(constants, parts.log_residual[0])


@functools.partial(jax.jit, static_argnames=("spec", "center"))
def bound_parts(params: Layers, x: Array, spec: StackSpec, scale: ArrayLike | None, center: Center) -> Parts:
    """The logarithms that the bounds are made of, at every layer, with the tokens in cancellation-free arithmetic."""

    def measure(weights: AttentionParams, before: MeanResidual, after: MeanResidual) -> Parts:
        parts = _layer_parts(weights, before, spec.attention, scale, center)
        return parts._replace(log_after=_log_size(_difference(after, center), after))

    return scan_exact(params, x, spec, scale, measure)


def _layer_parts(
    weights: AttentionParams, state: MeanResidual, spec: AttentionSpec, scale: ArrayLike | None, center: Center
) -> Parts:
    """The parts of one layer, from E = α R W_QK Rᵀ; |P − P̃| ≤ d_h,i P̃ in row i. The caller fills in `log_after`."""
    alpha = logit_scale(scale, spec, state.mean.dtype)
    difference = _difference(state, center)
    log_size = _log_size(difference, state)

    # log d_h,i, from the oscillation of row i of E; about the mean, |I − 11ᵀ/n| d = (1 − 2/n) d + mean d.
    query = alpha[:, None, None] * project(difference, weights.query, None, spec)
    key = project(difference, weights.key, None, spec)
    pair = jnp.einsum("hik,hjk->hij", query, key, precision="highest")
    oscillation = jnp.max(pair, axis=-1) - jnp.min(pair, axis=-1)
    log_change = log_weight_change(safe_log(oscillation) + 2 * state.log_size)
    if center == "mean":
        n = difference.shape[0]
        log_mean = jax.nn.logsumexp(log_change, axis=-1, keepdims=True) - math.log(n)
        log_change = jnp.logaddexp(log_change + (math.log1p(-2 / n) if n > 2 else -jnp.inf), log_mean)

    # √(Σ_h ‖d_h‖₁‖W_h‖₁) √(Σ_h ‖d_h‖_∞‖W_h‖_∞), and γ as its quotient with 4 Σ_h α‖W_QK,h‖₁‖W_h‖_{1,∞} ‖R‖².
    value = jnp.matmul(weights.value, weights.output, precision="highest")
    score = jnp.matmul(weights.query, jnp.swapaxes(weights.key, -1, -2), precision="highest")
    log_columns, log_rows = safe_log(column_norm(value)), safe_log(row_norm(value))
    log_heads = jnp.log(alpha) + safe_log(column_norm(score)) + (log_columns + log_rows) / 2
    in_columns = jax.nn.logsumexp(jax.nn.logsumexp(log_change, axis=-1) + log_columns)
    in_rows = jax.nn.logsumexp(jnp.max(log_change, axis=-1) + log_rows)
    log_mixed = (in_columns + in_rows) / 2
    log_gamma = log_mixed - math.log(4) - jax.nn.logsumexp(log_heads) - 2 * log_size
    return Parts(
        log_bound=log_mixed + log_size,
        log_gamma=jnp.where(jnp.isneginf(log_mixed), -jnp.inf, log_gamma),  # no weight moves, and γ is 0/0
        log_beta_h_alpha=jnp.max(log_heads) + math.log(spec.heads),
        log_residual=log_size,
        log_after=log_size,
    )


def log_weight_change(log_oscillation: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Log max(2δ, e^δ − 1), given log δ: a bound on a softmax weight's relative change when logits move by δ."""
    oscillation = jnp.exp(log_oscillation)
    large = oscillation > 1
    safe = jnp.where(large, oscillation, 2)
    beyond = jnp.where(large, safe + jnp.log1p(-jnp.exp(-safe)), -jnp.inf)
    return jnp.maximum(math.log(2) + log_oscillation, beyond)


def _difference(state: MeanResidual, center: Center) -> Float[Array, "token feature"]:
    """R/e^ℓ about the given centre."""
    return state.direction if center == "mean" else residual(state.direction, center)


def _log_size(difference: Float[Array, "token feature"], state: MeanResidual) -> Float[Array, ""]:
    """Log ‖R‖_{1,∞}."""
    return safe_log(norm_1inf(difference)) + state.log_size
