"""`rc-jax trace --figure`: six panels drawn from the result that JSON prints. Matplotlib is imported here only."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

BLUE, ORANGE, GREEN, INK, QUIET = "#0072b2", "#d98c00", "#00875f", "#1b1f24", "#6a737d"  # after Okabe and Ito
SETTINGS: dict[Any, Any] = {
    "font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left", "axes.titleweight": "bold",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e3e6ea",
    "axes.axisbelow": True, "legend.fontsize": 9, "legend.framealpha": 0.85, "legend.edgecolor": "none",
    "pdf.fonttype": 42, "svg.fonttype": "none", "savefig.dpi": 150,
}  # fmt: skip


def save(result: dict[str, Any], path: Path) -> None:
    """Draw and write, in the format that the file's ending names.

    Raises:
        OSError: the file cannot be written.
    """
    with mpl.rc_context(SETTINGS):
        draw(result).savefig(path, format=path.suffix[1:].lower())


def draw(result: dict[str, Any]) -> Figure:
    """Residuals, log residual and path shares above; sparsity and entropy, ranks, and scales of heads below."""
    drawing = Figure(figsize=(15, 8.4), layout="constrained")
    of_layers = "layer (0: embeddings)"
    cosines = result["cosine_optimal_scale"] is not None
    scales = "factor on cosines" if cosines else "implied α: deviation of a row's logits"
    ranks = f"effective rank (of at most {result['tokens']})"
    # Six panels, each filled by its own function; one that theory does not cover shows the reason in place of axes.
    panels = (
        (_residuals, of_layers, "relative residual ‖res(X)‖/‖X‖", "How far tokens are from equal"),
        (_log_residual, of_layers, "log ‖res(X)‖ in Frobenius norm (nats)", "Residual in exact arithmetic"),
        (_paths, "length of path (heads on it)", "share, adds up to 1", "Paths, MLPs and norms off"),
        (_evenness, "layer", "of a row of attention (1: even)", "How even rows of attention are"),
        (_ranks, of_layers, ranks, "Effective ranks"),
        (_scales, "layer", scales, "Scale against the one of most gradient"),
    )
    for ax, (fill, x, y, title) in zip(drawing.subplots(2, 3).flat, panels, strict=True):
        fill(ax, result)
        ax.set(xlabel=x, ylabel=y)
        ax.set_title(title)
        if ax.texts:  # the panel is left out
            ax.set_xticks([])
            ax.set_yticks([])
        else:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    folder = "/".join(Path(result["folder"]).parts[-2:])
    drawing.suptitle(
        f"{folder} ({result['model']}), {' + '.join(result['switches'])}: {result['windows_done']} windows of "
        f"{result['tokens']} tokens, {result['dtype']}; bars: standard deviation, bands: range over windows",
        fontsize=10,
        color=QUIET,
        parse_math=False,
    )
    return drawing


def _column(rows: list[dict[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Means and deviations of an observable; NaN where there is none."""
    values = np.array(
        [[(row[name] or {}).get(kind) for kind in ("mean", "standard_deviation")] for row in rows], dtype=float
    )  # where None becomes NaN
    return values[:, 0], np.nan_to_num(values[:, 1])


def _line(ax: Axes, x: list[int], rows: list[dict[str, Any]], name: str, color: str, marker: str, label: str) -> None:
    middle, spread = _column(rows, name)
    ax.errorbar(x, middle, spread, color=color, marker=marker, markersize=5, capsize=2, label=label)


def _layers(result: dict[str, Any]) -> list[int]:
    return [row["layer"] for row in result["layers"]]


