"""One scale for all rows of a decoder, whose row i sees i keys: the n to choose it for, and its loss of gradient."""

import numpy as np
from jax.scipy.special import digamma
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common, common_with_dim
from rc_jax.scale.closed_forms.annealed import at_least_three, at_least_two
from rc_jax.scale.closed_forms.optimum import optimal_scale


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

    Source: this package's own.

    Example:
        >>> from rc_jax.scale import decoder_scale
        >>> print(f"{decoder_scale(1024):.4f}")
        1.7569
    """
    dtype, (length,), dim = common_with_dim(dim, length=length)
    return optimal_scale(effective_keys(length), dim).astype(dtype)
