"""Sparsity of any kernel under Gaussian keys, by quadrature that is split at kinks and knows its own error."""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common
from rc_jax.sparsity.quadrature import panels
from rc_jax.sparsity.quadrature.kinks import evaluated, kinks_or_locate, locate_kinks, reach

ACCURACY = {"float32": 5e-4, "float64": 1e-9}  # of S, relative: what `from_kernel` promises where it can keep it
_NUMBERS = 2**22  # nodes at a time when S is computed again with located kinks
_PAIRS, _ROUNDS = 16, 4  # kinks are located for so many pairs at a time, so often


class Estimate(NamedTuple):
    """A number by quadrature, and how far it can be from the truth.

    Attributes:
        value: The number.
        error: A bound of |value − truth|; infinite where the value is NaN.
    """

    value: Float[Array, "..."]
    error: Float[Array, "..."]


def from_kernel(
    f: Callable[[Array], Array], beta: ArrayLike, gamma: ArrayLike, *, kinks: ArrayLike | Sequence[float] | str = ()
) -> Float[Array, "..."]:
    r"""Sparsity of attention with weights a_j ∝ f(q·k_j), for any elementwise f: S = E|f(β+γε)| / √E f(β+γε)².

    The value of `from_kernel_with_error`, which has the method, and says how far it can be off. What is promised of S
    depends on whether numbers are known when it is called.

    * Outside `jit`, `vmap` and `grad` the bound of the error is compared with 5e-4·S in float32 (in half precisions
      too, up to their own rounding) and with 1e-9·S in float64. Where it is larger and no kinks are declared, kinks are
      located (`locate_kinks`), at a price of some 50 ms for a dozen pairs (β, γ), and S is computed again. A
      `RuntimeWarning` says where the bound is larger even then, or with declared kinks.
    * On traced numbers no kinks are located and no warning is given: an undeclared corner of f costs up to 1e-2·S, an
      undeclared jump up to 1e-1·S and more in the tails. Declare the kinks, or pass those of `locate_kinks`.

    The bound holds unless f hides something between two nodes; see there.

    Args:
        f: The kernel, elementwise; it receives an array of the working dtype with extra axes.
        beta: Mean β = q·μ of the logits of one row; any shape that broadcasts with `gamma`.
        gamma: Their standard deviation γ = σ‖q‖ > 0.
        kinks: Points x where f, or |f|, or a low derivative of it jumps: (0,) for max(x, 0)² and for |x|; or
            `"locate"` to locate them always (`locate_kinks`).

    Returns:
        S, in the broadcast shape; a pure number. NaN where f is zero, or loses its range, on all nodes.

    Raises:
        TypeError, ValueError: f is not real, not finite or not elementwise.

    Warns:
        RuntimeWarning: S is not known to the accuracy above.

    Source: Su Jianlin, kexue.fm/archives/9889, the definition; the quadrature is this package's own.

    Example:
        >>> import jax
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.from_kernel(jax.nn.relu, 0.0, 1.0, kinks=(0.0,)):.6f}")
        0.564190
        >>> print(f"{sparsity.from_kernel(lambda x: x > 0.7, 0.0, 1.0):.6f}")  # the jump is located: √Φ(−0.7)
        0.491898
    """
    beta, gamma, dtype, (value, error) = _estimate(f, beta, gamma, kinks=kinks)
    numbers, errors = arguments.concrete(value), arguments.concrete(error)
    if numbers is None or errors is None:
        return _returned(value, error, dtype).value
    accuracy = ACCURACY[value.dtype.name]
    vague = errors > accuracy * numbers  # false where S is NaN

    # Kinks are located for some of the pairs whose error is too large, then for some of those that stay so.
    points = np.zeros(0, value.dtype)
    for _ in range(_ROUNDS if not isinstance(kinks, str) and not np.size(kinks) else 0):
        if not vague.any():
            break
        some = np.flatnonzero(vague)[np.linspace(0, vague.sum() - 1, min(_PAIRS, vague.sum())).astype(int)]
        points = np.union1d(points, locate_kinks(f, jnp.ravel(beta)[some], jnp.ravel(gamma)[some]))
        again = _in_parts(f, beta, gamma, _padded(points))
        numbers, errors = (np.where(vague, new, old) for new, old in zip(again, (numbers, errors), strict=True))
        vague = errors > accuracy * numbers
    if vague.any():
        worst = np.argmax(np.where(vague, errors / numbers, 0))
        at = ", ".join(f"{name} = {jnp.ravel(values)[worst]:g}" for name, values in (("beta", beta), ("gamma", gamma)))
        warnings.warn(
            f"from_kernel: S = {np.ravel(numbers)[worst]:.3g} at {at} can be off by {np.ravel(errors)[worst]:.1g}, "
            f"more than {accuracy:g} of it; declare the `kinks` of `f`, and see from_kernel_with_error",
            RuntimeWarning,
            stacklevel=2,
        )
    return _returned(jnp.asarray(numbers), jnp.asarray(errors), dtype).value


