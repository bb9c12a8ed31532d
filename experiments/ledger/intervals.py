"""Intervals that a measured value is compared with, and numbers as text."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Interval = tuple[ArrayLike, ArrayLike]


def near(value: ArrayLike, tolerance: ArrayLike) -> Interval:
    """The interval value ± tolerance."""
    return np.asarray(value) - np.asarray(tolerance), np.asarray(value) + np.asarray(tolerance)


def at_least(value: ArrayLike) -> Interval:
    """The interval from `value` on."""
    return value, np.full(np.shape(value), math.inf)


def at_most(value: ArrayLike) -> Interval:
    """The interval up to `value`."""
    return np.full(np.shape(value), -math.inf), value


def printed(text: str) -> Interval:
    """The interval of a number as a source prints it: half a unit of its last digit on either side.

    Example:
        >>> printed("0.84"), printed("1.256")
        ((0.835, 0.845), (1.2555, 1.2565))
    """
    digits = text.lower().split("e")[0].partition(".")[2]
    exponent = int(text.lower().partition("e")[2] or 0)
    half = 0.5 * 10.0 ** (exponent - len(digits))
    places = max(0, len(digits) + 1 - exponent)
    return round(float(text) - half, places), round(float(text) + half, places)


def ends_text(low: float, high: float) -> str:
    """An interval as text."""
    if low == high:
        return f"{low:.6g}"
    if math.isinf(low) and math.isinf(high):
        return "any number"
    if math.isinf(low):
        return f"≤ {high:.6g}"
    return f"≥ {low:.6g}" if math.isinf(high) else f"{low:.6g} … {high:.6g}"


def show(value: str | float, standard_error: float | None = None) -> str:
    """A number as text, with as many digits as its standard error warrants.

    Example:
        >>> show(0.841352, 0.00021), show(26.0212), show(3.0)
        ('0.8414 ± 0.0002', '26.02', '3')
    """
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "not finite"
    if not standard_error or not math.isfinite(standard_error):
        return f"{value:.4g}"
    if abs(value) >= 1e6 or standard_error < 1e-9:
        return f"{value:.6g} ± {standard_error:.1g}"
    places = max(0, -math.floor(math.log10(standard_error)))
    return f"{value:.{places}f} ± {standard_error:.{places}f}"


def stretches(flags: np.ndarray, labels: Sequence[Any]) -> str:
    """Runs of true points named by their ends: `40 … 80, 200`; at most four, then how many more."""
    names = [f"{label:g}" if isinstance(label, float | np.floating) else str(label) for label in labels]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    runs = list(zip(edges[::2], edges[1::2] - 1, strict=True))
    text = [names[a] if a == b else f"{names[a]} … {names[b]}" for a, b in runs[:4]]
    return ", ".join(text) + (f" and {len(runs) - 4} more stretches" if len(runs) > 4 else "")
