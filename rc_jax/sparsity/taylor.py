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
_MORE = 168  # terms after which an alternating rest is below rounding
_STEPS = np.arange(_LARGEST + 1)


def _orders(name: str, value: Any) -> None:
    kind = getattr(value, "dtype", None)
    if isinstance(value, bool) or not (
        isinstance(value, int) or (kind is not None and jnp.issubdtype(kind, jnp.integer))
    ):
        raise TypeError(f"`{name}` must be an integer or an array of them, got {_checks.describe(value)}")
    _checks.bounded(0, _LARGEST)(name, value)


def _odd(name: str, value: Any) -> None:
    _checks.integer(1)(name, value)
    if value % 2 == 0 or value > _LARGEST:
        raise ValueError(f"`{name}` must be an odd integer below {_LARGEST}, got {value}")


@_checks.guard(beta=_checks.real, gamma=_checks.bounded(0), order=_orders)
def taylor_exponential(beta: ArrayLike, gamma: ArrayLike, order: ArrayLike) -> Float[Array, "..."]:
    r"""Sparsity of attention by the exponential's Taylor polynomial, f = T_K: S = E|T_K(β+γε)| / √E T_K(β+γε)².

    It rises from nothing to focus with K: 1 at K = 0 and e^{−γ²/2} as K → ∞, but unlike the exponential it depends on
    β. Polynomials of even order are positive. Those of odd order are negative below their one zero, −0.28 K for large
    K (`taylor_zero`); the measure takes their magnitude, but a row may add up to nothing.

    Args:
        beta: Mean β = q·μ of the logits of one row, in nats; any shape that broadcasts with `gamma`.
        gamma: Their standard deviation γ = σ‖q‖ ≥ 0.
        order: Order K of the polynomial, an integer from 0 to 64; any shape that broadcasts with the others.

    Returns:
        S, in the broadcast shape; a pure number. At γ = 0 it is 1.

    Raises:
        TypeError: `beta` or `gamma` is not a real number, or `order` is not an integer.
        ValueError: `gamma` is negative, an argument is not finite, or `order` is outside 0 … 64.

    Source: this package's own result, for the kernel of Su Jianlin, kexue.fm/archives/9889.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> s = sparsity.taylor_exponential(0.0, 1.0, jnp.array([0, 2, 4, 8]))
        >>> print([f"{each:.4f}" for each in s])
        ['1.0000', '0.7746', '0.6514', '0.6079']
    """
    (beta, gamma), dtype = _inputs.broadcast(beta, gamma)
    order = jnp.asarray(order, jnp.int32)
    shape = jnp.broadcast_shapes(beta.shape, order.shape)
    beta, gamma, order = (jnp.broadcast_to(value, shape).ravel() for value in (beta, gamma, order))
    zeros = jnp.asarray([_zero(k) for k in range(1, _LARGEST, 2)], beta.dtype)
    return _taylor(beta, gamma, order, zeros).reshape(shape).astype(dtype)


@_checks.guard(order=_odd)
def taylor_zero(order: int) -> float:
    r"""The one real zero of the Taylor polynomial T_K of odd order K, below which its weights are negative.

    It starts at −1 and tends to −0.2785 K, where 0.2785 is Lambert's W₀(1/e).

    Args:
        order: Order K, an odd number up to 63.

    Returns:
        The zero, a negative number of nats, to double precision.

    Raises:
        TypeError: `order` is not an integer.
        ValueError: `order` is even, below 1 or above 63.

    Source: the limit is Szegő's (1924); a zero is found here by bisection with many digits.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.taylor_zero(1):.4f} {sparsity.taylor_zero(3):.4f}")
        -1.0000 -1.5961
    """
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


