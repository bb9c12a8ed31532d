"""Other sizes of the Jacobian than the sum of its entries: the largest entry, the spectral and the Frobenius norm.

For softmax, sparsemax and 1.5-entmax alike the Jacobian of p(αs) by s is α(diag g − ggᵀ/G), G = Σg, with g = p for
softmax, 1 on the support for sparsemax and √p for 1.5-entmax. Its off-diagonal entries are not positive and its rows
add up to zero, so that half the sum of the magnitudes is the trace.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import converted, working_dtype
from rc_jax._numerics.roots import implicit_root
from rc_jax.attention.kinds.entmax import entmax15_root, sparsemax_weights
from rc_jax.scale.gradient.rows import logit_rows, shifted

NORMALISERS = ("softmax", "sparsemax", "entmax15")
_checked = arguments.guard(scores=logit_rows, alpha=arguments.positive, normaliser=arguments.one_of(NORMALISERS))


@_checked
def jacobian_trace(
    scores: Float[Array, "... score"], alpha: ArrayLike, normaliser: str = "softmax"
) -> Float[Array, "..."]:
    """Trace of the Jacobian of a normaliser, which is half the sum of the magnitudes of its entries.

    Formula: α(G − Σg²/G). Softmax: α(1 − Σp²), `gradient_norm`; sparsemax with k keys: α(k − 1); 1.5-entmax:
    α(Σ√p − 1/Σ√p). For standard normal scores its mean is E Σ p s for all three, and never falls with α.

    Args:
        scores: s, dimensionless; the last axis is normalised; −inf hides a key.
        alpha: α > 0, a scalar or any shape that broadcasts with the leading axes of `scores`.
        normaliser: "softmax", "sparsemax" or "entmax15".

    Returns:
        The trace, in the dtype of `scores`; shape of alpha broadcast with `scores.shape[:-1]`.

    Source: Su Jianlin, kexue.fm/archives/9812, for softmax; Peters, Niculae and Martins (2019) for the Jacobians.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import jacobian_trace
        >>> print(jacobian_trace(jnp.array([1.0, 0.5, -1.0]), 1.0, "sparsemax"))  # two keys in the support
        1.0
    """
    return _trace(*_weights(scores, alpha, normaliser)).astype(scores.dtype)


@_checked
def jacobian_largest_entry(
    scores: Float[Array, "... score"], alpha: ArrayLike, normaliser: str = "softmax"
) -> Float[Array, "..."]:
    """Largest magnitude among the entries of a normaliser's Jacobian; it stands at the largest score, on the diagonal.

    Formula: α g₁(1 − g₁/G). Softmax: α p₁(1 − p₁) with p₁ the largest probability, at most α/4. It is the largest,
    for p_i p_j ≤ p_i(1 − p_i), and p_i(1 − p_i) with p_i ≤ p₁, p_i ≤ 1 − p₁ is at most p₁(1 − p₁). Arguments, result's
    shape and errors as `jacobian_trace`.
    Where several share the largest score the derivative is one-sided: the first of them counts as the largest.

    Source: a reader's proposal under kexue.fm/archives/9812.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import jacobian_largest_entry
        >>> print(jacobian_largest_entry(jnp.array([0.0, 0.0]), 2.0))  # α/4
        0.5
    """
    tail, factor = _weights(scores, alpha, normaliser)
    rest = tail.sum(-1)
    return (factor * (rest / (1 + rest))).astype(scores.dtype)


@_checked
def jacobian_frobenius_norm(
    scores: Float[Array, "... score"], alpha: ArrayLike, normaliser: str = "softmax"
) -> Float[Array, "..."]:
    """Frobenius norm of a normaliser's Jacobian, without forming it.

    Formula: α √(Σ g_i²(1 − g_i/G)² + Σ_{i≠j} g_i²g_j²/G²); softmax: α √(Σp² − 2Σp³ + (Σp²)²), sparsemax with k keys:
    α √(k − 1). Arguments, result's shape and errors as `jacobian_trace`.

    Source: this package's own.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import jacobian_frobenius_norm
        >>> print(jacobian_frobenius_norm(jnp.array([0.0, 0.0]), 2.0))  # the Jacobian is (1/2)[[1, -1], [-1, 1]]
        1.0
    """
    return _frobenius(*_weights(scores, alpha, normaliser)).astype(scores.dtype)


@_checked
def jacobian_spectral_norm(
    scores: Float[Array, "... score"], alpha: ArrayLike, normaliser: str = "softmax"
) -> Float[Array, "..."]:
    """Spectral norm of a normaliser's Jacobian, its largest eigenvalue, from the secular equation.

    Formula: α x, where x between the two largest g solves the secular equation Σ g_i/(g_i − x) = 0. No matrix is
    formed. The norm is between α p₁(1 − p₁) and twice that for softmax, and α for sparsemax. Arguments, result's shape
    and errors as `jacobian_trace`.
    Differentiable to any order where the eigenvalue is simple; where three or more share the largest score it is not,
    and the derivative given is that of one eigenvector.

    Source: this package's own; the secular equation is Golub (1973).

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax.scale import jacobian_spectral_norm
        >>> print(f"{jacobian_spectral_norm(jnp.zeros(5), 2.0):.4f}")  # (2/5) times a projection
        0.4000
    """
    return _spectral(*_weights(scores, alpha, normaliser)).astype(scores.dtype)


@jax.jit
def _trace(tail: jax.Array, factor: jax.Array) -> jax.Array:
    """α(G − Σg²/G) from `_relative_weights`."""
    rest, squares = tail.sum(-1), (tail * tail).sum(-1)
    return factor * ((2 * rest + jnp.maximum(rest * rest - squares, 0)) / (1 + rest))


@jax.jit
def _frobenius(tail: jax.Array, factor: jax.Array) -> jax.Array:
    """The norm, with the g_i of `tail` divided by the largest of them, whose square could underflow."""
    largest = tail.max(-1)
    unit = jnp.where(largest > 0, jax.lax.stop_gradient(largest), 1)
    total, share = 1 + tail.sum(-1), tail / unit[..., None]
    squares = share * share
    rest = 1 - tail / total[..., None]
    # Σ g_i²(1 − g_i/G)², in which i = 1 is apart, and Σ_{i≠j} g_i²g_j²/G²
    diagonal = (share.sum(-1) / total) ** 2 + (squares * rest * rest).sum(-1)
    second, fourth = squares.sum(-1), (squares * squares).sum(-1)
    off_diagonal = (2 * second + unit * unit * jnp.maximum(second * second - fourth, 0)) / (total * total)
    return factor * unit * jnp.where(largest > 0, jnp.sqrt(jnp.where(largest > 0, diagonal + off_diagonal, 1)), 0)


@jax.jit
def _spectral(tail: jax.Array, factor: jax.Array) -> jax.Array:
    """The largest eigenvalue of the Jacobian, from its eigenvector."""
    return factor * _at_eigenvector(tail, _leading(tail))


def _quotient(tail: jax.Array, others: jax.Array) -> jax.Array:
    """Rayleigh's quotient vᵀJv/vᵀv for v with 1 at the largest weight and the given entries at the others."""
    rest, mixed = tail.sum(-1), (tail * others).sum(-1)
    # the weighted variance of v about its weighted mean, with 1 − mean formed without cancellation
    mean, below = (1 + mixed) / (1 + rest), (rest - mixed) / (1 + rest)
    spread = below * below + (tail * (others - mean[..., None]) ** 2).sum(-1)
    return spread / (1 + (others * others).sum(-1))


