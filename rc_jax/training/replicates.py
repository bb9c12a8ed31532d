"""The compiled half of a training: many replicates, one for each seed and setting, advance in one program."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import errors, nnx
from jaxtyping import Array, Int

from rc_jax._numerics import stable
from rc_jax._numerics.jax_names import PyTree

Sums = dict[str, tuple[Array, Array]]  # by name, with the excess of each by rounding
Optimiser = optax.GradientTransformation | Callable[[Any], optax.GradientTransformation]

_MODEL, _BATCHES = range(2)


class Replicate(NamedTuple):
    """The state of one training; with leading axes (seed, setting), the states of all of them."""

    weights: PyTree  # the model's `nnx.Param`s, which the optimiser moves
    rest: PyTree  # whatever else the model holds; it stays
    moments: PyTree  # the optimiser's state
    failed: Int[Array, "*replicates"]  # the step that was not finite; −1 while every step was finite


@dataclasses.dataclass(frozen=True)
class Program:
    """The functions that a training is made of, static in its compiled programs."""

    build: Callable[[Array, Any], nnx.Module]
    loss: Callable[[Any, Any, Any], Array]
    optimiser: Optimiser
    graph: nnx.GraphDef[Any]

    def model(self, weights: PyTree, rest: PyTree) -> Any:
        """The module that has these weights."""
        return nnx.merge(self.graph, weights, rest)

    def transformation(self, setting: Any) -> optax.GradientTransformationExtraArgs:
        """The optimiser of one setting."""
        optimiser = self.optimiser
        if not isinstance(optimiser, optax.GradientTransformation):
            optimiser = optimiser(setting)
            if not isinstance(optimiser, optax.GradientTransformation):
                raise TypeError(f"`optimiser` must make an optax transformation, got a {type(optimiser).__name__}")
        return optax.with_extra_args_support(optimiser)


def graph_of(build: Callable[[Array, Any], nnx.Module], key: Array, setting: Any) -> nnx.GraphDef[Any]:
    """The static half of the model that `build` makes, without computing anything."""
    graphs: list[nnx.GraphDef[Any]] = []

    def trace(key: Array, setting: Any) -> PyTree:
        model = build(key, setting)
        if not isinstance(model, nnx.Module):
            raise TypeError(f"`build` must return a flax.nnx.Module, got a {type(model).__name__}")
        graph, weights, rest = nnx.split(model, nnx.Param, ...)
        if not jax.tree.leaves(weights):
            raise ValueError(f"`build` must return a module with an nnx.Param to train, got {type(model).__name__}")
        graphs.append(graph)
        return jax.tree.leaves((weights, rest))

    jax.eval_shape(trace, key, setting)
    return graphs[0]


def start(program: Program, keys: Array, settings: Any, count: Array) -> Replicate:
    """All replicates before their first step, drawn from one key per seed. `count` has an entry for each setting."""

    def replicate(key: Array, setting: Any, count: Array) -> Replicate:
        del count  # only there so that a training without settings has an axis of them too
        _, weights, rest = nnx.split(program.build(jax.random.fold_in(key, _MODEL), setting), nnx.Param, ...)
        new = Replicate(weights, rest, program.transformation(setting).init(weights), jnp.asarray(-1, jnp.int32))
        return jax.tree.map(lambda leaf: leaf.astype(leaf.dtype), new)  # weak types would be strong after one step

    with jax.numpy_dtype_promotion("standard"):  # optax mixes Python's numbers with arrays of integers
        return jax.vmap(jax.vmap(replicate, in_axes=(None, 0, 0)), in_axes=(0, None, None))(keys, settings, count)


def advance(
    program: Program,
    batches: Callable[[Array, Array], PyTree],
    replicates: Replicate,
    keys: Array,
    settings: Any,
    first: Array,
    last: Array,
) -> tuple[Replicate, dict[str, Array]]:
    """Steps `first` … `last` − 1 of all replicates, and the means of loss and gradient norm over these steps."""

    def of_seed(key: Array, replicates: Replicate, step: Array) -> tuple[Replicate, dict[str, Array]]:
        batch = batches(jax.random.fold_in(key, _BATCHES), step)  # one draw serves all settings of the seed
        return jax.vmap(lambda one, setting: update(program, one, batch, setting, step))(replicates, settings)

    def add(new: Array, running: tuple[Array, Array]) -> tuple[Array, Array]:
        total, excess = stable.compensated(running, new)
        return total, jnp.where(jnp.isfinite(total), excess, 0)  # a norm that overflows is infinite, not NaN

    def body(step: Array, carry: tuple[Replicate, Sums]) -> tuple[Replicate, Sums]:
        replicates, sums = carry
        replicates, terms = jax.vmap(of_seed, in_axes=(0, 0, None))(keys, replicates, step)
        return replicates, {name: add(term, sums[name]) for name, term in terms.items()}

    # Both ends are traced, so that one program serves every interval between records.
    zero = jnp.zeros(replicates.failed.shape, float)
    sums: Sums = {"loss": (zero, zero), "gradient_norm": (zero, zero)}
    replicates, sums = jax.lax.fori_loop(first, last, body, (replicates, sums))
    return replicates, {name: total / (last - first).astype(zero.dtype) for name, (total, _) in sums.items()}


def update(
    program: Program, replicate: Replicate, batch: PyTree, setting: Any, step: Array
) -> tuple[Replicate, dict[str, Array]]:
    """One step of a replicate, which stops for good where its loss, gradient or new weights are not finite."""

    def loss(weights: PyTree) -> Array:
        try:
            return program.loss(program.model(weights, replicate.rest), batch, setting)
        except errors.TraceContextError as error:
            raise ValueError(
                "`loss` must change nothing that the model holds, as dropout that draws and a batch norm that counts "
                "do: call `model.eval()` first, or pass dropout `rngs=nnx.Rngs(key)` with a key that `batches` "
                f"returns, got {str(error).partition(' (')[0]!r} from flax"
            ) from error

    # The step that the optimiser proposes.
    value, gradient = jax.value_and_grad(loss)(replicate.weights)
    with jax.numpy_dtype_promotion("standard"):
        changes, moments = program.transformation(setting).update(
            gradient, replicate.moments, replicate.weights, value=value, grad=gradient, value_fn=loss
        )
        weights = optax.apply_updates(replicate.weights, changes)

    # A replicate that has stopped, or stops now, keeps its old state.
    finite = jnp.isfinite(value)
    for leaf in jax.tree.leaves((gradient, weights)):
        finite &= jnp.all(jnp.isfinite(leaf))
    running = replicate.failed < 0
    moves = running & finite
    weights, moments = jax.tree.map(
        lambda new, old: jnp.where(moves, new, old), (weights, moments), (replicate.weights, replicate.moments)
    )
    failed = jnp.where(running & ~finite, step.astype(jnp.int32), replicate.failed)
    terms = {"loss": value, "gradient_norm": _norm(gradient)}
    terms = {name: jnp.where(moves, number, jnp.nan).astype(float) for name, number in terms.items()}
    return Replicate(weights, replicate.rest, moments, failed), terms


def _norm(gradient: PyTree) -> Array:
    """√Σ g², whose squares neither overflow nor underflow."""
    leaves = [leaf.astype(float).ravel() for leaf in jax.tree.leaves(gradient)]
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]))
    unit = jnp.where(largest > 0, largest, 1)
    return unit * jnp.sqrt(sum((jnp.sum(jnp.square(leaf / unit)) for leaf in leaves), jnp.zeros(())))
