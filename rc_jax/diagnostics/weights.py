"""Diagnosis of attention weights: one pass over each layer, then means over its rows."""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import working_dtype
from rc_jax._numerics.jax_names import canonical_dtype
from rc_jax.diagnostics import inputs, measures
from rc_jax.diagnostics.implied_scale import entropy_scale, optimal_scale
from rc_jax.diagnostics.record import Diagnosis
from rc_jax.diagnostics.seen import Seen, Texts, read
from rc_jax.diagnostics.spectrum import spectrum_measures

ORDER = (
    *("sparsity", "entropy", "relative_entropy", "participation", "largest_weight", "entropy_scale", "scale_ratio"),
    *("row_sum", "no_key_weight", "self_weight", "previous_weight", "sink_weight", "sink_rate"),
    *("strongest_key", "strongest_weight", "strongest_share", "strongest_first"),
    *("second_singular_value", "stable_rank", "numerical_rank"),
    *("sink_value_ratio", "sink_output_share"),
)
OF_DISTRIBUTIONS = (
    *("entropy", "relative_entropy", "largest_weight", "entropy_scale", "scale_ratio", "self_weight"),
    *("previous_weight", "sink_weight", "sink_rate", "strongest_key", "strongest_weight", "strongest_share"),
    "strongest_first",
)
BY_TEXT = ("strongest_key", "strongest_weight", "sink_weight")


