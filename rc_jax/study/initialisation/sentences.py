"""What the numbers of an untrained network decide, in sentences with the number and the layer."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

ROUNDINGS = {"bfloat16": 2.0**-8, "float32": 2.0**-24}
FAR = 1e3  # a gradient that many times the last layer's, or that small a part of it
NAMES = {"input": "its input", "query": "W_Q", "key": "W_K", "value": "W_V", "output": "W_O"}
MOST = 0.9  # of the rows of a layer, which is called even


def number(log: float) -> str:
    """e^log to three digits, however small or large."""
    if math.isnan(log):
        return "not known"
    if math.isinf(log):
        return "0" if log < 0 else "inf"
    if abs(log) < 600:
        return f"{math.exp(log):.3g}"
    exponent = math.floor(log / math.log(10))
    return f"{10 ** (log / math.log(10) - exponent):.2f}e{exponent:+d}"


def sentences(study: Any) -> tuple[str, ...]:
    """On tokens, on gradients and on rows; one alone where nothing is unusual."""
    found = [*tokens(study["residual"]), *finite(study["size"])]
    for name in NAMES:
        found += gradients(name, study[f"gradient_{name}"])
    kinds = row_kinds(study["even"], study["saturated"], study.alone)
    if not found and set(kinds) == {"even"}:
        return (nothing(study),)
    return (*found, *of_rows(kinds, study["evenness"], study["largest"]))


def tokens(residual: np.ndarray) -> list[str]:
    """Where the differences of tokens fall below what a number format resolves."""
    said = []
    for name, rounding in ROUNDINGS.items():
        below = np.flatnonzero(residual < math.log(rounding))
        if below.size and (residual[below[0] :] >= math.log(rounding)).any():
            least = number(float(residual[below].min()))
            said.append(f"{name} after {layers(below - 1)} alone (‖res‖/‖X‖ down to {least})")
        elif below.size:
            said.append(f"{name} from layer {below[0]} (‖res‖/‖X‖ = {number(float(residual[below[0]]))})")
    unknown = np.flatnonzero(np.isnan(residual))
    end = f"; from layer {unknown[0]} on float32 does not decide it" if unknown.size else ""
    if not said:
        return [f"Whether tokens stay apart is not known{end.replace('; from', ': from')}."] if unknown.size else []
    if not unknown.size:
        end = f"; {number(float(residual[-1]))} after the last layer, {len(residual) - 1}"
    return [f"Tokens agree to the rounding of {', of '.join(said)}{end}."]


def finite(size: np.ndarray) -> list[str]:
    """Where tokens leave the range of float32."""
    beyond = np.flatnonzero(~np.isfinite(size))
    return [f"Tokens leave the range of float32 at layer {beyond[0]}."] if beyond.size else []


def gradients(name: str, logs: np.ndarray) -> list[str]:
    """Where a gradient is a thousandth of the last layer's, or a thousand times it."""
    said, what = [], "the input of" if name == "input" else f"{NAMES[name]} of"
    zero = np.isneginf(logs)
    for far, words in (
        (~zero & (logs < -math.log(FAR)), "below a thousandth"),
        (logs > math.log(FAR), "above a thousand times"),
    ):
        at = np.flatnonzero(far)
        if at.size:
            worst = at[np.argmax(np.abs(logs[at]))]
            said.append(
                f"The gradient at {what} {layers(at)} is {words} {'of ' if 'below' in words else ''}the last layer's: "
                f"{number(float(logs[worst]))} at layer {worst + 1}."
            )
    if zero.any():
        at = layers(np.flatnonzero(zero))
        said.append(f"The gradient at {what} {at} is 0: rows there are the same for all queries and keys.")
    unknown = np.flatnonzero(~np.isfinite(logs) & ~zero)
    if unknown.size and zero[-1]:
        said.append(f"The gradient at {what} {layers(unknown)} has no ratio to the last layer's, which is 0.")
    elif unknown.size:
        said.append(f"The gradient at {what} {layers(unknown)} is not known in float32.")
    return said


def layers(at: Sequence[int] | np.ndarray) -> str:
    """Layers counted from 1, as a range where they are one."""
    first, last = int(at[0]) + 1, int(at[-1]) + 1
    if first == last:
        return f"layer {first}"
    return f"layers {first} to {last}" if last - first + 1 == len(at) else f"{len(at)} layers from {first} to {last}"


def row_kinds(even: np.ndarray, saturated: np.ndarray, alone: Sequence[int] = ()) -> list[str]:
    """What the rows of each layer are: most even, half saturated, neither, none known, or each of one token alone."""
    kinds = [
        "unknown" if math.isnan(many) else "even" if many >= MOST else "saturated" if full >= 0.5 else "mixed"
        for many, full in zip(even, saturated, strict=True)
    ]
    return ["alone" if index in alone else kind for index, kind in enumerate(kinds)]


def of_rows(kinds: list[str], evenness: np.ndarray, largest: np.ndarray) -> list[str]:
    """One sentence for each kind of rows that there is."""
    said = []
    for kind in ("even", "saturated", "mixed"):
        at = np.array([index for index, own in enumerate(kinds) if own == kind])
        if at.size:
            low, high = evenness[at].min(), evenness[at].max()
            worst = at[np.argmax(largest[at])]
            said.append(
                f"Rows are {kind} in {layers(at)}: H/log n {low:.3g} to {high:.3g}, a row's largest share "
                f"{largest[worst]:.2g} at most in the mean (layer {worst + 1})."
            )
    for kind, words in (("alone", "see their own token alone"), ("unknown", "are not known in float32")):
        if at := [index for index, own in enumerate(kinds) if own == kind]:
            said.append(f"Rows of {layers(at)} {words}.")
    return said


def nothing(study: Any) -> str:
    """The one sentence of a network in which nothing stands out."""
    logs = np.concatenate([study[f"gradient_{name}"] for name in NAMES])
    lowest = int(np.argmin(study["residual"]))
    return (
        f"Nothing is unusual: ‖res‖/‖X‖ stays above {number(study['residual'][lowest])} (layer {lowest}), gradients "
        f"lie between {number(logs.min())} and {number(logs.max())} of the last layer's, and rows are even (H/log n "
        f"{study['evenness'].min():.3g} to {study['evenness'].max():.3g})."
    )
