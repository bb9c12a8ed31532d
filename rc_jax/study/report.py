"""A study: its record, and that as a table, as sentences, and as a figure."""

import json
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Measure(NamedTuple):
    """One number about a kind.

    Attributes:
        question: `collapse`, `scale`, `sparsity`, `rows` or `cost`.
        name: what it is, with its unit.
        value: of the kind; NaN where it is not known, or there is none.
        softmax: the same of softmax.
        error: standard error of `value`; 0 where it is not a simulation.
        softmax_error: that of `softmax`.
        method: how it was got.
        reason: why `value`, or some of the networks of which it is a median, is not known; empty where all is.
    """

    question: str
    name: str
    value: float
    softmax: float
    error: float
    softmax_error: float
    method: str
    reason: str = ""


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
    """One row for each measure: the kind and softmax with their standard errors, and how the numbers were got."""
    rows = [("question", "measure", study.name, "softmax", "how")]
    for measure in study.measures:
        own = _digits(measure.value, measure.error, measure.reason)
        softmax = _digits(measure.softmax, measure.softmax_error)
        rows.append((measure.question, measure.name, own, softmax, measure.method))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def sentences(study: Study) -> tuple[str, ...]:
    """What the numbers say, a sentence for each question."""
    said = []
    own, base = study.falls["without skips"]
    said.append(f"Collapse: {_collapse(study['order of a layer'], own)}.")
    if math.isfinite(own[-1]) and math.isfinite(base[-1]):
        alike = abs(own[-1] - base[-1]) <= 0.01 * abs(base[-1])
        more = "as much as" if alike else "less than" if own[-1] > base[-1] else "more than"
        change = f"shrink the tokens' difference {more} softmax does"
        if own[-1] > own[0]:
            change = f"make the tokens' difference e^{own[-1] - own[0]:.3g} times as large"
        said.append(f"Eight layers without skip connections {change}.")
    best = [measure for measure in study.measures if measure.question == "scale"]
    if best:
        said.append("Scale: " + _scales(best))
    few, many = (study[f"largest share of {n} keys"] for n in (64, 4096))
    shares = (_digits(each.value, each.error, each.reason) for each in (few, many))
    if math.isnan(few.value) or math.isnan(many.value):
        said.append("Sparsity: rows of normal scores of deviation 2 have no weight, so that none is the largest.")
    else:
        own, other = shares
        said.append(
            f"Sparsity: at scores of deviation 2 the largest of 64 weights keeps {own} of a row, that of 4096 {other}: "
            f"it {_fading(few, many)}"
        )
    left, sums = study["sum where all scores are −10"].value, study["sum of a row"].value
    if left == 0 or abs(left) < 0.1 * abs(sums):
        said.append("Rows: a row that wants nothing takes nothing, so it needs no sink.")
    else:
        said.append(f"Rows: a row that wants nothing still sums to {left:.2g}.")
    for reason in dict.fromkeys(measure.reason for measure in study.measures if measure.question != "scale"):
        names = ", ".join(measure.name for measure in study.measures if measure.reason == reason)
        some = any(measure.reason == reason and math.isfinite(measure.value) for measure in study.measures)
        said += [f"Not known{' of some networks' if some else ''} ({names}): {reason}."] if reason else []
    return (*said, *study.notes)


def _fading(few: Measure, many: Measure) -> str:
    """What two shares say of more keys. Softmax of sharp scores keeps its largest weight up to e^(γ²/2) keys."""
    if many.value < few.value / 4:
        return "fades with the number of keys."
    if few.value - many.value > 3 * math.hypot(few.error, many.error):
        return "falls, and whether it fades with many more keys two numbers do not tell."
    return "does not fade up to 4096 keys."


def _collapse(layer: Measure, logs: list[float]) -> str:
    """The order of a layer, and what the fall over several layers shows beside it."""
    growth, at = _growth(logs)
    falls = f"layer {at} of a network falls {growth:.3g} times as far as the one before"
    if not math.isfinite(layer.value):
        return f"the order of a layer near collapse is not known: {layer.reason or 'nothing is left'}"
    if layer.value > 1.5:
        power = _digits(layer.value, layer.error)
        said = f"without skip connections a layer maps a small difference to its power {power}"
        if not 0.8 < growth / layer.value < 1.25 and logs[at] < -20:
            return f"{said} between e^−4 and e^−6; {falls}"
        return said
    said = "a layer maps a small difference to first order"
    if growth > 1.5:
        return f"{said}, but tokens shrink too: {falls}"
    if math.isfinite(logs[-1]) and logs[-1] > logs[0]:
        return f"{said}, and these layers make it larger"
    return f"{said}, so the fall is exponential while tokens keep their size"


