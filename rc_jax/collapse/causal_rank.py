"""Smallest singular values of causal attention matrices: uniform rows, decays, and softmax of Gaussian scores."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common

_AIRY = 2.338107410459767 / 2  # half of the first zero of Ai, without its sign


@arguments.guard(n=arguments.bounded(1))
def uniform_smallest_singular_value(n: ArrayLike) -> Float[Array, "..."]:
    """σ_min of uniform causal attention on n tokens, the Cesàro matrix: (1 + 1.169 n^(−2/3))/(2n) to its next order.

    The inverse has two diagonals, and the vector that it makes longest has an envelope that solves Airy's equation. The
    form is a WKB approximation, not a proof.

    Args:
        n: Number of tokens, at least 1; any shape.

    Returns:
        σ_min, in the argument's dtype and shape.

    Source: docs/weights.md derives it.

    Example:
        >>> round(float(uniform_smallest_singular_value(256)) * 512, 3)
        1.029
    """
    dtype, (n,) = as_common(n=n)
    return ((1 + _AIRY * n ** (-2 / 3)) / (2 * n)).astype(dtype)


@arguments.guard(rate=arguments.bounded(0, 1, open_high=True))
def decay_smallest_singular_value(rate: ArrayLike) -> Float[Array, "..."]:
    """σ_min of causal attention with decay λ for many tokens: (1 − λ)/(1 + λ).

    Args:
        rate: λ from 0 to 1, 1 excluded; any shape.

    Returns:
        σ_min, in the argument's dtype and shape.

    Source: docs/weights.md derives it.

    Example:
        >>> float(decay_smallest_singular_value(0.5))
        0.3333333432674408
    """
    dtype, (rate,) = as_common(rate=rate)
    return ((1 - rate) / (1 + rate)).astype(dtype)


@arguments.guard(gamma=arguments.scalar(arguments.bounded(0)))
def causal_softmax_growth(gamma: ArrayLike, normals: Float[Array, "role step"]) -> Float[Array, ""]:
    """Λ(γ): σ_min of causal softmax attention falls as e^(−Λ(γ) n) where sums of e^score are taken as normal.

    A column of the inverse has the entries x_i = −(S + τ N |x|)/w. S is the column's sum so far, |x| its length,
    τ² = e^{γ²} − 1 the variance of e^score over its squared mean, N standard normal, and w = e^score over its mean, on
    the diagonal. Λ is the growth of log |x| for each entry; for small γ it tends to γ².

    It is good for small γ, and above the rate of real matrices elsewhere: sums of e^score are carried by few terms
    where γ is large. Of matrices of independent normal scores, from 200 to 400 tokens, log σ_min falls per token by

        γ           0.25    0.5     0.75    1       1.5     2
        matrices    0.064   0.218   0.407   0.599   0.99    1.39
        Λ(γ)        0.062   0.236   0.499   0.850   1.89    3.48

    with errors of 1 to 2 % for the matrices (40 draws).

    Args:
        gamma: γ ≥ 0, the standard deviation of scores.
        normals: Standard normal numbers, N first and then the scores on the diagonal over γ.

    Returns:
        The mean growth over the given numbers, an estimate of Λ(γ).

    Source: docs/weights.md derives it.

    Example:
        >>> import jax
        >>> normals = jax.random.normal(jax.random.key(0), (2, 40_000))
        >>> bool(abs(causal_softmax_growth(0.25, normals) - 0.063) < 0.01)
        True
    """
    if normals.shape[0] != 2:
        raise ValueError(f"`normals` must have two rows, got {normals.shape[0]}")
    gamma = jnp.asarray(gamma, normals.dtype)
    noise = jnp.sqrt(jnp.expm1(jnp.square(gamma))) * normals[0]
    over = jnp.exp(jnp.square(gamma) / 2 - gamma * normals[1])

    def entry(total: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        # The length is brought back to 1 after each entry; `total` is the sum in units of it.
        x = -(total + step[0]) * step[1]
        length = jnp.sqrt(1 + jnp.square(x))
        return (total + x) / length, jnp.log(length)

    logs = jax.lax.scan(entry, jnp.ones((), normals.dtype), (noise, over))[1]
    return jnp.mean(logs)
