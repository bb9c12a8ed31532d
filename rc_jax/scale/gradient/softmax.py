"""The norm of softmax's Jacobian at a given scale, for given scores."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax.scale.gradient.rows import logit_rows, top_and_tail


@arguments.guard(scores=logit_rows, alpha=arguments.positive)
def gradient_norm(scores: Float[Array, "... score"], alpha: ArrayLike) -> Float[Array, "..."]:
    """Size of softmax's Jacobian: half the sum of |∂p_i/∂s_j| for p = softmax(αs) over the last axis.

    Formula: ½‖J‖₁ = α(1 − Σ_i p_i²), with 1 − Σp² written as a sum of products of different probabilities, so that it
    keeps its digits when one probability is nearly 1. Unchanged when a constant is added to the scores.

    Args:
        scores: s, dimensionless; the last axis is the softmax's; −inf hides a key.
        alpha: α > 0, a scalar or any shape that broadcasts with the leading axes of `scores`.

    Returns:
        The norm, in the dtype of `scores`; shape of alpha broadcast with `scores.shape[:-1]`.

    Source: Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import gradient_norm
        >>> print(gradient_norm(jnp.array([0.0, 0.0]), 2.0))  # p = (1/2, 1/2): 2(1 - 1/2)
        1.0
    """
    top, tail, alpha = top_and_tail(scores, alpha)
    rest = jnp.exp(tail)
    t = rest.sum(-1)
    pairs = 2 * top * t + jnp.maximum(t * t - (rest * rest).sum(-1), 0)
    return (alpha * (pairs / (top + t) / (top + t))).astype(scores.dtype)


@arguments.guard(scores=logit_rows, alpha=arguments.positive)
def log_gradient_norm(scores: Float[Array, "... score"], alpha: ArrayLike) -> Float[Array, "..."]:
    """Logarithm of `gradient_norm`, finite where the norm itself underflows.

    Formula: log α + log(1 − Σ_i p_i²). Arguments, result's shape and errors as `gradient_norm`.

    Source: Su Jianlin, kexue.fm/archives/9812; in logarithms, this package's own.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import log_gradient_norm
        >>> print(f"{log_gradient_norm(jnp.array([0.0, -1.0]), 1e3):.3f}")  # log(2e3) - 1e3
        -992.399
    """
    top, tail, alpha = top_and_tail(scores, alpha)
    log_t = jax.nn.logsumexp(tail, axis=-1)
    share = jnp.exp(tail - jnp.where(jnp.isneginf(log_t), 0, log_t)[..., None])  # of each score in the tail
    others = jnp.exp(log_t) * jnp.maximum(1 - (share * share).sum(-1), 0)
    log_z = jnp.log(top + jnp.exp(log_t))
    return (jnp.log(alpha) + log_t + jnp.log(2 * top + others) - 2 * log_z).astype(scores.dtype)
