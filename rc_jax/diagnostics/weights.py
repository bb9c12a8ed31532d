"""Diagnosis of attention weights: one pass over each layer, then means over its rows."""

import functools
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
from rc_jax.diagnostics import inputs, measures, structure
from rc_jax.diagnostics.implied_scale import entropy_scale, optimal_scale
from rc_jax.diagnostics.record import Diagnosis
from rc_jax.diagnostics.spectrum import spectrum_measures
from rc_jax.diagnostics.visible import (
    Visible,
    joined,
    masks_of,
    reordered,
    reordered_mask,
    to_the_end,
    visible_to,
)

ORDER = (
    *("sparsity", "entropy", "relative_entropy", "participation", "largest_weight", "entropy_scale", "scale_ratio"),
    *("row_sum", "no_key_weight", "self_weight", "previous_weight", "sink_weight", "sink_rate"),
    *("strongest_key", "strongest_weight", "second_singular_value", "stable_rank", "numerical_rank"),
    *("sink_value_ratio", "sink_output_share"),
)
OF_DISTRIBUTIONS = (
    *("entropy", "relative_entropy", "largest_weight", "entropy_scale", "scale_ratio", "self_weight"),
    *("previous_weight", "sink_weight", "sink_rate", "strongest_key", "strongest_weight"),
)


@arguments.guard(threshold=arguments.scalar(arguments.positive))
def attention(
    weights: Any,
    *,
    mask: Any = None,
    values: Any = None,
    causal: bool | None = None,
    normalised: bool = True,
    full_spectrum: bool = False,
    threshold: float = measures.SINK,
) -> Diagnosis:
    r"""What attention weights do: evenness of rows, their scale, sinks, and the spectrum of each matrix.

    Measures of each head, means over rows and then over samples (see `measures.row_means`, `measures.sinks` and
    `spectrum.spectrum_measures` for the formulas):

        sparsity                S = E|a|/√E a² over the keys that the query may see
        entropy                 H = −Σ p log p in nats; relative_entropy is H/log n_i
        participation           (Σ|a|)²/Σa², effective number of keys
        largest_weight          max p
        entropy_scale           α that independent Gaussian logits need to have this mean entropy
        scale_ratio             α/α*, with α* = `rc_jax.scale.optimal_scale_exact`(n_i), mean over rows
        self_weight             mean weight of a query on its own key; previous_weight is that on the key before
        sink_weight, sink_rate  mean weight on the first key; share of samples in which it exceeds `threshold`
        strongest_key, strongest_weight  the key with most weight, of keys that are seen half as often as any
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
            the first axis of (layers, …, heads, n, n) counts layers. Axes before the heads are samples. Arrays of JAX,
            NumPy or PyTorch. (…, heads, queries, keys) may be rectangular: cross-attention, or a step of generation
            with keys from a cache, where the queries are the last tokens.
        mask: True where a query may see a key; its shape broadcasts to that of one layer. Or a list of masks, one for
            each layer. A query that may see nothing is left out, whatever its row holds. As in `scores`, "causal" and
            "none" say it in a word. `None` finds it out: causality, windows, blocks and padding at an end of a sample
            leave zeros in patterns that no softmax leaves. Notes name what was read from them. Other zeros count as
            weights on keys that are seen.
        values: v, as `weights` with axes (…, heads, n, features). Fewer heads are repeated, as in grouped queries.
        causal: Whether no query sees a later key; `None` finds out whether all weights above the diagonals are 0,
            those of padding apart. Rectangular weights are causal where their queries are the last of the tokens. A
            single query does not tell: say True, and its weight on its own key is a measure.
        normalised: Whether rows must add up to one. False is for others: those of gpt-oss or softmax plus one, whose
            sink is no key, those of sigmoids, and signed ones. `row_sum` is added, and where no row exceeds one also
            `no_key_weight`, the mean of 1 − Σp. Entropies are those of p/Σp. Of signed weights entropies and
            measures of single keys are left out.
        full_spectrum: Whether all singular values are computed, and the numerical rank.
        threshold: ε of Gu et al. (2025), above which the weight on the first key makes it a sink.

    Returns:
        A `Diagnosis` with measures of shape (layer, head).

    Raises:
        TypeError: `weights`, `mask` or `values` are traced.
        ValueError: a row does not add up to one, or has weight where it may not see; a number is not finite; no row may
            see two keys.

    Source: Su Jianlin, kexue.fm/archives/9889, for S; Gu et al. (2025), arXiv 2410.10781, section 3, for sinks.

    Example:
        >>> import numpy as np
        >>> from rc_jax import diagnostics
        >>> even = np.tril(np.ones((1, 2, 4, 4), np.float32))
        >>> diagnosis = diagnostics.attention(even / even.sum(-1, keepdims=True))
        >>> print(diagnosis.causal, diagnosis["participation"], diagnosis["sink_rate"])
        True [[3. 3.]] [[1. 1.]]
    """
    return diagnose(
        weights,
        mask=mask,
        values=values,
        causal=causal,
        normalised=normalised,
        full_spectrum=full_spectrum,
        threshold=threshold,
    )[0]


