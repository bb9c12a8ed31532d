"""The choices of one run: preset, seed, folder, checkpoints."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

from experiments.lib import checkpoints
from experiments.lib.figure import Broken, Figure


@dataclasses.dataclass(frozen=True)
class Run:
    """One run's choices. Presets, seeds but 0 and checkpoints each have a folder of their own: a page never mixes them.

    Args:
        out: Folder of all results.
        preset: A name in `figure.PRESET_NAMES`.
        seed: The seed of every figure.
        replot: Draw and judge stored results; compute nothing.
        checkpoints: Folders; they go to the figures whose Spec has a field of that name.
        quiet: Show no progress, and say nothing of figures that are well.
        package: The package that holds the figures.
    """

    out: Path = Path("results")
    preset: str = "quick"
    seed: int = 0
    replot: bool = False
    checkpoints: tuple[str, ...] = ()
    quiet: bool = False
    package: str = "experiments.figures"

    @property
    def folder(self) -> Path:
        """The folder of this run's report, figures and data."""
        parts = [self.preset]
        parts += [f"seed{self.seed}"] if self.seed else []
        parts += [checkpoints.tag(self.checkpoints)] if self.checkpoints else []
        return self.out / "-".join(parts)

    @property
    def data(self) -> Path:
        """The folder of stored results."""
        return self.folder / "data"

    def log(self, name: str) -> Path:
        """The file with a figure's output while it was computed, and its traceback if it failed."""
        return self.folder / "logs" / f"{name}.log"

    @property
    def drafts(self) -> bool:
        """True where drawings are for a look only: in light, with few dots."""
        return self.preset == "smoke"

    def shows(self, figure: Figure | Broken) -> bool:
        """True where the figure belongs on this run's page. With checkpoints only figures that read them do."""
        return not self.checkpoints or checkpoints.read_by(figure)

    def spec(self, figure: Figure) -> Any:
        """The figure's preset with this run's seed and checkpoints."""
        own = {"checkpoints": self.checkpoints} if self.checkpoints and checkpoints.read_by(figure) else {}
        return dataclasses.replace(figure.PRESETS[self.preset], seed=self.seed, **own)

    def command(self, name: str) -> str:
        """The command that makes this one figure again."""
        words = ["python", "-m", "experiments", name, "--preset", self.preset]
        words += ["--seed", str(self.seed)] if self.seed else []
        words += [word for folder in self.checkpoints for word in ("--checkpoint", folder)]
        words += ["--out", str(self.out)] if self.out != Path("results") else []
        return shlex.join(words)

    def anywhere(self) -> "Run":
        """The same run for a process in another folder."""
        places = tuple(str(Path(folder).absolute()) for folder in self.checkpoints)
        return dataclasses.replace(self, out=self.out.absolute(), checkpoints=places)
