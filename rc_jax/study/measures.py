"""What is measured of a kind of weights."""

import dataclasses
import functools
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from tqdm import tqdm

from rc_jax import attention
from rc_jax._numerics import arguments
from rc_jax._numerics.text import perhaps
from rc_jax.attention import KINDS, AttentionSpec, Kind
from rc_jax.attention.kinds.check import ignores_levels, in_double, probed, sums_to_one
from rc_jax.collapse.kinds import D_MODEL, HEADS, compile_falls, kind_fall, predicted_order, why_unknown
from rc_jax.scale.kinds import kind_best_scale
from rc_jax.sparsity.kinds import kind_largest_weight, kind_sparsity, rows_are_independent
from rc_jax.study.report import Measure, Study

SPREADS = (0.5, 1.0, 2.0, 4.0)  # deviations of the logits
KEYS = (16, 64, 256)
COUNTS = (64, 4096)
_COST = (4, 512, 512)
_ROUNDS = 7


@arguments.guard(seed=arguments.integer(0))
def kind(kind: Kind | str | Callable[..., Array], *, seed: int = 0, progress: bool = False) -> Study:
    """Ask the three questions of a kind of attention weights, beside softmax, in about half a minute on two cores.

    Sparsity: S of rows of 1024 normal logits against their deviation, and the largest weight's share against the number
    of keys. Scale: the factor on normal scores that maximises the typical gradient, for 16, 64 and 256 keys. Collapse:
    the order of one layer, and the fall of log ‖res‖ over eight layers with and without skip connections, in
    cancellation-free arithmetic. Rows: what they sum to, and what is left of the sum where every score is −10. Cost:
    time beside softmax. Every number has its standard error, or is exact; where one is not known, or there is no best
    scale, a reason stands in its place. An error of a median is that of 200 resamplings of its networks.

    Args:
        kind: a name of `attention.KINDS`, a `Kind`, or a function of scores, what is seen and parts; for a function,
            random rows tell whether rows sum to 1 and whether a constant in a row changes nothing.
        seed: of everything that is drawn.
        progress: show on stderr, where that is a terminal, what is being measured.

    Returns:
        The study: measures with their standard errors and methods, medians of log ‖res‖ by layer, and notes.

    Raises:
        ValueError: a name that is not known, a kind that does not read scores, or a function that gives no weights
            (see `attention.Kind`).

    Example:
        >>> from rc_jax import study
        >>> found = study.kind("softpick")  # doctest: +SKIP
        >>> round(found["order of a layer"].value, 1)  # doctest: +SKIP
        3.0
    """
    own = _with_options(as_kind(kind))
    if own.reads != "scores":
        raise ValueError(f"`kind` must read scores of queries and keys, got {own.name!r}, which reads {own.reads}")
    base = KINDS["softmax"]
    heading = own.name if KINDS.get(own.name, own) == own else f"own {own.name}"  # softmax's column stands beside it
    key = jax.random.key(seed)
    measures: list[Measure] = []
    parts = {each: _parts(each, key) for each in (own, base)}
    _check_rectangle(own, parts[own])
    alone = rows_are_independent(own, parts[own])
    steps = len(SPREADS) + len(COUNTS) + len(KEYS) * alone + 7  # as often as `begin` is called
    with tqdm(total=steps, disable=not (progress and sys.stderr.isatty()), leave=False, dynamic_ncols=True) as bar:

        def begin(name: str) -> None:
            bar.update()
            bar.set_description(name)

        def both(question: str, name: str, method: str, measure: Callable[[Kind], tuple[Any, ...]]) -> None:
            begin(name)
            value, error, *reason = measure(own)
            softmax, softmax_error, *_ = measure(base)
            measures.append(Measure(question, name, value, softmax, error, softmax_error, method, *reason))

        for spread in SPREADS:
            both(
                "sparsity", f"S at deviation {spread:g}", f"{64 if alone else 1024} rows of 1024 logits",
                lambda each, spread=spread: kind_sparsity(key, each, spread, 1024, parts=parts[each]),
            )  # fmt: skip
        for n in COUNTS:
            both(
                "sparsity", f"largest share of {n} keys", f"{64 if alone else n} rows, deviation 2",
                lambda each, n=n: kind_largest_weight(key, each, 2.0, n, parts=parts[each]),
            )  # fmt: skip
        if alone:
            for n in KEYS:
                typical, rows = _typical(own, n)
                both(
                    "scale", f"best scale for {n} keys", f"{typical} of {rows} rows of normal scores, jvp",
                    lambda each, n=n: _scale(key, each, n, *_typical(own, n), parts[each]),
                )  # fmt: skip
        both("collapse", "order by its record", "rule", lambda each: (predicted_order(each), 0.0))
        begin("compiling networks")
        compile_falls((own, base))
        falls = {}
        for skip in (False, True):
            name = "with skips" if skip else "without skips"
            begin(f"networks {name}")
            pair = [kind_fall(each, skip=skip, seed=seed) for each in (own, base)]
            falls[name] = [list(map(float, fall.median)) for fall in pair]
            found = {
                f"change of log ‖res‖ over 8 layers, {name}": [fall.logs[:, -1] - fall.logs[:, 0] for fall in pair]
            }
            if not skip:
                found = {"order of a layer": [fall.orders for fall in pair]} | found
            for title, samples in found.items():
                (value, error), (softmax, softmax_error) = map(_median, samples)
                count, known = len(samples[0]), int(np.sum(~np.isnan(samples[0])))
                method, reason = f"median of {count} networks", ""
                if known < count:
                    method = f"median of the {known} known of {count} networks"
                    reason = why_unknown(own, skip=skip, seed=seed, near=title[:5] == "order") or "tokens become equal"
                measures.append(Measure("collapse", title, value, softmax, error, softmax_error, method, reason))
        both("rows", "sum of a row", "64 rows of 64 logits", lambda each: _sums(key, each, parts[each]))
        both("rows", "sum where all scores are −10", "exact", lambda each: (_indifferent(each, parts[each]), 0.0))
        begin("time")
        ratio, spread = cost(own, parts[own])
    measures.append(
        Measure("cost", "time over softmax's", ratio, 1.0, spread, 0.0, f"{_ROUNDS} alternations on {_COST}")
    )
    return Study(heading, tuple(measures), falls, _notes(own, alone, seed))


