"""Kinds of weights that the package does not have: as somebody's own records, and in numbers of many digits."""

import gmpy2
import jax
import jax.numpy as jnp
import numpy as np

from rc_jax.attention import Kind

mpfr = gmpy2.mpfr
exp, log1p, log, sqrt, tanh = (
    np.frompyfunc(f, 1, 1) for f in (gmpy2.exp, gmpy2.log1p, gmpy2.log, gmpy2.sqrt, gmpy2.tanh)
)


def softmax(scores, seen):
    """The softmax of what is seen."""
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)


def count(scores, seen):
    """How many columns every row sees, as floating-point numbers."""
    return jnp.sum(jnp.broadcast_to(seen, scores.shape), axis=-1, keepdims=True).astype(scores.dtype)


def over_sum(mass):
    """Rows over their sums."""
    return mass / mass.sum(axis=-1, keepdims=True)


def squares(scores, seen, parts):
    """(1 + s²) / Σ (1 + s²)."""
    return over_sum(jnp.where(seen, 1 + jnp.square(scores), 0))


def sharper(scores, seen, parts):
    """Softmax plus its square, over the row sum."""
    p = softmax(scores, seen)
    return over_sum(p + p**2)


def softplus(scores, seen, parts):
    """log(1 + e^s) over its row sum."""
    return over_sum(jnp.where(seen, jax.nn.softplus(scores), 0))


def scalable(scores, seen, parts):
    """Softmax of θ log(m) s, with a θ of each head and m tokens seen."""
    return softmax(parts["slope"][:, None, None] * jnp.log(count(scores, seen)) * scores, seen)


def tempered(scores, seen, parts):
    """e^(t s) / (1 + Σ e^(t s)), with a t of each head."""
    scores = jnp.where(seen, parts["slope"][:, None, None] * scores, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), 0))
    powers = jnp.exp(scores - top)
    return powers / (jnp.exp(-top) + jnp.sum(powers, axis=-1, keepdims=True))


def thinned(scores, seen, parts):
    """Softmax over √m, m tokens seen."""
    return softmax(scores, seen) / jnp.sqrt(count(scores, seen))


def tanh_mean(scores, seen, parts):
    """tanh(s) / m, m tokens seen."""
    return jnp.where(seen, jnp.tanh(scores), 0) / count(scores, seen)


def leaky(scores, seen, parts):
    """max(s, s/4) / m, m tokens seen."""
    return jnp.where(seen, jnp.maximum(scores, scores / 4), 0) / count(scores, seen)


def standardised(scores, seen, parts):
    """Softmax of scores less their mean, over their deviation: rows of one sum without a derivative at equal scores."""
    centred = scores - scores.mean(axis=-1, keepdims=True)
    square = jnp.square(centred).mean(axis=-1, keepdims=True)
    return softmax(jnp.where(square > 0, centred / jnp.sqrt(jnp.where(square > 0, square, 1)), 0), seen)


def over_queries(scores, seen, parts):
    """Softmax along columns: a row sees the scores of the others, and its sum is not fixed."""
    return jnp.where(seen, jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-2), 0)


def half_own(scores, seen, parts):
    """The mean of softmax and of the identity matrix: a query's own key is special."""
    return (softmax(scores, seen) + jnp.where(seen, jnp.eye(*scores.shape[-2:], dtype=scores.dtype), 0)) / 2


def by_place(scores, seen, parts):
    """Softmax of scores plus the mean of their row times a number of each place: rows of one sum, places differ."""
    place = jnp.linspace(-1, 1, scores.shape[-1], dtype=scores.dtype).reshape((1,) * (scores.ndim - 1) + (-1,))
    return softmax(scores + place * scores.mean(axis=-1, keepdims=True), seen)


def top_p(scores, seen, parts):
    """Softmax over the fewest largest weights whose sum reaches 0.9: of eight equal ones all, of more not all."""
    weights = softmax(scores, seen)
    order = jnp.argsort(-weights, axis=-1)
    before = jnp.cumsum(jnp.take_along_axis(weights, order, -1), -1) - jnp.take_along_axis(weights, order, -1)
    kept = jnp.take_along_axis(before < 0.9, jnp.argsort(order, axis=-1), -1)
    return jnp.where(kept, weights, 0) / jnp.where(kept, weights, 0).sum(axis=-1, keepdims=True)


def _slope(spec):
    return {"slope": (spec.heads,)}


def _start(spec, dtype):
    return {"slope": jnp.ones(spec.heads, dtype)}


OWN = {
    kind.name: kind
    for kind in (
        Kind("squares", squares, "one"),
        Kind("sharper", sharper, "one", shift_invariant=True, increasing=True),
        Kind("softplus", softplus, "one", increasing=True),
        Kind("scalable", scalable, "one", shift_invariant=True, shapes=_slope, start=_start),
        Kind("tempered", tempered, shapes=_slope, start=_start),
        Kind("thinned", thinned, "fixed", shift_invariant=True, increasing=True),
        Kind("tanh_mean", tanh_mean, increasing=True),
        Kind("leaky", leaky, increasing=True),
    )
}

# What the rule of `rc_jax.collapse.kinds.predicted_order` does not speak of: the order of each, and which of its
# hypotheses hold (a derivative at equal scores, rows that stand alone, keys that are alike).
OUTSIDE = {
    "standardised": (
        Kind("standardised", standardised, "one", shift_invariant=True, increasing=True),
        2,
        (False, True, True),
    ),
    "over_queries": (Kind("over_queries", over_queries), 1, (True, False, True)),
    "top_p": (Kind("top_p", top_p, "one", shift_invariant=True, increasing=True, sparse=True), 3, (False, True, True)),
    "half_own": (Kind("half_own", half_own, "one", shift_invariant=True), 1, (True, True, False)),
    "by_place": (Kind("by_place", by_place, "one"), 2, (True, True, False)),
}


def _softmax(s, seen):
    top = np.where(seen, s, mpfr("-inf")).max(axis=-1, keepdims=True)
    return over_sum(np.where(seen, exp(s - top), mpfr(0)))


def _seen(seen):
    return np.frompyfunc(mpfr, 1, 1)(seen.sum(axis=-1, keepdims=True))


def _tempered(s, seen, parts):
    powers = np.where(seen, exp(parts["slope"][:, None, None] * s), mpfr(0))
    return powers / (1 + powers.sum(axis=-1, keepdims=True))


# (logits, seen, parts), all but the second of objects, to weights.
FORMS = {
    "squares": lambda s, seen, parts: over_sum(np.where(seen, 1 + s**2, mpfr(0))),
    "sharper": lambda s, seen, parts: over_sum((p := _softmax(s, seen)) + p**2),
    "softplus": lambda s, seen, parts: over_sum(np.where(seen, log1p(exp(s)), mpfr(0))),
    "scalable": lambda s, seen, parts: _softmax(parts["slope"][:, None, None] * log(_seen(seen)) * s, seen),
    "tempered": _tempered,
    "thinned": lambda s, seen, parts: _softmax(s, seen) / sqrt(_seen(seen)),
    "tanh_mean": lambda s, seen, parts: np.where(seen, tanh(s), mpfr(0)) / _seen(seen),
    "leaky": lambda s, seen, parts: np.where(seen, np.maximum(s, s / 4), mpfr(0)) / _seen(seen),
}
