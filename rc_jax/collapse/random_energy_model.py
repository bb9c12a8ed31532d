"""Attention on very many tokens whose logits grow as √(log T): the two sides of its transition, in closed form.

With T independent logits of standard deviation β√(log T), one row of attention is Derrida's random energy model. There
are about T^{1 − s²/2} logits near s√(log T), for s < √2, and each weighs T^{βs}: the sum over s of T^{1 − s²/2 + βs} is
at s = β where that is below √2. Beyond, the largest few logits are the sum.
"""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common


@arguments.guard(beta=arguments.bounded(0))
def random_energy_participation(beta: ArrayLike) -> Float[Array, "..."]:
    """E Σp² of a row of attention, T → ∞, logits iid of standard deviation β√(log T): 0 up to β = √2, then 1 − √2/β.

    Gaussian integration by parts gives σ(1 − E Σp²) = d/dσ E log Z, and E log Z/log T is 1 + β²/2 below √2 and √2 β
    above. Below √2 no key has a share that counts; above, a few have all of it. The limit is slow: at β = √2 the mean
    is still 0.17 at T = 65 536.

    Args:
        beta: β ≥ 0; any shape.

    Returns:
        The participation, in the argument's dtype and shape.

    Source: Derrida 1981; for attention, Giorlandino & Goldt 2025.

    Example:
        >>> [round(float(random_energy_participation(beta)), 4) for beta in (1.0, 2.0)]
        [0.0, 0.2929]
    """
    dtype, (beta,) = as_common(beta=beta)
    below = beta <= 2**0.5  # NaN is not, and stays NaN
    return jnp.where(below, 0, 1 - 2**0.5 / jnp.where(below, 2, beta)).astype(dtype)
