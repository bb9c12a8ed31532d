"""`study.architecture`: an untrained network, layer by layer, and what one change at a time would do."""

import contextlib
import math
import os
from collections.abc import Generator, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from rc_jax._numerics import arguments
from rc_jax.network import StackSpec
from rc_jax.pretrained.config import MOST_ALONG, WIDEST
from rc_jax.study.initialisation import exactly, nothing
from rc_jax.study.initialisation.changes import changed
from rc_jax.study.initialisation.design import Design
from rc_jax.study.initialisation.narrowing import Width, chosen, compared, seconds
from rc_jax.study.initialisation.passes import Sample, measure, prepared
from rc_jax.study.initialisation.report import FAR, LOGS, SHARES, Architecture
from rc_jax.study.initialisation.sentences import NAMES
from rc_jax.study.initialisation.source import read

TOKENS = 512
FEWEST, MOST, TIME = 2, 4, 30.0  # initialisations that are drawn where the reader gives no number, and their seconds
_STRENGTH = arguments.scalar(arguments.bounded(1 / WIDEST, WIDEST))


@arguments.guard(
    tokens=arguments.integer(2, MOST_ALONG), samples=arguments.integer(1), width=arguments.integer(2),
    gain=_STRENGTH, std=_STRENGTH,
)  # fmt: skip
def architecture(
    network: StackSpec | Mapping[str, Any] | str | os.PathLike[str],
    *,
    tokens: int | None = None,
    samples: int | None = None,
    key: Key[Array, ""] | None = None,
    changes: Any = None,
    gain: float | None = None,
    std: float | None = None,
    width: int | None = None,
) -> Architecture:
    """What a transformer does at initialisation, layer by layer, and what one change at a time would do.

    Measured over random initialisations: ‖res(X^l)‖/‖X^l‖, the size of tokens ‖X^l‖/√(nd), the evenness H/log n_i of
    attention rows and the largest share of their sum, and the gradient of ⟨U, X^L⟩, U normal, at each layer's input and
    at W_Q, W_K, W_V and W_O, relative to the last layer's. X^L is the state before a final norm. Dropout is off.

    A wide network is computed narrower, with the same layers, heads and tokens. Every matrix is drawn with the variance
    that gives its outputs the variance of the full width. What half that width changes is measured and stated: the
    error, where it falls as 1/width; that of a change is measured where the width itself is changed. Where tokens come
    to agree to float32's digits, the residual is that of `collapse.log_residuals`.

    Args:
        network: a stack; or the settings of a published family (`pretrained.load` lists them) as a dict, a config.json
            or its folder. Weights are not read.
        tokens: number of distinct random tokens; 512, or as many as the network takes. A note says where there are
            fewer words.
        samples: number of initialisations; 2 to 4, by how long one takes.
        key: a typed key.
        changes: `"usual"`: strength of branches, place of the norm, scale, kind, norms of queries and keys, one at a
            time. Or a mapping of names to a `StackSpec` or to a function that makes one of the network's.
        gain: draw every matrix from N(0, gain²/fan_in), gain from 10⁻⁶ to 10⁶; for a stack 1 by default. Tables of
            words and positions keep the deviation of the config.
        std: draw every entry from N(0, std²), std from 10⁻⁶ to 10⁶; for a config its `initializer_range` by default.
            GPT-2's W_O and last matrix of the MLP have 1/√(2L) of it, as its own code draws them; `gain` leaves that
            out.
        width: features of a token in the network that is computed; heads are narrowed alike.

    Returns:
        The study: `table`, `sentences`, `bands`, `changes`, `to_json()`, `to_frame()`, `figure()`.

    Raises:
        FileNotFoundError: no such file or folder, or a folder without config.json.
        MemoryError: what is computed does not fit in the memory of the device.
        ValueError: a family or a setting that is not modelled, by its name; more tokens than the network takes.

    Source: Kedia et al. 2024, "Transformers get stable" (λ and β, there with the initialisation that makes a branch's
    variance 1); Sun et al. 2025, "The curse of depth" (norms times 1/√l); Noci et al. 2022 (tokens at initialisation).

    Example:
        >>> from rc_jax import study
        >>> from rc_jax.attention import AttentionSpec
        >>> from rc_jax.network import StackSpec
        >>> found = study.architecture(StackSpec(attention=AttentionSpec(d_model=32, heads=4), depth=2), tokens=16)
        >>> found["residual"].shape, found["gradient_query"].shape
        ((3,), (2,))
    """
    if gain is not None and std is not None:
        raise ValueError(f"`std` must be left out beside gain={gain}, got {std}")
    name, design, notes = read(network, gain=gain, std=std)
    count = _count(tokens, design)
    key = jax.random.key(0) if key is None else key
    designs, refused = changed(design, changes, count)
    if design.words is not None and design.words < count:
        notes += (f"Of {design.words} words {count} tokens repeat some; here all are distinct.",)
    own = _width(width, design, count)
    with _memory(count, own):
        return _study(
            name, design, designs, own, width=width, count=count, samples=samples, key=key, notes=(*notes, *refused)
        )


