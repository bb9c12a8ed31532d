"""Does the scale of most gradient help? One small transformer trained at many logit scales, fixed and learned."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from experiments.figures._replicates import failures, mark_failed, mean_and_error, seed_band
from experiments.figures.training import _scale_in_training as study
from experiments.figures.training._scale_in_training import Spec
from experiments.figures.training._trained_scales import Pair, pairs_of
from experiments.ledger import Measured, at_most, published
from experiments.lib import style
from experiments.lib.figure import About, Unavailable

_LOG = logging.getLogger(__name__)
ABOUT = About(
    title="Does the scale of most gradient help training?",
    caption=(
        "One small transformer (skips, MLPs, LayerNorm before each sublayer; Adam) learns three tasks. An encoder "
        "reads handwritten digits as patches and sorts symbols; a decoder predicts the next characters of Python's "
        "help texts. There is one training for every scale α, fixed (solid) or starting there and learned (dotted). At "
        "all scales it starts from the same weights and sees the same batches. Bands span all seeds, lines are "
        "medians. The first row shows the held-out loss after the last step. The second shows the steps until 80 % of "
        "the way to the best loss is gone (triangles: not every seed arrives). The third shows the gradient of the "
        "held-out loss before the first step, of all weights and of W_Q, W_K alone. The fourth shows the last value of "
        "a learned α. Preset quick has 5 seeds, 128 steps, cosines on the digits and dot products in sorting, and rows "
        "of so few keys that α* is near the default. It shows how costly a wrong α is early, not which of two near "
        "ones is better. Preset full has all six pairs."
    ),
    formula="logits = α q·k/√d_head  or  α cos(q, k);   α* maximises α(1 − e^{α²}/n),  n keys (decoder: half a window)",
    topic="training",
    minutes={"smoke": 0.2, "quick": 1.5, "full": 90.0},
)

# Every comparison is of the same seed, by Student's interval of 95 % over seeds.
HARDLY = 0.1  # of the fall of the loss: a model that is hardly trained
MEANING = {"dot": "measured", "cosine": "mlp"}
MARK = {"annealed": ("annealed optimum α*", 0), "typical": ("typical optimum", 3), "one": ("α = 1", 2)}

PRESETS = {
    "smoke": Spec(
        pairs=(("sorting", "dot"),), depth=1, length=4, ratios=(1.0,), seeds=2, steps=4, every=2, held_out=8,
        optimiser="sgd",
    ),
    "quick": Spec(pairs=(("digits", "cosine"), ("sorting", "dot")), seeds=5, steps=128, batch=8),
    "full": Spec(
        d_model=32, heads=2, patch=1, window=64, vocabulary=64, length=32, symbols=20,
        ratios=(1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0), seeds=5, steps=1000, every=50,
        held_out=359,
    ),
}  # fmt: skip


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Every metric of every task and kind of scores. Without scikit-learn the digits are left out."""
    data, done = {}, []
    for task, scores in spec.pairs:
        try:
            metrics = study.train(task, scores, spec)
        except ImportError as error:
            _LOG.warning("%s is left out: %s", task, error)
            continue
        data |= {f"{task}_{scores}_{name}": values for name, values in metrics.items()}
        done.append(f"{task}_{scores}")
    if not done:
        raise Unavailable("no task can be made here: digits need scikit-learn, characters Python's help topics")
    return data | {"pairs": np.array(done)}


