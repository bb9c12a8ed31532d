"""Kernels that can focus: associative recall against length, and whether sparsity foretells which kernels solve it."""

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures._replicates import mark_failed, mean_and_error, seed_band
from experiments.figures.training import _focus_in_training as recall
from experiments.ledger import Measured, at_least, at_most, published
from experiments.lib import figure, style
from experiments.lib.figure import About

ABOUT = About(
    title="Kernels that can focus, once they learn",
    caption=(
        "Associative recall shows n pairs of a key and a value, then a key, and asks for its value. Networks of one "
        "layer with one head are trained with Adam; they differ in how scores become weights. The panels show the "
        "accuracy on held-out sequences and S of the question's row of weights, before and after training, against n; "
        "both during training at the largest n; and accuracy against S. Bands reach from the smallest to the largest "
        "over seeds. A × at the top edge marks a training that stopped. Preset quick has five kinds, three lengths, "
        "three seeds and few steps at one learning rate: it shows which kinds learn fast, not which could learn in the "
        "end. Preset full has twelve kinds, four lengths, five seeds, and 1000 steps at the better of two rates."
    ),
    formula="S = E|a|/√E a²; one pair: 1/√n; linear: S ≥ least S of one feature; n S² pairs in the row",
    topic="training",
    minutes={"smoke": 0.15, "quick": 1.28, "full": 60},
)
LINEAR = ("linear", "linear, relu", "linear, squared_relu", "linear, softplus", "linear, exp", "channel decay")
QUICK = ("softmax", "relu²/Σ", "linear", "linear, squared_relu", "decay")
ALL = ("softmax", "relu²/Σ", "relu²/n", "identity", *LINEAR[:-1], "decay", "gated decay", "channel decay")
TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1)
METRICS = ("accuracy", "chance", "sparsity", "seen", "failed")
BLIND = ("decay", "gated decay")  # their weights do not see the question
LOOKS = {  # meaning, marker, dash
    "softmax": ("softmax", "o", 0), "relu²/Σ": ("relu_squared", "s", 0), "relu²/n": ("relu_squared", "X", 1),
    "identity": ("identity", "P", 0), "linear": ("linear", "^", 0), "linear, relu": ("linear", "<", 3),
    "linear, squared_relu": ("linear", "D", 1), "linear, softplus": ("linear", ">", 4),
    "linear, exp": ("linear", "*", 2),
    "decay": ("decay", "v", 0), "gated decay": ("decay", "h", 1), "channel decay": ("decay", "d", 2),
}  # fmt: skip

LUCK = 0.05  # two standard errors of a share among the test sequences of the quick preset
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """The task and its sizes; kinds of weights; lengths × learning rates × seeds; steps, and those between records."""

    task: recall.Task = field(default_factory=recall.Task)
    kinds: tuple[str, ...] = QUICK
    lengths: tuple[int, ...] = (8, 16, 32)
    rates: tuple[float, ...] = (0.01,)
    seeds: int = 3
    steps: int = 300
    every: int = 30
    batch: int = 16
    test: int = 256


PRESETS = {
    "smoke": Spec(
        task=recall.Task(pairs=4, keys=8, values=4, d_model=8, d_head=4), kinds=("linear",), lengths=(1, 2, 4),
        seeds=2, steps=4, every=2, batch=4, test=16,
    ),
    "quick": Spec(),
    "full": Spec(
        task=recall.Task(pairs=64, keys=128), kinds=ALL, lengths=(8, 16, 32, 64), rates=(0.003, 0.01), seeds=5,
        steps=1000, every=50, batch=32, test=1024,
    ),
}  # fmt: skip


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """The metrics of `_focus_in_training.observe` (kind, seed, length, record), and the accuracy of blind answers."""
    key = jax.random.key(spec.seed)
    held_out = spec.task.draw(spec.test, jax.random.fold_in(key, 0), 0)
    results = [recall.train(kind, spec, jax.random.fold_in(key, 1), held_out) for kind in spec.kinds]
    return {name: np.stack([result[name] for result in results]) for name in METRICS} | {
        "step": results[0]["step"],
        "kinds": np.array(spec.kinds),
        "lengths": np.array(spec.lengths),
        "commonest": recall.commonest(held_out, spec.lengths),
    }


