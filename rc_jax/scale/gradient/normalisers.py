"""Normalisers other than softmax: sparsemax, 1.5-entmax, and powers, whose scale cancels."""

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common, converted, working_dtype
from rc_jax.attention.kinds.entmax import entmax15_root, sparsemax_weights
from rc_jax.scale.gradient.rows import logit_rows, score_rows, shifted


@arguments.guard(scores=logit_rows, alpha=arguments.positive)
def sparsemax(scores: Float[Array, "... score"], alpha: ArrayLike) -> Float[Array, "..."]:
    """The point of the probability simplex nearest to αs: linear in αs where it is not zero.

    Formula: p = max(αs − τ, 0) with Σ p = 1; τ exactly, by sorting. On the k keys of its support the Jacobian is
    α(I − 11ᵀ/k), zero elsewhere.

    Args:
        scores: s, dimensionless; the last axis is normalised; −inf hides a key.
        alpha: α > 0, a scalar or any shape that broadcasts with the leading axes of `scores`.

    Returns:
        p, in the dtype of `scores`; shape of alpha broadcast with `scores.shape[:-1]`, then the score axis.

    Source: Martins and Astudillo (2016), algorithm 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import sparsemax
        >>> print(sparsemax(jnp.array([1.0, 0.5, -1.0]), 1.0))
        [0.75 0.25 0.  ]
    """
    logits, _, _ = shifted(scores, alpha)
    return sparsemax_weights(logits).astype(scores.dtype)


@arguments.guard(scores=logit_rows, alpha=arguments.positive)
def entmax15(scores: Float[Array, "... score"], alpha: ArrayLike) -> Float[Array, "..."]:
    """1.5-entmax of αs, half way from softmax (1) to sparsemax (2): quadratic in αs where it is not zero.

    Formula: p = max(αs/2 − τ, 0)² with Σ p = 1; τ exactly, by sorting. With g = √p the Jacobian is
    α(diag g − ggᵀ/Σg). Arguments, result's shape and errors as `sparsemax`.

    Source: Peters, Niculae and Martins (2019), algorithm 2.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import entmax15
        >>> print(entmax15(jnp.array([0.0, 0.0, 0.0, 0.0, -1.0]), 1.0))
        [0.25 0.25 0.25 0.25 0.  ]
    """
    logits, _, _ = shifted(scores, alpha)
    return jnp.square(entmax15_root(logits)).astype(scores.dtype)


@arguments.guard(scores=score_rows, power=arguments.scalar(arguments.bounded(1)))
def power_gradient_norm(scores: Float[Array, "... score"], power: ArrayLike = 6.0) -> Float[Array, "..."]:
    """Half the sum of |∂a_i/∂s_j|, the size of the Jacobian of a = |s|^p/Σ|s|^p.

    Formula: ½‖J‖₁ = p Σ_j a_j(1 − a_j)/|s_j|, from J_ij = p a_i(δ_ij − a_j)/s_j. J(ts) = J(s)/t: the derivative of
    a(ts) by s is the same for every t, so that no scale is better than another.

    Args:
        scores: s; the last axis is normalised.
        power: p ≥ 1, one number; may be traced.

    Returns:
        The norm, one over the unit of `scores`, in their dtype, without the last axis; NaN for a row of zeros. Its
        own derivative by a score that is zero is not finite for a power below 2, other than 1.

    Source: this package's own, for a reader's proposal under kexue.fm/archives/9812.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import power_gradient_norm
        >>> print(power_gradient_norm(jnp.array([2.0, -2.0])))  # 6 * 2 * (1/2)(1/2)/2
        1.5
    """
    return _power_gradient(*_relative(scores, power)).astype(scores.dtype)


@arguments.guard(n=arguments.bounded(2), power=arguments.bounded(1))
def annealed_power_gradient(n: ArrayLike, power: ArrayLike = 6.0) -> Float[Array, "..."]:
    """Mean of `power_gradient_norm` over n standard normal scores, in the annealed approximation.

    Formula: p(m_{p−1}/m_p − m_{2p−1}/(n m_p²)), m_k = E|s|^k = 2^{k/2} Γ((k+1)/2)/√π. For p = 6 it is
    2.553 − 81.7/n: it hardly depends on n.

    Args:
        n: number of scores, at least 2; need not be whole.
        power: p ≥ 1.

    Returns:
        The mean, in the arguments' dtype, their shapes broadcast.

    Source: this package's own.

    Example:
        >>> from rc_jax.scale import annealed_power_gradient
        >>> print(f"{annealed_power_gradient(1e9):.4f}")  # 16 √(2/π)/5
        2.5532
    """
    dtype, (n, power) = as_common(n=n, power=power)
    log_moment = _log_moment(power)
    first = jnp.exp(_log_moment(power - 1) - log_moment)
    return (power * (first - jnp.exp(_log_moment(2 * power - 1) - 2 * log_moment) / n)).astype(dtype)


@jax.jit
def _power_gradient(relative: jax.Array, unit: jax.Array, power: jax.Array) -> jax.Array:
    """P Σ_j a_j(1 − a_j)/|s_j| from scores relative to the largest, which is the unit."""
    is_top = jax.nn.one_hot(relative.argmax(-1), relative.shape[-1], dtype=bool)
    raised = relative**power
    rest = jnp.where(is_top, 0, raised).sum(-1, keepdims=True)
    total = rest + jnp.where(is_top, raised, 0).sum(-1, keepdims=True)
    others = jnp.where(is_top, rest, total - raised)  # what the other scores hold, without cancellation at the top
    safe = jnp.where(total > 0, total, jnp.nan)
    return power * (relative ** (power - 1) / safe * (others / safe)).sum(-1) / unit[..., 0]


def _relative(scores: jax.Array, power: ArrayLike) -> tuple[jax.Array, jax.Array, jax.Array]:
    """|s| over its largest, that largest, and the power, in the working precision.

    XLA may multiply by one over the largest, which must not underflow: halving eight times first keeps it in range.
    """
    scores = jnp.asarray(scores)
    working = working_dtype(scores.dtype)
    size = jnp.abs(scores.astype(working))
    largest = size.max(-1, keepdims=True)
    unit = jnp.where(largest > 0, largest, 1)
    less = jnp.where(largest > 1, 2.0**-8, 1).astype(working)
    return size * less / (unit * less), unit, converted("power", power, working)


def _log_moment(k: jax.Array) -> jax.Array:
    """Logarithm of E|s|^k for a standard normal s."""
    return k / 2 * math.log(2) + gammaln((k + 1) / 2) - math.log(math.pi) / 2
