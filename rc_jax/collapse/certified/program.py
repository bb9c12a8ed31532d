"""A traced program evaluated in ball arithmetic.

Floating-point arrays are NumPy arrays of balls (`flint.arb`). Every operation acts on real numbers: no result is
rounded to the dtype, constants of the program have the value that the dtype stores. Predicates are 0 for false, 2 for
true and 1 for undecided. A choice by an undecided predicate gives the union of the cases, which encloses the result.

One Python object is one number. An operation on the same objects gives the same object, so equal tokens stay provably
equal, and their difference is exactly 0.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from rc_jax._numerics.jax_names import Literal
from rc_jax.collapse.certified.balls import arb, flint
from rc_jax.collapse.certified.errors import NotCertified, Undecided

Values = NDArray[Any]
ZERO, ONE, LOWEST = arb(0), arb(1), arb.neg_inf()
_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2")
_STEPS = 100_000


def evaluate(program: Any, operands: Iterable[Values]) -> list[Values]:
    """The results of a traced program for these arrays."""
    jaxpr = program.jaxpr if hasattr(program, "jaxpr") else program
    constants = program.consts if hasattr(program, "consts") else ()
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, map(exactly, constants), strict=True))
    known.update(zip(jaxpr.invars, operands, strict=True))

    def value(variable: Any) -> Values:
        found = exactly(variable.val) if isinstance(variable, Literal) else known[variable]
        if isinstance(found, Undecided):
            raise found
        return found

    for equation in jaxpr.eqns:
        results = _apply(equation, [value(variable) for variable in equation.invars])
        known.update(zip(equation.outvars, results, strict=True))
    return [value(variable) for variable in jaxpr.outvars]


def exactly(array: Any) -> Values:
    """The stored numbers of an array: balls of radius 0, predicates as 0 and 2, integers as they are."""
    array = np.asarray(array)
    if array.dtype == bool:
        return np.asarray(array.astype(np.int8) * np.int8(2))
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return array
    numbers: dict[float, Any] = {0.0: ZERO, 1.0: ONE, -np.inf: LOWEST}
    out = np.empty(array.shape, object)
    flat = [numbers.setdefault(number, arb(number)) for number in array.astype(np.float64).ravel().tolist()]
    out.ravel()[:] = flat
    return out


def _apply(equation: Any, operands: list[Values]) -> list[Any]:
    name, options = equation.primitive.name, equation.params
    if name in _CALLS:
        inside = next(options[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in options)
        return list(evaluate(inside, operands))
    if name in _NESTED:
        return _NESTED[name](equation, operands)
    balls = any(_inexact(variable) for variable in (*equation.invars, *equation.outvars))
    if balls and any(jnp.issubdtype(variable.aval.dtype, jnp.complexfloating) for variable in equation.invars):
        raise NotCertified(f"`{name}` of complex numbers is not covered by ball arithmetic")
    if name in STRUCTURE:
        return [STRUCTURE[name](options, *operands)]
    if name in _MOVES:
        return _moved(equation, operands)
    if balls or (name in LOGIC and equation.outvars[0].aval.dtype == bool):
        if name not in RULES:
            raise NotCertified(f"`{name}` has no rule in ball arithmetic")
        result = RULES[name](equation, *operands)
        return result if isinstance(result, list) else [result]
    return _discrete(equation, operands)


def _inexact(variable: Any) -> bool:
    return jnp.issubdtype(variable.aval.dtype, jnp.inexact)


def _discrete(equation: Any, operands: list[Values]) -> list[Values]:
    """An operation on integers and predicates alone, by JAX itself."""
    given = [
        jnp.asarray(_decided(operand, equation.primitive.name) if variable.aval.dtype == bool else operand)
        for variable, operand in zip(equation.invars, operands, strict=True)
    ]
    bound = equation.primitive.get_bind_params(equation.params)
    functions, bound = bound if isinstance(bound, tuple) else ([], bound)
    results = equation.primitive.bind(*functions, *given, **bound)
    return [exactly(result) for result in (results if equation.primitive.multiple_results else [results])]


def _decided(predicate: Values, name: str) -> Values:
    if (predicate == 1).any():
        raise Undecided(f"`{name}` depends on a comparison of numbers that cannot be told apart")
    return np.asarray(predicate == 2)


# Operations entry by entry. Equal objects give equal objects; `memory` is of one call.
def _entrywise(function: Callable[..., Any], *operands: Values) -> Values:
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    memory: dict[Any, Any] = {}
    # Lists keep every entry alive, so that no two have one identity.
    columns = [np.broadcast_to(operand, shape).ravel().tolist() for operand in operands]
    out = np.empty(len(columns[0]), object)
    for at, entries in enumerate(zip(*columns, strict=True)):
        key = tuple(map(id, entries))
        if key not in memory:
            memory[key] = _plain(function(*entries))
        out[at] = memory[key]
    return out.reshape(shape)


def _plain(number: Any) -> Any:
    """The one object for 0, 1 and −∞."""
    if isinstance(number, arb) and number.is_exact():
        return ZERO if number == 0 else ONE if number == 1 else LOWEST if number == LOWEST else number
    return number


def _fold(function: Callable[[list[Any]], Any], operand: Values, axes: Iterable[int]) -> Values:
    """A reduction over some axes."""
    axes = tuple(axes)
    kept = [axis for axis in range(operand.ndim) if axis not in axes]
    rows = operand.transpose([*kept, *axes]).reshape(*(operand.shape[axis] for axis in kept), -1)
    out, memory = np.empty(rows.shape[:-1], object), {}
    for place in np.ndindex(out.shape):
        row = list(rows[place])
        key = tuple(map(id, row))
        if key not in memory:
            memory[key] = _plain(function(row))
        out[place] = memory[key]
    return out


def _sum(row: list[Any]) -> Any:
    total = ZERO
    for entry in row:
        total = entry if total is ZERO else total if entry is ZERO else total + entry
    return total


def larger(a: Any, b: Any) -> Any:
    """The larger number; the object itself where the order is known."""
    return a if a is b or a >= b else b if b >= a else a.max(b)


def smaller(a: Any, b: Any) -> Any:
    """The smaller number; the object itself where the order is known."""
    return a if a is b or a <= b else b if b <= a else a.min(b)


def _reduce(function: Callable[[Any, Any], Any]) -> Callable[[list[Any]], Any]:
    def over(row: list[Any]) -> Any:
        total = row[0]
        for entry in row[1:]:
            total = function(total, entry)
        return total

    return over


def subtract(a: Any, b: Any) -> Any:
    """A − b, exactly 0 where both are one number."""
    return ZERO if a is b and a.is_finite() else a if b is ZERO else a - b


def _multiply(a: Any, b: Any) -> Any:
    return b if a is ONE else a if b is ONE else a * b


def _divide(a: Any, b: Any) -> Any:
    return ONE if a is b and a.is_finite() and not a.contains(0) else a / b


def _log(a: Any) -> Any:
    return LOWEST if a is ZERO or a == 0 else a.log()


def _logistic(a: Any) -> Any:
    return 1 / (1 + (-a).exp())


def _sign(a: Any) -> Any:
    return ONE if a > 0 else arb(-1) if a < 0 else ZERO if a == 0 else arb(0, 1)


def _magnitude(a: Any) -> Any:
    return a if a >= 0 else -a if a <= 0 else abs(a)


def _power(a: Any, b: Any) -> Any:
    if b.is_exact() and b.is_integer():
        return a ** int(b.unique_fmpz())
    return ZERO if a == 0 and b > 0 else a**b


# Predicates.
def _compare(sure: Callable[[Any, Any], bool], never: Callable[[Any, Any], bool]) -> Any:
    def entry(a: Any, b: Any) -> int:
        if a is b and not a.is_nan():
            return 2 if sure(ZERO, ZERO) else 0
        return 2 if sure(a, b) else 0 if never(a, b) else 1

    def rule(equation: Any, a: Values, b: Values) -> Values:
        if not _inexact(equation.invars[0]):  # predicates
            known = np.asarray((a != 1) & (b != 1))
            return np.where(known, np.where(entrywise_bool(a, b), 2, 0), 1).astype(np.int8)
        return _entrywise(entry, a, b).astype(np.int8)

    def entrywise_bool(a: Values, b: Values) -> Values:
        return np.vectorize(lambda p, q: sure(int(p), int(q)), otypes=[bool])(a, b)

    return rule


def _select(equation: Any, which: Values, *cases: Values) -> Values:
    if equation.invars[0].aval.dtype != bool:
        out = np.choose(which.astype(int), cases)
        return out
    shape = cases[0].shape
    which = np.broadcast_to(which, shape)
    if cases[0].dtype != object:
        no, yes = cases
        if equation.outvars[0].aval.dtype == bool:
            return np.where(which == 2, yes, np.where(which == 0, no, np.where(yes == no, yes, 1))).astype(np.int8)
        return np.where(_decided(which, "select_n"), yes, no)
    out = np.empty(shape, object)
    for place in np.ndindex(shape):
        no, yes = cast(Any, cases[0][place]), cast(Any, cases[1][place])
        state = which[place]
        out[place] = yes if state == 2 or yes is no else no if state == 0 else yes.union(no)
    return out


def _convert(equation: Any, a: Values) -> Values:
    to, was = equation.outvars[0].aval.dtype, equation.invars[0].aval.dtype
    if jnp.issubdtype(was, jnp.inexact):
        if jnp.issubdtype(to, jnp.inexact):
            return a
        if to == np.bool_:
            return _entrywise(lambda v: 0 if v == 0 else 1 if v.contains(0) else 2, a).astype(np.int8)
        return _entrywise(_whole, a).astype(to)
    if was == np.bool_:
        return _entrywise(lambda v: (ZERO, arb(0.5, 0.5), ONE)[int(v)], a)
    return _convert_integers(a)


def _convert_integers(a: Values) -> Values:
    return _entrywise(lambda v: arb(int(v)), a)


def _whole(number: Any) -> int:
    whole = (number.floor() if number >= 0 else number.ceil()).unique_fmpz()
    if whole is None:
        raise Undecided("`convert_element_type` cannot tell which integer a number becomes")
    return int(whole)


# Products, loops and order.
def _product(equation: Any, a: Values, b: Values) -> Values:
    (left, right), (batch_a, batch_b) = equation.params["dimension_numbers"]
    free_a = [axis for axis in range(a.ndim) if axis not in (*left, *batch_a)]
    free_b = [axis for axis in range(b.ndim) if axis not in (*right, *batch_b)]
    batch, inner = [a.shape[axis] for axis in batch_a], int(np.prod([a.shape[axis] for axis in left], dtype=int))
    rows, columns = [a.shape[axis] for axis in free_a], [b.shape[axis] for axis in free_b]
    of_a = a.transpose([*batch_a, *free_a, *left]).reshape(int(np.prod(batch, dtype=int)), -1, inner)
    of_b = b.transpose([*batch_b, *free_b, *right]).reshape(int(np.prod(batch, dtype=int)), -1, inner)
    out = np.empty((len(of_a), of_a.shape[1], of_b.shape[1]), object)
    for index in range(len(of_a)):
        out[index] = matrix_product(of_a[index], of_b[index])
    return out.reshape(*batch, *rows, *columns)


def matrix_product(a: Values, b: Values) -> Values:
    """A Bᵀ; equal rows give equal objects."""
    unique, places = [], []
    for rows in (a, b):
        first: dict[Any, int] = {}
        kept: list[list[Any]] = []
        place: list[int] = []
        for row in rows:
            key = tuple(map(id, row))
            if key not in first:
                first[key] = len(kept)
                kept.append(list(row))
            place.append(first[key])
        unique.append(kept)
        places.append(place)
    inner = a.shape[1]
    left = flint.arb_mat(len(unique[0]), inner, [entry for row in unique[0] for entry in row])
    right = flint.arb_mat(len(unique[1]), inner, [entry for row in unique[1] for entry in row])
    entries = [_plain(entry) for entry in (left * right.transpose()).entries()]
    # A row that takes one number and no other gives that number itself.
    table = np.empty((len(unique[0]), len(unique[1])), object)
    table.ravel()[:] = entries
    for i, row in enumerate(unique[0]):
        taken = [at for at, entry in enumerate(row) if entry is not ZERO]
        if len(taken) == 1 and row[taken[0]] is ONE:
            table[i] = [other[taken[0]] for other in unique[1]]
    return table[np.ix_(places[0], places[1])]


def _scan(equation: Any, operands: list[Values]) -> list[Values]:
    # Slices and stacked results have one axis more outside than in the body; versions of JAX name them differently.
    options, body = equation.params, equation.params["jaxpr"].jaxpr
    carried = _of_equal_rank(equation.outvars, body.outvars)
    constants = _of_equal_rank(equation.invars, body.invars) - carried
    shared, carry = operands[:constants], operands[constants : constants + carried]
    stacked: list[Any] = [None] * options["length"]
    for index in range(options["length"])[:: -1 if options["reverse"] else 1]:
        slices = [
            leaf[index, ...] if leaf.ndim > 1 else _scalar(leaf, index) for leaf in operands[constants + carried :]
        ]
        out = evaluate(options["jaxpr"], [*shared, *carry, *slices])
        carry, stacked[index] = out[:carried], out[carried:]
    return [*carry, *(np.stack(leaves) for leaves in zip(*stacked, strict=True))]


def _of_equal_rank(variables: Any, others: Any) -> int:
    """How many of these variables have as many axes as their partners."""
    return sum(one.aval.ndim == other.aval.ndim for one, other in zip(variables, others, strict=True))


def _scalar(leaf: Values, index: int) -> Values:
    out = np.empty((), leaf.dtype)
    out[()] = leaf[index]
    return out


def _cond(equation: Any, operands: list[Values]) -> list[Values]:
    branches = equation.params["branches"]
    return list(evaluate(branches[min(max(int(operands[0]), 0), len(branches) - 1)], operands[1:]))


def _while(equation: Any, operands: list[Values]) -> list[Values]:
    options = equation.params
    first, second = options["cond_nconsts"], options["cond_nconsts"] + options["body_nconsts"]
    carry = operands[second:]
    for _ in range(_STEPS):
        if not _decided(evaluate(options["cond_jaxpr"], [*operands[:first], *carry])[0], "while").item():
            return carry
        carry = evaluate(options["body_jaxpr"], [*operands[first:second], *carry])
    raise NotCertified(f"`while` has not come to an end after {_STEPS} steps")


def _cumulative(function: Callable[[Any, Any], Any]) -> Any:
    def rule(equation: Any, a: Values) -> Values:
        axis, out = equation.params["axis"], a.copy()
        moved = np.moveaxis(out[::1] if not equation.params["reverse"] else np.flip(out, axis), axis, 0)
        for index in range(1, len(moved)):
            moved[index] = _entrywise(function, moved[index - 1], moved[index])
        return out

    return rule


def ordered(row: list[Any]) -> list[Any]:
    """The numbers from the smallest up; where their order is open, the k-th of lower and of upper bounds."""
    row = sorted(row, key=lambda number: number.mid())
    if all(a is b or a <= b for a, b in itertools.pairwise(row)):
        return row
    low, high = sorted(n.lower() for n in row), sorted(n.upper() for n in row)
    return [a.union(b) for a, b in zip(low, high, strict=True)]


def _sort(equation: Any, operand: Values, *others: Values) -> list[Values]:
    if others:
        raise NotCertified("`sort` of several arrays at once is not covered by ball arithmetic")
    axis: int = equation.params["dimension"]
    return [np.moveaxis(_rows(ordered, np.moveaxis(operand, axis, -1)), -1, axis)]


def _rows(function: Callable[[list[Any]], list[Any]], a: Values) -> Values:
    out = a.copy()
    for place in np.ndindex(a.shape[:-1]):
        out[place] = function(list(a[place]))
    return out


def _top_k(equation: Any, a: Values) -> list[Any]:
    k = equation.params["k"]
    values = _rows(lambda row: ordered(row)[::-1], a)[..., :k]
    index: Any = np.empty(values.shape, np.int32)
    for place in np.ndindex(a.shape[:-1]):
        row = list(a[place])
        order = sorted(range(len(row)), key=lambda at: row[at].mid(), reverse=True)
        # Each of the first k is above the next one, and the last of them above all that follow: these are in the order
        # of their middles, and a wide one may reach far above its own.
        pairs = [*itertools.pairwise(order[:k]), *((order[k - 1], after) for after in order[k:] if k)]
        for before, after in pairs:
            if not (row[before] is row[after] or row[before] > row[after]):
                return [values, Undecided("`top_k` cannot tell which of two numbers is larger")]
        index[place] = order[:k]
    return [values, index]


def _argument(sign: int) -> Any:
    def rule(equation: Any, a: Values) -> Values:
        axis = equation.params["axes"][0]
        rows = np.moveaxis(a, axis, -1)
        out = np.empty(rows.shape[:-1], equation.outvars[0].aval.dtype)
        for place in np.ndindex(out.shape):
            row = list(rows[place])
            best = max(range(len(row)), key=lambda at: (sign * row[at].mid(), -at))
            for entry in row:
                if entry is not row[best] and not sign * entry < sign * row[best]:
                    raise Undecided(f"`{equation.primitive.name}` cannot tell which of two numbers is larger")
            out[place] = best
        return out

    return rule


# Moves of entries, which JAX itself makes with their positions in their place.
_MOVES = {"gather": (0,), "scatter": (0, 2), "dynamic_slice": (0,), "dynamic_update_slice": (0, 1), "rev": (0,),
          "pad": (0, 1), "split": (0,), "tile": (0,)}  # fmt: skip


def _moved(equation: Any, operands: list[Values]) -> list[Values]:
    name, which = equation.primitive.name, _MOVES[equation.primitive.name]
    entries = np.concatenate([operands[at].ravel() for at in which])
    given, start = [jnp.asarray(operand) if operand.dtype != object else None for operand in operands], 0
    for at in which:
        size = operands[at].size
        given[at] = jnp.arange(start, start + size, dtype=jnp.int32).reshape(operands[at].shape)
        start += size
    options = dict(equation.params)
    if options.get("fill_value") is not None:
        options["fill_value"] = -1
    results = equation.primitive.bind(*given, **options)
    out = []
    for result in results if equation.primitive.multiple_results else [results]:
        places = np.asarray(result)
        if places.size and (places.min() < 0 or places.max() >= len(entries)):
            raise NotCertified(f"`{name}` reads outside of its array")
        out.append(entries[places.ravel()].reshape(places.shape))
    return out


def _broadcast(options: Any, a: Values, *_: Values) -> Values:
    between = [1] * len(options["shape"])
    for axis, size in zip(options["broadcast_dimensions"], a.shape, strict=True):
        between[axis] = size
    return np.broadcast_to(a.reshape(between), options["shape"])


def _slice(options: Any, a: Values) -> Values:
    strides = options["strides"] or (1,) * a.ndim
    return a[tuple(map(slice, options["start_indices"], options["limit_indices"], strides))]


STRUCTURE: dict[str, Callable[..., Values]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": lambda options, a: a.reshape(options["new_sizes"]),
    "squeeze": lambda options, a: np.squeeze(a, tuple(options["dimensions"])),
    "expand_dims": lambda options, a: np.expand_dims(a, options["dimensions"]),
    "transpose": lambda options, a: a.transpose(options["permutation"]),
    "slice": _slice,
    "concatenate": lambda options, *parts: np.concatenate(parts, options["dimension"]),
    "stack": lambda options, *parts: np.stack(parts, options["axis"]),
    "copy": lambda options, a: a,
    "copy_p": lambda options, a: a,
    "stop_gradient": lambda options, a: a,
}
_NESTED: dict[str, Callable[[Any, list[Values]], list[Values]]] = {"scan": _scan, "cond": _cond, "while": _while}


def _each(function: Callable[..., Any]) -> Callable[..., Values]:
    return lambda equation, *operands: _entrywise(function, *operands)


def _over(function: Callable[[list[Any]], Any]) -> Callable[..., Values]:
    return lambda equation, a: _fold(function, a, equation.params["axes"])


def _logical(function: Callable[..., Values]) -> Callable[..., Values]:
    return lambda equation, *operands: np.asarray(function(*operands), np.int8)


LOGIC: dict[str, Callable[..., Values]] = {
    "and": _logical(np.minimum),
    "or": _logical(np.maximum),
    "not": _logical(lambda a: 2 - a),
    "xor": _logical(lambda a, b: np.where((a == 1) | (b == 1), 1, abs(a - b))),
    "reduce_and": lambda equation, a: np.min(a, axis=equation.params["axes"]).astype(np.int8),
    "reduce_or": lambda equation, a: np.max(a, axis=equation.params["axes"]).astype(np.int8),
    "select_n": _select,
}
RULES: dict[str, Callable[..., Any]] = LOGIC | {
    "add": _each(lambda a, b: b if a is ZERO else a if b is ZERO else a + b),
    "add_any": _each(lambda a, b: a + b),
    "sub": _each(subtract),
    "mul": _each(_multiply),
    "div": _each(_divide),
    "neg": _each(lambda a: -a),
    "max": _each(larger),
    "min": _each(smaller),
    "clamp": _each(lambda low, a, high: smaller(larger(a, low), high)),
    "abs": _each(_magnitude),
    "sign": _each(_sign),
    "exp": _each(lambda a: a.exp()),
    "exp2": _each(lambda a: arb(2) ** a),
    "expm1": _each(lambda a: a.expm1()),
    "log": _each(_log),
    "log1p": _each(lambda a: LOWEST if a == -1 else a.log1p()),
    "logistic": _each(_logistic),
    "tanh": _each(lambda a: a.tanh()),
    "sinh": _each(lambda a: a.sinh()),
    "cosh": _each(lambda a: a.cosh()),
    "tan": _each(lambda a: a.tan()),
    "sin": _each(lambda a: a.sin()),
    "cos": _each(lambda a: a.cos()),
    "atan": _each(lambda a: a.atan()),
    "atan2": _each(lambda a, b: arb.atan2(a, b)),
    "asinh": _each(lambda a: a.asinh()),
    "erf": _each(lambda a: a.erf()),
    "erfc": _each(lambda a: a.erfc()),
    "erf_inv": _each(lambda a: a.erfinv()),
    "lgamma": _each(lambda a: a.lgamma()),
    "digamma": _each(lambda a: a.digamma()),
    "sqrt": _each(lambda a: a.sqrt()),
    "rsqrt": _each(lambda a: a.rsqrt()),
    "cbrt": _each(lambda a: a.root(3) if a >= 0 else -(-a).root(3)),
    "square": _each(lambda a: a**2),
    "integer_pow": lambda equation, a: _entrywise(lambda v: v ** int(equation.params["y"]), a),
    "pow": lambda equation, a, b: _entrywise(_power, a, b if b.dtype == object else _convert_integers(b)),
    "reduce_sum": _over(_sum),
    "reduce_max": _over(_reduce(larger)),
    "reduce_min": _over(_reduce(smaller)),
    "reduce_prod": _over(_reduce(_multiply)),
    "cumsum": _cumulative(lambda a, b: a + b),
    "cumprod": _cumulative(_multiply),
    "cummax": _cumulative(larger),
    "cummin": _cumulative(smaller),
    "is_finite": lambda equation, a: _entrywise(
        lambda v: 2 if v.is_finite() else 1 if v.is_nan() or not v.is_exact() else 0, a
    ).astype(np.int8),
    "lt": _compare(lambda a, b: a < b, lambda a, b: a >= b),
    "le": _compare(lambda a, b: a <= b, lambda a, b: a > b),
    "gt": _compare(lambda a, b: a > b, lambda a, b: a <= b),
    "ge": _compare(lambda a, b: a >= b, lambda a, b: a < b),
    "eq": _compare(lambda a, b: a == b, lambda a, b: a != b),
    "ne": _compare(lambda a, b: a != b, lambda a, b: a == b),
    "convert_element_type": _convert,
    "dot_general": _product,
    "sort": _sort,
    "top_k": _top_k,
    "argmax": _argument(1),
    "argmin": _argument(-1),
}  # fmt: skip
