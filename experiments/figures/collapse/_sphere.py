"""Tokens on the sphere: layers whose values are random rotations, carried as a mean and a scaled difference."""

import functools
import math

import jax
import jax.numpy as jnp

from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.collapse.exact import attention, mlp_and_norms
from rc_jax.collapse.exact import state as mean_residual
from rc_jax.collapse.exact.state import MeanResidual
from rc_jax.network import NormParams

DIMENSION = 3
LAYER = AttentionSpec(d_model=DIMENSION, heads=1, d_head=DIMENSION)
EPSILON = 1e-12  # in RMSNorm, whose mean squares here are of order one
_BATCH = 1024


def rotations(key: jax.Array, count: int, dtype: str) -> jax.Array:
    """Uniformly random rotations of space, from unit quaternions."""
    w, x, y, z = (q := jax.random.normal(key, (4, count), dtype)) / jnp.linalg.norm(q, axis=0, keepdims=True)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return jnp.stack([jnp.stack(row) for row in rows]).transpose(2, 0, 1)


def layers(key: jax.Array, depth: int, dtype: str) -> AttentionParams:
    """Gaussian W_Q and W_K of variance 1/3, and a random rotation as W_V W_O, for each of `depth` layers."""
    shape = (depth, 1, DIMENSION, DIMENSION)
    query, keys = (jax.random.normal(jax.random.fold_in(key, role), shape, dtype) for role in range(2))
    rotation = rotations(jax.random.fold_in(key, 2), depth, dtype)[:, None]
    same = jnp.broadcast_to(jnp.eye(DIMENSION, dtype=dtype), shape)
    return AttentionParams(query / math.sqrt(DIMENSION), keys / math.sqrt(DIMENSION), rotation, same)


def tokens(key: jax.Array, count: int, spread: jax.Array | float, dtype: str) -> jax.Array:
    """Points of the sphere of radius √3, where RMSNorm puts tokens: normal ones of that spread about a random pole."""
    pole = jax.random.normal(jax.random.fold_in(key, 0), (1, DIMENSION), dtype)
    noise = jax.random.normal(jax.random.fold_in(key, 1), (count, DIMENSION), dtype)
    x = pole / jnp.linalg.norm(pole) + spread * noise
    return math.sqrt(DIMENSION) * x / jnp.linalg.norm(x, axis=1, keepdims=True)


def states(params: AttentionParams, x: jax.Array, skip: jax.Array | float, strength: jax.Array | float) -> MeanResidual:
    """Tokens before the first layer and after each one: x ← RMSNorm(skip · x + strength · SA(x)).

    The steps are those of `collapse.log_residuals`, so that differences are exact at any depth.
    """
    norm = NormParams(jnp.ones(DIMENSION, x.dtype))

    def scaled(state: MeanResidual, factor: jax.Array | float) -> MeanResidual:
        rows = mean_residual.from_rows(factor * state.direction, state.log_size)
        return rows._replace(mean=factor * state.mean + rows.mean)

    def step(state: MeanResidual, weights: AttentionParams) -> tuple[MeanResidual, MeanResidual]:
        branch = attention.attend(weights, state, LAYER, None, None)
        out = mean_residual.add(scaled(state, skip), scaled(branch, strength))
        out = mlp_and_norms.norm(norm, out, EPSILON, centred=False)
        return out, out

    start = mean_residual.decompose(x)
    later = jax.lax.scan(step, start, params)[1]
    return MeanResidual(*(jnp.concatenate([first[None], rest]) for first, rest in zip(start, later, strict=True)))


@functools.partial(jax.jit, static_argnames=("count", "depth", "dtype"))
def draws(
    keys: jax.Array, spread: float, skip: float, strength: float, *, count: int, depth: int, dtype: str
) -> MeanResidual:
    """The states of one initialisation for each key, all settings by one compiled program."""

    def one(key: jax.Array) -> MeanResidual:
        x = tokens(jax.random.fold_in(key, 0), count, jnp.asarray(spread, dtype), dtype)
        params = layers(jax.random.fold_in(key, 1), depth, dtype)
        return states(params, x, jnp.asarray(skip, dtype), jnp.asarray(strength, dtype))

    return jax.lax.map(one, keys, batch_size=_BATCH)
