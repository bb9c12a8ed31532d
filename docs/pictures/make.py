"""Small pictures of all figures and the page that shows them, for GitHub and for a site that is built without results.

`python docs/pictures/make.py results/quick` reads the drawings of a run, writes one WebP a figure, of 50 kB at most
where it is no higher than wide, and writes `docs/gallery.md`. Pictures are written in light and in dark. A figure with
`animate(data)`, a matplotlib animation, is written as loops into `docs/pictures/moving` too. README shows the upper row
of one figure, and on a phone its first panel, in letters of 9 px or more.
"""

import io
import pathlib
import sys

import numpy as np
from PIL import Image

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from experiments.lib import figure, style  # noqa: E402
from experiments.run.report import drawing  # noqa: E402

MOST = 50_000  # bytes of a picture that is no higher than wide, and in proportion of others
WIDTHS = (1400, 1200, 1000, 850, 700)
README = "collapse_depth"  # two panels by two


def small(path: pathlib.Path, across: float = 1.0, down: float = 1.0) -> bytes:
    """The widest WebP of a drawing, or of this much of it from the upper left, that is not too large for its shape."""
    whole = Image.open(path).convert("RGB")
    picture = whole.crop((0, 0, round(across * whole.width), round(down * whole.height)))
    most = MOST * max(1, picture.height / picture.width)
    for width in WIDTHS:
        size = (width, round(picture.height * width / picture.width))
        scaled = picture.resize(size, Image.Resampling.LANCZOS) if width < picture.width else picture
        for quality in (80, 65, 50):
            buffer = io.BytesIO()
            scaled.save(buffer, format="WEBP", quality=quality, method=6)
            if buffer.tell() <= most:
                return buffer.getvalue()
    raise ValueError(f"{path} is larger than {most:.0f} bytes even at {WIDTHS[-1]} pixels")


def main(results: pathlib.Path) -> None:
    """Write the picture of every figure that a run drew."""
    for path in sorted(results.glob("*.png")):
        (HERE / f"{path.stem}.webp").write_bytes(small(path))
        if path.stem.partition(".")[0] == README:
            theme = path.stem.removeprefix(README)
            (HERE / f"readme{theme}.webp").write_bytes(small(path, down=0.5))
            (HERE / f"readme.narrow{theme}.webp").write_bytes(small(path, across=0.5, down=0.5))
    for name in figure.names():
        if hasattr(figure.load(name), "animate"):
            every = list((results / "data").glob(f"{name}-*.npz"))
            if not every:  # a run of other figures
                continue
            stored = max(every, key=lambda path: path.stat().st_mtime)
            for theme, suffix in drawing.THEMES.items():
                with np.load(stored) as data, style.theme(theme):
                    moving = HERE / "moving" / f"{name}{suffix}.webp"
                    figure.load(name).animate(dict(data)).save(moving, "pillow", fps=12, dpi=60)
    (HERE.parent / "gallery.md").write_text(gallery(), encoding="utf-8")


def gallery() -> str:
    """The page: every figure by topic, with its picture, caption and command."""
    lines = [
        "# Gallery",
        "",
        "*For somebody who looks for a picture, and for the command that makes it.*",
        "",
        "<!-- made by `python docs/pictures/make.py RESULTS`; do not edit -->",
        "",
        "Every figure, by topic. Each command writes the figure at full size, in light and dark, with its numbers, "
        "into `results/quick`.",
    ]
    shown = {name: figure.load(name) for name in figure.names()}
    abouts = {name: each.ABOUT for name, each in shown.items() if not isinstance(each, figure.Broken)}
    for topic, title in figure.TOPICS.items():
        lines += ["", f"## {title}"] if topic in {about.topic for about in abouts.values()} else []
        for name, about in abouts.items():
            if about.topic == topic:
                lines += [
                    "",
                    f"### {about.title}",
                    "",
                    f"![{about.title}](pictures/{name}.webp)",
                    "",
                    escaped(about.caption),
                ]
                if hasattr(shown[name], "animate"):
                    lines += ["", f"![{about.title}, animated](pictures/moving/{name}.webp)"]
                lines += ["", f"`python -m experiments {name}`"]
    return "\n".join([*lines, ""])


def escaped(text: str) -> str:
    """A caption whose stars and underscores are no emphasis."""
    return text.replace("*", "\\*").replace("_", "\\_")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
