"""A checkpoint's files, config.json and model.safetensors, read with errors that name the file and the tensor."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
Stored = Any  # a numpy array on its way to a place where a JAX array belongs


def check_path(name: str, value: Any) -> None:
    """A path, whether or not anything lies there."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"`{name}` must be a path to a folder with {CONFIG} and {WEIGHTS}, got {value!r}")


def checkpoint_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder as a path, once it is known to be one."""
    path = Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(f"`folder` must be an existing folder with {CONFIG} and {WEIGHTS}, got '{path}'")
    return path


class Config:
    """The settings of one config.json; each is checked when it is asked for."""

    def __init__(self, folder: Path):
        self.file = folder / CONFIG
        if not self.file.is_file():
            raise FileNotFoundError(f"`folder` must hold a file {CONFIG}, got '{folder}' without one")
        try:
            values = json.loads(self.file.read_text(encoding="utf-8"))
        except ValueError as error:  # bad JSON and bad UTF-8 alike
            raise ValueError(f"'{self.file}' must be a JSON file, but cannot be parsed: {error}") from error
        if not isinstance(values, dict):
            raise ValueError(f"'{self.file}' must hold a JSON object, got a {type(values).__name__}")
        self.values: dict[str, Any] = values

    def integer(self, name: str) -> int:
        """A whole number that is at least 1."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` must be an integer >= 1 in '{self.file}', got {value!r}")
        return value

    def positive(self, name: str, default: float) -> float:
        """A positive number."""
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ValueError(f"`{name}` must be a positive number in '{self.file}', got {value!r}")
        return float(value)

    def choice(self, name: str, options: tuple[Any, ...], default: Any = None) -> Any:
        """One of the options that this package can run."""
        value = self.values.get(name, default)
        if not any(value == option and type(value) is type(option) for option in options):
            known = ", ".join(map(repr, options))
            raise ValueError(f"`{name}` must be one of {known} in '{self.file}', got {value!r}")
        return value


class Tensors:
    """The tensors of one safetensors file, taken one by one; any that nobody took is an error at the end."""

    def __init__(self, folder: Path):
        self.file = folder / WEIGHTS
        if not self.file.is_file():
            raise FileNotFoundError(_no_weights(folder))
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError as error:
            raise ImportError("reading a checkpoint needs safetensors: pip install 'rc_jax[pretrained]'") from error
        try:
            with safe_open(str(self.file), framework="np") as opened:
                self.left: dict[str, np.ndarray] = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except SafetensorError as error:
            reason = f"{error}".strip()
            raise ValueError(f"'{self.file}' is truncated, corrupted or not a safetensors file: {reason}") from error
        self.ignored: tuple[str, ...] = ()

    def rename(self, old: str, new: str) -> None:
        """Write `new` where a name ends in `old`."""
        self.left = {
            name.removesuffix(old) + new if name.endswith(old) else name: value for name, value in self.left.items()
        }

    def ignore(self, prefixes: tuple[str, ...], names: tuple[str, ...] = ()) -> None:
        """Put aside the tensors that the hidden states do not depend on."""
        aside = {name for name in self.left if name.startswith(prefixes) or name in names}
        self.ignored = (*self.ignored, *sorted(aside))
        self.left = {name: value for name, value in self.left.items() if name not in aside}

    def take(self, name: str, *shape: int) -> Stored:
        """The tensor of that name, with its shape, dtype and finiteness checked."""
        if name not in self.left:
            raise ValueError(f"tensor '{name}' is missing in '{self.file}'")
        value = self.left.pop(name)
        if value.shape != shape:
            raise ValueError(f"tensor '{name}' must have shape {shape} in '{self.file}', got {value.shape}")
        if value.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
            raise ValueError(f"tensor '{name}' must hold floating-point numbers in '{self.file}', got {value.dtype}")
        if not np.isfinite(value).all():
            raise ValueError(f"tensor '{name}' must be finite in '{self.file}', got NaN or infinity")
        return value

    def finish(self) -> None:
        """Nothing may be left."""
        if self.left:
            names = sorted(self.left)
            shown = ", ".join(f"'{name}'" for name in names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
            raise ValueError(f"unexpected tensor {shown} in '{self.file}': the layout has no place for it")


def _no_weights(folder: Path) -> str:
    if (folder / f"{WEIGHTS}.index.json").is_file():
        return f"`folder` must hold the weights in one file {WEIGHTS}, got '{folder}' with a checkpoint in shards"
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern))
    if pickles:
        return (
            f"`folder` must hold a file {WEIGHTS}, got '{folder}' with {pickles[0]}: that is a pickle, and unpickling "
            "runs whatever code its author put in, so it is refused; convert it to safetensors"
        )
    return f"`folder` must hold a file {WEIGHTS}, got '{folder}' without one"
