"""Checks of arguments that the closed forms share."""

from typing import Any

import numpy as np

from rc_jax._numerics import arguments


def rows(what: str) -> arguments.Check:
    """A check for a floating-point array with at least one entry of `what` on its last axis."""
    return arguments.float_array("...", what, **{what: 1})


def nonnegative_rows(what: str) -> tuple[arguments.Check, ...]:
    """Checks for numbers ≥ 0 whose last axis holds the `what`, one of them positive in every row."""

    def check(name: str, value: Any) -> None:
        if np.ndim(value) == 0 or np.size(value) == 0:
            raise ValueError(f"`{name}` must have a last axis of {what}, got {arguments.describe(value)}")
        numbers = arguments.at_hand(value)
        if numbers is not None and not np.all(np.any(numbers.astype(float) > 0, axis=-1)):
            raise ValueError(f"`{name}` must have a positive entry in every row, got a row of zeros")

    return arguments.bounded(0), check