def diagnose(
    weights: Any,
    *,
    mask: Any = None,
    values: Any = None,
    causal: bool | None = None,
    normalised: bool = True,
    full_spectrum: bool = False,
    threshold: float = measures.SINK,
    real: np.ndarray | None = None,
    windows: Sequence[np.ndarray | None] | None = None,
    numbers: Sequence[int] | None = None,
    own: bool | None = None,
    notes: Sequence[str] = (),
) -> tuple[Diagnosis, np.ndarray | None]:
    """`attention`, with what else is known of a model; and which tokens are no padding, where some are.

    Args:
        weights: as in `attention`.
        mask: as there; joined with `real` and `windows`.
        values: as there.
        causal: as there.
        normalised: as there.
        full_spectrum: as there.
        threshold: as there.
        real: True where a token is no padding, (sample, token); `None` where nobody has said.
        windows: for each layer what its queries may see, (query, key), `None` where it is not known.
        numbers: which layers of the model these are, counted from 0.
        own: whether each query has a key of its own; `None` takes it so where there are as many queries as keys.
        notes: what is known to be worth saying.
    """
    layers = inputs.layers_of("weights", weights, ("heads", "tokens", "tokens"), stacked=4)
    queries, n = layers.shape[-2:]
    square = queries == n if own is None else own
    if n < 2:
        raise ValueError(f"`weights` must have a last axis of at least two keys, got the shape {layers.shape}")
    numbers = tuple(range(len(layers))) if numbers is None else tuple(numbers)
    word = isinstance(mask, str)
    if word:
        arguments.one_of(inputs.MASKS)("mask", mask)
        if causal not in (None, mask == "causal"):
            raise ValueError(f"`causal` must agree with mask={mask!r}, got {causal}")
        mask, causal = None, mask == "causal"
    # What queries may see: what is said of it, joined with what the zeros tell.
    masks, known = masks_of(mask, layers), [word or mask is not None] * len(layers)
    if windows is not None:
        known = [given or each is not None for given, each in zip(known, windows, strict=True)]
        masks = joined(masks, [None if each is None else each[None, None] for each in windows])
    supports = [structure.support_of(layers, layer, masks[layer]) for layer in range(len(layers))]
    if square and layers.stacked and mask is None and real is None and not word:
        structure.check_layers(supports, causal)
    padding = mask is None and not word
    if square:
        found = structure.find(supports, real=real, causal=causal, padding=padding, known=known, numbers=numbers)
    else:
        found = structure.rectangular(supports, causal=causal, padding=padding and real is None, known=known)
    masks = joined(masks, found.masks)
    order = None
    if found.real is not None:
        pairs = found.real[:, None, :, None] & found.real[:, None, None, :]
        masks, order = joined(masks, [pairs] * len(layers)), to_the_end(found.real)
    if order is not None:
        moved = {id(each): reordered_mask(each, order) for each in masks if each is not None}
        masks = [None if each is None else moved[id(each)] for each in masks]
    visible = visible_to(masks, (queries, n), found.causal)
    # One pass over each layer; only numbers of rows and keys are kept. Padding goes to the end on the way, so that the
    # first token is the first real one.
    given = None if values is None else _values(values, layers)
    observed: list[Observed] = []
    rounding = 0.0
    for layer, number in enumerate(numbers):
        a, v = layers[layer], None if given is None else given[layer]
        if order is not None:
            a = reordered(a, order)
            v = None if v is None else jnp.take_along_axis(v, order.reshape(*v.shape[:-3], 1, n, 1), axis=-2)
        passed = pass_over(a, masks[layer], v, full_spectrum)
        check(passed, masks[layer], layers.dtype, number, normalised=normalised, padded=real is not None)
        rounding = max(rounding, float(np.abs(passed.rows.total[passed.rows.magnitude > 0] - 1).max(initial=0)))
        observed.append(observe(passed, visible[layer], threshold, normalised, aligned=square or found.causal))
    kept = of_layers(observed)
    diagnosis = Diagnosis(
        kept,
        tokens=n,
        queries=None if square else queries,
        samples=observed[0].samples,
        layers=len(layers),
        heads=layers.shape[-3],
        numbers=numbers,
        causal=found.causal,
        threshold=float(threshold),
        notes=(*notes, *found.notes, *_notes(kept, layers, rounding, normalised)),
    )
    return diagnosis, found.real


