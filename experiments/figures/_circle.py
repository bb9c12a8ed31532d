"""One layer that steps round the circle: its switches, its training, its roll-outs, and how steadily it steps."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

from experiments.figures import _lanes
from experiments.figures._switches import switched_apply
from rc_jax import attention, network, training
from rc_jax.training import tasks

SWITCHES = {"neither": (False, False), "skip": (True, False), "mlp": (False, True), "both": (True, True)}
FATES = ("collapsed", "kept", "left")


@dataclasses.dataclass(frozen=True)
class Build:
    """One layer of width `dim` with two heads and an MLP of max(32, dim) units, between two linear maps."""

    dim: int

    def __call__(self, key: jax.Array, setting: Any) -> training.Transformer:
        layer = attention.AttentionSpec(d_model=self.dim, heads=2, d_head=max(2, self.dim // 2))
        mlp = network.MLPSpec(width=max(32, self.dim), activation="gelu")
        stack = network.StackSpec(attention=layer, depth=1, mlp=mlp)
        spec = training.ModelSpec(stack=stack, inputs=2, outputs=2, tokens=2, symbols=False, positions=None)
        return training.Transformer(spec, key)


def following_points(model: training.Transformer, setting: Any, x: jax.Array) -> jax.Array:
    """The model's answer. In two dimensions the tokens are the points themselves: nothing before or after the layer."""
    stack = model.spec.stack
    if stack.attention.d_model == 2:
        return switched_apply(model.layers(), x, stack, setting)
    return model.read(switched_apply(model.layers(), model.embed(x), stack, setting))


def loss(model: training.Transformer, batch: tuple[jax.Array, jax.Array], setting: Any) -> jax.Array:
    """Mean squared distance from the next points, in squares of the radius: 1 for answering with the centre."""
    pairs, following = batch
    answers = jax.vmap(lambda x: following_points(model, setting, x))(pairs)
    return _error(answers, following)


def _error(answers: jax.Array, following: jax.Array) -> jax.Array:
    return jnp.mean(jnp.square(answers - following)) / jnp.mean(jnp.square(following))


def standing_still(points: int) -> float:
    """The loss of answering with the points as they are."""
    return float(_error(*tasks.circle(points)))


def lyapunov(model: Any, pairs: jax.Array) -> jax.Array:
    """Nats per step by which the worst small displacement of the two points grows along the true path."""

    def step(displacement: jax.Array, pair: jax.Array) -> tuple[jax.Array, jax.Array]:
        moved = jax.jvp(model, (pair,), (displacement,))[1]
        size = jnp.maximum(jnp.sqrt(jnp.sum(jnp.square(moved))), jnp.finfo(pair.dtype).tiny)
        return moved / size, jnp.log(size)

    start = jnp.array([[0.8, 0.1], [-0.3, 0.5]], pairs.dtype)  # any direction: the fastest one wins
    return jnp.mean(jax.lax.scan(step, start / jnp.sqrt(jnp.sum(jnp.square(start))), pairs)[1])


def _observe(
    pairs: jax.Array, following: jax.Array, steps: jax.Array, model: training.Transformer, setting: Any
) -> dict[str, jax.Array]:
    def answer(x: jax.Array) -> jax.Array:
        return following_points(model, setting, x)

    return {
        "error": loss(model, (pairs, following), setting),
        "path": tasks.roll_out(answer, pairs[0], steps.size),
        "exponent": lyapunov(answer, pairs),
    }


def _comb(pairs: jax.Array, following: jax.Array, key: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A batch: pairs evenly spaced over the half circle, shifted by one from step to step. Nothing is random."""
    shift = step % len(pairs)
    return pairs[shift], following[shift]


def trained(spec: Any, dim: int) -> training.Training:
    """Layers of one width, for all seeds and all settings of the switches; first record before training, last after."""
    pairs, following = tasks.circle(spec.points)
    combs = [each.reshape(spec.batch, -1, 2, 2).swapaxes(0, 1) for each in (pairs, following)]
    settings = np.array(list(SWITCHES.values()))
    return _lanes.train(
        f"width {dim}",
        Build(dim),
        loss,
        Partial(_comb, *combs),
        jax.random.key(spec.seed),
        settings={"skip": settings[:, 0], "mlp": settings[:, 1]},
        seeds=spec.seeds,
        steps=spec.training_steps,
        optimiser=optax.adam(optax.cosine_decay_schedule(spec.rate, spec.training_steps)),
        every=max(1, spec.training_steps // 4),  # a killed run goes on from a record
        observe=Partial(_observe, pairs, following, jnp.zeros(spec.roll_out)),
    )


def held(path: np.ndarray) -> np.ndarray:
    """Roll-outs (..., time, token, coordinate) that stay where they are once the next step is not finite."""
    known = np.isfinite(path).all(axis=(-1, -2))
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


def first_events(path: np.ndarray, collapsed: float, left: float) -> tuple[np.ndarray, np.ndarray]:
    """What happens first to each roll-out, as an index into `FATES`, and when: the last step if it is kept."""
    steps = path.shape[-3]

    def first(event: np.ndarray) -> np.ndarray:
        return np.where(event.any(axis=-1), event.argmax(axis=-1), steps)

    close, away = first(distances(path) < collapsed), first(radii(path).max(axis=-1) > left)
    fate = np.where(np.minimum(close, away) == steps, 1, np.where(close <= away, 0, 2))
    return fate, np.minimum(np.minimum(close, away), steps - 1)


def growth(sharpness: jax.Array) -> jax.Array:
    """By what an error of the radius grows in one step of attention alone that keeps the circle: ∂ log r′/∂ log r.

    The layer has W_Q W_Kᵀ = y/r² and W_V W_O = coth(y) times a turn, so that a point weighs itself by σ(2y) and the
    opposite one by σ(−2y).
    """
    spec = attention.AttentionSpec(d_model=2)
    turn = jnp.array([[0.8, 0.6], [-0.6, 0.8]])
    x = jnp.array([[1.0, 0.0], [-1.0, 0.0]])

    def log_radius(size: jax.Array, y: jax.Array) -> jax.Array:
        same = jnp.sqrt(y) * jnp.eye(2)
        params = attention.AttentionParams(same[None], same[None], (turn / jnp.tanh(y))[None], jnp.eye(2)[None])
        return jnp.log(jnp.sum(jnp.square(attention.attend(params, size * x, spec, scale=1.0)[0]))) / 2

    step = 1e-2  # its square is the error of the quotient
    sizes = jnp.exp(jnp.array([-step, step]))
    below, above = jax.vmap(jax.vmap(log_radius, in_axes=(None, 0)), in_axes=(0, None))(sizes, sharpness)
    return (above - below) / (2 * step)
