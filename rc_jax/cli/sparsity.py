"""`rc-jax sparsity`: closed forms, and quadrature with its own error beside them."""

import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rc_jax import sparsity
from rc_jax._numerics.text import in_columns
from rc_jax.cli.arguments import Report, Usage, bounded, chosen, digits, number_or_none, whole

CLOSED: dict[str, Callable[..., jax.Array]] = {
    "exponential": lambda beta, gamma: sparsity.exponential(gamma),
    "relu_squared": sparsity.relu_squared,
    "identity": sparsity.identity,
}
NAMES = (*sparsity.KERNELS, "decay")
PARAMETERS = ("beta", "gamma", "lam", "n")
LARGEST_N = 10**15
SMALLEST = sys.float_info.min  # which a closed form that is computed as 0 is below: none of them is 0
LARGEST = 1e6  # of β/γ, beyond which there is nothing left to integrate


def run(arguments: Any) -> Report:
    """Answer for every pair of values."""
    name = chosen("KERNEL", " ".join(arguments.kernel), NAMES)
    for option in PARAMETERS:
        if getattr(arguments, option) == ():
            raise Usage(f"`--{option}` must be followed by a number or several, got nothing")
    with jax.enable_x64(True):
        rows, text, reasons = _decay(arguments) if name == "decay" else _gaussian(name, arguments)
    problems = tuple(
        f"no {'value' if row['closed_form'] is None else 'quadrature'} for "
        f"{', '.join(f'{key} = {row[key]:g}' for key in row if key in PARAMETERS)}: {reason}"
        for row, reason in zip(rows, reasons, strict=True)
        if reason
    )
    return Report(f"Sparsity S = E|a|/√E a², {name}\n\n{text}", {"kernel": name, "results": rows}, problems)


def _pairs(first: str, left: list[Any], second: str, right: list[Any]) -> list[tuple[Any, ...]]:
    """One list beside the other; a single value goes with all of the other's."""
    if len(left) != len(right) and 1 not in (len(left), len(right)):
        raise Usage(f"`{first}` and `{second}` must have equally many values, or one, got {len(left)} and {len(right)}")
    count = max(len(left), len(right))
    return list(zip(left * (count // len(left)), right * (count // len(right)), strict=True))


def _refuse(arguments: Any, names: tuple[str, ...], reason: str) -> None:
    for name in names:
        if getattr(arguments, name):
            raise Usage(f"`--{name}` must be left out: {reason}")


def _decay(arguments: Any) -> tuple[list[dict[str, Any]], str, list[str]]:
    _refuse(arguments, ("beta", "gamma"), "decay knows --lam and --n only")
    for name in ("lam", "n"):
        if not getattr(arguments, name):
            raise Usage(f"`--{name}` must be given for decay")
    rates = [bounded("--lam", lam, 0, 1, above=True) for lam in arguments.lam]
    pairs = _pairs("--lam", rates, "--n", [whole("--n", n, 1, LARGEST_N) for n in arguments.n])
    lam, n = np.array(pairs, float).T
    values = np.asarray(sparsity.decay(lam, n))
    rows = [
        {"lam": rate, "n": count, "closed_form": number_or_none(value), "quadrature": None}
        for (rate, count), value in zip(pairs, values, strict=True)
    ]
    cells = [[f"{row['lam']:.15g}", str(row["n"]), digits(row["closed_form"], 9)] for row in rows]
    return rows, in_columns(["λ", "n", "S"], cells), [""] * len(rows)


def _gaussian(name: str, arguments: Any) -> tuple[list[dict[str, Any]], str, list[str]]:
    _refuse(arguments, ("lam", "n"), "it is for decay only")
    betas = [bounded("--beta", beta, -1e300, 1e300) for beta in arguments.beta or (0.0,)]
    gammas = [bounded("--gamma", gamma, 0, 1e300, above=True) for gamma in arguments.gamma or (1.0,)]
    pairs = _pairs("--beta", betas, "--gamma", gammas)
    for beta, gamma in pairs:
        if abs(beta) > LARGEST * gamma:
            raise Usage(f"`--beta` must be at most {LARGEST:g} times `--gamma` in size, got {beta:g} and {gamma:g}")
    kernel = sparsity.KERNELS[name]

    def both(beta: jax.Array, gamma: jax.Array) -> tuple[Any, ...]:
        closed = CLOSED[name](beta, gamma) if name in CLOSED else None
        return closed, sparsity.from_kernel_with_error(kernel.f, beta, gamma, kinks=kernel.kinks)

    # All pairs in one program: the closed form, where there is one, and the quadrature with its error.
    closed, integral = jax.tree.map(lambda x: np.asarray(x).tolist(), jax.jit(both)(*np.array(pairs, float).T))
    rows, reasons = list[dict[str, Any]](), list[str]()
    for i, (b, g) in enumerate(pairs):
        row = {"beta": b, "gamma": g, "closed_form": None if closed is None else number_or_none(closed[i])}
        value, error = integral.value[i], integral.error[i]
        reason = "" if math.isfinite(value + error) else "its integrals leave double precision"
        reasons.append(reason or ("" if error < value else f"the error of the quadrature is {error:.1g}"))
        rows.append({**row, "quadrature": None if reasons[-1] else {"sparsity": value, "error": error}})
    cells = []
    for row in rows:
        estimate = row["quadrature"]
        shown = digits(None) if estimate is None else f"{digits(estimate['sparsity'], 9)} ± {estimate['error']:.0e}"
        closed_form = f"< {SMALLEST:.1e}" if row["closed_form"] == 0 else digits(row["closed_form"], 9)
        cells.append([f"{row['beta']:g}", f"{row['gamma']:g}", closed_form, shown])
    return rows, in_columns(["β", "γ", "closed form", "quadrature ± error"], cells), reasons
