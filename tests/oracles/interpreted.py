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

            traced, shape = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
            programs[key] = planned(traced, {}), jax.tree.structure(shape)
        run, results = programs[key]
        with np.errstate(all="ignore"):
            return jax.tree.unflatten(results, run([on_host(array) for array in arrays]))

    return call


def planned(program, known):
    """A function from the arguments of a program to its results, in order; `known` has those of the programs inside.

    What an equation says is read once, because loops and calls run it often.
    """
    jaxpr, constants = (program.jaxpr, program.consts) if hasattr(program, "jaxpr") else (program, [])
    if jaxpr in known:
        return known[jaxpr]
    places, start = {}, []

    def place(variable):
        if isinstance(variable, Literal):
            start.append(np.asarray(variable.val, variable.aval.dtype))
            return len(start) - 1
        if variable not in places:
            places[variable] = len(start)
            start.append(None)
        return places[variable]

    for variable, constant in zip(jaxpr.constvars, constants, strict=True):
        start[place(variable)] = np.asarray(constant)
    given = [place(variable) for variable in jaxpr.invars]
    steps = [
        (operation(each, known), [place(variable) for variable in each.invars], [place(v) for v in each.outvars])
        for each in jaxpr.eqns
    ]
    returned = [place(variable) for variable in jaxpr.outvars]

    def run(arguments):
        values = start.copy()
        for at, argument in zip(given, arguments, strict=True):
            values[at] = argument
        for step, operands, results in steps:
            for at, result in zip(results, step([values[index] for index in operands]), strict=True):
                values[at] = result
        return [values[index] for index in returned]

    known[jaxpr] = run
    return run


def operation(equation, known):
    """A function from the operands of an equation to its results."""
    name, options = equation.primitive.name, equation.params
    if name in OPERATIONS:
        function, dtype = OPERATIONS[name](equation), equation.outvars[0].aval.dtype
        return lambda operands: [np.asarray(function(*operands), dtype)]
    if name in PROGRAMS:
        return planned(next(options[key] for key in ("jaxpr", "call_jaxpr", "call") if key in options), known)
    if name == "cond":
        branches = [planned(branch, known) for branch in options["branches"]]
        return lambda operands: branches[min(max(int(operands[0]), 0), len(branches) - 1)](operands[1:])
    if name == "scan":
        return scan(options, planned(options["jaxpr"], known))
    return lambda operands: as_in_jax(equation, operands)


def as_in_jax(equation, operands):
    """The results of an operation that is rare here."""
    bound = equation.primitive.get_bind_params(equation.params)
    functions, bound = bound if isinstance(bound, tuple) else ([], bound)
    results = equation.primitive.bind(*functions, *map(jnp.asarray, operands), **bound)
    return [on_host(result) for result in (results if equation.primitive.multiple_results else [results])]


def on_host(array):
    """An array for NumPy; random keys stay what they are."""
    return array if jnp.issubdtype(array.dtype, jax.dtypes.extended) else np.asarray(array)


def scan(options, body):
    """A loop over slices."""
    constants, carried = options["num_consts"], options["num_carry"]
    order = range(options["length"])[:: -1 if options["reverse"] else 1]

    def loop(operands):
        shared, carry = operands[:constants], operands[constants : constants + carried]
        sliced, stacked = operands[constants + carried :], [None] * options["length"]
        for index in order:
            out = body([*shared, *carry, *(leaf[index] for leaf in sliced)])
            carry, stacked[index] = out[:carried], out[carried:]
        return [*carry, *(np.stack(leaves) for leaves in zip(*stacked, strict=True))]

    return loop


def reduced(function):
    """A reduction over the axes of the operation."""
    return lambda equation: lambda x, axes=equation.params["axes"]: function(x, axis=axes)


def plain(function):
    """A function of the operands alone."""
    return lambda equation: function


def broadcast(equation):
    """Axes placed among new ones."""
    (x,), shape = equation.invars, equation.params["shape"]
    between = [1] * len(shape)
    for axis, size in zip(equation.params["broadcast_dimensions"], x.aval.shape, strict=True):
        between[axis] = size

    def filled(x):
        out = np.empty(shape, x.dtype)  # faster for small arrays than NumPy's own broadcasting, which copies nothing
        out[...] = x.reshape(between)
        return out

    return filled


def sliced(equation):
    """A part of each axis."""
    options = equation.params
    strides = options["strides"] or (1,) * len(options["start_indices"])
    part = tuple(map(slice, options["start_indices"], options["limit_indices"], strides))
    return lambda x: x[part]


