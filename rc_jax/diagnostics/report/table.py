"""A diagnosis as text: a row a layer, rows to compare with, what the columns mean, and what is unusual."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rc_jax._numerics.text import counted, in_columns
from rc_jax.diagnostics.record import Diagnosis
from rc_jax.diagnostics.report.sentences import sinks


class Column(NamedTuple):
    """Heading of a measure in the table, and what it means in a few words."""

    heading: str
    meaning: str


ROWS = {
    "sparsity": Column("S", "1 for even rows, 1/√n for one key"),
    "relative_entropy": Column("H/log n", "entropy of a row over its largest value"),
    "participation": Column("keys", "effective number of keys, 1/Σp²"),
    "largest_weight": Column("max p", "largest weight of a row"),
    "entropy_scale": Column("α", "deviation of Gaussian logits with this entropy"),
    "largest_logit": Column("max logit", "largest logit of a head"),
    "row_sum": Column("sum", "sum of a row"),
    "no_key_weight": Column("no key", "weight that goes to no key, 1 − Σp"),
}
MATRICES = {
    "sink_weight": Column("key 0", "mean weight on the first key"),
    "sink_rate": Column("sinks", "heads where that exceeds the threshold"),
    "strongest_weight": Column("top key", "mean weight on the key with most, of keys seen half as often as any"),
    "strongest_key": Column("at key", "which key that is in most texts, counted from 0, in how many heads"),
    "strongest_share": Column("in texts", "share of texts in which it is that key"),
    "strongest_first": Column("first", "share of texts in which it is the first key"),
    "second_singular_value": Column("σ₂/σ₁", "0 where all rows are equal"),
    "stable_rank": Column("rank", "Σσ²/σ₁²"),
    "numerical_rank": Column("num. rank", "singular values above rounding"),
    "self_weight": Column("self", "mean weight of a query on its own key"),
    "previous_weight": Column("previous", "mean weight on the key before"),
    "sink_value_ratio": Column("|v₀|/|v|", "norm of the first value over the mean of the others"),
    "sink_output_share": Column("from key 0", "size of what comes from the first key over size of the output"),
}
STATES = {
    "relative_residual": Column("‖res‖/‖X‖", "share of X that differs between tokens"),
    "residual_rate": Column("rate", "change of its logarithm from the state before, in nats"),
    "cosine": Column("cosine", "mean over pairs of tokens"),
    "absolute_cosine": Column("|cosine|", "mean of its magnitude over pairs"),
    "token_rank": Column("rank of X", "stable rank of the tokens"),
    "token_norm": Column("‖x‖", "median norm of a token"),
    "norm_ratio": Column("max ‖x‖", "largest norm over that median"),
    "log_residual": Column("log ‖res‖", "in cancellation-free arithmetic, in nats"),
    "path_share": Column("path X", "share of the output of paths through so many heads, MLPs and norms off"),
    "path_residual_share": Column("path res", "the same of its residual"),
}
OF_HEADS = ("self_weight", "previous_weight", "strongest_share", "strongest_first")  # shown beside single heads alone
WIDTH = 110
Beside = Sequence[tuple[str, Diagnosis]]


def text_of(diagnosis: Diagnosis, *, heads: bool, beside: Beside, sentences: Sequence[str] | None) -> str:
    """All parts, a blank line apart.

    Args:
        diagnosis: what is shown.
        heads: whether each head has a row of its own.
        beside: named diagnoses to compare with.
        sentences: what is unusual; `None` leaves the part out.
    """
    # A table for each group of measures, below it the rows to compare with; then words.
    parts = [title_of(diagnosis)]
    for caption, headings, lines in tables_of(diagnosis, heads=heads, beside=beside):
        parts.append(f"{caption}\n" + in_columns(headings, lines))
    parts.append(_legend(diagnosis, () if heads else OF_HEADS))
    if found := filled(sinks(diagnosis)):
        parts.append(f"Sinks\n{found}")
    if sentences is not None and beside:
        parts.append("Unusual\n" + (filled(sentences) or "Nothing, beside the rows above."))
    parts += ["\n".join(textwrap.fill(note, WIDTH) for note in diagnosis.notes)] if diagnosis.notes else []
    return "\n\n".join(parts)


def tables_of(diagnosis: Diagnosis, *, heads: bool, beside: Beside) -> list[tuple[str, list[str], list[list[str]]]]:
    """Caption, headings and lines of the table of each group of measures; arguments as in `text_of`."""
    tables: list[tuple[str, list[str], list[list[str]]]] = []
    for group, caption in ((ROWS, "Rows of attention"), (MATRICES, "Keys and matrices")):
        left = () if heads else OF_HEADS
        shown = {name: column for name, column in group.items() if name in diagnosis.measures and name not in left}
        if shown:
            lines = _layers(diagnosis, shown, heads)
            for name, other in beside:
                if any(measure in other.measures for measure in shown):
                    lines.append([name, *(_cell(other, measure) for measure in shown)])
            spread = "" if diagnosis.heads == 1 else ", median and range over heads"
            tables.append((f"{caption}{spread}", ["layer", *_headings(shown)], lines))
    if "relative_residual" in diagnosis.measures:
        tables.append(_states(diagnosis, beside))
    return tables


def title_of(diagnosis: Diagnosis) -> str:
    """What was read."""
    kind = {None: "", True: ", causal", False: ", not causal"}[diagnosis.causal]
    samples = "" if diagnosis.samples == 1 else f", mean of {diagnosis.samples} samples"
    tokens = counted(diagnosis.tokens, "token")
    if diagnosis.queries is not None:
        queries = "1 query" if diagnosis.queries == 1 else f"{diagnosis.queries} queries"
        tokens = f"{queries} of {counted(diagnosis.tokens, 'key')}"
    parts = [f"{counted(diagnosis.layers, 'layer')} of {counted(diagnosis.heads, 'head')}"] if diagnosis.layers else []
    parts += [counted(len(diagnosis["cosine"]), "hidden state")] if "cosine" in diagnosis.measures else []
    return f"{' and '.join(parts)}: {tokens}{kind}{samples}"


def _headings(shown: dict[str, Column]) -> list[str]:
    return [column.heading for column in shown.values()]


def _layers(diagnosis: Diagnosis, shown: dict[str, Column], heads: bool) -> list[list[str]]:
    """A row for each layer, by its number in the model; below it one for each head, counted from 0, if wanted."""
    lines: list[list[str]] = []
    for layer in range(diagnosis.layers):
        lines.append([str(diagnosis.numbers[layer]), *(_cell(diagnosis, name, layer) for name in shown)])
        for head in range(diagnosis.heads if heads else 0):
            values = (number(float(diagnosis[name][layer, head])) for name in shown)
            lines.append([f"head {head}", *values])
    return lines


def _cell(diagnosis: Diagnosis, name: str, layer: int | None = None) -> str:
    """Median and range over the heads of a layer, or of all; for sinks how many heads of how many."""
    if name not in diagnosis.measures:
        return "–"
    values = diagnosis[name] if layer is None else diagnosis[name][layer]
    if name == "strongest_key":
        keys, times = np.unique(values[~np.isnan(values)], return_counts=True)
        if not len(keys):
            return "–"
        common = int(times.argmax())
        return f"{keys[common]:.0f}" + (f" in {times[common]}/{values.size}" if values.size > 1 else "")
    if name == "sink_rate":
        return f"{number(float(np.nansum(values)))}/{values.size}"
    if values.size == 1:
        return number(float(values.item()))
    values = values[~np.isnan(values)] if not np.isnan(values).all() else values  # heads that see nothing
    low, middle, high = (number(float(np.quantile(values, share))) for share in (0, 0.5, 1))
    return f"{middle} {low}–{high}"


def number(value: float) -> str:
    """Two digits; whole numbers from 100 on, up to where only a scale of rows with a single key is as large."""
    if np.isnan(value):
        return "–"
    if value >= 1e6:
        return "> 1e6"
    return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:.2g}"


def _states(diagnosis: Diagnosis, beside: Beside) -> tuple[str, list[str], list[list[str]]]:
    """A row for each state; for others the range over their states."""
    shown = {name: column for name, column in STATES.items() if name in diagnosis.measures}
    lines = [
        [str(state), *(number(float(diagnosis[name][state])) for name in shown)]
        for state in range(len(diagnosis["cosine"]))
    ]
    for name, other in beside:
        if "cosine" in other.measures:
            lines.append([name, *(_range(other, measure) for measure in shown)])
    caption = (
        "Hidden states: each is what the layer of its number reads; the last is what the model returns, in most "
        "decoders after a norm"
    )
    return caption, ["state", *_headings(shown)], lines


def _range(diagnosis: Diagnosis, name: str) -> str:
    """From the least to the largest of all states."""
    if name not in diagnosis.measures:
        return "–"
    return "–".join(number(float(end(diagnosis[name]))) for end in (np.nanmin, np.nanmax))


def _legend(diagnosis: Diagnosis, left: Sequence[str]) -> str:
    """What the columns mean."""
    columns = {**ROWS, **MATRICES, **(STATES if "cosine" in diagnosis.measures else {})}
    lines = [
        f"{each.heading}: {each.meaning}"
        for name, each in columns.items()
        if name in diagnosis.measures and name not in left
    ]
    text = "; ".join(lines) + "."
    if "scale_ratio" in diagnosis.measures:
        some = np.isfinite(diagnosis["entropy_scale"]) & (diagnosis["scale_ratio"] > 0)
        if some.any():
            best = float(np.median(diagnosis["entropy_scale"][some] / diagnosis["scale_ratio"][some]))
            text += f" α = 1 is what 1/√d gives random queries and keys; α* = {best:.3g} is the annealed optimum."
    return textwrap.fill(text, WIDTH)


def filled(sentences: Iterable[str]) -> str:
    """A line for each sentence, or several."""
    return "\n".join(textwrap.fill(each, WIDTH, subsequent_indent="  ") for each in sentences)
