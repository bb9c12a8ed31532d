"""Weights that are powers of the cosine between query and key: lengths drop out, and with them γ."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln, zeta
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


@arguments.guard(power=arguments.positive, dim=arguments.bounded(1))
def cosine_similarity_power(power: ArrayLike, dim: ArrayLike) -> Float[Array, "..."]:
    r"""Sparsity of weights a_j ∝ |cos∠(q, k_j)|^m (any sign) for keys k ~ N(0, σ²I_d) of any σ.

    cos² has a Beta(½, (d − 1)/2) law, so that E|cos|^m = A(m) = Γ((m+1)/2)Γ(d/2)/(√π Γ((m+d)/2)) and
    S = A(m)/√A(2m). It depends on neither the length of q nor σ; it is 1 in one dimension and falls as d → ∞ to the
    value of x^m for Gaussian logits with β = 0, 0.147 for m = 6. Differences of log Γ are evaluated as integrals of its
    derivatives, which keep their digits in single precision.

    Args:
        power: m > 0, not necessarily whole; any shape that broadcasts with `dim`.
        dim: Dimension d ≥ 1 of the keys.

    Returns:
        S, in the broadcast shape; a pure number.

    Source: this package's own.

    Example:
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.cosine_similarity_power(6, 64):.4f} {sparsity.cosine_similarity_power(6, 1e9):.4f}")
        0.1676 0.1471
    """
    dtype, (power, dim) = as_common(power=power, dim=dim, positive=("power",))
    inside = (power > 0) & (dim >= 1)
    return jnp.where(inside, jnp.exp(_log_sparsity(power, dim)), jnp.nan).astype(dtype)


@jax.jit
def _log_sparsity(power: Array, dim: Array) -> Array:
    """With h = m/2, x = d/2 and C the second difference of log Γ, log S = C(x, h)/2 − C(h + ¼, ¼)/2 − (h − ¼) log 2.

    Where d < m, Γ(x + 2h) is taken apart by the duplication formula, which leaves differences of log Γ over x/2.
    """
    h, x = power / 2, dim / 2
    wide = x >= h
    far, short = jnp.where(wide, x, 1), jnp.where(wide, h, 1)  # each form where it is taken, and elsewhere at ones
    many = _convexity(far, short) - 2 * (short - 0.25) * math.log(2)
    x, step = jnp.where(wide, 0.5, x), jnp.where(wide, 1, h)
    few = gammaln(x) + (x - 0.5) * math.log(2) - math.log(math.pi) / 2
    for length in (x / 2, (x - 1) / 2):
        few = few - _mean(digamma, step + x - length, length) * length
    return (jnp.where(wide, many, few) - _convexity(h + 0.25, jnp.full_like(h, 0.25))) / 2


def _mean(function: Callable[[Array], Array], start: Array, length: Array) -> Array:
    """Mean of a function over an interval, on Gauss's nodes."""
    nodes, weights = (
        jnp.asarray(each / 2, start.dtype).reshape((1,) * start.ndim + (-1,)) for each in (_NODES + 1, _WEIGHTS)
    )
    return jnp.sum(function(start[..., None] + length[..., None] * nodes) * weights, axis=-1)


def _convexity(x: Array, step: Array) -> Array:
    """Second difference of log Γ at x, x + h, x + 2h, h = step ≤ x: ∫₀^{2h} (h − |w − h|) ψ′(x + w) dw, by halves.

    It is h² times the mean of u(ψ′(x + uh) + ψ′(x + 2h − uh)) over u in [0, 1].
    """
    one = jnp.ones_like(x)

    def curvature(u: Array) -> Array:
        near, far = x[..., None] + u * step[..., None], x[..., None] + (2 - u) * step[..., None]
        return u * (zeta(jnp.full_like(near, 2), near) + zeta(jnp.full_like(far, 2), far))

    return jnp.square(step) * _mean(curvature, 0 * one, one)