class Passed(NamedTuple):
    """What one pass over a layer leaves: arrays of NumPy with axes (sample, head, …)."""

    rows: measures.Rows
    keys: Any  # (…, key): weight on each key, summed over queries
    near: Any  # two of (…, query): weight of each query on its own key, and on the one before
    outside: Any  # (…): largest magnitude where the mask is False
    measures: dict[str, Any]  # (…): of the matrix as a whole


def pass_over(weights: Array, inside: Any, values: Array | None, full: bool) -> Passed:
    """All that is read off the weights of one layer, as arrays of NumPy.

    Each step is a program of its own: XLA joins sums over rows and over columns in a loop that takes six times as long.
    """
    *samples, heads, _, _ = weights.shape
    a, outside = weights, jnp.zeros(weights.shape[:-2])
    if inside is not None:
        a, outside = _masked(weights, inside)
    rows = _rows(a)
    observed = _spectrum(a, rows.squares, full)
    if values is not None:
        observed |= _value_measures(a, values, inside)
    passed = Passed(rows, _key_totals(a), _near(a), outside, observed)
    # Axes of samples become one here, where nothing large is left: a reshaped array is a copy.
    skipped = len(samples) + 1
    return jax.tree.map(lambda each: np.asarray(each).reshape(-1, heads, *each.shape[skipped:]), passed)


_rows = jax.jit(measures.rows_of)
_spectrum = jax.jit(spectrum_measures, static_argnames="full")


@jax.jit
def _key_totals(a: Array) -> Array:
    return jnp.sum(a.reshape(-1, *a.shape[-2:]), axis=-2).reshape(*a.shape[:-2], -1)


@jax.jit
def _near(a: Array) -> tuple[Array, Array]:
    """The diagonal, and the one below it; 0 for queries that lack such a key. The queries are the last tokens."""
    queries, keys = a.shape[-2:]
    back = max(keys - queries, 0)
    own, before = (jnp.diagonal(a, offset, -2, -1) for offset in (back, back - 1))
    first = [(0, 0)] * (a.ndim - 2)
    padded = [jnp.pad(each, [*first, (queries - each.shape[-1], 0)]) for each in (own, before)]
    return padded[0], padded[1]


@jax.jit
def _masked(a: Array, inside: Array) -> tuple[Array, Array]:
    """The weights with rows that may see nothing blotted out, and the largest magnitude outside the mask in others."""
    shape, a = a.shape, a.reshape(-1, *a.shape[-3:])
    a = jnp.where(jnp.any(inside, axis=-1, keepdims=True), a, 0)
    return a.reshape(shape), jnp.max(jnp.abs(a) * (~inside).astype(a.dtype), axis=(-1, -2)).reshape(shape[:-2])


