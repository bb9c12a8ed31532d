"""Whether a logarithm that was computed again with moved roundings is known; one door for all that is computed so."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rc_jax.collapse.exact.state import MeanResidual

# A logarithm is known when roundings that are moved move it by no more than this many nats, or than as many roundings
# of itself: cubing a residual triples its logarithm, and the error in it.
_NATS = 0.01
_ROUNDINGS = 1024
# Directions agree when their unit vectors are no farther apart than this, and as many roundings of the logarithm.
_APART, _PROPORTIONS = 0.2, 64


def agree(logs: Float[Array, "copy *shape"]) -> Bool[Array, "*shape"]:
    """Where logarithms that were computed several times are the same but for roundings."""
    first = logs[:1]
    allowed = _NATS + _ROUNDINGS * jnp.finfo(first.dtype).eps * jnp.abs(first)
    return jnp.all((logs == first) | (jnp.isfinite(first) & (jnp.abs(logs - first) <= allowed)), axis=0)


def same(states: MeanResidual) -> Bool[Array, ""]:
    """Whether the differences of tokens that were computed several times agree, in size and in direction.

    Sizes alone may agree by chance, or because tokens have changed places.
    """
    rows, logs = states.difference
    sizes = jnp.where(jnp.all(rows == 0, axis=(1, 2)), -jnp.inf, logs)
    # Parts of a size e^log of which the logarithm has lost digits are added in unknown proportions.
    allowed = _APART + _PROPORTIONS * jnp.finfo(logs.dtype).eps * jnp.max(jnp.abs(logs))
    return agree(sizes) & (jnp.sum(jnp.square(rows - rows[:1])) <= allowed**2)


def first(logs: Float[Array, "copy *shape"], where: Bool[Array, "*shape"] | bool = True) -> Float[Array, "*shape"]:
    """The result of the computation that was done as it is, where the moved ones agree with it; elsewhere NaN."""
    return logs[0] * jnp.where(where & agree(logs), 1, jnp.nan).astype(logs.dtype)
