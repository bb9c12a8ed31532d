"""The result of a diagnosis: measures by layer and head, and what was read. `show` prints and draws it."""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from rc_jax._numerics import files
from rc_jax.diagnostics.measures import SINK

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ARRAYS = ("measures", "by_text")  # fields that hold arrays by name
PLACES = ("sample", "start", "tokens")  # of a text


class Outlier(NamedTuple):
    """A head far from the others.

    Attributes:
        layer: of the head, counted from 0, as all else.
        head: its number in the layer.
        measure: in which it is far from the others.
        value: of this measure.
        median: of all heads of the model.
        key: which key the measure is the weight on, where it is that of one.
    """

    layer: int
    head: int
    measure: str
    value: float
    median: float
    key: int | None = None


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
    # How diagnoses are printed and drawn beside others. `show` puts itself here, as it stands above this module.
    view: ClassVar[Any] = None

    def __getitem__(self, name: str) -> np.ndarray:
        """The array of one measure."""
        if name not in self.measures:
            raise KeyError(f"no measure {name!r}; there are {', '.join(self.measures)}")
        return self.measures[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the measures, as of a mapping: `dict(diagnosis)` has their arrays."""
        return iter(self.measures)

    def keys(self) -> tuple[str, ...]:
        """The names of the measures."""
        return tuple(self.measures)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        return self.view.page(self)

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
        return self.view.table(self, heads=heads, compare=compare)

    def unusual(self) -> tuple[str, ...]:
        """Sentences on heads far from the others, and on what differs from trained models and from random weights."""
        return self.view.unusual(self)

    def sinks(self) -> tuple[str, ...]:
        """Sentences on sinks: which token of which texts, its share of the weight, and how often it is the first one.

        A sink of a head is the key with most weight, if its mean weight exceeds `threshold`. The sink of a text is that
        of most heads. Tokens are counted from the start of their text. Without sinks there are no sentences.

        Example:
            >>> import numpy as np
            >>> from rc_jax import diagnostics
            >>> weights = np.full((2, 1, 9, 9), 0.1 / 8, np.float32)
            >>> weights[0, :, :, 3] = weights[1, :, :, 5] = 0.9
            >>> for sentence in diagnostics.attention([weights]).sinks():
            ...     print(sentence)
            Sample 0: token 3 is the sink of 1 of 1 heads, with 0.9 of the weight at the median.
            Sample 1: token 5 is the sink of 1 of 1 heads, with 0.9 of the weight at the median.
            The sink is the first token in 0 of 2 texts that have one.
        """
        return self.view.sinks(self)

    def outliers(self) -> tuple[Outlier, ...]:
        """Heads far from the model's others: which, in what measure, and how far; see `report.outliers`."""
        return self.view.outliers(self)

    def figure(self, *, kind: str = "layers") -> "Figure":
        """Measures by layer, a point for each head, as a figure of Matplotlib.

        Args:
            kind: "layers", where outliers carry their names, or "map", a field for each layer and head.
        """
        return self.view.figure(self, kind)

    def to_frame(self, *, of: str | None = None) -> Any:
        """A `pandas.DataFrame` with a row for each layer and head, or for each hidden state.

        Args:
            of: "heads" or "states"; heads by default, where there are any.
        """
        return self.view.frame(self, of)

    def to_csv(self, path: str | os.PathLike[str] | None = None, *, of: str | None = None) -> str | None:
        """The rows of `to_frame` as a file of comma-separated values, or as text where no path is given.

        Example:
            >>> import numpy as np
            >>> from rc_jax import diagnostics
            >>> diagnosis = diagnostics.attention(np.full((1, 2, 4, 4), 0.25, np.float32))
            >>> print(diagnosis.to_csv().splitlines()[1][:22])
            0,0,1.0,1.386294364929
        """
        return self.view.csv(self, path, of)

    def to_dict(self) -> dict[str, Any]:
        """Lists and numbers alone, as JSON has them: NaN is `None`, infinities are "Infinity" and "-Infinity"."""
        kept = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        arrays = {
            kind: {name: files.strict(np.asarray(value).tolist()) for name, value in kept[kind].items()}
            for kind in ARRAYS
        }
        return {**kept, "numbers": list(self.numbers), "notes": list(self.notes), **arrays}

    def to_json(self, *, indent: int | None = None) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Diagnosis":
        """What `to_dict` gave, or JSON made of it, as a diagnosis again, NaN and infinities included."""
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
