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
SAFETY = 4.0  # twice what single jumps, corners, roots, logarithms, steep steps and oscillations need at worst

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
    return jnp.sum(unresolved + misplaced, axis=-1) + jnp.sum(at_edges, axis=-1)


def sums_and_bounds(values: np.ndarray, half: np.ndarray, *, ends: bool) -> tuple[np.ndarray, np.ndarray]:
    """The sum over every single panel and a bound of its error, on the host, from values at edge, nodes and edge.

    `ends` says whether the values at the edges count; they do not where the integrand may jump there.
    """
    inner = values[..., 1:-1]
    analysed = inner @ ANALYSIS[:, : SIZE - LAST + 2]
    tail, missed = np.abs(analysed[..., :-2]).max(-1), np.abs(analysed[..., -2:] - values[..., [0, -1]]).max(-1)
    return half * (inner @ WEIGHTS), SAFETY * half * (tail + GAP * missed * ends)
