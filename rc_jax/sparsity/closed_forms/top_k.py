"""Attention that keeps a fixed share of infinitely many keys, those of the largest logits: top-k as n → ∞.

A share κ of the keys is left: those with logits β + γε and ε > z, P(ε > z) = κ, whatever β and γ are.
"""

import math

import jax
import jax.numpy as jnp
from jax.scipy import special
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common


@arguments.guard(gamma=arguments.bounded(0), share=arguments.bounded(0, 1, open_low=True))
def top_share_exponential(gamma: ArrayLike, share: ArrayLike) -> Float[Array, "..."]:
    r"""Sparsity of softmax over the share κ of the keys with the largest logits.

    S² = e^{−γ²} Φ(γ − z)²/Φ(2γ − z) with Φ(−z) = κ, whatever β is: κ at γ = 0, and e^{−γ²} when all keys are kept. With
    R(u) = Φ(−u)/φ(u), Mills' ratio, it is also S² = κ R(z − γ)²/(R(z) R(z − 2γ)), which loses no digits however small
    κ is.

    Args:
        gamma: Standard deviation γ ≥ 0 of all logits of one row, in nats; any shape that broadcasts with `share`.
        share: κ in (0, 1], the number of keys kept over their number.

    Returns:
        S, in the broadcast shape; a pure number.

    Source: this package's own.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.top_share_exponential(1.0, 1.0):.6f} {sparsity.top_share_exponential(1.0, 0.1):.6f}")
        0.606531 0.270075
    """
    dtype, (gamma, share) = as_common(gamma=gamma, share=share, positive=("share",))
    inside = (gamma >= 0) & (share > 0) & (share <= 1)
    capped = jnp.minimum(gamma, 100)  # S is 0 there in every type, and no square overflows
    return jnp.where(inside, jnp.exp(_log_top_share(capped, share)), jnp.nan).astype(dtype)


@jax.jit
def _log_top_share(gamma: Array, share: Array) -> Array:
    few = share < 0.5
    some = jnp.where(few, share, 0.25)
    z = -special.ndtri(some)
    mills = _log_mills(z - gamma) - (_log_mills(z) + _log_mills(z - 2 * gamma)) / 2
    far = -special.ndtri(jnp.where(few | (share == 1), 0.5, share))  # z ≤ 0: both arguments below are positive
    most = -jnp.square(gamma) / 2 + _log_below(gamma - far) - _log_below(2 * gamma - far) / 2
    # At κ = 1 the derivative in κ is 0, and ½ at γ = 0 alone, where log S is ½ log κ.
    whole = jnp.log(jnp.where((share == 1) & (gamma == 0), share, 1)) / 2
    most = jnp.where(share == 1, whole - jnp.square(gamma) / 2, most)
    return jnp.where(few, jnp.log(some) / 2 + mills, most)


def _log_below(x: Array) -> Array:
    """Log Φ(x) for x ≥ 0."""
    return jnp.log1p(-special.erfc(x * 0.5**0.5) / 2)


def _log_mills(u: Array) -> Array:
    """Log (Φ(−u)/φ(u)); its derivative is u − 1/R(u)."""
    right = jnp.log(special.erfcx(jnp.maximum(u, 0) * 0.5**0.5)) + math.log(math.pi / 2) / 2
    below = jnp.minimum(u, 0)
    left = _log_below(-below) + jnp.square(below) / 2 + math.log(2 * math.pi) / 2
    return jnp.where(u < 0, left, right)
