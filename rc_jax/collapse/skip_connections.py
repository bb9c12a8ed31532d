"""Skip connections round uniform attention, in closed form: how alike tokens are, by depth and branch strength.

With ρ = 1 − ‖res(X)‖_F²/‖X‖_F², which for tokens of equal length is the mean cosine over all pairs (a token with itself
included), with P = 11ᵀ/n and W of independent layers such that E WWᵀ = I,

    X ← X + a P X W:   logit ρ ← logit ρ + log(1 + a²),   logit ρ = log(ρ/(1 − ρ)),

in the ratio of expectations at any width, and for every network as d → ∞. docs/skip_norm_mlp.md has the proof.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common


@arguments.guard(correlation=arguments.bounded(0, 1), depth=arguments.bounded(0))
def uniform_correlation(correlation: ArrayLike, strength: ArrayLike, depth: ArrayLike) -> Float[Array, "..."]:
    """How alike tokens are after so many layers of uniform attention with skip connections and Gaussian values.

    ρ_L = kρ₀/(kρ₀ + 1 − ρ₀),   k = (1 + a²)^L

    ρ = 1 − ‖res(X)‖_F²/‖X‖_F² is the mean correlation over all pairs of tokens, a token with itself included; it starts
    at 1/n for n independent tokens, not at 0. It is exact as a ratio of expectations at any width, and in every single
    network in the limit of large width. With a² = c²/L it never reaches 1: see `uniform_correlation_limit`.

    Args:
        correlation: ρ₀ of the first tokens, 0 to 1; any shape.
        strength: a, the factor on what attention adds (`rc_jax.network.scale_branches`); broadcast.
        depth: L; broadcast. It need not be an integer.

    Returns:
        ρ_L, of the broadcast shape.

    Source:
        Noci et al. 2022 treat this setting (uniform attention at initialisation); docs/skip_norm_mlp.md derives it.

    Example:
        >>> [round(float(uniform_correlation(0.25, a, 12)), 3) for a in (1.0, 12**-0.5, 1 / 12)]
        [0.999, 0.466, 0.266]
    """
    dtype, (rho, a, layers) = as_common(correlation=correlation, strength=strength, depth=depth)
    return _grown(rho, layers * jnp.log1p(jnp.square(a))).astype(dtype)


@arguments.guard(correlation=arguments.bounded(0, 1))
def uniform_correlation_limit(correlation: ArrayLike, strength: ArrayLike = 1.0) -> Float[Array, "..."]:
    """Where `uniform_correlation` tends as L → ∞ with branches of strength c/√L: k = (1 + c²/L)^L → e^{c²}.

    ρ_∞ = e^{c²}ρ₀/(e^{c²}ρ₀ + 1 − ρ₀), below 1 for ρ₀ < 1: depth alone does not collapse such a network. With a
    constant a it tends to 1, and with c/L to ρ₀.

    Args:
        correlation: ρ₀, 0 to 1; any shape.
        strength: c; broadcast.

    Returns:
        ρ_∞, of the broadcast shape.

    Source:
        The scaling by 1/√L is Noci et al. 2022; docs/skip_norm_mlp.md derives the limit.

    Example:
        >>> round(float(uniform_correlation_limit(0.25)), 4)
        0.4754
    """
    dtype, (rho, c) = as_common(correlation=correlation, strength=strength)
    return _grown(rho, jnp.square(c)).astype(dtype)


@jax.custom_jvp
def _grown(rho: Array, log_k: Array) -> Array:
    """kρ/(kρ + 1 − ρ), with a derivative at 0 and 1 too."""
    whole = rho + (1 - rho) * jnp.exp(-log_k)
    return rho / jnp.where(whole == 0, 1, whole)


@_grown.defjvp
def _grown_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """dρ_L = dρ/W² + ρ(1 − ρ)/W² d log k, W = ρ√k + (1 − ρ)/√k, a sum of positive terms that no difference enters.

    As a quotient it has the derivative of ρ/ρ, which cancels where k is large.
    """
    rho, log_k = primals
    largest = float(jnp.finfo(rho.dtype).max)
    grown = jnp.minimum(jnp.sinh(log_k / 2), largest)  # so that its product with ρ = 0 is 0
    over = jnp.minimum(1 / (jnp.exp(-log_k / 2) + 2 * (rho * grown)), 0.9 * largest**0.5)
    change = over * over * tangents[0] + (rho * over) * ((1 - rho) * over) * tangents[1]
    return _grown(rho, log_k), change
