"""A function with every rounding moved: a computation whose digits are lost then gives another result.

This is Monte-Carlo arithmetic (Parker 1997; Vignes 1993 has it as CESTAC) on the program that JAX traces. Every sum,
difference, product of matrices and exponential y becomes y(1 + δ), where δ is a few roundings, and an exponential that
underflows becomes the smallest normal number. A number is known when such computations agree.

δ is made of the bits that y has in the copy that is not moved, and of the place in the program. So equal numbers stay
equal, tokens that are equal move together, and zeros stay zeros. Two copies are moved by the same δ, one up and one
down: where a number that decides between two branches is not known, one of them takes the other branch. Weights move
entry by entry, because numbers that are equal by a symmetry of the weights would hide what cancels.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rc_jax._numerics.jax_names import Jaxpr, JaxprEqn, Literal, PyTree

COPY = "copy"  # the axis of the copies
AMOUNTS = (0.0, 1.0, -1.0)
ROUNDINGS = 4.0  # the standard deviation of δ, in units of `eps`

# Factors and quotients have the digits of what they are made of: nothing cancels in them.
# A loop is an integral here, node by node: one operation.
_ROUNDED = ("dot_general", "reduce_sum", "exp", "tanh", "logistic", "erf", "erfc", "scan")
_CANCELLING = ("add", "sub")
_UNDERFLOWING = ("exp", "logistic", "erfc")
_MOVED = {*_ROUNDED, *_CANCELLING, *_UNDERFLOWING}
_PROGRAMS = {"jit", "pjit", "checkpoint", "remat2", "cond"}
_ODD = 0x9E3779B97F4A7C15  # ⌊2⁶⁴/φ⌋, whose multiples spread evenly


def move(function: Callable[..., Any], amount: Float[Array, ""]) -> Callable[..., Any]:
    """The function with its roundings moved by `amount` standard deviations; 0 moves none.

    It runs inside `jax.vmap(…, axis_name=COPY)` over amounts of which the first is 0.
    """

    def moved(*arguments: Any) -> Any:
        traced, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        evaluation = _Evaluation(amount)
        results = evaluation.run(traced.jaxpr, traced.consts, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return moved


def move_entries(tree: PyTree, amount: Float[Array, ""]) -> PyTree:
    """Arrays whose entries are moved by a few roundings each, whatever they are."""

    def one(index: int, leaf: Array) -> Array:
        places = jnp.arange(leaf.size, dtype=_integer(leaf.dtype)).reshape(leaf.shape)
        bits = _bits(leaf) + (2 * places + 1) * _multiplier(7919 + index, leaf.dtype)
        return _moved(leaf, bits * _multiplier(104729, leaf.dtype), amount)

    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [one(index, leaf) for index, leaf in enumerate(leaves)])


class _Evaluation:
    """Evaluates a traced program, and counts its places."""

    def __init__(self, amount: Float[Array, ""]) -> None:
        self.amount = amount
        self.place = 0

    def run(self, program: Jaxpr, constants: list[Any], arguments: list[Any]) -> list[Any]:
        """The results of the program, in order."""
        values: dict[Any, Any] = dict(zip([*program.constvars, *program.invars], [*constants, *arguments], strict=True))
        for equation in program.eqns:
            primitive, options = equation.primitive, equation.params
            operands = [each.val if isinstance(each, Literal) else values[each] for each in equation.invars]
            if primitive.name in _PROGRAMS:
                results = self._inside(equation, operands)
            else:
                bound: Any = primitive.get_bind_params(options)
                subfunctions, bound = bound if isinstance(bound, tuple) else ([], bound)  # a pair before JAX 0.10
                results = primitive.bind(*subfunctions, *operands, **bound)
                results = results if primitive.multiple_results else [results]
            if primitive.name in _MOVED:
                results = [self._rounded(equation, operands, result) for result in results]
            values |= dict(zip(equation.outvars, results, strict=True))
        return [each.val if isinstance(each, Literal) else values[each] for each in program.outvars]

    def _inside(self, equation: JaxprEqn, operands: list[Any]) -> list[Any]:
        """The results of the programs within an operation."""
        name, options = equation.primitive.name, equation.params
        if name == "cond":
            branches = [self._branch(branch) for branch in options["branches"]]
            return jax.lax.switch(operands[0].astype(jnp.int32), branches, *operands[1:])
        if name in ("checkpoint", "remat2"):
            return jax.checkpoint(lambda *values: self.run(options["jaxpr"], [], list(values)))(*operands)
        return self.run(options["jaxpr"].jaxpr, options["jaxpr"].consts, operands)

    def _branch(self, branch: Any) -> Callable[..., list[Any]]:
        return lambda *operands: self.run(branch.jaxpr, branch.consts, list(operands))

    def _rounded(self, equation: JaxprEqn, operands: list[Any], result: Any) -> Any:
        name = equation.primitive.name
        if not jnp.issubdtype(result.dtype, jnp.floating):
            return result
        if name in _UNDERFLOWING:  # only e^(−∞) is 0
            limits = jnp.finfo(result.dtype)
            least = jnp.minimum(jnp.abs(self.amount), 1).astype(result.dtype) * limits.tiny
            result = jnp.where(operands[0] < limits.min, result, jnp.maximum(result, least))
        constant = any(isinstance(variable, Literal) for variable in equation.invars)
        if name not in _ROUNDED and (name not in _CANCELLING or constant or result.ndim < 2):
            return result
        self.place += 1
        return _moved_alike(result, _multiplier(self.place, result.dtype), self.amount)


def _integer(dtype: Any) -> Any:
    return {2: jnp.int16, 4: jnp.int32, 8: jnp.int64}[jnp.dtype(dtype).itemsize]


def _bits(x: Array) -> Array:
    x = jax.lax.stop_gradient(x)
    return jax.lax.bitcast_convert_type(x, _integer(x.dtype))


def _multiplier(place: int, dtype: Any) -> Any:
    """An odd number of the width of the dtype, another one at every place."""
    width = 8 * jnp.dtype(dtype).itemsize
    spread = (place * _ODD) % 2**64 >> (64 - width) | 1
    return np.array(spread, np.uint64).astype(f"uint{width}").view(f"int{width}")[()]


@jax.jit
def _moved_alike(x: Array, multiplier: Array, amount: Float[Array, ""]) -> Array:
    """The numbers of a copy, moved by what the bits of the first one say. JAX traces this once for a shape."""
    bits = jax.lax.all_gather(_bits(x), COPY)[0]
    return _moved(x, bits * multiplier, amount)


def _moved(x: Array, bits: Array, amount: Float[Array, ""]) -> Array:
    """x(1 + δ), δ uniform and of standard deviation `ROUNDINGS` · eps · amount."""
    limits = jnp.finfo(x.dtype)
    most = float(limits.eps) * ROUNDINGS * 3**0.5 / 2.0 ** (limits.bits - 1)
    return x * (1 + bits.astype(x.dtype) * (amount.astype(x.dtype) * most))