@jax.jit
def _value_measures(a: Array, values: Array, inside: Array | None) -> dict[str, Array]:
    """Size of the first value against the others, and of what it adds to the output against the output.

    Values of later keys that no query may see, such as those of padding, are left out, whatever they are.
    """
    *_, heads, queries, n = a.shape
    values = jnp.repeat(values, heads // values.shape[-3], axis=-3)
    there = jnp.ones((1, 1, n), bool) if inside is None else jnp.any(inside, axis=-2) | (jnp.arange(n) == 0)[None, None]
    there = jnp.broadcast_to(there, (a.size // (heads * queries * n), heads, n)).reshape(values.shape[:-1])
    values = jnp.where(there[..., None], values, 0)
    size, others = jnp.linalg.norm(values, axis=-1), jnp.sum(there[..., 1:], axis=-1).astype(values.dtype)
    output = jnp.einsum("...ik,...kf->...if", a, values, precision="highest")
    first = jnp.linalg.norm(a[..., 0], axis=-1) * size[..., 0]
    return {
        "sink_value_ratio": size[..., 0] * others / jnp.sum(size[..., 1:], axis=-1),
        "sink_output_share": first / jnp.linalg.norm(output, axis=(-1, -2)),
    }


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
    inside: np.ndarray | None,
    dtype: Any,
    layer: int,
    *,
    normalised: bool = True,
    padded: bool = False,
) -> None:
    """Check that the weights of a layer are what they are said to be.

    Args:
        passed: what one pass over them left.
        inside: their mask.
        dtype: in which they came.
        layer: its number.
        normalised: whether rows must add up to one.
        padded: whether somebody said which tokens are padding.
    """
    refuse = functools.partial(_refuse, layer=layer)
    rows: Any = passed.rows
    refuse(~np.isfinite(rows.magnitude), rows.total, "must be finite, got a row with the sum {}")
    if "sink_value_ratio" in passed.measures and not np.isfinite(passed.measures["sink_value_ratio"]).all():
        raise ValueError("`values` must be finite and not all 0 beyond the first key, got other numbers")
    lost = ~np.isfinite(rows.squares) | ((rows.magnitude > 0) & (rows.squares < np.finfo(rows.squares.dtype).tiny))
    refuse(lost, rows.magnitude, f"must have squares that fit {rows.squares.dtype}, got a row with Σ|a| = {{}}")
    hint = ": was the model called with the same `attention_mask`?" if padded else ""
    refuse(passed.outside > 0, passed.outside, "must be 0 where `mask` is False, got a magnitude of {}", hint)
    if not normalised:
        return
    limit = inputs.tolerance(dtype, passed.keys.shape[-1])
    seeing = np.ones((1, 1, 1), bool) if inside is None else inside.any(-1)
    far = seeing & (np.abs(rows.total - 1) > limit)
    negative = rows.total - rows.magnitude < -limit
    above = seeing & (rows.total > 1 + limit)
    if negative.any():
        cause = "if these are logits, take their softmax over keys first; signed weights need normalised=False"
    elif far.any() and _columns_add_up(passed, limit):
        cause = "columns add up to 1, so the last two axes are swapped"
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
    refuse(negative, rows.total - rows.magnitude, "must not be negative unless normalised=False, got a sum of {}")


def _columns_add_up(passed: Passed, limit: float) -> bool:
    """Whether each key has a weight of 1 in all, as where queries and keys are swapped."""
    queries, keys = passed.rows.total.shape[-1], passed.keys.shape[-1]
    return queries == keys and bool((np.abs(passed.keys - 1) <= limit).all())


def _refuse(bad: Any, values: Any, text: str, hint: str = "", *, layer: int) -> None:
    """Raise an error that names the first bad place, counted from 0."""
    if not bad.any():
        return
    bad = np.broadcast_to(bad, values.shape)
    place = tuple(np.argwhere(bad)[0])
    where = ", ".join(f"{name} {index}" for name, index in zip(("sample", "head", "query"), place, strict=False))
    raise ValueError(f"`weights` {text.format(f'{values[place]:.6g}')} in layer {layer}, {where}{hint}")


class Observed(NamedTuple):
    """What is known of a layer: sums over samples."""

    samples: int
    measures: dict[str, np.ndarray]  # (head): of each sample, summed
    totals: np.ndarray  # (head, key): weight on each key, summed over queries too
    queries: np.ndarray  # (head, key): how many queries may see it


def observe(
    passed: Passed, visible: Visible, threshold: float, normalised: bool = True, aligned: bool = True
) -> Observed:
    """Means over rows, and the scales that they imply; `aligned` says that queries have keys of their own."""
    rows: Any = passed.rows
    signed = not normalised and bool((rows.total < rows.magnitude).any())
    if not normalised:
        rows = measures.normalised(rows, visible.keys)
    summary = _summary(rows, passed.keys, passed.near, visible, threshold)
    observed: dict[str, np.ndarray] = {**jax.tree.map(np.asarray, summary), **passed.measures}
    # The implied scale belongs to the lengths of the rows.
    alpha, best = np.empty(observed["entropy"].shape), np.empty(observed["entropy"].shape)
    for place in np.ndindex(*visible.keys.shape[:2]):
        keys = visible.keys[place][visible.keys[place] >= 2]
        same = tuple(slice(None) if visible.keys.shape[axis] == 1 else index for axis, index in enumerate(place))
        alpha[same], best[same] = entropy_scale(observed["entropy"][same], keys), optimal_scale(keys)
    observed |= {"entropy_scale": alpha, "scale_ratio": alpha / best}
    if signed:
        observed = {name: value for name, value in observed.items() if name not in OF_DISTRIBUTIONS}
    if not aligned:
        observed = {name: value for name, value in observed.items() if name not in ("self_weight", "previous_weight")}
    if normalised:
        del observed["row_sum"]
    elif not signed and (rows.total <= 1 + 1e-2).all():
        observed["no_key_weight"] = 1 - observed["row_sum"]
    queries = np.broadcast_to(visible.queries, passed.keys.shape)
    sums = {name: value.sum(0) for name, value in observed.items()}
    return Observed(len(passed.keys), sums, passed.keys.sum(0), queries.sum(0))


def of_layers(observed: Sequence[Observed]) -> dict[str, np.ndarray]:
    """Means over samples, (layer, head), of what all layers have; the strongest key is that of all samples together."""
    names = [name for name in ORDER if all(name in each.measures for each in observed)]
    kept = {name: np.stack([each.measures[name] / each.samples for each in observed]) for name in names}
    if "sink_weight" in kept:
        strongest = [measures.strongest(each.totals, each.queries) for each in observed]
        for index, name in enumerate(("strongest_key", "strongest_weight")):
            kept[name] = np.stack([each[index] for each in strongest])
    return {name: kept[name] for name in ORDER if name in kept}


@jax.jit
def _summary(
    rows: measures.Rows, totals: Array, near: tuple[Array, Array], visible: Visible, threshold: ArrayLike
) -> dict[str, Array]:
    """Means over the rows of a layer for each sample, and its sinks."""
    counted = jnp.broadcast_to(visible.keys, rows.total.shape) >= 2
    # Of queries that are all tokens the first one has no key before it.
    queries, keys = rows.total.shape[-1], totals.shape[-1]
    later = counted & (jnp.arange(queries) >= queries - keys + 1)[None, None]
    first = measures.importance(totals, jnp.asarray(visible.queries))[..., 0]
    return {
        **measures.row_means(rows, jnp.asarray(visible.keys)),
        "self_weight": measures.mean_over(near[0], counted),
        "previous_weight": measures.mean_over(near[1], later),
        "sink_weight": first,
        "sink_rate": measures.exceeds(first, threshold),
    }


def _notes(kept: dict[str, np.ndarray], layers: inputs.Layers, rounding: float, normalised: bool) -> Iterator[str]:
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
