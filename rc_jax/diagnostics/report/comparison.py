"""Two diagnoses side by side: two checkpoints, two steps of a training, a model before and after a patch."""

import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rc_jax._numerics.arguments import must
from rc_jax._numerics.text import in_columns
from rc_jax.diagnostics.record import Diagnosis
from rc_jax.diagnostics.report import export
from rc_jax.diagnostics.report import table as text
from rc_jax.diagnostics.report.outliers import MEASURES, NAMED, OF_A_KEY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEFT_OUT = ("strongest_share", "strongest_first")  # of the tables
CHANGE = "change"  # what differences are called
MARGIN = 0.1  # by how much a measure between 0 and 1 changes in a head that is named


class Change(NamedTuple):
    """A head, a measure between 0 and 1 that changed in it, and its two values; all counted from 0."""

    layer: int
    head: int
    measure: str
    before: float
    after: float


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """What `compare` gives. It prints as a table; `comparison["entropy"]` is the array of differences b − a.

    Attributes:
        a: the first diagnosis.
        b: the second one.
        names: what they are called.
        notes: in what they differ beside the measures.
    """

    a: Diagnosis
    b: Diagnosis
    names: tuple[str, str]
    notes: tuple[str, ...]

    @property
    def common(self) -> tuple[str, ...]:
        """The measures that both have."""
        return tuple(name for name in self.a.measures if name in self.b.measures)

    def __getitem__(self, name: str) -> np.ndarray:
        """Differences b − a of one measure."""
        if name not in self.common:
            raise KeyError(f"no measure {name!r} in both; there are {', '.join(self.common)}")
        return self.b[name] - self.a[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the measures that both have."""
        return iter(self.common)

    def keys(self) -> tuple[str, ...]:
        """The measures that both have; `dict(comparison)` has their differences."""
        return self.common

    def to_frame(self, *, of: str | None = None) -> Any:
        """A `pandas.DataFrame` with a row for each layer and head, or for each hidden state.

        Columns are those of both and the change, such as "entropy a", "entropy b" and "entropy change".

        Args:
            of: "heads" or "states"; heads by default, where there are any.
        """
        return export.frame(self._rows(of))

    def to_csv(self, path: str | os.PathLike[str] | None = None, *, of: str | None = None) -> str | None:
        """The rows of `to_frame` as a file of comma-separated values, or as text where no path is given."""
        return export.write(self._rows(of), path)

    def _rows(self, of: str | None) -> list[export.Row]:
        columns = {
            f"{name} {label}": np.asarray(values)
            for name in self.common
            for label, values in ((self.names[0], self.a[name]), (self.names[1], self.b[name]), (CHANGE, self[name]))
        }
        return export.rows_of(columns, self.a.numbers, of)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        return export.page(self._title(), self._tables(), (*self.notes, *self.sentences()))

    def _title(self) -> str:
        return f"{self.names[0]} → {self.names[1]}: {text.title_of(self.a)}"

    def changes(self) -> tuple[Change, ...]:
        """Heads in which a measure between 0 and 1 changes by more than 0.1, the largest changes first."""
        found: list[Change] = []
        for name in MEASURES:
            if name in self.common:
                a, b = self.a[name], self.b[name]
                # A weight on the strongest key changes, too, where it goes to another key.
                moved = name == "strongest_weight" and self.a["strongest_key"] != self.b["strongest_key"]
                far = (np.abs(b - a) > MARGIN) | (moved & (np.maximum(a, b) > 2 * MARGIN)) | (np.isnan(a) ^ np.isnan(b))
                for layer, head in np.argwhere(far).tolist():
                    pair = float(a[layer, head]), float(b[layer, head])
                    found.append(Change(self.a.numbers[layer], head, name, *pair))
        return tuple(sorted(found, key=lambda each: -np.nan_to_num(abs(each.after - each.before), nan=np.inf)))

    def sentences(self) -> tuple[str, ...]:
        """What changed, in words: the eight heads that changed most, sinks, and the distance of tokens."""
        return (*self._of_heads(), *self._of_sinks(), *self._of_states()) or ("Nothing changed by more than a tenth.",)

    def table(self) -> str:
        """One row a layer, with the median over heads of both; the last row is the median of all heads."""
        parts = [self._title()]
        parts += [text.filled(self.notes)] if self.notes else []
        parts += [f"{caption}\n{in_columns(headings, lines)}" for caption, headings, lines in self._tables()]
        return "\n\n".join([*parts, text.filled(self.sentences())])

    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        tables: list[tuple[str, list[str], list[list[str]]]] = []
        for group, caption in ((text.ROWS, "Rows of attention"), (text.MATRICES, "Keys and matrices")):
            shown = [name for name in group if name in self.common and self.a[name].ndim == 2]
            shown = [name for name in shown if name not in LEFT_OUT]
            if shown:
                lines = [
                    [name, *(self._cell(measure, layer) for measure in shown)]
                    for layer, name in (*enumerate(map(str, self.a.numbers)), (None, "all"))
                ]
                spread = "" if self.a.heads == 1 else ", median over heads"
                tables.append((f"{caption}{spread}", ["layer", *(group[name].heading for name in shown)], lines))
        shown = [name for name in text.STATES if name in self.common]
        if shown:
            lines = [
                [str(state), *(_pair(self.a[name][state], self.b[name][state]) for name in shown)]
                for state in range(len(self.a[shown[0]]))
            ]
            tables.append(("Hidden states", ["state", *(text.STATES[name].heading for name in shown)], lines))
        return tables

    def figure(self) -> "Figure":
        """Both by layer: points for heads and a line through their medians."""
        from rc_jax.diagnostics.report import figure as drawing  # Matplotlib is imported by those who draw

        return drawing.draw_two(self.a, self.b, self.names)

    def _cell(self, name: str, layer: int | None) -> str:
        """Medians over heads of a layer, or of all; how many heads are sinks; the most common of the strongest keys."""
        a, b = (each[name] if layer is None else each[name][layer] for each in (self.a, self.b))
        if name == "sink_rate":
            return f"{_pair(np.nansum(a), np.nansum(b))} of {a.size}"
        if name == "strongest_key":
            keys = (np.unique(each, return_counts=True) for each in (a, b))
            return _pair(*(which[times.argmax()] for which, times in keys))
        return _pair(*(np.median(known) if (known := each[~np.isnan(each)]).size else np.nan for each in (a, b)))

    def _of_heads(self) -> Iterator[str]:
        heads: dict[tuple[int, int], list[Change]] = {}
        for each in self.changes():
            heads.setdefault(each[:2], []).append(each)
        for (layer, head), changes in list(heads.items())[:NAMED]:
            yield f"Layer {layer}, head {head}: {', '.join(map(self._told, changes))}."
        if len(heads) > NAMED:
            yield f"{len(heads) - NAMED} more heads change by more than {MARGIN}: `changes()` names them."

    def _told(self, change: Change) -> str:
        """A change in words; with the keys where it is one of the weight on a key."""
        meaning, keys = MEASURES[change.measure], ["0", "0"]
        if change.measure in OF_A_KEY and change.measure != "sink_weight":
            row = self.a.numbers.index(change.layer)
            strongest = (each["strongest_key"][row, change.head] for each in (self.a, self.b))
            keys = [f"{key:.0f}" if np.isfinite(key) else "none" for key in strongest]
        meaning = meaning.replace("key KEY", f"key {keys[0]}" if keys[0] == keys[1] else f"keys {' → '.join(keys)}")
        return f"{meaning} {_pair(change.before, change.after)}"

    def _of_sinks(self) -> Iterator[str]:
        if "sink_rate" in self.common:
            a, b = (each["sink_rate"] > 0.5 for each in (self.a, self.b))
            if a.sum() != b.sum():
                yield f"Heads with a sink on token 0: {a.sum()} → {b.sum()} of {a.size}."

    def _of_states(self) -> Iterator[str]:
        if "relative_residual" in self.common:
            a, b = (float(each["relative_residual"][-1]) for each in (self.a, self.b))
            if abs(b - a) > MARGIN * max(a, b):
                yield f"The share of X that differs between tokens, in the last state: {_pair(a, b)}."


def compare(a: Diagnosis, b: Diagnosis, *, names: tuple[str, str] = ("a", "b")) -> Comparison:
    """Two diagnoses of one architecture side by side: of two checkpoints, two steps, or before and after a patch.

    Let both read the same texts. Measures are means over samples without standard errors, and texts differ too.

    Args:
        a: the first, such as that of the earlier step.
        b: the second.
        names: what they are called in the table and in the figure: two different ones, none of them "change", which
            is that of the differences.

    Returns:
        A `Comparison`: `print` shows the medians of each layer and the heads that changed; `["entropy"]` is an array
        of differences b − a; `changes()` are heads by layer and number; `figure()` draws both.

    Raises:
        ValueError: their layers, heads or hidden states are not the same ones, they have no measure in common, or
            `names` are not two different ones.

    Example:
        >>> import numpy as np
        >>> from rc_jax import diagnostics
        >>> even = np.full((2, 4, 8, 8), 1 / 8, np.float32)
        >>> patched = even.copy()
        >>> patched[1, 2] = np.eye(8)
        >>> comparison = diagnostics.compare(*map(diagnostics.attention, (even, patched)))
        >>> comparison["relative_entropy"].round(2).tolist()
        [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -1.0, 0.0]]
        >>> comparison.changes()[0][:2]
        (1, 2)
    """
    for name, value in (("a", a), ("b", b)):
        if not isinstance(value, Diagnosis):
            raise TypeError(f"`{name}` must be a Diagnosis, such as `attention` gives, got {type(value).__name__}")
    _two_names("names", names)
    for name in ("numbers", "heads"):
        mine, other = getattr(a, name), getattr(b, name)
        if mine != other:
            raise ValueError(f"`a` and `b` must have the same {name.replace('numb', 'lay')}, got {mine} and {other}")
    result = Comparison(a, b, (names[0], names[1]), tuple(_notes(a, b, names)))
    if not result.common:
        raise ValueError(
            f"`a` and `b` must have a measure in common, got {', '.join(a.measures)} and {', '.join(b.measures)}"
        )
    for name in result.common:
        if a[name].shape != b[name].shape:
            raise ValueError(f"`a` and `b` must have {name} of one shape, got {a[name].shape} and {b[name].shape}")
    return result


_two_names = must(  # columns of a table are known by them
    'two different strings, neither of them "change", such as ("before", "after")',
    lambda names: len(names) == 2 and names[0] != names[1] and CHANGE not in names,
    right=lambda names: isinstance(names, tuple | list) and all(isinstance(name, str) for name in names),
)


def _notes(a: Diagnosis, b: Diagnosis, names: tuple[str, str]) -> Iterator[str]:
    for name in ("tokens", "queries", "samples", "causal", "threshold"):
        if getattr(a, name) != getattr(b, name):
            yield f"They differ in {name}: {getattr(a, name)} and {getattr(b, name)}."
    for mine, other, name in ((a, b, names[0]), (b, a, names[1])):
        alone = [measure for measure in mine.measures if measure not in other.measures]
        if alone:
            yield f"Only {name} has {', '.join(alone)}."


def _pair(a: Any, b: Any) -> str:
    return f"{text.number(float(a))} → {text.number(float(b))}"
