"""A sphere on paper: tokens seen from one side, and a disc that magnifies what tells them apart."""

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb
from matplotlib.patches import Circle

from experiments.lib import style

TILT = math.radians(20)
_CAMERA = np.array([  # rows: right, up, towards the reader
    [1.0, 0.0, 0.0],
    [0.0, math.cos(TILT), math.sin(TILT)],
    [0.0, -math.sin(TILT), math.cos(TILT)],
])  # fmt: skip
SIZE, FAINT = 20.0, 0.28


@dataclass(frozen=True)
class View:
    """Tokens X^l = 1 meanᵀ + e^(log_size) direction at every layer, and at moments between two of them."""

    mean: np.ndarray
    direction: np.ndarray
    log_size: np.ndarray

    def _between(self, moment: float) -> tuple[int, int, float]:
        low = min(int(moment), len(self.mean) - 1)
        return low, min(low + 1, len(self.mean) - 1), moment - low

    def directions(self, moment: float) -> np.ndarray:
        """Tokens over their lengths; from layer to layer each goes along a great circle."""
        low, high, part = self._between(moment)
        start, stop = (_unit(self.mean[at] + math.exp(self.log_size[at]) * self.direction[at]) for at in (low, high))
        angle = np.arccos(np.clip((start * stop).sum(axis=1, keepdims=True), -1, 1))
        sine = np.sin(angle)
        near = sine < 1e-6
        safe = np.where(near, 1, sine)
        first = np.where(near, 1 - part, np.sin((1 - part) * angle) / safe)
        second = np.where(near, part, np.sin(part * angle) / safe)
        return _unit(first * start + second * stop)

    def differences(self, moment: float) -> np.ndarray:
        """Tokens less their mean, of root mean square 1, in the plane across the mean; axes go along with the mean."""
        low, high, part = self._between(moment)
        first, second = (self.direction[at] @ self._axes[at].T for at in (low, high))
        flat = (1 - part) * first + part * second
        return flat / max(float(np.sqrt((flat**2).sum(axis=1).mean())), 1e-30)

    def log_distance(self, moment: float) -> float:
        """Log of the root mean square distance from the mean, over the sphere's radius."""
        low, high, part = self._between(moment)
        log = (1 - part) * self.log_size[low] + part * self.log_size[high]
        return float(log - 0.5 * math.log(self.direction.shape[1] * self.direction.shape[2]))

    @property
    def _axes(self) -> np.ndarray:
        """Two axes across the mean at every layer, turned as little as possible from one to the next."""
        normals = _unit(self.mean)
        frames = [_CAMERA[:2]]
        for normal in normals:
            one, two = frames[-1] - (frames[-1] @ normal)[:, None] * normal
            one = one / max(float(np.linalg.norm(one)), 1e-12)
            two = np.cross(normal, one) * (1 if np.dot(np.cross(normal, one), two) >= 0 else -1)
            frames.append(np.stack([one, two]))
        return np.stack(frames[1:])


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def draw_globe(ax: Axes) -> None:
    """An empty sphere of radius 1 around the origin: outline and a net of circles, those behind left out."""
    ax.set_axis_off()
    ax.set_aspect("equal")
    ax.add_patch(Circle((0, 0), 1, facecolor=style.colour("reference"), alpha=0.07, linewidth=0))
    ax.add_patch(Circle((0, 0), 1, fill=False, edgecolor=style.colour("reference"), linewidth=1))
    turn = np.linspace(0, 2 * np.pi, 91)
    curves = []
    for height in (-0.5, 0.0, 0.5):
        width = math.sqrt(1 - height**2)
        curves.append([width * np.cos(turn), 0 * turn + height, width * np.sin(turn)])
    for longitude in np.arange(6) * np.pi / 6:
        curves.append([np.cos(turn) * np.cos(longitude), np.sin(turn), np.cos(turn) * np.sin(longitude)])
    x, y, depth = np.einsum("ij,cjt->ict", _CAMERA, np.array(curves))
    gap = np.full((len(curves), 1), np.nan)
    x, y = np.hstack([x, gap]), np.hstack([np.where(depth >= 0, y, np.nan), gap])
    ax.plot(x.ravel(), y.ravel(), color=style.colour("reference"), linewidth=0.5, alpha=0.4)


def scatter(ax: Axes, directions: np.ndarray, colour: str, *, hollow: bool = False) -> PathCollection:
    """Tokens on the sphere; those on the far side faint."""
    x, y, depth = _CAMERA @ directions.T
    shades = _shades(depth, colour)
    dots = ax.scatter(x, y, s=SIZE, zorder=3, linewidths=1.0)
    dots.set_edgecolor(shades)
    dots.set_facecolor("none" if hollow else shades)
    return dots


def move(dots: PathCollection, directions: np.ndarray) -> None:
    """Put tokens drawn by `scatter` elsewhere on the sphere."""
    x, y, depth = _CAMERA @ directions.T
    colour = tuple(np.asarray(dots.get_facecolor())[0, :3])
    shades = _shades(depth, colour)
    dots.set_offsets(np.stack([x, y], axis=1))
    dots.set_edgecolor(shades)
    dots.set_facecolor(shades)


def _shades(depth: np.ndarray, colour: str | tuple[float, ...]) -> list[tuple[float, float, float, float]]:
    red, green, blue = to_rgb(colour)  # pyright: ignore[reportArgumentType]
    return [(red, green, blue, 1.0 if each >= 0 else FAINT) for each in depth]


def draw_disc(
    ax: Axes, differences: np.ndarray, colour: str, centre: tuple[float, float], radius: float
) -> PathCollection:
    """The differences between tokens, magnified to one size, in a disc at `centre`."""
    ax.add_patch(Circle(centre, radius, facecolor=style.colour("reference"), alpha=0.07, linewidth=0))
    ax.add_patch(Circle(centre, radius, fill=False, edgecolor=style.colour("reference"), linewidth=1))
    at = in_disc(differences, centre, radius)
    return ax.scatter(at[:, 0], at[:, 1], s=SIZE * 0.7, color=colour, linewidths=0, zorder=3)


def in_disc(differences: np.ndarray, centre: tuple[float, float], radius: float) -> np.ndarray:
    """Places in the disc: a third of its radius for a root mean square of 1, and nothing beyond its edge."""
    length = np.linalg.norm(differences, axis=1, keepdims=True)
    inside = differences / np.maximum(1, length / 2.85)
    return np.array(centre) + radius / 3 * inside


def size_text(log_distance: float) -> str:
    """A distance in radii as text, however small."""
    ten = log_distance / math.log(10)
    if ten > -3:
        return f"apart by {10**ten:.2g}"
    return f"apart by $10^{{{ten:,.0f}}}$".replace(",", "\\,")
