"""Gauss–Legendre sums over panels of a line, with bounds of their error that see kinks, jumps and oscillation.

A panel of 24 nodes determines a polynomial. Its last four Legendre coefficients are at the level of rounding where the
integrand is smooth on the panel, and are as large as the error of the sum, or larger, where it is not. What happens
between the outermost node and the edge is seen by comparing the polynomials of two neighbours at the edge they share.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

SIZE = 24
NODES, WEIGHTS = np.polynomial.legendre.leggauss(SIZE)
GAP = float(1 - NODES[-1])  # from the outermost node to the edge, in half widths
APART = float(np.diff(NODES).max() / 2)  # between two nodes at most, in units of the panel
LAST = 20  # coefficients from this degree on tell whether the integrand is resolved
NARROW, BESIDE = 256.0, 12  # half a panel of fewer doubts about its nodes has no polynomial; neighbours it is seen by
SAFETY = 4.0  # twice what single jumps, corners, roots, logarithms, steep steps and oscillations need at worst
UNKNOWN = 1e6  # times what is seen: nothing is known

_DEGREES = np.arange(SIZE)
_VALUES = np.polynomial.legendre.legvander(NODES, SIZE - 1)
_COEFFICIENTS = (_VALUES * WEIGHTS[:, None]) * (_DEGREES + 0.5)  # value at a node → coefficient of a degree
_SLOPES = np.polynomial.legendre.legval(NODES, np.polynomial.legendre.legder(np.eye(SIZE)))  # (degree, node)
# Maps values at the nodes of a panel to the coefficients from LAST on, to the polynomial at the left and at the right
# edge, and to its slope at every node times the node's weight.
ANALYSIS = np.concatenate(
    [
        _COEFFICIENTS[:, LAST:],
        (_COEFFICIENTS * (-1.0) ** _DEGREES).sum(1, keepdims=True),
        _COEFFICIENTS.sum(1, keepdims=True),
        _COEFFICIENTS @ _SLOPES * WEIGHTS,
    ],
    axis=1,
)


def positions(edges: Float[Array, "... edge"]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Nodes and weights of every panel, both of shape (..., panel, node)."""
    half = jnp.diff(edges)[..., None] / 2
    shape = (1,) * (half.ndim - 1) + (SIZE,)
    nodes, weights = (jnp.asarray(rule, edges.dtype).reshape(shape) for rule in (NODES + 1, WEIGHTS))
    return edges[..., :-1, None] + half * nodes, half * weights


def error_bound(
    values: Float[Array, "..."],
    edges: Float[Array, "... edge"],
    known: Bool[Array, "... edge"],
    doubt: Float[Array, "..."],
) -> Float[Array, "..."]:
    """A bound of the error of the sum over all panels, from `values` of shape (..., panel, node).

    At a `known` edge the integrand may jump: there a jump costs only the uncertainty of the edge. `doubt` is the
    uncertainty of every node's position, in the units of the edges.
    """
    shape = (1,) * (values.ndim - 2) + ANALYSIS.shape
    analysed = jnp.matmul(values, jnp.asarray(ANALYSIS, values.dtype).reshape(shape), precision="highest")
    # Unresolved panels, nodes in doubt (slope and weight in half widths cancel), and neighbours that differ at an edge.
    tail, slopes = analysed[..., : SIZE - LAST], analysed[..., SIZE - LAST + 2 :]
    half = jnp.diff(edges) / 2
    unresolved = SAFETY * half * jnp.max(jnp.abs(tail), axis=-1)
    misplaced = jnp.sum(jnp.abs(slopes) * doubt, axis=-1)
    jump = jnp.abs(analysed[..., :-1, SIZE - LAST + 1] - analysed[..., 1:, SIZE - LAST])
    blind = GAP * (half[..., :-1] + half[..., 1:])
    least = jnp.maximum(doubt[..., :-1, -1], doubt[..., 1:, 0])
    at_edges = jump * jnp.where(known[..., 1:-1], least, blind)
    crowded = _crowded(values, edges, doubt)
    unseen = _between_nodes(values, edges, unresolved, half < NARROW * jnp.max(doubt, axis=-1))
    return jnp.sum(unresolved + misplaced + crowded, axis=-1) + jnp.sum(at_edges, axis=-1) + unseen


