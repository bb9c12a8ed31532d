"""Diagnosis of attention weights: one pass over each layer, then means over its rows."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from rc_jax._numerics import arguments
from rc_jax.diagnostics import inputs, measures
from rc_jax.diagnostics.diagnosis import Diagnosis
from rc_jax.diagnostics.implied_scale import entropy_scale, optimal_scale
from rc_jax.diagnostics.spectrum import spectrum_measures
from rc_jax.diagnostics.visible import Visible, masks_of, visible_to

NORMALISED_ONLY = ("entropy", "relative_entropy", "entropy_scale", "scale_ratio", "largest_weight")
ORDER = (
    *("sparsity", "entropy", "relative_entropy", "participation", "largest_weight", "entropy_scale", "scale_ratio"),
    *("row_sum", "self_weight", "previous_weight", "sink_weight", "sink_rate", "strongest_key", "strongest_weight"),
    *("second_singular_value", "stable_rank", "numerical_rank", "sink_value_ratio", "sink_output_share"),
)
SINKS = ("self_weight", "previous_weight", "sink_weight", "sink_rate", "strongest_key", "strongest_weight")


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
            NumPy or PyTorch.
        mask: True where a query may see a key; its shape broadcasts to that of one layer. Or a list of masks, one for
            each layer. A query that may see nothing is left out, whatever its row holds. `None`: all keys, or with
            `causal` those up to the query's own. As in `scores`, "causal" and "none" say it in a word.
        values: v, as `weights` with axes (…, heads, n, features). Fewer heads are repeated, as in grouped queries.
        causal: Whether no query sees a later key; `None` finds out whether all weights above the diagonals are 0.
        normalised: Whether rows must add up to one. False is for signed or other weights: then measures that need a
            distribution are left out, and `row_sum` is added.
        full_spectrum: Whether all singular values are computed, and the numerical rank.
        threshold: ε of Gu et al. (2025), above which the weight on the first key makes it a sink.

    Returns:
        A `Diagnosis` with measures of shape (layer, head).

    Raises:
        TypeError: `weights`, `mask` or `values` are no such arrays, or are traced.
        ValueError: shapes, dtypes or devices do not fit; a number is not finite; a row does not add up to one, or has
            weight where it may not see; no row may see two keys.

    Source: Su Jianlin, kexue.fm/archives/9889, for S; Gu et al. (2025), arXiv 2410.10781, section 3, for sinks.

    Example:
        >>> import numpy as np
        >>> from rc_jax import diagnostics
        >>> even = np.tril(np.ones((1, 2, 4, 4), np.float32))
        >>> diagnosis = diagnostics.attention(even / even.sum(-1, keepdims=True))
        >>> print(diagnosis.causal, diagnosis["participation"], diagnosis["sink_rate"])
        True [[3. 3.]] [[1. 1.]]
    """
    layers = inputs.layers_of("weights", weights, ("heads", "tokens", "tokens"), stacked=4)
    n = layers.shape[-1]
    if layers.shape[-2] != n or n < 2:
        raise ValueError(f"`weights` must have two last axes of one length n >= 2, got the shape {layers.shape}")
    if isinstance(mask, str):
        arguments.one_of(inputs.MASKS)("mask", mask)
        if causal not in (None, mask == "causal"):
            raise ValueError(f"`causal` must agree with mask={mask!r}, got {causal}")
        mask, causal = None, mask == "causal"
    masks = masks_of(mask, layers, causal)
    given = [None] * len(layers) if values is None else _values(values, layers)
    # One pass over each layer; only numbers of rows and keys are kept.
    kept = [
        _pass(layers[layer], masks[layer % len(masks)], given[layer], full_spectrum) for layer in range(len(layers))
    ]
    passed: Passed = jax.tree.map(lambda *parts: np.stack(parts), *kept)
    causal = _checked(passed, masks, layers, causal, normalised)
    return _diagnosis(passed, visible_to(masks, n, causal), layers, causal, normalised, threshold)


class Passed(NamedTuple):
    """What one pass over a layer leaves: axes (sample, head, …), and (layer, …) before them once layers are stacked.

    Arrays of JAX while they are computed, of NumPy after that.
    """

    rows: measures.Rows
    keys: Any  # (…, key): weight on each key, summed over queries
    near: Any  # two of (…, query): weight of each query on its own key, and on the one before
    above: Any  # (…): largest magnitude above the diagonal
    outside: Any  # (…): largest magnitude where the mask is False
    measures: dict[str, Any]  # (…): of the matrix as a whole


