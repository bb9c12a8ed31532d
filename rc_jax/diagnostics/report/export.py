"""Diagnoses as rows: for pandas, for files of comma-separated values, and for notebooks."""

import csv
import html
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]


def rows_of(measures: Mapping[str, np.ndarray], numbers: Sequence[int], of: str | None) -> list[Row]:
    """A row for each layer and head, or for each hidden state, with a column for each measure.

    Args:
        measures: arrays (layer, head) and (state,) by name.
        numbers: of the layers.
        of: "heads" or "states"; `None` takes heads where there are any.
    """
    groups = {"heads": 2, "states": 1}
    by_axes = {name: {key: each for key, each in measures.items() if each.ndim == groups[name]} for name in groups}
    chosen = of or ("heads" if by_axes["heads"] else "states")
    if chosen not in groups or not by_axes[chosen]:
        there = " and ".join(repr(name) for name in groups if by_axes[name])
        raise ValueError(f"`of` must be one of those that have measures, {there}, got {chosen!r}")
    kept = by_axes[chosen]
    shape = next(iter(kept.values())).shape
    places: list[Row] = [
        {"layer": numbers[place[0]], "head": place[1]} if chosen == "heads" else {"state": place[0]}
        for place in np.ndindex(*shape)
    ]
    if any(each.shape != shape for each in kept.values()):
        kept = {name: each for name, each in kept.items() if each.shape == shape}
    return [
        row | {name: each[place].item() for name, each in kept.items()}
        for row, place in zip(places, np.ndindex(*shape), strict=True)
    ]


def frame(rows: list[Row]) -> Any:
    """The rows as a `pandas.DataFrame`."""
    try:
        pd: Any = importlib.import_module("pandas")  # which the package does without
    except ImportError as error:
        raise ImportError("`to_frame` needs pandas: pip install pandas, or use to_csv, which does not") from error
    return pd.DataFrame(rows)


def write(rows: list[Row], path: str | os.PathLike[str] | None) -> str | None:
    """The rows as comma-separated values, in a file or, without a path, as text; NaN is an empty cell."""
    lines: list[str] = []

    class Lines:
        """What `csv` writes into."""

        write = staticmethod(lines.append)

    writer = csv.writer(Lines(), lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows(["" if each != each else each for each in row.values()] for row in rows)
    text = "".join(lines)
    if path is None:
        return text
    Path(path).write_text(text, encoding="utf-8")
    return None


def page(title: str, tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]], words: Sequence[str]) -> str:
    """Tables with captions as HTML, words below them."""

    def line(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    parts = [f"<p>{html.escape(title)}</p>"]
    for caption, headings, lines in tables:
        body = "".join(line("td", cells) for cells in lines)
        head = line("th", headings)
        parts.append(
            f"<table><caption>{html.escape(caption)}</caption><thead>{head}</thead><tbody>{body}</tbody></table>"
        )
    return "".join([*parts, *(f"<p>{html.escape(each)}</p>" for each in words)])
