"""A study: its record, and that as a table, as sentences, and as a figure."""

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Measure(NamedTuple):
    """One number about a kind.

    Attributes:
        question: `collapse`, `scale`, `sparsity`, `rows` or `cost`.
        name: what it is, with its unit.
        value: of the kind; NaN where it is not known.
        softmax: the same of softmax.
        error: standard error of `value`; 0 where it is not a simulation.
        method: how it was got.
    """

    question: str
    name: str
    value: float
    softmax: float
    error: float
    method: str


class Study(NamedTuple):
    """All that `study.kind` found: `print` gives the table and the sentences, `to_json` every digit."""

    name: str
    measures: tuple[Measure, ...]
    falls: dict[str, list[list[float]]]
    notes: tuple[str, ...]

    def __getitem__(self, name: Any) -> Any:
        """A measure by its name, or an entry of the tuple."""
        if not isinstance(name, str):
            return tuple.__getitem__(self, name)
        for measure in self.measures:
            if measure.name == name:
                return measure
        raise KeyError(f"no measure {name!r}; there are {[measure.name for measure in self.measures]}")

    def __str__(self) -> str:
        return f"{table(self)}\n\n" + "\n".join(sentences(self))

    def to_json(self) -> str:
        """The study as JSON; numbers that are not finite are null."""
        rows = [_finite(measure._asdict()) for measure in self.measures]
        falls = {name: [[_number(value) for value in log] for log in logs] for name, logs in self.falls.items()}
        return json.dumps({"kind": self.name, "measures": rows, "falls": falls, "notes": list(self.notes)}, indent=1)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _number(value) if isinstance(value, float) else value for name, value in row.items()}


def table(study: Study) -> str:
    """One row for each measure: the kind with its standard error, softmax, and how the number was got."""
    rows = [("question", "measure", study.name, "softmax", "how")]
    for measure in study.measures:
        error = f" ± {measure.error:.1g}" if measure.error > 1e-4 * abs(measure.value) else ""
        rows.append(
            (measure.question, measure.name, _digits(measure.value) + error, _digits(measure.softmax), measure.method)
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def sentences(study: Study) -> tuple[str, ...]:
    """What the numbers say, a sentence for each question."""
    said = []
    order, own, base = study["order of a layer"].value, *(study.falls["without skips"])
    if not math.isfinite(order):
        said.append("Collapse: cancellation-free arithmetic does not know this layer near collapse.")
    elif order > 2:
        said.append(f"Collapse: without skip connections a layer maps a small difference to its power {order:.1f}.")
    else:
        said.append("Collapse: a layer maps a small difference to first order, so the fall is exponential at most.")
    if math.isfinite(own[-1]) and math.isfinite(base[-1]):
        alike = abs(own[-1] - base[-1]) <= 0.01 * abs(base[-1])
        more = "as much as" if alike else "less than" if own[-1] > base[-1] else "more than"
        said.append(f"Eight layers without skip connections shrink the tokens' difference {more} softmax does.")
    best = [measure for measure in study.measures if measure.question == "scale"]
    if best:
        said.append("Scale: " + _scales(best))
    few, many = (study[f"largest share of {n} keys"].value for n in (64, 4096))
    fades = many < few / 4
    said.append(
        f"Sparsity: the largest of 64 weights keeps {few:.2g} of a row, that of 4096 {many:.2g}: it "
        + ("fades with the number of keys." if fades else "does not fade.")
    )
    left, sums = study["sum where all scores are −10"].value, study["sum of a row"].value
    if abs(left) < 0.1 * abs(sums):
        said.append("Rows: a row that wants nothing takes nothing, so it needs no sink.")
    else:
        said.append(f"Rows: a row that wants nothing still sums to {left:.2g}.")
    return (*said, *study.notes)


def _scales(best: list[Measure]) -> str:
    values = [measure.value for measure in best]
    if any(math.isnan(value) for value in values):
        return "no factor on the scores is better than another."
    if any(math.isinf(value) for value in values):
        return "the gradient through the weights still rises at a factor of 256."
    first, last = best[0], best[-1]
    name = last.name.removeprefix("best scale for ")
    text = f"for {name} a typical row lets most gradient through at {last.value:.3g} (softmax {last.softmax:.3g})"
    return f"{text}, {last.value / first.value:.2g} times that of 16."


def draw(study: Study) -> "Figure":
    """Three panels beside softmax: S against the deviation, the best scale against n, log ‖res‖ against depth."""
    from rc_jax import style

    figure, (sparse, scale, depth) = style.figure(columns=3, width=3.6, height=3.2)
    own_look, base_look = style.cycle(0)["color"], style.cycle(6)["color"]
    pairs = [
        (measure, float(measure.name.rsplit(" ", 1)[1])) for measure in study.measures if measure.name[:4] == "S at"
    ]
    sparse.plot([at for _, at in pairs], [m.value for m, _ in pairs], "o-", label=study.name)
    sparse.plot([at for _, at in pairs], [m.softmax for m, _ in pairs], "s--", color=base_look, label="softmax")
    sparse.set(xlabel="deviation of the logits", ylabel="S (1 is even)", ylim=(0, 1.05), title="Sparsity")
    sparse.legend()
    best = [(m, int(m.name.split()[3])) for m in study.measures if m.question == "scale"]
    if best:
        finite = [(m, n) for m, n in best if math.isfinite(m.value)]
        scale.errorbar([n for _, n in finite], [m.value for m, _ in finite], [m.error for m, _ in finite], fmt="o-")
        scale.plot([n for _, n in best], [m.softmax for m, _ in best], "s--", color=base_look)
    scale.set(xlabel="keys", ylabel="factor on the scores", xscale="log", title="Best scale")
    for (name, (own, base)), line in zip(study.falls.items(), ("-", ":"), strict=True):
        layers = np.arange(len(own))
        depth.plot(layers, own, "o" + line, color=own_look, label=name)
        depth.plot(layers, base, "s" + line, color=base_look)
    depth.set(xlabel="layer", ylabel="log ‖res‖ (nats)", yscale="symlog", title="Collapse")
    depth.legend()
    return figure


def _digits(value: float) -> str:
    if math.isnan(value):
        return "not known"
    return "none" if math.isinf(value) and value > 0 else f"{value:.4g}"