def _median(values: np.ndarray) -> tuple[float, float]:
    """The median of what is known and its standard error by 200 resamplings; NaN where less than half is known."""
    known = values[~np.isnan(values)]
    if 2 * known.size < values.size or known.size < 2:
        return math.nan, math.nan
    medians = np.median(np.random.default_rng(0).choice(known, (200, known.size)), axis=1)
    low, high = np.quantile(medians, (0.16, 0.84), method="nearest")
    return float(np.median(known)), 0.0 if low == high else float(high - low) / 2


def as_kind(kind: Kind | str | Callable[..., Array]) -> Kind:
    """A record from a name, a record or a function; what a function does to rows is measured."""
    if isinstance(kind, Kind):
        return kind
    if isinstance(kind, str):
        if kind not in KINDS:
            listed = ", ".join(map(repr, KINDS))
            raise ValueError(f"`kind` must be one of {listed}, got {kind!r}{perhaps(kind, KINDS)}")
        return KINDS[kind]
    if not callable(kind) or isinstance(kind, type):
        raise TypeError(f"`kind` must be a name, an attention.Kind or a function, got {arguments.describe(kind)}")
    plain = Kind(getattr(kind, "__name__", "kind").replace("<lambda>", "kind"), kind)
    spec = AttentionSpec(d_model=8, weights=plain)  # one clear error for a function that gives no weights
    weights = probed(plain, spec, {}, (1, 8, 8))[1]
    _check_rectangle(plain, {})
    # A weight that is 0 at ordinary scores has not underflowed: some rows have the deviation 1 and as many columns.
    normal = np.random.default_rng(0).normal(size=(1, 1, 64, 8))
    return dataclasses.replace(
        plain,
        row_sum="one" if sums_to_one(weights) else "any",
        shift_invariant=ignores_levels(weights),
        sparse=bool((in_double(plain, spec, {}, normal) == 0).any()),
    )


def _with_options(kind: Kind) -> Kind:
    """The kind with the options that it reads as a specification has them by default."""
    if not kind.options or KINDS.get(kind.name) == kind:  # these have the same defaults
        return kind
    spec = AttentionSpec(d_model=2 * kind.maps, weights=kind)
    options = {name: getattr(spec, name) for name in kind.options}
    return dataclasses.replace(kind, weights=functools.partial(kind.weights, **options), options=())


