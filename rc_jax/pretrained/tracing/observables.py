"""The compiled programs behind `rc_jax.pretrained.trace`: observables of one layer on windows of tokens.

Layers are computed in float32 at least, from parameters as the checkpoint rounds them, one layer widened at a time. Log
residuals and path sums, which take all layers at once, are computed in the checkpoint's own precision. The layers of a
network share one program, as do all batches of one shape.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Bool, Float, Int

from rc_jax import attention, collapse, scale, sparsity
from rc_jax._numerics.jax_names import canonical_dtype
from rc_jax.attention import AttentionParams, AttentionSpec, masks
from rc_jax.attention.layer import default_scale, log_tokens
from rc_jax.attention.parameters import queries_and_keys
from rc_jax.network import LayerParams, StackSpec
from rc_jax.network.stack import block, plain_arithmetic


def visible(tokens: int, spec: AttentionSpec) -> Bool[Array, "token token"]:
    """The tokens that each token sees, as a mask (row, key)."""
    seen = masks.combine(tokens, causal_mask=spec.causal, radius=spec.window, extra=None)
    return jnp.ones((tokens, tokens), bool) if seen is None else seen


def wide(x: Array) -> Array:
    """The numbers in float32, or in float64 if that is what they are."""
    return x if x.dtype.itemsize >= 4 else x.astype(jnp.float32)


@jax.jit
def sizes(x: Float[Array, "window token feature"]) -> dict[str, Float[Array, " window"]]:
    """‖res(X)‖/‖X‖ of each window, in the composite norm and in Frobenius's."""

    def one(state: Array) -> dict[str, Array]:
        rest = collapse.residual(state)
        norms = {"relative_residual_1inf": collapse.norm_1inf, "relative_residual_frobenius": collapse.frobenius}
        return {name: norm(rest) / norm(state) for name, norm in norms.items()}

    return jax.vmap(one)(wide(x))


@functools.partial(jax.jit, static_argnames="spec")
def layer(
    params: LayerParams,
    index: Int[Array, ""],
    x: Float[Array, "window token feature"],
    best: dict[str, Float[Array, " token"]],
    spec: StackSpec,
) -> tuple[Array, dict[str, Float[Array, "window head"]], Float[Array, "window head token token"]]:
    """The tokens after layer `index`, means over the rows of its attention, and the attention matrices."""
    weights = jax.tree.map(lambda leaf: wide(jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False)), params)
    arithmetic = plain_arithmetic(spec, None, None)

    def one(tokens: Array) -> tuple[Array, dict[str, Array], Array]:
        observed = []

        def attend(part: AttentionParams, read: Array) -> Array:
            observed.append(_rows(part, read, best, spec.attention))
            return arithmetic.attend(part, read)

        # The block calls `attend` once, on the tokens that its attention reads.
        out = block(weights, tokens, spec, dataclasses.replace(arithmetic, attend=attend))
        return out, *observed[0]

    return jax.lax.map(one, x)


def _rows(
    params: AttentionParams, x: Array, best: dict[str, Array], spec: AttentionSpec
) -> tuple[dict[str, Array], Array]:
    """Means over the rows that see at least two tokens, for every head, and P."""
    # A row's weights, and the n_i tokens that it sees.
    logits = wide(attention.scores(params, x, spec))
    seen = visible(x.shape[0], spec)[None]
    counts = jnp.sum(seen, axis=-1).astype(logits.dtype)
    counted = counts >= 2
    hidden = jnp.where(seen, logits, -jnp.inf)
    p = jax.nn.softmax(hidden, axis=-1)
    entropy = scale.softmax_entropy(hidden, 1.0)
    # Sample deviation of a row's n_i logits: √(Σ(l − l̄)²/(n_i − 1)).
    middle = jnp.sum(jnp.where(seen, logits, 0), axis=-1, keepdims=True) / counts[..., None]
    squares = jnp.sum(jnp.where(seen, jnp.square(logits - middle), 0), axis=-1)
    spread = jnp.sqrt(squares / jnp.maximum(counts - 1, 1))
    rows = {
        "sparsity": sparsity.sparsity(p) * jnp.sqrt(x.shape[0] / counts),
        "entropy": entropy,
        "relative_entropy": entropy / jnp.log(jnp.maximum(counts, 2)),
        "implied_scale": spread,
        "scale_ratio": spread / best["deviation"][None],
    }
    if normalised(spec):
        rows["cosine_factor"] = factor = _cosine_factor(params, x, seen, counts, spec)
        if "cosine" in best:
            rows["cosine_ratio"] = factor / best["cosine"][None]
    total = jnp.sum(counted, axis=-1).astype(logits.dtype)
    return {name: jnp.sum(jnp.where(counted, value, 0), axis=-1) / total for name, value in rows.items()}, p


