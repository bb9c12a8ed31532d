"""A diagnosis as a figure: a point for each head, a line through medians, trained models and random weights behind."""

from collections.abc import Callable, Collection, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rc_jax.diagnostics.record import Diagnosis, Outlier
from rc_jax.diagnostics.seen import runs

BLUE, ORANGE, GREEN = "#3a9ad9", "#e69f00", "#1fa784"  # after Okabe and Ito, readable on white and on black
HEADS = {
    "relative_entropy": "entropy / log n",
    "largest_weight": "largest weight of a row",
    "entropy_scale": "implied α",
    "sink_weight": "weight on the first key",
    "second_singular_value": "σ₂/σ₁",
    "sparsity": "sparsity S (1: even)",
    "stable_rank": "stable rank of P",
    "sink_value_ratio": "‖v₀‖ / mean ‖v‖",
}
STATES = {
    "relative_residual": "‖res(X)‖/‖X‖",
    "cosine": "mean cosine of tokens",
    "log_residual": "log ‖res(X)‖ in cancellation-free arithmetic",
    "path_share": "share of the output of paths",
}
LOGARITHMIC = {"entropy_scale", "stable_rank", "sink_value_ratio"}
LEAST_SPAN = 0.05  # of an axis, or of its logarithm: rounding must not look like change
MOST_NAMES, NEAR = 4, 0.06  # names in a panel; points of a layer that are nearer, in heights of it, share one
ALONE, BESIDE = 6, 4  # panels of heads without states, and with them
Beside = Sequence[tuple[str, Diagnosis]]


def draw(diagnosis: Diagnosis, beside: Beside, threshold: float, named: Sequence[Outlier] = ()) -> Figure:
    """Up to six panels of heads, or four of heads and those of hidden states.

    Args:
        diagnosis: what is drawn.
        beside: named diagnoses, each shown as a band from the 10th to the 90th percentile over its heads or states.
        threshold: above which the weight on the first key makes it a sink.
        named: heads whose points carry their layer and number.
    """

    def panel(ax: Axes, name: str) -> None:
        _panel(ax, diagnosis, name, beside)
        _names(ax, [each for each in named if each.measure == name], diagnosis.heads)
        if name == "sink_weight":
            ax.axhline(threshold, color=ORANGE, linestyle="--", linewidth=1, label=f"sinks: above {threshold:g}")

    return _panels(diagnosis.measures, panel)


def _names(ax: Axes, outliers: Sequence[Outlier], heads: int) -> None:
    """Layer and head beside the farthest points, such as "3.6"; neighbours of a layer share a name, "2.0–4"."""
    height = float(np.ptp(ax.get_ylim()))
    groups: list[list[Outlier]] = []
    for each in sorted(outliers, key=lambda each: (each.layer, each.value)):
        near = groups and groups[-1][-1].layer == each.layer and each.value - groups[-1][-1].value < NEAR * height
        groups[-1:] = [[*groups[-1], each]] if near else [*groups[-1:], [each]]
    groups.sort(key=lambda group: -max(abs(each.value - each.median) for each in group))
    for group in groups[:MOST_NAMES]:
        numbers = sorted(each.head for each in group)
        place = group[0].layer + _spread(heads)[numbers[-1]], float(np.mean([each.value for each in group]))
        text = ", ".join(f"{group[0].layer}.{run}" for run in runs(np.array(numbers)))
        ax.annotate(text, place, (4, 0), textcoords="offset points", fontsize=7, va="center")


def draw_two(a: Diagnosis, b: Diagnosis, names: tuple[str, str]) -> Figure:
    """The same panels with the points and medians of two diagnoses of the same layers and heads."""

    def panel(ax: Axes, name: str) -> None:
        for diagnosis, label, color, side in ((a, names[0], ORANGE, -1), (b, names[1], BLUE, 1)):
            values = np.asarray(diagnosis[name], float)
            layers = np.array(diagnosis.numbers) if values.ndim == 2 else np.arange(len(values))
            if values.ndim == 2:
                places = np.repeat(layers + 0.12 * side, values.shape[1])
                ax.scatter(places, values.ravel(), s=12, color=color, alpha=0.6, linewidths=0)
                values = _medians(values)
            ax.plot(layers, values, color=color, label=label)
        _framed(ax, name, np.concatenate([np.ravel(a[name]), np.ravel(b[name])]), a[name].ndim == 2)

    return _panels([name for name in a.measures if name in b.measures], panel)


