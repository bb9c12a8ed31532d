"""One layer that steps round the circle: its switches, its training, and what becomes of its roll-outs."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from flax import nnx
from jax.flatten_util import ravel_pytree

from rc_jax import attention, network, training
from rc_jax.network.switches import switched_apply
from rc_jax.training import tasks

SWITCHES = {"neither": (False, False), "skip": (True, False), "mlp": (False, True), "both": (True, True)}
LABELS = {"neither": "attention only", "skip": "+ skip", "mlp": "+ MLP", "both": "+ skip + MLP"}
FATES = ("collapsed", "kept", "left")
# Fixed before anything was measured. Points that are 1 % of the start apart are one point in a drawing; ten radii are
# far outside it; on the circle is within a factor of two. A step error of 1e-5 is that of a loss of 1e-10, and reaches
# the radius within the 300 steps of a roll-out where it grows by more than log(10⁵)/300 nats a step.
COLLAPSED, LEFT, ON = 0.01, 2.0, 2.0
ERROR = 1e-5
LEARNT = ERROR**2
Data = Mapping[str, np.ndarray]


def build(dim: int, key: jax.Array, setting: Any) -> training.Transformer:
    """One layer of width `dim` with two heads and an MLP of max(32, dim) units, between two linear maps."""
    layer = attention.AttentionSpec(d_model=dim, heads=2, d_head=max(2, dim // 2))
    mlp = network.MLPSpec(width=max(32, dim), activation="gelu")
    stack = network.StackSpec(attention=layer, depth=1, mlp=mlp)
    spec = training.ModelSpec(stack=stack, inputs=2, outputs=2, tokens=2, symbols=False, positions=None)
    return training.Transformer(key, spec)


def following_points(model: training.Transformer, setting: Any, x: jax.Array) -> jax.Array:
    """The model's answer: a linear map into the layer, the layer with its switches, and a linear map back."""
    return model.read(switched_apply(model.layers(), model.embed(x), model.spec.stack, setting))


def loss(model: training.Transformer, batch: tuple[jax.Array, jax.Array], setting: Any) -> jax.Array:
    """Mean squared distance from the next points, in squares of the radius: 1 for answering with the centre."""
    pairs, following = batch
    answers = jax.vmap(lambda x: following_points(model, setting, x))(pairs)
    return jnp.mean(jnp.square(answers - following)) / jnp.mean(jnp.square(following))


def lyapunov(model: Any, pairs: jax.Array) -> jax.Array:
    """Nats per step by which the worst small displacement of the two points grows along the true path."""

    def step(displacement: jax.Array, pair: jax.Array) -> tuple[jax.Array, jax.Array]:
        moved = jax.jvp(model, (pair,), (displacement,))[1]
        size = jnp.maximum(jnp.sqrt(jnp.sum(jnp.square(moved))), jnp.finfo(pair.dtype).tiny)
        return moved / size, jnp.log(size)

    start = jnp.array([[0.8, 0.1], [-0.3, 0.5]], pairs.dtype)  # any direction: the fastest one wins
    return jnp.mean(jax.lax.scan(step, start / jnp.sqrt(jnp.sum(jnp.square(start))), pairs)[1])