@arguments.guard(threshold=arguments.scalar(arguments.positive))
def attention(
    weights: Any,
    *,
    mask: Any = None,
    segment_ids: Any = None,
    values: Any = None,
    causal: bool | None = None,
    normalised: bool = True,
    full_spectrum: bool = False,
    threshold: float = measures.SINK,
    axes: Sequence[str] | None = None,
) -> Diagnosis:
    r"""What attention weights do: evenness of rows, their scale, sinks, and the spectrum of each matrix.

    Measures of each head in each text, means over its rows, and then means over texts (see `measures.row_means`,
    `measures.importance` and `spectrum.spectrum_measures` for the formulas). A text is a sample without its padding,
    or, where several are packed into one row, each of them:

        sparsity                S = E|a|/√E a² over the keys that the query may see
        entropy                 H = −Σ p log p in nats; relative_entropy is H/log n_i
        participation           (Σ|a|)²/Σa², effective number of keys
        largest_weight          max p
        entropy_scale           α that independent Gaussian logits need to have this mean entropy
        scale_ratio             α/α*, with α* = `rc_jax.scale.optimal_scale_exact`(n_i), mean over rows
        self_weight             mean weight of a query on its own key; previous_weight is that on the key before
        sink_weight, sink_rate  mean weight on the first key; share of texts in which it exceeds `threshold`
        strongest_weight        mean weight on the key with most, of keys that are seen half as often as any
        strongest_key           which key that is in most texts, from the start of each; strongest_share is the share
                                of texts in which it is that one, strongest_first of those in which it is the first
        second_singular_value   σ₂/σ₁; stable_rank is Σσ²/σ₁²; numerical_rank needs `full_spectrum`
        sink_value_ratio        ‖v_0‖ over the mean of ‖v_k‖ of the later keys that are seen, where `values` are given
        sink_output_share       √(Σ_i ‖p_i0 v_0‖²/Σ_i ‖Σ_k p_ik v_k‖²), where `values` are given

    Rows are those that may see at least two keys, n_i of them. Only sinks count the others too, as Gu et al. do.
    Nothing is renormalised: rows that do not add up to one are refused. Half precision is read as it is, and computed
    in float32.

    Rows and keys take one pass over the weights each. The two singular values take 16 steps of two products with a
    vector, three quarters of the time, and are too small by up to 3 % where many lie close together. `full_spectrum`
    takes about n/20 times as long as everything else.

    Args:
        weights: A list with one array (…, heads, n, n) for each layer, or one array: (heads, n, n) is one layer, and
            the first axis of (layers, heads, n, n) counts layers. An axis before the heads of a layer is that of
            samples. Arrays of JAX, NumPy or PyTorch. (…, heads, queries, keys) may be rectangular: cross-attention, or
            a step of generation with keys from a cache, where the queries are the last tokens.
        mask: True where a query may see a key, or what is added to the logits, −10⁴ or less where it may not; its
            shape broadcasts to that of one layer. Or a list of masks, one for each layer. A query that may see nothing
            is left out, whatever its row holds, NaN included. As in `scores`, "causal" and "none" say it in a word.
            `None` finds it out: causality, windows, prefixes, blocks, padding and the ends of packed texts leave zeros
            in patterns that no softmax leaves, in all heads and samples, in some samples, or in some heads. Notes name
            what was read from them. Other zeros count as weights on keys that are seen.
        segment_ids: whole numbers (samples, n), which text each token belongs to: tokens see those of their own text
            alone. Texts are numbered from 1, and negative numbers are padding. What else is hidden is found out.
        values: v, as `weights` with axes (…, heads, n, features). Fewer heads are repeated, as in grouped queries.
        causal: Whether no query sees a later key; `None` finds out whether all weights above the diagonals are 0,
            those of padding apart. Rectangular weights are causal where their queries are the last of the tokens. A
            single query does not tell: say True, and its weight on its own key is a measure.
        normalised: Whether rows must add up to one. False is for others: those of gpt-oss or softmax plus one, whose
            sink is no key, those of sigmoids, and signed ones. `row_sum` is added, and where no row exceeds one also
            `no_key_weight`, the mean of 1 − Σp. Entropies are those of p/Σp. Rows of zeros count in these two and in
            weights on a key; what stands from sparsity to scale_ratio above is that of the others, and a note counts
            them. Of signed weights entropies and
            measures of single keys are left out; negative weights below the rounding of a row, eps·Σ|p| of their dtype
            (float32's at least), are not signs.
        full_spectrum: Whether all singular values are computed, and the numerical rank.
        threshold: ε of Gu et al. (2025), above which the weight on the first key makes it a sink.
        axes: names of the axes of each array where they are others, such as ("sample", "query", "key") for weights
            that are averaged over heads, or ("sample", "group", "head", "query", "key"). One array of five axes needs
            them, because its first axis may count layers or samples. "offset" in place of "key" is the distance of a
            key from its query, from −w to w in 2w + 1 columns.

    Returns:
        A `Diagnosis` with measures of shape (layer, head). Its `by_text` holds the strongest key, its weight and the
        weight on the first key for each text, (text, layer, head).

    Raises:
        TypeError: `weights`, `mask` or `values` are traced.
        ValueError: a row does not add up to one, or has weight where it may not see; a number is not finite; no row of
            a layer may see two keys; axes fit two readings, of which the weights contradict the one that is taken.

    Source: Su Jianlin, kexue.fm/archives/9889, for S; Gu et al. (2025), arXiv 2410.10781, section 3, for sinks.

    Example:
        >>> import numpy as np
        >>> from rc_jax import diagnostics
        >>> even = np.tril(np.ones((1, 2, 4, 4), np.float32))
        >>> diagnosis = diagnostics.attention(even / even.sum(-1, keepdims=True))
        >>> print(diagnosis.causal, diagnosis["participation"], diagnosis["sink_rate"])
        True [[3. 3.]] [[1. 1.]]
    """
    if axes is not None:
        weights = inputs.arranged("weights", weights, axes)
    else:
        _check_order(inputs.layers_of("weights", weights, ("heads", "tokens", "tokens"), stacked=4))
    return diagnose(
        weights,
        mask=mask,
        segment_ids=segment_ids,
        values=values,
        causal=causal,
        normalised=normalised,
        full_spectrum=full_spectrum,
        threshold=threshold,
    )[0]


