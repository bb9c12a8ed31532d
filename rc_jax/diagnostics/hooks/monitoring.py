"""Attention while a model trains: a few numbers that may be computed inside a compiled step, and lines of JSON."""

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from rc_jax._numerics import arguments, files
from rc_jax._numerics.dtypes import working_dtype
from rc_jax._numerics.jax_names import Tracer
from rc_jax.diagnostics import inputs
from rc_jax.diagnostics.measures import OF_SPREAD, SINK, Rows, exceeds, normalised, row_values, rows_of
from rc_jax.diagnostics.seen import over_texts, rows_of_text, same_text, traced, traced_causal
from rc_jax.diagnostics.streaming.queries_and_keys import FORGOTTEN, Fitted, fitted, unit_rows, with_axes

Metrics = dict[str, Float[Array, ""]]
NAMES = ("sparsity", "relative_entropy", "participation", "largest_weight", "sink_weight", "sink_rate", "no_key_weight")


def metrics(weights: Any, *, mask: Any = None, segment_ids: Any = None) -> Metrics:
    """A few numbers on attention weights, for a log: they may be computed in `jax.jit` and `jax.vmap`.

    Means over rows that may see at least two keys, then over texts, heads, samples and layers:

        sparsity          S = E p/√E p² over the n_i keys that row i may see
        relative_entropy  H/log n_i
        participation     1/Σp², the effective number of keys
        largest_weight    max p
        sink_weight       weight on the first key, mean over the queries that may see it
        sink_rate         share of heads where that exceeds 0.3, the threshold of Gu et al. (2025)
        no_key_weight     1 − Σp, what goes to a sink that is no key, as in gpt-oss; 0 to rounding in other softmaxes

    They are those of `rc_jax.diagnostics.attention`, without most of its checks: what is not finite stays so. Rows need
    not add up to one: entropies are those of p/Σp, and a row of zeros counts in the last three numbers alone; the other
    ones are NaN where all rows are zeros. Of signed weights, those negative by more than eps·Σ|p| of their dtype
    (float32's at least), entropies and measures of single keys are NaN. No gradient flows. They cost a few passes over
    the weights.

    Args:
        weights: (…, heads, n, m), or one such array for each layer, in a sequence or a mapping. Arrays of JAX, NumPy
            or PyTorch.
        mask: True where a query may see a key; broadcasts to each array. Where an array is square and all weights above
            its diagonals are 0, rows see no later key, with a mask or without; rectangular ones need a mask for that.
            Windows and padding need one too: unlike `rc_jax.diagnostics.attention`, nothing looks for them. A row that
            sees nothing is left out, whatever it holds, and so is a token that no query may see: `real[:, None, None]`
            leaves padding out. Texts that a mask leaves apart are measured each, from their first key on.
        segment_ids: As in `rc_jax.diagnostics.attention`, whole numbers that broadcast to (samples, n), which text each
            token belongs to, from 1. 0 and negative numbers are padding here, as they cannot be looked at in a trace.

    Returns:
        A dictionary of numbers (arrays without axes), float32 at least.

    Raises:
        ValueError: a row that sees keys has weight on one that it may not see (all numbers are NaN where that is found
            out in a trace).

    Source: as `rc_jax.diagnostics.attention`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from rc_jax import diagnostics
        >>> weights = jax.nn.softmax(jax.random.normal(jax.random.key(0), (4, 32, 32)))
        >>> logged = jax.jit(diagnostics.metrics)(weights)
        >>> print(f"{logged['sparsity']:.2f} {logged['relative_entropy']:.2f} {logged['sink_weight']:.2f}")
        0.67 0.87 0.03
    """
    if hasattr(weights, "attentions"):
        raise TypeError(f"`weights` must be arrays, got {type(weights).__name__}: pass its `attentions`")
    layers = list(weights.values()) if isinstance(weights, Mapping) else weights
    layers = [layers] if hasattr(layers, "dtype") else list(layers)
    layers = [inputs.to_jax("weights", layer) if inputs.is_torch(layer) else layer for layer in layers]
    mask = mask.cpu().numpy() if inputs.is_torch(mask) else mask
    if not layers:
        raise ValueError("`weights` must hold at least one layer, got none")
    for layer in layers:
        _check(layer, mask)
    seen = None if mask is None else jnp.asarray(mask)
    ids = inputs.on_host(segment_ids) if inputs.is_torch(segment_ids) else segment_ids
    ids = None if ids is None else jnp.asarray(ids)
    whole = ids is None or jnp.issubdtype(ids.dtype, jnp.integer)
    if ids is not None and not (whole and all(_of_tokens(ids, layer) for layer in layers)):
        raise ValueError(
            f"`segment_ids` must be whole numbers (samples, n) of square weights, got {arguments.describe(segment_ids)}"
        )
    logged = [_of_weights(jnp.asarray(layer), seen, ids) for layer in layers]
    for index, outside in enumerate(each.pop("outside") for each in logged):
        size = arguments.at_hand(outside)
        if size is not None and size != 0:
            raise ValueError(
                f"`weights` must be 0 where `mask` is False, got a magnitude of {float(size):.6g} in layer {index}: "
                "True is where a query may see a key, and axes in front are those of the weights"
            )
    return {name: jnp.mean(jnp.stack([each[name] for each in logged])) for name in NAMES}


