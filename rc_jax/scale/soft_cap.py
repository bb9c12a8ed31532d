"""Softmax of soft-capped logits c tanh(αs/c): its annealed gradient, and the scale that maximises it."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common
from rc_jax._numerics.roots import falling_root_by_halves, implicit_root

_NODES = 1024  # of the quadrature over one score
_SMALLEST, _PAST, _TRIED, _HALVINGS = 0.05, 10, 200, 60  # first and last scale of a grid, points, halvings after it
_NARROWEST, _FLAT = 1e-18, 40.0


@arguments.guard(n=arguments.bounded(2), cap=arguments.positive)
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
        α*, in the arguments' floating dtype, differentiable in n and c. It is ∞ where the objective has no maximum, as
        for n = 2 and c = 1. For n > 2 it has one; where that is no number of the dtype α* is NaN. The relative error is
        below 10 eps log n, and near n = 2 also of the order eps/(n − 2).

    Source: the measure is Su Jianlin's (kexue.fm/archives/9812); for capped logits it is this package's own.

    Example:
        >>> from rc_jax.scale import capped_scale, optimal_scale_exact
        >>> print(f"{capped_scale(8192, 50.0):.3f} {optimal_scale_exact(8192):.3f} {capped_scale(8192, 5.0):.3f}")
        2.668 2.527 3.040
    """
    dtype, (n, cap) = as_common(n=n, cap=cap)
    return _scale(n, cap).astype(dtype)


@jax.jit
def _scale(n: Array, cap: Array) -> Array:
    """The implicit root of `_rise` in log α; without one ∞ for n = 2, and NaN for n > 2, where α* leaves the dtype."""
    n, cap = jnp.broadcast_arrays(n, cap)
    log_scale, found = implicit_root(_rise, n, n, cap, search=_search)
    missing = jnp.where(n == 2, jnp.inf, jnp.nan)
    # Added, so that the derivative of what is missing is no number either.
    return jnp.where((n >= 2) & (cap > 0), jnp.exp(log_scale + jnp.where(found, 0, missing)), jnp.nan)


def _search(_: Array, n: Array, cap: Array) -> tuple[Array, Array]:
    """Log of the first scale at which `_rise` turns negative, on a grid and then by bisection, and whether it does."""
    # Far past the maximum: near √(log n) without a cap, near κ√c or 2/c where the cap rules. For n near 2 the
    # maximum is so far out that b = c/α is near 0, where `widths` and `saturation` have reached their limits.
    parts = _slope_parts(jnp.log(cap) - math.log(_NARROWEST), n, cap)
    plateau = jnp.log(jnp.abs(parts.widths / parts.saturation)) - jnp.log(cap)
    ruled = jnp.log(jnp.sqrt(jnp.log(n)) + 1.2 * jnp.sqrt(cap) + 1 / cap)
    most = math.log(float(jnp.finfo(n.dtype).max)) - 2
    last = jnp.minimum(math.log(_PAST) + jnp.fmax(ruled, jnp.where(n > 2, plateau, -jnp.inf)), most)

    first = math.log(_SMALLEST)
    powers = jnp.linspace(0, 1, _TRIED, dtype=n.dtype)
    falls = jax.lax.map(lambda power: _rise(first + power * (last - first), n, cap) < 0, powers)
    top = jnp.maximum(jnp.argmax(falls, axis=0), 1)
    low, high = (first + powers[index] * (last - first) for index in (top - 1, top))
    return falling_root_by_halves(lambda u: _rise(u, n, cap), low, high, _HALVINGS), jnp.any(falls, axis=0)


def _felt(cap: Array) -> Array:
    """A cap c above which the logits ℓ change by less than rounding: by ℓ³/3c², with ℓ below 700."""
    return jnp.minimum(cap, 1e3 / math.sqrt(float(jnp.finfo(cap.dtype).eps)))


class _SlopeParts(NamedTuple):
    """The two parts of the slope of the objective at fixed c, up to a common positive factor; see `_rise`."""

    widths: Array
    saturation: Array


