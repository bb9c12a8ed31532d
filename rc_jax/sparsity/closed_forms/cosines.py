"""Weights that are powers of the cosine between query and key: lengths drop out, and with them γ."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, zeta
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
    value of x^m for Gaussian logits with β = 0, 0.147 for m = 6. The difference of three log Γ that depends on d is
    evaluated as an integral of the trigamma function where d > m, which keeps its digits in single precision.

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
    gaussian = gammaln((power + 1) / 2) - gammaln(power + 0.5) / 2 - math.log(math.pi) / 4
    return gaussian + _convexity(dim / 2, power / 2) / 2


def _convexity(x: Array, step: Array) -> Array:
    """Second difference of log Γ at x, x + h, x + 2h, h = step: ∫₀^{2h} (h − |w − h|) ψ′(x + w) dw."""
    wide = x >= step
    nodes = jnp.asarray(_NODES + 1, x.dtype).reshape((1,) * x.ndim + (-1,)) / 2
    weights = jnp.asarray(_WEIGHTS, x.dtype).reshape(nodes.shape) / 2
    from_left = jnp.where(wide, step, 1)[..., None] * nodes
    start = jnp.where(wide, x, 1)[..., None]
    far = start + 2 * jnp.where(wide, step, 1)[..., None] - from_left
    curvature = zeta(jnp.full_like(far, 2), start + from_left) + zeta(jnp.full_like(far, 2), far)
    smooth = jnp.sum(weights * from_left * curvature, axis=-1) * step
    plain = gammaln(x) - 2 * gammaln(x + step) + gammaln(x + 2 * step)
    return jnp.where(wide, smooth, plain)
