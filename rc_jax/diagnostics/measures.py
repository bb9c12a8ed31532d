"""Measures of rows of attention weights and of their keys, as pure functions that may be traced.

Arrays are (…, row, key). A row is a query; n_i is the number of keys that row i may see. A weight that a row may not
see is 0 here. Means run over the rows with n_i ≥ 2, because a row with a single key has no choice. A row without any
weight is not spread over its keys in any way: it counts in sums and in weights on a key, and not in `OF_SPREAD`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Float, Int

from rc_jax._numerics import arguments

SINK = 0.3
"""The threshold ε of Gu et al. (2025) on the importance of a key, above which they call it a sink of the head."""

OF_SPREAD = ("sparsity", "entropy", "relative_entropy", "participation", "largest_weight")
"""Measures that a row of zeros does not have."""


class Rows(NamedTuple):
    """What the measures need to know of every row: five numbers, which need one pass over the weights.

    total: Σ_k a_k. negative: Σ_k max(−a_k, 0). squares: Σ_k a_k². entropy: −Σ_k a_k log a_k in nats. largest: max a_k.
    """

    total: Float[Array, "... row"]
    negative: Float[Array, "... row"]
    squares: Float[Array, "... row"]
    entropy: Float[Array, "... row"]
    largest: Float[Array, "... row"]

    @property
    def magnitude(self) -> Float[Array | np.ndarray, "... row"]:
        """Σ_k |a_k|. That it is above the total says nothing of signs: a compiler adds the two in orders of its own."""
        of = np if isinstance(self.total, np.ndarray) else jnp
        infinite = of.isinf(self.negative)  # a total of −∞, or of NaN beside +∞, tells nothing
        finite = self.total + 2 * of.where(infinite, 0, self.negative)
        return of.where(infinite, of.where(of.isnan(self.squares), of.nan, of.inf), finite).astype(finite.dtype)

    @property
    def empty(self) -> Bool[Array | np.ndarray, "... row"]:
        """Whether a row has no weight at all."""
        return self.magnitude == 0  # NaN is not

    def signed(self, dtype: DTypeLike) -> Bool[Array | np.ndarray, "... row"]:
        """Whether weights that came in this dtype are negative by more than rounding: Σ max(−a, 0) > eps·Σ|a|.

        eps is that of the dtype, and at least float32's, because weights that were computed in single precision are
        often stored in double precision.
        """
        of = np if isinstance(self.total, np.ndarray) else jnp
        eps = max(float(jnp.finfo(dtype).eps), float(jnp.finfo(jnp.float32).eps))
        return of.isinf(self.negative) | (self.negative > eps * self.magnitude)


def largest(a: Float[Array, "... key"], total: Float[Array, "..."]) -> Float[Array, "..."]:
    """The maximum over the last axis, NaN where its sum `total` is: XLA's maxima pass over NaN on CPUs."""
    return jnp.where(jnp.isnan(total), total, jnp.max(a, axis=-1))


def rows_of(weights: Float[Array, "... row key"]) -> Rows:
    """The five numbers of each row. The entropy is that of weights ≥ 0; of a signed row it means nothing."""
    a = weights.reshape(-1, weights.shape[-1])  # XLA's loops for CPUs are ten times slower with an axis of length 1
    logarithm = jnp.log(jnp.maximum(a, jnp.finfo(a.dtype).tiny))  # 0 log 0 = 0, without a choice
    total = jnp.sum(a, axis=-1)
    rows = Rows(
        total=total,
        negative=jnp.sum(jnp.maximum(-a, 0), axis=-1),
        squares=jnp.sum(jnp.square(a), axis=-1),
        entropy=-jnp.sum(a * logarithm, axis=-1),
        largest=largest(a, total),
    )
    return Rows(*(each.reshape(weights.shape[:-1]) for each in rows))