def score_metrics(
    q: Any,
    k: Any,
    *,
    scale: Any = None,
    mask: Any = "none",
    segment_ids: Any = None,
    bias: Any = None,
    sink: Any = None,
    soft_cap: Any = None,
    axes: Sequence[str] | None = None,
) -> Metrics:
    """The numbers of `metrics`, of softmax(scale·q kᵀ), in streaming passes: no array of queries × keys is held.

    One more stands beside them: `largest_logit`, the largest logit of all heads, queries and keys that are seen, behind
    the cap and with the bias.

    Args:
        q: queries; (heads, n, d), or with samples before.
        k: keys; the same, with as many heads or a divisor of them (grouped queries).
        scale: factor on q·k, one number or one for each head; 1/√d by default. It may be traced, or PyTorch's.
        mask: as in `rc_jax.diagnostics.scores`.
        segment_ids: as in `metrics`.
        bias: as in `rc_jax.diagnostics.scores`.
        sink: as there; `no_key_weight` is its share.
        soft_cap: as there.
        axes: as there.

    Returns:
        As `metrics`. All numbers are NaN where a query or key is.

    Source: as `rc_jax.diagnostics.scores`.

    Example:
        >>> import jax
        >>> from rc_jax.diagnostics import score_metrics
        >>> q, k = jax.random.normal(jax.random.key(0), (2, 4, 32, 8))
        >>> logged = jax.jit(score_metrics, static_argnames="mask")(q, k, mask="causal")
        >>> print(f"{logged['relative_entropy']:.2f} {logged['sink_weight']:.2f}")
        0.83 0.12
    """
    if axes is not None:
        q, k = inputs.arranged("q", q, axes)[0], inputs.arranged("k", k, axes, shared=True)[0]
    ids = inputs.on_host(segment_ids) if inputs.is_torch(segment_ids) else segment_ids
    ids = None if ids is None else jnp.where(jnp.asarray(ids) > 0, jnp.asarray(ids), -1)
    shaped = fitted(q, k, scale, mask, ids, bias, sink, soft_cap, checked=axes is None)
    traced_here = any(isinstance(x, Tracer) for x in (q, k))
    if scale is None and not traced_here and unit_rows(q) and unit_rows(k):
        warnings.warn(FORGOTTEN, stacklevel=2)
    return _of_scores(shaped)


def _of_scores(shaped: Fitted) -> Metrics:
    queries, keys = shaped.q.shape[1], shaped.k.shape[1]
    mask, texts, starts = None, None, jnp.zeros((1, queries), int)
    counts = jnp.arange(1, queries + 1) if shaped.causal else jnp.full(queries, keys)
    counts, first_seen = counts[None, None], jnp.ones((1, 1, queries), bool)
    if shaped.mask is not None:
        mask, texts, starts = traced(shaped.mask)
        counts = jnp.sum(mask, axis=-1)
        at = jnp.broadcast_to(starts[:, None, :, None], (*mask.shape[:-1], 1))
        first_seen = jnp.take_along_axis(mask, at, axis=-1)[..., 0]
    passed = shaped.streamed(mask, starts)
    means = jax.jit(means_of)(passed.rows, counts, passed.first, first_seen, texts)
    broken = jnp.any(jnp.isnan(passed.logit))
    means["largest_logit"] = jnp.max(passed.logit)
    return {name: jnp.where(broken, jnp.nan, value) for name, value in means.items()}  # maxima pass over NaN


def append_line(path: str | os.PathLike[str], line: Mapping[str, Any]) -> None:
    """Add named numbers to a file of JSON lines, as `rc_jax.training` writes its `metrics.jsonl`.

    Arrays become nested lists, NaN becomes null and infinities the texts "Infinity" and "-Infinity", which Python's
    `float` reads.

    Args:
        path: of the file, which is made where there is none.
        line: numbers and arrays by name, such as `{"step": 10, **metrics(weights)}`.

    Raises:
        TypeError: a value is traced, or neither a number nor an array of numbers.

    Example:
        >>> import json, pathlib, tempfile
        >>> from rc_jax.diagnostics import append_line
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for step in range(2):
        ...         append_line(pathlib.Path(folder, "log.jsonl"), {"step": step, "loss": 1 / (step + 1)})
        ...     print(list(map(json.loads, pathlib.Path(folder, "log.jsonl").read_text().splitlines())))
        [{'step': 0, 'loss': 1.0}, {'step': 1, 'loss': 0.5}]
    """
    for name, value in line.items():
        if isinstance(value, Tracer) or np.asarray(value).dtype.kind not in "biufV":
            raise TypeError(
                f"`line` must hold numbers and arrays of numbers, got {arguments.describe(value)} for {name!r}"
            )
    files.append_json_line(Path(path), line)


