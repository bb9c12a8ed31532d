"""Small pictures of all figures and the page that shows them, for GitHub and for a site that is built without results.

`python docs/pictures/make.py results/quick` reads the drawings of a run, writes one WebP of at most 50 kB a figure, and
writes `docs/gallery.md`. The pictures of `HEROES` are written in light and in dark. Animations become smaller ones, of
at most 200 kB, in `docs/pictures/moving`.
"""

import io
import pathlib
import sys

from PIL import Image, ImageSequence

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from experiments.lib import figure  # noqa: E402

HEROES = ("collapse_depth", "three_optima", "real_models")  # the first page, the README
MOST = 50_000  # bytes of a picture
WIDTHS = (1400, 1200, 1000, 850, 700)
MOST_MOVING, MOVING_WIDTHS = 200_000, (800, 640, 520, 400)


def small(path: pathlib.Path) -> bytes:
    """The widest WebP of a drawing that is not too large."""
    picture = Image.open(path).convert("RGB")
    for width in WIDTHS:
        size = (width, round(picture.height * width / picture.width))
        scaled = picture.resize(size, Image.Resampling.LANCZOS) if width < picture.width else picture
        for quality in (80, 65, 50):
            buffer = io.BytesIO()
            scaled.save(buffer, format="WEBP", quality=quality, method=6)
            if buffer.tell() <= MOST:
                return buffer.getvalue()
    raise ValueError(f"{path} is larger than {MOST} bytes even at {WIDTHS[-1]} pixels")


def moving(path: pathlib.Path) -> bytes:
    """The widest animation that is not too large, of every frame or of every second or fourth one."""
    with Image.open(path) as animation:
        frames = [(frame.convert("RGB"), frame.info["duration"]) for frame in ImageSequence.Iterator(animation)]
    for width in MOVING_WIDTHS:
        for step in (1, 2, 4):
            pictures = [frame.resize((width, round(frame.height * width / frame.width))) for frame, _ in frames[::step]]
            durations = [step * duration for _, duration in frames[::step]]
            buffer = io.BytesIO()
            pictures[0].save(
                buffer, format="WEBP", save_all=True, append_images=pictures[1:], duration=durations, loop=0, quality=50
            )
            if buffer.tell() <= MOST_MOVING:
                return buffer.getvalue()
    raise ValueError(f"{path} is larger than {MOST_MOVING} bytes even at {MOVING_WIDTHS[-1]} pixels")


def main(results: pathlib.Path) -> None:
    """Write the picture of every figure that a run drew."""
    for path in sorted(results.glob("*.png")):
        name, _, theme = path.stem.partition(".")
        if theme and name not in HEROES:
            continue
        (HERE / f"{path.stem}.webp").write_bytes(small(path))
    for name in figure.names():
        if hasattr(figure.load(name), "animate"):
            (HERE / "moving").mkdir(exist_ok=True)
            (HERE / "moving" / f"{name}.webp").write_bytes(moving(results / f"{name}.webp"))
    (HERE.parent / "gallery.md").write_text(gallery(), encoding="utf-8")


def gallery() -> str:
    """The page: every figure by topic, with its picture, caption and command."""
    lines = [
        "# Gallery",
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
