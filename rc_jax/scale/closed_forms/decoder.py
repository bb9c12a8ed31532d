"""One scale for all rows of a decoder, whose row i sees i keys: the n to choose it for, and its loss of gradient."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common, common_with_dim, converted
from rc_jax.scale.closed_forms.annealed import at_least_three, at_least_two, concentration
from rc_jax.scale.closed_forms.optimum import optimal_scale, optimise_scale
from rc_jax.scale.results import DecoderLoss


@arguments.guard(length=at_least_two)
def effective_keys(length: ArrayLike) -> Float[Array, "..."]:
    """The number of keys for which to choose one scale for all rows 2 … L of a decoder: their harmonic mean.

    Formula: n_h = (L − 1)/(H_L − 1), H_L = 1 + ½ + … + 1/L; about L/log L. The annealed gradient of a row with i keys
    is α(1 − C(α)/i), so that its mean over the rows is that of a single row with n_h keys, whatever the law of the
    scores. (Row 1 has one key and no gradient.)

    Args:
        length: L, the longest row, at least 2, any shape; need not be whole.

    Returns:
        n_h, in the dtype and shape of `length`.

    Raises:
        TypeError: if length is not real.
        ValueError: if length < 2.

    Source: this package's own, for the proposal n = L/2 of Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> from rc_jax.scale import effective_keys
        >>> print(f"{effective_keys(3):.4f} {effective_keys(1024):.1f}")  # 2/(1/2 + 1/3)
        2.4000 157.2
    """
    dtype, (length,) = as_common(length=length)
    return ((length - 1) / (digamma(length + 1) - (1 - np.euler_gamma))).astype(dtype)


@arguments.guard(length=at_least_two, dim=at_least_three)
def decoder_scale(length: ArrayLike, dim: ArrayLike | None = None) -> Float[Array, "..."]:
    """The one scale that maximises the annealed softmax gradient summed over all rows of a decoder.

    Formula: `optimal_scale` of `effective_keys`(L) keys. The sum counts what annealing says of short rows, where it can
    be negative and is not to be trusted; with such rows counted as zero the best n is larger, a quarter of L.

    Args:
        length: L, the longest row, at least 2, any shape.
        dim: None for Gaussian scores, or the dimension d ≥ 3 of vectors whose cosines are the scores; may be traced.

    Returns:
        The scale, in the arguments' dtype, their shapes broadcast.

    Raises:
        TypeError: if an argument is not real.
        ValueError: if length < 2, dim < 3, or the shapes do not broadcast.

    Source: this package's own.

    Example:
        >>> from rc_jax.scale import decoder_scale
        >>> print(f"{decoder_scale(1024):.4f}")
        1.7569
    """
    dtype, (length,), dim = common_with_dim(dim, length=length)
    return optimal_scale(effective_keys(length), dim).astype(dtype)


@arguments.guard(alpha=arguments.positive, n=at_least_two, dim=at_least_three)
def scale_loss(
    alpha: ArrayLike, n: ArrayLike, dim: ArrayLike | None = None, floored: bool = False
) -> Float[Array, "..."]:
    """Relative loss of a row of n keys: its annealed softmax gradient at scale α against that at its own best scale.

    Formula: 1 − f(α, n)/f(α*(n), n), f = `annealed_objective`. Zero at α*(n); above 1 where α is so large for n that
    the annealed gradient is negative, which no gradient α(1 − Σp²) is: `floored` counts it as zero, and the loss as 1.

    Args:
        alpha: α > 0.
        n: number of keys, at least 2; need not be whole.
        dim: None for Gaussian scores, or the dimension d ≥ 3 of vectors whose cosines are the scores; may be traced.
        floored: whether a negative gradient counts as zero.

    Returns:
        The loss, a share of the largest gradient, in the arguments' dtype, their shapes broadcast.

    Raises:
        TypeError: if an argument is not real or `floored` not a bool.
        ValueError: if α <= 0, n < 2, dim < 3, or the shapes do not broadcast.

    Source: this package's own, for a proposal of Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> from rc_jax.scale import optimal_scale, scale_loss
        >>> print(f"{scale_loss(optimal_scale(512), 1024):.4f} {scale_loss(optimal_scale(512), 4):.1f}")
        0.0200 63.5
    """
    dtype, (wide_alpha, wide_n), wide_dim = common_with_dim(dim, alpha=alpha, n=n)
    working = wide_n.dtype
    best = optimise_scale(converted("n", n, working), None if dim is None else converted("dim", dim, working)).value
    return _loss(wide_alpha, wide_n, wide_dim, best, floored).astype(dtype)


@arguments.guard(alpha=arguments.positive, length=arguments.integer(2), dim=arguments.scalar(at_least_three))
def decoder_loss(alpha: ArrayLike, length: int, dim: ArrayLike | None = None, floored: bool = False) -> DecoderLoss:
    """Loss of a decoder of L rows with one scale α for all: mean and worst of `scale_loss` over n = 2 … L.

    Memory: alpha's size times L.

    Args:
        alpha: α > 0, any shape.
        length: L, the longest row, at least 2.
        dim: None for Gaussian scores, or the dimension d ≥ 3 of vectors whose cosines are the scores; may be traced.
        floored: whether a negative gradient counts as zero.

    Returns:
        Mean, worst and where it is, each in alpha's dtype and shape.

    Raises:
        TypeError: if alpha or dim is not real, length not an integer or `floored` not a bool.
        ValueError: if α <= 0, length < 2 or dim < 3.

    Source: this package's own, for a proposal of Su Jianlin, kexue.fm/archives/9812.

    Example:
        >>> from rc_jax.scale import decoder_loss, optimal_scale
        >>> loss = decoder_loss(optimal_scale(512), 1024, floored=True)
        >>> print(f"{loss.mean:.4f} {loss.worst:.1f} {loss.worst_row:.0f}")
        0.1079 1.0 2
    """
    dtype, (alpha,) = as_common(alpha=alpha)
    rows = jnp.arange(2, length + 1).astype(alpha.dtype)
    dim = None if dim is None else converted("dim", dim, alpha.dtype)
    best = optimise_scale(rows, dim).value
    _, (wide_alpha, wide_rows), wide_dim = common_with_dim(dim, alpha=alpha[..., None], rows=rows)
    loss = _loss(wide_alpha, wide_rows, wide_dim, best, floored)
    return DecoderLoss(*(x.astype(dtype) for x in (loss.mean(-1), loss.max(-1), rows[loss.argmax(-1)])))


def _loss(alpha: Array, n: Array, dim: Array | None, best: Array, floored: bool) -> Array:
    """1 − f(α, n)/best for arrays of one shape and dtype; `best` has a shape that broadcasts with it."""
    excess = concentration(alpha, dim) - jnp.log(n)
    value = -alpha * jnp.expm1(jnp.minimum(excess, 0) if floored else excess)
    return 1 - value / jnp.broadcast_to(best, value.shape)
