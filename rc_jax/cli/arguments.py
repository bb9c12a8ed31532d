"""Common to the commands: numbers read and checked, one kind of report, plain tables."""

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rc_jax._numerics.text import perhaps

ENDINGS = (".png", ".pdf", ".svg")  # of a picture
# One kind of weights has two names: attention calls it by its rows, a kernel by its function.
ALIASES = {"softmax": "exponential", "exponential": "softmax"}


class Usage(Exception):
    """Bad input, in one line for the user."""


@dataclass(frozen=True)
class Report:
    """The same answer for a reader and for a program, and what could not be answered."""

    text: str
    result: Mapping[str, Any]
    problems: tuple[str, ...] = ()
    interrupted: bool = False


def chosen(label: str, name: str, known: Iterable[str], besides: str = "") -> str:
    """The name itself, or the one that it is an alias of, if that is known; `besides` says what else may be given."""
    names = list(known)
    found = next((each for each in (name, ALIASES.get(name)) if each in names), None)
    if found is None:
        near = perhaps(name, [*names, *(alias for alias, of in ALIASES.items() if of in names)])
        raise Usage(f"`{label}` must be {besides}one of {', '.join(names)}, got {name or 'nothing'}{near}")
    return found


def whole(name: str, text: str, least: int, most: int) -> int:
    """A whole number written as 1024, 1e6, 2^20 or 2**20."""
    power = re.fullmatch(r"(\d{1,9})(?:\^|\*\*)(\d{1,3})", text)
    try:
        number = int(power[1]) ** int(power[2]) if power else int(text)
    except ValueError:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value != int(value):
            raise Usage(f"`{name}` must be a whole number such as 1024 or 2^20, got {text!r}") from None
        number = int(value)
    return bounded(name, number, least, most)


def bounded(name: str, number: Any, least: int | float, most: int | float = math.inf, *, above: bool = False) -> Any:
    """The number itself, if it is finite and within its bounds; `above` leaves the lower one out."""
    if isinstance(number, float) and not math.isfinite(number):
        raise Usage(f"`{name}` must be finite, got {number}")
    got, at_least, at_most = map(_written, (number, least, most))
    if number < least or (above and number == least):
        raise Usage(f"`{name}` must be {'>' if above else '>='} {at_least}, got {got}")
    if number > most:
        raise Usage(f"`{name}` must be <= {at_most}, got {got}")
    return number


def _written(number: int | float) -> str:
    """In six digits where these are all, and not in more than fit a line."""
    if (isinstance(number, int) or math.isfinite(number)) and abs(number) >= 10**300:
        return "a number of more than 300 digits"
    short = f"{number:g}"
    return str(number) if isinstance(number, int) and int(float(short)) != number and number < 10**16 else short


def check_figure(name: str) -> None:
    """Refuse a picture that cannot be written before minutes are spent on it."""
    path = Path(name)
    if path.suffix.lower() not in ENDINGS:
        raise Usage(f"`--figure` must end in {', '.join(ENDINGS)}, got '{path}'")
    if path.is_dir() or not path.parent.is_dir():
        raise Usage(f"`--figure` must be a file in an existing folder, got '{path}'")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Usage(f"`--figure` must be a file that can be written, got '{path}'")


def digits(value: float | None, count: int = 3) -> str:
    """A number to so many digits; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.{count}g}"


def number_or_none(value: Any) -> float | None:
    """A float for JSON, which knows no NaN and no infinity."""
    value = float(value)
    return value if math.isfinite(value) else None
