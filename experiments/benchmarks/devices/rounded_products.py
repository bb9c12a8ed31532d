"""Matrix products with coarser operands, emulated on any device: what TF32 and one bfloat16 pass do, without either.

A unit for TF32 takes float32 operands, keeps 10 of their 23 mantissa bits, multiplies exactly and adds up in float32;
one bfloat16 pass keeps 7. Both leave the exponent alone. So to round the operands and multiply in float32 is the same
computation, up to the order of additions and to how a device rounds halves: here to even, on some chips away from zero
or towards it. Products that ask for `highest` are left alone, as a device leaves them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal

from experiments.benchmarks.counts import programs_in

TF32_BITS, BFLOAT16_BITS = 10, 7  # of the mantissa, the leading one not counted
_INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


def with_rounded_products(fn: Callable[..., Any], bits: int) -> Callable[..., Any]:
    """The same function of the same arrays, every float32 matrix product's operands rounded to `bits` bits first.

    Gradients, loops, branches and inner programs included; QR and other factorisations are not matrix products here.
    """

    def rounded(*arguments: Any) -> Any:
        program, shape = jax.make_jaxpr(fn, return_shape=True)(*arguments)
        out = _evaluate(program, jax.tree.leaves(arguments), bits)
        return jax.tree.unflatten(jax.tree.structure(shape), out)

    return rounded


def has_products(fn: Callable[..., Any], *arguments: Any) -> bool:
    """True where there is a product in it that `with_rounded_products` would change."""
    return _any_product(jax.make_jaxpr(fn)(*arguments).jaxpr)


def _any_product(jaxpr: Any) -> bool:
    return any(
        _coarse(equation)
        or any(_any_product(inner) for value in equation.params.values() for inner in programs_in(value))
        for equation in jaxpr.eqns
    )


def _coarse(equation: Any) -> bool:
    if equation.primitive.name != "dot_general" or equation.invars[0].aval.dtype != jnp.float32:
        return False
    asked = equation.params["precision"]
    asked = asked if isinstance(asked, tuple) else (asked,)
    return jax.lax.Precision.HIGHEST not in asked


def _evaluate(program: Any, arguments: Sequence[Any], bits: int) -> list[Any]:
    known = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    known |= dict(zip(program.jaxpr.invars, arguments, strict=True))

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for equation in program.jaxpr.eqns:
        out = _apply(equation, [value(atom) for atom in equation.invars], bits)
        known |= dict(zip(equation.outvars, out, strict=True))
    return [value(atom) for atom in program.jaxpr.outvars]


def _apply(equation: Any, values: list[Any], bits: int) -> Sequence[Any]:
    name, params = equation.primitive.name, equation.params
    if name in _INLINED:
        inner = params[_INLINED[name]]
        return _evaluate(inner if hasattr(inner, "consts") else ClosedJaxpr(inner, ()), values, bits)
    if name == "scan":
        return _scan(params, values, bits)
    if name == "while":
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        going = partial(_with, params["cond_jaxpr"], values[:first], bits)
        step = partial(_with, params["body_jaxpr"], values[first:second], bits)
        return jax.lax.while_loop(lambda carry: going(carry)[0], step, values[second:])
    if name == "cond":
        branches = [partial(_with, branch, [], bits) for branch in params["branches"]]
        return jax.lax.switch(values[0], branches, values[1:])
    if any(_any_product(inner) for held in params.values() for inner in programs_in(held)):
        raise ValueError(f"`fn` must hold its matrix products in loops, branches and calls, got them in {name}")
    if _coarse(equation):
        values = [jax.lax.reduce_precision(operand, exponent_bits=8, mantissa_bits=bits) for operand in values]
        params = params | {"precision": (jax.lax.Precision.HIGHEST,) * 2}  # no device rounds them once more
    out = equation.primitive.bind(*values, **params)
    return out if equation.primitive.multiple_results else [out]


def _with(program: Any, constants: list[Any], bits: int, carry: Sequence[Any]) -> list[Any]:
    return _evaluate(program, [*constants, *carry], bits)


def _scan(params: dict[str, Any], values: list[Any], bits: int) -> list[Any]:
    if "ft_in" in params:  # from JAX 0.12 on: trees of constants, of what is carried and of what is scanned over
        constants, carried, _ = (len(tree) for tree in params["ft_in"].unpack())
    else:
        constants, carried = params["num_consts"], params["num_carry"]

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        out = _evaluate(params["jaxpr"], [*values[:constants], *carry, *x], bits)
        return out[:carried], out[carried:]

    carry, stacked = jax.lax.scan(
        step,
        values[constants : constants + carried],
        values[constants + carried :],
        length=params["length"],
        reverse=params["reverse"],
    )
    return [*carry, *stacked]