def _rise(log_alpha: Array, n: Array, cap: Array) -> Array:
    """A positive multiple of the slope of the objective in α, whose digits hold where the objective is flat.

    With b = c/α, τ = tanh x, w = 1 − τ² and ⟨g⟩ = 2 ∫ φ(bx) g dx over x > 0, the objective is c F(b) by symmetry, and

        F = N₁/M − N₂/(n M²),   N_k = ⟨w cosh kcτ⟩,   M = b⟨cosh cτ⟩.

    Their slopes in b are dN_k/db = −b X_k with X_k = ⟨x² w cosh kcτ⟩, and dM/db = −c Y with Y = ⟨x w sinh cτ⟩. So

        −M² dF/db = b (X₁ M − X₂/n) − (c Y/M)(N₁ M − 2N₂/n),

    where every sum has positive terms. Both parts are divided by b here, and Y/c is of order 1 for a small cap.
    """
    parts = _slope_parts(log_alpha, n, cap)
    return parts.widths - jnp.exp(log_alpha + jnp.log(_felt(cap))) * parts.saturation


def _slope_parts(log_alpha: Array, n: Array, cap: Array) -> _SlopeParts:
    """X₁M − X₂/n and (Y/cM)(N₁M − 2N₂/n) of `_rise`, in one unit: trapezoidal sums over s = bx = width · sinh t."""
    # Below `_NARROWEST` both parts have reached their limits as b → 0, to rounding.
    cap = _felt(cap)
    b = jnp.exp(jnp.maximum(jnp.log(cap) - log_alpha, math.log(_NARROWEST)))
    last = 10 + 2 * jnp.minimum(jnp.sqrt(cap), 2 * cap / b)  # the densities e^{2ℓ − s²/2} and e^{ℓ − s²/2} end there
    width = jnp.minimum(1, b)
    end = jnp.arcsinh(last / width)
    t = jnp.linspace(jnp.zeros_like(end), end, _NODES // 2, axis=-1)
    x = (width / b)[..., None] * jnp.sinh(t)
    s, tau = b[..., None] * x, jnp.tanh(x)
    x = jnp.where(x < _FLAT, x, 0)  # beyond, w is 0 to every digit
    slope = jnp.where((x > 0) | (t == 0), 1 / jnp.square(jnp.cosh(x)), 0)
    steps = (width / b * end)[..., None] * jnp.cosh(t) * jnp.where(t == 0, 0.5, 1)  # dx, times the number of nodes

    # e^{kℓ − s²/2} relative to its largest value e^{K_k}.
    level = cap[..., None] * tau
    tops = [jax.lax.stop_gradient((k * level - jnp.square(s) / 2).max(axis=-1)) for k in (1, 2)]
    once, twice = (
        steps * jnp.exp(k * level - jnp.square(s) / 2 - top[..., None]) for k, top in zip((1, 2), tops, strict=True)
    )
    flipped = -jnp.expm1(-level)  # 1 − e^{−ℓ}
    even_once = once * (1 + jnp.exp(-2 * level)) / 2  # cosh ℓ
    even_twice = twice * (1 + jnp.exp(-4 * level)) / 2  # cosh 2ℓ
    odd = once * -jnp.expm1(-2 * level) / 2  # sinh ℓ
    above_one = once * jnp.square(flipped) / 2  # cosh ℓ − 1
    gain = twice * -jnp.expm1(-3 * level) * flipped / 2  # cosh 2ℓ − cosh ℓ

    def total(*factors: Array) -> Array:
        return jnp.sum(functools.reduce(jnp.multiply, factors), axis=-1)

    squares = jnp.square(x) * slope
    unit = total(steps * jnp.exp(-jnp.square(s) / 2))  # makes M a mean: 1 without logits
    mean = total(even_once) / unit
    # Terms in M e^{−K₁}, X₁ e^{−K₁} … count n e^{2K₁}, those in X₂ e^{−K₂} … count e^{K₂}: relative to the larger one.
    log_ratio = jnp.log(n) + 2 * tops[0] - tops[1]
    of_once = jnp.where(log_ratio < 0, jnp.exp(jnp.minimum(log_ratio, 0)), 1)
    of_twice = jnp.where(log_ratio > 0, jnp.exp(-jnp.maximum(log_ratio, 0)), 1)
    widths = of_once * total(squares, even_once) * mean - of_twice * total(squares, even_twice)

    # n N₁M − 2N₂, for few keys as n[N₁(M − 1) − (N₂ − N₁)] + (n − 2)N₂.
    first, second = total(slope, even_once), total(slope, even_twice)
    many = of_once * first * mean - 2 * of_twice * second
    few_n = jnp.minimum(n, 4)
    few = of_once * first * total(above_one) / unit + of_twice * ((few_n - 2) * second - few_n * total(slope, gain))
    pull = total(x * slope, odd / cap[..., None]) / (b * unit) / mean  # Y/(cM)
    return _SlopeParts(widths, pull * jnp.where(n < 4, few, many))