def _growth(logs: list[float]) -> tuple[float, int]:
    """The fall of log ‖res‖ in the last layer that is known over that in the one before, and which layer it is."""
    known = [log for log in logs if math.isfinite(log)]
    if len(known) < 3 or known != logs[: len(known)]:
        return math.nan, 0
    before, last = (known[-3] - known[-2], known[-2] - known[-1])
    return last / before if before > 0 else math.nan, len(known) - 1


def _scales(best: list[Measure]) -> str:
    none = [
        f"{measure.reason} for {measure.name.removeprefix('best scale for ')}" for measure in best if measure.reason
    ]
    if none:
        found = [
            f"{_digits(measure.value, measure.error)} {measure.name.removeprefix('best scale ')}"
            for measure in best
            if not measure.reason
        ]
        also = f"; it is {', '.join(found)}" if found else ""
        return f"no best scale of a typical row was found: {', '.join(none)}{also}."
    first, last = best[0], best[-1]
    name = last.name.removeprefix("best scale for ")
    own, softmax = _digits(last.value, last.error), _digits(last.softmax, last.softmax_error)
    ratio = last.value / first.value
    error = ratio * math.hypot(last.error / last.value, first.error / first.value)
    text = f"for {name} a typical row lets most gradient through at {own} (softmax {softmax})"
    return f"{text}, {_digits(ratio, error)} times that of 16."


def draw(study: Study) -> "Figure":
    """Three panels beside softmax: S against the deviation, the best scale against n, log ‖res‖ against depth.

    Softmax is a broad pale line, so that a curve that lies on it is seen.
    """
    from matplotlib.ticker import MaxNLocator

    from rc_jax import style

    figure, (sparse, scale, depth) = style.figure(columns=3, width=2.6, height=2.5)
    color = style.cycle(6)["color"]
    own: dict[str, Any] = {**style.cycle(0), "linestyle": "-"}
    broad: dict[str, Any] = {"color": color, "linewidth": 6, "alpha": 0.4, "zorder": 1}
    pairs = [
        (measure, float(measure.name.rsplit(" ", 1)[1])) for measure in study.measures if measure.name[:4] == "S at"
    ]
    sparse.plot([at for _, at in pairs], [m.softmax for m, _ in pairs], label="softmax", **broad)
    sparse.errorbar(
        [at for _, at in pairs], [m.value for m, _ in pairs], [m.error for m, _ in pairs], label=study.name, **own
    )
    sparse.set(xlabel="deviation of the logits", ylabel="S (1 is even)", ylim=(0, 1.05), title="Sparsity")
    best = [(m, int(m.name.split()[3])) for m in study.measures if m.question == "scale"]
    keys = [n for _, n in best]
    if best:
        scale.plot(keys, [m.softmax for m, _ in best], **broad)
        scale.errorbar(keys, [m.value for m, _ in best], [m.error for m, _ in best], **own)
    for measure, n in best:
        if measure.reason:
            scale.annotate(
                measure.reason, (n, 0.5), xycoords=("data", "axes fraction"), ha="center", va="center", rotation=90,
                color=own["color"], fontsize=8,
            )  # fmt: skip
    if not best:
        scale.annotate("rows depend on each other", (0.5, 0.5), xycoords="axes fraction", ha="center")
    scale.set(xlabel="keys", ylabel="factor on the scores", xscale="log", title="Best scale")
    scale.set_xticks(keys, map(str, keys))
    scale.set_xticks([], minor=True)
    scale.margins(x=0.12)
    for (name, (ours, base)), line in zip(study.falls.items(), ("-", (0, (1, 1))), strict=True):
        layers = np.arange(len(ours))
        depth.plot(layers, base, **broad | dict[str, Any](linestyle=line))
        depth.plot(layers, ours, label=name, **own | dict[str, Any](linestyle=line))
        if np.isnan(ours[-1]) and np.isfinite(ours[0]):
            last = int(np.flatnonzero(np.isfinite(ours))[-1])
            depth.annotate(
                "not known", (last, ours[last]), xytext=(6, 0), textcoords="offset points", color=own["color"],
                va="center", fontsize=8,
            )  # fmt: skip
    depth.set(xlabel="layer", ylabel="log ‖res‖ (nats)", yscale="symlog", title="Collapse")
    depth.xaxis.set_major_locator(MaxNLocator(integer=True))
    (lines, names), (more, others) = (axes.get_legend_handles_labels() for axes in (sparse, depth))
    figure.legend(lines + more, names + others, loc="outside upper left", ncols=4)  # above the panels, hiding nothing
    return figure


def _digits(value: float, error: float, reason: str = "") -> str:
    """A number with its error to two digits, or why there is none."""
    if math.isnan(value):
        return re.split("[:;,(]", reason)[0] or "not known"
    return f"{value:.4g} ± {float(f'{error:.2g}'):g}" if error > 0 else f"{value:.4g}"
