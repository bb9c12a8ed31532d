"""The cost of a computation, counted from its program: the operations that each have a best rate of their own.

Counted in the jaxpr, so before any compiler has had its say. The body of a scan counts as often as it runs, and that of
a loop of unknown length, such as a rejection sampler's, once. Of branches, the one with the most operations counts.
"""

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import jax

EXPONENTIALS = frozenset({"exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic"})


def programs_in(value: Any) -> list[Any]:
    """The programs that a parameter of an equation holds."""
    if hasattr(value, "eqns"):
        return [value]
    if hasattr(value, "jaxpr"):
        return [value.jaxpr]
    return [program for item in value for program in programs_in(item)] if isinstance(value, tuple | list) else []


@dataclass(frozen=True)
class Counts:
    """Normal numbers, operations of matrix products, exponentials and logarithms, operations of QR and so on."""

    normals: float = 0.0
    operations: float = 0.0
    exponentials: float = 0.0
    factorising: float = 0.0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: float) -> "Counts":
        return Counts(*(times * number for number in astuple(self)))


def count(fn: Callable, *arguments: Any) -> Counts:
    """The cost of one call of a JAX function on these arguments."""
    return _of_jaxpr(jax.make_jaxpr(fn)(*arguments).jaxpr)


def _of_jaxpr(jaxpr: Any) -> Counts:
    return sum((_of_equation(equation) for equation in jaxpr.eqns), Counts())


def _of_equation(equation: Any) -> Counts:
    name, shape = equation.primitive.name, equation.outvars[0].aval.shape if equation.outvars else ()
    if name == "cond":
        return max((_of_jaxpr(branch.jaxpr) for branch in equation.params["branches"]), key=lambda c: sum(astuple(c)))
    # Programs inside: normal numbers count as such, a scan's body as often as it runs.
    size = math.prod(shape)
    if _is_normal(equation):
        return Counts(normals=sum(math.prod(out.aval.shape) for out in equation.outvars))
    inner = [held for value in equation.params.values() for held in programs_in(value)]
    if inner:
        times = equation.params.get("length", 1) if name == "scan" else 1
        return sum((_of_jaxpr(program) for program in inner), Counts()) * times
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return Counts(operations=2 * size * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted))
    if name in EXPONENTIALS:
        return Counts(exponentials=size)
    return Counts(factorising=_factorising(name, equation))


def _is_normal(equation: Any) -> bool:
    """True where it makes normal numbers of uniform ones: XLA's inverse error function, or the package's program."""
    return equation.primitive.name == "erf_inv" or equation.params.get("name") == "box_muller"


def _factorising(name: str, equation: Any) -> float:
    """Multiplications and additions of the textbook algorithms (Golub and Van Loan), by the operand's last two axes."""
    if name not in ("geqrf", "qr", "householder_product", "cholesky", "triangular_solve"):
        return 0.0
    *batch, rows, columns = equation.invars[0].aval.shape
    low, times = min(rows, columns), math.prod(batch)
    if name == "cholesky":
        return times * rows**3 / 3
    if name == "triangular_solve":
        return times * rows * math.prod(equation.invars[1].aval.shape[-2:])
    return times * 2 * low**2 * (max(rows, columns) - low / 3)
