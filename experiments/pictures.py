"""A drawing for print and for the report: PNG of 300 dpi, PDF of the same size in inches, WebP without loss.

Drawings are laid out larger than they are printed, with text of 9 to 11 points. Here they get the width of what they
are printed on: a column, the text of a page, or a page on its side. Then that text is 5 to 7 points high, and a
paper includes the file as it is.
"""

import io
import re

from matplotlib.figure import Figure
from PIL import Image

COLUMN, PAGE, SIDEWAYS = 3.5, 7.0, 9.5  # inches: one column of a journal, its text width, a page on its side
DPI = 300
FOLDER = "report"  # of the copies that the report shows


def printed_width(drawing: Figure) -> float:
    """Inches: one panel has a column, up to two a row have the page, more need it on its side."""
    width = drawing.get_figwidth()
    return COLUMN if width < 6 else PAGE if width < 13.5 else SIDEWAYS


def png(drawing: Figure) -> bytes:
    """A picture of 300 dots per printed inch, which says so itself (chunk pHYs)."""
    buffer = io.BytesIO()
    dots = DPI * printed_width(drawing) / drawing.get_figwidth()
    drawing.savefig(buffer, format="png", dpi=dots, metadata={}, pil_kwargs={"dpi": (DPI, DPI)})
    return buffer.getvalue()


def pdf(drawing: Figure) -> bytes:
    """The same in vectors, at its printed size, with its fonts (TrueType) inside."""
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="pdf", metadata={"CreationDate": None})
    return scaled(buffer.getvalue(), printed_width(drawing) / drawing.get_figwidth())


def scaled(content: bytes, factor: float) -> bytes:
    """A PDF of one page, made `factor` times as large.

    Matplotlib draws text of ten points ten points high whatever the paper. So the page is said once more, as PDF
    allows at the end of a file: with another size, and with a change of scale before what it shows.
    """
    page = re.search(rb"\n(\d+) 0 obj\n(<< /Type /Page /.*?>>)\nendobj", content, re.DOTALL)
    size = re.search(rb"/Size (\d+)", content)
    root, start = re.search(rb"/Root \d+ 0 R", content), re.search(rb"startxref\n(\d+)\n%%EOF\s*$", content)
    if not (page and size and root and start):
        raise ValueError("`content` must be a PDF of one page as matplotlib writes it")
    number, new = int(page[1]), int(size[1])
    change = b"%.8f 0 0 %.8f 0 0 cm" % (factor, factor)
    said = re.sub(rb"/Contents (\d+ 0 R)", b"/Contents [ %d 0 R \\1 ]" % new, page[2])
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", said)
    if box is None:
        raise ValueError("`content` must give its page a MediaBox")
    said = said.replace(box[0], b"/MediaBox [ 0 0 %.4f %.4f ]" % (factor * float(box[1]), factor * float(box[2])))
    objects = (
        b"\n%d 0 obj\n%b\nendobj" % (number, said),
        b"\n%d 0 obj\n<< /Length %d >>\nstream\n%b\nendstream\nendobj" % (new, len(change), change),
    )
    places = len(content) + 1, len(content) + len(objects[0]) + 1
    body = content + b"".join(objects)
    table = b"".join(b"%d 1\n%010d 00000 n \n" % each for each in zip((number, new), places, strict=True))
    trailer = b"<< /Size %d %b /Prev %b >>" % (new + 1, root[0], start[1])
    return body + b"\nxref\n%btrailer\n%b\nstartxref\n%d\n%%%%EOF\n" % (table, trailer, len(body) + 1)


def for_report(content: bytes) -> bytes:
    """A PNG as WebP without loss, a third of its size, for a page that holds a hundred of them."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(content)).convert("RGB").save(buffer, format="WEBP", lossless=True, method=2)
    return buffer.getvalue()