def draw_map(diagnosis: Diagnosis) -> Figure:
    """A field of layers and heads for each of up to six measures."""
    names = [name for name in HEADS if name in diagnosis.measures][:ALONE]
    if not names:
        raise ValueError("`kind` must be 'layers' of a diagnosis without attention, got 'map'")
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    drawing = Figure(figsize=(4.6 * columns, 3.6 * rows), layout="constrained")
    axes = np.ravel(drawing.subplots(rows, columns, squeeze=False))
    for ax, name in zip(axes, names, strict=False):
        values = np.where(np.isfinite(diagnosis[name]), diagnosis[name], np.nan)
        finite = _finite(values)
        logarithmic = name in LOGARITHMIC and bool((finite > 0).all()) and len(finite) > 0
        low, high = _limits(finite.min(), finite.max(), logarithmic) if len(finite) else (0, 1)
        if not logarithmic:  # no measure is negative, and those between 0 and 1 are not above
            low = max(0, low if name in LOGARITHMIC else min(low, 1 - LEAST_SPAN))
            high = max(high, low + LEAST_SPAN) if name in LOGARITHMIC else min(1, max(high, low + LEAST_SPAN))
        scale = (LogNorm if logarithmic else Normalize)(low, high)
        image = ax.imshow(values, aspect="auto", cmap="viridis", norm=scale, interpolation="nearest")
        drawing.colorbar(image, ax=ax)
        ax.set_title(HEADS[name], loc="left", fontsize=10)
        ax.set_xlabel("head")
        ax.set_ylabel("layer")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        step = -(-len(values) // 12)
        ax.set_yticks(range(0, len(values), step), [str(each) for each in diagnosis.numbers[::step]])
    for ax in axes[len(names) :]:
        ax.set_axis_off()
    return drawing


def _spread(heads: int) -> np.ndarray:
    """Where the points of a layer's heads stand beside its number."""
    return np.linspace(-0.15, 0.15, heads) if heads > 1 else np.zeros(1)


def _panels(measures: Collection[str], panel: Callable[[Axes, str], None]) -> Figure:
    """A panel for each measure that is drawn, in columns of at most three, above one legend."""
    states = [name for name in STATES if name in measures]
    names = [name for name in HEADS if name in measures][: BESIDE if states else ALONE] + states
    columns = max(1, min(3, len(names)))
    rows = -(-max(1, len(names)) // columns)
    drawing = Figure(figsize=(4.6 * columns, 3.4 * rows + 0.5), layout="constrained")
    axes = np.ravel(drawing.subplots(rows, columns, squeeze=False))
    for ax, name in zip(axes, names, strict=False):
        panel(ax, name)
    for ax in axes[len(names) :]:
        ax.set_axis_off()
    # One legend for all panels, each entry once.
    entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    drawing.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return drawing


def _panel(ax: Axes, diagnosis: Diagnosis, name: str, beside: Beside) -> None:
    """One measure by layer."""
    values = np.asarray(diagnosis[name], float)
    layers = np.array(diagnosis.numbers) if values.ndim == 2 else np.arange(len(values))
    for color, (label, other) in zip(
        (GREEN, ORANGE), (each for each in beside if name in each[1].measures), strict=False
    ):
        low, middle, high = np.quantile(_finite(other[name]), (0.1, 0.5, 0.9))
        if label == "random":  # its heads hardly differ
            ax.axhline(middle, color=mpl.rcParams["text.color"], linestyle="-.", linewidth=1, label="random weights")
        else:
            ax.axhspan(low, high, color=color, alpha=0.2, linewidth=0, label=f"{label}: 10 % to 90 %")
    if values.ndim == 2:
        ax.scatter(
            layers[:, None] + _spread(values.shape[1])[None],
            values,
            s=12,
            color=BLUE,
            alpha=0.7,
            linewidths=0,
            label="heads",
        )
        ax.plot(layers, _medians(values), color=BLUE, label="median")
        if name == "entropy_scale":
            with np.errstate(invalid="ignore"):  # of heads whose α is 0 or infinite
                best = _medians(values / diagnosis["scale_ratio"])
            ax.plot(layers, best, color=ORANGE, linestyle=":", label="α* of most gradient")
    else:
        ax.plot(layers, values, color=BLUE, marker="o", markersize=4, label="tokens")
    if name == "path_share":
        ax.plot(layers, diagnosis["path_residual_share"], color=ORANGE, label="of its residual")
    _framed(ax, name, values, values.ndim == 2)


def _framed(ax: Axes, name: str, values: np.ndarray, of_heads: bool) -> None:
    """Title, axes and their scale."""
    logarithmic = name in LOGARITHMIC and bool((_finite(values) > 0).any())
    if logarithmic:
        ax.set_yscale("log")
        if name == "entropy_scale":  # which has no bound where rows have a single key
            ax.set_ylim(top=min(ax.get_ylim()[1], 100))
    ax.set_ylim(*_limits(*ax.get_ylim(), logarithmic))
    ax.set_title({**HEADS, **STATES}[name], loc="left", fontsize=10)
    ax.set_xlabel("heads on the path" if name == "path_share" else "layer" if of_heads else "hidden state")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.spines[["top", "right"]].set_visible(False)


def _limits(low: float, high: float, logarithmic: bool) -> tuple[float, float]:
    """Ends of an axis, apart by at least `LEAST_SPAN`, or by this share on a logarithmic one, about the same middle."""
    if logarithmic:
        ends = np.exp(_limits(np.log(low), np.log(high), False))
        return float(ends[0]), float(ends[1])
    middle, half = (low + high) / 2, max(high - low, LEAST_SPAN) / 2
    return float(middle - half), float(middle + half)


def _medians(values: np.ndarray) -> np.ndarray:
    """The median over the heads of each layer that have a number; NaN where none has."""
    return np.array([np.median(row[~np.isnan(row)]) if not np.isnan(row).all() else np.nan for row in values])


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]
