"""What a head makes of split queries, keys and values: a rule for each kind that has a better one than the generic."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rc_jax._numerics import performance
from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.attention.layer import largest, weight_function
from rc_jax.attention.specification import own_parts
from rc_jax.collapse.exact import any_kind, normalisers, positions
from rc_jax.collapse.exact.moves import Moves
from rc_jax.collapse.exact.scaled import Scaled, einsum
from rc_jax.collapse.exact.softmax import split_softmax
from rc_jax.collapse.exact.state import Columns, Logits, Weights

Seen = Bool[Array, "#head token column"] | None


@dataclasses.dataclass(frozen=True)
class HeadInputs:
    """Queries and keys of every score matrix, their factors α, and what a row may see.

    A kind with several score matrices (`Kind.maps`) has as many times the heads here: those of the first share of the
    features, then those of the second.
    """

    params: AttentionParams
    spec: AttentionSpec
    query: Columns
    key: Columns
    factor: Float[Array, "head #width"]
    mask: Bool[Array, "token token"] | None
    moves: Moves

    @property
    def with_positions(self) -> bool:
        """Whether rows differ by where they stand."""
        return self.spec.rotary is not None or self.spec.scale_law != "constant"

    def logits(self) -> tuple[Logits, Seen]:
        """The logits but for what each row shares, and the columns that each row sees (None: all)."""
        if self.spec.soft_cap is not None or self.spec.top_k is not None:
            return self.leveled()[1:]
        return self._plain_logits(), None if self.mask is None else self.mask[None]

    def leveled(self) -> tuple[Columns, Logits, Seen]:
        """The same, after the level that the logits of each row share."""
        spec, seen = self.spec, None if self.mask is None else self.mask[None]
        if self.with_positions:
            level = positions.level(self.query, self._otherwise(self.key, 11), self.factor, spec, self.mask)
        else:
            level = normalisers.level(self.query, self._otherwise(self.key, 11), self.factor, spec.precision)
        logits = self._plain_logits()
        ordered = None
        if spec.top_k is not None:
            tie = self.moves.tie
            zeroth = None if logits.zeroth is None else tie(logits.zeroth)
            logits = Logits(zeroth, logits.slope.map(tie), logits.pair.map(tie))
            ordered = logits.ordered
        if spec.soft_cap is not None:
            level, logits = normalisers.capped(level, logits, float(spec.soft_cap), seen)
        if ordered is not None and spec.top_k is not None:  # a cap keeps the order, in which it leaves ties by rounding
            kept = largest(ordered, seen, spec.top_k)
            # Which of two logits that are equal to rounding is the larger one is not known; those of equal tokens tie.
            tied = self.moves.differ(kept, ordered if seen is None else jnp.where(seen, ordered, -jnp.inf))
            return level, logits._replace(pair=logits.pair.map(lambda rows: jnp.where(tied, jnp.nan, rows))), kept
        return level, logits, seen

    def _plain_logits(self) -> Logits:
        # r_j = e^ℓ (α q̄·k̂_j) and Ê_ij = α q̂_i·k̂_j, or those of logits with positions
        query = self._otherwise(self.query, 10)
        if self.with_positions:
            return positions.logits(query, self.key, self.factor, self.spec, self.mask)
        precision = self.spec.precision
        slope = einsum("hjk,hk->hj", self.key.rest, self.factor * query.mean, precision=precision)
        pair = einsum("hik,hjk->hij", self.query.rest * self.factor[:, None], self.key.rest, precision=precision)
        return Logits(None, slope, pair)

    def _otherwise(self, vectors: Columns, place: int) -> Columns:
        """A mean that moves otherwise than the rest, because its product is a sum of its own."""
        return vectors._replace(mean=self.moves.of_heads(vectors.mean, place))

    def share(self, index: int) -> "HeadInputs":
        """The heads of one share of the features."""
        maps = self.spec.kind.maps

        def part(x: Array) -> Array:
            return jnp.split(x, maps)[index]

        query, key, factor = jax.tree.map(part, (self.query, self.key, self.factor))
        return dataclasses.replace(self, query=query, key=key, factor=factor)


Rule = Callable[[HeadInputs, Columns], Columns]


def rule(spec: AttentionSpec) -> Rule:
    """The rule of a layer's kind of weights: its own where it has one, else the generic one."""
    return RULES.get(spec.weights, generic) if isinstance(spec.weights, str) else generic


def generic(inputs: HeadInputs, value: Columns) -> Columns:
    """The heads' outputs for weights of any kind that is differentiable where it is used."""
    level, logits, seen = inputs.leveled()
    weights = weight_function(inputs.params, inputs.spec, logits.pair.rows.shape, seen)
    kind, precision = inputs.spec.kind, inputs.spec.precision
    return any_kind.by_kind(level, logits, seen, value, kind, weights, precision, inputs.moves)


def softmax(inputs: HeadInputs, value: Columns) -> Columns:
    """P V = 1(v̄ + pᵀV̂)ᵀ + e^μ D V̂; near collapse, in a layer without masks, no weights are formed."""
    spec = inputs.spec
    plain = inputs.mask is None and spec.top_k is None and spec.soft_cap is None and not inputs.with_positions
    if not plain or spec.rank is not None or jnp.finfo(value.mean.dtype).bits < 32:
        return _by_weights(*inputs.logits(), value, inputs)
    logits, near = _near_collapse(inputs, value)
    first_order = performance.any_in_batch(~near.holds)
    branches = (jax.checkpoint(lambda: _by_weights(logits(), None, value, inputs)), jax.checkpoint(near.output))
    return jax.lax.cond(first_order, *branches)