def _check(weights: Any, mask: Any) -> None:
    if not isinstance(weights, jax.Array | np.ndarray) or not jnp.issubdtype(weights.dtype, jnp.floating):
        raise TypeError(f"`weights` must hold floating-point arrays, got {arguments.describe(weights)}")
    if weights.ndim < 3 or not weights.size:
        raise ValueError(f"`weights` must hold arrays (…, heads, n, m), got {arguments.describe(weights)}")
    if mask is None:
        return
    if getattr(mask, "dtype", None) != jnp.bool_:
        raise TypeError(f"`mask` must be an array of booleans, got {arguments.describe(mask)}")
    try:
        fits = np.broadcast_shapes(mask.shape, weights.shape) == weights.shape and mask.ndim >= 2
    except ValueError:
        fits = False
    if not fits:
        of_texts = mask.shape == (weights.shape[0], weights.shape[-1])
        way = ": keys of each text are mask[:, None, None, :]" if of_texts else ""
        raise ValueError(f"`mask` must broadcast to {weights.shape}, got {arguments.describe(mask)}{way}")


def _of_tokens(ids: Any, weights: Any) -> bool:
    """Whether numbers of texts (sample, token) fit square weights."""
    samples = int(np.prod(weights.shape[:-3]))
    return weights.shape[-1] == weights.shape[-2] and ids.shape in (weights.shape[-1:], (samples, weights.shape[-1]))


@jax.jit
def _of_weights(weights: Array, mask: Array | None, ids: Array | None) -> Metrics:
    """Means of one array, and `outside`: the largest weight that queries which see a key have on one that is hidden.

    Means are NaN where that is not 0.
    """
    p = lax.stop_gradient(weights)
    *_, heads, queries, keys = p.shape
    p = p.astype(working_dtype(p.dtype)).reshape(-1, heads, queries, keys)
    if mask is not None:
        mask = with_axes("mask", mask, weights.shape)
    within = mask
    if ids is not None:
        same = same_text(jnp.broadcast_to(jnp.where(ids > 0, ids, -1), (len(p), keys)))
        within = same if mask is None else same & mask
    outside = jnp.zeros((), p.dtype)
    if within is not None:
        within = traced(within).mask  # a row that is padding itself may hold anything
        hidden = jnp.where(jnp.any(within, axis=-1, keepdims=True) & ~within, jnp.abs(p), 0)
        outside = jnp.where(jnp.any(jnp.isnan(hidden)), jnp.nan, jnp.max(hidden))  # maxima pass over NaN
        p = jnp.where(within, p, 0)
    whole = traced_causal(p, within)
    texts, starts = None, jnp.zeros((1, queries), int)
    if within is not None:
        whole, texts, starts = traced(whole)
        p = jnp.where(whole, p, 0)
    rows = rows_of(p)
    negative = jnp.any(rows.signed(weights.dtype))
    at = starts[:, None, :, None]
    first = jnp.take_along_axis(p, jnp.broadcast_to(at, (*p.shape[:-1], 1)), axis=-1)[..., 0]
    first_seen = jnp.take_along_axis(whole, jnp.broadcast_to(at, (*whole.shape[:-1], 1)), axis=-1)[..., 0]
    means = means_of(rows, jnp.sum(whole, axis=-1), first, first_seen, texts)
    of_single = ("relative_entropy", "largest_weight", "sink_weight", "sink_rate")
    wrong = {name: (outside != 0) | (negative if name in of_single else False) for name in NAMES}
    return {name: jnp.where(wrong[name], jnp.nan, means[name]) for name in NAMES} | {"outside": outside}


def means_of(rows: Rows, keys: Array, first: Array, first_seen: Array, texts: Array | None) -> Metrics:
    """Means over heads of means over texts of means over rows; heads without a row that counts are left out.

    Args:
        rows: of each head, (sample, head, query).
        keys: how many each row may see.
        first: the weight of each row on the first key of its text.
        first_seen: which rows may see that.
        texts: of each row, (sample, query); `None` where a sample is one.
    """
    counted = jnp.broadcast_to(keys >= 2, first.shape)
    several = rows_of_text(counted, texts) > 0

    def mean(values: Array, of_rows: Array) -> Array:
        """Over texts, of what is one number for all rows of a text, which are `of_rows`."""
        some = of_rows & several
        share = jnp.where(some, 1 / jnp.maximum(rows_of_text(some, texts), 1), 0).astype(values.dtype)
        number = jnp.sum(share, axis=(0, 2))
        of_head = jnp.sum(jnp.where(some, share * values, 0), axis=(0, 2)) / jnp.maximum(number, 0.5)
        return jnp.sum(jnp.where(number > 0, of_head, 0)) / jnp.sum(number > 0).astype(values.dtype)

    named = row_values(normalised(rows), keys) | {"no_key_weight": 1 - rows.total}
    measures = {}
    for name, each in named.items():
        of_rows = counted & ~rows.empty if name in OF_SPREAD else counted
        measures[name] = mean(over_texts(each, of_rows, texts), of_rows)
    sink, seeing = over_texts(first, first_seen, texts), jnp.broadcast_to(first_seen, first.shape)
    measures |= {"sink_weight": mean(sink, seeing), "sink_rate": mean(exceeds(sink, SINK), seeing)}
    return {name: measures[name] for name in NAMES}
