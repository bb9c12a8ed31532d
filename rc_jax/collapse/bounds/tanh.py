"""Bounds on the diameter of the tokens: no factor to measure, no condition, and attained.

The difference between two rows of logits varies from token to token by at most α‖W_QK‖₂ diam(X)². Therefore

    diam(SA(X)) ≤ Σ_h ‖W_h‖₂ tanh(α‖W_QK,h‖₂ diam(X)²/4) diam(X),   diam(X) = max ‖x_i − x_i'‖₂.

docs/proof.md has the proof. Total variation against Hilbert's distance is Cohen & Fausti 2023, the contraction of
averages Dobrushin 1956; own are the application to attention and the bound in depth. Two tokens ±t in one dimension
attain it, at every depth.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.linear_algebra import log_spectral_norm
from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.collapse.bounds.pure_attention import (
    check_bounded,
    cubed,
    logit_scale,
    safe_log,
    scan_exact,
    working_dtype,
)
from rc_jax.collapse.exact.state import MeanResidual
from rc_jax.collapse.measures import diameter
from rc_jax.network import LayerParams, Layers, StackSpec, scan_layers


@arguments.guard(x=arguments.tokens, scale=arguments.positive)
def tanh_bound(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
) -> Float[Array, " layer"]:
    """Bounds on log diam(X^l) after every layer, from the diameter of the first tokens alone.

    diam(X^(l+1)) ≤ Σ_h ‖W_h‖₂ tanh(α‖W_QK,h‖₂ diam(X^l)²/4) diam(X^l), the bound of one layer fed with that of the
    layer before. W_h = W_V,h W_O,h. docs/proof.md has the proof and what of it is known.

    Args:
        params: from `network.init` or `network.random_layers`.
        x: at least two tokens.
        spec: the network: pure softmax attention on dot products; biases are allowed, they do not enter.
        scale: α of every layer, a number or one per head; 1/√d_head by default; may be traced.

    Returns:
        depth + 1 numbers (nats); the first is log diam(X) itself, −inf where all tokens are equal.

    Raises:
        ValueError: a mask, skip, MLP, LayerNorm, or another score or weight than dot-product softmax, for none of which
            the theorem holds.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=2), depth=4)
        >>> params = network.init(jax.random.key(0), spec)
        >>> bound = tanh_bound(params, 0.02 * jax.random.normal(jax.random.key(1), (8, 16)), spec)
        >>> bool(bound[-1] < -100)
        True
    """
    check_bounded(params, x, spec)
    return _from_first_tokens(params, x, spec, scale)[0].astype(x.dtype)


@arguments.guard(x=arguments.tokens, scale=arguments.positive)
def tanh_depth_bound(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
) -> Float[Array, " layer"]:
    """The closed form that follows from `tanh_bound` with tanh t ≤ t: doubly exponential collapse of the diameter.

    diam(X^l) ≤ c^((3^l − 1)/2) diam(X)^(3^l),   c = max over the first l layers of Σ_h α‖W_h‖₂‖W_QK,h‖₂/4

    The constant has 1/4 where DCL21's bound has 4γ. It says something where c·diam(X)² < 1 only.

    Args and errors as in `tanh_bound`.

    Returns:
        depth + 1 numbers (nats); the first is log diam(X) itself.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=2), depth=4)
        >>> params, x = network.init(jax.random.key(0), spec), 0.1 * jax.random.normal(jax.random.key(1), (8, 16))
        >>> bool((tanh_bound(params, x, spec) <= tanh_depth_bound(params, x, spec) + 1e-4).all())
        True
    """
    check_bounded(params, x, spec)
    return _from_first_tokens(params, x, spec, scale)[1].astype(x.dtype)


class Diameters(NamedTuple):
    """The bound on a layer's output and the diameter it has, as logarithms, per layer."""

    log_bound: Float[Array, "*depth"]
    log_after: Float[Array, "*depth"]


@functools.partial(jax.jit, static_argnames="spec")
def diameters_by_layer(params: Layers, x: Array, spec: StackSpec, scale: ArrayLike | None) -> Diameters:
    """Bound and diameter of every layer's output, for the tokens that really reach the layer."""

    def measure(weights: AttentionParams, before: MeanResidual, after: MeanResidual) -> Diameters:
        log_before, log_after = (safe_log(diameter(s.direction)) + s.log_size for s in (before, after))
        return Diameters(_log_layer_bound(_log_head_norms(weights, spec.attention, scale), log_before), log_after)

    return scan_exact(params, x, spec, scale, measure)


@functools.partial(jax.jit, static_argnames="spec")
def _from_first_tokens(
    params: Layers, x: Array, spec: StackSpec, scale: ArrayLike | None
) -> tuple[Float[Array, " layer"], Float[Array, " layer"]]:
    """The iterated bound and the closed form, from the norms of every layer's weights."""
    kind = working_dtype(x.dtype)

    def step(log_diameter: Array, layer: LayerParams) -> tuple[Array, tuple[Array, Array]]:
        norms = _log_head_norms(jax.tree.map(lambda w: w.astype(kind), layer.attention), spec.attention, scale)
        out = _log_layer_bound(norms, log_diameter)
        return out, (out, jax.nn.logsumexp(norms[0] + norms[1]))

    start = safe_log(diameter(x.astype(kind)))
    later, log_constants = scan_layers(step, start, params, spec)[1]
    return jnp.concatenate([start[None], later]), cubed(log_constants - math.log(4), start)


def _log_head_norms(
    weights: AttentionParams, spec: AttentionSpec, scale: ArrayLike | None
) -> tuple[Float[Array, " head"], Float[Array, " head"]]:
    """Log ‖W_h‖₂ and log α‖W_QK,h‖₂."""
    alpha = logit_scale(scale, spec, weights.query.dtype)
    # One program for the norms of both products.
    left = jnp.stack([weights.value, weights.query])
    value, score = log_spectral_norm(left, jnp.stack([weights.output, jnp.swapaxes(weights.key, -1, -2)]))
    return value, jnp.log(alpha) + score


def _log_layer_bound(
    log_norms: tuple[Float[Array, " head"], Float[Array, " head"]], log_diameter: Array
) -> Float[Array, ""]:
    """The logarithm of Σ_h ‖W_h‖₂ tanh(α‖W_QK,h‖₂ diam²/4) diam, from `_log_head_norms`."""
    log_value, log_score = log_norms
    return jax.nn.logsumexp(log_value + log_tanh(log_score + 2 * log_diameter - math.log(4))) + log_diameter


def log_tanh(log_t: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Log tanh(t) of log t, also where t itself underflows."""
    small = log_t < math.log(0.01)
    square = jnp.square(jnp.exp(jnp.where(small, log_t, 0)))
    series = log_t - square / 3 * (1 - square * 7 / 30)
    plain = jnp.log(jnp.tanh(jnp.exp(jnp.clip(jnp.where(small, 0, log_t), None, 6))))
    return jnp.where(small, series, plain)
