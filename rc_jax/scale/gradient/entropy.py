"""Shannon's and Rényi's entropy of softmax at a given scale, for given scores."""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax.scale.gradient.rows import logit_rows, top_and_tail


@arguments.guard(scores=logit_rows, alpha=arguments.positive)
def softmax_entropy(scores: Float[Array, "... score"], alpha: ArrayLike) -> Float[Array, "..."]:
    """Shannon entropy of p = softmax(αs) over the last axis, in nats.

    Formula: H = −Σ p log p = log Z + Σ p t with t = α(max s − s) ≥ 0 and Z = Σ e^{−t}: a sum of terms that are not
    negative, so that a row on one key keeps the digits of its small entropy. e^H is the number of keys that share it.

    Args:
        scores: s, dimensionless; the last axis is the softmax's; −inf hides a key.
        alpha: α > 0, a scalar or any shape that broadcasts with the leading axes of `scores`.

    Returns:
        H, between 0 and log n, in the dtype of `scores`; shape of alpha broadcast with `scores.shape[:-1]`.

    Source: Su Jianlin, kexue.fm/archives/8823.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import softmax_entropy
        >>> print(f"{jnp.exp(softmax_entropy(jnp.array([1.0, 1.0, 1.0, -9.0]), 3.0)):.4f}")  # three keys share the row
        3.0000
    """
    top, tail, _ = top_and_tail(scores, alpha)
    rest = jnp.exp(tail)
    t = rest.sum(-1)
    fall = jnp.where(jnp.isneginf(tail), 0, tail)  # the largest score itself, or one that weighs nothing
    log_top = jnp.log(top)  # zero, with its derivative
    spread = ((log_top[..., None] - fall) * rest).sum(-1) / (top + t)
    return (jnp.log1p(t / top) + spread).astype(scores.dtype)


@arguments.guard(scores=logit_rows, alpha=arguments.positive)
def renyi_entropy(scores: Float[Array, "... score"], alpha: ArrayLike) -> Float[Array, "..."]:
    """Rényi's entropy of order 2 of p = softmax(αs) over the last axis, in nats.

    Formula: R = −log Σ p² = 2 log Z(α) − log Z(2α); e^R is the participation number 1/Σp². Never above Shannon's.
    Arguments, result's shape and errors as `softmax_entropy`.

    Source: Rényi (1961), for the participation Σp² of Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import renyi_entropy
        >>> print(f"{renyi_entropy(jnp.array([0.0, 1.0]), jnp.log(3.0)):.4f}")  # p = (1/4, 3/4): -log(10/16)
        0.4700
    """
    top, tail, _ = top_and_tail(scores, alpha)
    rest = jnp.exp(tail)
    once, twice = rest.sum(-1) / top, (rest * rest).sum(-1) / (top * top)
    return (2 * jnp.log1p(once) - jnp.log1p(twice)).astype(scores.dtype)