def product(equation):
    """Matrices in batches: batch axes first, then those of each side."""
    (left, right), (batch_a, batch_b) = equation.params["dimension_numbers"]
    of_a, of_b = (variable.aval.shape for variable in equation.invars)
    free_a = [axis for axis in range(len(of_a)) if axis not in (*left, *batch_a)]
    free_b = [axis for axis in range(len(of_b)) if axis not in (*right, *batch_b)]
    shape = [*(of_a[axis] for axis in (*batch_a, *free_a)), *(of_b[axis] for axis in free_b)]
    batch, inner = math.prod(of_a[axis] for axis in batch_a), math.prod(of_a[axis] for axis in left)
    rows, columns = math.prod(of_a[axis] for axis in free_a), math.prod(of_b[axis] for axis in free_b)

    def multiplied(a, b):
        a = a.transpose([*batch_a, *free_a, *left]).reshape(batch, rows, inner)
        b = b.transpose([*batch_b, *right, *free_b]).reshape(batch, inner, columns)
        return np.matmul(a, b).reshape(shape)

    return multiplied


def shifted(x, by):
    """Bits shifted to the right, zeros in their place."""
    unsigned = np.dtype(f"uint{8 * x.itemsize}")
    return (x.view(unsigned) >> by.view(unsigned)).view(x.dtype)


def chosen(which, *cases):
    """The case that each entry asks for."""
    return np.choose(which.astype(int), cases) if len(cases) > 2 else np.where(which.astype(bool), cases[1], cases[0])


def viewed(equation):
    """The same bits as another dtype, with an axis more where that is smaller."""
    dtype, shape = np.dtype(equation.params["new_dtype"]), equation.outvars[0].aval.shape
    return lambda x: (np.ascontiguousarray(x).view(dtype) if x.ndim else x.reshape(1).view(dtype)).reshape(shape)


def counted(equation):
    """0, 1, 2, … along an axis."""
    shape, axis = equation.params["shape"], equation.params["dimension"]
    line = np.arange(shape[axis]).reshape([-1 if place == axis else 1 for place in range(len(shape))])
    return lambda: np.broadcast_to(line, shape)


def random_bits(equation):
    """The bits of each of several keys: those of Threefry (Salmon et al. 2011) at 0, 1, 2, …."""
    options = equation.params
    count = np.arange(math.prod(options["shape"]), dtype=np.uint64)

    def drawn(keys):
        words = np.asarray(jax.random.key_data(keys))[..., None]
        key = [words[..., 0, :], words[..., 1, :]]
        key.append(key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
        left, right = (count >> 32).astype(np.uint32) + key[0], count.astype(np.uint32) + key[1]
        for group in range(5):
            for by in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
                left = left + right
                right = (right << np.uint32(by) | right >> np.uint32(32 - by)) ^ left
            left, right = left + key[(group + 1) % 3], right + key[(group + 2) % 3] + np.uint32(group + 1)
        both = left.astype(np.uint64) << 32 | right if options["bit_width"] == 64 else left ^ right
        return both.reshape(*keys.shape, *options["shape"])

    return drawn


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
    "erfc": special.erfc, "erf": special.erf, "erf_inv": special.erfinv,
    "logistic": special.expit, "is_finite": np.isfinite, "add_any": np.add,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert, "pow": np.power,
    "shift_right_logical": shifted, "stop_gradient": np.asarray, "copy": np.asarray, "copy_p": np.asarray,
    "clamp": lambda low, x, high: np.clip(x, low, high), "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
OPERATIONS = {name: plain(function) for name, function in FUNCTIONS.items()} | {
    "reduce_sum": reduced(np.add.reduce),
    "reduce_max": reduced(np.maximum.reduce),
    "reduce_min": reduced(np.minimum.reduce),
    "reduce_and": reduced(np.logical_and.reduce),
    "reduce_or": reduced(np.logical_or.reduce),
    "argmax": lambda equation: lambda x: np.argmax(x, axis=equation.params["axes"][0]),  # NaN counts as the largest
    "convert_element_type": lambda equation: lambda x, dtype=equation.params["new_dtype"]: x.astype(dtype),
    "broadcast_in_dim": broadcast,
    "slice": sliced,
    "squeeze": lambda equation: lambda x, shape=equation.outvars[0].aval.shape: x.reshape(shape),
    "reshape": lambda equation: lambda x, shape=equation.params["new_sizes"]: x.reshape(shape),
    "transpose": lambda equation: lambda x, order=equation.params["permutation"]: x.transpose(order),
    "concatenate": lambda equation: lambda *parts: np.concatenate(parts, equation.params["dimension"]),
    "dot_general": product,
    "bitcast_convert_type": viewed,
    "select_n": plain(chosen),
    "integer_pow": lambda equation: lambda x: x ** x.dtype.type(equation.params["y"]),
    "iota": counted,
    "random_bits": random_bits,
    "stack": lambda equation: lambda *parts: np.stack(parts, equation.params["axis"]),
}
