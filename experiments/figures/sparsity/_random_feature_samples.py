"""Sparsity of attention by random features of softmax, for the figure `softmax_features`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from experiments.lib import figure
from rc_jax import sparsity


class Spec(figure.Spec):
    """`draws` of the directions in `width` dimensions for each number of features; keys for trigonometric ones."""

    width: int = 16
    gammas: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0)
    counts: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    draws: int = 1024
    sampled_draws: int = 48
    keys: int = 1024
    largest_order: int = 48


def positive(key: Array, spec: Spec) -> dict[str, np.ndarray]:
    """S/S₀ of positive features over infinitely many keys: (kind, γ, draw, m) and the same for its first-order part.

    Queries and keys have the same typical length: q = (d σ²)^½ e₁, k ~ N(0, σ²I), σ² = γ/√d.
    """
    kinds = []
    for index, orthogonal in enumerate((False, True)):
        draw = functools.partial(
            sparsity.random_projections, count=max(spec.counts), dim=spec.width, orthogonal=orthogonal,
            dtype=spec.dtype,
        )  # fmt: skip
        keys = jax.random.split(jax.random.fold_in(key, index), spec.draws)
        directions = jax.jit(jax.vmap(lambda key, draw=draw: draw(key)))(keys)
        gammas = jnp.asarray(spec.gammas, spec.dtype)
        kinds.append(
            [[np.asarray(each, float) for each in _ratios(directions, gamma, spec.counts)] for gamma in gammas]
        )
    values = np.array(kinds)  # (kind, γ, what, draw, m)
    return {"ratio": values[:, :, 0], "first_order": values[:, :, 1]}


@functools.partial(jax.jit, static_argnames="counts")
def _ratios(directions: Array, gamma: Array, counts: tuple[int, ...]) -> tuple[Array, Array]:
    """S/S₀ of the first m of the features for every draw, and the part of it that is linear in 1/m sums: (draw, m)."""
    width = directions.shape[-1]
    square = gamma / width**0.5
    length = (width * square) ** 0.5
    within = jnp.arange(directions.shape[1])[None] < jnp.asarray(counts)[:, None]

    def one(w: Array) -> tuple[Array, Array]:
        # S over infinitely many keys, from the moments of the features; then E η under both tilted laws of keys.
        features = jnp.exp(w[:, 0] * length - length**2 / 2)
        mean, cov = sparsity.positive_feature_moments(w, jnp.sqrt(square))
        masked = jnp.where(within, features[None], 0)
        s = sparsity.nonnegative_linear(masked, mean, cov)
        size, along = jnp.sum(w * w, axis=-1), w[:, 0] * length
        shrink = square / (2 * (1 + square))
        constant = -width / 2 * jnp.log1p(square) - length**2 / 2
        under_first = jnp.exp(along + shrink * size + constant - gamma**2 / 2)
        under_second = jnp.exp(along + shrink * (size + 2 * along + length**2) + constant - 2 * gamma**2)
        share = within.astype(w.dtype) / jnp.asarray(counts, w.dtype)[:, None]
        return s / jnp.exp(-(gamma**2) / 2), jnp.matmul(share, under_first - under_second, precision="highest")

    return lax.map(one, directions)


def trigonometric(key: Array, spec: Spec) -> dict[str, np.ndarray]:
    """S/S₀ and share of negative weights of trigonometric features over sampled keys: (γ, draw, m)."""
    waves = []
    for gamma in spec.gammas:
        keys = jax.random.split(jax.random.fold_in(key, 2), spec.sampled_draws)
        waves.append([np.asarray(each, float) for each in _every_wave(keys, jnp.asarray(gamma, spec.dtype), spec)])
    values = np.array(waves)
    return {"waves": values[:, 0], "negative": values[:, 1]}


@functools.partial(jax.jit, static_argnames="spec")
def _every_wave(keys: Array, gamma: Array, spec: Spec) -> tuple[Array, Array]:
    return lax.map(functools.partial(_waves, gamma=gamma, spec=spec), keys)


def _waves(key: Array, gamma: Array, spec: Spec) -> tuple[Array, Array]:
    sigma = jnp.sqrt(gamma / spec.width**0.5)
    keys = sigma * jax.random.normal(jax.random.fold_in(key, 0), (spec.keys, spec.width), gamma.dtype)
    q = jnp.zeros((1, spec.width), gamma.dtype).at[0, 0].set(sigma * spec.width**0.5)
    most = max(spec.counts)
    roles = jax.random.fold_in(key, 1)
    left, right = (sparsity.trigonometric_random_features(roles, x, most) for x in (q, keys))
    parts = jnp.sum((left * right).reshape(spec.keys, 2, most), axis=1)
    rows = jnp.stack([jnp.sum(parts[:, :count], axis=-1) for count in spec.counts])
    negative = jnp.mean((rows < 0).astype(gamma.dtype), axis=-1)
    return sparsity.sparsity(rows) / jnp.exp(-(gamma**2) / 2), negative