def trained(spec: Any, dim: int, gain: float) -> dict[str, np.ndarray]:
    """Roll-outs, losses and exponents of layers of one width: by seed, switch, and before and after training.

    Training starts from `gain` times usual weights. It is by L-BFGS on evenly spaced pairs, until the loss is below
    `spec.loss`. Seeds differ by their first
    weights alone, and the four switches are settings of one compiled program.
    """
    pairs, following = tasks.circle(spec.points)
    comb = slice(None, None, spec.apart)
    graph, first = nnx.split(build(dim, jax.random.key(spec.seed), None))
    unravel = ravel_pytree(first)[1]

    @jax.jit
    def loss_and_slope(flat: jax.Array, setting: Any) -> tuple[jax.Array, jax.Array]:
        points = pairs[comb], following[comb]
        return jax.value_and_grad(lambda flat: loss(nnx.merge(graph, unravel(flat)), points, setting))(flat)

    @jax.jit
    def observed(flat: jax.Array, setting: Any) -> dict[str, jax.Array]:
        model = nnx.merge(graph, unravel(flat))

        def answer(x: jax.Array) -> jax.Array:
            return following_points(model, setting, x)

        path, error = tasks.roll_out(answer, pairs[0], spec.roll_out), loss(model, (pairs, following), setting)
        return {"error": error, "path": path, "exponent": lyapunov(answer, pairs)}

    def before_and_after(seed: int, skip: bool, mlp: bool) -> dict[str, np.ndarray]:
        setting = {"skip": jnp.array(skip), "mlp": jnp.array(mlp)}
        random = nnx.split(build(dim, jax.random.fold_in(jax.random.key(spec.seed), seed), None))[1]
        start = gain * ravel_pytree(random)[0]
        end = _minimised(lambda flat: loss_and_slope(flat, setting), np.asarray(start), spec)
        both = [observed(jnp.asarray(flat), setting) for flat in (start, end)]
        return {name: np.stack([np.asarray(each[name]) for each in both]) for name in both[0]}

    runs = [[before_and_after(seed, *switch) for switch in SWITCHES.values()] for seed in range(spec.seeds)]
    return {name: np.array([[run[name] for run in row] for row in runs]) for name in runs[0][0]}


def _minimised(loss_and_slope: Callable[[jax.Array], Any], start: np.ndarray, spec: Any) -> np.ndarray:
    """Weights at which L-BFGS ends: where the loss is small enough, or after as many steps as are allowed."""

    def enough(intermediate_result: scipy.optimize.OptimizeResult) -> None:
        if intermediate_result.fun < spec.loss:
            raise StopIteration

    def both(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = loss_and_slope(jnp.asarray(flat))
        return float(value), np.asarray(slope)

    options = {"maxiter": spec.iterations, "maxfun": 2 * spec.iterations, "maxcor": 20, "ftol": 0.0, "gtol": 0.0}
    return scipy.optimize.minimize(both, start, jac=True, method="L-BFGS-B", callback=enough, options=options).x


def frozen(path: np.ndarray) -> np.ndarray:
    """Roll-outs (..., time, token, coordinate) that repeat their last state whose square is finite."""
    known = (np.abs(path) < 1e100).all(axis=(-1, -2))
    last = np.maximum.accumulate(np.where(known, np.arange(path.shape[-3]), 0), axis=-1)
    return np.take_along_axis(path, last[..., None, None], axis=-3)


def distances(path: np.ndarray) -> np.ndarray:
    """Distance of the two points over that at the start, from (..., time, token, coordinate)."""
    apart = np.linalg.norm(path[..., 0, :].astype(float) - path[..., 1, :], axis=-1)
    return apart / apart[..., :1]


def radii(path: np.ndarray) -> np.ndarray:
    """Distance of each point from the centre over that at the start: (..., time, token)."""
    size = np.linalg.norm(path.astype(float), axis=-1)
    return size / size[..., :1, :]


def first_events(path: np.ndarray, left: float = LEFT) -> tuple[np.ndarray, np.ndarray]:
    """The first event of each roll-out, as an index into `FATES`, and its time: the last step if there is none.

    The points collapse where their distance is below 1 % of the start; one leaves at `left` radii.
    """
    steps = path.shape[-3]

    def first(event: np.ndarray) -> np.ndarray:
        return np.where(event.any(axis=-1), event.argmax(axis=-1), steps)

    close, away = first(distances(path) < COLLAPSED), first(radii(path).max(axis=-1) > left)
    fate = np.where(np.minimum(close, away) == steps, 1, np.where(close <= away, 0, 2))
    return fate, np.minimum(np.minimum(close, away), steps - 1)


def tolerated(path: np.ndarray) -> float:
    """The exponent at which a step error of `ERROR` reaches the radius within the roll-out."""
    return math.log(1 / ERROR) / (path.shape[-3] - 1)


def share_of(event: np.ndarray, counts: np.ndarray, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Share of an event among the layers that count, and its binomial standard error.

    The error is 1/(2√n) for n layers, that of a share of one half, with which the share is compared. Fewer than five
    layers decide nothing: it is then 1, the range of a share.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        number = np.sum(counts, axis=axis)
        return np.sum(event & counts, axis=axis) / number, np.where(number < 5, 1.0, 0.5 / np.sqrt(number))
