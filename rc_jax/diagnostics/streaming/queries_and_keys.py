"""Diagnosis of attention from queries and keys, for numbers of tokens whose n × n weights fit into no memory."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import working_dtype
from rc_jax._numerics.jax_names import Tracer
from rc_jax.diagnostics import inputs, measures
from rc_jax.diagnostics.record import Diagnosis
from rc_jax.diagnostics.seen import Seen, looking, of_nothing, same_text, seen_by, segments
from rc_jax.diagnostics.streaming.passes import Streamed, Terms, stream
from rc_jax.diagnostics.weights import Observed, collected, implied, of_layers

ABSENT = (
    "self_weight, previous_weight, strongest_key, strongest_weight, strongest_share, strongest_first, "
    "second_singular_value, stable_rank, numerical_rank"
)


@arguments.guard(threshold=arguments.scalar(arguments.positive))
def scores(
    q: Any,
    k: Any,
    *,
    scale: Any = None,
    mask: Any = "none",
    segment_ids: Any = None,
    bias: Any = None,
    sink: Any = None,
    soft_cap: Any = None,
    threshold: float = measures.SINK,
    block: int | None = None,
    axes: Sequence[str] | None = None,
) -> Diagnosis:
    r"""What `attention` says of softmax(scale·q kᵀ), computed in one pass over blocks of queries and keys.

    No array of queries × keys is held: memory grows with n alone. With s the scores of a row and Z(β) = Σ e^(βs),

        Σp² = Z(2)/Z(1)²,   H = log Z(1) − Σ s eˢ/Z(1),   max p = e^(max s)/Z(1),

    so these sums say how even a row is, and how large its largest logit is, but not on which keys its weight lies, nor
    what the matrix as a whole is. Of single keys only the first is looked at. `self_weight`, `previous_weight`,
    the strongest key, ranks and singular values are therefore left out; the others are the same
    numbers to rounding. Under "causal" blocks above the diagonal are left out.

    Rounding is that of the scores: H is right to a few eps·(1 + max |s|). The products ask for the "highest" precision.

    Args:
        q: queries. A list with one array (…, heads, n, d) for each layer, or one array: (n, d) is one head, (heads, n,
            d) one layer, and the first axis of (layers, heads, n, d) counts layers. An axis before the heads of a layer
            is that of samples. Arrays of JAX, NumPy or PyTorch, after rotary positions and normalisation.
        k: keys (…, heads, m, d), as `q`. Fewer heads are repeated, as in grouped queries.
        scale: factor on q·k, positive, one number or one for each head, which may be a parameter of PyTorch; 1/√d by
            default.
        mask: "none", "causal" (m = n), or an array whose shape broadcasts to (samples, heads, n, m): True where a query
            may see a key, or what is added to the logits, −10⁴ or less where it may not. A query that may see nothing
            is left out, and texts that a mask leaves apart are measured each, from their first key on.
        segment_ids: as in `attention`; joined with the mask.
        bias: added to the logits, such as that of ALiBi or T5; its shape broadcasts to (samples, heads, n, m).
            It hides a key at −10⁴ or less, −∞ included, as a mask that a model has added into it.
        sink: a logit beside those of the keys, one number or one for each head, as in gpt-oss; 0 is softmax plus one.
            `row_sum` and `no_key_weight` are added, and entropies are those of p/Σp.
        soft_cap: c > 0 of c·tanh(s/c), which logits pass before a bias and a mask, as in Gemma 2.
        threshold: ε of Gu et al. (2025), as in `attention`.
        block: Queries, and keys, of a block. By default 1024 on CPUs and 4096 on other devices.
        axes: names of the axes of q and k where they are others, such as ("sample", "token", "head", "width"), or
            ("sample", "group", "head", "token", "width") of grouped queries, where k may lack the axis of heads.

    Returns:
        A `Diagnosis` with measures of shape (layer, head): sparsity, entropy, relative_entropy, participation,
        largest_weight, entropy_scale, scale_ratio, sink_weight, sink_rate, and largest_logit, the largest logit over
        keys that are seen, queries and samples, behind the cap and with the bias: without these scale·q·k, which
        `qk_clip` takes.

    Raises:
        TypeError: `q` or `k` are traced (`rc_jax.diagnostics.score_metrics` takes these).
        ValueError: a number is not finite, scores are too large for their dtype, no query may see two keys, or axes fit
            two readings.

    Source: Milakov and Gimelshein (2018), arXiv 1805.02867, section 3, for the pass that never looks back.

    Example:
        >>> import jax
        >>> from rc_jax import diagnostics
        >>> q, k = jax.random.normal(jax.random.key(0), (2, 4, 512, 64))
        >>> diagnosis = diagnostics.scores(q, k, mask="causal")
        >>> diagnosis["sparsity"].shape, bool(abs(diagnosis["entropy_scale"].mean() - 1) < 0.05)
        ((1, 4), True)
    """
    if axes is not None:
        q, k = inputs.arranged("q", q, axes), inputs.arranged("k", k, axes, shared=True)
    queries, keys = (inputs.layers_of(name, x, ("tokens", "width"), stacked=4) for name, x in (("q", q), ("k", k)))
    for each in (queries, keys):
        inputs.four_axes(each, ("token", "width"))
    if len(queries) != len(keys):
        raise ValueError(f"`q` and `k` must have as many layers, got {len(queries)} and {len(keys)}")
    if queries.dtype != keys.dtype:
        raise TypeError(f"`k` must have the dtype of `q`, {queries.dtype}, got {keys.dtype}")
    if isinstance(scale, Tracer):
        raise TypeError("`scale` must not be traced: inside jit use rc_jax.diagnostics.score_metrics")
    n, m, samples = queries.shape[-2], keys.shape[-2], math.prod(queries.shape[:-3])
    texts = None if segment_ids is None else segments("segment_ids", segment_ids, samples, n)
    # Layer by layer; only numbers of rows are kept.
    observed: list[Observed] = []
    logits: list[np.ndarray] = []
    unit = scale is None
    seen = None
    for layer in range(len(keys)):
        of_q, of_k = queries[layer], keys[layer]
        unit = unit and unit_rows(of_q) and unit_rows(of_k)
        shaped = fitted(of_q, of_k, scale, mask, texts, bias, sink, soft_cap, checked=axes is None)
        if seen is None:
            host = None if shaped.mask is None else np.asarray(shaped.mask)
            seen = seen_by(host, (n, m), shaped.causal, samples)
        observed.append(_of_layer(layer, shaped, seen, threshold, block, logits))
    assert seen is not None
    stacked = [inputs.STACKED.format(len(queries))] if queries.stacked else []
    rectangular = [f"{looking(n, m)}."] if n != m else []
    return Diagnosis(
        {**of_layers(observed), "largest_logit": np.stack(logits)},
        tokens=m,
        queries=None if n == m else n,
        samples=observed[0].texts,
        layers=len(queries),
        heads=logits[0].shape[0],
        numbers=tuple(range(len(queries))),
        causal=_causal(mask, seen),
        threshold=float(threshold),
        notes=(
            *stacked,
            *rectangular,
            *([FORGOTTEN] if unit else []),
            *of_nothing([seen], (0,)),
            f"Computed without weights, from queries and keys: {ABSENT} are left out.",
        ),
    )


FORGOTTEN = (
    "Every query and key has length 1, and the scale is 1/√d, which leaves cosines hardly apart: rows come out even. "
    "Cosines have a scale of their own: pass `scale`."
)


def unit_rows(x: Any) -> bool:
    """Whether every row has length 1 to a thousandth, as queries and keys of cosine attention."""
    lengths = np.asarray(jnp.linalg.norm(jnp.asarray(inputs.to_jax("q", x)).astype(jnp.float32), axis=-1))
    return bool((np.abs(lengths - 1) < 1e-3).all())


def _causal(mask: Any, seen: Seen) -> bool:
    """Whether no query sees a later key."""
    if seen.mask is None:
        return isinstance(mask, str) and mask == "causal"
    return not np.triu(np.any(seen.mask, axis=(0, 1)), 1).any()


class Fitted(NamedTuple):
    """Queries and keys of all samples and heads side by side, and what stands beside their products.

    shape: samples and heads. mask, bias: (sample, head, query, key), axes of length 1 where they are alike. causal:
    whether the word says so, and nothing else hides a key.
    """

    q: Float[Array, "head query width"]
    k: Float[Array, "group key width"]
    scale: Float[Array, " head"]
    mask: Array | None
    bias: Array | None
    sink: Float[Array, " head"] | None
    cap: Array | None
    causal: bool
    shape: tuple[int, int]

    def streamed(self, mask: Array | None, starts: Array, block: int | None = None) -> Streamed:
        """One pass; arrays (sample, head, query). `starts` are the first keys of the texts of queries."""
        samples, heads = self.shape
        start = jnp.broadcast_to(starts[:, None], (samples, heads, self.q.shape[1])).reshape(samples * heads, -1)
        of_mask, of_bias = self._which(mask), self._which(self.bias)
        flat = [None if each is None else each.reshape(-1, *each.shape[-2:]) for each in (mask, self.bias)]
        terms = Terms(flat[1], of_mask, of_bias, start, self.sink, self.cap)
        passed = stream(self.q, self.k, self.scale, flat[0], causal=self.causal, block=block, terms=terms)
        return jax.tree.map(lambda each: each.reshape(samples, heads, -1), passed)

    def _which(self, array: Array | None) -> Array | None:
        """Which of the (sample, head) of an array belongs to each head of each sample."""
        if array is None:
            return None
        own = jnp.arange(array.shape[0] * array.shape[1]).reshape(*array.shape[:2])
        return jnp.broadcast_to(own, self.shape).reshape(-1)


def fitted(
    q: Any,
    k: Any,
    scale: Any,
    mask: Any,
    texts: Any = None,
    bias: Any = None,
    sink: Any = None,
    soft_cap: Any = None,
    checked: bool = True,
) -> Fitted:
    """Check that all fits together, and bring it into shape; it may be traced.

    Args:
        q: as in `scores`, of one layer.
        k: as there.
        scale: as there.
        mask: as there.
        texts: numbers of texts, (sample, token) or (token), negative where a token is none.
        bias: as in `scores`.
        sink: as there.
        soft_cap: as there.
        checked: whether axes that fit two readings are refused; not where somebody has named them.
    """
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
    *before, heads, n, width = q.shape
    if checked and k.ndim == q.ndim:
        _check_axes(q, k)
    if k.ndim != q.ndim or k.shape[:-3] != tuple(before) or k.shape[-1] != width or heads % k.shape[-3]:
        raise ValueError(
            f"`k` must have the shape of `q`, {q.shape}, but for the number of keys and of heads, which must be a "
            f"divisor of {heads}, got {k.shape}"
        )
    samples, m = math.prod(before), k.shape[-2]
    factor = jnp.full(heads, width**-0.5, q.dtype) if scale is None else _of_heads("scale", scale, heads, q.dtype)
    # What may be seen: words hold no array.
    causal = isinstance(mask, str) and mask == "causal"
    if isinstance(mask, str):
        arguments.one_of(inputs.MASKS)("mask", mask)
        if causal and n != m:
            way = f": the last queries of a text have np.tri({m}, dtype=bool)[-{n}:]" if n < m else ""
            raise ValueError(f"`mask` must be an array where {n} queries look at {m} keys, got 'causal'{way}")
    mask = inputs.on_host(mask) if inputs.is_torch(mask) else mask
    shape = (*before, heads, n, m)
    allowed = None if isinstance(mask, str) else _visible(mask, shape)
    allowed, added, causal = _with_bias(bias, mask, allowed, causal, shape)
    added = None if added is None else added.astype(q.dtype)
    if texts is not None:
        if n != m or np.shape(texts) not in ((samples, n), (n,)):
            raise ValueError(
                f"`segment_ids` must have the shape {(samples, n)}, of queries that are their keys, got "
                f"{np.shape(texts)}"
            )
        texts = jnp.broadcast_to(jnp.asarray(texts), (samples, n))
        same = same_text(texts)
        allowed = same if allowed is None else allowed & same
        allowed = allowed & jnp.tri(n, dtype=bool)[None, None] if causal else allowed
        causal = False
    cap = None
    if soft_cap is not None:
        arguments.positive("soft_cap", soft_cap)
        cap = jnp.asarray(soft_cap, q.dtype)
    return Fitted(
        q.reshape(-1, n, width),
        k.reshape(-1, *k.shape[-2:]),
        jnp.tile(factor, samples),
        allowed,
        added,
        None if sink is None else jnp.tile(_of_heads("sink", sink, heads, q.dtype), samples),
        cap,
        causal,
        (samples, heads),
    )


def _with_bias(
    bias: Any, mask: Any, allowed: Array | None, causal: bool, shape: tuple[int, ...]
) -> tuple[Array | None, Array | None, bool]:
    """What may be seen, what is added to the logits of that, and whether a causal mask is to be made beside it."""
    added = None
    if bias is not None:
        added, hides = _beside("bias", bias, shape)
        if hides is not None:  # a mask that a model has added into it
            allowed = hides if allowed is None else allowed & hides
            allowed = allowed & jnp.tri(shape[-1], dtype=bool)[None, None] if causal else allowed
            causal = False
    if not isinstance(mask, str) and jnp.issubdtype(getattr(mask, "dtype", bool), jnp.floating):
        values, _ = _beside("mask", mask, shape)  # what it adds to keys that are seen counts as a bias
        if isinstance(mask, Tracer):  # numbers of 1 for seen and 0 for hidden cannot be refused here
            values = jnp.where((jnp.max(mask) > 0) & (jnp.min(mask) > inputs.LOW), jnp.nan, values)
        added = values if added is None else added + values
    return allowed, added, causal


def _check_axes(q: Array, k: Array) -> None:
    """Refuse axes that fit another order, tokens before heads, as well."""
    (heads, n), (groups, m) = q.shape[-3:-1], k.shape[-3:-1]
    others = heads == groups and heads > 1 and n > m > 1 and n % m == 0  # heads that share keys
    if others or (heads == groups and n == m and heads > n):
        raise ValueError(
            f"`q` and `k` must have axes (…, heads, tokens, width), got {q.shape} and {k.shape}, which may be {heads} "
            f"heads of {n} queries and {m} keys, or {heads} tokens of {n} heads on {m} of keys: say which by "
            'axes=("head", "token", "width") or ("token", "head", "width"), with "sample" and "layer" in front where '
            "there are such axes, or move the heads before the tokens, as q.swapaxes(-3, -2) does"
        )


def _of_heads(name: str, value: Any, heads: int, dtype: Any) -> Array:
    """One number for each head."""
    value = inputs.on_host(value) if inputs.is_torch(value) else value
    (arguments.positive if name == "scale" else arguments.real)(name, value)
    if np.shape(value) not in ((), (heads,)):
        raise ValueError(f"`{name}` must be one number or one for each of {heads} heads, got {np.shape(value)}")
    return jnp.broadcast_to(jnp.asarray(value).astype(dtype), heads)


def _visible(mask: Any, shape: tuple[int, ...]) -> Array:
    """True where a query may see a key, (sample, head, query, key), axes of length 1 where they are alike."""
    if isinstance(mask, Tracer):
        if mask.dtype != jnp.bool_ and not jnp.issubdtype(mask.dtype, jnp.floating):
            raise TypeError(f"`mask` must be an array of booleans, or one that is added to logits, got {mask.dtype}")
        seen = mask if mask.dtype == jnp.bool_ else mask > inputs.LOW
    else:
        seen = jnp.asarray(inputs.mask_of("mask", mask, shape))
    return with_axes("mask", seen, shape)


def _beside(name: str, value: Any, shape: tuple[int, ...]) -> tuple[Array, Array | None]:
    """What is added to the logits, 0 where it hides a key, and where it hides none, with the axes of `_visible`.

    The second is `None` where it hides no key at all.
    """
    value = inputs.on_host(value) if inputs.is_torch(value) else value
    value = value if hasattr(value, "dtype") else np.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        arguments.real(name, value)
        return with_axes(name, jnp.asarray(value), shape), None
    low = value <= inputs.LOW
    if not isinstance(low, Tracer) and not np.any(low):
        arguments.real(name, value)
        return with_axes(name, jnp.asarray(value), shape), None
    rest = (jnp if isinstance(value, jax.Array) else np).where(low, 0, value)
    arguments.real(name, rest)
    return with_axes(name, jnp.asarray(rest), shape), with_axes(name, ~jnp.asarray(low), shape)


def with_axes(name: str, value: Array, shape: tuple[int, ...]) -> Array:
    """What broadcasts to (…, head, query, key), as (sample, head, query, key), axes of length 1 where all are alike."""
    try:
        fits = np.broadcast_shapes(value.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"`{name}` must have a shape that broadcasts to {shape}, got {arguments.describe(value)}")
    value = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
    before = shape[:-3] if any(size > 1 for size in value.shape[:-3]) else value.shape[:-3]
    value = jnp.broadcast_to(value, (*before, value.shape[-3], *shape[-2:]))
    return value.reshape(-1, *value.shape[-3:])


def _of_layer(
    layer: int,
    shaped: Fitted,
    seen: Seen,
    threshold: float,
    block: int | None,
    logits: list[np.ndarray],
) -> Observed:
    """The measures of the heads of one layer; its largest logits are added to a list."""
    for name, x in (("q", shaped.q), ("k", shaped.k)):
        if not bool(jnp.all(jnp.isfinite(x))):
            raise ValueError(f"`{name}` must be finite, got NaN or infinity in layer {layer}")
    texts = seen.texts
    own = np.take_along_axis(texts.starts, np.maximum(texts.queries, 0), axis=1)
    mask = None if shaped.mask is None else jnp.asarray(seen.mask)
    passed = shaped.streamed(mask, jnp.asarray(own), block)
    if shaped.sink is not None:
        passed = passed._replace(rows=measures.normalised(passed.rows))
    first_seen = np.ones((1, 1, 1), bool)
    if seen.mask is not None:
        at = np.broadcast_to(own[:, None, :, None], (len(own), seen.mask.shape[1], own.shape[1], 1))
        whole = np.broadcast_to(seen.mask, (len(own), *seen.mask.shape[1:]))
        first_seen = np.take_along_axis(whole, at, axis=-1)[..., 0]
    means = jax.tree.map(
        np.asarray, _summary(passed, jnp.asarray(seen.keys), jnp.asarray(first_seen), texts.queries, texts.most)
    )
    logits.append(np.max(np.asarray(passed.logit), axis=(0, 2)))
    several = np.broadcast_to((seen.keys >= 2), passed.logit.shape)
    if not np.isfinite(np.asarray(passed.rows.entropy)[several]).all():
        raise ValueError(f"`scale` q·k must fit {shaped.q.dtype}, got scores that are not finite in layer {layer}")
    means |= implied(means["entropy"], seen, np.asarray(passed.rows.empty))
    means["sink_rate"] = np.asarray(measures.exceeds(means["sink_weight"], threshold))
    if shaped.sink is None:
        del means["row_sum"]
    else:
        means["no_key_weight"] = 1 - means["row_sum"]
    return collected(means, seen)


@functools.partial(jax.jit, static_argnames="most")
def _summary(streamed: Streamed, keys: Array, first_seen: Array, texts: Array, most: int) -> dict[str, Array]:
    """Means over the rows of each text, and the mean weight on its first key, (sample, head, text)."""
    inside = texts[:, None, None] == jnp.arange(most)[None, None, :, None]
    means = measures.row_means(streamed.rows, keys, inside)
    seeing = jnp.broadcast_to(first_seen, streamed.first.shape)
    return means | {"sink_weight": measures.mean_over(streamed.first, seeing, inside)}
