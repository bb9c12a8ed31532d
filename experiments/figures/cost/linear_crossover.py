"""Quadratic against linear attention: from how many tokens on sums are cheaper than pairs, in time and in memory."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing

from experiments.figures._timing import log_error, quartiles
from experiments.ledger import Measured, near, published
from experiments.lib import figure, style
from rc_jax import attention

SOURCE = "katharopoulos2020"
ABOUT = figure.About(
    title="Quadratic and linear attention: where they cross",
    caption=(
        "Whole layers of one width, projections included: softmax over pairs of tokens, linear weights over pairs, and "
        "the same linear weights from sums over tokens, full and causal. First: time of a call (medians and quartiles "
        "of calls in turns). Second: time of the layers that see pairs over that of sums; they cross where the line is "
        "1, predicted at d_head tokens and at d_head + chunk where causal (dotted). Third: memory that XLA sets "
        "aside; what one fused call holds inside itself is not in that account, so softmax's may drop. Times are this "
        "machine's, in float32."
    ),
    formula="2 n² d = 2 n d d_head at n = d_head;   causal: 2 n d (d_head + chunk), n = d_head + chunk",
    topic="layer",
    minutes={"smoke": 0.1, "quick": 0.35, "full": 5.0},
    alone=True,
)
SIDES = {
    "softmax": ("softmax, pairs", "softmax"), "pairs": ("linear, pairs", "linear"),
    "sums": ("linear, sums", "mlp"), "causal": ("linear, causal sums", "full"),
}  # fmt: skip
PAIRS = (("pairs", "sums"), ("pairs", "causal"), ("softmax", "sums"))
GAIN = 0.2  # of an exponent of ratios of times
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Shape of the layer, numbers of tokens, run length of causal sums, and seconds of timing at each number."""

    d_model: int = 64
    heads: int = 1  # one wide head: where sums and pairs cross, they are half as much work as the projections
    chunk: int = 32
    powers: tuple[int, int] = (6, 13)
    seconds: float = 0.8
    least: int = 3


PRESETS = {
    "smoke": Spec(d_model=16, heads=2, chunk=8, powers=(4, 6), seconds=0.02),
    "quick": Spec(),
    "full": Spec(powers=(5, 14), seconds=10.0, least=7),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """By layer and number of tokens: quartiles of seconds, and bytes."""
    linear = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads, weights="linear")
    soft, causal = dataclasses.replace(linear, weights="softmax"), dataclasses.replace(linear, causal=True)
    params = attention.init(jax.random.key(spec.seed), linear, dtype="float32")
    layers: dict[str, Callable] = {
        "softmax": lambda params, x: attention.attend(params, x, soft),
        "pairs": lambda params, x: attention.attend(params, x, linear),
        "sums": lambda params, x: attention.linear_attend(params, x, linear),
        "causal": lambda params, x: attention.linear_attend(params, x, causal, chunk=spec.chunk),
    }
    # Time and memory of the compiled layers at every number of tokens.
    tokens = 2 ** np.arange(spec.powers[0], spec.powers[1] + 1)
    seconds, memory = [], []
    for n in tokens:
        x = jnp.asarray(np.random.default_rng(spec.seed).normal(size=(n, spec.d_model)), jnp.float32)
        compiled = {name: jax.jit(layer).lower(params, x).compile() for name, layer in layers.items()}
        calls = {name: functools.partial(program, params, x) for name, program in compiled.items()}
        seconds.append(list(quartiles(calls, spec.seconds, spec.least).values()))
        analyses = [compiled[name].memory_analysis() for name in SIDES]
        memory.append([-1 if each is None else each.temp_size_in_bytes for each in analyses])
    return {
        "tokens": tokens, "shape": np.array([spec.d_model, spec.heads, spec.chunk]),
        "seconds": np.array(seconds), "memory": np.array(memory, float),
    }  # fmt: skip


def _ratio(data: Data, over: str, under: str) -> np.ndarray:
    middle = dict(zip(SIDES, data["seconds"][:, :, 1].T, strict=True))
    return middle[over] / middle[under]


