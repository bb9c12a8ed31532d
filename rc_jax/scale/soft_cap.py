"""Softmax of soft-capped logits c tanh(αs/c): its annealed gradient, and the scale that maximises it."""

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common
from rc_jax.scale.closed_forms.annealed import at_least_two

_NODES = 1024  # of the quadrature over one score
_SMALLEST, _TRIED, _HALVINGS = 0.05, 200, 60  # scales that are tried first; halvings of the bracket around the best


@arguments.guard(n=at_least_two, cap=arguments.positive)
def capped_scale(n: ArrayLike, cap: ArrayLike) -> Float[Array, "..."]:
    """The scale α* at the first maximum of softmax's annealed gradient over n Gaussian scores with logits c tanh(αs/c).

    Half the sum of |∂p_i/∂s_j| is α Σ w p(1 − p), with w = 1/cosh²(αs/c) the slope of the cap. Numerator and
    denominator averaged apart, with ℓ = c tanh(αs/c) and M = E e^ℓ, it is

        α (E[w e^ℓ]/M − E[w e^{2ℓ}]/(n M²)).

    The first term is E[s e^ℓ]/M, the mean score under attention, because α w is the slope of ℓ in s (Stein's
    identity). At c = ∞ the whole is `annealed_objective`.

    Where c is far above log n it is `optimal_scale_exact`. Where log n is far above c it no longer depends on n:
    α* → κ√c for large c, with κ = √u cosh u = 1.1533 and u tanh u = ½. Attention then lies on scores near 0.669 √c.
    A cap far below 1 has α* near 2/c. Between the two, at c of the order of log n, the objective may fall and rise
    again past its first maximum: there a few keys dominate, and the annealed mean is not to be trusted.

    Args:
        n: number of keys, at least 2, any shape; need not be whole.
        cap: c > 0, the bound on the logits; broadcasts with n.

    Returns:
        α*, in the arguments' floating dtype; ∞ where the objective has no maximum, as for n = 2 and c = 1. In float32
        about five digits are right. It has no derivative.

    Raises:
        TypeError: if an argument is not real.
        ValueError: if n < 2, c <= 0, or the shapes do not broadcast.

    Source: the measure is Su Jianlin's (kexue.fm/archives/9812); for capped logits it is this package's own.

    Example:
        >>> from rc_jax.scale import capped_scale, optimal_scale_exact
        >>> print(f"{capped_scale(8192, 50.0):.3f} {optimal_scale_exact(8192):.3f} {capped_scale(8192, 5.0):.3f}")
        2.668 2.527 3.040
    """
    dtype, (n, cap) = as_common(n=n, cap=cap)
    return _scale(n, cap).astype(dtype)


def _objective(alpha: Array, n: Array, cap: Array) -> Array:
    """Trapezoidal sums over s = b sinh t, which is as fine near 0 as the cap's own width b = c/α asks for."""
    alpha, n, cap = jnp.broadcast_arrays(alpha, n, cap)
    # Past this score e^{2ℓ − s²/2} is below e^{−50}: 2ℓ is at most 2c and at most 2αs.
    last = 10 + 2 * jnp.minimum(jnp.sqrt(cap), 2 * alpha)
    width = jnp.minimum(1, cap / alpha)
    end = jnp.arcsinh(last / width)
    t = jnp.linspace(-end, end, _NODES, axis=-1)
    s = width[..., None] * jnp.sinh(t)
    capped = jnp.tanh((alpha / cap)[..., None] * s)
    slope = 1 - jnp.square(capped)
    step = width * end * (2 / (_NODES - 1) / math.sqrt(2 * math.pi))
    log_density = jnp.log(step)[..., None] + jnp.log(jnp.cosh(t)) - jnp.square(s) / 2

    # The weights of E[· e^{kℓ}]/E e^{kℓ} are softmaxes over the nodes, k = 1, 2.
    logits = cap[..., None] * capped
    once, twice = log_density + logits, log_density + 2 * logits
    share = jnp.exp(logsumexp(twice, axis=-1) - 2 * logsumexp(once, axis=-1) - jnp.log(n))
    first = jnp.sum(jax.nn.softmax(once) * slope, axis=-1)
    second = jnp.sum(jax.nn.softmax(twice) * slope, axis=-1)
    return alpha * (first - share * second)


@jax.jit
def _scale(n: Array, cap: Array) -> Array:
    """The first scale of a grid after which the objective falls, then bisection of its slope's sign around it."""
    n, cap = jnp.broadcast_arrays(n, cap)
    # The maximum is near √(log n) without a cap, and near κ√c or 2/c where the cap rules; few keys move it up.
    largest = 3 * (jnp.sqrt(jnp.log(n)) + 1.2 * jnp.sqrt(cap) + 1 / cap)
    powers = jnp.linspace(0, 1, _TRIED, dtype=n.dtype)

    def at(power: Array) -> Array:
        return _SMALLEST * (largest / _SMALLEST) ** power

    values = jax.lax.map(lambda power: _objective(at(power), n, cap), powers)
    falls = values[1:] < values[:-1]
    top = jnp.argmax(falls, axis=0)
    slope = jax.grad(lambda alpha: jnp.sum(_objective(alpha, n, cap)))

    def halve(_: Array | int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = (ends[0] + ends[1]) / 2
        rising = slope(middle) > 0
        return jnp.where(rising, middle, ends[0]), jnp.where(rising, ends[1], middle)

    ends = at(powers[jnp.maximum(top - 1, 0)]), at(powers[top + 1])
    low, high = jax.lax.fori_loop(0, _HALVINGS, halve, ends)
    best = jnp.where(jnp.any(falls, axis=0), (low + high) / 2, jnp.inf)
    return jnp.where((n >= 2) & (cap > 0), best, jnp.nan)
