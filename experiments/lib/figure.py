"""A figure is a module of `experiments.figures` with `ABOUT`, `Spec`, `PRESETS`, `compute`, `plot` and `ROWS`.

A new figure is a new file and nothing else: it is found, run, tested and put into the report because it is there.
Compute, store and draw are separate: `compute` returns every number that `plot` and `ROWS` need, those numbers are
stored, and drawing again costs nothing.
"""

import importlib
import math
import pkgutil
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, dataclass_transform

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure as Drawing

PRESET_NAMES = ("smoke", "quick", "full")
TOPICS = {
    "collapse": "Collapse",
    "paths": "Paths",
    "blocks": "Skips, MLPs and norms",
    "masks": "Masks and sparse attention",
    "scale": "Scale",
    "sparsity": "Sparsity",
    "layer": "The layer",
    "training": "Training",
    "models": "Real models",
    "later": "Later results",
}
Data = Mapping[str, "np.ndarray"]  # what `compute` gives, by name
PARTS = ("ABOUT", "Spec", "PRESETS", "compute", "plot", "ROWS")


class Unavailable(Exception):
    """Raised by `compute` when what it needs is absent; the report says why and the run still succeeds."""


@dataclass(frozen=True)
class About:
    """The words for a reader: title, honest caption, formula in plain text, and minutes on two cores for each preset.

    `topic`: a key of `TOPICS`, under which the contents and the ledger list it. `alone`: it measures time, so that
    nothing else may run beside it. `core`: a command without names makes it; `--all` makes the others too. `hasty`: its
    programs take longer to compile than to run, so that they are compiled with JAX's `jax_disable_most_optimizations`
    (`kinds` at quick takes 90 s with it, 339 s without).

    Raises:
        ValueError: a topic that is none of them.
    """

    title: str
    caption: str
    formula: str
    minutes: Mapping[str, float]
    topic: str
    alone: bool = False
    core: bool = False
    hasty: bool = False

    def __post_init__(self) -> None:
        if self.topic not in TOPICS:
            raise ValueError(f"`topic` must be one of {', '.join(TOPICS)}, got {self.topic!r}")


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Spec:
    """Base of every figure's own `Spec`: seed and working precision, both part of a result's identity.

    Every class that inherits from it is a frozen dataclass, without a decorator of its own.
    """

    seed: int = 0
    dtype: str = "float32"

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"`seed` must be an integer >= 0, got {self.seed!r}")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"`dtype` must be 'float32' or 'float64', got {self.dtype!r}")


class Figure(Protocol):
    """The six things a figure module holds."""

    ABOUT: About
    Spec: type[Spec]
    PRESETS: Mapping[str, Any]
    ROWS: Sequence[Any]  # rows of the ledger (`experiments.ledger.Row`), fixed before any run

    def compute(self, spec: Any) -> "Mapping[str, np.ndarray]":
        """Every number that `plot` and `ROWS` need; runs with 64-bit types on when `spec.dtype` is "float64"."""
        ...

    def plot(self, data: "Mapping[str, np.ndarray]") -> "Drawing":
        """The drawing, made with `experiments.lib.style`; called once in light and once in dark."""
        ...


@dataclass(frozen=True)
class Broken:
    """A figure file that cannot be imported or lacks a part; it fails alone, with its own error."""

    error: str

    @property
    def reason(self) -> str:
        """The last line of the error."""
        return self.error.strip().splitlines()[-1].strip()


Registry = Mapping[str, Figure | Broken]


def modules(package: str = "experiments.figures") -> dict[str, str]:
    """Module of each figure of a package, by the figure's name; the folders of topics alone are imported."""
    root = importlib.import_module(package)
    paths = [module.name for module in pkgutil.walk_packages(root.__path__, f"{package}.") if not module.ispkg]
    named = {path.rpartition(".")[2]: path for path in paths}
    return {name: named[name] for name in sorted(named) if not name.startswith("_")}


def names(package: str = "experiments.figures") -> list[str]:
    """Names of the figures of a package, in alphabetical order, without importing any of them."""
    return list(modules(package))


def load(name: str, package: str = "experiments.figures") -> Figure | Broken:
    """Import one figure and look that all its parts are there."""
    try:
        module = importlib.import_module(modules(package).get(name, f"{package}.{name}"))
        absent = [part for part in PARTS if not hasattr(module, part)]
        if absent:
            raise AttributeError(f"figure {name} lacks {', '.join(absent)}")
        unready = [preset for preset in PRESET_NAMES if preset not in module.PRESETS]
        if unready:
            raise AttributeError(f"PRESETS of figure {name} lacks {', '.join(unready)}")
    except Exception:
        return Broken(traceback.format_exc())
    return cast(Figure, module)


def discover(package: str = "experiments.figures", preset: str = "quick") -> dict[str, Figure | Broken]:
    """Every figure of a package, cheapest first by its `ABOUT.minutes` for the preset; broken ones come last."""
    registry = {name: load(name, package) for name in names(package)}
    return dict(sorted(registry.items(), key=lambda item: (cost(item[1], preset), item[0])))


def cost(figure: Figure | Broken, preset: str) -> float:
    """Stated minutes of a figure at a preset; infinite where nothing is stated."""
    return math.inf if isinstance(figure, Broken) else float(figure.ABOUT.minutes.get(preset, math.inf))