def row_values(rows: Rows, keys: Int[Array, "..."]) -> dict[str, Float[Array, "... row"]]:
    """The measures of each row; one of zeros, or that sees fewer than two keys, has a harmless number.

        sparsity          S = E|a|/√E a² over the n_i keys that row i may see: Σ|a| / √(n_i Σa²)
        entropy           H = −Σ a log a, in nats
        relative_entropy  H / log n_i
        participation     (Σ|a|)² / Σa², the effective number of keys: 1/Σa² for weights that add up to one
        largest_weight    max a
        row_sum           Σ a

    Sparsity and participation are NaN where the squares of a row that is not 0 have no place in the dtype.

    Args:
        rows: what `rows_of` gives.
        keys: n_i, of a shape that broadcasts to that of the rows.
    """
    count = jnp.broadcast_to(keys, rows.total.shape).astype(rows.total.dtype)
    counted = count >= 2
    # Rows that are not counted get harmless numbers, so that no NaN arises in them, and so do rows of zeros.
    several = jnp.where(counted, count, 2)
    some = counted & (rows.squares != 0)  # NaN stays
    spread = jnp.where(some, jnp.square(rows.magnitude) / jnp.where(some, rows.squares, 1), several)
    # Squares below the smallest number, as beside a sink that takes all but 1e-19, tell nothing of the spread.
    lost = counted & (rows.squares < jnp.finfo(rows.squares.dtype).tiny) & (rows.magnitude > 0)
    spread = jnp.where(lost, jnp.nan, spread)
    return {
        "sparsity": jnp.sqrt(jnp.minimum(spread / several, 1)),
        "entropy": rows.entropy,
        "relative_entropy": rows.entropy / jnp.log(several),
        "participation": spread,
        "largest_weight": rows.largest,
        "row_sum": rows.total,
    }


def row_means(
    rows: Rows, keys: Int[Array, "..."], inside: Bool[Array, "... text row"] | None = None
) -> dict[str, Float[Array, "..."]]:
    """Means of `row_values` over the rows that see at least two keys, and have weight where `OF_SPREAD` asks for it.

    They are NaN where there is no such row.

    Args:
        rows: what `rows_of` gives.
        keys: n_i, of a shape that broadcasts to that of the rows.
        inside: as in `mean_over`.
    """
    counted = jnp.broadcast_to(keys, rows.total.shape) >= 2
    spread = counted & ~rows.empty
    return {
        name: mean_over(value, spread if name in OF_SPREAD else counted, inside)
        for name, value in row_values(rows, keys).items()
    }


def mean_over(
    values: Float[Array, "... row"], counted: Bool[Array, "... row"], inside: Bool[Array, "... text row"] | None = None
) -> Float[Array, "..."]:
    """Mean over the rows that are counted; NaN where none is.

    Args:
        values: of each row.
        counted: which rows count.
        inside: the rows of each text; then there is a mean for each, (…, text).
    """
    values = jnp.where(counted, values, 0)
    if inside is None:
        return jnp.sum(values, axis=-1) / jnp.sum(counted, axis=-1).astype(values.dtype)
    # A sum and no product with `inside`, by which NaN of one text would be that of all.
    of_text = jnp.where(inside, values[..., None, :], 0)
    return jnp.sum(of_text, axis=-1) / jnp.sum(inside & counted[..., None, :], axis=-1).astype(values.dtype)


def importance(totals: Float[Array, "... key"], queries: Int[Array, "..."]) -> Float[Array, "... key"]:
    """Importance of each key: the mean weight on it over the queries that may see it; NaN for a key that none may see.

    For a causal head of T tokens this is (1/(T − k + 1)) Σ_{i ≥ k} A_ik, with k counted from 1. The first query counts
    too, whose weight on the first key is 1.

    Args:
        totals: Σ_i A_ik, the weight on each key, summed over queries.
        queries: how many queries may see each key, of a shape that broadcasts to that of the totals.

    Source: Gu et al. (2025), arXiv 2410.10781, section 3, and their evaluation program.
    """
    return totals / jnp.broadcast_to(queries, totals.shape).astype(totals.dtype)


def exceeds(sink_weight: Float[Array | np.ndarray, "..."], threshold: ArrayLike) -> Float[Array, "..."]:
    """1 where the weight on the first key exceeds the threshold, else 0; NaN where no query may see that key."""
    return jnp.where(jnp.isnan(sink_weight), sink_weight, (sink_weight > threshold).astype(sink_weight.dtype))


