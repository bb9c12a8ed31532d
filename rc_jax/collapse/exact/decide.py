"""Whether a logarithm that was computed twice, with moved roundings, is known; one door for all that is computed so."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rc_jax.collapse.exact.moves import AMOUNTS, AVERAGE

# A computation that is done as it is, too, and whose other results are taken from there.
WITH_STILL = (0.0, *AMOUNTS)

# A logarithm is known when roundings that are moved move it by no more than this many nats, or than as many roundings
# of itself: cubing a residual triples its logarithm, and the error in it.
_NATS = 0.01
_ROUNDINGS = 1024
_APART = 0.2  # length of the difference of two unit vectors


def agree(logs: Float[Array, "copy *shape"]) -> Bool[Array, "*shape"]:
    """Where logarithms that were computed twice are the same but for roundings."""
    first = logs[:1]
    allowed = _NATS + _ROUNDINGS * jnp.finfo(first.dtype).eps * jnp.abs(first)
    return jnp.all((logs == first) | (jnp.isfinite(first) & (jnp.abs(logs - first) <= allowed)), axis=0)


def same_way(directions: Float[Array, "copy *shape"]) -> Bool[Array, ""]:
    """Whether unit vectors that were computed twice point the same way: sizes alone may agree by chance."""
    apart = jnp.sum(jnp.square(directions - directions[:1]))
    return apart <= _APART**2


def known(where: Bool[Array, "*shape"], logs: Float[Array, "copy *shape"]) -> Float[Array, "*shape"]:
    """The average in which moves cancel to first order; elsewhere NaN, and so are derivatives there."""
    equal = logs[0] == logs[1]  # of infinities too
    average = sum(share * part for share, part in zip(AVERAGE, logs, strict=True))
    return jnp.where(equal, logs[0], average) * jnp.where(where, 1, jnp.nan).astype(logs.dtype)


def first(logs: Float[Array, "copy *shape"], where: Bool[Array, "*shape"] | bool = True) -> Float[Array, "*shape"]:
    """The result of the computation that was done as it is, where the moved ones agree with it; elsewhere NaN."""
    return logs[0] * jnp.where(where & agree(logs), 1, jnp.nan).astype(logs.dtype)
