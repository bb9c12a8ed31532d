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

from experiments import figures
from experiments.lib import style
from experiments.run.report import pictures


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


@pytest.mark.parametrize(("name", "least"), [("light", 1.5), ("dark", 3.0)])
def test_ordered_series_stand_out_from_the_paper(name, least):
    """Contrast as WCAG 2 defines it; at 2.3 a purple line on black was hard to see."""

    def luminance(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in mpl.colors.to_rgb(colour)]
        return np.dot(linear, (0.2126, 0.7152, 0.0722))

    with style.theme(name):
        light = [luminance(colour) + 0.05 for colour in (*style.sequence(7), style.PAPER[name])]
    assert min(max(a, light[-1]) / min(a, light[-1]) for a in light[:-1]) >= least


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


@pytest.mark.parametrize(
    ("columns", "rows", "width", "in_rows"),
    [
        (1, 1, 5.6, [1]),
        (3, 1, 5.0, [2, 1]),
        (3, 2, 4.8, [2, 2, 2]),
        (4, 1, 2.9, [3, 1]),
        (5, 1, 2.9, [3, 2]),
        (2, 2, 5.6, [2, 2]),
    ],
)
def test_panels_go_on_in_the_next_row(columns, rows, width, in_rows):
    drawing, panels = style.figure(columns, rows, width=width)
    assert len(panels) == columns * rows and drawing.get_figwidth() <= style.PAGE
    spans = [panel.get_subplotspec() for panel in panels]
    starts = [span.rowspan.start for span in spans]
    assert [starts.count(row) for row in range(len(in_rows))] == in_rows
    last = [span.colspan for span in spans if span.rowspan.start == len(in_rows) - 1]
    assert last[0].start == 2 * max(in_rows) - last[-1].stop  # in the middle of the row


def test_titles_and_legends_break_where_the_panel_ends():
    with style.theme("light"):
        drawing, (ax, other) = style.figure(columns=2)
        for index in range(4):
            ax.plot([1, 2], [1, index], label=f"one line of several, number {index}")
        style.panel(
            ax, "x", "y", "A title that is longer than its panel is wide, as some are", legend="below", columns=4
        )
        style.panel(other, "x", "y", "A short title")
        drawing.canvas.draw()
    assert ax.get_title(loc="left").count("\n") == 1 and "\n" not in other.get_title(loc="left")
    assert ax.get_legend().get_window_extent().width < drawing.bbox.width / 2


@pytest.mark.parametrize("height", [2.2, 3.3, 5.0])
def test_a_legend_below_keeps_clear_of_numbers_and_label(height):
    drawing, (ax,) = style.figure(height=height)
    ax.plot([1, 1e9], [1, 2], label="a line")
    style.panel(ax, "d_k, width of a head", "y", log="x", legend="below")
    drawing.canvas.draw()
    box = ax.get_legend().get_window_extent()
    assert box.y1 <= ax.xaxis.label.get_window_extent().y0 + 1  # a pixel for rounding
    assert box.y0 >= 0


def test_plain_numbers_on_a_logarithmic_axis():
    drawing, (ax,) = style.figure()
    ax.plot([1, 2], [0.3, 8])
    style.panel(ax, "x", "y", log="y")
    style.ticks(ax.yaxis, (0.5, 1, 2, 5))
    drawing.canvas.draw()
    assert [each.get_text() for each in ax.get_yticklabels()] == ["0.5", "1", "2", "5"]
    assert [each.get_text() for each in ax.get_yticklabels(minor=True)] == []


def test_bad_names():
    with pytest.raises(ValueError, match="`name` must be 'light' or 'dark'"), style.theme("sepia"):
        pass
    with pytest.raises(ValueError, match="`name` must be 'light' or 'dark', got 'sepia'"):
        style.settings("sepia")
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
    at, parts = 8, {}
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        parts[content[at + 4 : at + 8].decode()] = content[at + 8 : at + 8 + length]
        at += 12 + length
    return parts


@pytest.mark.parametrize(("columns", "inches"), [(1, 3.5), (2, 7.0), (3, 7.0)])
def test_png_says_how_large_it_is_printed(columns, inches):
    with style.theme("light"):
        parts = chunks(pictures.png(draw(columns)))
    width, _ = struct.unpack(">II", parts["IHDR"][:8])
    across, down, unit = struct.unpack(">IIB", parts["pHYs"])
    assert unit == 1  # per metre
    assert across == down == round(300 / 0.0254)
    assert abs(width / 300 - inches) < 0.01


def test_pdf_is_as_large_as_its_layout_and_holds_its_fonts():
    with style.theme("light"):
        drawing = draw()
        pdf = pictures.pdf(drawing)
    box = [float(each) / 72 for each in re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", pdf).groups()]
    np.testing.assert_allclose(box, drawing.get_size_inches(), atol=0.01)
    assert b"/FontFile2" in pdf  # TrueType, inside
    assert b"/Subtype /Type3" not in pdf
    assert b"/Subtype /Image" not in pdf
    assert not re.search(rb"/CreationDate", pdf)


def test_the_reports_copy_loses_nothing():
    with style.theme("dark"):
        png = pictures.png(draw())
    copy = pictures.for_report(png)
    assert len(copy) < len(png)
    one, other = (np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in (png, copy))
    assert np.array_equal(one, other)


ALLOWED = {"none", "white", "black"}  # on colour maps, where ink must stand out from the map and not from the paper


@pytest.mark.parametrize("path", sorted(Path(figures.__file__).parent.rglob("*.py")), ids=lambda path: path.stem)
def test_every_colour_comes_from_style(path):
    """No figure names a colour itself: literals are found by their grammar, and in what colour arguments are given."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    colours = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"#[0-9a-fA-F]{3,8}|C\d", node.value)
    ]
    for call in ast.walk(tree):
        for given in getattr(call, "keywords", []):
            if given.arg in ("color", "c", "colors", "facecolor", "edgecolor", "ecolor", "markerfacecolor"):
                colours += [each.value for each in ast.walk(given.value) if isinstance(each, ast.Constant)
                          and mpl.colors.is_color_like(each.value) and isinstance(each.value, str)]  # fmt: skip
    assert set(colours) <= ALLOWED
    assert "matplotlib.pyplot" not in path.read_text(encoding="utf-8")


def test_meanings_are_used():
    """A meaning that no figure draws is no meaning."""
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(figures.__file__).parent.rglob("*.py"))
    assert [meaning for meaning in style.MEANINGS if f'"{meaning}"' not in sources] == []
