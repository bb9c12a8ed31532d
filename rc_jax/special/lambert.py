"""The principal branch of Lambert's W, accurate at the branch point and without overflow at the other end."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common

INVERSE_E = math.exp(-1)
INVERSE_E_REST = -1.2428753672788363168e-17  # 1/e − float64(1/e)
NEAR = -0.25
NEWTON_STEPS = 4
QUARTIC_STEPS = 3


def _above_branch_point(name: str, value: object) -> None:
    """Refuse x below −1/e, up to the rounding of its own dtype."""
    numbers = arguments.real.numbers(name, value)
    if numbers is None:
        return
    kind = getattr(value, "dtype", np.dtype(float))
    kind = kind if jnp.issubdtype(kind, jnp.floating) else np.dtype(float)
    allowed = -INVERSE_E * (1 + float(jnp.finfo(kind).eps))
    if np.any(numbers.astype(float) < allowed):
        raise ValueError(f"`{name}` must be >= -1/e = -0.367879, got {float(numbers.astype(float).min()):g}")


@arguments.guard(x=_above_branch_point)
def lambert_w0(x: ArrayLike) -> Float[Array, "..."]:
    """Principal branch W₀ of Lambert's function: the solution w ≥ −1 of w e^w = x, for x ≥ −1/e.

    Correct to a few units of rounding in float32 and float64. Near the branch point 1 + W is found to full
    *relative* accuracy, so that the derivative 1/(e^W (1 + W)), infinite at −1/e itself, is right beside it.

    Args:
        x: argument, any shape; up to rounding not below −1/e.

    Returns:
        W₀(x), in x's shape and dtype; NaN where a traced x is below −1/e.

    Source: DLMF 4.13; the quartic step is Fritsch, Shafer and Crowley (1973).

    Example:
        >>> from rc_jax.special import lambert_w0
        >>> print(f"{lambert_w0(1.0):.6f}")  # the omega constant
        0.567143
    """
    dtype, (x,) = as_common(x=x)
    return _pair(x)[0].astype(dtype)


@arguments.guard()
def lambert_w0_exp(t: ArrayLike) -> Float[Array, "..."]:
    """W₀(e^t): the solution w > 0 of w + log w = t, for arguments whose exponential would overflow.

    Args:
        t: logarithm of W's argument (nats), any shape.

    Returns:
        W₀(e^t), in t's shape and dtype; its derivative is W/(1 + W).

    Source: DLMF 4.13.

    Example:
        >>> from rc_jax.special import lambert_w0_exp
        >>> print(f"{lambert_w0_exp(1e4):.1f}")  # e^10000 is no float
        9990.8
    """
    dtype, (t,) = as_common(t=t)
    return _of_exponential(t).astype(dtype)


@jax.custom_jvp
@jax.jit
def _of_exponential(t: jax.Array) -> jax.Array:
    w = _guess(jnp.logaddexp(t, 0))
    underflows = w <= 0  # NaN is not, and stays NaN
    w = jnp.where(underflows, 1, w)
    for _ in range(QUARTIC_STEPS):
        w = _quartic_step(w, t - jnp.log(w) - w)
    return jnp.where(underflows, 0, w)


@_of_exponential.defjvp
def _of_exponential_jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    w = _of_exponential(*primals)
    return w, w / (1 + w) * tangents[0]


@jax.custom_jvp
@jax.jit
def _pair(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """W₀(x) and 1 + W₀(x), each to full relative accuracy."""
    near = x < NEAR
    gap = _gap_near_branch(jnp.where(near, x, NEAR))
    far = jnp.where(near | (x == 0), 1, x)
    w = _guess(jnp.log1p(far))
    for _ in range(QUARTIC_STEPS):
        w = _quartic_step(w, jnp.log(far / w) - w)
    w = jnp.where(x == 0, x, w)
    return jnp.where(near, gap - 1, w), jnp.where(near, gap, 1 + w)


@_pair.defjvp
def _pair_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    (x,) = primals
    w, gap = _pair(x)
    dot = jnp.where(x > 1, w / jnp.maximum(x, 1), jnp.exp(-w)) / gap * tangents[0]
    return (w, gap), (dot, dot)


def _guess(log1p: jax.Array) -> jax.Array:
    """Within 4 % of W₀ for x ≥ −1/4, from log(1 + x)."""
    return log1p * (1 - jnp.log1p(log1p) / (2 + log1p))


def _quartic_step(w: jax.Array, z: jax.Array) -> jax.Array:
    """One step of fourth order from the residual z = log(x/w) − w."""
    q = 2 * (1 + w) * (1 + w + 2 * z / 3)
    return w * (1 + z / (1 + w) * (1 + z / (q - 2 * z)))  # where q overflows its quotient is 0


def _gap_near_branch(x: jax.Array) -> jax.Array:
    """Solve 1 + (v − 1)e^v = 1 + e x for v = 1 + W, no side cancelling: x + 1/e is exact up to a known rest."""
    high = jnp.asarray(INVERSE_E, x.dtype)
    rest = INVERSE_E - float(np.asarray(INVERSE_E, x.dtype)) + INVERSE_E_REST
    distance = math.e * (x + high) + math.e * rest  # not (x + high) + rest, which a compiler folds into x + 1/e
    below = distance < -2 * jnp.finfo(x.dtype).eps
    tiny = jnp.finfo(x.dtype).tiny
    distance = jnp.maximum(distance, tiny)
    q = jnp.sqrt(2 * distance)
    v = q * (1 - q * (1 / 3 - q * (11 / 72 - q * 43 / 540)))
    for _ in range(NEWTON_STEPS):
        series = jnp.zeros_like(v)
        for k in range(20, 1, -1):
            series = series * v + (k - 1) / math.factorial(k)
        v = v - (v * series - distance / v) * jnp.exp(-v)
    v = jnp.where(distance > tiny, v, 0)
    return jnp.where(below, jnp.nan, v)