def normalised(spec: AttentionSpec) -> bool:
    """True if queries and keys are brought to one size, so that logits are a factor times cosines."""
    return spec.scores == "cosine" or spec.qk_norm is not None


def _cosine_factor(params: AttentionParams, x: Array, seen: Array, counts: Array, spec: AttentionSpec) -> Array:
    """Mean over the keys that row i sees of f_ij in logit_ij = f_ij cos(q_i, k_j): α|q_i||k_j|, or α for cosines."""
    query, key = queries_and_keys(params, x, spec)
    size = [
        jnp.ones(rows.shape[:2], counts.dtype) if spec.scores == "cosine" else jnp.linalg.norm(wide(rows), axis=-1)
        for rows in (query, key)
    ]
    keys = jnp.sum(jnp.where(seen, size[1][:, None], 0), axis=-1) / counts
    factor = jnp.asarray(default_scale(spec), counts.dtype) * size[0] * keys
    if spec.scale_law == "constant":
        return factor
    return factor * log_tokens(x.shape[0], seen[0], counts.dtype)[None, :, 0]


@functools.partial(jax.jit, static_argnames="spec")
def log_residuals(params: LayerParams, x: Float[Array, "window token feature"], spec: StackSpec) -> Array:
    """Log ‖res(X^l)‖_F of each window in exact arithmetic: (window, layer + 1)."""
    return jax.lax.map(lambda tokens: collapse.log_residuals(params, tokens, spec), x)


@functools.partial(jax.jit, static_argnames="spec")
def path_shares(
    params: LayerParams, x: Float[Array, "window token feature"], spec: StackSpec
) -> dict[str, Float[Array, "window length"]]:
    """Share ⟨Y_k, X^L⟩/‖X^L‖² of the paths of each length, of the output and of its residual.

    Plain sums are exact enough: a network with skip connections keeps its tokens apart.
    """

    def shares(parts: Array) -> Array:
        parts = parts / jnp.max(jnp.abs(parts))
        whole = jnp.sum(parts, axis=0)
        return jnp.sum(parts * whole[None], axis=(1, 2)) / jnp.sum(jnp.square(whole))

    def one(tokens: Array) -> dict[str, Array]:
        sums = wide(collapse.path_length_sums(params, tokens, spec))
        return {"share": shares(sums), "residual_share": shares(jax.vmap(collapse.residual)(sums))}

    return jax.lax.map(one, x)


# `collapse.effective_rank` of many matrices; NaN for one that is not finite.
effective_ranks = jax.jit(jnp.vectorize(collapse.effective_rank, signature="(row,column)->()"))


def best_scales(tokens: int, spec: AttentionSpec) -> dict[str, Float[np.ndarray, " token"]]:
    """α*(n_i) of each row that sees n_i ≥ 2 tokens, NaN of others: for Gaussian scores and, where it fits, cosines.

    "deviation" is c₄(n_i) α*(n_i): what a row's sample deviation is on average if its logits are Gaussian of scale α*.
    """
    counts = np.asarray(visible(tokens, spec)).sum(axis=-1)
    unique, where = np.unique(np.maximum(counts, 2), return_inverse=True)
    number = np.asarray(unique, canonical_dtype(float))
    # c₄(n) = √(2/(n − 1)) Γ(n/2)/Γ((n − 1)/2): the mean sample deviation of n Gaussians of deviation 1.
    c4 = np.sqrt(2 / (unique - 1)) * np.exp(scipy.special.gammaln(unique / 2) - scipy.special.gammaln((unique - 1) / 2))
    best = {"dot": scale.optimal_scale(number)}
    best["deviation"] = best["dot"] * c4.astype(number.dtype)
    if normalised(spec) and spec.head_width >= 3:
        best["cosine"] = scale.optimal_scale(number, dim=spec.head_width)
    return {name: np.where(counts >= 2, np.asarray(value)[where], np.nan) for name, value in best.items()}
