"""One layer that steps round the circle: its switches, its training, and what becomes of its roll-outs."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

from experiments.figures import _replicates
from rc_jax import attention, network, training
from rc_jax.network.switches import switched_apply
from rc_jax.training import tasks

SWITCHES = {"neither": (False, False), "skip": (True, False), "mlp": (False, True), "both": (True, True)}
LABELS = {"neither": "attention only", "skip": "+ skip", "mlp": "+ MLP", "both": "+ skip + MLP"}
FATES = ("collapsed", "kept", "left")
# Fixed before anything was measured. Points that are 1 % of the start apart are one point in a drawing; ten radii are
# far outside it; on the circle is within a factor of two. A step error of 1e-3 is that of a loss of 1e-6, and reaches
# the radius within the 300 steps of a roll-out where it grows by more than log(1000)/300 nats a step.
COLLAPSED, LEFT, ON = 0.01, 2.0, 2.0
ERROR = 1e-3
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
    # Batches are combs, evenly spaced pairs that shift by one point a step: the whole circle is seen, nothing is drawn,
    # and seeds differ by their weights alone. The four switches are settings of one compiled training.
    pairs, following = tasks.circle(spec.points)
    combs = [points.reshape(spec.batch, -1, 2, 2).swapaxes(0, 1) for points in (pairs, following)]
    settings = np.array(list(SWITCHES.values()))
    return _replicates.train(
        f"width {dim}",
        jax.random.key(spec.seed),
        partial(build, dim),
        loss,
        Partial(_comb, *combs),
        settings={"skip": settings[:, 0], "mlp": settings[:, 1]},
        seeds=spec.seeds,
        steps=spec.training_steps,
        optimiser=optax.adam(optax.cosine_decay_schedule(spec.rate, spec.training_steps)),
        every=max(1, spec.training_steps // 4),  # a killed run resumes from a record
        observe=Partial(_observe, pairs, following, jnp.zeros(spec.roll_out)),
    )


def frozen(path: np.ndarray) -> np.ndarray:
    """Roll-outs (..., time, token, coordinate) that repeat their last finite state."""
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


def share_of(event: np.ndarray, counts: np.ndarray, axis: int = 0) -> tuple[np.ndarray, ...]:
    """Share of an event among the layers that count, and two binomial standard errors of it.

    The first is 1/(2√n) for n layers, that of a share of one half, with which the share is compared. The second is for
    differences of shares: two layers of either kind are added (Agresti and Coull), so that it is never zero. Fewer than
    five layers decide nothing: both errors are then 1, the range of a share.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        number, seen = np.sum(counts, axis=axis), np.sum(event & counts, axis=axis)
        middle = (seen + 2) / (number + 4)
        errors = 0.5 / np.sqrt(number), np.sqrt(middle * (1 - middle) / number)
        return seen / number, *(np.where(number < 5, 1.0, error) for error in errors)