def _check_order(layers: inputs.Layers) -> None:
    """Refuse axes that fit queries before heads as well, because the first of the last three counts keys."""
    heads, queries, keys = layers.shape[-3:]
    if heads == keys != queries > 1:
        raise ValueError(
            f"`weights` must have axes (…, heads, queries, keys), got {layers.shape}, which may be {heads} heads of "
            f"{queries} queries and {keys} keys, or {heads} queries of {queries} heads on {keys} keys: say which by "
            'axes=("head", "query", "key") or ("query", "head", "key"), with "sample" and "layer" in front where there '
            "are such axes"
        )


def diagnose(
    weights: Any,
    *,
    mask: Any = None,
    segment_ids: Any = None,
    values: Any = None,
    causal: bool | None = None,
    normalised: bool = True,
    full_spectrum: bool = False,
    threshold: float = measures.SINK,
    texts: np.ndarray | None = None,
    windows: Sequence[np.ndarray | None] | None = None,
    numbers: Sequence[int] | None = None,
    own: bool | None = None,
    rows: np.ndarray | None = None,
    notes: Sequence[str] = (),
) -> tuple[Diagnosis, Texts]:
    """`attention`, with what else is known of a model; and which texts the tokens belong to.

    Args:
        weights: as in `attention`.
        mask: as there; joined with `texts` and `windows`.
        segment_ids: as there.
        values: as there.
        causal: as there.
        normalised: as there.
        full_spectrum: as there.
        threshold: as there.
        texts: 0 where a token is no padding, −1 where it is, (sample, token); `None` where nobody has said.
        windows: as of `seen.read`.
        numbers: which layers of the model these are, counted from 0.
        own: whether each query has a key of its own; `None` takes it so where there are as many queries as keys.
        rows: True where a query counts, (sample, query); `None` where all do.
        notes: what is known to be worth saying.
    """
    layers = inputs.layers_of("weights", weights, ("heads", "tokens", "tokens"), stacked=4)
    inputs.four_axes(layers, ("query", "key"))
    heads, queries, n = layers.shape[-3:]
    square = queries == n if own is None else own
    if n < 2:
        raise ValueError(f"`weights` must have a last axis of at least two keys, got the shape {layers.shape}")
    numbers = tuple(range(len(layers))) if numbers is None else tuple(numbers)
    padded = texts is not None or segment_ids is not None
    windowed = windows is not None and mask is None
    found = read(
        layers,
        mask=mask,
        segment_ids=segment_ids,
        causal=causal,
        texts=texts,
        windows=windows,
        numbers=numbers,
        own=square,
        rows=rows,
    )
    # One pass over each layer; only numbers of rows and keys are kept.
    given = None if values is None else _values(values, layers)
    observed: list[Observed] = []
    rounding, empty = 0.0, 0
    for layer, (number, seen) in enumerate(zip(numbers, found.seen, strict=True)):
        passed = pass_over(layers[layer], seen, None if given is None else given[layer], full_spectrum)
        check(passed, seen, layers.dtype, number, normalised=normalised, padded=padded, windowed=windowed)
        rounding = max(rounding, float(np.abs(passed.rows.total[passed.rows.magnitude > 0] - 1).max(initial=0)))
        empty += int(np.sum(passed.rows.empty & (seen.keys >= 2)))
        observed.append(observe(passed, seen, threshold, normalised, square or found.causal, layers.dtype))
    kept = of_layers(observed)
    diagnosis = Diagnosis(
        kept,
        tokens=n,
        queries=None if square else queries,
        samples=max(each.texts for each in observed),
        layers=len(layers),
        heads=heads,
        numbers=numbers,
        causal=found.causal,
        threshold=float(threshold),
        by_text=_by_text(observed, found.seen[0].texts),
        notes=(*notes, *found.notes, *_notes(kept, layers, rounding, normalised, empty)),
    )
    return diagnosis, found.seen[0].texts


