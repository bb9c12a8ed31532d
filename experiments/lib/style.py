"""One look for every figure, light and dark, without pyplot: nothing global is left behind.

Colours go by meaning, so that the same thing has the same colour in every figure. They follow the set of Okabe and Ito,
which colour-blind readers tell apart, lightened on the dark page; lines also differ by dash and points by shape.
Theory is a line, simulation is points or a band.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation
from numpy.typing import ArrayLike

_THEME: ContextVar[str] = ContextVar("theme", default="light")

INK = {"light": "#1b1f24", "dark": "#e6e8eb"}
PAPER = {"light": "#ffffff", "dark": "#15181c"}
QUIET = {"light": "#6a737d", "dark": "#9aa4af"}
GRID = {"light": "#e3e6ea", "dark": "#2b3138"}

_BLUE, _ORANGE, _GREEN, _RED, _PINK, _SKY, _GREY = (
    {"light": "#0072b2", "dark": "#4fa8e0"},
    {"light": "#d98c00", "dark": "#f0b13c"},
    {"light": "#00875f", "dark": "#2fc295"},
    {"light": "#d55e00", "dark": "#ff8a45"},
    {"light": "#b8578c", "dark": "#e08fbb"},
    {"light": "#3a9fd4", "dark": "#8fd0f5"},
    QUIET,
)
ORDER = (_BLUE, _ORANGE, _GREEN, _PINK, _RED, _SKY, _GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
BELOW = 38  # points from a panel to a legend below it
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
MEANINGS = {
    "theory": INK,  # an exact formula or bound
    "measured": _BLUE,  # simulation
    "published": _RED,  # the number as the source has it
    "corrected": _GREEN,
    "reference": QUIET,  # guides, thresholds
    "float32": _ORANGE,  # what plain arithmetic would have shown
    "float64": _PINK,
    "attention": _BLUE,  # attention only
    "skip": _GREEN,
    "mlp": _ORANGE,
    "full": _PINK,
    "stochastic": _RED,  # product of frozen random stochastic matrices
    "trained": _BLUE,
    "random": _RED,
    "softmax": _BLUE,
    "relu_squared": _RED,
    "identity": _ORANGE,
    "linear": _GREEN,
    "decay": _PINK,
}


@contextmanager
def theme(name: str) -> Iterator[None]:
    """Draw in `"light"` or `"dark"` inside the block."""
    if name not in PAPER:
        raise ValueError(f"`name` must be 'light' or 'dark', got {name!r}")
    token = _THEME.set(name)
    try:
        with mpl.rc_context(settings(name)):
            yield
    finally:
        _THEME.reset(token)


def settings(name: str) -> dict[Any, Any]:
    """Matplotlib's settings for a theme."""
    ink, quiet, paper = INK[name], QUIET[name], PAPER[name]
    return {
        "figure.facecolor": paper, "savefig.facecolor": paper, "axes.facecolor": paper,
        "figure.dpi": 110, "savefig.dpi": 150,
        "text.color": ink, "axes.labelcolor": ink, "axes.titlecolor": ink, "axes.edgecolor": quiet,
        "xtick.color": quiet, "ytick.color": quiet, "xtick.labelcolor": ink, "ytick.labelcolor": ink,
        "axes.grid": True, "grid.color": GRID[name], "grid.linewidth": 0.7, "axes.axisbelow": True,
        "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8,
        "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 10, "axes.titlesize": 11,
        "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.labelsize": 10, "legend.fontsize": 9,
        "legend.frameon": True, "legend.framealpha": 0.85, "legend.facecolor": paper, "legend.edgecolor": "none",
        "lines.linewidth": 1.8, "lines.markersize": 5, "pdf.fonttype": 42, "axes.prop_cycle": cycler(
            color=[pair[name] for pair in ORDER]
        ),
    }  # fmt: skip


def figure(columns: int = 1, rows: int = 1, *, width: float = 5.6, height: float = 4.0) -> tuple[Figure, list[Axes]]:
    """A figure and its panels, row by row: `drawing, (left, right) = style.figure(columns=2)`; inches are per panel."""
    with mpl.rc_context(settings(_THEME.get())):
        drawing = Figure(figsize=(width * columns, height * rows), layout="constrained")
        FigureCanvasAgg(drawing)
        return drawing, list(drawing.subplots(rows, columns, squeeze=False).flat)


