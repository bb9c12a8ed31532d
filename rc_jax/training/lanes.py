"""Many trainings at once: lanes of seeds × settings as one pure program, in which a lane that breaks stops alone."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Int, PyTree

Optimiser = optax.GradientTransformation | Callable[[Any], optax.GradientTransformation]

_MODEL, _BATCHES = range(2)


class Lane(NamedTuple):
    """One training's state; with leading axes (seed, setting), that of all of them."""

    weights: PyTree  # what the optimiser moves: the model's `nnx.Param`s
    rest: PyTree  # whatever else the model holds; it stays
    moments: PyTree  # the optimiser's
    failed: Int[Array, "*lanes"]  # the step that was not finite, −1 while there is none


@dataclasses.dataclass(frozen=True)
class Program:
    """The functions that a training is made of, static in its compiled programs."""

    build: Callable[[Array, Any], nnx.Module]
    loss: Callable[[Any, Any, Any], Array]
    optimiser: Optimiser
    graph: nnx.GraphDef

    def model(self, weights: PyTree, rest: PyTree) -> Any:
        """The module that has these weights."""
        return nnx.merge(self.graph, weights, rest)

    def transformation(self, setting: Any) -> optax.GradientTransformation:
        """One setting's optimiser."""
        if isinstance(self.optimiser, optax.GradientTransformation):
            return self.optimiser
        return self.optimiser(setting)


def over_lanes(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn(lane, setting)` for all lanes: the second axis of lanes, and the settings' own, count the settings."""
    return jax.vmap(jax.vmap(fn), in_axes=(0, None))


def graph_of(build: Callable[[Array, Any], nnx.Module], key: Array, setting: Any) -> nnx.GraphDef:
    """The static half of the model that `build` makes, without computing anything."""
    found: list[nnx.GraphDef] = []

    def trace(key: Array, setting: Any) -> PyTree:
        graph, weights, rest = nnx.split(build(key, setting), nnx.Param, ...)
        found.append(graph)
        return jax.tree.leaves((weights, rest))

    jax.eval_shape(trace, key, setting)
    return found[0]


def start(program: Program, keys: Array, settings: Any, count: Array) -> Lane:
    """All lanes before their first step, drawn from one key per seed. `count` has an entry for each setting."""

    def lane(key: Array, setting: Any, count: Array) -> Lane:
        del count  # only there so that a training without settings has an axis of them too
        _, weights, rest = nnx.split(program.build(jax.random.fold_in(key, _MODEL), setting), nnx.Param, ...)
        return Lane(weights, rest, program.transformation(setting).init(weights), jnp.asarray(-1, jnp.int32))

    with jax.numpy_dtype_promotion("standard"):  # optax mixes Python's numbers with arrays of integers
        return jax.vmap(jax.vmap(lane, in_axes=(None, 0, 0)), in_axes=(0, None, None))(keys, settings, count)


def advance(
    program: Program,
    batches: Callable[[Array, Array], PyTree],
    lanes: Lane,
    keys: Array,
    settings: Any,
    first: Array,
    last: Array,
) -> tuple[Lane, dict[str, Array]]:
    """Steps `first` … `last` − 1 of all lanes, and the means of loss and gradient norm over them."""

    def seed(key: Array, lanes: Lane, step: Array) -> tuple[Lane, dict[str, Array]]:
        batch = batches(jax.random.fold_in(key, _BATCHES), step)  # once, for all settings of the seed
        return jax.vmap(lambda lane, setting: update(program, lane, batch, setting, step))(lanes, settings)

    def body(step: Array, carry: tuple[Lane, dict[str, Array]]) -> tuple[Lane, dict[str, Array]]:
        lanes, sums = carry
        lanes, seen = jax.vmap(seed, in_axes=(0, 0, None))(keys, lanes, step)
        return lanes, jax.tree.map(jnp.add, sums, seen)

    zero = jnp.zeros(lanes.failed.shape, float)
    lanes, sums = jax.lax.fori_loop(first, last, body, (lanes, {"loss": zero, "gradient_norm": zero}))
    count = (last - first).astype(zero.dtype)
    return lanes, jax.tree.map(lambda total: total / count, sums)


def update(program: Program, lane: Lane, batch: PyTree, setting: Any, step: Array) -> tuple[Lane, dict[str, Array]]:
    """One step of a lane; where loss, gradient or new weights are not finite, the lane stays as it is from then on."""

    def loss(weights: PyTree) -> Array:
        return program.loss(program.model(weights, lane.rest), batch, setting)

    value, gradient = jax.value_and_grad(loss)(lane.weights)
    with jax.numpy_dtype_promotion("standard"):
        norm = optax.tree.norm(gradient)
        changes, moments = program.transformation(setting).update(gradient, lane.moments, lane.weights)
        weights = optax.apply_updates(lane.weights, changes)
    finite = jnp.isfinite(value) & jnp.isfinite(norm)
    for leaf in jax.tree.leaves(weights):
        finite &= jnp.all(jnp.isfinite(leaf))
    well = (lane.failed < 0) & finite
    failed = jnp.where((lane.failed < 0) & ~finite, step.astype(jnp.int32), lane.failed)
    kept = jax.tree.map(lambda new, old: jnp.where(well, new, old), (weights, moments), (lane.weights, lane.moments))
    seen = {"loss": value, "gradient_norm": norm}
    seen = {name: jnp.where(well, number, jnp.nan).astype(float) for name, number in seen.items()}
    return Lane(kept[0], lane.rest, kept[1], failed), seen
