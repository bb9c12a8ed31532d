"""Weights that forget geometrically: a_j = λ^{n−j} over n positions, with one λ or a mixture of them."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax import _checks
from rc_jax.sparsity import _inputs

# tanh(x)/x = Σ c_k x^{2k}; ten terms reach double precision for |x| < 1/4
_TANH_SERIES = (
    1.0,
    -1 / 3,
    2 / 15,
    -17 / 315,
    62 / 2835,
    -1382 / 155925,
    21844 / 6081075,
    -929569 / 638512875,
    6404582 / 10854718875,
    -443861162 / 1856156927625,
)

# (1 − e^{−x})/x = Σ (−x)^k/(k + 1)!; fourteen terms reach double precision for x < 1/2
_EXPONENTIAL_SERIES = tuple((-1) ** k / math.factorial(k + 1) for k in range(14))


@_checks.guard(lam=_checks.bounded(0, 1, open_low=True), n=_checks.bounded(1))
def decay(lam: ArrayLike, n: ArrayLike) -> Float[Array, "..."]:
    r"""Sparsity of exponentially decaying weights a_j = λ^{n−j}, j = 1 … n.

    S² = (1 − λⁿ)(1 + λ)/(n(1 − λ)(1 + λⁿ)) = tanh(nδ/2)/(n·tanh(δ/2)) with δ = −log λ. It is 1 at λ = 1, where the
    gradient is 0, and falls to 0 like √((1 + λ)/(n(1 − λ))) as n grows at fixed λ < 1.

    Args:
        lam: Decay λ per position, in (0, 1]; any shape that broadcasts with `n`.
        n: Number of positions, at least 1.

    Returns:
        S, in the broadcast shape; a pure number.

    Raises:
        TypeError: an argument is not a real number.
        ValueError: `lam` is outside (0, 1], or `n` is below 1.

    Source: Su Jianlin, kexue.fm/archives/9889, exponential decay.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.decay(0.5, 2):.6f} {sparsity.decay(1.0, 1000):.6f}")
        0.948683 1.000000
    """
    (lam, n), dtype = _inputs.broadcast(lam, n)
    return _decay(lam, n).astype(dtype)


@jax.jit
def _decay(lam: Array, n: Array) -> Array:
    half = log_decay(lam) / 2
    return jnp.sqrt(_tanh_ratio(n * half) / _tanh_ratio(half))


def log_decay(lam: Array) -> Array:
    """δ = −log λ with all digits near λ = 1, where λ − 1 is exact, and for the smallest λ, where it is −1."""
    near = lam > 0.5
    return -jnp.where(near, jnp.log1p(jnp.where(near, lam, 1) - 1), jnp.log(jnp.where(near, 1, lam)))


def _tanh_ratio(x: Array) -> Array:
    """tanh(x)/x for x ≥ 0, 1 at x = 0, with gradients."""
    small = jnp.abs(x) < 0.25
    series = jnp.polyval(jnp.asarray(_TANH_SERIES[::-1], x.dtype), jnp.square(jnp.where(small, x, 0)))
    away = jnp.where(small, 1, x)
    tanh = -jnp.expm1(-2 * away) / (1 + jnp.exp(-2 * away))  # unlike tanh itself, its derivative keeps its digits
    return jnp.where(small, series, tanh / away)


def _channel_weights(name: str, value: Any) -> None:
    _checks.bounded(0)(name, value)
    numbers = _checks.concrete(value)
    if np.ndim(value) == 0 or np.size(value) == 0:
        raise ValueError(f"`{name}` must have a last axis of channels, got {_checks.describe(value)}")
    if numbers is not None and not np.all(np.any(numbers.astype(float) > 0, axis=-1)):
        raise ValueError(f"`{name}` must have a positive entry in every row, got a row of zeros")


@_checks.guard(weights=_channel_weights, lam=_checks.bounded(0, 1, open_low=True), n=_checks.bounded(1))
def channel_decay(weights: ArrayLike, lam: ArrayLike, n: ArrayLike) -> Float[Array, "..."]:
    r"""Sparsity of a mixture of exponential decays, a_j = Σ_c w_c λ_c^{n−j}, j = 1 … n: one λ for each channel.

    With G(λ) = (1 − λⁿ)/(1 − λ), G(1) = n, S² = (Σ_c w_c G(λ_c))² / (n Σ_cc' w_c w_c' G(λ_c λ_c')). With every λ_c < 1
    it falls to 0 like n^{−1/2}. A channel with λ = 1 and w > 0 brings it back to 1 as n → ∞, whatever the others are,
    after a lowest value (`channel_decay_lowest`): in the end nearly all of the row is that channel's even part.

    Args:
        weights: Weights w_c ≥ 0 of the channels on the last axis, for instance φ(q)_c φ̄(k)_c; leading axes are a batch.
        lam: Decays λ_c per position, in (0, 1], on the last axis.
        n: Number of positions, at least 1; broadcasts with the batch.

    Returns:
        S, in the broadcast shape of the batch and `n`; a pure number.

    Raises:
        TypeError: an argument is not a real number.
        ValueError: a weight is negative, all weights of a row are zero, `lam` is outside (0, 1], `n` is below 1, or
            there is no axis of channels.

    Source: this package's own result, for decays λ per channel as in retention and gated linear attention.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> print([f"{sparsity.channel_decay(jnp.ones(2), jnp.array([0.5, last]), 1e4):.4f}" for last in (0.9, 1.0)])
        ['0.0375', '0.9999']
    """
    (weights, lam), dtype = _inputs.broadcast(weights, lam)
    return _channels(weights, lam, jnp.asarray(n).astype(weights.dtype)).astype(dtype)


@jax.jit
def _channels(weights: Array, lam: Array, n: Array) -> Array:
    delta = log_decay(lam)
    shape = jnp.broadcast_shapes(lam.shape[:-1], n.shape)
    weights, delta = (jnp.broadcast_to(value, shape + lam.shape[-1:]) for value in (weights, delta))
    weights = weights / lax.stop_gradient(jnp.max(weights, axis=-1, keepdims=True))
    n = jnp.broadcast_to(n, shape)[..., None]
    first = jnp.sum(weights * mean_power(delta, n), axis=-1)
    pairs = mean_power(delta[..., :, None] + delta[..., None, :], n[..., None])
    second = jnp.sum(weights[..., :, None] * weights[..., None, :] * pairs, axis=(-2, -1))
    return first / jnp.sqrt(second)


def mean_power(delta: Array, n: Array) -> Array:
    """G/n, the mean of e^{−δs} over s = 0 … n − 1: (1 − e^{−nδ})/(n(1 − e^{−δ})), 1 at δ = 0."""
    return _mean_exponential(n * delta) / _mean_exponential(delta)


def _mean_exponential(x: Array) -> Array:
    """(1 − e^{−x})/x for x ≥ 0, 1 at x = 0, with gradients."""
    small = x < 0.5
    series = jnp.polyval(jnp.asarray(_EXPONENTIAL_SERIES[::-1], x.dtype), jnp.where(small, x, 0))
    away = jnp.where(small, 1, x)
    return jnp.where(small, series, -jnp.expm1(-away) / away)


@_checks.guard(
    even=_checks.positive, weights=_channel_weights, lam=_checks.bounded(0, 1, open_low=True, open_high=True)
)
def channel_decay_lowest(
    even: ArrayLike, weights: ArrayLike, lam: ArrayLike
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""Where a mixture with one channel at λ = 1 focuses most: the length n* ≫ 1/(1 − λ_c), and S there.

    With w the weight of the even channel, X = Σ_c w_c/(1 − λ_c) and Y = Σ_cc' w_c w_c'/(1 − λ_c λ_c') of the others,

        S² ≈ (w + X/n)²/(w² + (2wX + Y)/n),   n* = X(2wX + Y)/(wY),   S²(n*) = 4wX(wX + Y)/(2wX + Y)²,

    and S ≈ 1 − Y/(2nw²) beyond. S(n*) is small only if wX ≪ Y, so the even channel must be a faint one.

    Args:
        even: Weight w > 0 of the channel with λ = 1.
        weights: Weights w_c ≥ 0 of the other channels, on the last axis.
        lam: Their decays, in (0, 1), on the last axis.

    Returns:
        n* and S(n*), in the broadcast shape of the batch.

    Raises:
        TypeError: an argument is not a real number.
        ValueError: `even` is not positive, a weight is negative, all of them are zero, or `lam` is outside (0, 1).

    Source: this package's own result.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> n, lowest = sparsity.channel_decay_lowest(1e-4, jnp.ones(1), jnp.array([0.9]))
        >>> print(f"{n:.0f} {lowest:.4f}")
        100038 0.0276
    """
    (weights, lam), dtype = _inputs.broadcast(weights, lam)
    even = jnp.asarray(even).astype(weights.dtype)
    gap = 1 - lam
    x = jnp.sum(weights / gap, axis=-1)
    both = gap[..., :, None] + lam[..., :, None] * gap[..., None, :]  # 1 − λλ'
    y = jnp.sum(weights[..., :, None] * weights[..., None, :] / both, axis=(-2, -1))
    shape = jnp.broadcast_shapes(even.shape, x.shape)
    even, x, y = (jnp.broadcast_to(value, shape) for value in (even, x, y))
    mixed = 2 * even * x + y
    lowest = 2 * jnp.sqrt(x * (even * x + y) * even) / mixed
    return (x * mixed / (even * y)).astype(dtype), lowest.astype(dtype)
