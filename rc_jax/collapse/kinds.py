"""What layers of any kind of attention weights do to the difference between tokens: its order, and its fall."""

import functools
import itertools
import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from rc_jax import network
from rc_jax._numerics import arguments
from rc_jax.attention import AttentionSpec, Kind, init
from rc_jax.collapse.exact.decide import Causes
from rc_jax.collapse.exact.trajectory import looked, reasons

_DEPTH, _NETWORKS, D_MODEL, HEADS, _TOKENS = 8, 8, 32, 2, 16
# Scores of rows of equal scores, a small step from them, and how many rows.
_LEVELS, _STEP, _ROWS = (-1.5, -0.75, 0.75, 1.5), 2.0**-7, 8
_SIDES = (_ROWS, 48)  # rows of two lengths: what leaves some keys out may keep all of few
_SIZES = (1.0, math.exp(-4), math.exp(-6))  # of the differences: random tokens, then two near one vector


class Fall(NamedTuple):
    """How layers of one kind of weights shrink the difference between tokens.

    Attributes:
        logs: log ‖res‖ (nats) before the first layer and after each one, of every network; NaN where it is not known.
        orders: the power k with which the first layer of each maps a small difference, e^ℓ to a multiple of e^{kℓ}; NaN
            where it leaves none that is known.
    """

    logs: Float[np.ndarray, "network layer"]
    orders: Float[np.ndarray, " network"]

    @property
    def order(self) -> float:
        """The median of `orders` over the networks in which it is known; NaN where there is none."""
        known = self.orders[np.isfinite(self.orders)]
        return float(np.median(known)) if known.size else math.nan

    @property
    def median(self) -> Float[np.ndarray, " layer"]:
        """The median by layer over the networks whose residual is known; NaN where fewer than half are."""
        known = ~np.isnan(self.logs)
        filled = np.where(2 * known.sum(axis=0) >= len(self.logs), self.logs, 0)
        return np.where(2 * known.sum(axis=0) >= len(self.logs), np.nanmedian(filled, axis=0), np.nan)


@arguments.guard()
def predicted_order(kind: Kind) -> float:
    """The power k with which a layer without mask and skip maps small differences, e^ℓ to a multiple of e^{kℓ}.

    It is 3 where rows have equal sums, or a constant in a row changes nothing, and 1 elsewhere. With equal sums the
    mean of the values drops out; near equal scores equal sums also make a constant in a row change nothing to first
    order, and the other way round. Scores differ along a row by e^ℓ and in the rest by e^{2ℓ}.

    Three hypotheses are measured: weights have a derivative where all scores are equal, a row either sees its own
    scores alone or has the sum that its record promises, and no key is singled out. It is NaN where one of them fails,
    and `kind_fall` measures the order then. Softmax of scores over their deviation fails the first and has order 2; a
    softmax over queries fails the second, the mean of softmax and the identity matrix the third, and both have order 1.

    Source: this package's own; 3 for softmax is Dong et al. 2021.

    Example:
        >>> from rc_jax.attention import KINDS
        >>> from rc_jax.collapse.kinds import predicted_order
        >>> [predicted_order(KINDS[name]) for name in ("softmax", "l2", "sigmoid")]
        [3.0, 3.0, 1.0]
    """
    equal_sums = kind.row_sum != "any"
    if kind.reads != "scores" or not is_smooth(kind) or not (equal_sums or rows_stand_alone(kind)):
        return math.nan
    if not keys_are_alike(kind):
        return math.nan
    return 3.0 if kind.shift_invariant or equal_sums else 1.0


def is_smooth(kind: Kind) -> bool:
    """Whether weights have a derivative at equal scores: small steps there change them by nearly the sum of changes."""
    return all(_is_smooth(kind, side) for side in _SIDES)


def _is_smooth(kind: Kind, side: int) -> bool:
    with jax.ensure_compile_time_eval():
        # Steps that let sparsemax keep all keys, whose weights are 1 over their number.
        one, other = jax.random.normal(jax.random.key(0), (2, kind.maps, side, side)) * (_STEP * _ROWS / side)
        level = jnp.asarray(_LEVELS)[:, None, None, None]
        at, first, second, both = (_weights(kind, level + step[None]) for step in (0 * one, one, other, one + other))
        defect, change = jnp.abs(both - first - second + at), jnp.abs(both - at)
    return bool(jnp.max(defect) <= 0.2 * jnp.max(change) + 1e-5 * (_ROWS / side) ** 2)


def rows_stand_alone(kind: Kind) -> bool:
    """Whether a row of weights depends on its own scores alone."""
    with jax.ensure_compile_time_eval():
        scores, others = jax.random.normal(jax.random.key(1), (2, 1, kind.maps, _ROWS, _ROWS))
        changed = jnp.concatenate([scores[..., :1, :], others[..., 1:, :]], axis=-2)
        rows, after = (_weights(kind, each)[..., 0, :] for each in (scores, changed))
        return bool(jnp.max(jnp.abs(rows - after)) <= 1e-4 * jnp.max(jnp.abs(rows)))


