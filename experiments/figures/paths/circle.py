"""The circle: one trained layer fed its own answers, with and without skip connections and MLP, and two built ones."""

import math
from typing import Any

import numpy as np
from matplotlib.animation import FuncAnimation
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.figures.paths import _circle_built, _circle_claims
from experiments.figures.paths._circle import (
    COLLAPSED,
    FATES,
    LABELS,
    SWITCHES,
    Data,
    distances,
    first_events,
    frozen,
    share_of,
    tolerated,
    trained,
)
from experiments.lib import figure, style
from experiments.lib.figure import About

ABOUT = About(
    title="Round the circle on its own answers",
    caption=(
        "One attention layer is trained by L-BFGS to move two opposite points of a circle one step on, and is then "
        "fed its own answers for 300 steps. Training starts from usual random weights or from 0.1 times them. The "
        "first four panels show the roll-outs of all seeds from small weights, until the points meet (×, distance "
        "below 1 % of the start) or leave (2 radii). The next four show the distance of the two points, one line for "
        "each seed up to that event, and the median before training, dashed. The last four show the first event of "
        "the layers that learnt the step, the growth of small displacements along the true circle, and two layers of "
        "pure attention whose weights are built by hand. One head is unstable: any error of the radius grows. Two "
        "heads with values of opposite sign are stable: disturbed pairs of points come back. From small weights, "
        "training finds layers with a skip connection that stay on the circle."
    ),
    formula="one head: ∂ log r′/∂ log r = 1 + 4y/sinh 2y;   two heads: Σ g tanh y = 1, Σ g (tanh y + 2y/cosh² y) = 1/2",
    topic="paths",
    minutes={"smoke": 0.15, "quick": 0.3, "full": 40.0},
    core=True,
)
SHOWN = (1e-3, 10.0)  # distances that are drawn
TINY = 1e-8  # below it a deviation is rounding
FRAMES, TRAIL = 40, 8  # of the animation; moments that a point leaves behind it
SMALL = 9  # font size


class Spec(figure.Spec):
    """Points, widths, factors on random weights, how training goes, length of roll-outs, starts of the built layer.

    Training sees one pair in `apart`, and ends at `loss` or after as many `iterations`.
    """

    points: int = 1000
    dims: tuple[int, ...] = (32, 84, 128)
    gains: tuple[float, ...] = (0.1, 1.0)
    seeds: int = 20
    apart: int = 25
    iterations: int = 3000
    loss: float = 3e-11
    dtype: str = "float64"
    roll_out: int = 300
    starts: int = 200
    built_steps: int = 1000


