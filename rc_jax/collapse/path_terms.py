"""Terms of a sum over paths as a mean and a scaled difference, and frozen attention matrices acting on them.

In the mean–residual form of the network's own tokens (`rc_jax.collapse.mean_residual`) an attention matrix is

    P_h = 1 p_hᵀ + F_h + e^{2ℓ} Δ̂_h

with a row p_h for all tokens, F_h what a mask makes of the rows (0 where all see the same tokens) and Δ̂_h what is left.
Rows of F_h and Δ̂_h sum to 0, so on the term Y = 1m̄ᵀ + e^s R̂ of some paths

    P_h Y = 1(m̄ + e^s R̂ᵀp_h)ᵀ + e^s F_h R̂ + e^{s+2ℓ} Δ̂_h R̂:

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
from rc_jax.attention.layer import default_scale, project
from rc_jax.collapse import mean_residual
from rc_jax.network import LayerParams, Layers, StackSpec, scan_layers

Carry = TypeVar("Carry")
Out = TypeVar("Out")

# Above this exponent a masked row is far from the one that its tokens' means would give.
_FAR = 1.0
# A residual counts as known when a few roundings at every layer move it by no more than this part of itself.
_AGREE = 0.01


class Term(NamedTuple):
    """Y = e^log_mean · 1 mean + e^log_size · direction, of which mean and direction have norm 1, or are 0."""

    mean: Float[Array, "1 feature"]
    log_mean: Float[Array, ""]
    direction: Float[Array, "token feature"]
    log_size: Float[Array, ""]


class Frozen(NamedTuple):
    """The attention matrices of one layer: P_h = 1 shared_hᵀ + first_h + e^log_third · third_h."""

    shared: Float[Array, "head token"]
    first: Float[Array, "head token token"] | None
    third: Float[Array, "head token token"]
    log_third: Float[Array, ""]


def term(x: Float[Array, "token feature"]) -> Term:
    """Tokens as a term."""
    state = mean_residual.decompose(x)
    return Term(*mean_residual.normalise(state.mean[None]), state.direction, state.log_size)


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
    """The attention matrices of one layer of softmax on dot products, for the tokens that come to it."""
    alpha = jnp.asarray(default_scale(spec) if scale is None else scale, state.direction.dtype)
    alpha = jnp.broadcast_to(alpha, (spec.heads,))
    size = jnp.exp(state.log_size)
    mean = jnp.exp(state.log_mean) * state.mean[0]
    query_mean = jnp.einsum("d,hdk->hk", mean, params.query, precision=spec.precision)
    if spec.bias:
        assert params.query_bias is not None
        query_mean = query_mean + params.query_bias
    query = alpha[:, None, None] * project(state.direction, params.query, None, spec)
    key = project(state.direction, params.key, None, spec)
    common = size * jnp.einsum("hjk,hk->hj", key, alpha[:, None] * query_mean, precision=spec.precision)
    pair = jnp.einsum("hik,hjk->hij", query, key, precision=spec.precision)
    if mask is None:
        log_rows = jax.nn.log_softmax(common, axis=-1)[:, None]
        third = mean_residual.weight_differences(log_rows, pair, size)
        return Frozen(jnp.exp(log_rows)[:, 0], None, third, 2 * state.log_size)
    pair = jnp.where(mask[None], pair, 0)
    log_rows = jax.nn.log_softmax(jnp.where(mask[None], common[:, None], -jnp.inf), axis=-1)
    exponent = jnp.square(size) * pair
    near = jnp.max(jnp.abs(exponent), axis=(1, 2), keepdims=True) <= _FAR
    third = jnp.where(near, mean_residual.weight_differences(log_rows, pair, size), 0)
    # Far from collapse the two parts of a weight could cancel: there the rows are taken whole.
    rows = jnp.exp(jnp.where(near, log_rows, jax.nn.log_softmax(log_rows + exponent, axis=-1)))
    return Frozen(rows[:, 0], _from_first_row(rows), third, 2 * state.log_size)


def _from_first_row(rows: Float[Array, "head row token"]) -> Float[Array, "head row token"]:
    """The rows minus the first one: exactly nothing where they are equal, with sums of exactly 0.

    A row's entry for its largest weight is minus the sum of the others: close to 1 − 1 it would lose its digits.
    """
    largest = jax.nn.one_hot(jnp.argmax(rows, axis=-1), rows.shape[-1], dtype=bool)
    others = jnp.where(largest, 0, rows - rows[:, :1])
    return jnp.where(largest, -jnp.sum(others, axis=-1, keepdims=True), others)


def through(
    frozen: Frozen,
    params: AttentionParams,
    y: Term,
    spec: AttentionSpec,
    nudge: Float[Array, "token feature"] | None = None,
) -> Term:
    """Σ_h P_h Y W_h over the heads given, for a Y whose difference is moved by the relative amounts `nudge`."""
    if nudge is not None:
        y = y._replace(direction=y.direction + nudge * y.direction)
    value = project(y.direction, params.value, None, spec)

    def mix(weights: Float[Array, "head row token"]) -> Float[Array, "row feature"]:
        mixed = jnp.einsum("hij,hjk->hik", weights, value, precision=spec.precision)
        return jnp.einsum("hik,hkd->id", mixed, params.output, precision=spec.precision)

    own = project(y.mean, params.value, None, spec)
    means = [jnp.einsum("hik,hkd->id", own, params.output, precision=spec.precision), mix(frozen.shared[:, None])]
    differences, logs = [], []
    for weights, log_factor in ((frozen.first, 0), (frozen.third, frozen.log_third)):
        if weights is not None:
            difference, missed = mean_residual.recenter(mix(weights))
            differences.append(difference)
            means.append(missed[None])
            logs.append(y.log_size + log_factor)
    return Term(
        *_combine(jnp.stack(means), jnp.stack([y.log_mean, y.log_size, *logs])),
        *_combine(jnp.stack(differences), jnp.stack(logs)),
    )


def from_biases(
    params: AttentionParams, spec: AttentionSpec
) -> tuple[Float[Array, "1 feature"], Float[Array, "1 feature"]]:
    """What a layer's output bias adds to every token, and what its value biases add after passing their head."""
    assert params.value_bias is not None and params.output_bias is not None
    passed = jnp.einsum("hk,hkd->d", params.value_bias, params.output, precision=spec.precision)
    return params.output_bias[None], passed[None]


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


def nudges(x: Float[Array, "token feature"]) -> Float[Array, "2 token feature"]:
    """Relative amounts for the two computations of a term: none, and a few roundings."""
    irregular = jax.random.normal(jax.random.key(0), x.shape, x.dtype)
    return jnp.stack([jnp.zeros_like(x), 4 * jnp.finfo(x.dtype).eps * irregular])


def known(logs: Float[Array, "2 *shape"]) -> Float[Array, "*shape"]:
    """The first of two computed logarithms where they agree, NaN where not."""
    agree = (logs[0] == logs[1]) | (jnp.abs(logs[0] - logs[1]) <= _AGREE)
    return jnp.where(agree, logs[0], jnp.nan)


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
