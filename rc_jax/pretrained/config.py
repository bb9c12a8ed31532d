"""The settings of a checkpoint, each checked when it is read; errors name the setting and the file."""

import json
import stat
import sys
from pathlib import Path
from typing import Any

CONFIG = "config.json"
DEEPEST = 10_000  # layers; a number beyond it is a mistake, found before memory is asked for
MOST_ALONG = 2**31 - 1  # entries along one axis of an array, which whole numbers count
# Of a JSON file: read within 10 s and 1 GB on one core whatever it holds. Published tokenizers have up to 33 MB.
MOST_BYTES = 2**26
MOST_SETTINGS = 2**22  # of a config.json; published ones have some kB
LARGEST = 1e30  # of positive numbers, whose least is 1/LARGEST; what is computed from them fits float32
WIDEST = 1e6  # of deviations of weights, whose least is 1/WIDEST: layers multiply several of them, and their gradients
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def read_bytes(file: Path, most: int = MOST_BYTES) -> bytes:
    """A file of settings, whose kind and size are looked at first: a pipe or a device may never end, or never begin."""
    state = file.stat()
    if not stat.S_ISREG(state.st_mode):
        kind = next((name for test, name in _KINDS if test(state.st_mode)), "something else")
        raise ValueError(f"it is {kind} and no regular file")
    if not 0 < (size := state.st_size) <= most:
        raise ValueError(f"it has {size} bytes, and must have 1 to {most}")
    return file.read_bytes()


def read_object(file: Path, most: int = MOST_BYTES) -> dict[str, Any]:
    """The JSON object that a file of at most so many bytes holds."""
    try:
        data = read_bytes(file, most)
    except ValueError as error:
        raise ValueError(f"'{file}' must be a JSON file, but {error}") from error
    try:
        values = json.loads(data.decode())
    except (ValueError, RecursionError) as error:  # bad JSON, bad UTF-8, brackets without end
        raise ValueError(f"'{file}' must be a JSON file, but cannot be parsed: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"'{file}' must hold a JSON object, got a {type(values).__name__}")
    return values


class Config:
    """The settings of one config.json, or of one object within it; a setting that is null counts as absent.

    `names`: what the file calls a setting, where that is not the name of config.json.
    """

    def __init__(self, file: Path, values: dict[str, Any], within: str = "", names: dict[str, str] | None = None):
        self.file = file
        self.values = values
        self.within = within
        self.names = names or {}

    @classmethod
    def read(cls, folder: Path) -> "Config":
        """The settings in a folder."""
        file = folder / CONFIG
        if not file.exists():
            raise FileNotFoundError(f"`folder` must hold a file {CONFIG}, got '{folder}' without one")
        return cls(file, read_object(file, MOST_SETTINGS))

    def under(self, names: dict[str, str]) -> "Config":
        """The settings that the file calls otherwise: `names` has its name for each name of config.json."""
        values = {name: self.values[own] for name, own in names.items() if own in self.values}
        return Config(self.file, values, names=names)

    def get(self, name: str, default: Any = None) -> Any:
        """A setting as it is."""
        value = self.values.get(name)
        return default if value is None else value

    def refuse(self, name: str, requirement: str, value: Any) -> ValueError:
        """The error for a setting that cannot be used."""
        return ValueError(f"`{self._stated(name)}` must {requirement} in '{self.file}', got {value!r:.200}")

    def _stated(self, name: str) -> str:
        """What the file calls a setting."""
        return self.names.get(name, f"{self.within}{name}")

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number that is at least `least`."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.refuse(name, f"be an integer >= {least}", value)
        if value > MOST_ALONG:
            raise self.refuse(name, f"be at most {MOST_ALONG}", value)
        return value

    def positive(self, name: str, default: float | None = None, *, largest: float = LARGEST) -> float:
        """A positive number from 1/`largest` to `largest`."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
            raise self.refuse(name, "be a positive number", value)
        if not 1 / largest <= value <= largest:
            raise self.refuse(name, f"lie in {1 / largest:g} … {largest:g}, well within float32,", value)
        return float(value)

    def deviation(self) -> float | None:
        """The deviation of untrained weights, `initializer_range`; None where it is absent."""
        name = "initializer_range"
        return None if self.get(name) is None else self.positive(name, largest=WIDEST)

    def choice(self, name: str, options: tuple[Any, ...], default: Any = None) -> Any:
        """One of the options that this package can run."""
        value = self.get(name, default)
        if not any(value == option and type(value) is type(option) for option in options):
            raise self.refuse(name, f"be one of {', '.join(map(repr, options))}", value)
        return value

    def depth(self, name: str) -> int:
        """A number of layers."""
        if (value := self.integer(name)) > DEEPEST:
            raise self.refuse(name, f"be at most {DEEPEST}", value)
        return value

    def divisor(self, name: str, of: str, default: int | None = None) -> int:
        """A whole number that divides another setting."""
        whole, value = self.integer(of), self.integer(name, default)
        if whole % value:
            raise self.refuse(name, f"divide {self._stated(of)}={whole}", value)
        return value

    def several(self, name: str, kind: type) -> list[Any]:
        """A list of entries of one type; none where it is absent."""
        values = self.get(name, [])
        if not isinstance(values, list) or any(type(value) is not kind for value in values):
            raise self.refuse(name, f"be a list of entries of type {kind.__name__}", values)
        return values

    def section(self, name: str) -> "Config":
        """The settings of the object that a setting is; none where it is absent."""
        values = self.get(name, {})
        if not isinstance(values, dict):
            raise self.refuse(name, "be a JSON object", values)
        return Config(self.file, values, f"{self.within}{name}.")