def _residuals(ax: Axes, result: dict[str, Any]) -> None:
    rows, layers, floor = result["layers"], _layers(result), result["rounding_floor"]
    least = 1.0
    for name, color, marker, label in (
        ("relative_residual_1inf", BLUE, "o", "composite norm 1,∞"),
        ("relative_residual_frobenius", ORANGE, "s", "Frobenius norm"),
    ):
        middle = _column(rows, name)[0]
        low, high = (np.array([row[name][kind] or np.nan for row in rows]) for kind in ("minimum", "maximum"))
        shown = np.where(middle < floor, np.nan, middle)
        ax.fill_between(layers, np.maximum(low, floor), np.maximum(high, floor), color=color, alpha=0.2, linewidth=0)
        ax.plot(layers, shown, color=color, marker=marker, markersize=5, label=label)
        least = min(least, np.nanmin(middle, initial=1.0))
    # The axis is logarithmic where something collapses, and shows the rounding floor where that is near.
    if least < 0.05:
        ax.set_yscale("log")
        if least < 100 * floor:
            ax.axhline(floor, color=QUIET, linestyle="--", linewidth=1, label="only rounding below")
    else:
        ax.set_ylim(0, None)
    ax.legend(loc="best")


def _log_residual(ax: Axes, result: dict[str, Any]) -> None:
    if "log_residual" in result["reasons"]:
        _left_out(ax, result["reasons"]["log_residual"])
    else:
        _line(ax, _layers(result), result["layers"], "log_residual", BLUE, "o", "mean")


def _paths(ax: Axes, result: dict[str, Any]) -> None:
    if result["paths"] is None:
        _left_out(ax, result["reasons"]["paths"])
        return
    lengths = [row["length"] for row in result["paths"]]
    _line(ax, lengths, result["paths"], "share", BLUE, "o", "of the output")
    _line(ax, lengths, result["paths"], "residual_share", ORANGE, "s", "of the differences between tokens")
    ax.axhline(0, color=QUIET, linewidth=0.8)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.25 * (high - low))  # space for the legend
    ax.legend(loc="upper right")


def _left_out(ax: Axes, reason: str) -> None:
    text = "left out:\n" + reason.replace("$", "\\$")  # what wraps is read as mathtext whatever `parse_math` says
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", wrap=True, color=QUIET)


def _heads(ax: Axes, result: dict[str, Any], name: str, color: str, marker: str, label: str, shift: float) -> None:
    """A point for each head, spread a little, and the median over heads as a line."""
    rows = [row for row in result["layers"] if "heads" in row]
    if not rows:
        return
    values = np.array([_column(row["heads"], name)[0] for row in rows])
    layers = np.array([row["layer"] for row in rows])
    spread = np.linspace(-0.1, 0.1, values.shape[1])
    points = (layers[:, None] + shift + spread[None]).ravel()
    ax.scatter(points, values.ravel(), s=14, color=color, marker=marker, alpha=0.6, linewidths=0)
    ax.plot(layers + shift, np.median(values, axis=1), color=color, marker=marker, markersize=4, label=label)


def _evenness(ax: Axes, result: dict[str, Any]) -> None:
    _heads(ax, result, "sparsity", BLUE, "o", "sparsity S", -0.15)
    _heads(ax, result, "relative_entropy", ORANGE, "s", "entropy / log n", 0.15)
    ax.set_ylim(-0.03, 1.03)
    _legend(ax)


def _ranks(ax: Axes, result: dict[str, Any]) -> None:
    _line(ax, _layers(result), result["layers"], "effective_rank", GREEN, "D", "tokens X")
    _heads(ax, result, "effective_rank", BLUE, "o", "attention P", 0.0)
    ax.set_ylim(0, None)
    _legend(ax)


def _scales(ax: Axes, result: dict[str, Any]) -> None:
    cosines = result["cosine_optimal_scale"] is not None
    names = ("cosine_factor", "cosine_optimal_scale") if cosines else ("implied_scale", "optimal_scale")
    _heads(ax, result, names[0], BLUE, "o", "heads", 0.0)
    best = result[names[1]]
    if best is not None:  # None where no row sees two tokens
        ax.axhline(best, color=INK, linestyle="--", linewidth=1.2, label=f"α* = {best:.3g}")
        ax.set_yscale("log")
    _legend(ax)


def _legend(ax: Axes) -> None:
    """A legend that says what the points and the line are."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="best", title="points: heads; line: median", title_fontsize=8.5)
