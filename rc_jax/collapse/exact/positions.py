"""Logits that depend on positions: rotated queries and keys, or a scale of its own for every row.

With G_p the rotation at position p, G_0 = 1, and G'_p = G_p − 1, the logits α_i G_i q_i·G_j k_j of q_i = q̄ + e^ℓ q̂_i
and k_j = k̄ + e^ℓ k̂_j are, but for a constant per row,

    r_j + m_i·G'_j k̄ + e^ℓ (α_i G_i q̂_i·G'_j k̄ + m_i·G_j k̂_j) + e^{2ℓ} α_i G_i q̂_i·G_j k̂_j

with r_j = a q̄·(G'_j k̄ + e^ℓ G_j k̂_j), any number a, and m_i = α_i G'_i q̄ + (α_i − a) q̄. A temperature, and gains that
follow the rotation, are factors of α_i. Rows of equal tokens differ by m_i·G'_j k̄, which is of order one, so attention
maps the tokens' difference to first order. G' is made of cos θ − 1 = −2 sin²(θ/2) and sin θ, so that slow rotations,
and what they leave the same in all rows, lose no digits.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rc_jax._numerics.stable import divide_by_largest
from rc_jax.attention import AttentionSpec, Rotary
from rc_jax.attention.layer import log_tokens
from rc_jax.attention.positions import angles, rotate_pairs
from rc_jax.collapse.exact.state import Columns, Logits, sum_at_largest


def logits(
    query: Columns,
    key: Columns,
    factor: Float[Array, "head #width"],
    spec: AttentionSpec,
    seen: Bool[Array, "token token"] | None,
) -> Logits:
    """Logits with positions; a `scale_law` counts the tokens that are `seen`."""
    n = key.rows.shape[1]
    law = _law(n, factor, spec, seen)

    def rotated(rows: Float[Array, "head token width"]) -> Array:
        return rows if spec.rotary is None else rows + rotation_less_identity(rows, spec.rotary)

    def mean_change(mean: Float[Array, "head width"]) -> Array:
        """G'_p x̄ at every position p."""
        rows = jnp.broadcast_to(mean[:, None], (mean.shape[0], n, mean.shape[1]))
        return jnp.zeros_like(rows) if spec.rotary is None else rotation_less_identity(rows, spec.rotary)

    def products(vectors: Float[Array, "head row width"], others: Float[Array, "head column width"]) -> Array:
        return jnp.einsum("hik,hjk->hij", vectors, others, precision=spec.precision)

    # Of r: a q̄ with the largest α_i for a. Of each row: m_i and α_i G_i q̂_i. Of each column: G'_j k̄ and G_j k̂_j.
    # Products of the means of small tokens have no place in the dtype, so the sizes of both stand beside them.
    (query_mean, query_size, log_query), (key_mean, key_size, log_key) = _sized(query.mean), _sized(key.mean)
    first, most = factor * query_mean, jnp.max(law)
    reference = most * first[:, None]
    change = (law - most)[None] * first[:, None] + law[None] * factor[:, None] * mean_change(query_mean)
    rows = law[None] * factor[:, None] * rotated(query.rows)
    key_change, key_rows = mean_change(key_mean), rotated(key.rows)

    pairs = [(change, key_change), (rows, key_change), (change, key_rows), (rows, key_rows)]
    logs = [log_query + log_key, query.log_size + log_key, log_query + key.log_size, query.log_size + key.log_size]
    pair, log_pair = sum_at_largest(jnp.stack([products(*factors) for factors in pairs]), jnp.stack(logs))
    zeroth, slope = products(reference, key_change)[:, 0], products(reference, key_rows)[:, 0]
    return Logits(query_size * zeroth * key_size, query_size * slope, key.log_size, pair, log_pair)


def _sized(mean: Float[Array, "head width"]) -> tuple[Array, Float[Array, "head 1"], Float[Array, " head"]]:
    """A mean over its largest entry, that entry's magnitude, and its logarithm; 1 and 0 for a mean of zero."""
    size = jax.lax.stop_gradient(divide_by_largest(mean, axis=-1)[1])
    size = jnp.where(size == 0, 1, size)
    return mean / size, size, jnp.log(size[:, 0])


def _law(
    n: int, factor: Float[Array, "head #width"], spec: AttentionSpec, seen: Bool[Array, "token token"] | None
) -> Float[Array, "token 1"]:
    """The factor of each row in α_i, which `scale_law` sets: log n_i of the n_i tokens that row i sees, or 1."""
    return log_tokens(n, seen, factor.dtype) if spec.scale_law == "log_tokens" else jnp.ones((n, 1), factor.dtype)


def level(
    query: Columns,
    key: Columns,
    factor: Float[Array, "head #width"],
    spec: AttentionSpec,
    seen: Bool[Array, "token token"] | None,
) -> Columns:
    """What the logits of row i share, α_i G_i q_i·k̄: the first row's α_0 q̄·k̄ is the mean, and the rest the rows."""
    law = _law(query.rows.shape[1], factor, spec, seen)
    (query_mean, query_size, log_query), (key_mean, key_size, log_key) = _sized(query.mean), _sized(key.mean)
    means = jnp.broadcast_to(query_mean[:, None], query.rows.shape)
    change, rows = jnp.zeros_like(means), query.rows
    if spec.rotary is not None:
        change, rows = (rotation_less_identity(vectors, spec.rotary) for vectors in (means, rows))
        rows = query.rows + rows

    def shared(vectors: Float[Array, "head row width"]) -> Array:
        return jnp.einsum("hik,hk->hi", vectors, factor * key_mean, precision=spec.precision)[..., None]

    parts = jnp.stack([shared((law - law[:1])[None] * means + law[None] * change), shared(law[None] * rows)])
    sized = sum_at_largest(parts, jnp.stack([log_query + log_key, query.log_size + log_key]))
    return Columns(query_size * shared(law[:1][None] * means[:, :1])[:, 0] * key_size, *sized)


def rotation_less_identity(rows: Float[Array, "head token width"], rotary: Rotary) -> Float[Array, "head token width"]:
    """Vectors rotated by their positions 0, 1, 2, …, less themselves, however small the angle."""
    width = rotary.rotated_width(rows.shape[-1])
    angle = angles(jnp.arange(rows.shape[1]), rotary.exact_frequencies(rows.shape[-1]), rows.dtype)
    cos_less_one, sin = -2 * jnp.square(jnp.sin(angle / 2)), jnp.sin(angle)
    change = rotate_pairs(rows[..., :width], cos_less_one.astype(rows.dtype)[None], sin.astype(rows.dtype)[None])
    return jnp.concatenate([change, jnp.zeros_like(rows[..., width:])], axis=-1)
