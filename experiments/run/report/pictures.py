"""A drawing for print and for the report: PNG of 300 dpi, PDF, and WebP without loss.

Drawings are laid out larger than they are printed, with text of 9 to 11 points. A PNG has the width of what it is
printed on: a column, or the text of a page. Its text is then 6 to 7 points high. A PDF has the size
of the layout, and a paper that includes it says how wide it shall be.
"""

import io

from matplotlib.figure import Figure
from PIL import Image

COLUMN, PAGE = 3.5, 7.0  # inches: one column of a journal, its text width
DPI = 300
DRAFT = 100  # where drawings are for a look only
FOLDER = "report"  # of the copies that the report shows


def printed_width(drawing: Figure) -> float:
    """Inches: one panel has a column, several have the page."""
    return COLUMN if drawing.get_figwidth() < 6 else PAGE


def png(drawing: Figure, dpi: int = DPI) -> bytes:
    """A picture of so many dots per printed inch, which says so itself (chunk pHYs)."""
    buffer = io.BytesIO()
    dots = dpi * printed_width(drawing) / drawing.get_figwidth()
    drawing.savefig(buffer, format="png", dpi=dots, metadata={}, pil_kwargs={"dpi": (dpi, dpi)})
    return buffer.getvalue()


def pdf(drawing: Figure) -> bytes:
    """The same in vectors, with its fonts (TrueType) inside."""
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="pdf", metadata={"CreationDate": None})
    return buffer.getvalue()


def for_report(content: bytes) -> bytes:
    """A PNG as WebP without loss, a third of its size, for a page that holds a hundred of them."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(content)).convert("RGB").save(buffer, format="WEBP", lossless=True, method=2)
    return buffer.getvalue()
