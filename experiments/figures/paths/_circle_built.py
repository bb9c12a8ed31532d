"""Layers of pure attention that keep two points on the unit circle, with weights built by hand."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.figures.paths._circle import distances
from rc_jax import attention
from rc_jax.training import tasks

OPPOSITE = ((1.0, 0.0), (-1.0, 0.0))
# The two heads: y = c r² of each, and the growth of an error of the radius that their gains are solved for.
HEADS, SLOPE = (2.0, 1.0), 0.5
SHARPNESS = np.geomspace(0.05, 5, 9)  # y of the one head
SIZES = np.geomspace(0.3, 3, 81)
NOISE = (0.07, 0.17, 0.27)  # standard deviation of each coordinate, in radii
EARLY = 60  # steps of the built layer that are drawn


def built(y: jax.Array, gain: jax.Array, angle: float) -> attention.AttentionParams:
    """Heads with W_Q W_Kᵀ = y_h I and W_V W_O = gain_h times a rotation, for points at the distance 1 from the centre.

    A head sends opposite points ±x to ± gain_h tanh(y_h |x|²) times the rotated x.
    """
    identity = jnp.eye(2)[None]
    root = jnp.sqrt(y)[:, None, None] * identity
    value = gain[:, None, None] * _rotation(angle)[None]
    return attention.AttentionParams(root, root, value, jnp.broadcast_to(identity, root.shape))


def _rotation(angle: float) -> jax.Array:
    return jnp.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])


def one_head(y: jax.Array, angle: float) -> attention.AttentionParams:
    """The one head of `built` that keeps the unit circle: its gain is coth y."""
    return built(y[None], 1 / jnp.tanh(y)[None], angle)


def two_heads(y: jax.Array, slope: float, angle: float) -> attention.AttentionParams:
    """The two heads of `built` that keep the unit circle, with ∂ log r′/∂ log r = `slope` there.

    Their gains solve Σ g tanh y = 1 and Σ g (tanh y + 2y/cosh² y) = slope; one of them is negative where slope < 1.
    """
    keeps = jnp.tanh(y)
    gain = jnp.linalg.solve(jnp.stack([keeps, keeps + 2 * y / jnp.cosh(y) ** 2]), jnp.array([1.0, slope]))
    return built(y, gain, angle)


def step(params: attention.AttentionParams, x: jax.Array) -> jax.Array:
    """The answer of a layer built by hand to two points (token, coordinate): attention and nothing else."""
    return attention.attend(params, x, attention.AttentionSpec(d_model=2, heads=len(params.query), d_head=2), scale=1.0)


def linearised(params: attention.AttentionParams, angle: float) -> jax.Array:
    """The derivative (4, 4) of a step at opposite points of the unit circle, in the frame that rotates with it."""
    return jax.jacfwd(lambda x: step(params, x) @ _rotation(-angle))(jnp.array(OPPOSITE)).reshape(4, 4)


def moduli(slope: np.ndarray) -> np.ndarray:
    """Factors of small displacements under a derivative (4, 4): moduli of its eigenvalues, ascending."""
    return np.sort(np.abs(np.linalg.eigvals(np.asarray(slope, float))))


def deviation(x: jax.Array) -> jax.Array:
    """Deviation of two points (…, token, coordinate) from opposite points of the unit circle, in radii.

    It is the largest of the two errors of the radius and the error of half their distance.
    """
    size = jnp.linalg.norm(x, axis=-1)
    half = jnp.linalg.norm(x[..., 0, :] - x[..., 1, :], axis=-1) / 2
    return jnp.maximum(jnp.abs(size - 1).max(axis=-1), jnp.abs(half - 1))


def returns(params: attention.AttentionParams, noise: jax.Array, starts: int, steps: int, key: jax.Array) -> jax.Array:
    """Deviations (noise, start, time) of opposite points that start with Gaussian noise in every coordinate."""
    drawn = jax.random.normal(key, (noise.size, starts, 2, 2))

    def roll(x: jax.Array) -> jax.Array:
        return deviation(tasks.roll_out(lambda now: step(params, now), x, steps))

    return jax.vmap(jax.vmap(roll))(jnp.array(OPPOSITE)[None, None] + noise[:, None, None, None] * drawn)


def radius_map(params: attention.AttentionParams, sizes: jax.Array) -> jax.Array:
    """r′/r for opposite points at each radius r."""
    answers = jax.vmap(lambda size: step(params, size * jnp.array(OPPOSITE)))(sizes)
    return jnp.linalg.norm(answers[:, 0], axis=-1) / sizes


def growth(y: jax.Array) -> jax.Array:
    """Growth of an error of the radius in one step of `one_head`, for each y: ∂ log r′/∂ log r at r = 1."""
    half = 1e-2  # its square is the error of the quotient

    def slope(y: jax.Array) -> jax.Array:
        sizes = jnp.exp(jnp.array([-half, half]))
        below, above = jnp.log(radius_map(one_head(y, 0.6), sizes) * sizes)
        return (above - below) / (2 * half)

    return jax.vmap(slope)(y)


def compute(spec: Any) -> dict[str, np.ndarray]:
    """One head and two heads that keep the circle: growth of errors, returns of disturbed pairs, maps of the radius."""
    angle = 2 * math.pi / spec.points

    # One head that keeps the circle, two that keep it stably, and what both do to points that are off it.
    @jax.jit
    def numbers(key: jax.Array) -> dict[str, jax.Array]:
        one = one_head(jnp.array(HEADS[1]), angle)
        two = two_heads(jnp.array(HEADS), SLOPE, angle)
        right_angle = jnp.array([[1.0, 0.0], [0.0, 1.0]])
        sizes = jnp.asarray(SIZES, float)
        return {
            "growth": growth(jnp.asarray(SHARPNESS, float)),
            "linearised": linearised(two, angle),
            "returns": returns(two, jnp.array(NOISE), spec.starts, spec.built_steps, key),
            "right_angle": tasks.roll_out(lambda x: step(two, x), right_angle, spec.built_steps),
            "one_head": radius_map(one, sizes),
            "two_heads": radius_map(two, sizes),
        }

    # Of the returns only what is drawn and what is judged is stored.
    data = {name: np.asarray(value) for name, value in numbers(jax.random.key(spec.seed)).items()}
    deviations = data.pop("returns")
    return data | {
        "moduli": moduli(data.pop("linearised")),
        "returns": deviations[:, :, : EARLY + 1],
        "right_angle": distances(data["right_angle"]),
    }
