"""Checks of what `train` is given, and the identity by which a folder knows its training again."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial
from jaxtyping import Array, ArrayLike

from rc_jax._numerics import arguments
from rc_jax._numerics.jax_names import Literal, PyTree

RESERVED = ("step", "loss", "gradient_norm")
_CALLBACKS = ("pure_callback", "io_callback")  # what they call stands in no program; `jax.debug` changes no number


optimiser = arguments.must(
    "an optax GradientTransformation or a function setting → one",
    right=lambda value: (
        isinstance(value, optax.GradientTransformation) or (callable(value) and not hasattr(value, "update"))
    ),
)


folder = (
    arguments.must("a path", right=lambda value: isinstance(value, str | os.PathLike)),
    arguments.must("a folder, and no file", lambda value: Path(value).is_dir() or not Path(value).exists()),
)


def settings(value: PyTree) -> tuple[PyTree, int]:
    """The settings as arrays, and how many there are."""
    for leaf in jax.tree.leaves(value):
        if not isinstance(leaf, jax.Array) and np.asarray(leaf).dtype.kind not in "biufcV":  # V: bfloat16
            raise TypeError(f"`settings` must hold arrays of numbers, got {leaf!r}")
    arrays = jax.tree.map(jnp.asarray, value)
    lengths = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(arrays)} or {1}
    if len(lengths) != 1 or 0 in lengths:
        shapes = jax.tree.map(jnp.shape, arrays)
        text = "`settings` must hold arrays with one leading axis, an entry per setting, got shapes"
        raise ValueError(f"{text} {shapes}")
    return arrays, lengths.pop()


def observations(arrays: Any) -> dict[str, str]:
    """Dtype and shape, in one replicate, of each array that `observe` returns."""
    if not isinstance(arrays, Mapping) or not all(
        hasattr(value, "dtype") and np.dtype(value.dtype).kind in "biufV" for value in arrays.values()
    ):
        raise TypeError(f"`observe` must return a dict of named arrays of real numbers, got {arrays!r}")
    if taken := set(RESERVED) & set(arrays):
        raise ValueError(f"`observe` must name its arrays otherwise than {', '.join(RESERVED)}, got {sorted(taken)}")
    return {name: f"{value.dtype}{list(value.shape[2:])}" for name, value in arrays.items()}


def carrying(fn: Callable[..., Any]) -> Partial:
    """A function as an argument of a compiled program, which traces the arrays that the function carries."""
    return fn if isinstance(fn, Partial) else Partial(fn)


def identity(
    graph: Any,
    state: PyTree,
    observed: dict[str, str],
    key: Array,
    values: PyTree,
    seeds: int,
    every: int,
    program: str,
) -> dict[str, Any]:
    """What a folder and a resumed training must agree about; functions by the `program` that they make."""
    model = re.sub(r" at 0x[0-9a-f]+", "", repr(graph))  # functions have other addresses in another process
    arrays = "\n".join(f"{leaf.dtype}{leaf.shape}" for leaf in jax.tree.leaves(state))
    leaves = jax.tree_util.tree_flatten_with_path(values)[0]
    # The first that differs is named, so that what changes others comes first.
    return {
        "key": _numbers(key).tolist(),
        "setting": {jax.tree_util.keystr(path): _numbers(leaf).tolist() for path, leaf in leaves},
        "number of seeds": seeds,
        "every": every,
        "model or optimiser": hashlib.sha256(f"{model}\n{arrays}".encode()).hexdigest()[:12],
        "observation": observed,
        "build, loss, batches, optimiser, observation or version of JAX": program,
    }


def fingerprint(traced: Iterable[Any], carried: PyTree) -> str:
    """One hash of traced programs, which are all that functions do: operations, constants, arrays that they carry.

    Raises:
        ValueError: a program calls a function of Python, whose code it does not hold.
    """
    digest = hashlib.sha256()
    for each in traced:
        digest.update(re.sub(r" at 0x[0-9a-f]+", "", str(each.jaxpr)).encode())
        for program in _programs(each.jaxpr):
            for equation in getattr(program, "jaxpr", program).eqns:
                if equation.primitive.name in _CALLBACKS:
                    raise ValueError(
                        "functions given to `train` with a `folder` must be programs of JAX alone, because what else "
                        "they call cannot be compared when the training is resumed: train without `folder`, "
                        f"got `jax.{equation.primitive.name}` of {equation.params['callback']}"
                    )
                for given in equation.invars:
                    if isinstance(given, Literal):
                        digest.update(_numbers(given.val).tobytes())
            for constant in getattr(program, "consts", ()):
                digest.update(_numbers(constant).tobytes())
    for leaf in jax.tree.leaves(carried):
        digest.update(_numbers(leaf).tobytes())
    return digest.hexdigest()[:12]


def _programs(program: Any) -> Iterator[Any]:
    """A program and those within it, whose text shows neither all numbers of arrays nor what is called."""
    yield program
    for equation in getattr(program, "jaxpr", program).eqns:
        for value in jax.tree.leaves(list(equation.params.values())):
            if hasattr(value, "eqns"):
                yield from _programs(value)


def _numbers(leaf: ArrayLike) -> np.ndarray:
    keys = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if keys else leaf)