PRESETS = {
    "smoke": Spec(points=40, dims=(8,), seeds=2, apart=4, iterations=20, roll_out=20, starts=20, built_steps=80),
    "quick": Spec(dims=(32,), seeds=5, iterations=300),
    "full": Spec(apart=10),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """By width and first weights, seed, switch and before/after: roll-outs, loss, exponent; then layers by hand."""
    kinds = [(dim, gain) for dim in spec.dims for gain in spec.gains]
    runs = [trained(spec, *kind) for kind in kinds]
    data = {name: np.stack([run[name] for run in runs]) for name in ("path", "error", "exponent")}
    data |= {"path": frozen(data["path"]), "dims": np.array([dim for dim, _ in kinds]),
             "gains": np.array([gain for _, gain in kinds])}  # fmt: skip
    return data | _circle_built.compute(spec)


def plot(data: Data) -> Figure:
    """Roll-outs and distances for the four settings of the switches; fates; exponents; the two layers built by hand."""
    drawing, panels = style.figure(columns=4, rows=3, width=4.5, height=3.7)
    drawn, kinds = _drawn(data), _circle_claims.kinds(data)
    for index, name in enumerate(SWITCHES):
        _plot_paths(panels[index], data["path"][drawn, :, index, -1])
        style.panel(panels[index], "x", "y", LABELS[name])
        _plot_distances(panels[4 + index], data["path"][:, :, index], kinds, LABELS[name])
    style.legend(panels[0], "lower left", fontsize=SMALL)
    panels[6].plot([], [], color=style.colour("reference"), linestyle=style.DASHES[1], label="before training")
    style.legend(panels[6], "lower right", fontsize=SMALL)
    _plot_fates(panels[8], data)
    _plot_exponents(panels[9], data)
    _plot_maps(panels[10], data)
    _plot_returns(panels[11], data)
    return drawing


def _drawn(data: Data) -> int:
    """Index of the width and the first weights whose roll-outs are drawn: the smallest weights at a width near 32."""
    return int(np.argmin(np.abs(data["dims"] - 32)))


def _plot_paths(ax: Axes, path: np.ndarray) -> None:
    radius = _draw_circle(ax, path, 5)
    fate, when = first_events(path)
    for seed, (points, what, end) in enumerate(zip(path, fate, when, strict=True)):
        for token, color in enumerate(_point_colours()):
            x, y = points[: end + 1, token].T
            ax.plot(x, y, color=color, linewidth=1, alpha=0.8, label=f"point {token + 1}" if seed == 0 else None)
            ax.plot(x[:1], y[:1], "o", color=color, markersize=4)
        if FATES[what] == "collapsed":
            ax.plot(*points[end].mean(axis=0), "x", color=style.colour("theory"), markersize=5, zorder=4)
    size = 0.56 / 0.3 * radius
    ax.set(xlim=(-size, size), ylim=(-size, size), aspect="equal")


def _draw_circle(ax: Axes, path: np.ndarray, width: float) -> float:
    """The circle that the roll-outs (seed, time, token, coordinate) start on; returns its radius."""
    radius = float(np.linalg.norm(path[0, 0, 0]))
    angle = np.linspace(0, 2 * np.pi, 200)
    grey = style.colour("reference")
    ax.plot(radius * np.cos(angle), radius * np.sin(angle), color=grey, linewidth=width, alpha=0.25)
    return radius


def _point_colours() -> tuple[str, str]:
    return style.cycle(0)["color"], style.cycle(1)["color"]


def animate(data: Data) -> FuncAnimation:
    """The roll-outs of all seeds at one width, step by step; where two points have met, a cross stays."""
    path = data["path"][_drawn(data), :, :, -1]  # seed, switch, time, token, coordinate
    last = path.shape[2] - 1
    drawing, panels = style.figure(columns=4, width=2.25, height=2.9)
    parts = [
        _start_panel(ax, path[:, index], LABELS[name])
        for index, (ax, name) in enumerate(zip(panels, SWITCHES, strict=True))
    ]
    clock = drawing.suptitle(f"step 0 of {last}", fontsize=11)
    events = [first_events(path[:, index]) for index in range(len(parts))]

    def update(step: int) -> None:
        clock.set_text(f"step {step} of {last}")
        for index, (lines, crosses) in enumerate(parts):
            # The crosses of the pairs that have met, and the counts under the panel.
            fate, when = events[index]
            met = (fate == FATES.index("collapsed")) & (when <= step)
            left = (fate == FATES.index("left")) & (when <= step)
            panels[index].set_xlabel(f"{met.sum()} met, {left.sum()} left, of {len(path)}", fontsize=9)
            where = path[met, index, when[met]].mean(axis=1)
            crosses.set_data(where[:, 0], where[:, 1])
            # The last moments of every point that is still on its way.
            for seed, pair in enumerate(lines):
                gone = step > when[seed] and FATES[fate[seed]] != "kept"
                for token, line in enumerate(pair):
                    x, y = path[seed, index, max(0, step - TRAIL) : step + 1, token].T
                    line.set_data(([], []) if gone else (x, y))

    moments = np.unique(np.round(last * np.linspace(0, 1, FRAMES) ** 2).astype(int))
    return FuncAnimation(drawing, update, frames=moments, init_func=lambda: None)


def _start_panel(ax: Axes, path: np.ndarray, title: str) -> tuple[list[list[Line2D]], Line2D]:
    """The empty panel of one setting: a line with a dot at its end for each seed and point, and the crosses."""
    size = 0.56 / 0.3 * _draw_circle(ax, path, 4)
    appearance: dict[str, Any] = {"markersize": 4, "markevery": [-1], "linewidth": 1}
    lines = [[ax.plot([], [], "-o", color=color, **appearance)[0] for color in _point_colours()] for _ in path]
    crosses = ax.plot([], [], "x", color=style.colour("theory"), markersize=5, zorder=4)[0]
    ax.set(xlim=(-size, size), ylim=(-size, size), aspect="equal", xticks=[], yticks=[])
    ax.grid(visible=False)
    ax.set_title(title, fontsize=10)
    return lines, crosses


def _plot_distances(ax: Axes, path: np.ndarray, kinds: list[str], title: str) -> None:
    """`path`: kind of start, seed, before/after, time, token, coordinate. A line ends where points meet or leave."""
    time = np.arange(1, path.shape[-3])
    for points, kind, color in zip(path, kinds, style.sequence(len(kinds)), strict=True):
        ends = first_events(points)[1]
        apart = np.clip(distances(points), *SHOWN)
        for seed, end in enumerate(ends[:, 1]):
            label = kind if seed == 0 else None
            ax.plot(time[:end], apart[seed, 1, 1 : end + 1], color=color, linewidth=1, alpha=0.7, label=label)
            ax.plot(time[end - 1], apart[seed, 1, end], "o", color=color, markersize=2.5)
        middle = np.exp(np.median(np.log(apart[:, 0]), axis=0))
        last = int(np.median(ends[:, 0]))
        ax.plot(time[:last], middle[1 : last + 1], color=color, linestyle=style.DASHES[1], linewidth=1.3)
    style.reference(ax, y=COLLAPSED, text="met")
    style.panel(ax, "roll-out step", "distance of the points / at the start", title, log="xy")
    ax.set(xlim=(0.9, 1.1 * len(time)), ylim=SHOWN)


def _plot_fates(ax: Axes, data: Data) -> None:
    """Among the layers that learnt the step; a bar is empty where none did."""
    fate = first_events(data["path"][..., -1, :, :, :])[0]
    texts = [f"{label}, {kind}" for label in LABELS.values() for kind in _circle_claims.kinds(data)]
    height = np.arange(len(texts))[::-1].astype(float)
    start = np.zeros(len(texts))
    for index, (name, shade) in enumerate(zip(FATES, (4, 2, 6), strict=True)):
        share = np.nan_to_num(share_of(fate == index, _circle_claims.learnt_by(data), axis=1)[0].T.ravel())
        ax.barh(height, share, left=start, color=style.cycle(shade)["color"], label=name, height=0.8)
        start += share
    # The names stand on the bars: beside them they would take room from all panels below each other.
    look = {"boxstyle": "square,pad=0.15", "facecolor": style.PAPER[style.current()], "alpha": 0.7, "edgecolor": "none"}
    for place, text in zip(height, texts, strict=True):
        ax.text(0.02, place, text, va="center", fontsize=SMALL, bbox=look)
    ax.set_yticks([])
    ax.set_xlim(0, 1)
    style.panel(ax, "share of layers that learnt", "", "The first event", legend="below", columns=3, fontsize=SMALL)


def _plot_exponents(ax: Axes, data: Data) -> None:
    exponent, kinds = data["exponent"][..., -1], _circle_claims.kinds(data)
    spread = np.linspace(-0.28, 0.28, len(kinds)) if len(kinds) > 1 else np.zeros(1)
    for values, kind, shift, color in zip(exponent, kinds, spread, style.sequence(len(kinds)), strict=True):
        at = np.broadcast_to(np.arange(len(SWITCHES)) + shift, values.shape)
        ax.plot(at.ravel(), values.ravel(), "o", color=color, markersize=3.5, alpha=0.7, label=kind)
    ax.set_yscale("symlog", linthresh=0.1, linscale=1)
    style.reference(ax, y=math.log(3), text="log 3", meaning="theory")
    style.reference(ax, y=tolerated(data["path"]), text="1e-5 → 1 in the roll-out")
    ax.set_xticks(range(len(SWITCHES)), ["att.\nonly", "+ skip", "+ MLP", "+ both"], fontsize=SMALL)
    style.panel(ax, "", "Lyapunov exponent (nats per step)", "Growth of displacements")


def _plot_maps(ax: Axes, data: Data) -> None:
    for index, name in enumerate(("one_head", "two_heads")):
        appearance = style.cycle(index) | {"marker": None, "label": name.replace("_", " ")}
        ax.plot(_circle_built.SIZES, data[name], **appearance)
    style.reference(ax, y=1.0)
    style.reference(ax, x=1.0, text="the circle")
    x, y = "radius r of two opposite points", "r after one step / r"
    style.panel(ax, x, y, "Weights built by hand", log="x", legend="lower right", fontsize=SMALL)
    ax.set_xticks([0.3, 0.5, 1, 2, 3], ["0.3", "0.5", "1", "2", "3"])
    ax.minorticks_off()


def _plot_returns(ax: Axes, data: Data) -> None:
    time, noises = np.arange(data["returns"].shape[-1]), _circle_built.NOISE
    for values, noise, color in zip(data["returns"], noises, style.sequence(len(noises)), strict=True):
        low, middle, high = np.quantile(np.maximum(values, TINY), (0.05, 0.5, 0.95), axis=0)
        style.bands(ax, time, low, middle, high, color=color, label=f"noise {noise:.0%}")
    apart = np.maximum(data["right_angle"][: len(time)], TINY)
    appearance = {"color": style.colour("reference"), "linestyle": style.DASHES[1]}
    ax.plot(time[: len(apart)], apart, label="90° apart: their distance", **appearance)
    style.reference(ax, y=_circle_claims.RETURNED, text="back")
    y, title = "distance from opposite points (radii)", "Two heads: points come back"
    style.panel(ax, "step", y, title, log="y", legend="upper right", fontsize=SMALL)
    ax.set_ylim(TINY / 2, 10)


ROWS = _circle_claims.ROWS
