"""Figures that move: what a figure's `animate` draws with, and how the runner writes it.

`animate(data)` returns a `matplotlib.animation.Animation`, in light and in dark like `plot`. It becomes an animated
WebP that loops, written by matplotlib's own writer through Pillow, which matplotlib brings: no other program is needed.
"""

import io
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.animation import Animation, FuncAnimation, PillowWriter
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from PIL import Image

SUFFIX = ".webp"
FRAMES_PER_SECOND = 12
DOTS = 90  # per inch of the drawing
HOLD = 8  # frames for which the last picture stays


def moving(drawing: Figure, update: Callable[[Any], Sequence[Artist] | None], moments: Sequence[Any]) -> Animation:
    """An animation of `drawing`: `update(moment)` for each moment, the last of which stays for a while.

    Panels are placed once, at the first moment, so that nothing jumps.

    Raises:
        ValueError: fewer than two moments.
    """
    if len(moments) < 2:
        raise ValueError(f"`moments` must be at least two, got {len(moments)}")
    update(moments[0])
    drawing.draw_without_rendering()
    drawing.set_layout_engine("none")

    def step(moment: Any) -> Sequence[Artist]:
        return update(moment) or ()

    frames = [*moments, *[moments[-1]] * HOLD]
    return FuncAnimation(drawing, step, frames=frames, init_func=lambda: (), cache_frame_data=False, repeat=True)


def encode(animation: Animation) -> bytes:
    """The animation as the content of one looping file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"moving{SUFFIX}"
        animation.save(path, writer=PillowWriter(fps=FRAMES_PER_SECOND), dpi=DOTS)
        return path.read_bytes()


def last_frame(content: bytes) -> bytes:
    """The last picture of an animation, as a picture for readers who asked for less motion."""
    picture = Image.open(io.BytesIO(content))
    picture.seek(getattr(picture, "n_frames", 1) - 1)
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, format="WEBP", lossless=True, method=2)
    return buffer.getvalue()
