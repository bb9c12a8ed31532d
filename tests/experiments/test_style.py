"""One look, light and dark, with nothing global left behind."""

import sys

import matplotlib as mpl
import numpy as np
import pytest

from experiments import style


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
