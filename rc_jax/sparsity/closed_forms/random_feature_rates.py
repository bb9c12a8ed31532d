"""The sparsity of softmax by positive random features: exact for given features, and on average for many.

Keys are k ~ N(0, σ²I) in d dimensions, so that the logits of a query q have deviation γ = σ‖q‖ and S₀ = e^{−γ²/2}.
Given directions w, the features φ(k)_i = e^{w_i·k − ‖k‖²/2}/√m have Gaussian integrals for moments. Over w, write
a(k) = e^{q·k}(1 + η(k)). Then E η = 0 and m E η(k)η(k′) = e^{(q+k)·(q+k′)} − 1 for independent w, and S is expanded
in η to second order under the laws of k tilted by e^{q·k} and e^{2q·k}, which are N(σ²q, σ²I) and N(2σ²q, σ²I).
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments, stable
from rc_jax._numerics.dtypes import as_common, working_dtype

_DIRECTIONS = (arguments.float_array("feature", "width", feature=1, width=1), arguments.real)


@arguments.guard(projections=_DIRECTIONS, sigma=arguments.scalar(arguments.positive))
def positive_feature_moments(
    projections: Float[Array, "feature width"], sigma: ArrayLike
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""Mean and covariance of positive random features of keys k ~ N(0, σ²I), for given directions w.

    μ̃_i = (1 + σ²)^{−d/2} e^{σ²‖w_i‖²/2(1+σ²)}/√m and Σ̃_ij = μ̃_i μ̃_j (e^{r_ij} − 1) with
    r_ij = (d/2) log(1 + σ⁴/(1+2σ²)) + σ²/(1+2σ²) · (w_i·w_j − σ²(‖w_i‖² + ‖w_j‖²)/2(1+σ²)).
    `nonnegative_linear` of φ(q) and these is the sparsity of Performer's attention over infinitely many keys.

    Args:
        projections: Directions w_i, one a row (`random_projections`).
        sigma: Standard deviation σ > 0 of each coordinate of a key; one number.

    Returns:
        Mean of shape (feature,) and covariance of shape (feature, feature), in the dtype of `projections`.

    Source: this package's own result, for the features of Choromanski et al. 2021.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> mean, cov = sparsity.positive_feature_moments(jnp.array([[0.0]]), 1.0)
        >>> print(f"{mean[0]:.6f} {cov[0, 0]:.6f}")  # E e^{−k²/2} = 1/√2, E e^{−k²} = 1/√3
        0.707107 0.077350
    """
    dtype = jnp.asarray(projections).dtype
    w = jnp.asarray(projections).astype(working_dtype(dtype))
    square = jnp.square(jnp.asarray(sigma).astype(w.dtype))
    count, width = w.shape
    size = jnp.sum(jnp.square(w), axis=-1)
    shrink = square / (1 + square)
    mean = jnp.exp(shrink * size / 2 - width / 2 * jnp.log1p(square)) / count**0.5
    inner = jnp.matmul(w, w.T, precision="highest") - shrink / 2 * (size[:, None] + size[None, :])
    r = width / 2 * jnp.log1p(jnp.square(square) / (1 + 2 * square)) + square / (1 + 2 * square) * inner
    return mean.astype(dtype), (mean[:, None] * mean[None, :] * jnp.expm1(r)).astype(dtype)


