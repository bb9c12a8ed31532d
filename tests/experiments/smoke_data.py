"""Stored results of every figure's smoke preset, so that drawing and judging are tested without computing.

To make them again after a change of what figures compute: `python -m tests.experiments.smoke_data [figure …]`.
"""

import io
import pathlib
import sys

import jax
import numpy as np

from experiments.lib import figure

FOLDER = pathlib.Path(__file__).parent / "data"


def load(name):
    """The arrays of a figure's smoke preset."""
    assert (FOLDER / f"{name}.npz").exists(), f"{name} has no arrays: see docs/extending.md, A figure"
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def save(name, data):
    """Store arrays, compressed; the same arrays give the same bytes."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **data)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.npz").write_bytes(buffer.getvalue())


def computed(name):
    """The arrays of a figure's smoke preset, computed."""
    module = figure.load(name)
    spec = module.PRESETS["smoke"]
    with jax.enable_x64(spec.dtype == "float64"):
        data = module.compute(spec)
    return {key: np.asarray(value) for key, value in data.items()}


def main(names):
    """Compute the smoke presets of these figures, of all where none is named."""
    for name in names or figure.names():
        save(name, computed(name))
        jax.clear_caches()  # each program holds maps of memory, of which a process has only so many
        print(name, (FOLDER / f"{name}.npz").stat().st_size)


if __name__ == "__main__":
    main(sys.argv[1:])