def _between_nodes(
    values: Float[Array, "..."],
    edges: Float[Array, "... edge"],
    unresolved: Float[Array, "... panel"],
    narrow: Bool[Array, "... panel"],
) -> Float[Array, "..."]:
    """A bound of what poles hold between the nodes of panels that are not `narrow`, which `_crowded` looks after.

    A pole leaves its panel `unresolved` by about the value at the next node times the space between nodes. Around its
    pole |x|^−q holds 2h/(1 − q) times its value at the distance h. The power q is read off at the nodes on either side
    of the largest one, as if the pole stood there. It stands beside it, so the larger reading is at least q. It is
    nearer to the largest node than to the next one, so the largest value is (1 + 2d/d')^q times the one on the other
    side or more, at distances d' and d of these; a smooth hump is flatter. What nodes miss is q/(1 − q) of what they
    see, of which `unresolved` has the part q, as for a logarithm. From q = 0.97 on nothing is known.
    """
    count = values.shape[-2] * SIZE
    places = positions(edges)[0].reshape(*edges.shape[:-1], count)
    heights = values.reshape(*values.shape[:-2], count)
    logs = jnp.log(jnp.maximum(heights, float(jnp.finfo(values.dtype).tiny)))

    def at(x: Array, step: int) -> Array:
        return x[..., 3 + step : count - 3 + step]

    def distance(step: int) -> Array:
        return jnp.abs(at(places, step) - at(places, 0))

    def power(side: int) -> Array:
        close, away = distance(side), distance(3 * side)
        apart = (close > 0) & (away > 1.5 * close)
        ratio = jnp.where(apart, away / jnp.where(close > 0, close, 1), 2)
        return jnp.where(apart, (at(logs, side) - at(logs, 3 * side)) / jnp.log(ratio), 0)

    def rise(side: int) -> Array:
        further, nearer = distance(side), distance(-side)
        ratio = 2 * further / jnp.where(nearer > 0, nearer, 1)
        return jnp.where(nearer > 0, (at(logs, 0) - at(logs, side)) / jnp.log1p(ratio), jnp.inf)

    powers = jnp.minimum(jnp.maximum(power(-1), power(1)), jnp.maximum(rise(-1), rise(1)))
    peak = (at(heights, 0) >= at(heights, -1)) & (at(heights, 0) >= at(heights, 1))
    beside = jnp.pad(unresolved, [(0, 0)] * (unresolved.ndim - 1) + [(1, 1)])
    beside = jnp.maximum(jnp.maximum(beside[..., :-2], beside[..., 2:]), unresolved)
    peak &= at(jnp.repeat(~narrow, SIZE, axis=-1), 0)
    seen = (at(places, 1) - at(places, -1)) * at(heights, 0)
    seen = jnp.minimum(seen, SAFETY * at(jnp.repeat(beside, SIZE, axis=-1), 0))
    q = jnp.clip(powers, 0, 0.97)
    held = seen * jnp.where(powers < 0.97, q**2 / (1 - q), UNKNOWN)
    return jnp.sum(jnp.where(peak, held, 0), axis=-1)


def _crowded(
    values: Float[Array, "..."], edges: Float[Array, "... edge"], doubt: Float[Array, "..."]
) -> Float[Array, "..."]:
    """A bound of what panels of few doubts about their nodes hold, where the integrand may have a pole.

    If it grows like |x|^{−q} towards a point of the panel, a panel of half width h holds up to 2h/(1 − q) times the
    value at the distance h. The power is read off between the panel's typical value and that of the first of its next
    `BESIDE` neighbours on either side that is far enough. From q = 0.97 on nothing is known.
    """
    half, middle = jnp.diff(edges) / 2, (edges[..., :-1] + edges[..., 1:]) / 2
    doubts, tiny = jnp.max(doubt, axis=-1), float(jnp.finfo(values.dtype).tiny)
    most, typical = jnp.max(values, axis=-1), jnp.median(values, axis=-1)
    last = half.shape[-1] - 1

    def power(step: int) -> tuple[Array, Array]:
        side = jnp.clip(jnp.arange(last + 1) + step, 0, last)
        growth = jnp.log(jnp.maximum(typical, tiny)) - jnp.log(jnp.maximum(typical[..., side], tiny))
        ratio = 2 * jnp.abs(middle[..., side] - middle) / jnp.maximum(half, doubts)
        return ratio > 64, growth / jnp.log(jnp.maximum(ratio, 64))

    powers = jnp.full_like(half, jnp.inf)  # the smaller of both sides: on one of them the integrand may be 0
    for sign in (-1, 1):
        on_side = jnp.full_like(half, jnp.inf)
        for away in range(BESIDE, 0, -1):
            far_enough, here = power(sign * away)
            on_side = jnp.where(far_enough, here, on_side)
        powers = jnp.minimum(powers, on_side)
    # What it holds above its value at the ends; what the nodes see of a jump is in the polynomial.
    bounded = jnp.clip(powers, 0, 0.97)
    held = 4 * SAFETY * half * most * bounded / (1 - bounded)
    narrow = (half > 0) & (half < NARROW * doubts)
    return jnp.where(narrow, jnp.where(powers < 0.97, held, jnp.inf), 0)


def sums(values: np.ndarray, half: np.ndarray) -> np.ndarray:
    """The sum over every single panel, on the host, from values at edge, nodes and edge."""
    return half * (values[..., 1:-1] @ WEIGHTS)


def bounds(values: np.ndarray, half: np.ndarray, doubt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A bound of the error of every single panel's sum, and what the `doubt` about its nodes costs, on the host.

    `values` are those at edge, nodes and edge: one at an edge that the polynomial misses counts as well.
    """
    tail, edges, slopes = np.split(values[..., 1:-1] @ ANALYSIS, [SIZE - LAST, SIZE - LAST + 2], axis=-1)
    missed = np.abs(edges - values[..., [0, -1]]).max(-1)
    return SAFETY * half * (np.abs(tail).max(-1) + GAP * missed), np.abs(slopes).sum(-1) * doubt
