"""Terms of a sum over paths as a mean and a scaled difference, and frozen attention matrices acting on them.

In the mean–residual form of the network's own tokens (`rc_jax.collapse.exact.state`) an attention matrix is

    P_h = 1 p_hᵀ + e^μ D_h

with a row p_h for all tokens and a rest whose rows sum to 0: of order e^{2ℓ}, or of order 1 where a mask shows rows
different tokens. On the term Y = 1m̄ᵀ + e^s R̂ of some paths

    P_h Y = 1(m̄ + e^s R̂ᵀp_h)ᵀ + e^{s+μ} D_h R̂:

a term keeps a mean and a difference of its own, each with a logarithm for its size, and nothing of the one is lost in
the other. What can still be lost are differences between some tokens beside much larger ones between others, where a
later layer looks at the former only. Every term is therefore computed twice, the second time with its entries moved by
a few roundings at every layer; where the two disagree the residual is not known, and NaN says so.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from rc_jax.attention import AttentionParams, AttentionSpec, masks
from rc_jax.attention.parameters import project
from rc_jax.collapse.exact import attention
from rc_jax.collapse.exact import state as mean_residual
from rc_jax.collapse.exact.state import MeanResidual
from rc_jax.network import LayerParams, Layers, StackSpec, scan_layers

Carry = TypeVar("Carry")
Out = TypeVar("Out")


class Term(NamedTuple):
    """Y = e^log_mean · 1 mean + e^log_size · direction, of which mean and direction have norm 1, or are 0."""

    mean: Float[Array, "1 feature"]
    log_mean: Float[Array, ""]
    direction: Float[Array, "token feature"]
    log_size: Float[Array, ""]


class Frozen(NamedTuple):
    """The attention matrices of one layer: P_h = 1 shared_hᵀ + e^log_rest_h · rest_h."""

    shared: Float[Array, "head token"]
    rest: Float[Array, "head token token"]
    log_rest: Float[Array, " head"]


def term(x: Float[Array, "token feature"]) -> Term:
    """Tokens as a term."""
    state = mean_residual.decompose(x)
    return Term(*mean_residual.normalise(state.mean[None]), state.direction, state.log_norm)


def constant(rows: Float[Array, "1 feature"], tokens: int) -> Term:
    """The same for all tokens."""
    nothing = jnp.zeros((tokens, rows.shape[1]), rows.dtype)
    return Term(*mean_residual.normalise(rows), nothing, jnp.asarray(-jnp.inf, rows.dtype))


def freeze(
    params: AttentionParams,
    state: Term,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
) -> Frozen:
    """The attention matrices of one layer of softmax, for the tokens that come to it."""
    tokens = MeanResidual(jnp.exp(state.log_mean) * state.mean[0], state.direction, state.log_size)
    return Frozen(*attention.weights(params, tokens, spec, scale, mask))


def through(
    frozen: Frozen,
    params: AttentionParams,
    y: Term,
    spec: AttentionSpec,
    perturbation: Float[Array, "token feature"] | None = None,
) -> Term:
    """Σ_h P_h Y W_h over the heads given, for a Y whose difference is moved by the relative amounts `perturbation`."""
    if perturbation is not None:
        y = y._replace(direction=y.direction + perturbation * y.direction)
    value = project(y.direction, params.value, None, spec)

    def mix(weights: Float[Array, "head row token"]) -> Float[Array, "head row feature"]:
        mixed = jnp.einsum("hij,hjk->hik", weights, value, precision=spec.precision)
        return jnp.einsum("hik,hkd->hid", mixed, params.output, precision=spec.precision)

    # P_h Y = 1(m̄ + e^s R̂ᵀp_h)ᵀ + e^(s+μ) D_h R̂, each part with the logarithm of its size. The column means of the
    # last part belong to the mean.
    own = project(y.mean, params.value, None, spec)
    rows = mix(frozen.rest)
    missed = jnp.mean(rows, axis=1, keepdims=True)
    logs = y.log_size + frozen.log_rest
    means = [
        jnp.einsum("hik,hkd->id", own, params.output, precision=spec.precision)[None],
        jnp.sum(mix(frozen.shared[:, None]), axis=0)[None],
        missed,
    ]
    mean_logs = jnp.concatenate([jnp.stack([y.log_mean, y.log_size]), logs])
    return Term(*_combine(jnp.concatenate(means), mean_logs), *_combine(rows - missed, logs))


def from_biases(
    params: AttentionParams, spec: AttentionSpec, row_sums: Float[Array, "head row"] | None = None
) -> tuple[Float[Array, "1 feature"], Float[Array, "row feature"]]:
    """What a layer's output bias adds to every token, and what its value biases add after passing their head.

    Where the sums of the heads' rows are not given they are 1, and every token gets the same.
    """
    assert params.value_bias is not None and params.output_bias is not None
    sums = jnp.ones((spec.heads, 1), params.output.dtype) if row_sums is None else row_sums
    mixed = sums[..., None] * params.value_bias[:, None]
    return params.output_bias[None], jnp.einsum("hik,hkd->id", mixed, params.output, precision=spec.precision)


def add(*terms: Term) -> Term:
    """The sum of terms; the column sums of its difference are 0 to rounding, and frozen matrices do not see them."""
    return total(jax.tree.map(lambda *leaves: jnp.stack(leaves), *terms))


def total(terms: Term) -> Term:
    """The sum of terms that are stacked along a leading axis."""
    return Term(*_combine(terms.mean, terms.log_mean), *_combine(terms.direction, terms.log_size))


def _combine(matrices: Float[Array, "part row column"], logs: Float[Array, " part"]) -> tuple[Array, Array]:
    """Σ e^log · matrix, formed at the largest part's scale: a matrix of norm 1 or 0, and the log of its factor."""
    logs = jnp.where(jnp.any(matrices != 0, axis=(1, 2)), logs, -jnp.inf)  # what is 0 must not set the scale
    largest = jnp.max(logs)
    reference = jnp.where(jnp.isneginf(largest), 0, largest)
    unit, log_norm = mean_residual.normalise(jnp.sum(jnp.exp(logs - reference)[:, None, None] * matrices, axis=0))
    return unit, reference + log_norm


def log_norm(y: Term) -> Float[Array, ""]:
    """Log ‖Y‖_F."""
    tokens = jnp.log(jnp.asarray(y.direction.shape[-2], y.direction.dtype))
    return jnp.logaddexp(tokens + 2 * y.log_mean, 2 * y.log_size) / 2


def scan(
    advance: Callable[[Carry, AttentionParams, Frozen], tuple[Carry, Out]],
    carry: Carry,
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
) -> tuple[Carry, Term, Out]:
    """Run `advance` over the layers with their frozen matrices: last carry, the network's output, all it put out."""
    layer = spec.attention
    seen = masks.combine(x.shape[0], causal_mask=layer.causal, radius=layer.window, extra=mask)

    def step(both: tuple[Carry, Term], weights: LayerParams) -> tuple[tuple[Carry, Term], Out]:
        carry, state = both
        # The network's own tokens go on beside the carry: heads, biases and the skip connection are added.
        frozen = freeze(weights.attention, state, layer, scale, seen)
        sums = [through(frozen, weights.attention, state, layer)]
        if layer.bias:
            here, passed = from_biases(weights.attention, layer)
            sums.append(constant(here + passed, x.shape[0]))
        if spec.skip:
            sums.append(state)
        carry, out = advance(carry, weights.attention, frozen)
        return (carry, add(*sums)), out

    (carry, state), out = scan_layers(step, (carry, term(x)), params, spec)
    return carry, state, out