@arguments.guard(
    largest_logit=arguments.must(
        "an array, the largest logit of each head",
        right=lambda value: isinstance(value, jax.Array | np.ndarray | np.generic | float | int),
    ),
    threshold=(
        arguments.must("one number", lambda value: np.ndim(value) == 0),
        arguments.must("> 0", lambda value: (known := arguments.at_hand(value)) is None or known > 0),
    ),
)
def qk_clip(
    largest_logit: Float[Array | np.ndarray, "..."] | np.floating | float | int,
    threshold: ArrayLike = 100.0,
    *,
    groups: int | None = None,
) -> Float[Array, "..."]:
    """The factor γ = min(1, τ/S_max) that brings the largest logit of each head down to τ; 1 where it is not above.

    QK-clip multiplies the query and the key weights of the head by √γ each after a step of training. Where heads share
    keys, √γ on these would change the other heads too: γ of each head goes on its query weights alone, or, with
    `groups`, √γ of each group on its keys and on the queries of all its heads. In latent attention (MLA) √γ goes on the
    parts of queries and keys that are a head's own, γ on its rotary queries, and nothing on the rotary key of all.

    Args:
        largest_logit: S_max of each head, the largest scale·q·k, as `scores` and `score_metrics` measure it without a
            `soft_cap` and a `bias`: what these leave of it says nothing of how large it was.
        threshold: τ > 0; 100 in the source, and ∞ clips nothing.
        groups: how many heads of keys there are; then S_max is that of all heads which share one.

    Source: Kimi Team (2025), arXiv 2507.20534, section 2.1.

    Example:
        >>> import numpy as np
        >>> from rc_jax import diagnostics
        >>> diagnostics.qk_clip(np.array([-3.0, 50.0, 400.0])).tolist()
        [1.0, 1.0, 0.25]
        >>> diagnostics.qk_clip(np.array([-3.0, 50.0, 400.0, 200.0]), groups=2).tolist()
        [1.0, 0.25]
    """
    largest = jnp.asarray(largest_logit)
    if groups is not None:
        heads = largest.shape[-1] if largest.ndim else 0
        if groups < 1 or heads % groups or not heads:
            raise ValueError(f"`groups` must be a divisor of {heads} heads, got {groups}")
        parts = largest.reshape(*largest.shape[:-1], groups, -1)
        broken = jnp.any(jnp.isnan(parts), axis=-1)  # maxima pass over NaN
        largest = jnp.where(broken, jnp.nan, jnp.max(parts, axis=-1))
    above = largest > threshold
    threshold = jnp.where(jnp.asarray(threshold) > 0, threshold, jnp.nan)  # a traced one may be anything
    unknown = jnp.isnan(largest) | jnp.isnan(threshold)
    return jnp.where(unknown, jnp.nan, jnp.where(above, threshold / jnp.where(above, largest, 1), 1))


def normalised(rows: Rows) -> Rows:
    """The rows with the entropy of p/Σp, for rows that need not add up to one; a row of zeros has a harmless number."""
    empty = rows.total == 0  # NaN stays
    total = jnp.where(empty, 1, rows.total)
    return rows._replace(entropy=jnp.where(empty, 0, jnp.log(total) + rows.entropy / total))


def strongest(
    totals: Float[np.ndarray, "... key"], queries: Int[np.ndarray, "... key"], inside: Bool[np.ndarray, "... key"]
) -> tuple[Int[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """The key of largest importance, and its importance; NaN where no query sees a key.

    A key that fewer than half as many queries see as another, such as the last ones of a causal head, is no candidate.

    Args:
        totals: Σ_i A_ik of each key.
        queries: how many queries may see each key.
        inside: the keys of the text.
    """
    queries = np.where(inside, queries, 0)
    among = (2 * queries >= queries.max(-1, keepdims=True)) & (queries > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.where(among, totals / queries, -np.inf)
    largest = weights.max(-1)
    return weights.argmax(-1), np.where(np.isneginf(largest), np.nan, largest)
