"""Diagnosis of attention from queries and keys, for numbers of tokens whose n × n weights fit into no memory."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import working_dtype
from rc_jax._numerics.jax_names import Tracer
from rc_jax.diagnostics import inputs, measures
from rc_jax.diagnostics.implied_scale import entropy_scale, optimal_scale
from rc_jax.diagnostics.record import Diagnosis
from rc_jax.diagnostics.seen import looking
from rc_jax.diagnostics.streaming.passes import Streamed, stream

ORDER = (
    *("sparsity", "entropy", "relative_entropy", "participation", "largest_weight", "entropy_scale", "scale_ratio"),
    *("sink_weight", "sink_rate", "largest_logit"),
)
ABSENT = (
    "self_weight, previous_weight, strongest_key, strongest_weight, second_singular_value, stable_rank, numerical_rank"
)


@arguments.guard(scale=arguments.positive, threshold=arguments.scalar(arguments.positive))
def scores(
    q: Any,
    k: Any,
    *,
    scale: ArrayLike | None = None,
    mask: Any = "none",
    threshold: float = measures.SINK,
    block: int | None = None,
) -> Diagnosis:
    r"""What `attention` says of softmax(scale·q kᵀ), computed in one pass over blocks of queries and keys.

    No array of queries × keys is held: memory grows with n alone. With s the scores of a row and Z(β) = Σ e^(βs),

        Σp² = Z(2)/Z(1)²,   H = log Z(1) − Σ s eˢ/Z(1),   max p = e^(max s)/Z(1),

    so these sums say how even a row is, and how large its largest logit is, but not on which keys its weight lies, nor
    what the matrix as a whole is. Of single keys only the first is looked at. `self_weight`, `previous_weight`,
    `strongest_key`, `strongest_weight`, ranks and singular values are therefore left out; the others are the same
    numbers to rounding. Under "causal" blocks above the diagonal are left out.

    Rounding is that of the scores: H is right to a few eps·(1 + max |s|). The products ask for the "highest" precision.

    Args:
        q: queries. A list with one array (…, heads, n, d) for each layer, or one array: (n, d) is one head, (heads, n,
            d) one layer, and the first axis of (layers, …, heads, n, d) counts layers. Axes before the heads are
            samples. Arrays of JAX, NumPy or PyTorch, after rotary positions and normalisation.
        k: keys (…, heads, m, d), as `q`. Fewer heads are repeated, as in grouped queries.
        scale: factor on q·k, positive, one number or one for each head; 1/√d by default.
        mask: "none", "causal" (m = n), or a boolean array (n, m), True where a query may see a key. A query that may
            see nothing is left out.
        threshold: ε of Gu et al. (2025), as in `attention`.
        block: Queries, and keys, of a block. By default 1024 on CPUs and 4096 on other devices.

    Returns:
        A `Diagnosis` with measures of shape (layer, head): sparsity, entropy, relative_entropy, participation,
        largest_weight, entropy_scale, scale_ratio, sink_weight, sink_rate, and largest_logit, the largest scale·q·k
        over keys that are seen, queries and samples, which `qk_clip` takes.

    Raises:
        TypeError: `q` or `k` are traced (`rc_jax.diagnostics.score_metrics` takes these).
        ValueError: a number is not finite, scores are too large for their dtype, or no query may see two keys.

    Source: Milakov and Gimelshein (2018), arXiv 1805.02867, section 3, for the pass that never looks back.

    Example:
        >>> import jax
        >>> from rc_jax import diagnostics
        >>> q, k = jax.random.normal(jax.random.key(0), (2, 4, 512, 64))
        >>> diagnosis = diagnostics.scores(q, k, mask="causal")
        >>> diagnosis["sparsity"].shape, bool(abs(diagnosis["entropy_scale"].mean() - 1) < 0.05)
        ((1, 4), True)
    """
    queries, keys = (inputs.layers_of(name, x, ("tokens", "width"), stacked=4) for name, x in (("q", q), ("k", k)))
    if len(queries) != len(keys):
        raise ValueError(f"`q` and `k` must have as many layers, got {len(queries)} and {len(keys)}")
    if queries.dtype != keys.dtype:
        raise TypeError(f"`k` must have the dtype of `q`, {queries.dtype}, got {keys.dtype}")
    if isinstance(scale, Tracer):
        raise TypeError("`scale` must not be traced: inside jit use rc_jax.diagnostics.score_metrics")
    *_, heads, n, _ = (1, *queries.shape)
    if heads > n and keys.shape[-2] == n:
        raise ValueError(
            f"`q` must have axes (…, heads, tokens, width), got {inputs.described(q)}, which would be {heads} heads "
            f"of {n} tokens: move the heads before the tokens, as q.swapaxes(-3, -2) does, or pass one head at a time"
        )
    mask = mask if isinstance(mask, str) else inputs.mask_of("mask", mask, (queries.shape[-2], keys.shape[-2]))
    # Layer by layer; only numbers of rows are kept.
    by_layer = [
        _of_layer(layer, queries[layer], keys[layer], scale, mask, threshold, block) for layer in range(len(keys))
    ]
    measured = {name: np.stack([np.asarray(each[name]) for each in by_layer]) for name in ORDER}
    n, m = queries.shape[-2], keys.shape[-2]
    rectangular = (f"{looking(n, m)}.",) if n != m else ()
    stacked = (inputs.STACKED.format(len(queries)),) if queries.stacked else ()
    return Diagnosis(
        measured,
        tokens=m,
        queries=None if n == m else n,
        samples=int(np.prod(queries.shape[:-3])),
        layers=len(queries),
        heads=measured["sparsity"].shape[1],
        numbers=tuple(range(len(queries))),
        causal=mask == "causal" if isinstance(mask, str) else not np.triu(mask, 1).any(),
        threshold=float(threshold),
        notes=(*stacked, *rectangular, f"Computed without weights, from queries and keys: {ABSENT} are left out."),
    )


class Fitted(NamedTuple):
    """Queries and keys of all samples and heads side by side, a factor for each head, and the mask."""

    q: Float[Array, "head query width"]
    k: Float[Array, "group key width"]
    scale: Float[Array, " head"]
    mask: Bool[Array, "query key"] | None
    causal: bool


def fitted(q: Any, k: Any, scale: ArrayLike | None, mask: Any) -> Fitted:
    """Check that queries, keys, scale and mask fit together, and bring them into shape; they may be traced."""
    # Axes (…, heads, tokens, width), of which all but the heads are alike.
    q, k = (inputs.to_jax(name, x) if inputs.is_torch(x) else x for name, x in (("q", q), ("k", k)))
    for name, x in (("q", q), ("k", k)):
        if not jnp.issubdtype(getattr(x, "dtype", int), jnp.floating):
            raise TypeError(f"`{name}` must be an array of floating-point numbers, got {arguments.describe(x)}")
        if x.ndim < 2 or not x.size:
            raise ValueError(f"`{name}` must have axes (…, heads, tokens, width), got {arguments.describe(x)}")
    if q.dtype != k.dtype:
        raise TypeError(f"`k` must have the dtype of `q`, {q.dtype}, got {k.dtype}")
    q, k = (jnp.asarray(x).astype(working_dtype(x.dtype)) for x in (q, k))
    if q.ndim == k.ndim == 2:
        q, k = q[None], k[None]
    *samples, heads, n, width = q.shape
    if k.ndim != q.ndim or k.shape[:-3] != tuple(samples) or k.shape[-1] != width or heads % k.shape[-3]:
        raise ValueError(
            f"`k` must have the shape of `q`, {q.shape}, but for the number of keys and of heads, which must be a "
            f"divisor of {heads}, got {k.shape}"
        )
    # The scale, for each head.
    if scale is None:
        factor = jnp.full(heads, width**-0.5, q.dtype)
    else:
        if np.shape(scale) not in ((), (heads,)):
            raise ValueError(f"`scale` must be one number or one for each of {heads} heads, got {np.shape(scale)}")
        factor = jnp.broadcast_to(jnp.asarray(scale).astype(q.dtype), heads)
    allowed = _allowed(mask, n, k.shape[-2])
    factors = jnp.broadcast_to(factor, (*samples, heads)) if samples else factor
    causal = isinstance(mask, str) and mask == "causal"
    return Fitted(q.reshape(-1, n, width), k.reshape(-1, *k.shape[-2:]), factors.reshape(-1), allowed, causal)


def _allowed(mask: Any, n: int, m: int) -> Array | None:
    """The mask as an array, `None` where a word says it all."""
    if isinstance(mask, str):
        arguments.one_of(inputs.MASKS)("mask", mask)
        if mask == "causal" and n != m:
            way = f": the last queries of a text have np.tri({m}, dtype=bool)[-{n}:]" if n < m else ""
            raise ValueError(f"`mask` must be an array where {n} queries look at {m} keys, got 'causal'{way}")
        return None
    mask = mask.cpu().numpy() if inputs.is_torch(mask) else mask
    if getattr(mask, "dtype", None) != jnp.bool_:
        raise TypeError(f"`mask` must be 'none', 'causal' or an array of booleans, got {arguments.describe(mask)}")
    if mask.shape != (n, m):
        raise ValueError(f"`mask` must have the shape {(n, m)}, a row for each query, got {arguments.describe(mask)}")
    return jnp.asarray(mask)


def _of_layer(
    layer: int, q: Array, k: Array, scale: ArrayLike | None, mask: Any, threshold: float, block: int | None
) -> dict[str, np.ndarray]:
    """The measures of the heads of one layer, means over samples."""
    shaped = fitted(q, k, scale, mask)
    for name, x in (("q", shaped.q), ("k", shaped.k)):
        if not bool(jnp.all(jnp.isfinite(x))):
            raise ValueError(f"`{name}` must be finite, got NaN or infinity in layer {layer}")
    streamed = stream(*shaped[:4], causal=shaped.causal, block=block)
    keys = np.asarray(streamed.keys)
    if keys.max() < 2:
        raise ValueError("`mask` must let at least one query see two keys, got none")
    # Means over rows, and over the queries that may see the first key.
    means, sink, largest = jax.tree.map(np.asarray, _summary(streamed))
    if not np.isfinite(means["entropy"]).all():
        raise ValueError(f"`scale` q·k must fit {shaped.q.dtype}, got scores that are not finite in layer {layer}")
    counts = keys[keys >= 2]
    alpha = entropy_scale(means["entropy"], counts)
    means |= {"entropy_scale": alpha, "scale_ratio": alpha / optimal_scale(counts)}
    means |= {"sink_weight": sink, "sink_rate": np.asarray(measures.exceeds(sink, threshold))}
    heads = q.shape[-3] if q.ndim > 2 else 1
    kept = {name: means[name].reshape(-1, heads).mean(0) for name in ORDER if name in means}
    return kept | {"largest_logit": largest.reshape(-1, heads).max(0)}


@jax.jit
def _summary(streamed: Streamed) -> tuple[dict[str, Array], Array, Array]:
    """Means over rows, the mean weight on key 0, and the largest logit, of each head."""
    seen = jnp.broadcast_to(streamed.first_seen, streamed.first.shape)
    means = measures.row_means(streamed.rows, streamed.keys[None])
    return means, measures.mean_over(streamed.first, seen), jnp.max(streamed.logit, axis=-1)
