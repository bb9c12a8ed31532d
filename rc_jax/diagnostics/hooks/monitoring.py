"""Attention while a model trains: a few numbers that may be computed inside a compiled step, and lines of JSON."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from rc_jax._numerics import arguments, files
from rc_jax._numerics.dtypes import working_dtype
from rc_jax._numerics.jax_names import Tracer
from rc_jax.diagnostics import inputs
from rc_jax.diagnostics.measures import SINK, Rows, exceeds, mean_over, normalised, row_means, rows_of
from rc_jax.diagnostics.streaming.passes import stream
from rc_jax.diagnostics.streaming.queries_and_keys import fitted

Metrics = dict[str, Float[Array, ""]]
NAMES = ("sparsity", "relative_entropy", "participation", "largest_weight", "sink_weight", "sink_rate", "no_key_weight")


def metrics(weights: Any, *, mask: Any = None) -> Metrics:
    """A few numbers on attention weights, for a log: they may be computed in `jax.jit` and `jax.vmap`.

    Means over rows that may see at least two keys, then over heads, samples and layers:

        sparsity          S = E p/√E p² over the n_i keys that row i may see
        relative_entropy  H/log n_i
        participation     1/Σp², the effective number of keys
        largest_weight    max p
        sink_weight       weight on the first key, mean over the queries that may see it
        sink_rate         share of heads where that exceeds 0.3, the threshold of Gu et al. (2025)
        no_key_weight     1 − Σp, what goes to a sink that is no key, as in gpt-oss; 0 to rounding in other softmaxes

    They are those of `rc_jax.diagnostics.attention`, without its checks: what is not finite stays so. Rows need not
    add up to one: entropies are those of p/Σp. No gradient flows. They cost a few passes over the weights.

    Args:
        weights: (…, heads, n, m), or one such array for each layer, in a sequence or a mapping. Arrays of JAX, NumPy
            or PyTorch.
        mask: True where a query may see a key; broadcasts to each array. Without it a row may see all keys, or those
            up to its own where an array is square and all weights above its diagonals are 0. Windows and padding need
            a mask here: unlike `rc_jax.diagnostics.attention`, nothing looks for them.

    Returns:
        A dictionary of numbers (arrays without axes), float32 at least.

    Raises:
        TypeError: something is not an array of floating-point numbers, or `mask` not one of booleans.
        ValueError: there is no layer, an array has fewer than three axes, or `mask` does not fit.

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
    logged = [_of_weights(jnp.asarray(layer), seen) for layer in layers]
    return {name: jnp.mean(jnp.stack([each[name] for each in logged])) for name in NAMES}


@arguments.guard(scale=arguments.positive)
def score_metrics(q: Any, k: Any, *, scale: ArrayLike | None = None, mask: Any = "none") -> Metrics:
    """The numbers of `metrics`, of softmax(scale·q kᵀ), in streaming passes: no array of queries × keys is held.

    One more stands beside them: `largest_logit`, the largest scale·q·k of all heads, queries and keys that are seen.

    Args:
        q: queries; (heads, n, d), or with samples before.
        k: keys; the same, with as many heads or a divisor of them (grouped queries).
        scale: factor on q·k, one number or one for each head; 1/√d by default. It may be traced.
        mask: as in `rc_jax.diagnostics.scores`.

    Returns:
        As `metrics`.

    Raises:
        TypeError: `q` or `k` not arrays of floating-point numbers of one dtype, `mask` not as described.
        ValueError: shapes that do not fit, or a `scale` that is known and not positive.

    Source: as `rc_jax.diagnostics.scores`.

    Example:
        >>> import jax
        >>> from rc_jax.diagnostics import score_metrics
        >>> q, k = jax.random.normal(jax.random.key(0), (2, 4, 32, 8))
        >>> logged = jax.jit(score_metrics, static_argnames="mask")(q, k, mask="causal")
        >>> print(f"{logged['relative_entropy']:.2f} {logged['sink_weight']:.2f}")
        0.83 0.12
    """
    shaped = fitted(q, k, scale, mask)
    streamed = stream(*shaped[:4], causal=shaped.causal)
    means = _means(streamed.rows, streamed.keys, streamed.first, streamed.first_seen)
    return means | {"largest_logit": jnp.max(streamed.logit)}


def append_line(path: str | os.PathLike[str], line: Mapping[str, Any]) -> None:
    """Add named numbers to a file of JSON lines, as `rc_jax.training` writes its `metrics.jsonl`.

    Arrays become nested lists, NaN becomes null and infinities the texts "Infinity" and "-Infinity", which Python's
    `float` reads.

    Args:
        path: of the file, which is made where there is none.
        line: numbers and arrays by name, such as `{"step": 10, **metrics(weights)}`.

    Raises:
        TypeError: a value is neither a number nor an array of numbers, or is traced.

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


@jax.jit
def _of_weights(weights: Array, mask: Array | None) -> Metrics:
    """Means of one array."""
    p = lax.stop_gradient(weights)
    p = p.astype(working_dtype(p.dtype))
    queries, keys = p.shape[-2:]
    if mask is not None:
        mask = jnp.broadcast_to(mask, (*(1,) * (p.ndim - mask.ndim), *mask.shape[:-2], queries, keys))
        return _means(rows_of(p * mask.astype(p.dtype)), jnp.sum(mask, -1), p[..., 0], mask[..., 0])
    # Weights that are all 0 above the diagonals are those of a causal mask.
    counts = jnp.full(queries, keys)
    if queries == keys:
        later = jnp.asarray(np.triu(np.ones((queries, keys), bool), 1)).astype(p.dtype)
        causal = jnp.max(jnp.abs(p) * jnp.expand_dims(later, range(p.ndim - 2))) == 0
        counts = jnp.where(causal, jnp.arange(1, keys + 1), counts)
    return _means(rows_of(p), counts, p[..., 0], jnp.ones(queries, bool))


@jax.jit
def _means(rows: Rows, keys: Array, first: Array, first_seen: Array) -> Metrics:
    """Means over heads and samples, of means over rows."""
    keys, first_seen = (jnp.broadcast_to(each, first.shape) for each in (keys, first_seen))
    sink = mean_over(first, first_seen)
    measures = {**row_means(normalised(rows, keys), keys), "sink_weight": sink, "sink_rate": exceeds(sink, SINK)}
    measures["no_key_weight"] = 1 - measures["row_sum"]
    return {name: jnp.mean(measures[name]) for name in NAMES}
