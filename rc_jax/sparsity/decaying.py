"""Weights that forget geometrically: a_j = λ^{n−j} over n positions."""

import jax
import jax.numpy as jnp
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
    half = -jnp.log1p(lam - 1) / 2  # λ − 1 is exact where the logarithm is small
    return jnp.sqrt(_tanh_ratio(n * half) / _tanh_ratio(half))


def _tanh_ratio(x: Array) -> Array:
    """tanh(x)/x for x ≥ 0, 1 at x = 0, with gradients."""
    small = jnp.abs(x) < 0.25
    series = jnp.polyval(jnp.asarray(_TANH_SERIES[::-1], x.dtype), jnp.square(jnp.where(small, x, 0)))
    away = jnp.where(small, 1, x)
    tanh = -jnp.expm1(-2 * away) / (1 + jnp.exp(-2 * away))  # unlike tanh itself, its derivative keeps its digits
    return jnp.where(small, series, tanh / away)