def plot(data: Mapping[str, np.ndarray]) -> Figure:
    """For each task last loss, steps, gradient at the start and learned scales, against α over the default."""
    pairs = pairs_of(data)
    names = list(dict.fromkeys(pair.task for pair in pairs))
    drawing, panels = style.figure(columns=len(names), rows=4, width=style.PAGE / max(2, len(names)), height=2.9)
    # One row of panels for each measure, one column for each task, both kinds of scores in one panel.
    for row, draw in enumerate((_plot_loss, _plot_steps, _plot_gradient, _plot_learned)):
        for ax, name in zip(panels[row * len(names) :], names, strict=False):
            of_task = [pair for pair in pairs if pair.task == name]
            for pair in of_task:
                draw(ax, pair)
                for which, (label, dash) in _marks(pair.scores):
                    appearance = {"linestyle": style.DASHES[dash], "color": style.colour(MEANING[pair.scores])}
                    at = pair.mark(which) / pair.mark("default")
                    ax.axvline(at, linewidth=1.1, label=f"{label}, {pair.scores}", **appearance)
            x = "first α / default" if row == 3 else "α / default"
            style.panel(ax, x, Y_LABELS[row], _title(of_task[0]) if row == 0 else "", log="x", base=2)
            default = {"color": style.colour("reference"), "linestyle": style.DASHES[1], "linewidth": 1.1}
            ax.axvline(1, label="layer's default", **default)
    # One legend for all panels, under them; what stands in several panels is named once.
    named = {text: line for ax in panels for line, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    drawing.legend(list(named.values()), list(named), loc="outside lower center", ncols=len(names))
    return drawing


Y_LABELS = (
    "last held-out loss (nats)",
    "steps to the threshold",
    "‖gradient‖ before training",
    "learned α / default",
)


def _marks(scores: str) -> list[tuple[str, tuple[str, int]]]:
    return [(which, appearance) for which, appearance in MARK.items() if which != "one" or scores == "cosine"]


def _title(pair: Pair) -> str:
    keys = int(pair["keys"])
    return f"{pair.task} ({f'decoder, {2 * keys} tokens' if pair.task == 'characters' else f'{keys} tokens'})"


def _line(ax: Axes, pair: Pair, values: np.ndarray, dashed: bool = False, band: bool = True) -> None:
    """Median over seeds against α, filled markers and a line, or open ones and dashes; seeds as a band."""
    ratio, color = pair["alphas"] / pair.mark("default"), style.colour(MEANING[pair.scores])
    low, middle, high = seed_band(np.where(np.isfinite(values), values, np.nan))
    if band:
        ax.fill_between(ratio, low, high, color=color, alpha=0.18, linewidth=0)
    scores, marker = ("q·k/√d_head", "o") if pair.scores == "dot" else ("cosines", "s")
    label = f"{scores}: α learned (gradient: W_Q, W_K)" if dashed else f"{scores}: α fixed (gradient: all)"
    line: dict[str, Any] = {"linestyle": style.DASHES[2], "fillstyle": "none"} if dashed else {"linestyle": "-"}
    ax.plot(ratio, middle, **line, color=color, marker=marker, markersize=4, label=label)


def _plot_loss(ax: Axes, pair: Pair) -> None:
    _line(ax, pair, pair.last[0])
    _line(ax, pair, pair.last[1], dashed=True, band=False)
    mark_failed(ax, pair["alphas"] / pair.mark("default"), (pair["failed"] >= 0).any(axis=(0, 1)), clip_on=True)


def _plot_steps(ax: Axes, pair: Pair) -> None:
    """Steps to the threshold, with a triangle where a seed never arrives."""
    _line(ax, pair, pair.steps)
    never = np.isinf(pair.steps).any(axis=0)
    appearance: dict[str, Any] = {"marker": "^", "linestyle": "none", "color": style.colour(MEANING[pair.scores])}
    x = (pair["alphas"] / pair.mark("default"))[never]
    ax.plot(x, np.full(x.shape, 0.95), transform=ax.get_xaxis_transform(), **appearance)
    ax.set_ylim(0, float(pair["step"][-1]) * 1.05)


def _plot_gradient(ax: Axes, pair: Pair) -> None:
    _line(ax, pair, pair["gradient"][0, :, :, 0])
    _line(ax, pair, pair.attention_gradient, dashed=True)
    ax.set_yscale("log")


def _plot_learned(ax: Axes, pair: Pair) -> None:
    ratio = pair["alphas"] / pair.mark("default")
    _line(ax, pair, pair["alpha"][1, :, :, -1] / pair.mark("default"), dashed=True)
    ax.plot(ratio, ratio, color=style.colour("reference"), linewidth=1, label="where it started")
    ax.set_yscale("log", base=2)


def _share_of_fall(data: Mapping[str, np.ndarray]) -> Measured:
    """The share of the best fall of the held-out loss that training on cosines at factor 1 reaches: means over seeds.

    The standard error is a quarter of Student's interval, so that two are half of it. A replicate that stopped leaves
    NaN in what is read, and the row not run.
    """
    seeds = pairs_of(data)[0].last.shape[1]
    pairs = [pair for pair in pairs_of(data) if pair.scores == "cosine"]
    if not pairs:
        return Measured([], numbers={"seeds": seeds, "sizes": "no cosines here", "means": "none"})
    losses = [pair.column(pair["held_out"][0, ..., 0], "one") - pair.column(pair.last[0], "one") for pair in pairs]
    best = [pair["held_out"][0, ..., 0].mean() - pair.last[0].mean(axis=0).min() for pair in pairs]
    means, errors = mean_and_error([fall / most for fall, most in zip(losses, best, strict=True)], axis=1)
    behind, spread = mean_and_error([pair.ahead("annealed", "one") for pair in pairs], axis=1)
    quarter = stats.t.ppf(0.975, seeds - 1) / 2 * errors
    sizes = [
        f"n = {int(pair['keys'])}, d = {pair.mark('default') ** 2:.0f}, factor {pair.mark('annealed'):.3g}"
        for pair in pairs
    ]
    notes = [f"{pair.label} {mean:.3g} ± {error:.2g}" for pair, mean, error in zip(pairs, behind, spread, strict=True)]
    lost = [failures(pair["failed"][0], [f"{alpha:.3g}" for alpha in pair["alphas"]]) for pair in pairs]
    return Measured(
        means,
        standard_error=quarter,
        where=[pair.label for pair in pairs],
        reads=[pair.last[0] for pair in pairs],
        numbers={"seeds": seeds, "sizes": ", ".join(sizes), "means": "; ".join([*notes, *filter(None, lost)])},
    )


ROWS = (
    published(
        "trained-scale-one",
        "Softmax over cosines has to be multiplied by a factor, because models can hardly be trained without.",
        _share_of_fall,
        at_most(HARDLY),
        source="su2023scale",
        place="section on cosines",
        elsewhere="the source speaks of the losses of AM-Softmax and SimCSE, and attention is tested here",
        hypotheses="a small transformer, <seeds> seeds in pairs; ± is a quarter of Student's 95 % interval; <sizes>",
        after_result=True,
        interval_from="our reading of hardly: a tenth of the fall of the loss at the best factor; chosen when a loss "
        "that "
        "is higher by 0.42 nats was known",
        note="the share of that fall at factor 1; the loss ends higher than at the annealed optimum, by <means>, nats",
    ),
)