@jax.custom_jvp
def _at_eigenvector(tail: jax.Array, others: jax.Array) -> jax.Array:
    """`_quotient` at an eigenvector that belongs to the weights."""
    return _quotient(tail, others)


@_at_eigenvector.defjvp
def _at_eigenvector_jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    """At an eigenvector the quotient is stationary in v, so its derivative is that of J with v held constant."""
    tail, others = primals
    slope = jax.jvp(lambda tail: _quotient(tail, others), (tail,), (tangents[0],))[1]
    return _at_eigenvector(tail, others), slope


def _leading(tail: jax.Array) -> jax.Array:
    """The leading eigenvector of diag g − ggᵀ/G, scaled to 1 at the largest weight: its other entries.

    Secular equation (Golub 1973), in y = (x − g₂)/(1 − g₂) for the eigenvalue x between g₂ and g₁ = 1:

        y/(1 − y) = Σ_{i>1} g_i r_i,   r_i = (1 − g₂)y/(g₂ − g_i + (1 − g₂)y).

    With u = log[y/(1 − y)/g₂] both sides are divided by g₂, so that no term underflows before the scores make it. The
    root is where u = log Σ g_i r_i/g₂, and the entries of the eigenvector are −g_i r_i/Σ g_j r_j.
    """
    u, converged = implicit_root(_imbalance, jnp.log(_shares(tail).sum(-1)), tail)
    terms = _secular_terms(jnp.where(converged, u, jnp.nan), tail)
    return -terms / terms.sum(-1, keepdims=True)