def softmax_with_sink(inputs: HeadInputs, value: Columns) -> Columns:
    """One more logit is a gate on the output of softmax."""
    level, logits, seen = inputs.leveled()
    outputs = _by_weights(logits, seen, value, inputs)
    sink = own_parts(inputs.params, inputs.spec).get("sink", jnp.zeros_like(outputs.rest.log_size))
    sink = jnp.maximum(sink, jnp.finfo(sink.dtype).min / 4)  # −∞, no sink at all, has no difference from a logit
    normaliser = normalisers.log_normaliser(logits, seen)
    return normalisers.gated(outputs, normalisers.above_sink(level, normaliser, sink, inputs.moves))


def sigmoid(inputs: HeadInputs, value: Columns) -> Columns:
    """Weights that are sigmoids of logits less log n."""
    return normalisers.by_sigmoids(*inputs.leveled(), value, inputs.spec.precision, inputs.moves)


def differential(inputs: HeadInputs, value: Columns) -> Columns:
    """Softmax of the first share less λ times that of the second."""
    first, second = (
        Columns(*inputs.moves.columns_of_heads(*_by_weights(*inputs.share(index).logits(), value, inputs), 12 + index))
        for index in (0, 1)
    )
    return normalisers.difference(first, second, inputs.params.parts["subtracted"])


def sinkhorn(inputs: HeadInputs, value: Columns) -> Columns:
    """Softmax of logits with a factor of each column, which all rows share."""
    logits, seen = inputs.logits()
    common = normalisers.sinkhorn(logits, seen, inputs.spec.sinkhorn_steps)
    common = inputs.moves.columns(common[:, None])[:, 0]  # sums of whole logits
    return _by_split(split_softmax(common, logits.pair, seen, inputs.moves), value, inputs.spec.precision)


RULES: dict[str, Rule] = {
    "softmax": softmax,
    "softmax_plus_one": softmax_with_sink,
    "softmax_sink": softmax_with_sink,
    "sigmoid": sigmoid,
    "differential": differential,
    "sinkhorn": sinkhorn,
}


def _by_weights(logits: Logits, seen: Seen, value: Columns, inputs: HeadInputs) -> Columns:
    weights = split_softmax(logits.common, logits.pair, seen, inputs.moves)
    return _by_split(weights, value, inputs.spec.precision)


def _by_split(weights: Weights, value: Columns, precision: str) -> Columns:
    """P V̂ = 1(pᵀV̂) + e^μ D V̂."""
    shared = einsum("hj,hjk->hk", weights.shared, value.rest, precision=precision)
    return Columns(value.mean + shared.value, einsum("hij,hjk->hik", weights.rest, value.rest, precision=precision))


@dataclasses.dataclass(frozen=True)
class _NearCollapse:
    """Whether every |cÊ| is below a rounding, and the output then."""

    holds: Bool[Array, ""]
    output: Callable[[], Columns]


def _near_collapse(inputs: HeadInputs, value: Columns) -> tuple[Callable[[], Logits], _NearCollapse]:
    """The logits, formed when they are asked for, and the form that needs none for pairs of tokens.

    Its output is 1(v̄ + e^ℓ pᵀv̂) + e^{3ℓ} α q̂_iᵀ Cov_p(k̂, v̂).
    """
    precision, query, key = inputs.spec.precision, inputs.query, inputs.key
    mean = inputs.moves.of_heads(query.mean, 10)
    slope = einsum("hjk,hk->hj", key.rest, inputs.factor * mean, precision=precision)
    queries = query.rest * inputs.factor[:, None]

    def logits() -> Logits:
        return Logits(None, slope, einsum("hik,hjk->hij", queries, key.rest, precision=precision))

    # |cÊ_ij| ≤ c |α q̂_i| |k̂_j|; where the logits saturate p the covariance is left to the other form.
    limits = jnp.finfo(value.mean.dtype)
    square_query, square_key = _square(queries.rows), _square(key.rest.rows)
    log_size = query.rest.log_size + key.rest.log_size

    def log_bound() -> Array:
        return log_size + (jnp.log(square_query) + jnp.log(square_key)) / 2

    common = slope.value
    even = jnp.max(jnp.abs(common), axis=-1) <= 0.5
    holds = jnp.all((log_bound() <= jnp.log(limits.eps / 8)) & even)

    def output() -> Columns:
        powers = jnp.exp(common)  # of logits below 1
        p = (powers / jnp.sum(powers, axis=-1, keepdims=True))[..., None]
        # Queries and keys of length 1 at most: derivatives at depth l are of size 3^l, and nothing is far above.
        of_query, of_key = (
            jax.lax.rsqrt(square)[:, None, None] * rows
            for square, rows in ((square_query, queries.rows), (square_key, key.rest.rows))
        )
        keys = of_key - jnp.sum(p * of_key, axis=1, keepdims=True)
        mean = jnp.sum(p * value.rest.rows, axis=1)
        covariance = jnp.einsum("hjk,hjl->hkl", keys, p * (value.rest.rows - mean[:, None]), precision=precision)
        rest = jnp.einsum("hik,hkl->hil", of_query, covariance, precision=precision)
        mean = value.mean + Scaled(mean, value.rest.log_size).value
        return Columns(mean, Scaled(rest, value.rest.log_size + log_bound()))

    return logits, _NearCollapse(holds, output)


def _square(rows: Float[Array, "head token width"]) -> Float[Array, " head"]:
    """The squared length of all rows together, which none of them exceeds; at least a normal number, and a constant."""
    square = jax.lax.stop_gradient(jnp.sum(jnp.square(rows), axis=(1, 2)))
    return jnp.maximum(square, jnp.finfo(rows.dtype).tiny)
