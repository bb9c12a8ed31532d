"""Sampled tokens through layers with W_Q = W_K = W_V = I, plainly and in cancellation-free arithmetic."""

import functools
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from rc_jax import network
from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.collapse.exact import attention, mlp_and_norms
from rc_jax.collapse.exact import state as mean_residual
from rc_jax.collapse.exact.state import MeanResidual
from rc_jax.network import LayerParams, NormParams, StackSpec

Norm = Literal["post", "ngpt", "mix", "pre", "peri"]
NORMS: tuple[Norm, ...] = ("post", "ngpt", "mix", "pre", "peri")
LABELS = {"post": "Post-LN", "ngpt": "nGPT", "mix": "Mix-LN", "pre": "Pre-LN", "peri": "Peri-LN"}
EPSILON = 1e-12  # in RMSNorm, which puts tokens on the sphere of radius √d


def tokens(key: jax.Array, draws: int, count: int, dimension: int, dtype: str) -> jax.Array:
    """Independent, uniform points of the sphere of radius √d: (draw, token, feature)."""
    x = jax.random.normal(key, (draws, count, dimension), dtype)
    return math.sqrt(dimension) * x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def weights(dimension: int, step: ArrayLike, dtype: DTypeLike) -> AttentionParams:
    """Identities for one head, the output's times h; the logits β⟨x, y⟩/d need the scale β/d."""
    same = jnp.eye(dimension, dtype=dtype)[None]
    return AttentionParams(same, same, same, jnp.asarray(step, dtype) * same)


@functools.partial(jax.jit, static_argnames="depth")
def cosines(x: jax.Array, step: float, beta: float, *, depth: int) -> jax.Array:
    """Cosines of all pairs by layer, (draw, layer, pair), of the package's network with layers x ← N(x + h SA(x)).

    `x` has the tokens of each draw, of length √d.
    """
    count, dimension = x.shape[1:]
    layer = AttentionSpec(d_model=dimension, heads=1, d_head=dimension)
    stack = StackSpec(attention=layer, depth=depth, skip=True, norm="post", norm_kind="rms", norm_epsilon=EPSILON)
    params = LayerParams(weights(dimension, step, x.dtype), attention_norm=NormParams(jnp.ones(dimension, x.dtype)))
    params = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (depth, *leaf.shape)), params)
    first, second = jnp.triu_indices(count, 1)

    def one(tokens: jax.Array) -> jax.Array:
        states = network.hidden_states(params, tokens, stack, scale=beta / dimension)
        return jnp.matmul(states, states.mT, precision="highest")[:, first, second] / dimension

    return jax.lax.map(one, x, batch_size=8)


class Schedule(NamedTuple):
    """By layer: the step h, the stream's factor, whether the stream grows, and whether branches have length 1."""

    step: jax.Array
    kept: jax.Array
    grows: jax.Array
    unit: jax.Array


def schedule(norm: Norm, steps: np.ndarray, dtype: str) -> Schedule:
    """The layers of `equiangular_layers`; `mix` is `post` in the first half and `pre` in the second."""
    first_half = np.arange(len(steps)) < len(steps) // 2
    grows = ~first_half if norm == "mix" else np.full(len(steps), norm in ("pre", "peri"))
    unit = np.full(len(steps), norm in ("peri", "ngpt"))
    kept = 1 - steps if norm == "ngpt" else np.ones(len(steps))
    return Schedule(jnp.asarray(steps, dtype), jnp.asarray(kept, dtype), jnp.asarray(grows), jnp.asarray(unit))


@jax.jit
def log_gaps(x: jax.Array, layers: Schedule, beta: float) -> tuple[jax.Array, jax.Array]:
    """By layer, the logarithm of the mean of 1 − cos over all pairs of directions, and the length of the mean token.

    Tokens are carried as a mean and a scaled difference, so that the first is exact at any depth; (draw, layer) each.
    """
    count, dimension = x.shape[1:]
    layer = AttentionSpec(d_model=dimension, heads=1, d_head=dimension)
    same, ones = weights(dimension, 1.0, x.dtype), NormParams(jnp.ones(dimension, x.dtype))

    def normed(state: MeanResidual) -> MeanResidual:
        return mlp_and_norms.norm(ones, state, EPSILON, centred=False)

    def scaled(state: MeanResidual, factor: jax.Array) -> MeanResidual:
        return MeanResidual(factor * state.mean, state.difference.times_exp(jnp.log(factor)))

    def either(condition: jax.Array, a: MeanResidual, b: MeanResidual) -> MeanResidual:
        return jax.tree.map(functools.partial(jnp.where, condition), a, b)

    def observed(state: MeanResidual) -> tuple[jax.Array, jax.Array]:
        # Σ over pairs of ‖θ − θ'‖²/2 is n/2 times the squared residual, over d for tokens of length √d.
        log_gap = 2 * normed(state).log_norm - math.log(dimension * (count - 1))
        return log_gap, jnp.linalg.norm(state.mean) / math.sqrt(dimension)

    def step(state: MeanResidual, at: Schedule) -> tuple[MeanResidual, tuple[jax.Array, jax.Array]]:
        # The branch sees directions; what it returns is brought to length 1 or not, and so is the sum.
        branch = attention.attend(same, normed(state), layer, beta / dimension, None)
        branch = either(at.unit, normed(branch), branch)
        out = mean_residual.add(scaled(state, at.kept), scaled(branch, at.step))
        out = either(at.grows, out, normed(out))
        return out, observed(out)

    def one(tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        start = mean_residual.decompose(tokens)
        later = jax.lax.scan(step, start, layers)[1]
        return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), observed(start), later)

    return jax.vmap(one)(x)
