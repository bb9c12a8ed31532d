"""A traced program evaluated by NumPy, operation by operation: nothing is compiled, which takes most of a test's time.

Products and sums round in another order than XLA's, as on another machine. Operations that are rare here are JAX's own.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from rc_jax._numerics.jax_names import Literal


def interpreted(function):
    """The function with its arrays evaluated by NumPy, unless it is called while JAX traces a larger one.

    It is traced once for arguments of the same shapes and other arguments of the same value.
    """
    programs = {}

    @functools.wraps(function)
    def call(*args, **kwargs):
        leaves, structure = jax.tree.flatten((args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return function(*args, **kwargs)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, (jax.Array, np.ndarray))]
        arrays = [jnp.asarray(leaves[place]) for place in places]
        rest = [None if place in places else leaf for place, leaf in enumerate(leaves)]
        key = structure, *rest, *(array.aval for array in arrays), jax.config.read("jax_enable_x64")
        if key not in programs:

            def of_arrays(*arrays):
                filled = rest.copy()
                for place, array in zip(places, arrays, strict=True):
                    filled[place] = array
                args, kwargs = jax.tree.unflatten(structure, filled)
                return function(*args, **kwargs)

            programs[key] = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        traced, shape = programs[key]
        with np.errstate(all="ignore"):
            results = evaluate(traced.jaxpr, traced.consts, [np.asarray(array) for array in arrays])
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return call


def evaluate(program, constants, arguments):
    """The results of a program, in order."""
    values = dict(zip([*program.constvars, *program.invars], [*map(np.asarray, constants), *arguments], strict=True))
    for equation in program.eqns:
        operands = [
            np.asarray(variable.val, variable.aval.dtype) if isinstance(variable, Literal) else values[variable]
            for variable in equation.invars
        ]
        results = step(equation, operands)
        values.update(zip(equation.outvars, results, strict=True))
    return [
        np.asarray(variable.val, variable.aval.dtype) if isinstance(variable, Literal) else values[variable]
        for variable in program.outvars
    ]


def step(equation, operands):
    """The results of one operation."""
    name, options = equation.primitive.name, equation.params
    if name in OPERATIONS:
        result = OPERATIONS[name](equation, *operands)
        return [np.asarray(result, equation.outvars[0].aval.dtype)]
    if name in PROGRAMS:
        program = next(options[key] for key in ("jaxpr", "call_jaxpr", "call") if key in options)
        closed = hasattr(program, "jaxpr")
        return evaluate(program.jaxpr if closed else program, program.consts if closed else [], operands)
    if name == "cond":
        branch = options["branches"][int(np.clip(operands[0], 0, len(options["branches"]) - 1))]
        return evaluate(branch.jaxpr, branch.consts, operands[1:])
    if name == "scan":
        return scan(options, operands)
    bound = equation.primitive.get_bind_params(options)
    functions, bound = bound if isinstance(bound, tuple) else ([], bound)
    results = equation.primitive.bind(*functions, *map(jnp.asarray, operands), **bound)
    return [np.asarray(result) for result in (results if equation.primitive.multiple_results else [results])]


def scan(options, operands):
    """A loop over slices."""
    body, length = options["jaxpr"], options["length"]
    constants, carried = options["num_consts"], options["num_carry"]
    shared, carry = operands[:constants], operands[constants : constants + carried]
    sliced, stacked = operands[constants + carried :], [None] * length
    for index in range(length)[:: -1 if options["reverse"] else 1]:
        out = evaluate(body.jaxpr, body.consts, [*shared, *carry, *(leaf[index] for leaf in sliced)])
        carry, stacked[index] = out[:carried], out[carried:]
    return [*carry, *(np.stack(leaves) for leaves in zip(*stacked, strict=True))]


def reduced(function):
    """A reduction over the axes of the operation."""
    return lambda equation, x: function(x, axis=equation.params["axes"])


def plain(function):
    """A function of the operands alone."""
    return lambda equation, *operands: function(*operands)


def converted(equation, x):
    """Another dtype."""
    return x.astype(equation.params["new_dtype"])


def broadcast(equation, x, *sizes):
    """Axes placed among new ones."""
    assert not sizes
    shape = [1] * len(equation.params["shape"])
    for axis, size in zip(equation.params["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(x.reshape(shape), equation.params["shape"])


def sliced(equation, x):
    """A part of each axis."""
    options = equation.params
    strides = options["strides"] or (1,) * x.ndim
    return x[tuple(map(slice, options["start_indices"], options["limit_indices"], strides))]


def product(equation, a, b):
    """Matrices in batches: batch axes first, then those of each side."""
    (left, right), (batch_a, batch_b) = equation.params["dimension_numbers"]
    free_a = [axis for axis in range(a.ndim) if axis not in (*left, *batch_a)]
    free_b = [axis for axis in range(b.ndim) if axis not in (*right, *batch_b)]
    shape = [*(a.shape[axis] for axis in (*batch_a, *free_a)), *(b.shape[axis] for axis in free_b)]
    batch, inner = math.prod(a.shape[axis] for axis in batch_a), math.prod(a.shape[axis] for axis in left)
    a = a.transpose([*batch_a, *free_a, *left]).reshape(batch, -1, inner)
    b = b.transpose([*batch_b, *right, *free_b]).reshape(batch, inner, -1)
    return np.matmul(a, b).reshape(shape)


def largest_at(equation, x):
    """Where the largest entry is; NaN counts as larger than all."""
    (axis,) = equation.params["axes"]
    return np.argmax(x, axis=axis)


def shifted(x, by):
    """Bits shifted to the right, zeros in their place."""
    unsigned = np.dtype(f"uint{8 * x.itemsize}")
    return (x.view(unsigned) >> by.view(unsigned)).view(x.dtype)


def chosen(equation, which, *cases):
    """The case that each entry asks for."""
    return np.choose(which.astype(int), cases) if len(cases) > 2 else np.where(which.astype(bool), cases[1], cases[0])


def viewed(equation, x):
    """The same bits as another dtype, with an axis more where that is smaller."""
    dtype = np.dtype(equation.params["new_dtype"])
    out = np.ascontiguousarray(x).view(dtype) if x.ndim else x.reshape(1).view(dtype)
    return out.reshape(equation.outvars[0].aval.shape)


def counted(equation):
    """0, 1, 2, … along an axis."""
    shape, axis = equation.params["shape"], equation.params["dimension"]
    line = np.arange(shape[axis]).reshape([-1 if place == axis else 1 for place in range(len(shape))])
    return np.broadcast_to(line, shape)


def power(equation, x):
    """A whole power."""
    return x ** x.dtype.type(equation.params["y"])


PROGRAMS = (
    "jit",
    "pjit",
    "closed_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vmap_call",
    "checkpoint",
    "remat2",
)
FUNCTIONS = {
    "mul": np.multiply, "add": np.add, "sub": np.subtract, "div": np.true_divide, "neg": np.negative, "abs": np.abs,
    "min": np.minimum, "max": np.maximum, "lt": np.less, "gt": np.greater, "le": np.less_equal, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal, "exp": np.exp, "log": np.log, "square": np.square, "sqrt": np.sqrt,
    "expm1": np.expm1, "log1p": np.log1p, "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "sign": np.sign,
    "erfc": special.erfc, "erf": special.erf, "logistic": special.expit, "is_finite": np.isfinite, "add_any": np.add,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert, "pow": np.power,
    "shift_right_logical": shifted, "stop_gradient": np.asarray, "copy": np.asarray, "copy_p": np.asarray,
    "clamp": lambda low, x, high: np.clip(x, low, high), "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
OPERATIONS = {name: plain(function) for name, function in FUNCTIONS.items()} | {
    "reduce_sum": reduced(np.sum),
    "reduce_max": reduced(np.max),
    "reduce_min": reduced(np.min),
    "reduce_and": reduced(np.all),
    "reduce_or": reduced(np.any),
    "argmax": largest_at,
    "convert_element_type": converted,
    "broadcast_in_dim": broadcast,
    "slice": sliced,
    "squeeze": lambda equation, x: np.squeeze(x, equation.params["dimensions"]),
    "reshape": lambda equation, x: x.reshape(equation.params["new_sizes"]),
    "transpose": lambda equation, x: x.transpose(equation.params["permutation"]),
    "concatenate": lambda equation, *parts: np.concatenate(parts, equation.params["dimension"]),
    "dot_general": product,
    "bitcast_convert_type": viewed,
    "select_n": chosen,
    "integer_pow": power,
    "iota": counted,
    "stack": lambda equation, *parts: np.stack(parts, equation.params["axis"]),
}