def _kinds(data: Data, some: tuple[str, ...] = ALL) -> list[tuple[int, str]]:
    """Index and name of those kinds among `some` that were trained."""
    return [(index, str(kind)) for index, kind in enumerate(data["kinds"]) if str(kind) in some]


def _appearance(kind: str, **other: Any) -> dict[str, Any]:
    meaning, marker, dash = LOOKS[kind]
    return {"color": style.colour(meaning), "marker": marker, "linestyle": style.DASHES[dash]} | other


def plot(data: Data) -> Figure:
    """Accuracy and S against length; both during training; accuracy against S, after and before."""
    drawing, panels = style.figure(columns=3, rows=2, width=5.0, height=4.1)
    right, learning, after, sparse, falling, before = panels
    lengths, step, n = data["lengths"], data["step"], f"n = {data['lengths'][-1]}"
    share, s, pairs = "accuracy (share of right answers)", "S of the question's row", "n, number of pairs"
    grey, one_pair = style.colour("reference"), {"color": style.colour("theory"), "linewidth": 1.2}

    # Against length: accuracy with its baselines, and S before and after training.
    _bands(right, data, lengths, data["accuracy"][..., -1])
    commonest = {"color": grey, "linestyle": style.DASHES[2], "label": "commonest value of the pairs"}
    right.plot(lengths, data["commonest"], **commonest)
    others = float(np.nanmean(data["chance"][..., -1]))
    right.axhline(others, color=grey, linewidth=1, label="answers of other sequences")
    style.panel(right, pairs, share, "Accuracy of recall, by length", log="x", base=2)
    _bands(sparse, data, lengths, data["sparsity"][..., -1])
    for index, kind in _kinds(data):
        start = seed_band(data["sparsity"][index, ..., 0])[1]
        sparse.plot(lengths, start, **_appearance(kind, linestyle="none", markerfacecolor="none"))
    sparse.plot(lengths, lengths**-0.5, label="one pair only: 1/√n", **one_pair)
    style.panel(sparse, pairs, s, "Focus: trained (filled), untrained (hollow)", log="x", base=2)

    # During training, at the largest length.
    _bands(learning, data, step, data["accuracy"][:, :, -1], marker="")
    style.panel(learning, "step (of Adam)", share, f"Learning, {n}")
    _bands(falling, data, step, data["sparsity"][:, :, -1], marker="")
    falling.axhline(lengths[-1] ** -0.5, **one_pair)
    style.panel(falling, "step (of Adam)", s, f"Learning to focus, {n}")
    for ax in (right, sparse):
        ax.set_xticks(lengths, [str(length) for length in lengths])
        ax.set_xticks([], minor=True)
    for ax in (sparse, falling):
        ax.set_yscale("log")
        ax.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
        ax.set_yticks([], minor=True)
    _scatter(after, data, -1, "S after training")
    _scatter(before, data, 0, "S before training")
    mark_failed(right, lengths, (data["failed"] >= 0).any(axis=(0, 1)))
    handles, names = right.get_legend_handles_labels()
    extra = sparse.get_legend_handles_labels()
    drawing.legend(handles + extra[0][-1:], names + extra[1][-1:], loc="outside lower center", ncols=3)
    return drawing


def _bands(ax: Axes, data: Data, x: np.ndarray, values: np.ndarray, **other: Any) -> None:
    """Smallest, median and largest over seeds of every kind: values (kind, seed, x)."""
    for index, kind in _kinds(data):
        appearance = _appearance(kind, **other)
        low, middle, high = seed_band(values[index])
        ax.fill_between(x, low, high, color=appearance["color"], alpha=0.15, linewidth=0)
        ax.plot(x, middle, **appearance, label=kind)


