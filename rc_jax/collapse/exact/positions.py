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
from rc_jax.collapse.exact.scaled import Scaled, einsum, total
from rc_jax.collapse.exact.state import Columns, Logits


def logits(
    query: Columns,
    key: Columns,
    factor: Float[Array, "head #width"],
    spec: AttentionSpec,
    seen: Bool[Array, "token token"] | None,
) -> Logits:
    """Logits with positions; a `scale_law` counts the tokens that are `seen`."""
    n = key.rest.rows.shape[1]
    law = _law(n, factor, spec, seen)

    def rotated(rows: Float[Array, "head token width"]) -> Array:
        return rows if spec.rotary is None else rows + rotation_less_identity(rows, spec.rotary)

    def mean_change(mean: Float[Array, "head width"]) -> Array:
        """G'_p x̄ at every position p."""
        rows = jnp.broadcast_to(mean[:, None], (mean.shape[0], n, mean.shape[1]))
        return jnp.zeros_like(rows) if spec.rotary is None else rotation_less_identity(rows, spec.rotary)

    def products(vectors: Scaled | Array, others: Scaled) -> Scaled:
        return einsum("hik,hjk->hij", vectors, others, precision=spec.precision)

    # Of r: a q̄ with the largest α_i for a. Of each row: m_i and α_i G_i q̂_i. Of each column: G'_j k̄ and G_j k̂_j.
    # Products of the means of small tokens have no place in the dtype, so the sizes of both stand beside them.
    (query_mean, query_size), (key_mean, key_size) = _over_largest(query.mean), _over_largest(key.mean)
    first, most = factor * query_mean.rows, jnp.max(law)
    reference = most * first[:, None]
    change = Scaled(
        (law - most)[None] * first[:, None] + law[None] * factor[:, None] * mean_change(query_mean.rows),
        query_mean.log_size,
    )
    rows = query.rest.map(rotated) * (law[None] * factor[:, None])
    key_change, key_rows = key_mean.map(mean_change), key.rest.map(rotated)

    pairs = [(change, key_change), (rows, key_change), (change, key_rows), (rows, key_rows)]
    pair = total([products(*factors) for factors in pairs])
    zeroth, slope = (products(reference, columns).map(lambda row: row[:, 0]) for columns in (key_change, key_rows))
    return Logits(query_size * zeroth.rows * key_size, slope * query_size, pair)


def _over_largest(mean: Float[Array, "head width"]) -> tuple[Scaled, Float[Array, "head 1"]]:
    """A mean over its largest magnitude, with the logarithm of that, and the magnitude; 0 and 1 for a mean of 0."""
    size = jax.lax.stop_gradient(divide_by_largest(mean, axis=-1)[1])
    size = jnp.where(size == 0, 1, size)
    return Scaled(mean / size, jnp.log(size[:, 0])), size


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
    law = _law(query.rest.rows.shape[1], factor, spec, seen)
    (query_mean, query_size), (key_mean, key_size) = _over_largest(query.mean), _over_largest(key.mean)
    means = jnp.broadcast_to(query_mean.rows[:, None], query.rest.rows.shape)
    change, rows = jnp.zeros_like(means), query.rest.rows
    if spec.rotary is not None:
        change, turned = (rotation_less_identity(vectors, spec.rotary) for vectors in (means, rows))
        rows = rows + turned

    def shared(vectors: Float[Array, "head row width"]) -> Array:
        return jnp.einsum("hik,hk->hi", vectors, factor * key_mean.rows, precision=spec.precision)[..., None]

    of_mean = shared((law - law[:1])[None] * means + law[None] * change)
    of_rest = shared(law[None] * rows)
    rest = Scaled(of_mean, query_mean.log_size + key_mean.log_size) + Scaled(
        of_rest, query.rest.log_size + key_mean.log_size
    )
    return Columns(query_size * shared(law[:1][None] * means[:, :1])[:, 0] * key_size, rest)


def rotation_less_identity(rows: Float[Array, "head token width"], rotary: Rotary) -> Float[Array, "head token width"]:
    """Vectors rotated by their positions 0, 1, 2, …, less themselves, however small the angle."""
    width = rotary.rotated_width(rows.shape[-1])
    angle = angles(jnp.arange(rows.shape[1]), rotary.exact_frequencies(rows.shape[-1]), rows.dtype)
    cos_less_one, sin = -2 * jnp.square(jnp.sin(angle / 2)), jnp.sin(angle)
    change = rotate_pairs(rows[..., :width], cos_less_one.astype(rows.dtype)[None], sin.astype(rows.dtype)[None])
    return jnp.concatenate([change, jnp.zeros_like(rows[..., width:])], axis=-1)
