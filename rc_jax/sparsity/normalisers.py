"""Sparsity of current models' rows under Gaussian scores: differential and Sinkhorn weights, and capped logits.

One more logit and a gate change only the size of a row, so S stays that of softmax. Sigmoid weights with a bias −log n
are `from_kernel(jax.nn.sigmoid, -log n, gamma)`.
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy import special
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments, stable
from rc_jax._numerics.dtypes import as_common

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_FAR = 1e3  # deviations, beyond which an error function is 1 and a density 0


@arguments.guard(gamma=arguments.positive, subtracted=arguments.bounded(0), correlation=arguments.bounded(-1, 1))
def differential(gamma: ArrayLike, subtracted: ArrayLike, correlation: ArrayLike = 0.0) -> Float[Array, "..."]:
    r"""Sparsity of softmax(s) − λ softmax(s') over infinitely many keys, with scores s, s' of deviation γ each.

    With X = e^{s − γ²/2} and Y likewise, S = E|X − λY| / √E(X − λY)². The numerator is twice the price of an exchange
    option less 1 − λ (Margrabe 1978): with σ = γ√(2(1 − ρ)) and d = −log λ/σ ± σ/2,

        S = (erf(d₊/√2) − λ erf(d₋/√2)) / √((1 + λ²) e^{γ²} − 2λ e^{ργ²}).

    Args:
        gamma: Standard deviation γ > 0 of each score over the keys, in nats.
        subtracted: λ ≥ 0; broadcasts with `gamma`.
        correlation: ρ of the two scores of a key, in [−1, 1]; 0 for independent queries in many dimensions.

    Returns:
        S, in the broadcast shape; a pure number. NaN where the two scores are one and λ = 1.

    Source: the weights, Ye et al. 2024, "Differential transformer", eq. 1; the closed form is this package's own.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.differential(1.0, 0.8):.4f} {sparsity.exponential(1.0):.4f}")
        0.5600 0.6065
    """
    named = {"gamma": gamma, "subtracted": subtracted, "correlation": correlation}
    dtype, (gamma, lam, rho) = as_common(**named, positive=("gamma",))
    gamma = jnp.minimum(gamma, 100)  # S is 0 there in every type, and no square overflows
    square = jnp.square(gamma)
    sigma = gamma * jnp.where(rho < 1, jnp.sqrt(2 * jnp.where(rho < 1, 1 - rho, 1)), 0)
    # An exchange of the two scores leaves S and makes λ into 1/λ: of both the one below 1, and what it lacks.
    above = lam > 1
    some, over = lam > 0, jnp.where(above, lam, 2)
    less = jnp.where(above, jnp.where(over < 2, (over - 1) / over, 1 - 1 / over), 1 - lam)
    logarithm = jnp.log(jnp.where(some, lam, 1))
    logarithm = jnp.where(above, logarithm, -logarithm)
    lam = jnp.where(above, 1 / over, lam)
    # E|X − λY| as two error functions, which are 1 where λ = 0 or the scores are one. Where they lie close together
    # their difference is an integral.
    distance = jnp.where(some, logarithm / jnp.where(sigma > 0, sigma, 1), _FAR)
    upper, lower = (special.erf((distance + sign * sigma / 2) * 0.5**0.5) for sign in (1, -1))
    half, middle = jnp.minimum(sigma, 1) / 2, jnp.minimum(distance, _FAR)
    density = [jnp.exp(-jnp.square(middle + float(node) * half) / 2) for node in _NODES]
    integral = sum(float(weight) * each for weight, each in zip(_WEIGHTS, density, strict=True)) * sigma
    integral = integral / (2 * np.pi) ** 0.5
    size = jnp.where(sigma < 1, integral, upper - lower) + less * lower
    size = jnp.where(sigma > 0, size, less)
    # (1 + λ²) e^{γ²} − 2λ e^{ργ²} over e^{γ²}, two terms that are not negative.
    # Their root is that of a sum of squares, of which none underflows; a root of 0 would have no derivative.
    apart = -2 * lam * jnp.expm1((rho - 1) * square)
    positive = apart > 0
    root = stable.hypot(less, jnp.sqrt(jnp.where(positive, apart, 1)))
    some = jnp.where(less > 0, less, 1)
    spread = jnp.where(positive, root, less + apart / (2 * some) - jnp.square(apart / some) / (8 * some))
    return (size * jnp.exp(-square / 2) / spread).astype(dtype)


@arguments.guard()
def sinkhorn(couplings: ArrayLike, query: ArrayLike) -> Float[Array, "..."]:
    r"""Sparsity of a row of doubly stochastic e^{Σ_c a_c x_c y_c} u(x) v(y) over infinitely many keys y ~ N(0, I).

    The factors u and v make both margins N(0, I), so that query and key are jointly Gaussian: their c-th coordinates
    have the correlation ρ_c that solves ρ/(1 − ρ²) = a, which is (√(1 + 4a²) − 1)/(2a). A row is N(ρx, 1 − ρ²), and

        S² = Π_c √(1 − ρ_c⁴) e^{−ρ_c² x_c²/(1 + ρ_c²)}.

    Softmax has ρ = a and no first factor: S² = e^{−Σ a² x²}. With γ² = Σ a² spread over many coordinates both agree.

    Args:
        couplings: a_c, the singular values of α W_Q W_Kᵀ; the last axis holds the coordinates.
        query: x_c, the query token in the basis of the singular vectors; broadcasts with `couplings`.

    Returns:
        S, without the last axis; a pure number.

    Source: the weights, Sander et al. 2022, "Sinkformers"; the plan between Gaussians is known from entropic optimal
        transport (Janati et al. 2020); S is this package's own.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.sinkhorn(jnp.array([2.0]), jnp.array([1.0])):.4f}")  # of softmax e^(−2) = 0.1353
        0.7367
    """
    for name, value in (("couplings", couplings), ("query", query)):
        if not jnp.ndim(value):
            raise ValueError(f"`{name}` must hold the coordinates on its last axis, got {arguments.describe(value)}")
    dtype, (a, x) = as_common(couplings=couplings, query=query)
    # ρ = a/t and 1 − ρ² = 1/t with t = ½ + √(¼ + a²), so that 1 − ρ⁴ = (1 + ρ²)/t where ρ is near 1.
    t = 0.5 + stable.hypot(jnp.full_like(a, 0.5), a)
    rho = a / t
    square = jnp.square(rho)
    near = square > 0.5
    log = jnp.where(near, jnp.log1p(square) - jnp.log(t), jnp.log1p(-jnp.square(jnp.where(near, 0, square))))
    half_log = log / 4 - jnp.square(rho * x) / (2 * (1 + square))
    return jnp.exp(jnp.sum(half_log, axis=-1)).astype(dtype)