def from_kernel_with_error(
    f: Callable[[Array], Array], beta: ArrayLike, gamma: ArrayLike, *, kinks: ArrayLike | Sequence[float] | str = ()
) -> Estimate:
    r"""`from_kernel`, and a bound of its error that holds whether or not every kink has been declared.

    Both integrals run over ε in [−40, 40] ([−20, 20] in float32) in panels of width 1 with 24 Gauss–Legendre nodes,
    split again at every kink, relative to their largest term. The error adds up, panel by panel, four times the largest
    of the last four Legendre coefficients, the mismatch of neighbouring panels at their common edge, the doubt about
    the places of nodes and declared kinks, rounding, and a tail beyond the ends. An undeclared kink, a steep step or an
    oscillation leaves large coefficients and so a large error.

    The bound holds unless f hides something: what falls between two nodes, a feature narrower than about γ/15, cannot
    be seen unless a kink is declared there. What a pole |x|^−p may hold between nodes, or within rounding of a located
    one, counts, which leaves little known of S near p = ½. Beyond the ends |f|φ and f²φ are taken to fall at least like
    the power of |ε| that they fall like at the ends (log against log |ε| is concave, as it is for bounded f,
    polynomials, exponentials and e^{x²/4}/|x|^p); where the last three panels deny that, or the power has no integral,
    the error is 1. The error carries no gradient.

    Args:
        f: The kernel, elementwise; it receives an array of the working dtype with extra axes.
        beta: Mean β = q·μ of the logits of one row; any shape that broadcasts with `gamma`.
        gamma: Their standard deviation γ = σ‖q‖ > 0.
        kinks: Points x where f, or |f|, or a low derivative jumps, or `"locate"`, as for `from_kernel`.

    Returns:
        `value`, S in the broadcast shape, and `error`, at most 1 as S is between 0 and 1; infinite where S is NaN.

    Raises:
        TypeError, ValueError: f is not real, not finite or not elementwise.

    Source: this package's own.

    Example:
        >>> import jax
        >>> from rc_jax import sparsity
        >>> declared = sparsity.from_kernel_with_error(jax.nn.relu, 0.3, 1.0, kinks=(0.0,))
        >>> missed = sparsity.from_kernel_with_error(jax.nn.relu, 0.3, 1.0)
        >>> bool(declared.error < 2e-5 < missed.error)
        True
    """
    _, _, dtype, estimate = _estimate(f, beta, gamma, kinks=kinks)
    return _returned(*estimate, dtype)


@arguments.guard(gamma=arguments.positive, kinks=kinks_or_locate)
def _estimate(
    f: Callable[[Array], Array], beta: ArrayLike, gamma: ArrayLike, *, kinks: ArrayLike | Sequence[float] | str
) -> tuple[Array, Array, Any, tuple[Array, Array]]:
    """β and γ in the working dtype, the dtype of the result, and (S, bound of its error) in the working dtype."""
    dtype, (beta, gamma) = as_common(beta=beta, gamma=gamma, positive=("gamma",))
    if isinstance(kinks, str):
        return beta, gamma, dtype, _split(f, beta, gamma, _padded(locate_kinks(f, beta, gamma)), declared=False)
    return beta, gamma, dtype, _split(f, beta, gamma, kinks, declared=True)


def _padded(kinks: np.ndarray) -> np.ndarray:
    """Kinks, and infinite ones up to a multiple of 64: few lengths, for few programs."""
    return np.concatenate([kinks, np.full(-kinks.size % 64, np.inf, kinks.dtype)])


