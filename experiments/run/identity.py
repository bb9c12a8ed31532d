"""The identity of a result: the figure's whole spec, and one hash of all that may change its numbers.

The spec names the stored result. The hash covers every file of `rc_jax`, of `experiments.lib`, of the figure's own
package and of what all figures share; the versions of the packages that compute; the settings of JAX; and the flags of
XLA. A result of another hash is computed again. Rows and pictures are judged and drawn of what is stored, so that
`experiments.ledger` is left out.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import rc_jax
from experiments.lib import checkpoints
from experiments.lib.figure import Figure
from experiments.run.choices import Run

EXPERIMENTS = Path(__file__).parents[1]
LIBRARY = (Path(rc_jax.__file__).parent, EXPERIMENTS / "lib", EXPERIMENTS / "reference_values.py")
VERSIONS = ("jax", "jaxlib", "numpy", "scipy")
# The settings of JAX on which numbers depend, precision apart: each figure is computed with these (`compute.settings`).
SETTINGS = {
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,
    "jax_default_matmul_precision": "highest",
    "jax_numpy_dtype_promotion": "standard",
    "jax_allow_f16_reductions": True,
    "jax_softmax_custom_jvp": False,
    "jax_disable_jit": False,
    "jax_disable_most_optimizations": False,
}


def identity(name: str, spec: Any) -> dict[str, Any]:
    """A result's spec as plain JSON values, seed and precision among them; checkpoints are known by their content."""
    fields = plain(spec)
    if folders := getattr(spec, "checkpoints", ()):
        fields["checkpoints"] = checkpoints.identity(folders)
    return {"figure": name, "spec": fields, "version": rc_jax.__version__}


def fingerprint(name: str, spec: Any) -> str:
    """Twelve hexadecimal digits of the hash of `identity`: any other field, seed, dtype or version gives others."""
    return short([json.dumps(identity(name, spec), sort_keys=True)])


def stem(run: Run, name: str, figure: Figure) -> str:
    """The name of a figure's stored result."""
    return f"{name}-{fingerprint(name, run.spec(figure))}"


def plain(value: Any) -> Any:
    """A spec as JSON values: dataclasses become dicts with their type's name, tuples become lists.

    Raises:
        TypeError: a value whose text could differ from run to run.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return fields if type(value).__name__ == "Spec" else {"type": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a spec must hold numbers, text, tuples and dataclasses only, got {value!r}")


def code_state(figure: Any) -> str:
    """Hash of all that may change a figure's numbers, as it is on disk now, in the environment that there is now."""
    versions = [f"{package} {importlib.metadata.version(package)}" for package in VERSIONS]
    digests = [f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in sources(figure).items()]
    return short([*versions, json.dumps(SETTINGS), *flags(), *digests])


def flags() -> list[str]:
    """The flags of XLA in their order, in which the last of a name counts; what a flag does is not for us to know."""
    return os.environ.get("XLA_FLAGS", "").split()


def sources(figure: Any) -> dict[str, Path]:
    """The files that may change a figure's numbers, by names that are the same in every checkout.

    They are the library, the figure's own folder with all that lies in it, and the files of the packages around that,
    which figures share. A contract of `pyproject.toml` says that folders of figures do not import each other.
    """
    found = {name: path for place in LIBRARY for name, path in files(place).items()}
    if file := getattr(figure, "__file__", None):  # a figure that a program made has none
        own = Path(file).parent
        found |= files(own)
        around = own.parent
        while around != EXPERIMENTS and (around / "__init__.py").exists():
            found |= {f"{around.name}/{path.name}": path for path in sorted(around.iterdir()) if path.is_file()}
            around = around.parent
    return found


def files(place: Path) -> dict[str, Path]:
    """A file, or all files of a folder but compiled Python, by their names from there."""
    every = sorted(place.rglob("*")) if place.is_dir() else [place]
    kept = [path for path in every if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(place.parent).as_posix(): path for path in kept}


def short(parts: Iterable[str]) -> str:
    """Twelve hexadecimal digits of the hash of some texts."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
