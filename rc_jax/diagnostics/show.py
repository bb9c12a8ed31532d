"""A diagnosis printed, drawn and written beside trained models and random weights."""

import os
import sys
from typing import TYPE_CHECKING, Any

from rc_jax._numerics import arguments
from rc_jax.diagnostics import reference
from rc_jax.diagnostics.record import Diagnosis, Outlier
from rc_jax.diagnostics.report import export, sentences
from rc_jax.diagnostics.report import table as text
from rc_jax.diagnostics.report.outliers import outliers, sentence_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Outlier", "attach", "csv", "figure", "frame", "outliers", "page", "sinks", "table", "unusual"]


def table(diagnosis: Diagnosis, *, heads: bool = False, compare: bool = True) -> str:
    """`Diagnosis.table`."""
    beside = reference.beside(diagnosis) if compare else ()
    return text.text_of(diagnosis, heads=heads, beside=beside, sentences=unusual(diagnosis) if compare else None)


def page(diagnosis: Diagnosis) -> str:
    """`Diagnosis._repr_html_`."""
    tables = text.tables_of(diagnosis, heads=False, beside=reference.beside(diagnosis))
    return export.page(text.title_of(diagnosis), tables, (*sinks(diagnosis), *unusual(diagnosis), *diagnosis.notes))


def unusual(diagnosis: Diagnosis) -> tuple[str, ...]:
    """`Diagnosis.unusual`."""
    others = sentences.unusual(diagnosis, reference.trained(diagnosis), reference.random(diagnosis))
    return (*sentence_of(outliers(diagnosis)), *others)


def sinks(diagnosis: Diagnosis) -> tuple[str, ...]:
    """`Diagnosis.sinks`."""
    return tuple(sentences.sinks(diagnosis))


def figure(diagnosis: Diagnosis, kind: str) -> "Figure":
    """`Diagnosis.figure`."""
    from rc_jax.diagnostics.report import figure as drawing  # Matplotlib is imported by those who draw

    arguments.one_of(("layers", "map"))("kind", kind)
    if kind == "map":
        return drawing.draw_map(diagnosis)
    return drawing.draw(diagnosis, reference.beside(diagnosis), diagnosis.threshold, outliers(diagnosis))


def frame(diagnosis: Diagnosis, of: str | None) -> Any:
    """`Diagnosis.to_frame`."""
    return export.frame(export.rows_of(diagnosis.measures, diagnosis.numbers, of))


def csv(diagnosis: Diagnosis, path: str | os.PathLike[str] | None, of: str | None) -> str | None:
    """`Diagnosis.to_csv`."""
    return export.write(export.rows_of(diagnosis.measures, diagnosis.numbers, of), path)


def attach() -> None:
    """Give diagnoses the functions of this module: it compares them with others, and so stands above their own."""
    Diagnosis.view = sys.modules[__name__]
