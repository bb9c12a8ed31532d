"""The token-wise sublayers on split tokens: MLP and LayerNorm of 1x̄ᵀ + e^ℓ R̂, without subtracting what is equal.

Both need (f(x̄ + e^ℓ r) − f(x̄))/e^ℓ for a row r of R̂, right for every e^ℓ from overflow to zero.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rc_jax.collapse.mean_residual import MeanResidual, expm1_ratio, from_rows
from rc_jax.network import MLPParams, NormParams, StackSpec
from rc_jax.network.stack import ACTIVATIONS

# Gauss–Legendre on [−1, 1], moved to [0, 1]: for σ' along a step of length at most 1.
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_NODES, _WEIGHTS = (_POINTS + 1) / 2, _WEIGHTS / 2


def mlp(params: MLPParams, state: MeanResidual, spec: StackSpec) -> MeanResidual:
    """σ(x W₁ + b₁) W₂ + b₂ of every token, split into mean and scaled difference."""
    assert spec.mlp is not None
    precision = spec.attention.precision
    centre = jnp.matmul(state.mean, params.weight_in, precision=precision) + params.bias_in
    step = jnp.matmul(state.direction, params.weight_in, precision=precision)
    slope = _DIFFERENCES[spec.mlp.activation](centre[None], step, state.log_size)
    out = from_rows(jnp.matmul(slope, params.weight_out, precision=precision), state.log_size)
    at_mean = jnp.matmul(ACTIVATIONS[spec.mlp.activation](centre), params.weight_out, precision=precision)
    return out._replace(mean=at_mean + params.bias_out + out.mean)


def layer_norm(params: NormParams, state: MeanResidual, epsilon: float) -> MeanResidual:
    """LayerNorm of every token, split into mean and scaled difference.

    With u the centred mean token and v = κu + w, w ⟂ u, a centred row of R̂, the token (1 + τ)u + e^ℓ w, τ = e^ℓ κ, is
    divided by √s_i, s_i = |·|²/d + ε. LayerNorm all but removes the part along u, so that part is subtracted on paper:
    ((1 + τ)/√s_i − 1/√s)/e^ℓ = (ε κ(2 + τ) − e^ℓ|w|²/d) / (s s_i ((1 + τ)/√s_i + 1/√s)),   s = |u|²/d + ε.
    """
    size = jnp.exp(state.log_size)
    centre = state.mean - jnp.mean(state.mean)
    rows = state.direction - jnp.mean(state.direction, axis=1, keepdims=True)
    length = jnp.sum(jnp.square(centre))
    along = jnp.sum(rows * centre[None], axis=1, keepdims=True) / jnp.where(length > 0, length, 1)
    across = rows - along * centre[None]

    factor = 1 + size * along
    off_axis = jnp.mean(jnp.square(across), axis=1, keepdims=True)
    variance = jnp.mean(jnp.square(centre)) + epsilon
    row_variance = jnp.square(factor) * jnp.mean(jnp.square(centre)) + jnp.square(size) * off_axis + epsilon
    shrink, row_shrink = jax.lax.rsqrt(variance), jax.lax.rsqrt(row_variance)

    beside = factor > 0  # else the token lies on the other side of the origin, and nothing cancels
    total = jnp.where(beside, factor, 1) * row_shrink + shrink
    on_paper = (epsilon * along * (1 + factor) - size * off_axis) / (variance * row_variance * total)
    plainly = (factor * row_shrink - shrink) / jnp.where(beside, 1, size)
    change = jnp.where(beside, on_paper, plainly)

    out = from_rows(params.scale[None] * (row_shrink * across + change * centre[None]), state.log_size)
    return out._replace(mean=params.scale * centre * shrink + params.shift + out.mean)


def _relu(centre: Array, step: Array, log_size: Array) -> Array:
    """max(u, −a/e^ℓ) where a > 0, max(u + a/e^ℓ, 0) elsewhere; a/e^ℓ is cut where it is beyond every u."""
    log_far = jnp.log(jnp.where(centre == 0, 1, jnp.abs(centre))) - log_size
    far = jnp.sign(centre) * jnp.exp(jnp.minimum(log_far, math.log(float(jnp.finfo(step.dtype).max)) / 2))
    return jnp.where(centre > 0, jnp.maximum(step, -far), jnp.maximum(step + far, 0))


def _smooth(activation: Callable[[Array], Array]) -> Callable[[Array, Array, Array], Array]:
    """∫₀¹ σ'(a + te^ℓu) dt · u for a step of length up to 1, the plain difference over e^ℓ for a longer one."""

    def slope(x: Array) -> Array:
        return jax.jvp(activation, (x,), (jnp.ones_like(x),))[1]

    def difference(centre: Array, step: Array, log_size: Array) -> Array:
        size = jnp.exp(log_size)
        centre = jnp.broadcast_to(centre, step.shape)
        move = size * step
        small = jnp.abs(move) <= 1
        short = jnp.where(small, move, 0)
        nodes, weights = jnp.asarray(_NODES, step.dtype), jnp.asarray(_WEIGHTS, step.dtype)

        def add(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
            return total + node[1] * slope(centre + node[0] * short), None

        average = jax.lax.scan(add, jnp.zeros_like(step), (nodes, weights))[0]
        long = jnp.where(small, 0, move)
        return jnp.where(
            small, average * step, (activation(centre + long) - activation(centre)) / jnp.where(small, 1, size)
        )

    return difference


def _tanh(centre: Array, step: Array, log_size: Array) -> Array:
    """tanh(a + δ) − tanh(a) = sinh(δ)/(cosh(a) cosh(a + δ)), which saturation does not touch; δ = e^ℓu."""
    move = jnp.exp(log_size) * step
    after = centre + move
    # 1/cosh(x) = 2e^{−|x|}/(1 + e^{−2|x|}) and sinh(δ) = δ e^{|δ|} expm1(−2|δ|)/(−2|δ|). The exponentials are
    # multiplied first, so that none overflows: |δ| ≤ |a| + |a + δ|.
    exponential = jnp.exp(jnp.abs(move) - jnp.abs(centre) - jnp.abs(after))
    both = (1 + jnp.exp(-2 * jnp.abs(centre))) * (1 + jnp.exp(-2 * jnp.abs(after)))
    return 4 * step * expm1_ratio(-2 * jnp.abs(move)) * exponential / both


_DIFFERENCES: dict[str, Callable[[Array, Array, Array], Array]] = {
    "relu": _relu,
    "gelu": _smooth(ACTIVATIONS["gelu"]),
    "gelu_tanh": _smooth(ACTIVATIONS["gelu_tanh"]),
    "tanh": _tanh,
}