def plot(data: Data) -> Drawing:
    """Time; ratios; memory."""
    drawing, (time, ratio, memory) = style.figure(columns=3, width=5.0, height=4.6)
    n, (d, heads, chunk) = data["tokens"], (int(each) for each in data["shape"])
    for index, (label, meaning) in enumerate(SIDES.values()):
        marker, color = style.MARKERS[index], style.colour(meaning)
        style.bands(time, n, *(1e3 * data["seconds"][:, index, :3].T), color=color, label=label, marker=marker)
        memory.plot(n, data["memory"][:, index] / 2**20, color=color, marker=marker, label=label)
    for index, (over, under) in enumerate(PAIRS):
        label = f"{SIDES[over][0]} / {SIDES[under][0].removeprefix('linear, ')}"
        ratio.plot(n, _ratio(data, over, under), label=label, **style.cycle(index))
    # Multiplications are equal at d_head tokens, and at d_head + chunk where sums are causal.
    for tokens, label in ((d / heads, "predicted"), (d / heads + chunk, None)):
        ratio.axvline(tokens, linestyle=":", color=style.colour("theory"), linewidth=1.2, label=label)
    style.reference(ratio, y=1)
    ratio.set_yscale("log", base=2)
    ratio.yaxis.set_major_formatter("{x:g}")
    for ax, y, title, log in (
        (time, "time of a layer (ms)", "Time", "xy"), (memory, "memory set aside (MiB)", "Memory", "xy"),
        (ratio, "time of pairs / time of sums", f"d = {d}, d_head = {d // heads}, chunk = {chunk}", "x"),
    ):  # fmt: skip
        style.panel(ax, "n, number of tokens", y, title, log=log, base=2, legend="below", columns=2)
    return drawing


def _slope(values: np.ndarray, tokens: np.ndarray) -> float:
    """Exponent over the last two doublings."""
    return float(np.log(values[-1] / values[-3]) / np.log(tokens[-1] / tokens[-3]))


def _slope_error(data: Data, over: str, under: str) -> float:
    """Of an exponent of a ratio of median times."""
    some = [list(SIDES).index(name) for name in (over, under)]
    errors = log_error(data["seconds"][[-1, -3]][:, some])
    return float(np.sqrt(np.sum(errors**2)) / np.log(data["tokens"][-1] / data["tokens"][-3]))


def _numbers(data: Data) -> dict[str, int]:
    """The shape of the layers and the numbers of tokens that exponents are taken over, for `LAYER`."""
    width, heads = (int(each) for each in data["shape"][:2])
    tokens = data["tokens"]
    return {"width": width, "heads": heads, "head_width": width // heads, "least": tokens[-3], "most": tokens[-1]}


def _gains(data: Data) -> Measured:
    """Exponents of ratios of median times, over the last two doublings."""
    return Measured(
        [_slope(_ratio(data, over, under), data["tokens"]) for over, under in PAIRS],
        standard_error=[_slope_error(data, over, under) for over, under in PAIRS],
        where=[f"{SIDES[over][0]} over {SIDES[under][0]}" for over, under in PAIRS],
        numbers=_numbers(data) | {"calls": data["seconds"][[-1, -3], :, 3].min()},
    )


def _memory(data: Data) -> Measured:
    """Exponents of memory, over the last two doublings."""
    names = ("pairs", "sums", "causal")
    return Measured(
        [_slope(data["memory"][:, list(SIDES).index(name)], data["tokens"]) for name in names],
        where=[SIDES[name][0] for name in names],
        numbers=_numbers(data),
    )


LAYER = (
    "whole layers, $d=<width>$, <heads> head of <head_width>, projections included; "
    r"$n=<least>\thinspace\ldots\thinspace<most>$"
)
ROWS = (
    published(
        "linear-gain-pairs-sums",
        "Sums over tokens lower the time of attention from $O(n^{2})$ to $O(n)$.",
        _gains,
        near(1, GAIN),
        source=SOURCE,
        place="abstract",
        hypotheses=LAYER,
        interval_from=f"our tolerance: {GAIN:g} of an exponent",
        elsewhere="the projections, linear in $n$, are part of the time; the preset full has larger $n$",
        note="measured: exponent of the ratio of median times, of <calls:.0f> calls or more in turns",
    ),
    published(
        "linear-memory-pairs",
        "The memory of attention over pairs grows as $n^{2}$, that of sums as $n$.",
        _memory,
        near([2.0, 1.0, 1.0], 0.1),
        formula=True,
        source=f"{SOURCE}-memory",
        place="section 3.2, as others restate it",
        hypotheses=f"{LAYER}; memory that XLA sets aside",
        interval_from="our tolerance: a tenth of an exponent",
        note="measured: exponents in $n$",
    ),
)