def _in_parts(
    f: Callable[[Array], Array], beta: Array, gamma: Array, kinks: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`_split` at located kinks for so many pairs at a time that memory stays bounded."""
    size = max(1, _NUMBERS // (panels.SIZE * (kinks.size + 2 * reach(beta.dtype))))
    pairs = [(jnp.ravel(beta)[at : at + size], jnp.ravel(gamma)[at : at + size]) for at in range(0, beta.size, size)]
    parts = [_split(f, *pair, kinks, declared=False) for pair in pairs]
    value, error = (np.concatenate([np.asarray(part[k]) for part in parts]).reshape(beta.shape) for k in (0, 1))
    return value, error


def _split(
    f: Callable[[Array], Array], beta: Array, gamma: Array, kinks: ArrayLike | Sequence[float], *, declared: bool
) -> tuple[Array, Array]:
    """S and the bound of its error from panels that are split at `kinks`; NaN where γ is not positive.

    The integrand may jump at `declared` kinks. Those that were located are edges like all others: what they miss of a
    steep slope is a mismatch of neighbours.
    """
    edges, known, epsilon, weights, x = _nodes(beta, gamma, jnp.ravel(jnp.asarray(kinks, beta.dtype)), declared)
    value, error = _ratio(evaluated(f, x), epsilon, weights, edges, known, jnp.abs(beta) / gamma)
    return jnp.where(gamma > 0, value, jnp.nan), error


@functools.partial(jax.jit, static_argnames="dtype")
def _returned(value: Array, error: Array, dtype: Any) -> Estimate:
    """Value and error in `dtype`; the error covers what the value loses by that, and is itself rounded up."""
    cast, info = value.astype(dtype), jnp.finfo(dtype)
    error = error + lax.stop_gradient(jnp.abs(cast.astype(value.dtype) - value))
    up = (error * (1 + float(info.eps)) + float(info.tiny)).astype(dtype)
    return Estimate(cast, jnp.where(jnp.isnan(cast), jnp.inf, jnp.minimum(up, 1)))  # S and its truth are in [0, 1]


@functools.partial(jax.jit, static_argnames="declared")
def _nodes(beta: Array, gamma: Array, kinks: Array, declared: bool) -> tuple[Array, Array, Array, Array, Array]:
    """Edges of the panels in ε, which of them are declared, nodes and weights in ε, and nodes in x."""
    beta, gamma = beta[..., None], gamma[..., None]
    limit, lead, shift = reach(beta.dtype), beta.shape[:-1], jnp.abs(beta / gamma)

    # Edges: every integer, and every kink; where two are equal up to rounding and one is declared, both are.
    points = (jnp.broadcast_to(kinks, (*lead, kinks.size)) - beta) / gamma
    fixed = jnp.broadcast_to(jnp.arange(-limit, limit + 1, dtype=beta.dtype), (*lead, 2 * limit + 1))
    edges = jnp.concatenate([jnp.clip(points, -limit, limit), fixed], axis=-1)
    known = jnp.broadcast_to(jnp.arange(edges.shape[-1]) < kinks.size * declared, edges.shape)
    edges, known = lax.sort((edges, known), num_keys=1)
    same, no = jnp.diff(edges) <= _doubt(edges[..., 1:], shift), jnp.zeros_like(known[..., :1])
    known |= jnp.concatenate([no, same & known[..., :-1]], axis=-1) | jnp.concatenate(
        [same & known[..., 1:], no], axis=-1
    )

    # f may have no value at a declared edge, so nodes keep off it by the doubt about it. In a panel without space for
    # that, whose weight is rounding, they stand just below the panel.
    epsilon, weights = panels.positions(edges)
    doubt = jnp.where(known, _doubt(edges, shift), 0)
    low, high = (edges + doubt)[..., :-1, None], (edges - doubt)[..., 1:, None]
    apart = jnp.where(low < high, jnp.clip(epsilon, low, high), (edges - 2 * doubt)[..., :-1, None])
    return edges, known, epsilon, weights, beta[..., None] + gamma[..., None] * apart


def _doubt(epsilon: Array, shift: Array) -> Array:
    """How far rounding can move a node ε of x = β + γε, with `shift` = |β|/γ."""
    return 4 * jnp.finfo(epsilon.dtype).eps * (shift + jnp.abs(epsilon) + 1)


@jax.jit
def _ratio(
    magnitude: Array, epsilon: Array, weights: Array, edges: Array, known: Array, shift: Array
) -> tuple[Array, Array]:
    """S and the bound of its error from |f| at the nodes; `shift` is |β|/γ."""
    # Both integrals from logarithms, ∫|f|φ and ∫f²φ, each relative to its largest term.
    empty = magnitude == 0
    logs = jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1, magnitude)))
    both = jnp.stack([logs, 2 * logs]) - jnp.square(epsilon)[None] / 2
    doubt = _doubt(epsilon, shift[..., None, None])
    totals, tops, off = _integral(both, *(part[None] for part in (epsilon, weights, edges, known, doubt)))

    # S = I₁/√I₂, off by at most (1 + off₁)/√(1 − off₂) − 1 of itself; S is at most 1, and its gradient stays.
    value = totals[0] / jnp.sqrt(totals[1]) * jnp.exp(tops[0] - tops[1] / 2 - math.log(2 * math.pi) / 4)
    error = value * ((1 + off[0]) / jnp.sqrt(jnp.where(off[1] < 1, 1 - off[1], 1)) - 1)
    above = lax.stop_gradient(jnp.minimum(1 - value, 0))
    placed = jnp.max(doubt, axis=(-2, -1)) < panels.APART  # else steps of x are as wide as what lies between nodes
    return value + above, lax.stop_gradient(jnp.where((off[1] < 1) & placed, error, 1))


def _integral(
    logs: Array, epsilon: Array, weights: Array, edges: Array, known: Array, doubt: Array
) -> tuple[Array, Array, Array]:
    """∫ e^{logs − top} over all panels, top, and the integral's relative error."""
    top = lax.stop_gradient(jnp.max(logs, axis=(-2, -1), keepdims=True))
    values = jnp.exp(logs - top)
    parts = weights * values
    total = jnp.sum(parts, axis=(-2, -1))
    # Rounding: a few units for every logarithm that is exponentiated.
    size = jnp.where(jnp.isfinite(logs), jnp.abs(logs), 0) + jnp.square(epsilon) + 16
    rounding = jnp.finfo(edges.dtype).eps * jnp.sum(parts * size, axis=(-2, -1))
    values, parts, edges, epsilon = lax.stop_gradient((values, parts, edges, epsilon))  # an error carries no gradient
    error = panels.error_bound(values, edges, known, doubt) + rounding
    error = error + _beyond(parts, epsilon) + _beyond(parts, -epsilon)
    return total, top[..., 0, 0], error / total


def _beyond(parts: Array, epsilon: Array) -> Array:
    """A bound of the tail beyond ε = limit =: L, from the last three panels; infinite where there is none.

    Let log g be a concave function of log ε from there on: g falls like a power, or faster. The power h that has the
    integrals of g over the last two panels is met by g once in each of them, and is above g on either side of both.
    With v = (1 − 1/L)^{1−p} for h = ε^{−p}, and (1 − 1/L)^k = 1 − 2/L, (1 − 1/L)^m = 1 − 3/L, the integrals of h over

        the tail : the last panel : the one before : the third last   are as   1 : v − 1 : v^k − v : v^m − v^k.
    """
    limit, eps = reach(epsilon.dtype), float(jnp.finfo(epsilon.dtype).eps)
    rounding = eps * limit**2  # relative, of what logarithms lose
    k, m = (math.log1p(-panel / limit) / math.log1p(-1 / limit) for panel in (2, 3))
    last, before, third = (
        jnp.sum(jnp.where((epsilon > limit - panel) & (epsilon <= limit - panel + 1), parts, 0), axis=(-2, -1))
        for panel in (1, 2, 3)
    )
    has_tail = last > 0

    # The power with the ratio of the last two panels. It has an integral, p > 1, where that is above k − 1.
    ratio = jnp.minimum(before / jnp.where(has_tail, last, 1), 1e6) * (1 - rounding)
    has_integral = ratio > k - 1
    v = _base_of_power(jnp.where(has_integral, ratio, k), k)

    # Further in, h is above g. Where the third last panel holds more than h does, log g is not concave there; that
    # matters unless the last panel, L times over, is lost in the whole.
    convex = third * (v - 1) > (1 + 16 * rounding) * last * (v**m - v**k)
    matters = last * limit > eps * jnp.sum(parts, axis=(-2, -1))
    unknown = ~has_integral | (convex & matters)
    return jnp.where(has_tail, jnp.where(unknown, jnp.inf, last / (v - 1)), 0)


def _base_of_power(ratio: Array, k: float) -> Array:
    """The v > 1 with (v^k − v)/(v − 1) = ratio, by Newton's steps from above: the left side is convex and rising."""

    def newton(_: int | Array, v: Array) -> Array:
        powers = v**k
        value = (powers - v) / (v - 1)
        return v - (value - ratio) / ((k * powers / v - 1 - value) / (v - 1))

    return lax.fori_loop(0, 6, newton, ratio)
