"""The size of an attention row's output, by kernel and norm, for scores that are N(0, γ²).

Row i of a random layer sees scores s_j = u_i·x_j, which are N(0, γ²) with γ = |u_i| when tokens are N(0, I). Weights
a = f(s)/(n ν) give the output Σ_j a_j x_j, and E f(s) x = E f'(s) u (Stein), so per feature

    mean square = (γ E f'/ν)²/d + E f²/(n ν²).
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, ArrayLike, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common

Kernel = Literal["softmax", "l2", "signed", "relu_squared", "relu_squared_mean", "identity"]


class KernelMoments(NamedTuple):
    """E f', E f² and the norm ν of a kernel f of scores N(0, γ²)."""

    slope: Float[Array, "..."]
    square: Float[Array, "..."]
    norm: Float[Array, "..."]


@arguments.guard(gamma=arguments.positive, tokens=arguments.bounded(1))
def kernel_moments(kernel: Kernel, gamma: ArrayLike, tokens: ArrayLike) -> KernelMoments:
    """E f', E f² and ν: ν is E f for sums, √(E f²/n) for Euclidean norms, E |f| for signed weights, 1 for means.

    Args:
        kernel: a kernel that is a function of scores alone, as in `rc_jax.attention.AttentionSpec.weights`.
        gamma: γ > 0, standard deviation of the scores; any shape.
        tokens: n, which enters the Euclidean norm alone; broadcast.

    Example:
        >>> [round(float(value), 4) for value in kernel_moments("relu_squared", 1.0, 8)]
        [0.7979, 1.5, 0.5]
    """
    dtype, (g, n) = as_common(gamma=gamma, tokens=tokens)
    return KernelMoments(*(value.astype(dtype) for value in _moments(kernel, g, n)))


def _moments(kernel: Kernel, g: Array, n: Array) -> KernelMoments:
    square, ones = jnp.square(g), jnp.ones_like(g)
    root = (2 / jnp.pi) ** 0.5
    if kernel in ("softmax", "l2"):
        first, second = jnp.exp(square / 2), jnp.exp(2 * square)
        return KernelMoments(first, second, first if kernel == "softmax" else jnp.sqrt(second / n))
    if kernel == "signed":  # f(s) = sign(s) e^|s| jumps by 2 at 0
        size = 2 * jnp.exp(square / 2) * ndtr(g)
        return KernelMoments(size + root / g, 2 * jnp.exp(2 * square) * ndtr(2 * g), size)
    if kernel == "identity":
        return KernelMoments(ones, square, ones)
    return KernelMoments(root * g, 1.5 * jnp.square(square), square / 2 if kernel == "relu_squared" else ones)


@arguments.guard(gamma=arguments.positive, tokens=arguments.bounded(1), d_model=arguments.bounded(1))
def output_mean_square(
    kernel: Kernel, gamma: ArrayLike, *, tokens: ArrayLike, d_model: ArrayLike
) -> Float[Array, "..."]:
    """(γ E f'/ν)²/d + E f²/(n ν²): the mean square of the entries of Σ_j a_j x_j for N(0, I) tokens x_j.

    Values and outputs of weights N(0, 1/fan_in) do not change it. Own application of Stein's identity.

    Args:
        kernel: as in `kernel_moments`.
        gamma: γ > 0, standard deviation of the row's scores; any shape.
        tokens: n; broadcast.
        d_model: d; broadcast.

    Example:
        >>> round(float(output_mean_square("identity", 1.0, tokens=4, d_model=2)), 4)
        0.75
    """
    dtype, (g, n, d) = as_common(gamma=gamma, tokens=tokens, d_model=d_model)
    slope, square = _over_norm(kernel, g, n)
    return (jnp.square(slope) / d + square / n).astype(dtype)


def _over_norm(kernel: Kernel, g: Array, n: Array) -> tuple[Array, Array]:
    """γ E f'/ν and E f²/ν², of which what cancels is not formed: e^{2γ²} has no place where its ratios have."""
    square, ones = jnp.square(g), jnp.ones_like(g)
    root = (2 / jnp.pi) ** 0.5
    if kernel == "softmax":
        return g, jnp.exp(square)
    if kernel == "l2":
        return jnp.sqrt(n) * g * jnp.exp(-square / 2), n * ones
    if kernel == "signed":
        share = ndtr(g)
        slope = g + root * jnp.exp(-square / 2) / (2 * share)
        return slope, jnp.exp(square) * ndtr(2 * g) / (2 * jnp.square(share))
    if kernel == "identity":
        return g, square
    if kernel == "relu_squared":
        return 2 * root * ones, 6 * ones
    return root * square, 1.5 * jnp.square(square)
