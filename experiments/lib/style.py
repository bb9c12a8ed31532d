"""The look of the figures: what `rc_jax.style` has, and meanings, panels, legends and guides on top of it.

Colours go by meaning, so that the same thing has the same colour in every figure. Theory is a line, simulation is
points or a band.
"""

from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation
from numpy.typing import ArrayLike

from rc_jax.style import (
    BLUE,
    DASHES,
    GREEN,
    INK,
    MARKERS,
    ORANGE,
    ORDER,
    PAPER,
    PINK,
    QUIET,
    RED,
    current,
    cycle,
    sequence,
    settings,
    theme,
)

__all__ = [
    "DASHES",
    "INK",
    "MARKERS",
    "ORDER",
    "PAGE",
    "PAPER",
    "bands",
    "colour",
    "current",
    "cycle",
    "figure",
    "labels",
    "legend",
    "panel",
    "reference",
    "sequence",
    "settings",
    "theme",
    "ticks",
]

PAGE = 9.0  # inches that a page shows at its width of 46 em, where letters of 9 points are then ten pixels high
ABOVE = 0.84  # of a panel with its margins: room for a title, which starts where the axis does
BELOW = 38  # points from a panel to a legend below it
MEANINGS = {
    "theory": INK,  # an exact formula or bound
    "measured": BLUE,  # simulation
    "published": RED,  # the number as the source has it
    "corrected": GREEN,
    "reference": QUIET,  # guides, thresholds
    "float32": ORANGE,  # what plain arithmetic would have shown
    "float64": PINK,
    "attention": BLUE,  # attention only
    "skip": GREEN,
    "mlp": ORANGE,
    "full": PINK,
    "stochastic": RED,  # product of frozen random stochastic matrices
    "trained": BLUE,
    "random": RED,
    "softmax": BLUE,
    "relu_squared": RED,
    "identity": ORANGE,
    "linear": GREEN,
    "decay": PINK,
}


def colour(meaning: str) -> str:
    """The colour of a meaning (`"theory"`, `"measured"`, `"published"`, …) in the current theme."""
    if meaning not in MEANINGS:
        raise ValueError(f"`meaning` must be one of {', '.join(MEANINGS)}, got {meaning!r}")
    return MEANINGS[meaning][current()]


def figure(
    columns: int = 1, rows: int = 1, *, width: int | float = 5.6, height: int | float = 4.0
) -> tuple[Figure, list[Axes]]:
    """A figure that a page shows with letters of ten pixels, and its panels, row by row.

    Panels that are too wide for their row go on in the next one; what is left for the last row stands in its middle.

    Args:
        columns: panels in a row, if there is room.
        rows: of as many panels.
        width: of a panel, in inches, if there is room.
        height: of a panel, in inches.
    """
    count, least = columns * rows, min(width, PAGE / 2)
    across = min(columns, int(PAGE / least))
    down, width = -(-count // across), min(width, PAGE / across)
    with mpl.rc_context(settings(current())):
        drawing = Figure(figsize=(width * across, height * down), layout="constrained")
        FigureCanvasAgg(drawing)
        grid, panels = drawing.add_gridspec(down, 2 * across), []
        for index in range(count):
            row, column = divmod(index, across)
            shift = max(0, (row + 1) * across - count)  # half panels that the last row is moved to the right
            panels.append(drawing.add_subplot(grid[row, 2 * column + shift : 2 * column + shift + 2]))
        return drawing, panels


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
    """Axis labels (with units) and a panel title, in two lines where one would reach into the next panel."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if title and ("\n" in title or _fits(ax, title)):
        ax.set_title(title)
    elif title:
        words = title.split(" ")
        at = max((at for at in range(1, len(words)) if _fits(ax, " ".join(words[:at]))), default=1)
        ax.set_title(" ".join(words[:at]) + "\n" + " ".join(words[at:]))


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
        made = ax.legend(ncols=columns, borderaxespad=0.0, **options)
        while columns > 1 and made.get_window_extent().width > _room(ax):
            columns -= 1
            made = ax.legend(ncols=columns, borderaxespad=0.0, **options)
    elif place == "right":
        ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), ncols=columns, borderaxespad=0.0, **options)
    else:
        ax.legend(loc=place, ncols=columns, **options)


def _fits(ax: Axes, title: str) -> bool:
    return ax.set_title(title).get_window_extent().width <= ABOVE * _room(ax)


def _room(ax: Axes) -> float:
    """The width of a panel with its margins, in pixels."""
    place = ax.get_subplotspec()
    share = 1.0 if place is None else place.colspan.stop - place.colspan.start
    drawing = ax.figure.get_figure(root=True)
    whole = 1.0 if place is None else place.get_topmost_subplotspec().get_gridspec().ncols
    return float(drawing.get_figwidth() * drawing.dpi * share / whole)


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
    tint, about = colour(meaning), {"fontsize": 9, "color": colour(meaning)}
    if y is not None:
        ax.axhline(y, color=tint, linestyle=DASHES[1], linewidth=1.1)
        ax.annotate(text, (1.0, y), xycoords=("axes fraction", "data"), xytext=(-3, 3), textcoords="offset points",
                    ha="right", va="bottom", **about)  # fmt: skip
    if x is not None:
        ax.axvline(x, color=tint, linestyle=DASHES[1], linewidth=1.1)
        ax.annotate(text, (x, 1.0), xycoords=("data", "axes fraction"), xytext=(-3, -3), textcoords="offset points",
                    ha="right", va="top", rotation=90, **about)  # fmt: skip
