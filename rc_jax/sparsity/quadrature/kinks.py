"""Kinks of a kernel: the checks that a kernel passes, and a search for kinks by bisection."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import as_common
from rc_jax.sparsity.quadrature import panels

LOCATE = "locate"
CORNER = 16  # a panel that is still unresolved after so many halvings is bracketed as far as that matters
CLEAR = 2.0**12  # of roundings from a bracket to the next edge: no node between the two is moved into the bracket
FINEST = 52
MOST = 2**14, 2**9  # panels at once, and more for each pair


def kinks_or_locate(name: str, value: Any) -> None:
    """A check for finite numbers or the word `"locate"`."""
    if isinstance(value, str):
        if value != LOCATE:
            raise ValueError(f"`{name}` must be numbers or {LOCATE!r}, got {value!r}")
    elif np.ndim(value) or not isinstance(value, list | tuple) or value:
        arguments.real(name, value)


def reach(dtype: Any) -> int:
    """The end of the quadrature, in deviations from the mean: beyond it the normal density underflows in `dtype`."""
    return 40 if jnp.dtype(dtype) == jnp.float64 else 20


def evaluated(f: Callable[[Array], Array], x: Array, *, probe: bool = True) -> Array:
    """|f(x)| in the dtype of `x`. Concrete values must be finite and, if `probe`, unchanged on a subset of `x`."""
    values = jnp.asarray(f(x))
    if jnp.issubdtype(values.dtype, jnp.complexfloating):
        raise TypeError(f"`f` must return real numbers, got {values.dtype}")
    if values.shape != x.shape:
        raise ValueError(f"`f` must be elementwise, got shape {values.shape} from {x.shape}")
    magnitude = jnp.abs(values.astype(x.dtype))
    numbers, points = arguments.concrete(magnitude), arguments.concrete(x)
    if numbers is None or points is None or not numbers.size:
        return magnitude
    numbers, points = np.ravel(numbers), np.ravel(points)
    if not np.all(np.isfinite(numbers)):
        first = np.argmin(np.abs(points) + np.where(np.isfinite(numbers), np.inf, 0))
        raise ValueError(
            f"`f` must be finite within {reach(x.dtype)} deviations of the mean, "
            f"got {np.ravel(np.asarray(values))[first]} at x = {points[first]:g}"
        )
    if probe:
        # An elementwise function gives some sixty of the points the same values without the others.
        step, slack = max(1, points.size // 61), float(np.finfo(points.dtype).eps) ** 0.5
        some, together = points[::step], numbers[::step]
        alone = np.abs(np.asarray(jnp.asarray(f(jnp.asarray(some))).astype(some.dtype)))
        if alone.shape != some.shape or not np.allclose(alone, together, rtol=slack, atol=slack * together.max()):
            worst = np.argmax(np.abs(alone - together)) if alone.shape == some.shape else 0
            raise ValueError(
                f"`f` must be elementwise, got a value at x = {some[worst]:g} that changes when other entries are "
                "left out"
            )
    return magnitude


@arguments.guard(gamma=arguments.positive)
def locate_kinks(f: Callable[[Array], Array], beta: ArrayLike, gamma: ArrayLike) -> Float[np.ndarray, " kink"]:
    r"""Points at which the quadrature of `from_kernel` should be split for a kernel whose kinks are not known.

    For every pair of β and γ the panels that the last Legendre coefficients of |f| or f² call unresolved are halved.
    Where halving goes on past 2⁻¹⁶ there may be a corner or a jump, which is bracketed until it no longer matters to S.
    What is steep, outside the brackets too, is split as often as it needs. The search runs on the host, outside `jit`,
    on concrete numbers.

    The search misses what falls between two nodes of a panel (a spike narrower than about γ/15) and kinks that do not
    matter to S at the given β and γ. On kernels with some thousands of kinks it gives up and returns nothing. The error
    of `from_kernel_with_error` does not rely on it.

    Args:
        f: The kernel, elementwise.
        beta: Mean β of the logits; any shape that broadcasts with `gamma`.
        gamma: Their standard deviation γ > 0.

    Returns:
        Points x, in ascending order; empty for kernels that are smooth on the scale of every γ.

    Raises:
        TypeError, ValueError: f is not real, not finite or not elementwise; an argument or a value of f is traced.

    Source: this package's own.

    Example:
        >>> import jax
        >>> from rc_jax import sparsity
        >>> kinks = sparsity.locate_kinks(lambda x: jax.nn.relu(x - 0.7), 0.0, 1.0)
        >>> print(f"{min(kinks, key=lambda x: abs(x - 0.7)):.3f}")
        0.700
    """
    _, (beta, gamma) = as_common(beta=beta, gamma=gamma)
    means, deviations = arguments.concrete(beta), arguments.concrete(gamma)
    if means is None or deviations is None:
        raise ValueError(
            "`kinks` must be located outside jit: call locate_kinks with concrete numbers, pass its result"
        )
    working, pairs = beta.dtype, np.stack([np.ravel(means), np.ravel(deviations)]).astype(float)
    limit = reach(working)
    shifted = np.concatenate([[-limit], np.arange(-limit, limit) + 2**0.5 - 1, [limit]])  # no round number is an edge

    # First pass: brackets of corners and jumps, of all pairs together, from panels of unit width.
    low, high, level = _unresolved(f, pairs, _split_at(pairs, shifted, np.zeros(0)), working)
    rounding = float(jnp.finfo(working).eps) * (np.abs(pairs[0]).max() + limit * pairs[1].max())
    corners = _brackets(low[level >= CORNER], high[level >= CORNER], pairs[1].min(), rounding)

    # Second pass: what is unresolved although the panels are split there is steep. It is split at all middles, of which
    # one is kept where several lie within a quarter of their panel.
    edges = np.arange(-limit, limit + 1.0)
    low, high, _ = _unresolved(f, pairs, _split_at(pairs, edges, corners), working)
    middles, quarters = (low + high) / 2, 2.0 ** np.floor(np.log2(high - low) - 2) if low.size else low
    _, first = np.unique(np.stack([quarters, np.floor(middles / quarters)]), axis=1, return_index=True)
    return np.unique(np.concatenate([corners, middles[first]]).astype(np.dtype(working)))


class Panels(NamedTuple):
    """Panels in ε, each with the index of the pair (β, γ) that it belongs to, and its ends."""

    pair: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def only(self, kept: np.ndarray) -> "Panels":
        """Those where `kept` is true."""
        return Panels(*(each[kept] for each in self))

    def halves(self) -> "Panels":
        """All left halves, then all right ones."""
        middle = (self.low + self.high) / 2
        ends = np.concatenate([self.low, middle]), np.concatenate([middle, self.high])
        return Panels(np.tile(self.pair, 2), *ends)


def _split_at(pairs: np.ndarray, edges: np.ndarray, corners: np.ndarray) -> Panels:
    """The panels of every pair (β, γ), between `edges` in ε and split at `corners` in x."""
    beta, gamma = pairs[:, :, None]
    points = np.clip((corners[None] - beta) / gamma, edges[0], edges[-1])
    every = np.sort(np.concatenate([np.broadcast_to(edges, (len(beta), edges.size)), points], axis=1), axis=1)
    pair = np.repeat(np.arange(len(beta)), every.shape[1] - 1)
    split = Panels(pair, every[:, :-1].ravel(), every[:, 1:].ravel())
    return split.only(split.high > split.low)


def _brackets(low: np.ndarray, high: np.ndarray, unit: float, rounding: float) -> np.ndarray:
    """Both ends of the narrowest panel around each corner, from panels that hold corners, and edges clear of it, in x.

    The kernel may jump inside a bracket. It does not at the edges on either side.
    """
    order = np.lexsort((high, low))
    low, high = low[order], high[order]
    corner = np.cumsum(np.diff(low, prepend=-np.inf) > 4 * 2.0**-CORNER * unit)
    narrowest = np.lexsort((high - low, corner))
    _, first = np.unique(corner[narrowest], return_index=True)
    low, high = low[narrowest[first]], high[narrowest[first]]
    away = CLEAR * rounding
    return np.unique(np.concatenate([low - away, low, high, high + away]))


def _unresolved(
    f: Callable[[Array], Array], pairs: np.ndarray, current: Panels, dtype: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All panels that the quadrature does not resolve, halved up to `FINEST` times: both ends in x, and halvings.

    There are none if they become too many.
    """
    nothing = np.zeros(0), np.zeros(0), np.zeros(0, int)
    found, whole = [nothing], None
    for level in range(FINEST):
        epsilon, logs = _logarithms(f, pairs, current, dtype, probe=level == 0)
        if whole is None:
            whole = _whole(current, epsilon, logs, pairs.shape[1])
        shift = np.abs(pairs[0] / pairs[1])[current.pair]
        current = current.only(_is_open(current, epsilon, logs, shift, whole, float(jnp.finfo(dtype).eps)))
        if current.pair.size > MOST[0] + MOST[1] * pairs.shape[1]:
            return nothing  # half a search is of no use
        if not current.pair.size:
            break
        beta, gamma = pairs[:, current.pair]
        found.append((beta + gamma * current.low, beta + gamma * current.high, np.full(current.pair.size, level)))
        current = current.halves()
    starts, stops, levels = (np.concatenate(part) for part in zip(*found, strict=True))
    return starts, stops, levels


