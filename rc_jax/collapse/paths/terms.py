"""Terms of a sum over paths as a mean and a scaled difference, and frozen attention matrices acting on them.

In the mean–residual form of the network's own tokens (`rc_jax.collapse.exact.state`) an attention matrix is

    P_h = 1 p_hᵀ + e^μ D_h

with a row p_h for all tokens and a rest whose rows sum to 0: of order e^{2ℓ}, or of order 1 where a mask shows rows
different tokens. On the term Y = 1m̄ᵀ + e^s R̂ of some paths

    P_h Y = 1(m̄ + e^s R̂ᵀp_h)ᵀ + e^{s+μ} D_h R̂:

a term keeps a mean and a difference of its own, each with a logarithm for its size, and nothing of the one is lost in
the other. What can still be lost are differences between some tokens beside much larger ones between others, where a
later layer looks at the former only. Everything, the network's own tokens too, is therefore computed again with its
roundings moved (`rc_jax.collapse.exact.moves`); where the results disagree a size is not known, and NaN says so.
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
from rc_jax.collapse.exact.moves import Moves
from rc_jax.collapse.exact.scaled import Scaled, einsum
from rc_jax.collapse.exact.state import MeanResidual, Weights
from rc_jax.network import LayerParams, Layers, StackSpec, scan_layers

Carry = TypeVar("Carry")
Out = TypeVar("Out")


class Term(NamedTuple):
    """Y = 1·mean + difference, each with rows of norm 1, or 0, and one logarithm.

    `mean` has the shape (1, feature), `difference` (token, feature).
    """

    mean: Scaled
    difference: Scaled


def term(x: Float[Array, "token feature"]) -> Term:
    """Tokens as a term."""
    state = mean_residual.decompose(x)
    return Term(mean_residual.normalise(state.mean[None]), state.over_norm)


def constant(rows: Float[Array, "1 feature"], tokens: int) -> Term:
    """The same for all tokens."""
    nothing = jnp.zeros((tokens, rows.shape[1]), rows.dtype)
    return Term(mean_residual.normalise(rows), Scaled(nothing, jnp.asarray(-jnp.inf, rows.dtype)))


def freeze(
    params: AttentionParams,
    state: Term,
    spec: AttentionSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
    moves: Moves,
) -> Weights:
    """The attention matrices of one layer of softmax, for the tokens that come to it."""
    mean, difference = moves.features(state.mean.value[0], 0), state.difference
    tokens = MeanResidual(mean, difference.map(lambda rows: moves.entries(rows, 0)))
    return attention.weights(params, tokens, spec, scale, mask, moves)


def through(
    frozen: Weights,
    params: AttentionParams,
    y: Term,
    spec: AttentionSpec,
    moves: Moves,
) -> Term:
    """Σ_h P_h Y W_h over the heads given."""
    sides = moves.scaled(y.mean, 0), y.difference.map(lambda rows: moves.entries(rows, 0))
    own, value = (moves.scaled(side.map(lambda rows: project(rows, params.value, None, spec)), 3) for side in sides)

    def mix(weights: Scaled | Array) -> Scaled:
        """The heads' rows of weights times their values and their output matrices."""
        mixed = einsum("hij,hjk->hik", weights, value, precision=spec.precision)
        return einsum("hik,hkd->hid", mixed, params.output, precision=spec.precision)

    # P_h Y = 1(m̄ + e^s R̂ᵀp_h)ᵀ + e^(s+μ) D_h R̂. The column means of the last part belong to the mean.
    rest = mix(frozen.rest)
    missed = rest.map(lambda rows: jnp.mean(rows, axis=1, keepdims=True))
    of_mean = einsum("hik,hkd->id", own, params.output, precision=spec.precision)
    of_shared = mix(frozen.shared[:, None]).map(lambda rows: jnp.sum(rows, axis=0))
    whole = [jax.tree.map(lambda leaf: leaf[None], part) for part in (of_mean, of_shared)]
    means = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *whole, missed)
    return Term(_combine(means), _combine(rest.map(lambda rows: rows - missed.rows)))


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
    return Term(_combine(terms.mean), _combine(terms.difference))


def _combine(parts: Scaled) -> Scaled:
    """The sum over the first axis, formed at the largest part's size, with rows of norm 1 or 0."""
    logs = jnp.where(jnp.any(parts.rows != 0, axis=(1, 2)), parts.log_size, -jnp.inf)  # a 0 must not set the size
    largest = jnp.max(logs)
    reference = jnp.where(jnp.isneginf(largest), 0, largest)
    return mean_residual.normalise(jnp.sum(Scaled(parts.rows, logs - reference).value, axis=0)).times_exp(reference)


def log_norm(y: Term) -> Float[Array, ""]:
    """Log ‖Y‖_F."""
    rows = y.difference.rows
    tokens = jnp.log(jnp.asarray(rows.shape[-2], rows.dtype))
    return jnp.logaddexp(tokens + 2 * y.mean.log_size, 2 * y.difference.log_size) / 2


def scan(
    advance: Callable[[Carry, AttentionParams, Weights], tuple[Carry, Out]],
    carry: Carry,
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    scale: ArrayLike | None,
    mask: Bool[Array, "token token"] | None,
    moves: Moves,
) -> tuple[Carry, Term, Out]:
    """Run `advance` over the layers with their frozen matrices: last carry, the network's output, all it put out."""
    layer = spec.attention
    seen = masks.combine(x.shape[0], causal_mask=layer.causal, radius=layer.window, extra=mask)
    scale = attention.known_scale(layer, scale, mask, seen)

    def step(both: tuple[Carry, Term], weights: LayerParams) -> tuple[tuple[Carry, Term], Out]:
        carry, state = both
        # The network's own tokens go on beside the carry: heads, biases and the skip connection are added.
        frozen = freeze(weights.attention, state, layer, scale, seen, moves)
        sums = [through(frozen, weights.attention, state, layer, moves)]
        if layer.bias:
            here, passed = from_biases(weights.attention, layer)
            sums.append(constant(here + passed, x.shape[0]))
        if spec.skip:
            sums.append(state)
        carry, out = advance(carry, weights.attention, frozen)
        return (carry, add(*sums)), out

    (carry, state), out = scan_layers(step, (carry, term(x)), params, spec)
    return carry, state, out
