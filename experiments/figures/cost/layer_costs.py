"""Attention, recurrence and convolution: operations, sequential steps and longest path, counted and in time."""

import functools
from collections.abc import Callable, Mapping
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing

from experiments.figures._timing import log_error, quartiles
from experiments.figures.cost import _layer_kinds as layers
from experiments.ledger import Measured, at_most, near, published
from experiments.lib import figure, style
from rc_jax import attention
from rc_jax.attention import LayerKind

KINDS: tuple[LayerKind, ...] = get_args(LayerKind)
V17, NOTES, TABLE = "vaswani2017", "study-notes", "section 4, table 1"
ABOUT = figure.About(
    title="What a layer costs: attention, recurrence, convolution",
    caption=(
        "First: multiplications of a layer, read off its program (points: XLA's count of every product, loop bodies as "
        "often as they run) and by formula (lines). Second: layers, or steps, until every output depends on every "
        "token that it ever will, by a search over the Jacobians of real layers (points) and by formula (lines). "
        "Third: time of a call (medians and quartiles of calls in turns; this machine's, float32). Attention is "
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
        style.bands(time, n, *(1e3 * data["seconds"][:, index, :3].T), color=color, marker=marker, label=kind)
    for ax, y, title in (
        (work, "multiplications", f"Operations, d = {d}, k = {width}"), (path, "layers or steps", "Longest path"),
        (time, "time of a layer (ms)", "Time"),
    ):  # fmt: skip
        style.panel(ax, "n, number of tokens", y, title, log="xy", base=2, legend="below", columns=2)
    return drawing


def _setting(data: Data) -> dict[str, int]:
    """Width and numbers of tokens, for texts."""
    return {"width": data["shape"][0], "least": data["tokens"][0], "most": data["tokens"][-1]}


def _exponents(data: Data, name: str) -> Measured:
    """Exponents in n of a count, between the first and the last number of tokens."""
    counts, n = data[name], data["tokens"]
    exponents = np.log(counts[-1] / counts[0]) / np.log(n[-1] / n[0])
    return Measured(exponents, where=KINDS, numbers=_setting(data))


def _paths_over_orders(data: Data) -> Measured:
    """The longest path over the order that the table gives it."""
    n, width = data["searched"].astype(float), int(data["shape"][1])
    orders = {
        "attention": 0 * n + 1, "restricted attention": n / width, "recurrence": n,
        "convolution": n / width, "dilated convolution": np.log(n) / np.log(width),
    }  # fmt: skip
    return Measured(
        data["paths"] / np.stack([orders[kind] for kind in KINDS], 1),
        where=[f"{kind}, n = {each:g}" for each in n for kind in KINDS],
    )


def _layers_to_meet(data: Data) -> Measured:
    """Layers until all tokens meet, over 1 in attention and over (n − 1)/(k − 1) in convolution: extremes over n."""
    n, width = data["searched"].astype(float), int(data["shape"][1])
    paths = dict(zip(KINDS, data["paths"].T, strict=True))
    ratios = {"attention": paths["attention"], "convolution": paths["convolution"] / ((n - 1) / (width - 1))}
    return Measured(
        [extreme(ratio) for ratio in ratios.values() for extreme in (np.min, np.max)],
        where=[f"{kind}, {extreme}" for kind in ratios for extreme in ("least", "most")],
    )


def _attention_over_recurrence(data: Data) -> Measured:
    """Ratio of median times where n < d."""
    n, pair = data["tokens"], [KINDS.index("attention"), KINDS.index("recurrence")]
    short = n < data["shape"][0]
    seconds = data["seconds"][short][:, pair]
    ratio = seconds[:, 0, 1] / seconds[:, 1, 1]
    return Measured(
        ratio,
        standard_error=ratio * np.hypot(*log_error(seconds).T),
        where=[f"n = {each}" for each in n[short]],
        numbers=_setting(data) | {"calls": data["seconds"][..., 3].min()},
    )


def _convolution_over_recurrence(data: Data) -> Measured:
    """Ratio of multiplications at the largest number of tokens, a recurrence counted with one matrix of its two."""
    counted = dict(zip(KINDS, data["counted"][-1], strict=True))
    ratio = counted["convolution"] / counted["recurrence"]
    return Measured(2 * ratio, numbers={"both": ratio})


table = functools.partial(published, source=V17, place=TABLE, formula=True)
notes = functools.partial(published, source=NOTES, formula=True)
SINGLE = "layers without projections, float32"
KERNEL = PRESETS["quick"].width  # of all presets
ROWS = (
    table(
        "layers-operations",
        "In the number $n$ of tokens, a layer of attention takes $O(n^{2})$ operations; recurrence, convolution and "
        "restricted attention take $O(n)$.",
        lambda data: _exponents(data, "counted"),
        near([2.0 if kind == "attention" else 1.0 for kind in KINDS], 0.1),
        hypotheses=rf"{SINGLE}; $d=<width>$, $k=r={KERNEL}$, $n=<least>\thinspace\ldots\thinspace<most>$",
        interval_from="our tolerance for the border: 0.1 of an exponent",
        note="measured: exponents of the multiplications that XLA counts in the compiled program",
    ),
    table(
        "layers-steps",
        "A recurrence takes $O(n)$ sequential operations, the other layers $O(1)$.",
        lambda data: _exponents(data, "steps"),
        near([1.0 if kind == "recurrence" else 0.0 for kind in KINDS], 0.01),
        hypotheses=rf"{SINGLE}; $n=<least>\thinspace\ldots\thinspace<most>$",
        interval_from="rounding of a count",
        note="measured: exponents of the longest loop, a count of the compiled program",
    ),
    published(
        "layers-paths",
        "The longest path is $O(1)$ in attention, $O(n)$ in a recurrence, $O(n/k)$ in convolutions, $O(n/r)$ in "
        r"restricted attention, and $O(\log_kn)$ in dilated convolutions.",
        _paths_over_orders,
        (1 / CONSTANT, CONSTANT),
        source=V17,
        place=f"{TABLE}, and the text below",
        formula=True,
        hypotheses=f"$k=r={KERNEL}$; dilated kernels look back",
        interval_from=rf"our tolerance: $O(\cdot)$ leaves out a factor of at most {CONSTANT:g}",
        note="measured: the path, found by search over Jacobians, over its order",
    ),
    notes(
        "layers-far",
        "A convolution reaches far tokens only through many layers, while attention takes the whole sequence at once.",
        _layers_to_meet,
        (1, [1, 1, CONSTANT, CONSTANT]),
        place="section on attention against CNN",
        hypotheses=f"kernels of {KERNEL} tokens, no dilation",
        interval_from=f"one layer, and 1 … {CONSTANT:g} times $(n-1)/(k-1)$, the fewest that join the ends one way",
        note="measured: layers until all tokens meet, over that number; the least and the most over $n$",
    ),
    notes(
        "layers-forgets",
        "An RNN may lose what stood at the start of a long input.",
        lambda data: Measured(
            data["influence"][-1], numbers={"width": data["shape"][0], "tokens": data["searched"][-1]}
        ),
        at_most(0.1),
        formula=True,
        place="section on attention against RNN",
        hypotheses="one Elman recurrence at random, entries $N(0,1/d)$, $d=<width>$, <tokens> tokens",
        interval_from="our tolerance: a tenth of the last token's influence",
        note="measured: size of the last state's derivative by the first token over that by the last",
    ),
    published(
        "layers-short-time",
        r"A layer of attention is faster than a recurrent one where $n\lt d$.",
        _attention_over_recurrence,
        at_most(1),
        source=V17,
        place="section 4",
        hypotheses=f"{SINGLE}, $d=<width>$, two cores",
        interval_from="the sign of the difference",
        note="measured: ratio of median times, of <calls:.0f> calls or more in turns; multiplications are in the ratio "
        "$n/d$",
    ),
    published(
        "layers-convolution",
        "A convolution is generally more expensive than a recurrence by a factor of $k$.",
        _convolution_over_recurrence,
        near(KERNEL, 0.01 * KERNEL),
        source=V17,
        place="section 4",
        formula=True,
        hypotheses=rf"a recurrence counted as in the source's table 1, $n\thinspace d^{{2}}$; $k={KERNEL}$",
        after_result=True,
        interval_from="$k$; our tolerance for a count: one per cent; the count of the table was chosen when both were "
        "known",
        note="measured: ratio of multiplications; with both matrices of an Elman recurrence, for input and state, it "
        "is <both:.3g>",
    ),
)
