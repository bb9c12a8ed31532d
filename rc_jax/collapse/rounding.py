"""Whether a result is known: it is computed twice, the second time a few roundings off at every layer.

A residual can depend on digits that no floating-point number has kept: on weights of a saturated softmax that are below
the smallest number, or on what tells tokens of one cluster apart beside the distance between clusters. Such a result
moves when every entry moves by a few of its roundings, and is then not a number.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# A logarithm is known when a few roundings at every layer move it by no more than this many nats, or than as many
# roundings of itself: cubing a residual triples its logarithm, and the error in it.
_NATS = 0.01
_ROUNDINGS = 1024


def nudges(x: Float[Array, "token feature"]) -> Float[Array, "2 token feature"]:
    """Relative amounts to move the entries by in the two computations: none, and a few roundings.

    Tokens that are equal move together: what they make of each other is known.
    """
    irregular = jax.random.normal(jax.random.key(0), x.shape, x.dtype)
    irregular = irregular[jax.lax.map(lambda token: jnp.argmax(jnp.all(x == token[None], axis=1)), x)]
    return jnp.stack([jnp.zeros_like(x), 4 * jnp.finfo(x.dtype).eps * irregular])


def known(logs: Float[Array, "2 *shape"]) -> Float[Array, "*shape"]:
    """The first of two computed logarithms where they agree, NaN where not."""
    first, second = logs
    allowed = _NATS + _ROUNDINGS * jnp.finfo(first.dtype).eps * jnp.abs(first)
    agree = (first == second) | (jnp.isfinite(first) & (jnp.abs(first - second) <= allowed))
    return jnp.where(agree, first, jnp.nan)