@arguments.guard(gamma=arguments.bounded(0), sigma=arguments.positive, dim=arguments.bounded(1))
def positive_features_rate(
    gamma: ArrayLike, sigma: ArrayLike, dim: ArrayLike
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""Rates of m independent positive random features: E S/S₀ − 1 ≈ bias/m and Var S/S₀² ≈ variance/m, S₀ softmax's S.

    With G_ab = (1 − σ⁴)^{−d/2} exp((‖q‖²/(1 − σ⁴)) · (σ²(A² + B²)/2 + AB)), A = 1 + aσ², B = 1 + bσ², and
    D = (1 − 2σ²)^{−d/2} e^{(1+2σ²)²‖q‖²/(1−2σ²)}, ‖q‖ = γ/σ,

        bias = −(D − 1)/2 + 3(G₂₂ − 1)/2 − (G₁₂ − 1),    variance = G₁₁ + G₂₂ − 2G₁₂.

    D is the largest: the noise of the estimate makes rows look sparser than softmax. The rate is a limit, m ≫ D, that
    can set in late, as the next orders have higher exponential moments: at σ = 0.3, γ = 0.4, d = 3, where D = 27, the
    variance is a third below its rate at m = 400, and the bias is less than a third of its own. At fixed γ and for
    large d, log D is least near σ² = γ/√d, where it is 2γ√d + 7γ² + O(γ³/√d). From σ² = ½ on the bias is infinite at
    this order, from σ = 1 on the variance too: there is no rate 1/m.

    Args:
        gamma: Standard deviation γ = σ‖q‖ ≥ 0 of the logits of one row, in nats; shapes broadcast.
        sigma: Standard deviation σ > 0 of each coordinate of a key.
        dim: Number d of coordinates.

    Returns:
        bias and variance, the two coefficients of 1/m; pure numbers, −inf and inf where they do not exist or overflow.

    Source: this package's own result, for the features of Choromanski et al. 2021.

    Example:
        >>> from rc_jax import sparsity
        >>> bias, variance = sparsity.positive_features_rate(0.25, 0.25, 16)
        >>> print(f"{bias:.3f} {variance:.4f}")
        -3.904 0.0342
    """
    dtype, (gamma, sigma, dim) = as_common(gamma=gamma, sigma=sigma, dim=dim, positive=("sigma",))
    inside = (gamma >= 0) & (sigma > 0) & (dim >= 1)
    bias, variance = (jnp.where(inside, value, jnp.nan).astype(dtype) for value in _rate(gamma, sigma, dim))
    return bias, variance


@jax.jit
def _rate(gamma: Array, sigma: Array, dim: Array) -> tuple[Array, Array]:
    square = jnp.square(sigma)
    length = jnp.square(gamma / sigma)
    tight, narrow = square < 0.5, square < 1
    s = jnp.where(narrow, square, 0.5)
    base = -dim / 2 * jnp.log1p(-s * s)

    def overlap(a: int, b: int) -> Array:
        left, right = 1 + a * s, 1 + b * s
        return jnp.expm1(base + length / (1 - s * s) * (s * (left**2 + right**2) / 2 + left * right))

    # G₁₂ and G₂₂ less 1, and D less 1; there is no rate where they do not exist.
    mixed, two = overlap(1, 2), overlap(2, 2)
    t = jnp.where(tight, square, 0.25)
    noise = jnp.expm1(-dim / 2 * jnp.log1p(-2 * t) + jnp.square(1 + 2 * t) * length / (1 - 2 * t))
    # With h = log G₁₁G₂₂/G₁₂² /2 and δ = log G₂₂/G₁₁ /2, G₁₁ + G₂₂ − 2G₁₂ is G₁₂ times two terms that are not negative.
    tilt = length / (1 - s * s) * s
    h, delta = tilt * s / 2, tilt * (1 + s) * (2 + 3 * s) / 2
    # The bias is G₂₂ − G₁₂ − (D − G₂₂)/2. For small σ² all three are e^‖q‖² at first, and these differences are not.
    more = jnp.square(1 + 2 * t) * length * t / ((1 - 2 * t) * (1 - t))
    more = more - dim / 2 * jnp.log1p(-t * (2 - t) / (1 - t * t))
    finite = tight & jnp.isfinite(noise)
    bias = (1 + mixed) * jnp.expm1(h + delta) - (1 + two) * jnp.expm1(more) / 2
    bias = jnp.where(finite, bias, -jnp.inf) * stable.one(finite, gamma, sigma, dim)
    apart = 4 * jnp.exp(h) * jnp.square(jnp.sinh(delta / 2)) + 2 * jnp.expm1(h)
    finite = narrow & jnp.isfinite(two)
    return bias, jnp.where(finite, (1 + mixed) * apart, jnp.inf) * stable.one(finite, gamma, sigma, dim)