@contextlib.contextmanager
def _memory(count: int, width: Width) -> Generator[None]:
    """An error of this package where the device's memory does not hold what is computed."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MemoryError(
            f"`network` must fit in memory, got one that does not with tokens={count} and width={width.token} "
            f"({str(error).partition(': ')[2] or error}); fewer `tokens` or a smaller `width` need less"
        ) from error


def _study(
    name: str, design: Design, designs: dict[str, Design], own: Width, *, width: int | None, count: int,
    samples: int | None, key: Array, notes: tuple[str, ...],
) -> Architecture:  # fmt: skip
    """The network and its changes."""
    several = samples or int(np.clip(TIME / seconds(design, own, count), FEWEST, MOST))
    bands, said = _bands(key, design, own, count, several)
    half = _half(key, design, own, count, bands)
    if half is not None and max(half["tokens"], half["size"], half["gradients"]) > FAR:
        said += ("Half the computed width gives other numbers: read factors, not digits; `width` asks for more.",)

    def record(name: str, design: Design, width: Width, bands: dict[str, np.ndarray], **more: Any) -> Architecture:
        spec = design.spec
        return Architecture(
            name=name, full=_full(design), computed=width, depth=spec.depth, heads=spec.attention.heads, tokens=count,
            samples=several, bands=bands, alone=tuple(np.flatnonzero(nothing.alone(spec)).tolist()), **more,
        )  # fmt: skip

    others = {}
    for change, other in designs.items():
        same = _full(other) == _full(design)
        most = None if width is None else min(width, _full(other).token)
        narrow = own if same else _width(most, other, count)  # a change of the width is computed at one of its own
        theirs, words = _bands(key, other, narrow, count, several)
        halved = None if same else _half(key, other, narrow, count, theirs)  # of every change it would double the time
        others[change] = record(change, other, narrow, theirs, half=halved, unhalved=same, notes=words)
    return record(name, design, own, bands, half=half, changes=others, notes=(*said, *notes))


def _count(tokens: int | None, design: Design) -> int:
    most = design.spec.attention.tokens or design.most_tokens
    if most == 1:
        raise ValueError("`network` must take two tokens or more, got one whose longest sequence is 1")
    fixed = design.spec.attention.tokens
    if fixed is not None and tokens not in (None, fixed):
        raise ValueError(f"`tokens` must be {fixed}, which the specification fixes, got {tokens}")
    if tokens is not None and most is not None and tokens > most:
        raise ValueError(f"`tokens` must be at most {most}, the longest sequence of the network, got {tokens}")
    return tokens or fixed or min(TOKENS, most or TOKENS)


def _full(design: Design) -> Width:
    return Width(design.spec.attention.d_model, design.spec.attention.head_width)


def _width(width: int | None, design: Design, count: int) -> Width:
    full = design.spec.attention
    if width is None:
        return chosen(design, count)
    if width == full.d_model:
        return _full(design)
    if width > full.d_model:
        raise ValueError(f"`width` must be at most d_model={full.d_model}, got {width}")
    return Width(width, min(full.head_width, max(2, 2 * round(full.head_width * width / full.d_model / 2))))


def _bands(
    key: Array, design: Design, width: Width, count: int, samples: int
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Least, median and largest over initialisations, and what must be said of how they were got."""
    logs, said = _measured(key, design, width, count, samples)
    stacked = {name: np.stack([each[name] for each in logs]) for name in logs[0]}
    with np.errstate(invalid="ignore"):  # between −inf and −inf, the logarithms of what is exactly 0
        bands = {name: np.quantile(values, (0, 0.5, 1), axis=0) for name, values in stacked.items()}
    bands = {name: np.where(np.all(stacked[name] == -np.inf, axis=0), -np.inf, band) for name, band in bands.items()}
    rows = ~nothing.alone(design.spec)
    known = [name for name, band in bands.items() if np.any(band[:, -1] == -np.inf)]  # there is no ratio to 0
    lost = {name: np.isnan(band[:, rows] if name in SHARES else band).any() for name, band in bands.items()}
    if unknown := [name for name in bands if lost[name] and name not in known]:
        said += (f"Numbers that float32 does not decide are NaN, in {', '.join(unknown)}.",)
    return bands, said