def keys_are_alike(kind: Kind) -> bool:
    """Whether weights change places as their scores do: no place of a row, such as the query's own, is special."""
    with jax.ensure_compile_time_eval():
        scores = jax.random.normal(jax.random.key(2), (1, kind.maps, _ROWS, _ROWS))
        order = np.random.default_rng(0).permutation(_ROWS)
        moved, after = _weights(kind, scores)[..., order], _weights(kind, scores[..., order])
        return bool(jnp.max(jnp.abs(moved - after)) <= 1e-4 * jnp.max(jnp.abs(moved)))


def _weights(kind: Kind, scores: Array) -> Array:
    """Weights of a batch of scores, with the kind's parameters as a layer starts with them."""
    parts = init(jax.random.key(0), AttentionSpec(d_model=2 * kind.maps, weights=kind)).parts
    return jax.vmap(lambda each: kind(each, None, parts))(scores)


@arguments.guard(tokens=arguments.integer(2), seed=arguments.integer(0))
def kind_fall(
    kind: Kind,
    *,
    depth: int = _DEPTH,
    networks: int = _NETWORKS,
    d_model: int = D_MODEL,
    heads: int = HEADS,
    tokens: int = _TOKENS,
    skip: bool = False,
    seed: int = 0,
) -> Fall:
    """The fall of log ‖res‖ over the layers of random networks, and the order of one layer, without cancellation.

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
        TypeError: it is called inside `jit`.

    Source: this package's own.

    Example:
        >>> from rc_jax.attention import KINDS
        >>> from rc_jax.collapse.kinds import kind_fall
        >>> fall = kind_fall(KINDS["softmax"], depth=3)
        >>> print(f"{fall.order:.2f}", bool(fall.median[3] < -10))
        3.00 True
    """
    arguments.outside_traces("kind_fall")
    stack = _stack(kind, depth, d_model, heads, skip)
    random, near, far = np.asarray(_every_log(*_draws(stack, networks, tokens, seed), stack)[0], float)
    with np.errstate(invalid="ignore"):
        slopes = (near[:, 1] - far[:, 1]) / (near[:, 0] - far[:, 0])
    return Fall(random, np.where(np.isfinite(slopes), slopes, np.nan))


@arguments.guard(seed=arguments.integer(0))
def why_unknown(kind: Kind, *, skip: bool = False, seed: int = 0, near: bool = False) -> str:
    """Why numbers of `kind_fall` are NaN: the sentence of `explain` for the first of its networks that has one.

    It runs the program that `kind_fall` has run by default. A second one is compiled where numbers on the way are none.

    Args:
        kind: as `kind_fall` takes it, and so are `skip` and `seed`.
        skip: whether there are skip connections.
        seed: of the networks and the tokens.
        near: whether to ask of tokens near one vector, whose first layer gives the order.

    Returns:
        The sentence; empty where every number is known.

    Source: this package's own.

    Example:
        >>> from rc_jax.attention import KINDS
        >>> from rc_jax.collapse.kinds import why_unknown
        >>> why_unknown(KINDS["softpick"])[:15]  # doctest: +SKIP
        'digits are lost'
    """
    arguments.outside_traces("why_unknown")
    stack = _stack(kind, _DEPTH, D_MODEL, HEADS, skip)
    params, mean, rest = _draws(stack, _NETWORKS, _TOKENS, seed)
    every = _every_log(params, mean, rest, stack)
    for size, index in itertools.product((1, 2) if near else (0,), range(_NETWORKS)):
        value, causes = jax.tree.map(lambda leaf, at=(size, index): leaf[at], every)
        weights = jax.tree.map(lambda leaf, at=index: leaf[at], params)
        reason = reasons(value, causes, weights, _tokens(mean[index], rest[index], _SIZES[size]), stack)
        if told := reason[1 if near else -1]:
            return told
    return ""


def compile_falls(kinds: Iterable[Kind]) -> None:
    """Compile what `kind_fall` runs by default for each kind, with skip connections and without, all at a time.

    Only the compiler works in threads, which do not have this one's settings of JAX. A call then finds its program.
    """
    stacks = [_stack(kind, _DEPTH, D_MODEL, HEADS, skip) for kind in kinds for skip in (False, True)]
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
) -> tuple[Float[Array, "3 network layer"], Causes]:
    """Logarithms of every network for tokens whose differences have each of the sizes, and what was seen in layers."""

    def one(weights: network.Layers, mean: Array, rest: Array, size: Array) -> tuple[Array, Causes]:
        return looked(weights, _tokens(mean, rest, size), stack)

    # One axis for both sizes and networks: with one for each, a transposed product crashes jaxlib 0.10.2 on a CPU.
    networks, sizes = len(rest), jnp.repeat(jnp.asarray(_SIZES, rest.dtype), len(rest))
    params, mean, rest = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * len(_SIZES)), (params, mean, rest))
    every = jax.vmap(one)(params, mean, rest, sizes)
    return jax.tree.map(lambda leaf: leaf.reshape(len(_SIZES), networks, -1), every)


def _tokens(mean: Array, rest: Array, size: ArrayLike) -> Array:
    """Tokens whose differences have a size, around one vector where that is below 1."""
    return jnp.where(jnp.asarray(size) < 1, mean, 0) + size * rest