def _imbalance(u: jax.Array, tail: jax.Array) -> jax.Array:
    """Difference of the logarithms of both sides of the secular equation."""
    return u - jnp.log(_secular_terms(u, tail).sum(-1))


def _secular_terms(u: jax.Array, tail: jax.Array) -> jax.Array:
    """g_i r_i/g₂ of the secular equation, where y = g₂e^u/(1 + g₂e^u)."""
    second, shares = tail.max(-1), _shares(tail)
    gap = jnp.where(second > 1, 0, 1 - second)  # the second may be rounded to more than the first
    step = (gap * jnp.exp(u) / (1 + second * jnp.exp(u)))[..., None]  # (1 − g₂)y/g₂
    below = (second[..., None] - tail) / jnp.where(second > 0, second, 1)[..., None]  # (g₂ − g_i)/g₂
    is_tie = below + step == 0  # with the largest weight: r_i = 1
    return shares * jnp.where(is_tie, 1, step / jnp.where(is_tie, 1, below + step))


def _shares(tail: jax.Array) -> jax.Array:
    """g_i/g₂; equal numbers for a row on one key, for which any vector gives the norm 0."""
    second = tail.max(-1, keepdims=True)
    return jnp.where(second > 0, tail / jnp.where(second > 0, second, 1), 1 / tail.shape[-1])


def _weights(scores: jax.Array, alpha: ArrayLike, normaliser: str) -> tuple[jax.Array, jax.Array]:
    return _relative_weights(scores, converted("alpha", alpha, working_dtype(scores.dtype)), normaliser)


@functools.partial(jax.jit, static_argnums=2)
def _relative_weights(scores: jax.Array, alpha: jax.Array, normaliser: str) -> tuple[jax.Array, jax.Array]:
    """`tail`, every g over the largest g₁ with 0 in the place of g₁, and `factor`, α g₁.

    With these g, 1 included, J = factor·(diag g − ggᵀ/G). The derivative of g₁ is in `factor` alone.
    """
    logits, is_top, alpha = shifted(scores, alpha)
    g = _SHAPES[normaliser](logits)
    top = jnp.where(is_top, g, 0).sum(-1)
    size = top / g.sum(-1) if normaliser == "softmax" else top
    return jnp.where(is_top, 0, g / top[..., None]), alpha * size


def _support(logits: jax.Array) -> jax.Array:
    return (sparsemax_weights(logits) > 0).astype(logits.dtype)


_SHAPES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "softmax": jnp.exp,
    "sparsemax": _support,
    "entmax15": entmax15_root,
}
