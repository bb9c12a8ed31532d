"""Measures of sparsity beside S: Gini, Hoyer, entropies of every order and kurtosis; larger is sparser.

All measures take magnitudes, do not change with scale, and count a row of zeros as even.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.stable import expm1_ratio
from rc_jax.sparsity.measures import check_axis, check_weights, of_rows, over_mean, relative


@arguments.guard(a=check_weights, axis=check_axis)
def gini(a: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    r"""Gini index of weights: G = Σ_i (2i − n − 1)|a|_(i) / (n Σ|a|), magnitudes in ascending order.

    Half the mean difference of two entries over their mean; 0 when all are equal, 1 − 1/n when one holds everything.
    For many keys and f = exp it is erf(γ/2).

    Args:
        a: Weights of any shape.
        axis: The axis of the n weights.

    Returns:
        G, with `axis` removed; a pure number.

    Source: Gini (1912); as a measure of sparsity, Hurley and Rickard (2009).

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> print(sparsity.gini(jnp.array([0.0, 0.0, 3.0, 0.0])))
        0.75
    """
    return of_rows(_gini, "a", a, axis)


@arguments.guard(a=check_weights, axis=check_axis)
def hoyer(a: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    r"""Hoyer's sparsity: (√n − ‖a‖₁/‖a‖₂)/(√n − 1) = (1 − S)/(1 − 1/√n), from 0 (all equal) to 1 (a single entry).

    A row of one weight gets 0. For many keys and f = exp it is 1 − e^{−γ²/2}.

    Args:
        a: Weights of any shape.
        axis: The axis of the n weights.

    Returns:
        The measure, with `axis` removed; a pure number.

    Source: Hoyer (2004).

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> print(sparsity.hoyer(jnp.array([0.0, 0.0, 3.0, 0.0])))
        1.0
    """
    return of_rows(_hoyer, "a", a, axis)


@arguments.guard(a=check_weights, axis=check_axis)
def entropy_sparsity(a: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    r"""One less the normalised entropy: 1 − H(p)/log n with p = |a|/Σ|a|, from 0 (all equal) to 1 (a single entry).

    A row of one weight gets 0. For many keys and f = exp it is γ²/(2 log n).

    Args:
        a: Weights of any shape.
        axis: The axis of the n weights.

    Returns:
        The measure, with `axis` removed; a pure number.

    Source: textbook; unnormalised, log n − H, it is Theil's index.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.entropy_sparsity(jnp.array([0.0, 2.0, 2.0, 0.0])):.6f}")
        0.500000
    """
    return of_rows(_entropy, "a", a, axis)


@arguments.guard(a=check_weights, order=arguments.scalar(arguments.positive), axis=check_axis)
def renyi_sparsity(a: Float[Array, "..."], order: float | Array = 2.0, axis: int = -1) -> Float[Array, "..."]:
    r"""The nats that the Rényi entropy of order q lacks: log n − H_q(p) = log E(a/Ea)^q/(q − 1), p = |a|/Σ|a|.

    q = 1 is Shannon's (log n − H, Theil's index), q = 2 the participation ratio 1/Σp², for which it is −2 log S. From 0
    (all equal) to log n (a single entry); it grows with q. For many keys and f = exp it is qγ²/2. Entries that are
    smaller than the largest by more than the range of the dtype count as 0, which matters for q near 0.

    Args:
        a: Weights of any shape.
        order: q > 0, one number; may be traced.
        axis: The axis of the n weights.

    Returns:
        The measure in nats, with `axis` removed.

    Source: Rényi (1961), for the entropy.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.renyi_sparsity(jnp.array([0.0, 2.0, 2.0, 0.0]), 3.0):.6f}")  # log 2
        0.693147
    """
    return of_rows(_renyi, "a", a, axis, order)


@arguments.guard(a=check_weights, axis=check_axis)
def kurtosis(a: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    r"""Kurtosis about zero: κ₄ = E a⁴/(E a²)², from 1 (all magnitudes equal) to n (a single entry).

    It is the participation of squares, n Σa⁴/(Σa²)². For many keys and f = exp it is e^{4γ²}.

    Args:
        a: Weights of any shape.
        axis: The axis of the n weights.

    Returns:
        κ₄, with `axis` removed; a pure number.

    Source: textbook.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> print(sparsity.kurtosis(jnp.array([0.0, 2.0, -2.0, 0.0])))
        2.0
    """
    return of_rows(_kurtosis, "a", a, axis)


@jax.jit
def _gini(a: Array) -> Array:
    n = a.shape[-1]
    rank = (2 * jnp.arange(1, n + 1, dtype=a.dtype) - n - 1) / n
    _, away = over_mean(a)
    return jnp.mean(jnp.sort(away, axis=-1) * rank.reshape((1,) * (a.ndim - 1) + (n,)), axis=-1)


@jax.jit
def _hoyer(a: Array) -> Array:
    """1 − S from the variance V of |a|/E|a|: S = 1/√(1 + V), and nothing cancels."""
    spread = jnp.mean(jnp.square(over_mean(a)[1]), axis=-1)
    return spread / (1 + spread + jnp.sqrt(1 + spread)) / max(1 - a.shape[-1] ** -0.5, 0.25)  # one weight: 0


@jax.jit
def _entropy(a: Array) -> Array:
    lacks = _renyi(a, jnp.ones((), a.dtype))
    return lacks / max(math.log(a.shape[-1]), 0.5)


@jax.jit
def _renyi(a: Array, order: Array) -> Array:
    """log(1 + cH)/c with c = q − 1, H = E(y^q − 1 − q(y − 1))/c and y = |a|/E|a|, whose terms are all ≥ 0; H at c = 0.

    Elsewhere, where y^q may overflow or 1 + cH is near 0, by log Σ exp.
    """
    # log y from the deviation y − 1 where that has more digits, and terms of H; none where y^q may overflow.
    y, away = over_mean(a)
    c, some = order - 1, y > 0
    logs = jnp.where(some, jnp.log1p(jnp.where(some & (away > -0.5), away, 0)), 0)
    logs = jnp.where(some & (away <= -0.5), jnp.log(jnp.where(some, y, 1)), logs)
    tame = order * jnp.max(logs, axis=-1) < 20
    capped = jnp.where(tame[..., None], logs, 0)
    terms = jnp.where(some, y * capped * expm1_ratio(c * capped), 0) - away
    small = jnp.abs(away) * jnp.maximum(order, 4) < 0.5
    excess = jnp.mean(jnp.where(small, _binomial_rest(jnp.where(small, away, 0), order), terms), axis=-1)
    # log(1 + cH)/c where 1 + cH is far from 0, else by log Σ exp.
    near = tame & (c * excess > -0.5)
    close = excess * _logarithm_quotient(jnp.where(near, c * excess, 0))
    powers = jax.nn.logsumexp(jnp.where(some, order * logs, -jnp.inf), axis=-1) - math.log(a.shape[-1])
    lacks = jnp.maximum(jnp.where(near, close, powers / jnp.where(near, 1, c)), 0)
    return jnp.where(jnp.isnan(excess), jnp.nan, lacks)


def _binomial_rest(d: Array, q: Array) -> Array:
    """((1 + d)^q − 1 − qd)/(q − 1) for small d and qd: q times Σ_{k≥2} (q − 2)…(q − k + 1) d^k/k!."""

    def add(total: Array, k: Array) -> tuple[Array, None]:
        return (1 + total) * d * (q - k + 1) / k, None

    total, _ = lax.scan(add, jnp.zeros_like(d), jnp.arange(22, 2, -1, dtype=d.dtype))
    return q * jnp.square(d) / 2 * (1 + total)


def _logarithm_quotient(x: Array) -> Array:
    """log(1 + x)/x for x > −½, with a gradient at 0: near it by t = x/(2 + x), as log(1 + x) = 2 artanh t."""
    small = jnp.abs(x) < 0.5
    near, away = jnp.where(small, x, 0), jnp.where(small, 1, x)
    terms = jnp.asarray([1 / k for k in range(25, 0, -2)], x.dtype)
    total = jnp.polyval(terms, jnp.square(near / (2 + near)), unroll=1)
    return jnp.where(small, 2 / (2 + near) * total, jnp.log1p(away) / away)


@jax.jit
def _kurtosis(a: Array) -> Array:
    squares = jnp.square(relative(a))
    return jnp.mean(jnp.square(squares), axis=-1) / jnp.square(jnp.mean(squares, axis=-1))
