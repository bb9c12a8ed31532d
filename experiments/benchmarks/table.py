"""A table of a benchmark's own: what is measured once, not in turns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of numbers and words under the names of their columns; a note stands below.

    Numbers are kept as they are in the JSON file, and shown with three digits.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float, ...], ...]
    note: str = ""
