"""The result of a diagnosis: measures by layer and head, and what was read. `show` prints and draws it."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rc_jax.diagnostics.measures import SINK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rc_jax.diagnostics.report.outliers import Outlier


ARRAYS = ("measures", "by_text")  # fields that hold arrays by name
PLACES = ("sample", "start", "tokens")  # of a text


@dataclasses.dataclass(frozen=True, eq=False)
class Diagnosis:
    """Measures of attention weights, of hidden states, or of both.

    It prints as a table. `diagnosis["entropy"]` is the array of one measure: of shape (layer, head) for attention,
    and (layer + 1,) for hidden states. Layers, heads, tokens and keys are counted from 0, as the arrays are: entry
    [3, 5] is head 5 of layer 3, hidden state 3 is what that layer reads, and the last one is what the last layer gives.

    Attributes:
        measures: NumPy arrays by name.
        tokens: n, the number of tokens; where queries and keys are not the same tokens, the number of keys.
        queries: then the number of queries; `None` where each token is both.
        samples: how many texts the measures are means over: samples, or the texts that are packed into them.
        layers: how many layers of attention; 0 for hidden states alone.
        heads: how many heads a layer has; 0 for hidden states alone.
        numbers: which layers of the model have this attention, counted from 0.
        causal: whether no query sees a later key; `None` for hidden states alone.
        threshold: ε, above which the weight on the first key makes it a sink.
        notes: what a reader must know beside the numbers, such as measures that are left out, and why.
        by_text: of attention, for each text the `sample` that it stands in, its `start` and its number of `tokens`, and
            (text, layer, head) its `strongest_key`, counted from its start, `strongest_weight` and `sink_weight`.
    """

    measures: Mapping[str, np.ndarray]
    tokens: int
    queries: int | None = None
    samples: int = 1
    layers: int = 0
    heads: int = 0
    numbers: tuple[int, ...] = ()
    causal: bool | None = None
    threshold: float = SINK
    notes: tuple[str, ...] = ()
    by_text: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __getitem__(self, name: str) -> np.ndarray:
        """The array of one measure."""
        if name not in self.measures:
            raise KeyError(f"no measure {name!r}; there are {', '.join(self.measures)}")
        return self.measures[name]

    def __str__(self) -> str:
        return self.table()

    def __or__(self, other: "Diagnosis") -> "Diagnosis":
        """Both in one: a diagnosis of attention and one of the hidden states of the same tokens.

        Raises:
            ValueError: they have a measure in common, or differ in the number of tokens or of samples.
        """
        if not isinstance(other, Diagnosis):
            return NotImplemented
        common = sorted(set(self.measures) & set(other.measures))
        if common:
            raise ValueError(
                f"both diagnoses have {', '.join(common)}: join one of attention and one of hidden states, or set two "
                "of the same side by side with rc_jax.diagnostics.compare"
            )
        for name in ("tokens", "samples"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(f"both diagnoses must have the same number of {name}, got {mine} and {theirs}")
        first = self if self.layers else other
        return dataclasses.replace(
            first, measures={**self.measures, **other.measures}, notes=(*self.notes, *other.notes)
        )

    def table(self, *, heads: bool = False, compare: bool = True) -> str:
        """One row a layer, with median and range over heads; what the columns mean; what is unusual.

        Args:
            heads: also one row for each head.
            compare: also rows of trained models and of random weights, and the sentences of `unusual`.
        """
        return _show().table(self, heads=heads, compare=compare)

    def unusual(self) -> tuple[str, ...]:
        """Sentences on heads far from the others, and on what differs from trained models and from random weights."""
        return _show().unusual(self)

    def outliers(self) -> "tuple[Outlier, ...]":
        """Heads far from the model's others: which, in what measure, and how far; see `report.outliers`."""
        return _show().outliers(self)

    def figure(self) -> "Figure":
        """Measures by layer, a point for each head, as a figure of Matplotlib."""
        return _show().figure(self)

    def to_dict(self) -> dict[str, Any]:
        """Lists and numbers alone, as JSON has them; `None` where a measure is not finite."""
        kept = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        arrays = {
            kind: {name: _listed(np.asarray(value).tolist()) for name, value in kept[kind].items()} for kind in ARRAYS
        }
        return {**kept, "numbers": list(self.numbers), "notes": list(self.notes), **arrays}

    def to_json(self, *, indent: int | None = None) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Diagnosis":
        """What `to_dict` gave, or JSON made of it, as a diagnosis again; `None` becomes NaN."""
        if not isinstance(stored, Mapping):
            raise TypeError(
                f"`stored` must be a dictionary, got {type(stored).__name__}: text of JSON needs json.loads"
            )
        fields = {field.name for field in dataclasses.fields(cls)}
        if set(stored) != fields:
            raise ValueError(f"`stored` must have the fields {sorted(fields)}, got {sorted(stored)}")
        arrays = {
            kind: {name: np.asarray(value, int if name in PLACES else float) for name, value in stored[kind].items()}
            for kind in ARRAYS
        }
        kept: dict[str, Any] = {**stored, **arrays}
        kept |= {name: tuple(stored[name]) for name in ("numbers", "notes")}
        return cls(**kept)


def _show() -> Any:
    """The module that prints and draws diagnoses; it compares them with others, and so stands above this one."""
    from rc_jax.diagnostics import show

    return show


def _listed(value: Any) -> Any:
    """Nested lists of floats, `None` for those that JSON does not know."""
    if isinstance(value, list):
        return [_listed(each) for each in value]
    return value if math.isfinite(value) else None
