"""Softmax's kernel cut off: weights a_j ∝ T_K(q·k_j), T_K(x) = Σ_{k≤K} x^k/k!, the linear attention of monomials.

As T_K′ = T_{K−1}, the Hermite coefficients of T_K(β + γε) are γ^j/√j! · M_{K−j} with M_m = E T_m(β + γε), and

    M_m = Σ_i (γ²/2)^i/i! · T_{m−2i}(β),    E T_K² = Σ_j γ^{2j}/j! · M_{K−j}².

For even K no T_{K−2i} is negative, so that E|T_K| = M_K and both sums have no negative term.
"""

import decimal
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.stats import norm
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax import _checks
from rc_jax.sparsity import _inputs

_LARGEST = 64  # e^64 is well inside float32


def _order(name: str, value: Any) -> None:
    _checks.integer(0)(name, value)
    if value > _LARGEST:
        raise ValueError(f"`{name}` must be an integer <= {_LARGEST}, got {value}")


@_checks.guard(beta=_checks.real, gamma=_checks.bounded(0), order=_order)
def taylor_exponential(beta: ArrayLike, gamma: ArrayLike, order: int) -> Float[Array, "..."]:
    r"""Sparsity of attention by the exponential's Taylor polynomial, f = T_K: S = E|T_K(β+γε)| / √E T_K(β+γε)².

    It rises from nothing to focus with K: 1 at K = 0 and e^{−γ²/2} as K → ∞, but unlike the exponential it depends on
    β. Polynomials of even order are positive. Those of odd order are negative below their one zero, −0.28 K for large
    K (`taylor_zero`); the measure takes their magnitude, but a row may add up to nothing.

    Args:
        beta: Mean β = q·μ of the logits of one row, in nats; any shape that broadcasts with `gamma`.
        gamma: Their standard deviation γ = σ‖q‖ ≥ 0.
        order: Order K of the polynomial, from 0 to 64; static.

    Returns:
        S, in the broadcast shape; a pure number. At γ = 0 it is 1.

    Raises:
        TypeError: `beta` or `gamma` is not a real number, or `order` is not an integer.
        ValueError: `gamma` is negative, an argument is not finite, or `order` is outside 0 … 64.

    Source: this package's own result, for the kernel of Su Jianlin, kexue.fm/archives/9889.

    Example:
        >>> from rc_jax import sparsity
        >>> print([f"{sparsity.taylor_exponential(0.0, 1.0, order):.4f}" for order in (0, 2, 4, 8)])
        ['1.0000', '0.7746', '0.6514', '0.6079']
    """
    (beta, gamma), dtype = _inputs.broadcast(beta, gamma)
    return _taylor(beta.ravel(), gamma.ravel(), int(order)).reshape(beta.shape).astype(dtype)


@_checks.guard(order=_order)
def taylor_zero(order: int) -> float:
    r"""The one real zero of the Taylor polynomial T_K of odd order K, below which its weights are negative.

    It starts at −1 and tends to −0.2785 K, where 0.2785 is Lambert's W₀(1/e).

    Args:
        order: Order K, an odd number up to 63.

    Returns:
        The zero, a negative number of nats, to double precision.

    Raises:
        TypeError: `order` is not an integer.
        ValueError: `order` is even or outside 1 … 63.

    Source: the limit is Szegő's (1924); a zero is found here by bisection with many digits.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.taylor_zero(1):.4f} {sparsity.taylor_zero(3):.4f}")
        -1.0000 -1.5961
    """
    if order % 2 == 0:
        raise ValueError(f"`order` must be odd: an even polynomial has no real zero, got {order}")
    return _zero(int(order))


@functools.cache
def _zero(order: int) -> float:
    with decimal.localcontext() as context:
        context.prec = 40 + order
        low, high = decimal.Decimal(-order), decimal.Decimal(0)
        coefficients = [1 / decimal.Decimal(math.factorial(k)) for k in range(order, -1, -1)]
        for _ in range(70):
            middle = (low + high) / 2
            value = functools.reduce(lambda total, c: total * middle + c, coefficients)
            low, high = (middle, high) if value < 0 else (low, middle)
        return float(low + high) / 2


