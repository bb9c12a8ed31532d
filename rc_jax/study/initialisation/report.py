"""What was measured of an untrained network: its record, and that as a table, JSON, a frame, HTML and a figure."""

import dataclasses
import html
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rc_jax.study.initialisation.narrowing import Width
from rc_jax.study.initialisation.sentences import NAMES, number, sentences

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOGS = ("residual", "size", *(f"gradient_{name}" for name in NAMES))
SHARES = ("evenness", "largest", "even", "saturated")
STATES = ("residual", "size")  # before the first layer, too
HEADS = {
    "residual": "‖res‖/‖X‖",
    "size": "size",
    "evenness": "H/log n",
    "largest": "max p",
    **{f"gradient_{name}": "∂X" if name == "input" else f"∂{NAMES[name]}" for name in NAMES},
}
FAR = 0.4  # of a logarithm: by how much half the width may differ before it is said
LINES = 16  # of a table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """A network before it is trained, layer by layer: `print` gives the table and the sentences, `to_json` all.

    Attributes:
        name: of the family, or of the stack.
        full: features of a token and of a head.
        computed: the same of the network that was computed.
        depth: number of layers.
        heads: in a layer.
        tokens: number of tokens.
        samples: number of initialisations.
        bands: least, median and largest of the initialisations (3, layer), by name. Of `residual` ‖res‖/‖X‖, `size`
            ‖X‖/√(nd) and `gradient_input`, `gradient_query` … these are logarithms, and gradients are relative to the
            last layer's. `evenness` is H/log n_i of rows, `largest` the largest share of a row's sum, `even` the part
            of rows with evenness from 0.9 on, and `saturated` that of rows with a largest share from 0.5 on among those
            that see four tokens or more. All are of magnitudes over their sum, which is 1 in a row of softmax and
            another in one of sigmoid. −∞ is the logarithm of what is exactly 0; what float32 does not decide, a ratio
            to 0, and evenness where `alone`, are NaN.
        alone: the layers, counted from 0, in which a row sees its own token alone.
        half: how much the same numbers differ at half the computed width, for `tokens` (log ‖res‖/‖X‖), `size`,
            `gradients` (logarithms), `rows` (evenness, largest share) and `kinds` (even, saturated); None at full
            width, where the computed one is too narrow to be halved, and of changes that are `unhalved`.
        unhalved: whether this is a change at the width of what it changes, so that no half was computed.
        changes: the same of other networks, by the name of what was changed.
        notes: what a reader must know.
    """

    name: str
    full: Width
    computed: Width
    depth: int
    heads: int
    tokens: int
    samples: int
    bands: dict[str, np.ndarray]
    alone: tuple[int, ...] = ()
    half: dict[str, float] | None = None
    unhalved: bool = False
    changes: dict[str, "Architecture"] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> np.ndarray:
        """The medians of a measure, by layer."""
        if name not in self.bands:
            raise KeyError(f"no measure {name!r}; there are {list(self.bands)}")
        return self.bands[name][1]

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the numbers decide."""
        return sentences(self)

    @property
    def table(self) -> str:
        """A row for each layer, or for some of many."""
        return _aligned(_layer_rows(self))

    @property
    def change_table(self) -> str:
        """A row for each change."""
        return _aligned(_change_rows(self))

    def __str__(self) -> str:
        parts = [self.title, self.table, "\n".join((*self.sentences, *self.notes))]
        if self.changes:
            parts.append(self.change_table)
        return "\n\n".join(parts)

    @property
    def title(self) -> str:
        """What was measured, and at which width."""
        return (
            f"{self.name}: {self.depth} layers, {self.heads} heads of {self.full.head}, width {self.full.token}; "
            f"{self.tokens} tokens, {self.samples} initialisations\n{self.agreement}"
        )

    @property
    def agreement(self) -> str:
        """How the computed network compares with the full one."""
        if self.computed == self.full:
            return "Computed at full width."
        narrow = (
            f"Computed at width {self.computed.token}, heads of {self.computed.head}, with the variances of the full "
            "width."
        )
        if self.unhalved:
            return f"{narrow} Half that is not computed\nof a change: the error here is not known; study it by itself."
        if self.half is None:
            return f"{narrow} That is too narrow to be halved:\nthe error here is not known; `width` asks for more."
        parts = {"tokens": "‖res‖/‖X‖", "size": "size", "gradients": "gradients"}
        changes = [f"{what} {_change(self.half[name])}" for name, what in parts.items()]
        close = max(self.half[name] for name in parts) <= FAR
        return (
            f"{narrow} Half that width\nchanges {', '.join(changes)}, H/log n by {self.half['rows']:.2g}, "
            f"even or saturated rows by {self.half['kinds']:.2g} at most: "
            + ("the error here, where it falls as 1/width." if close else "too much to tell the error here.")
        )

    def to_dict(self) -> dict[str, Any]:
        """All numbers; those that are not finite are None."""
        record = {
            "name": self.name,
            **{f"{of}_width": getattr(self, of)._asdict() for of in ("full", "computed")},
            **{name: getattr(self, name) for name in ("depth", "heads", "tokens", "samples", "half")},
            "log": {name: _entries(self.bands[name]) for name in LOGS},
            "share": {name: _entries(self.bands[name]) for name in SHARES},
            "sentences": list(self.sentences),
            "notes": list(self.notes),
        }
        if self.changes:
            record["changes"] = {name: change.to_dict() for name, change in self.changes.items()}
        return record

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)

    def to_frame(self) -> Any:
        """A pandas data frame: a row for each layer from 0, medians by name, `_low` and `_high` beside them.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("`to_frame` needs pandas: pip install pandas; `to_json` does not") from error

        columns: dict[str, np.ndarray] = {}
        for name, band in self.bands.items():
            values = np.exp(band) if name in LOGS else band
            if name not in STATES:
                values = np.concatenate([np.full((3, 1), np.nan), values], axis=1)
            columns |= {f"{name}{end}": values[index] for end, index in (("", 1), ("_low", 0), ("_high", 2))}
        return pandas.DataFrame(columns, index=pandas.RangeIndex(self.depth + 1, name="layer"))

    def figure(self) -> "Figure":
        """Four panels with bands: relative residual, token size, rows, gradients; medians of changes beside them."""
        return draw(self)

    def _repr_html_(self) -> str:
        tables = [_html(_layer_rows(self))] + ([_html(_change_rows(self))] if self.changes else [])
        said = "".join(f"<li>{html.escape(line)}</li>" for line in (*self.sentences, *self.notes))
        return f"<p>{html.escape(self.title)}</p>{tables[0]}<ul>{said}</ul>{''.join(tables[1:])}"


def _entries(band: np.ndarray) -> dict[str, list[float | None]]:
    rows = [[float(value) if math.isfinite(value) else None for value in row] for row in band]
    return dict(zip(("low", "median", "high"), rows, strict=True))


def _layer_rows(study: Architecture) -> list[list[str]]:
    shown = range(study.depth + 1)
    if study.depth > LINES:
        shown = sorted({0, *np.linspace(1, study.depth, LINES).round().astype(int).tolist()})
    rows = [["layer", *HEADS.values()]]
    for layer in shown:
        cells = [str(layer)]
        for name in HEADS:
            index = layer if name in STATES else layer - 1
            cells.append("" if index < 0 else _cell(study, name, index))
        rows.append(cells)
    return rows


def _median(study: Architecture, name: str, index: int) -> str:
    """A median, or what is there in its place."""
    log, value = name in LOGS, float(study[name][index])
    if name in SHARES and index in study.alone:
        return ""
    if log and math.isnan(value) and study[name][-1] == -math.inf:
        return "no ratio"
    return number(value) if log else f"{value:.3g}"


def _cell(study: Architecture, name: str, index: int) -> str:
    """A median, and half the range of the initialisations in percent where it is 1 or more."""
    log, text = name in LOGS, _median(study, name, index)
    low, median, high = map(float, study.bands[name][:, index])
    half = (high - low) / 2 if log else (high - low) / 2 / median if median else 0.0
    if not math.isfinite(half) or half < 0.01:
        return text
    return f"{text} ±{100 * half:.0f}%" if half < 1 else f"{text} ×÷{number(half)}"


def _change_rows(study: Architecture) -> list[list[str]]:
    heads = ("‖res‖/‖X‖ last", "size last", "H/log n 1", "H/log n last", "∂X 1", "∂W_Q 1", "∂W_V 1")
    rows = [["network", *heads]]
    for name, own in {"as it is": study, **study.changes}.items():
        first = [_median(own, f"gradient_{of}", 0) for of in ("input", "query", "value")]
        ends = [_median(own, "evenness", at) for at in (0, own.depth - 1)]
        rows.append([name, number(own["residual"][-1]), number(own["size"][-1]), *ends, *first])
    return rows


def _change(log: float) -> str:
    """A change of a logarithm: per cent, or a factor where it is far."""
    return f"by {100 * math.expm1(log):.2g} %" if log < 1 else f"by a factor of {number(log)}"


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _html(rows: list[list[str]]) -> str:
    head, *body = rows
    lines = [f"<tr>{''.join(f'<th>{html.escape(cell)}</th>' for cell in head)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in body]
    return f"<table>{''.join(lines)}</table>"


def draw(study: Architecture) -> "Figure":
    """The figure of a study."""
    from rc_jax import style

    figure, (residual, size, weights, gradient) = style.figure(columns=2, rows=2, width=4.6, height=3.2)
    states, layers = np.arange(study.depth + 1), np.arange(1, study.depth + 1)

    def band(axes: Any, at: np.ndarray, name: str, index: int, label: str) -> None:
        low, median, high = study.bands[name] / math.log(10) if name in LOGS else study.bands[name]
        look = style.cycle(index) | {"marker": ""}
        axes.plot(at, median, label=label, **look)
        axes.fill_between(at, low, high, color=look["color"], alpha=0.2, linewidth=0)

    for axes, name in ((residual, "residual"), (size, "size")):
        band(axes, states, name, 0, "as it is")
        for index, (label, own) in enumerate(study.changes.items(), 1):
            at = np.arange(own.depth + 1)
            look: dict[str, Any] = style.cycle(index) | {"marker": "", "linewidth": 1}
            axes.plot(at, own[name] / math.log(10), label=label, **look)
    if study.changes:
        residual.legend(fontsize=6)
    for index, (name, label) in enumerate((("evenness", "H/log n"), ("largest", "largest share"))):
        band(weights, layers, name, index, label)
    for index, (name, label) in enumerate(NAMES.items()):
        band(gradient, layers, f"gradient_{name}", index, label)
    weights.legend()
    gradient.legend()
    residual.set(ylabel="log₁₀ ‖res‖/‖X‖", title="Differences of tokens")
    size.set(ylabel="log₁₀ ‖X‖/√(nd)", title="Size of tokens")
    weights.set(xlabel="layer", ylim=(0, 1.05), title="Rows of attention")
    gradient.set(xlabel="layer", ylabel="log₁₀ of the last layer's", title="Gradients")
    return figure
