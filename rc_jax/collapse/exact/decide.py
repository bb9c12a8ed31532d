"""Whether a logarithm that was computed again with moved roundings is known; one door for all that is computed so."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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
    (rows, logs), sizes = states.difference, jax.vmap(lambda state: state.log_norm)(states)
    square, product = jnp.sum(jnp.square(rows), axis=(1, 2)), jnp.sum(rows * rows[:1], axis=(1, 2))
    length = jnp.where(square == 0, 0, jax.lax.rsqrt(jnp.where(square == 0, 1, square)))  # 1 over it
    unit = square * jnp.square(length)  # the squared length of a unit vector, 0 of zeros
    apart = jnp.sum(unit + unit[0] - 2 * product * length * length[0])
    # Parts of a size e^log of which the logarithm has lost digits are added in unknown proportions.
    allowed = _APART + _PROPORTIONS * jnp.finfo(logs.dtype).eps * jnp.max(jnp.abs(logs))
    return agree(sizes) & (apart <= allowed**2)


def first(logs: Float[Array, "copy *shape"], where: Bool[Array, "*shape"] | bool = True) -> Float[Array, "*shape"]:
    """The result of the computation that was done as it is, where the moved ones agree with it; elsewhere NaN."""
    return logs[0] * jnp.where(where & agree(logs), 1, jnp.nan).astype(logs.dtype)


class Decided(NamedTuple):
    """Numbers, and for each of them why it is NaN; empty sentences where it is known."""

    value: Array
    reason: tuple[str, ...]


class Causes(NamedTuple):
    """What was seen in each layer: tokens whose mean has faded, where its size counts, and entries that are no numbers.

    `faded` stands at the layer whose result is not known for it. `unmoved` is the number of the computation that was
    done as it is, known or not.
    """

    faded: Bool[Array, "*layer"]
    undefined: Bool[Array, "*layer"]
    unmoved: Float[Array, "*layer"]


class Traits(NamedTuple):
    """What the kinds of weights of a network can do.

    `softmax`: all of them are softmax. `may_bend`: some go by the generic rule, which knows no way across a kink.
    `may_cancel`: for some of these a row of scores that cancel is not a row of equal ones, but has other weights.
    """

    softmax: bool
    may_bend: bool
    may_cancel: bool


def sentences(
    value: Float[Array, " number"],
    once: Callable[[], Float[Array, " number"]],
    causes: Causes,
    dtype: np.dtype,
    traits: Traits,
) -> tuple[str, ...]:
    """Why numbers that are computed layer by layer are NaN: what befell the first of them holds for all later ones.

    `once` gives what a single computation without moves does, which makes no choice that it cannot decide NaN. It is a
    program of its own, and is asked only where the unmoved number does not tell: where that is NaN or ∞.
    """
    unknown = np.isnan(np.asarray(value, float))
    if not unknown.any():
        return ("",) * unknown.size
    at, smallest = int(unknown.argmax()), float(jnp.finfo(dtype).tiny)
    way_on = "`collapse.certified.log_residuals` encloses it"
    double = dtype == np.float64
    wider = "" if double else ", or float64"
    subtracts = "" if double else ", and float64 subtracts smaller differences"
    if at == 0:
        why = (
            f"the tokens are as small as the smallest normal number of {dtype}, {smallest:.2g}, or not finite; "
            "multiply them by a power of 2"
        )
    elif bool(causes.faded[at - 1]):
        why = (
            f"the tokens' mean has shrunk below {smallest / float(jnp.finfo(dtype).eps):.2g}, and its size counts; "
            f"use a norm, biases, skip connections{wider}"
        )
    elif not float(causes.unmoved[at - 1]) < math.inf and not float(once()[at]) < math.inf:
        why = (
            f"no place in {dtype} for a number on the way, such as a logit or the square of the tokens' size; use "
            f"smaller tokens, a norm, a smaller gain{wider}"
        )
        if traits.may_bend and not math.isinf(float(causes.unmoved[at - 1])):
            why = (
                "two causes look alike here: a kink of the weights lies between the scores of two rows, which differ "
                f"too little to be subtracted ({way_on}{subtracts}); or there is {why}"
            )
    elif bool(causes.undefined[at - 1]):
        why = f"a choice cannot be made, as of the largest scores among some that are equal to rounding; {way_on}"
    else:
        why = (
            "digits are lost: a few roundings move the result by more than 1 %, as where "
            f"{'softmax is' if traits.softmax else 'weights are'} saturated and tokens fall into clusters"
        )
        if traits.may_cancel:
            why += ", or where scores of a row cancel, as those of a zero token, and the kind of weights has no scale"
        why += f"; use {'' if double else 'float64, '}a smaller gain or fewer layers, or {way_on}"
    return tuple(why if lost else "" for lost in unknown)
