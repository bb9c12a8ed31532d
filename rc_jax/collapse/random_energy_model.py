"""Attention on very many tokens whose logits grow as √(log T): the two sides of its transition, in closed form.

With T independent logits of standard deviation β√(log T), one row of attention is Derrida's random energy model. There
are about T^{1 − s²/2} logits near s√(log T), for s < √2, and each weighs T^{βs}: the sum over s of T^{1 − s²/2 + βs} is
at s = β where that is below √2. Beyond, the largest few logits are the sum.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common, converted

_BETA = arguments.bounded(0)


@arguments.guard(beta=_BETA)
def random_energy_participation(beta: ArrayLike) -> Float[Array, "..."]:
    """E Σp² of a row of attention, T → ∞, logits iid of standard deviation β√(log T): 0 up to β = √2, then 1 − √2/β.

    Gaussian integration by parts gives σ(1 − E Σp²) = d/dσ E log Z, and E log Z/log T is 1 + β²/2 below √2 and √2 β
    above. Below √2 no key has a share that counts; above, a few have all of it. The limit is slow: at β = √2 the mean
    is still 0.17 at T = 65 536.

    Args:
        beta: β ≥ 0; any shape.

    Returns:
        The participation, in the argument's dtype and shape.

    Raises:
        TypeError, ValueError: β is not real or not finite, or is negative.

    Source: Derrida 1981; for attention, Giorlandino & Goldt 2025.

    Example:
        >>> [round(float(random_energy_participation(beta)), 4) for beta in (1.0, 2.0)]
        [0.0, 0.2929]
    """
    dtype, (beta,) = as_common(beta=beta)
    above = beta > 2**0.5
    return jnp.where(above, 1 - 2**0.5 / jnp.where(above, beta, 2), 0).astype(dtype)


@arguments.guard(beta=_BETA)
def random_energy_entropy(beta: ArrayLike) -> Float[Array, "..."]:
    """Entropy of a row of attention over log T, T → ∞, logits iid of standard deviation β√(log T): 1 − β²/2, then 0.

    log Z less the mean logit under p, each over log T: 1 + β²/2 and β² below β = √2; √2 β and √2 β above.

    Args, errors: as in `random_energy_participation`.

    Source: Derrida 1981; for attention, Giorlandino & Goldt 2025.

    Example:
        >>> [round(float(random_energy_entropy(beta)), 4) for beta in (1.0, 2.0)]
        [0.5, 0.0]
    """
    dtype, (beta,) = as_common(beta=beta)
    return jnp.maximum(1 - jnp.square(beta) / 2, 0).astype(dtype)


@arguments.guard(beta=_BETA, strength=arguments.bounded(0), tokens=arguments.integer(2), layers=arguments.integer(0))
def random_energy_correlation(beta: ArrayLike, strength: ArrayLike, *, tokens: int, layers: int) -> Float[Array, "..."]:
    """Mean-field correlation of the tokens after layers X ← λX + SA(X), normalised, from orthogonal tokens.

    q ← ((1 + λ²)q + (1 − q)/T)/(λ² + q + (1 − q)s),   s = min(1, T^{β²(1 − q) − 1}),   q₀ = 0

    Rows of attention are taken as independent of each other, at infinite width. The logits of a row have standard
    deviation β√(1 − q)√(log T) among keys of mean correlation q, and s is the annealed mean of Σp²: right for small β.

    Args:
        beta: β ≥ 0, the standard deviation of the first layer's logits over √(log T); any shape.
        strength: λ ≥ 0, the factor of the skip connection; broadcast.
        tokens: T, at least 2.
        layers: number of layers.

    Returns:
        q after the last layer, 0 to 1, in the arguments' dtype, their shapes broadcast.

    Raises:
        TypeError, ValueError: an argument is not real, not finite or negative, or a size is not an integer.

    Source: this package's own approximation, on Derrida 1981.

    Example:
        >>> round(float(random_energy_correlation(0.5, 1.0, tokens=256, layers=8)), 2)
        0.48
    """
    dtype, (beta, square) = as_common(beta=beta, strength=strength)
    square, count = jnp.square(square), converted("tokens", tokens, beta.dtype)
    log_tokens = jnp.log(count)

    def layer(_: Array, q: Array) -> Array:
        concentration = jnp.exp(jnp.minimum(0, (jnp.square(beta) * (1 - q) - 1) * log_tokens))
        return ((1 + square) * q + (1 - q) / count) / (square + q + (1 - q) * concentration)

    return jax.lax.fori_loop(0, layers, layer, jnp.zeros_like(beta)).astype(dtype)