def _scatter(ax: Axes, data: Data, record: int, name: str) -> None:
    """Accuracy after training against S at a record, one point for each kind and length: larger points, more pairs."""
    s, accuracy = data["sparsity"][..., record].mean(axis=1), data["accuracy"][..., -1].mean(axis=1)
    for index, kind in _kinds(data):
        appearance = _appearance(kind, linestyle="none", alpha=0.85)
        for at in range(len(data["lengths"])):
            ax.plot(s[index, at], accuracy[index, at], **appearance, markersize=4 + 2.2 * at)
    rho = f"Spearman's ρ of these points: {recall.rank_correlation(s, accuracy):.2f}".replace("-", "−")
    style.panel(ax, f"{name}, mean over seeds", "accuracy after training", rho)
    ax.set_xlim(0, 1.03)
    text = f"larger: more pairs, n = {data['lengths'][0]} … {data['lengths'][-1]}"
    ax.text(0.02, 0.02, text, fontsize=9, transform=ax.transAxes, color=style.colour("reference"))


def _beside_softmax(data: Data) -> Measured:
    """Pairs in the row and accuracy of linear attention beside softmax, paired by seed; empty without both."""
    linear, softmax = _kinds(data, LINEAR), _kinds(data, ("softmax",))
    if not linear or not softmax:
        return Measured([], numbers={"longest": data["lengths"][-1], "log_ratio": "?", "times": "?", "loss": "?"})
    some, names = [index for index, _ in linear], [kind for _, kind in linear]
    accuracy, seen, base = data["accuracy"][..., -1, -1], data["seen"][..., -1, -1], softmax[0][0]
    more, of_more = mean_and_error(np.log(seen[some] / seen[base]), 1)
    worse, of_worse = mean_and_error(accuracy[base] - accuracy[some], 1)
    return Measured(
        np.concatenate([more, worse]),
        standard_error=np.concatenate([of_more, of_worse]),
        where=[f"{what}, {kind}" for what in ("pairs in the row", "accuracy") for kind in names],
        numbers={
            "longest": data["lengths"][-1],
            "log_ratio": _range(more),
            "times": ", ".join(f"{np.exp(ratio):.3g}" for ratio in more),
            "loss": _range(worse),
        },
    )


def _range(values: np.ndarray) -> str:
    return f"{values.min():.2f} … {values.max():.2f}"


def _blind(data: Data) -> Measured:
    """Accuracy of the kinds that do not see the question, less the share of the commonest value; empty without them."""
    blind = _kinds(data, BLIND)
    accuracy = data["accuracy"][[index for index, _ in blind], ..., -1]
    mean, error = mean_and_error(accuracy - data["commonest"], 1)
    return Measured(
        mean.ravel(),
        standard_error=error.ravel(),
        where=[f"{kind}, n = {n}" for _, kind in blind for n in data["lengths"]],
    )


su = partial(published, source="su2023concentrate")
ROWS = (
    su(
        "focusing-cannot",
        "Linear attention is the poorer of the two at singling out a key token.",
        _beside_softmax,
        at_least(0),
        place="introduction",
        hypotheses="associative recall, one layer, few steps; the source reasons from rows of random weights",
        interval_from="more pairs and less accuracy than softmax, paired by seed",
        note=r"beside softmax attention, at $n=<longest>$; log ratio of $n\thinspace S^{2}$: <log_ratio>, which is "
        "<times> times as many pairs; loss of accuracy: <loss>; the source takes this for a probable main cause of "
        "worse results",
    ),
    su(
        "focusing-blind",
        "Decay expresses only a fixed attention that falls with relative position, and so cannot attend adaptively to "
        "context that is far enough.",
        _blind,
        at_most(LUCK),
        formula=True,
        place="section on linear decay",
        hypotheses="weights that do not see the question; associative recall, one layer, few steps",
        interval_from="an answer that does not depend on the question, and luck: our tolerance",
        note="accuracy less the share of the commonest value of the pairs",
    ),
)
