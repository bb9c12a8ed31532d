"""Softmax's kernel cut off: weights a_j ∝ T_K(q·k_j), T_K(x) = Σ_{k≤K} x^k/k!, the linear attention of monomials.

E|T_K(β+γε)| and E T_K² are polynomials in β and γ, but their terms are far larger than their sum where β is negative.
So they are integrated, and T_K(x) itself is computed without cancellation as the integral

    T_K(x) = ∫₀^∞ (x + t)^K/K! e^{−t} dt

by 33 nodes of Gauss and Laguerre, which are exact for K ≤ 65. Its terms are positive for even K. For odd K it is
T_{K−1}(x) + x^K/K!, of two terms that cancel at the zero of T_K alone.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common

_LARGEST = 64  # e^64 is well inside float32
_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(33)
_ROOTS = np.exp(np.log(_WEIGHTS) / np.maximum(np.arange(0, _LARGEST + 1, 2), 2)[:, None])  # K-th roots, for even K
_FAR = 1e20  # T_K is x^K/K! to rounding there


@arguments.guard(gamma=arguments.bounded(0), order=(arguments.integers, arguments.bounded(0, _LARGEST)))
def taylor_exponential(beta: ArrayLike, gamma: ArrayLike, order: ArrayLike) -> Float[Array, "..."]:
    r"""Sparsity of attention by the exponential's Taylor polynomial, f = T_K: S = E|T_K(β+γε)| / √E T_K(β+γε)².

    It rises from nothing to focus with K: 1 at K = 0 and e^{−γ²/2} as K → ∞, but unlike the exponential it depends on
    β. Polynomials of even order are positive. Those of odd order are negative below their one zero, −0.28 K for large
    K (Szegő 1924); the measure takes their magnitude, but a row may add up to nothing.

    Both moments are quadratures in ε, split at that zero, of a few hundred nodes for each pair (β, γ).

    Args:
        beta: Mean β = q·μ of the logits of one row, in nats; any shape that broadcasts with `gamma`.
        gamma: Their standard deviation γ = σ‖q‖ ≥ 0.
        order: Order K of the polynomial, an integer from 0 to 64; any shape that broadcasts with the others.

    Returns:
        S in [0, 1], in the broadcast shape; a pure number, right to four digits in float32 and twelve in float64 where
        a rounding of β does not change them. (Next to an odd order's zero, and for γ far below |β|, S goes from 1 to
        √(2/π) and back within a few γ of it.) At γ = 0 it is 1, at the zero too.

    Source: this package's own result, for the kernel of Su Jianlin, kexue.fm/archives/9889.

    Example:
        >>> import jax.numpy as jnp
        >>> from rc_jax import sparsity
        >>> s = sparsity.taylor_exponential(0.0, 1.0, jnp.array([0, 2, 4, 8]))
        >>> print([f"{value:.4f}" for value in s])
        ['1.0000', '0.7746', '0.6514', '0.6079']
    """
    dtype, (beta, gamma) = as_common(beta=beta, gamma=gamma)
    order = jnp.asarray(order)
    known = jnp.isfinite(order)  # an order out of range that is not at hand has become NaN, which no integer holds
    order = jnp.where(known, order, -1).astype(jnp.int32)
    try:
        shape = np.broadcast_shapes(beta.shape, order.shape)
    except ValueError:
        others = f"the shape {beta.shape} of `beta` and `gamma`"
        raise ValueError(f"`order` must broadcast with {others}, got {arguments.describe(order)}") from None
    beta, gamma, order = (jnp.broadcast_to(value, shape).ravel() for value in (beta, gamma, order))
    zeros = jnp.asarray([_zero(k) for k in range(1, _LARGEST, 2)], beta.dtype)
    inside = (gamma >= 0) & (order >= 0) & (order <= _LARGEST)
    return jnp.where(inside, _taylor(beta, gamma, order, zeros), jnp.nan).reshape(shape).astype(dtype)


@arguments.guard(gamma=arguments.bounded(0))
def taylor_order(gamma: ArrayLike) -> Float[Array, "..."]:
    r"""The order K that brings S of T_K at β = 0 within 1 % of softmax's: 2γ² + 2.31·√3 γ + 0.70, before rounding up.

    (S₀/S)² is about the probability that neither of two Poisson counts of one random mean N(2γ², γ²) exceeds K. The
    larger count does so with probability 0.0197 at 2.31 deviations of one, whose mean is 2γ², whose variance is 3γ² and
    whose third cumulant is 5γ².

    Args:
        gamma: Standard deviation γ ≥ 0 of the logits of one row, in nats; any shape.

    Returns:
        K, a real number, in the shape of `gamma`; it is within 2 of the least even order from γ = ½ on.

    Source: this package's own.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.taylor_order(1.0):.2f}")
        6.71
    """
    dtype, (gamma,) = as_common(gamma=gamma)
    z = 2.31
    return (2 * gamma**2 + z * 3**0.5 * gamma + 5 * (z**2 - 1) / 18 - 0.5).astype(dtype)


@functools.cache
def _zero(order: int) -> float:
    """The x < 0 at which |x|^K/K! = T_{K−1}(x)."""

    def gap(x: float) -> float:
        return order * math.log(-x) - math.log(order) - math.log(_WEIGHTS @ (x + _NODES) ** (order - 1))

    zero: Any = scipy.optimize.brentq(gap, -order - 1, -0.1 * order, xtol=1e-15)
    return float(zero)


@jax.jit
def _taylor(beta: Array, gamma: Array, order: Array, zeros: Array) -> Array:
    far = lax.stop_gradient(jnp.maximum(jnp.maximum(jnp.abs(beta), gamma), _FAR) / _FAR)
    beta, gamma, degree = beta / far, gamma / far, order.astype(beta.dtype)  # so far away only the ratio counts
    epsilon, weights = _nodes(beta, gamma, order, zeros)
    scale = lax.stop_gradient(jnp.maximum(jnp.abs(beta) + gamma * jnp.sqrt(2 * degree), degree + 1))
    x = beta[None] + gamma[None] * epsilon
    # log|T_K|√φ at the nodes relative to the largest, so that E|T_K| and √E T_K² are sums of numbers up to 1.
    quarter = jnp.square(epsilon) / 4
    logs = _log_magnitude(x, order[None], scale[None]) - quarter
    top = lax.stop_gradient(jnp.max(logs, axis=0))
    values, root = jnp.exp(logs - jnp.where(jnp.isfinite(top), top, 0)[None]), jnp.exp(-quarter)
    first, second, total = (jnp.sum(weights * part, axis=0) for part in (root * values, values**2, root**2))
    empty = second == 0  # at the zero itself, without spread
    s = jnp.where(empty, 1, first / jnp.sqrt(jnp.where(empty, 1, second) * total))
    return s - lax.stop_gradient(jnp.maximum(s - 1, 0))  # a rounding above 1


def _nodes(beta: Array, gamma: Array, order: Array, zeros: Array) -> tuple[Array, Array]:
    """Nodes and weights in ε, (node, point), in two panels that meet at the zero of T_K or, without one, at 0."""
    reach = jnp.sqrt(2 * order.astype(beta.dtype)) + 9.5  # T_K² under the bell is largest at |ε| ≤ √(2K)
    zero = jnp.where(order % 2 == 1, zeros[jnp.minimum(order // 2, len(zeros) - 1)], beta)
    inside = jnp.abs(zero - beta) < reach * gamma
    middle = jnp.where(inside, (zero - beta) / jnp.where(inside, gamma, 1), jnp.sign(zero - beta) * reach)
    edges = jnp.stack([-reach, middle, reach])
    nodes, weights = np.polynomial.legendre.leggauss(64 if beta.dtype == jnp.float32 else 96)
    half = jnp.diff(edges, axis=0)[:, None] / 2
    epsilon = edges[:2, None] + half * jnp.asarray(nodes + 1, beta.dtype)[None, :, None]
    weights = half * jnp.asarray(weights, beta.dtype)[None, :, None]
    return epsilon.reshape(-1, beta.size), weights.reshape(-1, beta.size)


def _log_magnitude(x: Array, order: Array, scale: Array) -> Array:
    """log(|T_K(x)|·K!/scale^K), −∞ where T_K = 0; x is (node, point), one K and one scale for each point (1, point)."""
    # T_E·E!/scale^E for E = K or K − 1, even, as a sum of positive E-th powers, relative to the largest of them.
    odd = order % 2 == 1
    even = (order - order % 2).astype(x.dtype)
    roots = jnp.asarray(_ROOTS, x.dtype)[order // 2] / scale[..., None]
    terms = jnp.abs(x[..., None] + jnp.asarray(_NODES, x.dtype)[None, None]) * roots
    largest = lax.stop_gradient(jnp.max(terms, axis=-1))
    total = jnp.sum((terms / largest[..., None]) ** even[..., None], axis=-1)
    logs = jnp.where(even == 0, 0, even * jnp.log(largest) + jnp.log(total))

    # For odd K: T_E (1 + x^K/K!/T_E), whose last term is −e^δ where x is negative.
    logs = logs + jnp.where(odd, jnp.log((even + 1) / scale), 0)
    some = odd & (x != 0)
    delta = jnp.where(some, (even + 1) * jnp.log(jnp.where(some, jnp.abs(x), 1) / scale) - logs, 0)
    factor = jnp.where(some, jnp.where(x < 0, -jnp.expm1(delta), 1 + jnp.exp(delta)), 1)
    empty = factor == 0
    return jnp.where(empty, -jnp.inf, logs + jnp.log(jnp.abs(jnp.where(empty, 1, factor))))
