"""Animations: frames that differ and loop, light and dark, small, stilled on request, and no figure falls with one."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image

from experiments import animation
from experiments.command import main
from experiments.ledger import record
from experiments.lib import figure, style
from experiments.report import html
from tests.experiments import quick_data

MOVING = """

def animate(data):
    from experiments import animation
    drawing, (ax,) = style.figure(width=2, height=1.5)
    line = ax.plot(data["x"], data["y"], color=style.colour("measured"))[0]
    {before}
    def update(part):
        line.set_data(data["x"][:part], data["y"][:part])
    return animation.moving(drawing, update, [1, 2, 3])
"""


def add(figures, before="pass"):
    figures.add("one")
    path = figures.path / "one.py"
    path.write_text(path.read_text() + MOVING.format(before=before))
    return figures


def frames(content):
    picture = Image.open(io.BytesIO(content))
    out = []
    for at in range(picture.n_frames):
        picture.seek(at)
        out.append(np.asarray(picture.convert("RGB")).astype(int))
    return picture, out


def unlike(one, other):
    return np.abs(one - other).max() > 40


def test_written_beside_the_pictures_and_stilled_in_the_report(figures, tmp_path):
    add(figures)
    assert main(["--out", str(tmp_path)], figures.package) == 0
    folder = tmp_path / "quick"
    light, dark = ((folder / f"one{theme}.webp").read_bytes() for theme in ("", ".dark"))
    picture, pictures = frames(light)
    assert picture.info["loop"] == 0
    assert len(pictures) == 3 + animation.HOLD or len(pictures) == 3  # equal frames at the end may be kept as one
    assert unlike(pictures[0], pictures[1])
    assert unlike(pictures[1], pictures[2])
    assert pictures[0].mean() > 200 > 80 > frames(dark)[1][0].mean()
    page = (folder / html.FILE).read_text(encoding="utf-8")
    moving = page[page.index('class="frame moving"') :]
    moving = moving[: moving.index("</picture>")]
    sources = moving.split("<source ")[1:]
    assert ["(prefers-reduced-motion: reduce) and (prefers-color-scheme: dark)" in sources[0],
            'media="(prefers-reduced-motion: reduce)"' in sources[1],
            'media="(prefers-color-scheme: dark)"' in sources[2]] == [True] * 3  # fmt: skip
    shown = [html.picture(folder / name)["src"] for name in ("report/one.end.dark.webp", "report/one.end.webp",
                                                               "one.dark.webp", "one.webp")]  # fmt: skip
    places = [moving.index(each) for each in shown]
    assert places == sorted(places)
    assert 'alt="Title of one, animated"' in moving
    for name in ("one.end.webp", "one.end.dark.webp"):
        picture, stills = frames((folder / "report" / name).read_bytes())
        assert len(stills) == 1
    assert np.array_equal(frames((folder / "report" / "one.end.webp").read_bytes())[1][0], pictures[-1])


def test_drawn_again_without_computing(figures, tmp_path):
    add(figures)
    main(["--preset", "smoke", "--out", str(tmp_path)], figures.package)
    (tmp_path / "smoke" / "one.webp").unlink()
    assert main(["--preset", "smoke", "--out", str(tmp_path), "--replot"], figures.package) == 0
    assert (tmp_path / "smoke" / "one.webp").exists()
    assert figures.computed == ["one"]


def test_failure_is_a_warning_and_the_figure_stays(figures, tmp_path, capsys):
    add(figures)
    main(["--preset", "smoke", "--out", str(tmp_path)], figures.package)
    add(figures, before="raise ValueError('no film')")
    assert main(["--preset", "smoke", "--out", str(tmp_path), "--replot"], figures.package) == 0
    folder = tmp_path / "smoke"
    entry = record.read(folder)["one"]
    assert entry.status == record.DONE
    assert entry.claims
    assert entry.warnings == ("the animation: ValueError: no film (see logs/one.log)",)
    assert "no film" in (folder / "logs" / "one.log").read_text()
    assert "not drawn: one: the animation: ValueError: no film" in capsys.readouterr().out
    assert (folder / "one.png").exists()
    assert not (folder / "one.webp").exists()  # the old one would not belong to these numbers
    page = (folder / html.FILE).read_text(encoding="utf-8")
    assert 'class="frame moving"' not in page
    assert "the animation: ValueError: no film" in page


def test_a_figure_that_fails_takes_its_animation_along(figures, tmp_path):
    add(figures)
    main(["--preset", "smoke", "--out", str(tmp_path)], figures.package)
    figures.add("one", claims="raise ValueError('no')")
    assert main(["--preset", "smoke", "--out", str(tmp_path), "--replot"], figures.package) == 1
    left = {path.name for path in (tmp_path / "smoke").rglob("*") if path.suffix in (".png", ".webp", ".pdf")}
    assert left == set()


def test_few_moments_are_refused():
    with style.theme("light"), pytest.raises(ValueError, match="`moments` must be at least two, got 1"):
        animation.moving(style.figure()[0], lambda moment: None, [0])


def test_which_figures_move():
    assert {name for name in figure.names() if hasattr(figure.load(name), "animate")} == {"circle"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["circle"])
def test_size_at_the_preset_quick(name):
    with style.theme("light"):
        content = animation.encode(figure.load(name).animate(quick_data.load(name)))
    picture, shown = frames(content)
    assert 50 <= picture.n_frames <= 120
    assert sum(unlike(one, other) for one, other in itertools.pairwise(shown)) > 0.8 * (len(shown) - animation.HOLD - 1)
    assert len(content) < 1.5e6
    assert picture.size[0] <= 1000
