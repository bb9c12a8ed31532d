"""A diagnosis printed and drawn beside trained models and random weights."""

from typing import TYPE_CHECKING

from rc_jax.diagnostics import reference
from rc_jax.diagnostics.record import Diagnosis
from rc_jax.diagnostics.report import sentences
from rc_jax.diagnostics.report import table as text
from rc_jax.diagnostics.report.outliers import Outlier, outliers, sentence_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Outlier", "figure", "outliers", "table", "unusual"]


def table(diagnosis: Diagnosis, *, heads: bool = False, compare: bool = True) -> str:
    """`Diagnosis.table`."""
    beside = reference.beside(diagnosis) if compare else ()
    return text.text_of(diagnosis, heads=heads, beside=beside, sentences=unusual(diagnosis) if compare else None)


def unusual(diagnosis: Diagnosis) -> tuple[str, ...]:
    """`Diagnosis.unusual`."""
    others = sentences.unusual(diagnosis, reference.trained(diagnosis), reference.random(diagnosis))
    return (*sentence_of(outliers(diagnosis)), *others)


def figure(diagnosis: Diagnosis) -> "Figure":
    """`Diagnosis.figure`."""
    from rc_jax.diagnostics.report import figure as drawing  # Matplotlib is imported by those who draw

    return drawing.draw(diagnosis, reference.beside(diagnosis), diagnosis.threshold)
