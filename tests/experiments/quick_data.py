"""The numbers behind the committed ledger: every figure's arrays at the preset `quick`.

To store them again after a whole run: `python -m tests.experiments.quick_data results/quick`.
"""

import pathlib
import shutil
import sys

from experiments.lib import figure
from tests.experiments import smoke_data

FOLDER = smoke_data.FOLDER / "quick"


def load(name):
    """The arrays of a figure at the preset quick."""
    return smoke_data.load(name, FOLDER)


def main(folder, *names):
    """Copy the newest result of these figures, of all where none is named, from a run's folder."""
    FOLDER.mkdir(exist_ok=True)
    for name in names or figure.names():
        stored = sorted(pathlib.Path(folder, "data").glob(f"{name}-*.npz"), key=lambda path: path.stat().st_mtime)
        shutil.copyfile(stored[-1], FOLDER / f"{name}.npz")


if __name__ == "__main__":
    main(*sys.argv[1:])