def colour(meaning: str) -> str:
    """The colour of a meaning (`"theory"`, `"measured"`, `"published"`, …) in the current theme."""
    if meaning not in MEANINGS:
        raise ValueError(f"`meaning` must be one of {', '.join(MEANINGS)}, got {meaning!r}")
    return MEANINGS[meaning][_THEME.get()]


def cycle(index: int) -> dict[str, Any]:
    """Colour, marker and dash of the `index`-th of several unordered series."""
    return {
        "color": ORDER[index % len(ORDER)][_THEME.get()],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index % len(DASHES)],
    }


def sequence(count: int) -> list[str]:
    """Colours for `count` ordered series (several depths, several β), evenly apart, none as light as the paper."""
    low, high = (0.0, 0.82) if _THEME.get() == "light" else (0.25, 1.0)
    scale = mpl.colormaps["viridis"]
    return [to_hex(scale(at)) for at in np.linspace(low, high, count)]


def bands(
    ax: Axes,
    x: ArrayLike,
    low: ArrayLike,
    median: ArrayLike,
    high: ArrayLike,
    *,
    meaning: str = "measured",
    color: str | None = None,
    label: str | None = None,
    marker: str | None = None,
    alpha: float = 0.22,
) -> None:
    """A quantile band with its median line; `color` overrides the colour of `meaning`."""
    tint = color or colour(meaning)
    ax.fill_between(x, low, high, color=tint, alpha=alpha, linewidth=0)
    ax.plot(x, median, color=tint, label=label, marker=marker)


def labels(ax: Axes, x: str, y: str, title: str = "") -> None:
    """Axis labels (with units) and a panel title."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if title:
        ax.set_title(title)


def panel(
    ax: Axes, x: str, y: str, title: str = "", *, log: str = "", base: float = 10, legend: Any = None, **options: Any
) -> None:
    """Finish a panel: labels with units, a title, logarithmic axes (`log` is "x", "y" or "xy"), and a legend.

    Args:
        ax: The panel.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        title: Title of the panel.
        log: The axes that are logarithmic.
        base: Of a logarithmic horizontal axis; a vertical one has 10.
        legend: Where the legend goes, as for `style.legend`; none if None.
        **options: Of the legend.
    """
    if "x" in log:
        ax.set_xscale("log", base=base)
    if "y" in log:
        ax.set_yscale("log")
    labels(ax, x, y, title)
    if legend is not None:
        _legend(ax, legend, **options)


def legend(ax: Axes, place: Any = "best", *, columns: int = 1, **options: Any) -> None:
    """A legend inside at `place`, or, so that it covers no data, `"below"` or `"right"` of the panel."""
    if place == "below":
        # under numbers and label, which are as high on a low panel as on a high one
        shift = ScaledTranslation(0, -BELOW / 72, ax.figure.dpi_scale_trans)
        options |= {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": ax.transAxes + shift}
        ax.legend(ncols=columns, borderaxespad=0.0, **options)
    elif place == "right":
        ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), ncols=columns, borderaxespad=0.0, **options)
    else:
        ax.legend(loc=place, ncols=columns, **options)


def ticks(axis: Axis, values: Iterable[float]) -> None:
    """Plain numbers on a logarithmic axis of few decades, where powers of ten would leave it nearly bare."""
    chosen = tuple(values)
    axis.set_ticks(chosen, [f"{value:g}" for value in chosen])
    axis.set_ticks([], minor=True)


_legend = legend  # under a name that an argument does not hide


def reference(
    ax: Axes, *, x: float | None = None, y: float | None = None, text: str = "", meaning: str = "reference"
) -> None:
    """A dashed guide at `x` or at `y`, named along the line, at its end."""
    tint, about = colour(meaning), {"fontsize": 8.5, "color": colour(meaning)}
    if y is not None:
        ax.axhline(y, color=tint, linestyle=DASHES[1], linewidth=1.1)
        ax.annotate(text, (1.0, y), xycoords=("axes fraction", "data"), xytext=(-3, 3), textcoords="offset points",
                    ha="right", va="bottom", **about)  # fmt: skip
    if x is not None:
        ax.axvline(x, color=tint, linestyle=DASHES[1], linewidth=1.1)
        ax.annotate(text, (x, 1.0), xycoords=("data", "axes fraction"), xytext=(-3, -3), textcoords="offset points",
                    ha="right", va="top", rotation=90, **about)  # fmt: skip