def _measured(
    key: Array, design: Design, width: Width, count: int, samples: int
) -> tuple[list[dict[str, np.ndarray]], tuple[str, ...]]:
    """The measures of each initialisation, and what must be said of residuals that float32 rounds."""
    network, numbers = prepared(design, *width, count)
    blind = nothing.blind(network.spec)
    logs = [_flat(measure(jax.random.fold_in(key, index), network, numbers), blind) for index in range(samples)]
    rounded = min(float(np.nanmin(each["residual"])) for each in logs) < math.log(exactly.ROUNDED)
    said = exactly.replace(logs, key, design, network, numbers) if rounded else ()
    return logs, tuple(dict.fromkeys((*said, *exactly.forget_cancelled(logs, network.spec))))


def _flat(sample: Sample, blind: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The measures by name; gradients relative to the last layer's.

    Only gradients at W_Q and W_K of layers whose weights do not depend on them are known to be 0. Every other 0 may
    have underflowed and is NaN, but for residuals, which `exactly` replaces.
    """
    values = {name: np.asarray(getattr(sample, name), float) for name in ("residual", "size", *SHARES)}
    values["size"] = np.where(values["size"] == -np.inf, np.nan, values["size"])
    for name in NAMES:
        own = np.asarray(sample.gradients[name], float)
        own = np.where(own == -np.inf, np.nan, own) - (own[-1] if np.isfinite(own[-1]) else np.nan)
        if blind is not None and name in ("query", "key"):
            own = np.where(blind, -np.inf, own * (np.nan if blind[-1] else 1))
        values[f"gradient_{name}"] = own
    return {name: values[name] for name in (*LOGS, *SHARES)}


def _half(
    key: Array, design: Design, width: Width, count: int, bands: dict[str, np.ndarray]
) -> dict[str, float] | None:
    """By how much the median of two initialisations at half the width differs, of one where they take long."""
    narrower = None if width == _full(design) else compared(design, width)
    if narrower is None:
        return None
    several = 1 if seconds(design, width, count) > TIME / MOST else 2
    drawn, _ = _measured(key, design, narrower, count, several)
    other = {name: np.median([each[name] for each in drawn], axis=0) for name in drawn[0]}

    def most(*names: str) -> float:
        with np.errstate(invalid="ignore"):  # what is exactly 0 in both
            distances = [np.abs(other[name] - bands[name][1]) for name in names]
        return max(float(np.max(each[np.isfinite(each)], initial=0)) for each in distances)

    return {
        "tokens": most("residual"),
        "size": most("size"),
        "gradients": most(*(f"gradient_{name}" for name in NAMES)),
        "rows": most("evenness", "largest"),
        "kinds": most("even", "saturated"),
    }
