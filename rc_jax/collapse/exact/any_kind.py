"""Weights of any differentiable kind on split tokens (`rc_jax.collapse.exact.state`), without cancellation.

Row i of the weights is w(c + e^m E_i), with scores c that all rows share and differences e^m E_i. Its difference from
w(c) is the integral of w's own derivative along the way,

    w(c + e^m E) − w(c) = e^m ∫₀¹ J_w(c + t e^m E) E dt,

by Gauss–Legendre quadrature of `jax.jvp` where |e^m E| < 0.1, and the plain difference elsewhere, which has lost one
digit there. The factor e^m is never inside, so no digit is lost however small it is. This package's own result.

What the record of a kind says decides what is left out on paper. Where a constant in a row changes nothing, E holds
the products of two differences alone, e^{2ℓ}; elsewhere also the row's level, e^ℓ. Where rows have equal sums, the mean
of the values drops out, which leaves their difference, e^ℓ; elsewhere the mean stays. What follows for a layer is
`rc_jax.collapse.kinds.predicted_order`.

A kink on the way, weights below the smallest number, and a derivative that is not finite make the result NaN.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rc_jax.attention import Kind
from rc_jax.collapse.exact.state import Columns, Logits, sum_at_largest

_NEAR = 0.1  # of the largest difference of a score, below which weights are integrated and not subtracted
_PART = 2.0**-8  # of the weights, above which their difference has lost at most eight bits


def by_kind(
    levels: Columns,
    logits: Logits,
    seen: Bool[Array, "#head token column"] | None,
    value: Columns,
    kind: Kind,
    weights: Callable[[Array], Array],
    precision: str,
) -> Columns:
    """Heads whose weights are `weights(level_i + r_j + cÊ_ij)`, a function that hides what is not seen."""
    moved, log_moved = logits.pair, logits.log_pair
    centre = logits.common
    if not kind.shift_invariant:
        whole = jnp.broadcast_to(levels.rows, moved.shape)
        moved, log_moved = sum_at_largest(jnp.stack([whole, moved]), jnp.stack([levels.log_size, log_moved]))
        centre = centre + levels.mean
    if seen is not None:
        moved = jnp.where(seen, moved, 0)
    if kind.shift_invariant:  # scores that move alike, as a single one does, leave the weights of their row as they are
        shown = jnp.ones_like(moved, dtype=bool) if seen is None else seen
        most, least = (jnp.max(jnp.where(shown, x, -jnp.inf), axis=-1, keepdims=True) for x in (moved, -moved))
        moved = jnp.where(most == -least, 0, moved)
    base = jnp.broadcast_to(centre[:, None], moved.shape)
    before = weights(base)
    change, log_change = _change(weights, base, before, moved, log_moved, kind.sparse)

    # Rows that see the same columns have the same weights before they move.
    across = before - before[:, :1]
    if seen is None:
        across = jnp.zeros_like(across)
    else:
        across = jnp.where(jnp.all(seen == seen[:, :1], axis=-1, keepdims=True), 0, across)
    if kind.row_sum != "any":
        change = _with_zero_sums(change, before)
    if kind.row_sum == "one":
        across = _with_zero_sums(across, before)

    def through(rows: Array, *, equal_sums: bool) -> tuple[Array, Array]:
        """Rows of weights times v̄, which is nothing where all rows have the same sum, and times V̂."""
        sums = jnp.zeros_like(rows[..., :1]) if equal_sums else jnp.sum(rows, axis=-1, keepdims=True)
        return sums * value.mean[:, None], jnp.einsum("hij,hjk->hik", rows, value.rows, precision=precision)

    first = before[:, :1]
    level, spread = through(first, equal_sums=False)
    outputs = [*through(across, equal_sums=kind.row_sum == "one"), *through(change, equal_sums=kind.row_sum != "any")]
    none = jnp.zeros_like(log_change)
    rows, log_size = sum_at_largest(
        jnp.stack(outputs), jnp.stack([none, value.log_size, log_change, log_change + value.log_size])
    )
    return Columns(level[:, 0] + jnp.exp(value.log_size)[:, None] * spread[:, 0], rows, log_size)


def _change(
    weights: Callable[[Array], Array],
    base: Float[Array, "head token column"],
    before: Float[Array, "head token column"],
    moved: Float[Array, "head token column"],
    log_moved: Float[Array, " head"],
    sparse: bool,
) -> tuple[Float[Array, "head token column"], Float[Array, " head"]]:
    """D and m with weights(base + e^log_moved · moved) − before = e^m D."""
    limits = jnp.finfo(base.dtype)
    size = jnp.minimum(jnp.exp(log_moved), limits.max)[:, None, None]
    step = size * moved
    near = _largest(step) < _NEAR
    short, way = jnp.where(near, step, 0), jnp.where(near, moved, 0)

    def mean_slope(nodes: np.ndarray, node_weights: np.ndarray) -> Array:
        """∫₀¹ J(base + t·short)·way dt, node by node, so that memory does not grow with nodes."""

        def add(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
            return total + node[1] * jax.jvp(weights, (base + node[0] * short,), (way,))[1], None

        rule = jnp.asarray(nodes, base.dtype), jnp.asarray(node_weights, base.dtype)
        return jax.lax.scan(add, jnp.zeros_like(base), rule)[0]

    inner, ends = _RULES[limits.bits > 32]
    integral = mean_slope(*inner)
    plain = weights(base + step) - before
    # A kink between the ends makes two rules disagree. A difference that is a good part of the weights has its digits.
    smooth = _largest(integral - mean_slope(*ends)) <= float(limits.eps) ** 0.75 * _largest(integral)
    integrated, subtracted = near & smooth, ~near | (_largest(plain) > _PART * _largest(before))
    change = jnp.where(integrated, integral, plain)
    # A change of nearly nothing, where scores have changed, may have lost a part below the smallest number.
    lost = (_largest(change) < limits.tiny / limits.eps) & (_largest(moved) > 0)
    if sparse:  # weights that are 0 before and after have not changed, unless powers of scores have underflowed
        tiny_scores = jnp.maximum(_largest(base), _largest(step)) < float(limits.tiny) ** 0.25
        lost &= (_largest(change) > 0) | tiny_scores
    known = (integrated | subtracted) & ~lost & jnp.isfinite(_largest(step)) & jnp.isfinite(_largest(base))
    return jnp.where(known, change, jnp.nan), jnp.where(integrated[:, 0, 0], log_moved, 0)


def _largest(rows: Float[Array, "head token column"]) -> Float[Array, "head 1 1"]:
    """The largest magnitude of each head."""
    return jax.lax.stop_gradient(jnp.max(jnp.abs(rows), axis=(1, 2), keepdims=True))


def _with_zero_sums(
    rows: Float[Array, "head token column"], before: Float[Array, "head token column"]
) -> Float[Array, "head token column"]:
    """Rows that sum to 0: the change of the largest weight, which has lost its digits, is minus that of the others."""
    largest = jax.nn.one_hot(jnp.argmax(jnp.abs(before), axis=-1), rows.shape[-1], dtype=bool)
    others = jnp.where(largest, 0, rows)
    return jnp.where(largest, -jnp.sum(others, axis=-1, keepdims=True), others)


def _gauss_legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    points, doubled = np.polynomial.legendre.leggauss(count)
    return (points + 1) / 2, doubled / 2


def _gauss_lobatto(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1] with both ends, exact for polynomials up to degree 2·count − 3."""
    last = np.polynomial.legendre.Legendre.basis(count - 1)
    points = np.concatenate([[-1.0], np.sort(last.deriv().roots().real), [1.0]])
    return (points + 1) / 2, 1 / (count * (count - 1) * last(points) ** 2)


# By precision: the rule, and another one with both ends in it.
_RULES = {False: (_gauss_legendre(4), _gauss_lobatto(5)), True: (_gauss_legendre(8), _gauss_lobatto(9))}
