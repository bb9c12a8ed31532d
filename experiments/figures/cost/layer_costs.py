"""Attention, recurrence and convolution: operations, sequential steps and longest path, counted and in time."""

import functools
from collections.abc import Callable, Mapping
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing

from experiments.figures.cost import _layer_kinds as layers
from experiments.figures.cost._timing import quartiles
from experiments.ledger import Claim, at_most, near, published
from experiments.lib import figure, style
from rc_jax import attention
from rc_jax.attention import LayerKind

KINDS: tuple[LayerKind, ...] = get_args(LayerKind)
V17, NOTES, TABLE = "vaswani2017", "study-notes", "section 4, table 1"
ABOUT = figure.About(
    title="What a layer costs: attention, recurrence, convolution",
    caption=(
        "Left: multiplications of a layer, read off its program (points: XLA's count of every product, loop bodies as "
        "often as they run) and by formula (lines). Middle: layers, or steps, until every output depends on every "
        "token that it ever will, by a search over the Jacobians of real layers (points) and by formula (lines). "
        "Right: time of a call (medians and quartiles of calls in turns; this machine's, float32). Attention is "
        "without its projections, as in the source; windows and kernels are k tokens wide."
    ),
    formula="2n²d, 1, 1;   2nd², n, n;   knd², 1, 2(n − 1)/(k − 1) or log_k n;   window 2knd, 1, 2(n − 1)/(k − 1)",
    topic="layer",
    minutes={"smoke": 0.1, "quick": 0.35, "full": 2.0},
    alone=True,
)
CONSTANT = 3.0  # what an O(·) may leave out
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Width of the layers, kernel, numbers of tokens to time and to search, and seconds of timing at each."""

    d_model: int = 128
    width: int = 5
    tokens: tuple[int, ...] = (32, 64, 128, 256, 1024, 4096)
    searched: tuple[int, ...] = (4, 16, 64)
    seconds: float = 0.5
    least: int = 5


PRESETS = {
    "smoke": Spec(d_model=8, tokens=(8, 64), searched=(4,), seconds=0.02),
    "quick": Spec(),
    "full": Spec(d_model=512, tokens=(64, 128, 256, 512, 1024, 2048, 4096), searched=(4, 16, 64, 243), seconds=4.0),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """By number of tokens and kind: counted costs, quartiles of seconds, and paths."""
    random = np.random.default_rng(spec.seed)
    draw = [layers.weights(kind, spec.d_model, spec.width, spec.seed) for kind in KINDS]
    weights = [tuple(each.astype(jnp.float32) for each in given) for given in draw]
    # One layer of each kind, timed and counted at each number of tokens; then paths, in narrow layers.
    run = {kind: functools.partial(jax.jit(layers.layer(kind, spec.width)), weights[i]) for i, kind in enumerate(KINDS)}
    counted, seconds = [], []
    for n in spec.tokens:
        x = jnp.asarray(random.normal(size=(n, spec.d_model)), jnp.float32)
        calls = {kind: functools.partial(run[kind], x) for kind in KINDS}
        seconds.append(list(quartiles(calls, spec.seconds, spec.least).values()))
        counted.append([layers.counts(run[kind], x) for kind in KINDS])
    work, steps = np.moveaxis(np.array(counted, float), 2, 0)
    small = [jnp.asarray(random.normal(size=(n, 2)), jnp.float32) for n in spec.searched]
    early = jnp.asarray(random.normal(size=(max(spec.searched), spec.d_model)), jnp.float32)
    recurrence = functools.partial(layers.layer("recurrence"), weights[KINDS.index("recurrence")])
    return {
        "tokens": np.array(spec.tokens), "shape": np.array([spec.d_model, spec.width]),
        "searched": np.array(spec.searched), "counted": work, "steps": steps, "seconds": np.array(seconds),  # (n, kind)
        "paths": np.array([[layers.longest_path(kind, x, spec.width) for kind in KINDS] for x in small], float),
        "influence": np.array([_influence(recurrence, early[:n]) for n in spec.searched]),
    }  # fmt: skip


def _influence(run: Callable[[jax.Array], jax.Array], x: jax.Array) -> float:
    """‖∂h_n/∂x_1‖ of the last of n states, over that of the last token, both of Frobenius."""
    last = jax.jit(jax.jacobian(lambda x: run(x)[-1]))(x)  # (feature, token, feature)
    sizes = jnp.sqrt((last**2).sum((0, 2)))
    return float(sizes[0] / sizes[-1])


def plot(data: Data) -> Drawing:
    """Multiplications; longest paths; times."""
    drawing, (work, path, time) = style.figure(columns=3, width=5.0, height=4.8)
    n, (d, width) = data["tokens"], (int(each) for each in data["shape"])
    radius = (width - 1) // 2
    line = np.unique(np.geomspace(2, data["searched"][-1], 40).astype(int))
    for index, kind in enumerate(KINDS):
        look = style.cycle(index)
        color, marker, dash = look["color"], look["marker"], look["linestyle"]
        # Windows multiply beyond the border and then hide what they made there.
        beyond = 2 * d * radius * (radius + 1) if kind == "restricted attention" else 0
        cost = functools.partial(attention.layer_costs, kind, d_model=d, width=width)
        products = [cost(tokens=int(m)).multiplications for m in n]
        paths = [cost(tokens=int(m)).longest_path for m in line]
        work.plot(n, products, linestyle=dash, color=color, linewidth=1.2)
        work.plot(n, data["counted"][:, index] - beyond, marker, color=color, label=kind)
        path.plot(line, paths, linestyle=dash, color=color, linewidth=1.2)
        path.plot(data["searched"], data["paths"][:, index], marker, color=color, label=kind, fillstyle="none")
        style.bands(time, n, *(1e3 * data["seconds"][:, index].T), color=color, marker=marker, label=kind)
    for ax, y, title in (
        (work, "multiplications", f"Operations, d = {d}, k = {width}"), (path, "layers or steps", "Longest path"),
        (time, "time of a layer (ms)", "Time"),
    ):  # fmt: skip
        style.panel(ax, "n, number of tokens", y, title, log="xy", base=2, legend="below", columns=2)
    return drawing


def claims(data: Data) -> list[Claim]:
    """Every cell of the table, and what the sources say of it in words."""
    n, (d, width) = data["tokens"], (int(each) for each in data["shape"])
    at, searched = KINDS.index, data["searched"].astype(float)
    # Exponents in n between the first and the last number of tokens, and the orders of the table.
    step = np.log(n[-1] / n[0])
    work, steps = (np.log(data[name][-1] / data[name][0]) / step for name in ("counted", "steps"))
    orders = {
        "attention": 0 * searched + 1, "restricted attention": searched / width, "recurrence": searched,
        "convolution": searched / width, "dilated convolution": np.log(searched) / np.log(width),
    }  # fmt: skip
    middle = data["seconds"][:, :, 1]
    ratio = middle[:, at("attention")] / middle[:, at("recurrence")]
    short = n < d
    far = [data["paths"][:, at(kind)] for kind in ("attention", "convolution")]
    single = "layers without projections, float32"
    return [
        published("layers-operations", "In the number n of tokens, a layer of attention takes O(n²) operations; "
                  "recurrence, convolution and restricted attention take O(n).", work,
                  near([2.0 if kind == "attention" else 1.0 for kind in KINDS], 0.1),
                  formula=True, source=V17, place=TABLE,
                  where=KINDS, hypotheses=f"{single}; d = {d}, k = r = {width}, n = {n[0]} … {n[-1]}",
                  interval_from="our tolerance for the border: 0.1 of an exponent",
                  note="measured: exponents of the multiplications that XLA counts in the compiled program"),
        published("layers-steps", "A recurrence takes O(n) sequential operations, the other layers O(1).", steps,
                  near([1.0 if kind == "recurrence" else 0.0 for kind in KINDS], 0.01),
                  formula=True, source=V17, place=TABLE,
                  where=KINDS, hypotheses=f"{single}; n = {n[0]} … {n[-1]}", interval_from="rounding of a count",
                  note="measured: exponents of the longest loop, a count of the compiled program"),
        published("layers-paths", "The longest path is O(1) in attention, O(n) in a recurrence, O(n/k) in "
                  "convolutions, O(n/r) in restricted attention, and O(log_k n) in dilated convolutions.",
                  (data["paths"] / np.stack([orders[kind] for kind in KINDS], 1)).ravel(), (1 / CONSTANT, CONSTANT),
                  formula=True, source=V17, place=f"{TABLE}, and the text below",
                  hypotheses=f"k = r = {width}; dilated kernels look back",
                  where=[f"{kind}, n = {each:g}" for each in searched for kind in KINDS],
                  interval_from=f"our tolerance: O(·) leaves out a factor of at most {CONSTANT:g}",
                  note="measured: the path, found by search over Jacobians, over its order"),
        published("layers-far", "A convolution reaches far tokens only through many layers, while attention takes the "
                  "whole sequence at once.",
                  np.concatenate(far) / np.concatenate([0 * searched + 1, (searched - 1) / (width - 1)]),
                  ([1.0] * searched.size + [1.0] * searched.size, [1.0] * searched.size + [CONSTANT] * searched.size),
                  formula=True, source=NOTES, place="section on attention against CNN",
                  hypotheses=f"kernels of {width} tokens, no dilation",
                  where=[f"{kind}, n = {each:g}" for kind in ("attention", "convolution") for each in searched],
                  interval_from=f"one layer, and 1 … {CONSTANT:g} times (n − 1)/(k − 1), the fewest that join the ends "
                  "one way", note="measured: layers until all tokens meet, over that number"),
        published("layers-forgets", "An RNN may lose what stood at the start of a long input.", data["influence"][-1],
                  at_most(0.1), formula=True, source=NOTES, place="section on attention against RNN",
                  hypotheses=f"one Elman recurrence at random, entries N(0, 1/d), d = {d}, {searched[-1]:g} tokens",
                  interval_from="our tolerance: a tenth of the last token's influence",
                  note="measured: size of the last state's derivative by the first token over that by the last"),
        published("layers-short-time", "A layer of attention is faster than a recurrent one where n < d.", ratio[short],
                  at_most(1), source=V17, place="section 4", where=[f"n = {each}" for each in n[short]],
                  hypotheses=f"{single}, d = {d}, two cores", interval_from="the sign of the difference",
                  note="measured: ratio of median times; multiplications are in the ratio n/d"),
        published("layers-convolution", "A convolution is generally more expensive than a recurrence by a factor of k.",
                  data["counted"][-1, at("convolution")] / data["counted"][-1, at("recurrence")],
                  (0.99 * width / 2, 1.01 * width), formula=True, source=V17, place="section 4", always=False,
                  hypotheses=f"orders of operations; one Elman recurrence, k = {width}",
                  interval_from="k, or k/2 for a recurrence that multiplies its input and its state",
                  note="measured: ratio of multiplications, k/2, as a recurrence multiplies its input and its state"),
    ]  # fmt: skip