def _by_text(observed: "Sequence[Observed]", texts: Texts) -> dict[str, np.ndarray]:
    """Sinks of each text, (text, layer, head), and where it stands."""
    sample, number = np.nonzero(_there(texts))
    own = texts.keys[sample] == number[:, None]
    places = {"sample": sample, "start": own.argmax(1), "tokens": own.sum(1)}
    names = [name for name in BY_TEXT if all(name in each.by_text for each in observed)]
    return {**places, **{name: np.stack([each.by_text[name] for each in observed], 1) for name in names}}


def _there(texts: Texts) -> np.ndarray:
    """Which numbers of texts each sample has, (sample, text)."""
    return np.stack([(texts.keys == text).any(1) for text in range(texts.most)], 1)


class Passed(NamedTuple):
    """What one pass over a layer leaves: arrays of NumPy with axes (sample, head, …)."""

    rows: measures.Rows
    keys: Any  # (…, key): weight on each key, summed over queries
    near: Any  # two of (…, query): weight of each query on its own key, and on the one before
    outside: Any  # (…): largest magnitude where the mask is False
    measures: dict[str, Any]  # (…, text): of the matrix as a whole


def pass_over(weights: Array, seen: Seen, values: Array | None, full: bool) -> Passed:
    """All that is read off the weights of one layer, as arrays of NumPy.

    Each step is a program of its own: XLA joins sums over rows and over columns in a loop that takes six times as long.
    """
    *before, heads, _, n = weights.shape
    samples, texts = math.prod(before), seen.texts
    a, outside = weights, jnp.zeros((samples, heads))
    if seen.mask is not None:
        a, outside = masked(weights, seen.mask)
    rows = _rows(a)
    queries, keys, back, starts = (
        np.broadcast_to(each, (samples, *each.shape[1:]))
        for each in (texts.queries, texts.keys, texts.back, texts.starts)
    )
    observed = _spectrum(a, rows.squares, queries, keys, texts.most, full)
    if values is not None:
        some = np.broadcast_to(seen.queries > 0, (samples, heads, n))
        observed |= _value_measures(a, values, some, queries, keys, starts)
    passed = Passed(rows, _key_totals(a), _near(a, back), outside, observed)
    return jax.tree.map(np.asarray, passed)


def _by_samples(x: Array) -> Array:
    """(sample, head, token, …), of axes before the heads that are none or one."""
    return x.reshape(-1, *x.shape[-3:])


def _inside(numbers: Array, most: int, dtype: Any) -> Array:
    """1 where a token is one of a text: (sample, token) becomes (sample, head of length 1, text, token)."""
    return (numbers[:, None, None] == jnp.arange(most)[None, None, :, None]).astype(dtype)


@functools.partial(jax.jit, static_argnames=("most", "full"))
def _spectrum(a: Array, squares: Array, queries: Array, keys: Array, most: int, full: bool) -> dict[str, Array]:
    parts = _inside(queries, most, a.dtype), _inside(keys, most, a.dtype)
    return spectrum_measures(_by_samples(a), squares, parts, full)


@jax.jit
def _rows(a: Array) -> measures.Rows:
    return measures.rows_of(_by_samples(a))


@jax.jit
def _key_totals(a: Array) -> Array:
    a = _by_samples(a)
    return jnp.sum(a.reshape(-1, *a.shape[-2:]), axis=-2).reshape(*a.shape[:-2], -1)


@jax.jit
def _near(a: Array, back: Array) -> tuple[Array, Array]:
    """The weight of each query on its own key and on the one before; 0 where it lacks such a key."""
    a = _by_samples(a)
    queries, keys = a.shape[-2:]
    own = (jnp.arange(queries)[None] + back[:, None])[:, None, :, None]

    def on(key: Array) -> Array:
        index = jnp.broadcast_to(jnp.clip(key, 0, keys - 1), (*a.shape[:-1], 1))
        found = jnp.take_along_axis(a, index, axis=-1)
        return jnp.where((key >= 0) & (key < keys), found, 0)[..., 0]

    return on(own), on(own - 1)