def cost(kind: Kind, parts: dict[str, Array]) -> tuple[float, float]:
    """Time of the weights over that of softmax, median of alternations, and half the range of its quartiles."""
    heads, n, _ = _COST
    scores = jax.random.normal(jax.random.key(0), (heads, n, n))
    doubled = jax.random.normal(jax.random.key(0), (heads * kind.maps, n, n))
    wide = {name: jnp.broadcast_to(part, (heads, *part.shape[1:])) for name, part in parts.items()}
    ours, plain = jax.jit(lambda s: kind(s, None, wide)), jax.jit(lambda s: KINDS["softmax"](s))

    def seconds(function: Callable[[Array], Array], rows: Array) -> float:
        start = time.perf_counter()
        jax.block_until_ready(function(rows))
        return time.perf_counter() - start

    seconds(ours, doubled)  # the first calls compile
    seconds(plain, scores)
    ratios = [seconds(ours, doubled) / seconds(plain, scores) for _ in range(_ROUNDS)]
    lower, _, upper = statistics.quantiles(ratios, n=4)
    return statistics.median(ratios), (upper - lower) / 2


def _parts(kind: Kind, key: Array) -> dict[str, Array]:
    """The kind's parameters of one head as a layer of the networks that are measured starts with them."""
    spec = AttentionSpec(d_model=D_MODEL, heads=HEADS, weights=kind)
    return {name: part[:1] for name, part in attention.init(key, spec).parts.items()}


def _drawn(kind: Kind) -> list[str]:
    """The kind's parameters that another layer starts with otherwise."""
    one, other = (_parts(kind, jax.random.key(seed)) for seed in range(2))
    return [name for name in one if not np.array_equal(one[name], other[name])]


def _notes(kind: Kind, alone: bool, seed: int) -> tuple[str, ...]:
    """What is not measured, and which numbers are those of one draw."""
    notes = [] if alone else ["Rows depend on each other, so no gradient of a row is measured."]
    if drawn := _drawn(kind):
        notes.append(
            f"Rows are those of one head, whose {', '.join(drawn)} {'was' if len(drawn) == 1 else 'were'} drawn at "
            f"random with seed {seed}: those of other heads may differ by more than the errors here."
        )
    return tuple(notes)


def _check_rectangle(kind: Kind, parts: dict[str, Array]) -> None:
    """Rows of more keys than there are queries have weights."""
    shape = (kind.maps, 4, 16)
    try:
        jax.eval_shape(lambda scores: kind(scores, None, parts), jnp.zeros(shape))
    except Exception as error:  # whatever a function says of shapes that it was not written for
        raise ValueError(
            f"`kind` must give weights of any number of queries and keys, as in caches and in cross-attention, got for "
            f"scores of the shape {shape}: {type(error).__name__}: {error}"
        ) from error


def _typical(kind: Kind, n: int) -> tuple[Literal["mean log", "median"], int]:
    """How the typical gradient of a kind and of softmax beside it is taken, and over how many rows.

    One way for both: a median, which a kind whose weights may be 0 needs, has its maximum at larger scales, and larger
    errors.
    """
    return ("median", 1024 if n <= 64 else 256) if kind.sparse else ("mean log", 256)


def _scale(
    key: Array, kind: Kind, n: int, typical: Literal["mean log", "median"], rows: int, parts: dict[str, Array]
) -> tuple[float, float, str]:
    best = kind_best_scale(key, kind, n, rows, parts, typical=typical)
    if best.reason:
        return math.nan, math.nan, best.reason
    return float(best.scale), float(best.standard_error), ""


def _sums(key: Array, kind: Kind, parts: dict[str, Array]) -> tuple[float, float]:
    sums = np.asarray(_row_sums(kind, jax.random.normal(key, (kind.maps, 64, 64)), parts), float)
    return float(sums.mean()), float(sums.std(ddof=1) / 8)


def _indifferent(kind: Kind, parts: dict[str, Array]) -> float:
    return float(_row_sums(kind, jnp.full((kind.maps, 64, 64), -10.0), parts)[0])


@functools.partial(jax.jit, static_argnames="kind")
def _row_sums(kind: Kind, scores: Array, parts: dict[str, Array]) -> Array:
    return kind(scores, None, parts)[0].sum(axis=-1)
