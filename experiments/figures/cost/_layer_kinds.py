"""Layers that mix tokens, by kind, as one would write them; what they cost, read off their programs."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Layer = Callable[[tuple[jax.Array, ...], jax.Array], jax.Array]


def layer(kind: str, width: int = 3, depth: int = 0) -> Layer:
    """The layer as a function of weights and tokens, without projections where there is attention.

    `depth` is the index in a stack, which only dilated convolutions ask for.
    """

    def full(_: tuple[jax.Array, ...], x: jax.Array) -> jax.Array:
        scores = jnp.matmul(x * x.shape[1] ** -0.5, x.T, precision="highest")
        return jnp.matmul(jax.nn.softmax(scores, axis=-1), x, precision="highest")

    def restricted(_: tuple[jax.Array, ...], x: jax.Array) -> jax.Array:
        radius = (width - 1) // 2
        position = jnp.arange(x.shape[0])[:, None] + jnp.arange(-radius, radius + 1)[None]
        seen = jnp.take(x, jnp.clip(position, 0, x.shape[0] - 1), axis=0)
        scores = jnp.einsum("nd,nkd->nk", x * x.shape[1] ** -0.5, seen, precision="highest")
        scores = jnp.where((position >= 0) & (position < x.shape[0]), scores, -jnp.inf)
        return jnp.einsum("nk,nkd->nd", jax.nn.softmax(scores, axis=-1), seen, precision="highest")

    def recurrent(weights: tuple[jax.Array, ...], x: jax.Array) -> jax.Array:
        def step(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = jnp.tanh(row + jnp.matmul(state, weights[1], precision="highest"))
            return state, state

        inputs = jnp.matmul(x, weights[0], precision="highest")
        return jax.lax.scan(step, jnp.zeros_like(x[0]), inputs)[1]

    def convolution(weights: tuple[jax.Array, ...], x: jax.Array) -> jax.Array:
        dilation, border = 1, ((width - 1) // 2, width // 2)
        if kind == "dilated convolution":  # looks back only
            dilation = width**depth
            border = (dilation * (width - 1), 0)
        return jax.lax.conv_general_dilated(
            x[None], jnp.stack(weights), (1,), [border], rhs_dilation=(dilation,),
            dimension_numbers=("NWC", "WIO", "NWC"), precision="highest",
        )[0]  # fmt: skip

    return {"attention": full, "restricted attention": restricted, "recurrence": recurrent}.get(kind, convolution)


def weights(kind: str, d_model: int, width: int = 3, seed: int = 0) -> tuple[jax.Array, ...]:
    """Gaussian weights for a layer, entries N(0, 1/d)."""
    count = {"attention": 0, "restricted attention": 0, "recurrence": 2}.get(kind, width)
    draw = np.random.default_rng(seed).normal
    return tuple(jnp.asarray(draw(size=(d_model, d_model)) / np.sqrt(d_model), float) for _ in range(count))


def counts(function: Callable, *args: Any) -> tuple[int, int]:
    """Multiplications in a program's matrix products and convolutions, and runs of its longest loop, 1 without any.

    Multiplications are XLA's own count of each product alone, halved; the bodies of loops count as often as they run.
    """
    return _counted(jax.make_jaxpr(function)(*args).jaxpr)


def _counted(program: Any) -> tuple[int, int]:
    total, steps = 0, 1
    for equation in program.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            # XLA counts two floating-point operations for a multiplication in a product.
            shapes = [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in equation.invars]
            alone = jax.jit(functools.partial(equation.primitive.bind, **equation.params)).lower(*shapes)
            total += round((alone.cost_analysis() or {})["flops"] / 2)
            continue
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                inside, longest = _counted(inner)
                total, steps = total + times * inside, max(steps, times * longest)
    return total, steps


def dependencies(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> np.ndarray:
    """True at (i, j) where output i depends on token j: the Jacobian's blocks that are not zero."""
    jacobian = jax.jit(jax.jacobian(lambda x: jnp.sum(function(x), axis=1)))(x)
    return np.asarray(jnp.any(jacobian != 0, axis=2))


def longest_path(kind: str, x: jax.Array, width: int = 3) -> int:
    """Breadth-first search: layers of a stack until every output depends on every token that it ever will.

    In a recurrence an edge is one step: from token to state, and from state to state.
    """
    n, given = x.shape[0], weights(kind, x.shape[1], width)
    if kind == "recurrence":
        # States are nodes n … 2n − 1: one step's own Jacobian says whether a state depends on its token and the last.
        pair = dependencies(lambda pair: layer(kind)(given, pair)[1:], x[:2])[0]
        edges = np.zeros((2 * n, 2 * n), bool)
        edges[n + np.arange(n), np.arange(n)] = pair[1]
        edges[n + np.arange(1, n), n + np.arange(n - 1)] = pair[0]
        new = seen = np.eye(2 * n, dtype=bool)[:, :n]
        steps = 0
        while new.any():
            new = (edges.astype(int) @ new > 0) & ~seen
            seen, steps = seen | new, steps + bool(new.any())
        return steps
    reached = edges = np.eye(n, dtype=int)
    ever, layers = np.tri(n) if kind == "dilated convolution" else np.ones((n, n)), 0
    while (reached < ever).any():
        if layers == 0 or kind == "dilated convolution":  # the only ones that differ from layer to layer
            edges = dependencies(functools.partial(layer(kind, width, layers), given), x).astype(int)
        reached, layers = (edges @ reached > 0).astype(int), layers + 1
    return layers
