"""One look for every figure of the package, and for yours: light and dark, without pyplot, nothing global left behind.

Colours follow the set of Okabe and Ito, which colour-blind readers tell apart, lightened on the dark page. Lines also
differ by dash, and points by shape.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

__all__ = ["cycle", "figure", "sequence", "settings", "theme"]

_THEME: ContextVar[str] = ContextVar("theme", default="light")

INK = {"light": "#1b1f24", "dark": "#e6e8eb"}
PAPER = {"light": "#ffffff", "dark": "#15181c"}
QUIET = {"light": "#6a737d", "dark": "#9aa4af"}
GRID = {"light": "#e3e6ea", "dark": "#2b3138"}

BLUE, ORANGE, GREEN, RED, PINK, SKY, GREY = (
    {"light": "#0072b2", "dark": "#4fa8e0"},
    {"light": "#d98c00", "dark": "#f0b13c"},
    {"light": "#00875f", "dark": "#2fc295"},
    {"light": "#d55e00", "dark": "#ff8a45"},
    {"light": "#b8578c", "dark": "#e08fbb"},
    {"light": "#3a9fd4", "dark": "#8fd0f5"},
    QUIET,
)
ORDER = (BLUE, ORANGE, GREEN, PINK, RED, SKY, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))


def current() -> str:
    """The theme in which is drawn."""
    return _THEME.get()


@contextmanager
def theme(name: str) -> Generator[None]:
    """Draw in `"light"` or `"dark"` inside the block.

    Example:
        >>> from rc_jax import style
        >>> with style.theme("dark"):
        ...     drawing, (ax,) = style.figure()
        >>> drawing.get_facecolor()[:3] == ax.get_facecolor()[:3]
        True
    """
    with mpl.rc_context(settings(name)):
        token = _THEME.set(name)
        try:
            yield
        finally:
            _THEME.reset(token)


def settings(name: str = "light") -> dict[Any, Any]:
    """Matplotlib's settings for a theme, for a drawing of your own: `with matplotlib.rc_context(style.settings()):`."""
    if name not in PAPER:
        raise ValueError(f"`name` must be 'light' or 'dark', got {name!r}")
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


def figure(
    columns: int = 1, rows: int = 1, *, width: int | float = 5.6, height: int | float = 4.0
) -> tuple[Figure, list[Axes]]:
    """A figure and its panels, row by row: `drawing, (left, right) = style.figure(columns=2)`.

    What is added to it later, such as a title or a legend, takes the look where it stands inside `theme` too.

    Args:
        columns: panels in a row.
        rows: of panels.
        width: of a panel, in inches.
        height: of a panel, in inches.

    Returns:
        A Matplotlib figure, which `savefig` writes as PDF, PNG or SVG, and the list of its panels.

    Example:
        >>> import io
        >>> from rc_jax import style
        >>> drawing, (left, right) = style.figure(columns=2)
        >>> for index, power in enumerate((1, 2)):
        ...     _ = left.plot([1, 2, 3], [x**power for x in (1, 2, 3)], **style.cycle(index), label=f"power {power}")
        >>> _ = left.set(xlabel="x", ylabel="y", title="Powers"), left.legend()
        >>> drawing.savefig(io.BytesIO(), format="pdf")  # a name such as "mine.pdf" in its place
    """
    with mpl.rc_context(settings(current())):
        drawing = Figure(figsize=(width * columns, height * rows), layout="constrained")
        FigureCanvasAgg(drawing)
        return drawing, list(drawing.subplots(rows, columns, squeeze=False).flat)


def cycle(index: int) -> dict[str, Any]:
    """Colour, marker and dash of the `index`-th of several unordered series, as keywords of `plot`."""
    return {
        "color": ORDER[index % len(ORDER)][current()],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index % len(DASHES)],
    }


def sequence(count: int) -> list[str]:
    """Colours for `count` ordered series (several depths, several β), evenly apart, none as light as the paper."""
    low, high = (0.0, 0.82) if current() == "light" else (0.4, 1.0)
    scale = mpl.colormaps["viridis"]
    return [to_hex(scale(at)) for at in np.linspace(low, high, count)]
