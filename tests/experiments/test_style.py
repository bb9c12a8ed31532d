"""One look, light and dark, with nothing global left behind."""

import ast
import io
import re
import struct
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from experiments import figures, pictures, style


def test_theme_is_gone_after_the_block():
    before = dict(mpl.rcParams)
    with style.theme("dark"):
        assert style.colour("theory") == style.INK["dark"]
        drawing, (ax,) = style.figure()
    assert dict(mpl.rcParams) == before
    assert style.colour("theory") == style.INK["light"]
    assert mpl.colors.to_hex(drawing.get_facecolor()) == style.PAPER["dark"]
    assert mpl.colors.to_hex(ax.xaxis.label.get_color()) == style.INK["dark"]
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_helpers_draw():
    drawing, panels = style.figure(columns=2, rows=2)
    assert len(panels) == 4
    x = np.arange(3.0)
    style.bands(panels[0], x, x - 1, x, x + 1, meaning="trained", label="trained")
    style.labels(panels[0], "x (layers)", "y (nats)", "Title")
    for place, panel in zip(("best", "below", "right"), panels, strict=False):
        panel.plot(x, x, label="line", **style.cycle(9))
        style.legend(panel, place)
    style.reference(panels[3], x=1.0, y=2.0, text="guide")
    drawing.canvas.draw()
    assert len(set(style.sequence(6))) == 6


def test_bad_names():
    with pytest.raises(ValueError, match="`name` must be 'light' or 'dark'"), style.theme("sepia"):
        pass
    with pytest.raises(ValueError, match="`meaning` must be one of theory, measured"):
        style.colour("happiness")


def draw(columns=2, text="ẑ ≤ √(2 log n)"):
    drawing, panels = style.figure(columns=columns, width=5.6 if columns < 3 else 4.8)
    x = np.arange(1.0, 9.0)
    panels[0].plot(x, x**-2, color=style.colour("measured"))
    style.labels(panels[0], "x", "y", text)
    return drawing


def chunks(content):
    """The chunks of a PNG: name and bytes."""
    at, found = 8, {}
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        found[content[at + 4 : at + 8].decode()] = content[at + 8 : at + 8 + length]
        at += 12 + length
    return found


def in_force(content):
    """The objects of a PDF that its last table names: what is said later about an object replaces what was said."""
    said, start = {}, int(re.findall(rb"startxref\n(\d+)", content)[-1])
    while start:
        table = content[start : content.index(b"trailer", start)].split(b"\n")[1:]
        while table and table[0]:
            first, count = map(int, table[0].split())
            for number, line in enumerate(table[1 : 1 + count], first):
                if line.endswith(b"n ") and number not in said:
                    place = int(line.split()[0])
                    assert content[place:].startswith(b"%d 0 obj" % number)
                    said[number] = content[place : content.index(b"endobj", place)]
            table = table[1 + count :]
        trailer = content[content.index(b"trailer", start) :]
        trailer = trailer[: trailer.index(b"startxref")]
        before = re.search(rb"/Prev (\d+)", trailer)
        start = int(before[1]) if before else 0
    return said


@pytest.mark.parametrize(("columns", "inches"), [(1, 3.5), (2, 7.0), (3, 9.5)])
def test_png_and_pdf_are_of_one_printed_size(columns, inches):
    with style.theme("light"):
        drawing = draw(columns)
        png = pictures.png(drawing)
        pdf = pictures.pdf(drawing)
    parts = chunks(png)
    width, height = struct.unpack(">II", parts["IHDR"][:8])
    across, down, unit = struct.unpack(">IIB", parts["pHYs"])
    assert unit == 1  # per metre
    assert across == down == round(300 / 0.0254)
    assert abs(width / 300 - inches) < 0.01
    (page,) = [each for each in in_force(pdf).values() if b"/Type /Page " in each]
    box = [float(each) / 72 for each in re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", page).groups()]
    np.testing.assert_allclose(box, (width / 300, height / 300), atol=0.01)


def test_pdf_is_scaled_as_a_whole_and_holds_its_fonts():
    with style.theme("light"):
        drawing = draw()
        pdf = pictures.pdf(drawing)
    objects = in_force(pdf)
    (page,) = [each for each in objects.values() if b"/Type /Page " in each]
    before, shown = map(int, re.search(rb"/Contents \[ (\d+) 0 R (\d+) 0 R \]", page).groups())
    factor = float(re.search(rb"([\d.]+) 0 0 \1 0 0 cm", objects[before])[1])
    assert abs(factor * drawing.get_figwidth() - pictures.PAGE) < 1e-6
    assert b"FlateDecode" in objects[shown]
    everything = b"".join(objects.values())
    assert b"/FontFile2" in everything  # TrueType, inside
    assert b"/Subtype /Type3" not in everything
    assert b"/Subtype /Image" not in everything
    assert not re.search(rb"/CreationDate", everything)


def test_only_a_pdf_of_one_page_is_scaled():
    with pytest.raises(ValueError, match="`content` must be a PDF of one page"):
        pictures.scaled(b"%PDF-1.4 nothing", 0.5)


def test_the_reports_copy_loses_nothing():
    with style.theme("dark"):
        png = pictures.png(draw())
    copy = pictures.for_report(png)
    assert len(copy) < len(png)
    one, other = (np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in (png, copy))
    assert np.array_equal(one, other)


ALLOWED = {"none", "white", "black"}  # on colour maps, where ink must stand out from the map and not from the paper


@pytest.mark.parametrize("path", sorted(Path(figures.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_every_colour_comes_from_style(path):
    """No figure names a colour itself: literals are found by their grammar, and in what colour arguments are given."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"#[0-9a-fA-F]{3,8}|C\d", node.value)
    ]
    for call in ast.walk(tree):
        for given in getattr(call, "keywords", []):
            if given.arg in ("color", "c", "colors", "facecolor", "edgecolor", "ecolor", "markerfacecolor"):
                found += [each.value for each in ast.walk(given.value) if isinstance(each, ast.Constant)
                          and mpl.colors.is_color_like(each.value) and isinstance(each.value, str)]  # fmt: skip
    assert set(found) <= ALLOWED
    assert "matplotlib.pyplot" not in path.read_text(encoding="utf-8")


def test_meanings_are_used():
    """A meaning that no figure draws is no meaning."""
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(figures.__file__).parent.glob("*.py"))
    assert [meaning for meaning in style.MEANINGS if f'"{meaning}"' not in sources] == []