@functools.partial(jax.jit, static_argnames="order")
def _taylor(beta: Array, gamma: Array, order: int) -> Array:
    # All of order m is divided by u^m, so that u^K is about T_K's largest value: no power leaves the range of floats.
    u = jnp.maximum(math.e * jnp.abs(beta), jnp.sqrt(math.e * max(order, 1)) * gamma) / max(order, 1)
    u = lax.stop_gradient(jnp.maximum(u, 1))
    beta, gamma = beta / u, gamma / u
    steps = np.arange(order + 1)
    halves = _exponential_terms(jnp.square(gamma) / 2, order // 2)
    values = _polynomials(beta, u, order)
    lag = steps[:, None] - 2 * np.arange(order // 2 + 1)[None]  # (m, i): which T_{m − 2i}
    picked = jnp.where(jnp.asarray(lag >= 0)[..., None], values[np.maximum(lag, 0)], 0)
    means = jnp.sum(picked * halves[None], axis=1)[::-1]  # M_{K−j}
    top = jnp.max(jnp.abs(means), axis=0)
    weights = jnp.cumprod(
        jnp.concatenate([jnp.ones_like(gamma)[None], gamma[None] / _column(np.sqrt(steps[1:]), gamma)]), axis=0
    )
    root = jnp.sqrt(jnp.sum(jnp.square(weights * means / lax.stop_gradient(top)[None]), axis=0))
    first = means[0] if order % 2 == 0 else means[0] - 2 * _below(beta, gamma, u, order)
    return first / lax.stop_gradient(top) / root


def _column(numbers: np.ndarray, like: Array) -> Array:
    """Numbers on the first axis, to go with (order, point)."""
    return jnp.asarray(numbers, like.dtype)[:, None]


def _exponential_terms(x: Array, order: int) -> Array:
    """x^k/k! for k = 0 … order on a new first axis."""
    factors = x[None] / _column(np.arange(1, order + 1), x)
    return jnp.cumprod(jnp.concatenate([jnp.ones_like(x)[None], factors]), axis=0)


def _polynomials(beta: Array, u: Array, order: int) -> Array:
    """T_m(βu)/u^m for m = 0 … order.

    Forwards from T_0 where m < |βu|, when the last terms are the largest. Where m ≥ −βu > 0, backwards from
    e^{βu} = T_∞ through terms that alternate and fall: for even m a sum of two positive numbers.
    """
    more = order + 10 * math.isqrt(order + 1) + 24
    terms = _exponential_terms(beta, more)

    def forwards(total: Array, term: Array) -> tuple[Array, Array]:
        total = total / u + term
        return total, total

    _, up = lax.scan(forwards, jnp.zeros_like(beta), terms[: order + 1])

    def backwards(rest: Array, term: Array) -> tuple[Array, Array]:
        return (rest + term) * u, rest

    negative = jnp.clip(beta, -(order + 1) / u, 0)
    _, rests = lax.scan(backwards, jnp.zeros_like(beta), _exponential_terms(negative, more), reverse=True)
    m = _column(np.arange(order + 1), beta)
    down = jnp.exp((negative * u)[None] - m * jnp.log(u)[None]) - rests[: order + 1]
    inside = (beta < 0)[None] & (m >= -(beta * u)[None])
    return jnp.where(inside, down, up)


def _below(beta: Array, gamma: Array, u: Array, order: int) -> Array:
    """E T_K over x below its zero x₀, over u^K: p_k = E[x^k/k!; x < x₀] by Stein's lemma, from p₀ = Φ(z)."""
    spread = jnp.where(gamma > 0, gamma, 1)
    zero = _zero(order) / u
    z = (zero - beta) / spread
    bell = gamma * norm.pdf(z)

    def step(carry: tuple[Array, Array, Array, Array], k: Array) -> tuple[tuple[Array, Array, Array, Array], None]:
        before, last, power, total = carry
        here = (beta * last + jnp.square(gamma) * before - bell * power) / k
        return (last, here, power * zero / k, total / u + here), None

    start = norm.cdf(z)
    ones = jnp.ones_like(beta)
    (_, _, _, total), _ = lax.scan(
        step, (jnp.zeros_like(beta), start, ones, start), jnp.arange(1, order + 1, dtype=beta.dtype)
    )
    return jnp.where(gamma > 0, total, jnp.where(beta < zero, total, 0))
