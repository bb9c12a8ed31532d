"""A look at a kind of weights before it is used: what a wrong function or a wrong claim would make of a layer."""

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rc_jax._numerics.jax_names import with_64_bits
from rc_jax.attention.kinds.record import Inputs, Kind, everything

_TOKENS = 6
_STEP = 2.0**-7  # of the difference quotients in float32
_DRAWS = 8  # of scores at which a derivative is compared with a difference
_ROUNDING = 2.0**-13
# Claims are looked at for scores of both deviations at all of these levels, where a small number that is added to a sum
# and a clip of the scores tell. The scores are such that a level is added without a rounding.
_DEVIATIONS, _LEVELS, _GRID = (1.0, 8.0), (0.0, 10.0, -10.0, 30.0, -30.0), 2.0**8
_SUM_ROUNDING = {np.dtype(np.float64): 2.0**-32, np.dtype(np.float32): 2.0**-18}
_SHIFT_ROUNDING = {np.dtype(np.float64): 2.0**-32, np.dtype(np.float32): _ROUNDING}


@functools.lru_cache(maxsize=256)
def check_kind(kind: Kind, spec: Any) -> None:
    """Raise one clear error unless the kind's function and its claims hold on random rows, and at scores of 0.

    Shapes, dtype, numbers at scores of 0, nothing where nothing is seen, a derivative that agrees with difference
    quotients, equal sums of rows, and that a constant in a row changes nothing, where the record says so.

    Raises:
        TypeError: the function cannot be traced by JAX, or gives something else than an array.
        ValueError: what it gives is not what a kind must give, or contradicts the record.
    """
    with jax.ensure_compile_time_eval():
        _check(kind, spec)


def _check(kind: Kind, spec: Any) -> None:
    rng = np.random.default_rng(0)
    unknown = [name for name in kind.options if not hasattr(spec, name)]
    if unknown:
        raise ValueError(f"`options` of kind {kind.name!r} must name fields of AttentionSpec, got {unknown}")
    options = {name: getattr(spec, name) for name in kind.options}
    parts = _parts(kind, spec, rng)
    shape = (spec.heads * kind.maps, _TOKENS, _TOKENS)
    everything = jnp.ones((1, *shape[1:]), bool)
    lower = jnp.tril(everything)

    def weights(scores: Array, seen: Array = everything) -> Array:
        return kind.weights(scores, seen, parts, **options)

    def normal() -> Array:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    _arguments(kind, parts, options)
    if kind.own_scores is not None:
        scores = _own_scores(kind, spec, parts, options, rng)
        _shape(kind, "own_scores", scores, shape)
    else:
        scores = normal()
    try:
        traced = jax.eval_shape(weights, scores)
    except KeyError as error:
        raise ValueError(f"`shapes` of kind {kind.name!r} must name the part {error}, which `weights` reads") from error
    except jax.errors.JAXTypeError as error:
        raise TypeError(f"`weights` of kind {kind.name!r} must be a function of JAX arrays: {error}") from error
    _shape(kind, "weights", traced, (spec.heads, *shape[1:]))
    rows, masked = weights(scores), weights(scores, lower)
    for name, value in (("random scores", rows), ("scores of 0", weights(jnp.zeros_like(scores)))):
        if not bool(jnp.all(jnp.isfinite(value))):
            raise ValueError(f"`weights` of kind {kind.name!r} must be finite at {name}, got {np.asarray(value[0, 0])}")
    outside = jnp.where(lower, 0, masked)
    if bool(jnp.any(outside != 0)):
        raise ValueError(
            f"`weights` of kind {kind.name!r} must be 0 where `seen` is False, got {_worst(outside, masked)[0]}"
        )
    if kind.reads == "scores":
        _derivative(kind, weights, scores)
    _claims(kind, rows, scores)
    if kind.sparse and kind.reads == "scores" and not bool(jnp.any(weights(8 * scores) == 0)):
        raise ValueError(f"`sparse` of kind {kind.name!r} must be False: no weight of random rows is exactly 0")
    if kind.row_sum != "any" or kind.shift_invariant:
        _sums_and_shifts(kind, *probed(kind, spec, parts, shape))