def _pass(weights: Array, inside: Any, values: Array | None, full: bool) -> Passed:
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
    passed = Passed(rows, _key_totals(a), _near(a), _above(a), outside, observed)
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
    """The diagonal, and the one below it, which the first query lacks."""
    own, before = (jnp.diagonal(a, offset, -2, -1) for offset in (0, -1))
    return own, jnp.concatenate([jnp.zeros_like(before[..., :1]), before], axis=-1)


@jax.jit
def _above(a: Array) -> Array:
    """Largest magnitude above the diagonal. A product with 0 and 1 is five times as fast as a choice on CPUs."""
    later = np.triu(np.ones((1, *a.shape[-2:]), bool), 1)
    flat = jnp.abs(a).reshape(-1, *a.shape[-2:])
    return jnp.max(flat * jnp.asarray(later, a.dtype), axis=(-1, -2)).reshape(a.shape[:-2])


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
    *_, heads, n, _ = a.shape
    values = jnp.repeat(values, heads // values.shape[-3], axis=-3)
    there = jnp.ones((1, 1, n), bool) if inside is None else jnp.any(inside, axis=-2) | (jnp.arange(n) == 0)[None, None]
    there = jnp.broadcast_to(there, (a.size // (heads * n * n), heads, n)).reshape(values.shape[:-1])
    values = jnp.where(there[..., None], values, 0)
    size, others = jnp.linalg.norm(values, axis=-1), jnp.sum(there[..., 1:], axis=-1).astype(values.dtype)
    output = jnp.einsum("...ik,...kf->...if", a, values, precision="highest")
    first = jnp.linalg.norm(a[..., 0], axis=-1) * size[..., 0]
    return {
        "sink_value_ratio": size[..., 0] * others / jnp.sum(size[..., 1:], axis=-1),
        "sink_output_share": first / jnp.linalg.norm(output, axis=(-1, -2)),
    }


def _values(values: Any, layers: inputs.Layers) -> inputs.Layers:
    """Values that fit the weights.

    Raises:
        ValueError: they do not.
    """
    arrays = inputs.layers_of("values", values, ("heads", "tokens", "features"), stacked=4)
    *samples, heads, n, _ = layers.shape
    *own, groups, tokens, _ = arrays.shape
    if len(arrays) != len(layers) or own != samples or tokens != n or heads % groups:
        raise ValueError(
            f"`values` must have {len(layers)} layers of shape {(*samples, heads, n)} + (features,), or a divisor of "
            f"the heads, got {len(arrays)} of {arrays.shape}"
        )
    return arrays


def _checked(
    passed: Passed, masks: list[np.ndarray | None], layers: inputs.Layers, causal: bool | None, normalised: bool
) -> bool:
    """Whether the weights are causal, once they are known to be what they are said to be.

    Raises:
        ValueError: a number is not finite, lies outside the mask, or belongs to a row that does not add up to one.
    """
    # What is wrong is named with the first place where it is.
    rows: Any = passed.rows
    _refuse(~np.isfinite(rows.magnitude), rows.total, "must be finite, got a row with the sum {}")
    if "sink_value_ratio" in passed.measures and not np.isfinite(passed.measures["sink_value_ratio"]).all():
        raise ValueError("`values` must be finite and not all 0 beyond the first key, got other numbers")
    lost = ~np.isfinite(rows.squares) | ((rows.magnitude > 0) & (rows.squares < np.finfo(rows.squares.dtype).tiny))
    _refuse(lost, rows.magnitude, f"must have squares that fit {rows.squares.dtype}, got a row with Σ|a| = {{}}")
    _refuse(passed.outside > 0, passed.outside, "must be 0 where `mask` is False, got a magnitude of {}")
    if causal:
        _refuse(passed.above > 0, passed.above, "must be 0 above the diagonal if `causal`, got a magnitude of {}")
    if normalised:
        limit = inputs.tolerance(layers.dtype, layers.shape[-1])
        seeing = np.stack([np.ones((1, 1, 1), bool) if each is None else each.any(-1) for each in masks])
        hint = f" (tolerance {limit:.1g} for {layers.dtype}); other rows need `mask` or normalised=False"
        _refuse(seeing & (np.abs(rows.total - 1) > limit), rows.total, "must have rows that add up to 1, got {}" + hint)
        negative = rows.total - rows.magnitude < -limit
        _refuse(negative, rows.total - rows.magnitude, "must not be negative unless normalised=False, got a sum of {}")
    return not passed.above.any() if causal is None else bool(causal)


def _refuse(bad: Any, values: Any, text: str) -> None:
    """Raise an error that names the first bad place: layers from 1, everything else from 0, as they are printed."""
    if not bad.any():
        return
    bad = np.broadcast_to(bad, values.shape)
    place = np.argwhere(bad)[0]
    names = ("layer", "sample", "head", "query")[: len(place)]
    where = ", ".join(f"{name} {index + (name == 'layer')}" for name, index in zip(names, place, strict=True))
    raise ValueError(f"`weights` {text.format(f'{values[tuple(place)]:.6g}')} in {where}")


def _diagnosis(
    passed: Passed, visible: Visible, layers: inputs.Layers, causal: bool, normalised: bool, threshold: float
) -> Diagnosis:
    """Means over rows and samples, with the scales that they imply."""
    # Means over rows, then over samples; the strongest key is that of all samples together.
    parts: list[Any] = []
    for layer in range(len(layers)):
        own: Any = jax.tree.map(
            lambda each, at=layer: each[at % len(each)], (passed.rows, passed.keys, passed.near, visible)
        )
        rows, keys, near, seen = own
        parts.append(jax.tree.map(np.asarray, _summary(rows, keys, near, seen, threshold)))
    means, sinks = jax.tree.map(lambda *layered: np.stack(layered), *parts)
    observed: dict[str, np.ndarray] = {
        name: value.mean(1) for name, value in {**means, **sinks, **passed.measures}.items()
    }
    # The implied scale belongs to the lengths of the rows.
    alpha, best = np.empty(means["entropy"].shape), np.empty(means["entropy"].shape)
    for place in np.ndindex(*visible.keys.shape[:3]):
        keys = visible.keys[place][visible.keys[place] >= 2]
        same = tuple(slice(None) if visible.keys.shape[axis] == 1 else index for axis, index in enumerate(place))
        alpha[same], best[same] = entropy_scale(means["entropy"][same], keys), optimal_scale(keys)
    observed |= {"entropy_scale": alpha.mean(1), "scale_ratio": (alpha / best).mean(1)}
    left = ("row_sum",) if normalised else (*NORMALISED_ONLY, *SINKS)
    names = [name for name in ORDER if name in observed and name not in left]
    return Diagnosis(
        {name: observed[name] for name in names},
        tokens=layers.shape[-1],
        samples=passed.keys.shape[1],
        layers=len(layers),
        heads=layers.shape[-3],
        causal=causal,
        threshold=float(threshold),
        notes=tuple(_notes(passed, layers, normalised)),
    )


@jax.jit
def _summary(
    rows: measures.Rows, totals: Array, near: tuple[Array, Array], visible: Visible, threshold: ArrayLike
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Means over the rows of a layer for each sample, and its sinks; the strongest key is that of all samples."""
    means = measures.row_means(rows, visible.keys)
    counted = jnp.broadcast_to(visible.keys, totals.shape) >= 2
    later = counted & (jnp.arange(totals.shape[-1]) > 0)[None, None]  # the first query has no key before it
    means |= {
        "self_weight": measures.mean_over(near[0], counted),
        "previous_weight": measures.mean_over(near[1], later),
    }
    sinks = measures.sinks(measures.importance(totals, visible.queries), jnp.asarray(True), threshold)
    # All samples together. A key that few queries see, as the last ones of a causal head, is no candidate.
    queries = jnp.broadcast_to(visible.queries, totals.shape).sum(0, keepdims=True)
    candidates = 2 * queries >= jnp.max(queries, axis=-1, keepdims=True)
    strongest = measures.sinks(measures.importance(totals.sum(0, keepdims=True), queries), candidates, threshold)
    common = ("strongest_key", "strongest_weight")
    return means, {**sinks, **{name: jnp.broadcast_to(strongest[name], totals.shape[:2]) for name in common}}


def _notes(passed: Passed, layers: inputs.Layers, normalised: bool) -> Iterator[str]:
    """What was done with the numbers on their way, and what is left out."""
    worst = float(np.abs(passed.rows.total[passed.rows.magnitude > 0] - 1).max(initial=0))
    if layers.dtype.itemsize < 4:
        yield f"Weights came in {layers.dtype} and are read as they are: rows add up to one within {worst:.1g}."
    if layers.dtype.itemsize > passed.rows.total.dtype.itemsize:
        yield f"Weights came in {layers.dtype} and are computed in {passed.rows.total.dtype}, as JAX is set."
    if not normalised:
        yield f"Rows need not add up to one: {', '.join((*NORMALISED_ONLY, *SINKS))} are left out."