def _logarithms(
    f: Callable[[Array], Array], pairs: np.ndarray, current: Panels, dtype: Any, *, probe: bool
) -> tuple[np.ndarray, np.ndarray]:
    """ε at the edges and nodes of every panel, and log |f| there."""
    beta, gamma = pairs[:, current.pair, None]
    width = (current.high - current.low)[:, None]
    epsilon = current.low[:, None] + width / 2 * np.concatenate([[0], panels.NODES + 1, [2]])
    x = beta + gamma * epsilon
    padding = 8 ** max(2, math.ceil(math.log(len(x), 8))) - len(x)  # up to a power of 8, for few programs
    numbers = arguments.concrete(
        evaluated(f, jnp.asarray(np.pad(x, ((0, padding), (0, 0)), "edge"), dtype), probe=probe)
    )
    if numbers is None:
        raise ValueError("`f` must be concrete for its kinks to be located: call locate_kinks outside jit")
    with np.errstate(divide="ignore"):
        return epsilon, np.log(numbers[: len(x)].astype(float))


class _Whole(NamedTuple):
    """Of |f|φ and f²φ for every pair, over all panels: the logarithm of the largest value, and the integral over it."""

    top: np.ndarray
    integral: np.ndarray


def _whole(current: Panels, epsilon: np.ndarray, logs: np.ndarray, count: int) -> _Whole:
    """The whole integrals, from panels that have not been halved."""
    tops, integrals = np.full((2, count), -np.inf), np.zeros((2, count))
    for row, power in enumerate((1, 2)):
        weighted = power * logs - epsilon**2 / 2
        np.maximum.at(tops[row], current.pair, weighted.max(-1))
        tops[row] = np.where(np.isfinite(tops[row]), tops[row], 0)
        sums = panels.sums(np.exp(weighted - tops[row, current.pair, None]), (current.high - current.low) / 2)
        integrals[row] = np.bincount(current.pair, sums, count)
    return _Whole(tops, integrals)


def _is_open(
    current: Panels, epsilon: np.ndarray, logs: np.ndarray, shift: np.ndarray, whole: _Whole, eps: float
) -> np.ndarray:
    """Where the last Legendre coefficients of |f|φ or f²φ stand out of rounding and matter beside the whole integral.

    A panel as narrow as the rounding of its nodes is not halved any more. `shift` is |β|/γ.
    """
    half, doubt = (current.high - current.low) / 2, 1 + shift + np.abs(current.low)  # of a node, in roundings
    size = np.where(np.isfinite(logs), np.abs(logs), 0).max(-1) + (epsilon**2).max(-1) + shift + 64
    is_open = np.zeros(len(half), bool)
    for row, power in enumerate((1, 2)):
        values = np.exp(power * logs - epsilon**2 / 2 - whole.top[row, current.pair, None])
        tail, misplaced = panels.bounds(values, half, eps * doubt)
        noise = 16 * eps * size * half * values.max(-1) + 6 * misplaced
        is_open |= (tail > noise) & (tail > eps / 64 * whole.integral[row, current.pair])
    return is_open & (current.high - current.low > 4 * eps * doubt)