def _arguments(kind: Kind, parts: dict[str, Array], options: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(kind.weights)
    except ValueError:  # some compiled functions have none
        return
    try:
        signature.bind(None, None, parts, **options)
    except TypeError as error:
        raise TypeError(
            f"`weights` of kind {kind.name!r} must be a function of scores, what is seen and parts, got {signature}: "
            f"{error}"
        ) from None


def probed(kind: Kind, spec: Any, parts: dict[str, Array], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Scores (deviation, level, head, token, column) and their weights, in float64 where the function computes in it.

    A constant beside which the roundings of float32 hide, such as one added to a sum, is seen there.
    """
    normal = np.random.default_rng(2).normal(size=(len(_DEVIATIONS), 1, *shape))
    exact = np.round(_GRID * np.reshape(_DEVIATIONS, (-1, 1, 1, 1, 1)) * normal) / _GRID
    # The score matrices of a head have levels of their own.
    signs = np.repeat((-1.0) ** np.arange(kind.maps), shape[0] // kind.maps)
    scores = exact + np.reshape(_LEVELS, (1, -1, 1, 1, 1)) * np.reshape(signs, (-1, 1, 1))
    return scores, in_double(kind, spec, parts, scores.reshape(-1, *shape)).reshape(*scores.shape[:2], -1, *shape[1:])


def in_double(kind: Kind, spec: Any, parts: dict[str, Array], scores: np.ndarray) -> np.ndarray:
    """Weights of scores (matrix, head, token, column), in float64 if the function computes in it, else in float32."""
    options = {name: getattr(spec, name) for name in kind.options}
    for dtype in (np.float64, np.float32):
        with with_64_bits(dtype == np.float64), jax.debug_nans(False), jax.debug_infs(False):
            own = {name: jnp.asarray(np.asarray(part), dtype) for name, part in parts.items()}
            run = jax.jit(
                functools.partial(
                    jax.lax.map, lambda each, own=own: kind.weights(each, everything(each.shape), own, **options)
                )
            )
            try:
                weights = np.asarray(run(jnp.asarray(scores, dtype)))
            except Exception:  # whatever a function says that has float32 written into it
                if dtype == np.float32:
                    raise
                continue
        # Numbers that float32 holds were computed in it, whatever they became after.
        if weights.dtype == np.float64 and (weights != weights.astype(np.float32)).any():
            break
    return weights


def sums_to_one(weights: np.ndarray) -> bool:
    """Whether all rows of `probed` weights sum to 1."""
    return not _off(weights, 1.0).any()


def ignores_levels(weights: np.ndarray) -> bool:
    """Whether `probed` weights are the same at all levels."""
    return not _moved(weights).any()


def _off(weights: np.ndarray, sums: Any) -> np.ndarray:
    """Rows whose sums are others, (deviation, level, head, token); rows that are not finite say nothing."""
    rounding = _SUM_ROUNDING.get(weights.dtype, _of_half(weights.dtype))
    weights = weights.astype(float)
    return np.abs(weights.sum(-1) - sums) > rounding * np.maximum(1, np.abs(weights).sum(-1))


def _of_half(dtype: Any) -> float:
    return 8 * float(jnp.finfo(dtype).eps)


def _moved(weights: np.ndarray) -> np.ndarray:
    """Rows that a level changes, (deviation, level, head, token)."""
    rounding = _SHIFT_ROUNDING.get(weights.dtype, _of_half(weights.dtype))
    weights = weights.astype(float)
    return np.abs(weights - weights[:, :1]).max(-1) > rounding * np.maximum(1, np.abs(weights).sum(-1))


def _sums_and_shifts(kind: Kind, scores: np.ndarray, weights: np.ndarray) -> None:
    sums = weights.sum(-1)
    for said, wanted in (("one", 1.0), ("fixed", sums[:1, :1, :, :1])):
        if kind.row_sum == said and (off := _off(weights, wanted)).any():
            at = tuple(np.argwhere(off)[0])
            raise ValueError(
                f"`row_sum` of kind {kind.name!r} must be what rows sum to: {said!r} is said, and the scores "
                f"{scores[at]} have the sum {sums[at]:.12g}: say 'any', or divide rows by their sums"
            )
    if kind.shift_invariant and (moved := _moved(weights)).any():
        at = tuple(np.argwhere(moved)[0])
        raise ValueError(
            f"`shift_invariant` of kind {kind.name!r} must be False: a constant in a row changes its weights from "
            f"{weights[at[0], 0, *at[2:]]} to {weights[at]}"
        )


def _claims(kind: Kind, rows: Array, scores: Array) -> None:
    size = max(1.0, float(jnp.max(jnp.sum(jnp.abs(rows), axis=-1))))
    if kind.increasing and _falls(np.asarray(rows, float), scores, _ROUNDING * size):
        raise ValueError(
            f"`increasing` of kind {kind.name!r} must be False: scores {np.asarray(scores[0, 0])} have the weights "
            f"{np.asarray(rows[0, 0])}"
        )


def _worst(differences: Array, *arrays: Array) -> list[np.ndarray]:
    """The rows of these arrays in which the largest difference is."""
    head, row = np.unravel_index(int(jnp.argmax(jnp.max(jnp.abs(differences), axis=-1))), differences.shape[:-1])
    return [np.asarray(array[head, row]) for array in arrays]


def _falls(rows: np.ndarray, scores: Array, rounding: float) -> bool:
    ordered = np.take_along_axis(rows, np.argsort(scores, axis=-1), axis=-1)
    return bool(np.any(np.diff(ordered) < -rounding))


def _derivative(kind: Kind, weights: Any, scores: Array) -> None:
    rng = np.random.default_rng(1)
    agree = []
    for _ in range(_DRAWS):
        at, way = (jnp.asarray(rng.normal(size=scores.shape), scores.dtype) for _ in range(2))
        slope = jax.jvp(weights, (at,), (way,))[1]
        quotient = (weights(at + _STEP * way) - weights(at - _STEP * way)) / (2 * _STEP)
        # Rows with a kink or a jump nearby differ; most have none.
        near = 0.03 * float(jnp.max(jnp.abs(quotient))) + 1e-3
        agree.append(float(jnp.mean(jnp.max(jnp.abs(slope - quotient), axis=-1) <= near)))
        far = float(jnp.max(jnp.abs(weights(at + way) - weights(at))))
        flat = float(jnp.max(jnp.abs(slope))) < 1e-6 < far
        last = len(agree) == _DRAWS and np.mean(agree) < 0.75
        if not bool(jnp.all(jnp.isfinite(slope))) or flat or last:
            other = weights(at + way) - weights(at) if flat else quotient
            shown, changes = _worst(slope - other, slope, other)
            raise ValueError(
                f"`weights` of kind {kind.name!r} must have a derivative by the scores, which `jax.jvp` gives: got "
                f"{shown} where weights change by {changes}; rounded weights, of few bits or few levels, have none"
            )


def _parts(kind: Kind, spec: Any, rng: np.random.Generator) -> dict[str, Array]:
    """The kind's parameters: those that it starts with, and normal ones."""
    start = kind.start(spec, jnp.float32)
    named = kind.shapes(spec)
    if not set(start) <= set(named):
        unknown = sorted(set(start) - set(named))
        raise ValueError(f"`start` of kind {kind.name!r} must give parameters that `shapes` names, got {unknown}")
    parts = {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in named.items()} | start
    for name, shape in named.items():
        _shape(kind, f"start()[{name!r}]", parts[name], tuple(shape))
    return parts


def _own_scores(
    kind: Kind, spec: Any, parts: dict[str, Array], options: dict[str, Any], rng: np.random.Generator
) -> Array:
    assert kind.own_scores is not None
    width = (spec.heads * kind.maps, _TOKENS, spec.score_width)
    tokens, query, key = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((_TOKENS, spec.d_model), width, width)
    )
    return kind.own_scores(Inputs(tokens, query, key, spec.precision), parts, **options)


def _shape(kind: Kind, what: str, value: Any, shape: tuple[int, ...]) -> None:
    if not hasattr(value, "shape"):
        raise TypeError(f"`{what}` of kind {kind.name!r} must give an array, got {type(value).__name__}")
    if tuple(value.shape) != shape:
        raise ValueError(f"`{what}` of kind {kind.name!r} must give shape {shape}, got {tuple(value.shape)}")
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(f"`{what}` of kind {kind.name!r} must give floating-point numbers, got {value.dtype}")
