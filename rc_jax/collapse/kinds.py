"""What layers of any kind of attention weights do to the difference between tokens: its order, and its fall."""

import functools
import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rc_jax import network
from rc_jax._numerics import arguments
from rc_jax.attention import AttentionSpec, Kind
from rc_jax.collapse.exact.trajectory import log_residuals

_DEPTH, _NETWORKS, _D_MODEL, _HEADS, _TOKENS = 8, 8, 32, 2, 16
_SIZES = (1.0, math.exp(-4), math.exp(-6))  # of the differences: random tokens, then two near one vector


class Fall(NamedTuple):
    """How layers of one kind of weights shrink the difference between tokens.

    Attributes:
        logs: log ‖res‖ (nats) before the first layer and after each one, of every network; NaN where it is not known.
        order: the power k with which the first layer maps a small difference, e^ℓ to a multiple of e^{kℓ}: the median
            over those networks in which it leaves a difference that is known, NaN where there is none.
    """

    logs: Float[np.ndarray, "network layer"]
    order: float

    @property
    def median(self) -> Float[np.ndarray, " layer"]:
        """The median by layer over the networks whose residual is known; NaN where fewer than half are."""
        known = ~np.isnan(self.logs)
        filled = np.where(2 * known.sum(axis=0) >= len(self.logs), self.logs, 0)
        return np.where(2 * known.sum(axis=0) >= len(self.logs), np.nanmedian(filled, axis=0), np.nan)


@arguments.guard()
def predicted_order(kind: Kind) -> int:
    """The power k with which a layer without mask and skip maps small differences, e^ℓ to a multiple of e^{kℓ}.

    It is 3 where rows have equal sums, or a constant in a row changes nothing, and 1 elsewhere. With equal sums the
    mean of the values drops out; near equal scores equal sums also make a constant in a row change nothing to first
    order, and the other way round. Scores differ along a row by e^ℓ and in the rest by e^{2ℓ}. The kind is taken to
    treat all tokens alike.

    Source: this package's own; 3 for softmax is Dong et al. 2021.

    Example:
        >>> from rc_jax.attention import KINDS
        >>> from rc_jax.collapse.kinds import predicted_order
        >>> [predicted_order(KINDS[name]) for name in ("softmax", "l2", "sigmoid")]
        [3, 3, 1]
    """
    return 3 if kind.shift_invariant or kind.row_sum != "any" else 1


@arguments.guard(tokens=arguments.integer(2), seed=arguments.integer(0))
def kind_fall(
    kind: Kind,
    *,
    depth: int = _DEPTH,
    networks: int = _NETWORKS,
    d_model: int = _D_MODEL,
    heads: int = _HEADS,
    tokens: int = _TOKENS,
    skip: bool = False,
    seed: int = 0,
) -> Fall:
    """The fall of log ‖res‖ over the layers of random networks, and the order of one layer, in exact arithmetic.

    Weights are Gaussian, tokens N(0, I). The order is the slope of log ‖res‖ after the first layer against before, for
    tokens that differ by e^(−4) and e^(−6) around one random vector. Where rows happen to have equal sums around it, as
    those of `softpick` have at positive scores, it is 3 although the record promises 1.

    Args:
        kind: that reads scores.
        depth: layers.
        networks: how many.
        d_model: width of a token.
        heads: of a layer.
        tokens: how many.
        skip: whether there are skip connections.
        seed: of the networks and the tokens.

    Raises:
        NotCovered: the kind does not read scores.

    Source: this package's own.

    Example:
        >>> from rc_jax.attention import KINDS
        >>> from rc_jax.collapse.kinds import kind_fall
        >>> fall = kind_fall(KINDS["softmax"], depth=3)
        >>> print(f"{fall.order:.2f}", bool(fall.median[3] < -10))
        3.00 True
    """
    stack = _stack(kind, depth, d_model, heads, skip)
    random, near, far = np.asarray(_every_log(*_draws(stack, networks, tokens, seed), stack), float)
    with np.errstate(invalid="ignore"):
        slopes = (near[:, 1] - far[:, 1]) / (near[:, 0] - far[:, 0])
    slopes = slopes[np.isfinite(slopes)]
    return Fall(random, float(np.median(slopes)) if slopes.size else math.nan)


def compile_falls(kinds: Iterable[Kind]) -> None:
    """Compile what `kind_fall` runs by default for each kind, with skip connections and without, all at a time.

    Only the compiler works in threads, which do not have this one's settings of JAX. A call then finds its program.
    """
    stacks = [_stack(kind, _DEPTH, _D_MODEL, _HEADS, skip) for kind in kinds for skip in (False, True)]
    traced = [_every_log.lower(*_draws(stack, _NETWORKS, _TOKENS, 0), stack) for stack in stacks]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda program: program.compile(), traced))


def _stack(kind: Kind, depth: int, d_model: int, heads: int, skip: bool) -> network.StackSpec:
    layer = AttentionSpec(d_model=d_model, heads=heads, weights=kind)
    return network.StackSpec(attention=layer, depth=depth, skip=skip)


def _draws(stack: network.StackSpec, networks: int, tokens: int, seed: int) -> tuple[network.Layers, Array, Array]:
    """Parameters, mean and rest of the tokens of every network."""

    def draw(index: Array) -> tuple[network.Layers, Array, Array]:
        weights, mean, rest = jax.random.split(jax.random.fold_in(jax.random.key(seed), index), 3)
        params = network.init(weights, stack)
        shape, dtype = (tokens, stack.attention.d_model), params.attention.query.dtype
        return params, jax.random.normal(mean, (1, shape[1]), dtype), jax.random.normal(rest, shape, dtype)

    # Draws stay outside of the program: most kinds have the same ones, and they would be half of its compilation.
    return jax.vmap(draw)(jnp.arange(networks))


@functools.partial(jax.jit, static_argnames="stack")
def _every_log(
    params: network.Layers, mean: Array, rest: Array, stack: network.StackSpec
) -> Float[Array, "3 network layer"]:
    """Logarithms of every network for tokens whose differences have each of the sizes."""

    def one(weights: network.Layers, mean: Array, rest: Array, size: Array) -> Array:
        return log_residuals(weights, jnp.where(size < 1, mean, 0) + size * rest, stack)

    # One axis for both sizes and networks: with one for each, a transposed product crashes jaxlib 0.10.2 on a CPU.
    networks, sizes = len(rest), jnp.repeat(jnp.asarray(_SIZES, rest.dtype), len(rest))
    params, mean, rest = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * len(_SIZES)), (params, mean, rest))
    return jax.vmap(one)(params, mean, rest, sizes).reshape(len(_SIZES), networks, -1)