@jax.jit
def _taylor(beta: Array, gamma: Array, order: Array, zeros: Array) -> Array:
    # All of order m is divided by u^m, so that u^K is about T_K's largest value: no power leaves the range of floats.
    degree = jnp.maximum(order, 1).astype(beta.dtype)
    u = jnp.maximum(math.e * jnp.abs(beta), jnp.sqrt(math.e * degree) * gamma) / degree
    u = lax.stop_gradient(jnp.maximum(u, 1))
    beta, gamma = beta / u, gamma / u
    halves = _exponential_terms(jnp.square(gamma) / 2, _LARGEST // 2)
    values = _polynomials(beta, u, order)
    lag = _STEPS[:, None] - 2 * np.arange(_LARGEST // 2 + 1)[None]  # (m, i): which T_{m − 2i}
    picked = jnp.where(jnp.asarray(lag >= 0)[..., None], values[np.maximum(lag, 0)], 0)
    means = jnp.sum(picked * halves[None], axis=1)
    left = order[None] - jnp.asarray(_STEPS, jnp.int32)[:, None]
    means = jnp.where(left >= 0, jnp.take_along_axis(means, jnp.maximum(left, 0), axis=0), 0)  # M_{K−j}
    top = lax.stop_gradient(jnp.max(jnp.abs(means), axis=0))
    weights = _running_products(gamma, np.sqrt(_STEPS[1:]))
    root = jnp.sqrt(jnp.sum(jnp.square(weights * means / top[None]), axis=0))
    below = _below(beta, gamma, u, order, zeros)
    return (means[0] - jnp.where(order % 2 == 1, 2 * below, 0)) / top / root


def _column(numbers: np.ndarray, like: Array) -> Array:
    """Numbers on the first axis, to go with (order, point)."""
    return jnp.asarray(numbers, like.dtype)[:, None]


def _running_products(x: Array, divisors: np.ndarray) -> Array:
    """1, x/d₁, x²/(d₁d₂), … on a new first axis. A loop: the derivative of `cumprod` takes long to compile."""

    def step(last: Array, divisor: Array) -> tuple[Array, Array]:
        last = last * (x / divisor)
        return last, last

    one = jnp.ones_like(x)
    return jnp.concatenate([one[None], lax.scan(step, one, jnp.asarray(divisors, x.dtype))[1]])


def _exponential_terms(x: Array, order: int) -> Array:
    """x^k/k! for k = 0 … order on a new first axis."""
    return _running_products(x, np.arange(1, order + 1))


def _polynomials(beta: Array, u: Array, order: Array) -> Array:
    """T_m(βu)/u^m for all m; those above the order in question are not used.

    Forwards from T_0 where m < |βu|, when the last terms are the largest. Where m ≥ −βu > 0, backwards from
    e^{βu} = T_∞ through terms that alternate and fall: for even m a sum of two positive numbers.
    """

    def forwards(total: Array, term: Array) -> tuple[Array, Array]:
        total = total / u + term
        return total, total

    _, up = lax.scan(forwards, jnp.zeros_like(beta), _exponential_terms(beta, _LARGEST))

    def backwards(rest: Array, term: Array) -> tuple[Array, Array]:
        return (rest + term) * u, rest

    negative = jnp.clip(beta, -(order.astype(beta.dtype) + 1) / u, 0)
    _, rests = lax.scan(backwards, jnp.zeros_like(beta), _exponential_terms(negative, _MORE), reverse=True)
    m = _column(_STEPS, beta)
    down = jnp.exp((negative * u)[None] - m * jnp.log(u)[None]) - rests[: _LARGEST + 1]
    inside = (beta < 0)[None] & (m >= -(beta * u)[None])
    return jnp.where(inside, down, up)


Carry = tuple[Array, Array, Array, Array]


def _below(beta: Array, gamma: Array, u: Array, order: Array, zeros: Array) -> Array:
    """E T_K over x below its zero x₀, over u^K: p_k = E[x^k/k!; x < x₀] by Stein's lemma, from p₀ = Φ(z)."""
    spread = jnp.where(gamma > 0, gamma, 1)
    zero = zeros[jnp.minimum(order // 2, len(zeros) - 1)] / u
    z = (zero - beta) / spread
    bell = gamma * norm.pdf(z)

    def step(carry: Carry, k: Array) -> tuple[Carry, None]:
        before, last, power, total = carry
        here = (beta * last + jnp.square(gamma) * before - bell * power) / k
        return (last, here, power * zero / k, jnp.where(k <= order.astype(k.dtype), total / u + here, total)), None

    start = norm.cdf(z)
    steps = jnp.asarray(_STEPS[1:], beta.dtype)
    (_, _, _, total), _ = lax.scan(step, (jnp.zeros_like(beta), start, jnp.ones_like(beta), start), steps)
    return jnp.where(gamma > 0, total, jnp.where(beta < zero, total, 0))