@jax.jit
def masked(a: Array, inside: Array) -> tuple[Array, Array]:
    """The weights with rows that may see nothing blotted out, and the largest magnitude outside the mask in others."""
    a = _by_samples(a)
    a = jnp.where(jnp.any(inside, axis=-1, keepdims=True), a, 0)
    return a, jnp.max(jnp.abs(a) * (~inside).astype(a.dtype), axis=(-1, -2))


@jax.jit
def _value_measures(
    a: Array, values: Array, some: Array, queries: Array, keys: Array, starts: Array
) -> dict[str, Array]:
    """Size of each text's first value against the others, and of what it adds to the output against the output.

    Values of later keys that no query may see, such as those of padding, are left out, whatever they are.
    """
    a, values = _by_samples(a), _by_samples(values)
    samples, heads, _, n = a.shape
    texts = starts.shape[-1]
    of_rows, of_keys = (_inside(each, texts, a.dtype) for each in (queries, keys))
    lead = jnp.any(jnp.arange(n)[None, None] == starts[..., None], axis=1) & (keys >= 0)
    there = (some & (keys >= 0)[:, None]) | lead[:, None]
    values = jnp.where(there[..., None], jnp.repeat(values, heads // values.shape[1], axis=1), 0)
    size = jnp.linalg.norm(values, axis=-1)
    at_start = jnp.broadcast_to(starts[:, None], (samples, heads, texts))
    first = jnp.take_along_axis(size, at_start, axis=-1)

    def total(each: Array, inside: Array) -> Array:
        return jnp.sum(each[:, :, None] * inside, axis=-1)

    later = (there & ~lead[:, None]).astype(a.dtype)
    ratio = first * total(later, of_keys) / total(size * later, of_keys)
    output = jnp.sum(jnp.square(jnp.einsum("bhik,bhkf->bhif", a, values, precision="highest")), axis=-1)
    on_first = jnp.square(jnp.take_along_axis(a, at_start[:, :, None], axis=-1))
    share = first * jnp.sqrt(jnp.sum(jnp.swapaxes(on_first, -1, -2) * of_rows, axis=-1) / total(output, of_rows))
    finite = jnp.isfinite(jnp.sum(size, axis=-1, keepdims=True))  # a sum, as maxima pass over NaN
    return {"sink_value_ratio": jnp.where(finite, ratio, jnp.nan), "sink_output_share": share}


def _values(values: Any, layers: inputs.Layers) -> inputs.Layers:
    """Values that fit the weights."""
    arrays = inputs.layers_of("values", values, ("heads", "tokens", "features"), stacked=4)
    *samples, heads, _, n = layers.shape
    *own, groups, tokens, _ = arrays.shape
    if len(arrays) != len(layers) or own != samples or tokens != n or heads % groups:
        raise ValueError(
            f"`values` must have {len(layers)} layers of shape {(*samples, heads, n)} + (features,), or a divisor of "
            f"the heads, got {len(arrays)} of {arrays.shape}"
        )
    return arrays


def check(
    passed: Passed,
    seen: Seen,
    dtype: Any,
    layer: int,
    *,
    normalised: bool = True,
    padded: bool = False,
    windowed: bool = False,
) -> None:
    """Check that the weights of a layer are what they are said to be.

    Args:
        passed: what one pass over them left.
        seen: what their queries may see.
        dtype: in which they came.
        layer: its number.
        normalised: whether rows must add up to one.
        padded: whether somebody said which tokens are padding.
        windowed: whether windows of a config are what hides keys.
    """
    refuse = functools.partial(_refuse, layer=layer)
    rows: Any = passed.rows
    nothing = ": a query that sees nothing leaves NaN, which `mask` leaves out where all of its keys are False"
    logits = ": if these are logits, −∞ where they are masked, take their softmax over keys first"
    hint = nothing if np.isnan(rows.magnitude).any() else logits if np.isneginf(rows.total).any() else ""
    refuse(~np.isfinite(rows.magnitude), rows.total, "must be finite, got a row with the sum {}", hint)
    there = np.broadcast_to(_several(seen)[:, None], passed.measures["stable_rank"].shape)
    if not np.isfinite(passed.measures.get("sink_value_ratio", np.zeros_like(there))[there]).all():
        raise ValueError("`values` must be finite and not all 0 beyond the first key, got other numbers")
    lost = ~np.isfinite(rows.squares) | ((rows.magnitude > 0) & (rows.squares < np.finfo(rows.squares.dtype).tiny))
    refuse(lost, rows.magnitude, f"must have squares that fit {rows.squares.dtype}, got a row with Σ|a| = {{}}")
    hint = ": was the model called with the same `attention_mask`?" if padded else ""
    if windowed and not padded:
        hint = (
            ": a window of `config` hides it, unless the query is padding: pass `attention_mask`, or leave out `config`"
        )
    refuse(passed.outside > 0, passed.outside, "must be 0 where `mask` is False, got a magnitude of {}", hint)
    if not normalised:
        return
    limit = inputs.tolerance(dtype, passed.keys.shape[-1])
    seeing = seen.keys > 0
    far = seeing & (np.abs(rows.total - 1) > limit)
    negative = -2 * rows.negative < -limit
    above = seeing & (rows.total > 1 + limit)
    if negative.any():
        cause = "if these are logits, take their softmax over keys first; signed weights need normalised=False"
    elif far.any() and _columns_add_up(passed, limit):
        cause = "columns add up to 1, so the last two axes are swapped, or queries share keys out, as in slot attention"
    elif above.any():
        cause = (
            "rows above 1 come from dropout, so call model.eval() first, or from no softmax, so pass normalised=False"
        )
    else:
        cause = (
            "rows below 1 come from hidden queries, so pass `mask`, from dropout, so call model.eval() first, or from "
            "a sink that is no key, as in gpt-oss, so pass normalised=False"
        )
    hint = f" (tolerance {limit:.1g} for {dtype}): {cause}"
    refuse(above if above.any() else far, rows.total, "must have rows that add up to 1, got {}", hint)
    refuse(negative, -2 * rows.negative, "must not be negative unless normalised=False, got a sum of {}")


def _columns_add_up(passed: Passed, limit: float) -> bool:
    """Whether each key has a weight of 1 in all, as where queries and keys are swapped."""
    return bool((np.abs(passed.keys - 1) <= limit).all())


def _refuse(bad: Any, values: Any, text: str, hint: str = "", *, layer: int) -> None:
    """Raise an error that names the first bad place, counted from 0."""
    if not bad.any():
        return
    bad = np.broadcast_to(bad, values.shape)
    place = tuple(np.argwhere(bad)[0])
    where = ", ".join(f"{name} {index}" for name, index in zip(("sample", "head", "query"), place, strict=False))
    raise ValueError(f"`weights` {text.format(f'{values[place]:.6g}')} in layer {layer}, {where}{hint}")


class Observed(NamedTuple):
    """What is known of a layer: sums over texts, which add up."""

    texts: int
    measures: dict[str, np.ndarray]  # (head): of each text, summed where it is a number
    numbers: dict[str, np.ndarray]  # (head): in how many texts it is one
    strongest: np.ndarray  # (head, key): in how many texts a key, counted from the start, is the strongest
    by_text: dict[str, np.ndarray]  # (text, head)


def _several(seen: Seen) -> np.ndarray:
    """The texts with a query that sees two keys, (sample, text)."""
    rows: np.ndarray = np.any(seen.keys >= 2, axis=1)
    numbers = np.arange(seen.texts.most)
    return np.any(rows[:, None] & (seen.texts.queries[:, None] == numbers[:, None]), axis=-1)


def observe(
    passed: Passed,
    seen: Seen,
    threshold: float,
    normalised: bool = True,
    aligned: bool = True,
    dtype: Any = np.float32,
) -> Observed:
    """Means over the rows of each text, and the scales that they imply.

    Args:
        passed: what one pass over the weights left.
        seen: what their queries may see.
        threshold: above which the weight on the first key makes it a sink.
        normalised: whether rows must add up to one.
        aligned: whether queries have own keys.
        dtype: in which the weights came.
    """
    rows: Any = passed.rows
    texts = seen.texts
    signed = not normalised and bool(rows.signed(dtype).any())
    if not normalised:
        rows = measures.normalised(rows)
    samples = len(rows.total)
    numbers = [np.broadcast_to(each, (samples, *each.shape[1:])) for each in (texts.queries, texts.keys, texts.starts)]
    back = np.broadcast_to(texts.back, samples)
    summary = _summary(rows, passed.keys, passed.near, seen.keys, seen.queries, *numbers, back, threshold)
    observed: dict[str, np.ndarray] = {**jax.tree.map(np.asarray, summary), **passed.measures}
    observed |= implied(observed["entropy"], seen, rows.empty)
    strongest = [
        measures.strongest(passed.keys, np.broadcast_to(seen.queries, passed.keys.shape), (numbers[1] == text)[:, None])
        for text in range(texts.most)
    ]
    observed["strongest_weight"] = np.stack([each[1] for each in strongest], -1)
    if signed:
        observed = {name: value for name, value in observed.items() if name not in OF_DISTRIBUTIONS}
    if not aligned:
        observed = {name: value for name, value in observed.items() if name not in ("self_weight", "previous_weight")}
    if normalised:
        del observed["row_sum"]
    elif not signed and (rows.total <= 1 + 1e-2).all():
        observed["no_key_weight"] = 1 - observed["row_sum"]
    return collected(observed, seen, None if signed else np.stack([each[0] for each in strongest], -1))


def implied(entropy: np.ndarray, seen: Seen, empty: np.ndarray) -> dict[str, np.ndarray]:
    """The scales that mean entropies (sample, head, text) imply, which belong to the lengths of rows that have weight.

    Args:
        entropy: means over rows, in nats.
        seen: what queries may see.
        empty: which rows are zeros, (sample, head, query).
    """
    lost = empty & (seen.keys >= 2)
    counts = np.where(lost, 0, seen.keys) if lost.any() else seen.keys  # heads that see alike are computed once
    alpha, best = np.full(entropy.shape, np.nan), np.full(entropy.shape, np.nan)
    for place in np.ndindex(*counts.shape[:2]):
        same = tuple(slice(None) if counts.shape[axis] == 1 else index for axis, index in enumerate(place))
        for text in range(seen.texts.most):
            inside = seen.texts.queries[min(place[0], len(seen.texts.queries) - 1)] == text
            keys = counts[place][inside & (counts[place] >= 2)]
            if len(keys):
                at = (*same, slice(text, text + 1))
                alpha[at], best[at] = entropy_scale(entropy[at], keys), optimal_scale(keys)
    return {"entropy_scale": alpha, "scale_ratio": alpha / best}


def collected(observed: dict[str, np.ndarray], seen: Seen, strongest: np.ndarray | None = None) -> Observed:
    """Measures (sample, head, text) with the texts of all samples on one axis, and their sums.

    Args:
        observed: the measures.
        seen: what queries may see; texts in which no query sees two keys have no numbers.
        strongest: the strongest key of each text, where that is known.
    """
    texts = seen.texts
    samples, heads, most = observed["sparsity"].shape
    sample, number = np.nonzero(np.broadcast_to(_there(texts), (samples, most)))
    counted = np.broadcast_to(_several(seen), (samples, most))[sample, number]
    of_rows = observed.get("row_sum", observed["sparsity"])  # a number wherever a query sees two keys
    known_heads = counted[:, None] & np.isfinite(of_rows[sample, :, number])
    flat = {name: np.where(known_heads, each[sample, :, number], np.nan) for name, each in observed.items()}
    times = np.zeros((heads, texts.keys.shape[1]), int)
    if strongest is not None:
        starts = np.broadcast_to(texts.starts, (samples, most))[sample, number]
        key = strongest[sample, :, number] - starts[:, None]
        some = np.isfinite(flat["strongest_weight"])
        flat["strongest_key"] = np.where(some, key, np.nan)
        for text, head in np.argwhere(some):
            times[head, key[text, head]] += 1
    known = {name: ~np.isnan(each) for name, each in flat.items()}
    sums = {name: np.where(known[name], each, 0).sum(0) for name, each in flat.items()}
    by_text = {name: flat[name] for name in BY_TEXT if name in flat}
    return Observed(int(counted.sum()), sums, {name: each.sum(0) for name, each in known.items()}, times, by_text)


def of_layers(observed: Sequence[Observed]) -> dict[str, np.ndarray]:
    """Means over texts, (layer, head), of what all layers have; NaN where no text has a number."""
    names = [name for name in ORDER if all(name in each.measures for each in observed)]
    with np.errstate(invalid="ignore"):
        kept = {name: np.stack([each.measures[name] / each.numbers[name] for each in observed]) for name in names}
    if "strongest_key" in kept:  # the key that is so in most texts
        times = np.stack([each.strongest for each in observed])
        some = np.maximum(times.sum(-1), 1)
        there = times.sum(-1) > 0
        for name, value in (
            ("strongest_key", times.argmax(-1)),
            ("strongest_share", times.max(-1) / some),
            ("strongest_first", times[..., 0] / some),
        ):
            kept[name] = np.where(there, value, np.nan)
    return {name: kept[name] for name in ORDER if name in kept}


@jax.jit
def _summary(
    rows: measures.Rows,
    totals: Array,
    near: tuple[Array, Array],
    keys: Array,
    queries: Array,
    of_rows: Array,
    of_keys: Array,
    starts: Array,
    back: Array,
    threshold: ArrayLike,
) -> dict[str, Array]:
    """Means over the rows of each text of a layer, and its sinks, (sample, head, text)."""
    inside = of_rows[:, None, None] == jnp.arange(starts.shape[-1])[None, None, :, None]
    counted = jnp.broadcast_to(keys, rows.total.shape) >= 2
    # The first token of a text has no key before it.
    before = jnp.arange(of_rows.shape[-1])[None] + back[:, None] - 1
    other = jnp.take_along_axis(of_keys, jnp.clip(before, 0, of_keys.shape[-1] - 1), axis=-1)
    later = counted & ((before >= 0) & (other == of_rows))[:, None]
    at_start = jnp.broadcast_to(starts[:, None], (*totals.shape[:2], starts.shape[-1]))
    first = jnp.take_along_axis(measures.importance(totals, queries), at_start, axis=-1)
    return {
        **measures.row_means(rows, keys, inside),
        "self_weight": measures.mean_over(near[0], counted, inside),
        "previous_weight": measures.mean_over(near[1], later, inside),
        "sink_weight": first,
        "sink_rate": measures.exceeds(first, threshold),
    }


def _notes(
    kept: dict[str, np.ndarray], layers: inputs.Layers, rounding: float, normalised: bool, empty: int
) -> Iterator[str]:
    """How the numbers were read, what was done with them on their way, and what is left out."""
    if layers.stacked:
        yield inputs.STACKED.format(len(layers))
    computed = canonical_dtype(working_dtype(layers.dtype))
    if layers.dtype.itemsize < 4:
        yield f"Weights came in {layers.dtype} and are read as they are: rows add up to one within {rounding:.1g}."
    if layers.dtype.itemsize > computed.itemsize:
        yield f"Weights came in {layers.dtype} and are computed in {computed}, as JAX is set."
    if not normalised and "entropy" in kept:
        yield "Rows need not add up to one: their entropies are those of p/Σp."
    elif not normalised:
        yield f"Weights are signed: {', '.join(OF_DISTRIBUTIONS)} are left out."
    if empty:
        yield f"Rows of zeros that may see two keys or more: {empty}. S, H, keys, max p and α are those of the others."
