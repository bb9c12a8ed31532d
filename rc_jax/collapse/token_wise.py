"""The token-wise maps on split tokens: MLPs and norms of 1x̄ᵀ + e^ℓ R̂, without subtracting what is equal.

All need (f(x̄ + e^ℓ r) − f(x̄))/e^ℓ for a row r of R̂, right for every e^ℓ from overflow to zero.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rc_jax.collapse.mean_residual import MeanResidual, from_rows
from rc_jax.collapse.weight_rows import expm1_ratio
from rc_jax.network import MLPParams, NormParams, StackSpec
from rc_jax.network.stack import ACTIVATIONS

# Gauss–Legendre on [−1, 1], moved to [0, 1]: for σ' along a step of length at most 1.
_POINTS, _DOUBLED = np.polynomial.legendre.leggauss(16)
_NODES, _WEIGHTS = (_POINTS + 1) / 2, _DOUBLED / 2


def mlp(params: MLPParams, state: MeanResidual, spec: StackSpec) -> MeanResidual:
    """The token-wise sublayer of every token, split into mean and scaled difference.

    A gate is a product, and f'g' − fg = (f' − f)g' + f(g' − g).
    """
    assert spec.mlp is not None
    precision, activation = spec.attention.precision, spec.mlp.activation

    def into(weight: Array, bias: Array) -> tuple[Array, Array]:
        centre = jnp.matmul(state.mean, weight, precision=precision) + bias
        return centre, jnp.matmul(state.direction, weight, precision=precision)

    linear, linear_step = into(params.weight_in, params.bias_in)
    if spec.mlp.gated:
        assert params.weight_gate is not None and params.bias_gate is not None
        centre, step = into(params.weight_gate, params.bias_gate)
    else:
        centre, step = linear, linear_step
    hidden = ACTIVATIONS[activation](centre)
    slope = _DIFFERENCES[activation](centre[None], step, state.log_size)
    if spec.mlp.gated:
        product = slope * (linear[None] + jnp.exp(state.log_size) * linear_step) + hidden[None] * linear_step
        # The product of two differences that are there is not zero: where it is, both factors have underflowed.
        slope = _known_above_underflow(product, jnp.any((slope != 0) & (linear_step != 0)))
        hidden = hidden * linear
    out = from_rows(jnp.matmul(slope, params.weight_out, precision=precision), state.log_size)
    at_mean = jnp.matmul(hidden, params.weight_out, precision=precision)
    return out._replace(mean=at_mean + params.bias_out + out.mean)


def _known_above_underflow(x: Array, there: Array) -> Array:
    """NaN in the place of numbers that are `there` but so small that what underflowed on the way is not beside them."""
    limits = jnp.finfo(x.dtype)
    return jnp.where(there & (jnp.max(jnp.abs(x)) < limits.tiny / limits.eps), jnp.nan, x)


def layer_norm(params: NormParams, state: MeanResidual, epsilon: float) -> MeanResidual:
    """LayerNorm of every token: what RMSNorm makes of centred tokens."""
    centred = state._replace(
        mean=state.mean - jnp.mean(state.mean),
        direction=state.direction - jnp.mean(state.direction, axis=1, keepdims=True),
    )
    return rms_norm(params, centred, epsilon)


def rms_norm(params: NormParams, state: MeanResidual, epsilon: float) -> MeanResidual:
    """RMSNorm of every token, split into mean and scaled difference."""
    mean, rows = over_root_mean_square(state.mean, state.direction, state.log_size, epsilon)
    out = from_rows(params.scale[None] * rows, state.log_size)
    mean = params.scale * mean
    return out._replace(mean=(mean if params.shift is None else mean + params.shift) + out.mean)


def unit(
    mean: Float[Array, "*heads width"], rows: Float[Array, "*heads token width"], log_size: Float[Array, "*heads"]
) -> tuple[Float[Array, "*heads width"], Float[Array, "*heads token width"]]:
    """Vectors mean + e^log_size · row over their lengths, split the same way; zero vectors stay zero.

    Where the mean is zero and the rows are not, the differences are of order one, and may overflow over e^log_size.
    Where both are about to underflow, or have, their directions are not known, and the rows are NaN.
    """
    size = jnp.exp(log_size)
    limits = jnp.finfo(rows.dtype)
    biggest = jnp.maximum(jnp.max(jnp.abs(mean), axis=-1), size * jnp.max(jnp.abs(rows), axis=(-2, -1)))
    there = jnp.any(mean != 0, axis=-1) | jnp.any(rows != 0, axis=(-2, -1))
    lost = there & (biggest < limits.tiny / limits.eps)  # a mean so small may have been another one
    biggest = jax.lax.stop_gradient(jnp.where(biggest > 0, jnp.clip(biggest, limits.tiny, limits.max / 16), 1))
    mean, rows = over_root_mean_square(mean / biggest[..., None], rows, log_size - jnp.log(biggest), 0.0)
    root = jnp.sqrt(jnp.asarray(mean.shape[-1], mean.dtype))
    return mean / root, jnp.where(lost[..., None, None], jnp.nan, rows / (root * biggest[..., None, None]))


def over_root_mean_square(
    mean: Float[Array, "*heads width"],
    rows: Float[Array, "*heads token width"],
    log_size: Float[Array, "*heads"],
    epsilon: float,
) -> tuple[Float[Array, "*heads width"], Float[Array, "*heads token width"]]:
    """Vectors x = mean + e^log_size · row over √(|x|²/d + ε), split the same way.

    With u the mean and v = κu + w, w ⟂ u, a row, the vector (1 + τ)u + e^ℓ w, τ = e^ℓ κ, is divided by √s_i,
    s_i = |·|²/d + ε. That all but removes the part along u, so that part is subtracted on paper:
    ((1 + τ)/√s_i − 1/√s)/e^ℓ = (ε κ(2 + τ) − e^ℓ|w|²/d) / (s s_i ((1 + τ)/√s_i + 1/√s)),   s = |u|²/d + ε.
    """
    size = jnp.exp(log_size)[..., None, None]
    centre = mean[..., None, :]
    length = jnp.sum(jnp.square(centre), axis=-1, keepdims=True)
    along = jnp.sum(rows * centre, axis=-1, keepdims=True) / jnp.where(length > 0, length, 1)
    across = rows - along * centre

    factor = 1 + size * along
    mean_square = jnp.mean(jnp.square(centre), axis=-1, keepdims=True)
    off_axis = jnp.mean(jnp.square(across), axis=-1, keepdims=True)
    square = mean_square + epsilon
    row_square = jnp.square(factor) * mean_square + jnp.square(size) * off_axis + epsilon
    if epsilon == 0:  # zero vectors stay zero
        square = jnp.where(square > 0, square, 1)
        zero = jnp.all(across == 0, axis=-1, keepdims=True) & (row_square == 0)
        row_square = jnp.where(zero, 1, row_square)
    shrink, row_shrink = jax.lax.rsqrt(square), jax.lax.rsqrt(row_square)

    beside = factor > 0  # else the vector lies on the other side of the origin, and nothing cancels
    total = jnp.where(beside, factor, 1) * row_shrink + shrink
    on_paper = (epsilon * along * (1 + factor) - size * off_axis) / (square * row_square * total)
    plainly = (factor * row_shrink - shrink) / jnp.where(beside, 1, size)
    change = jnp.where(beside, on_paper, plainly)
    return (centre * shrink)[..., 0, :], row_shrink * across + change * centre


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
    # multiplied first, |δ| − |a| − |a + δ|, which is 0 across the origin and −2 times the smaller one beside it.
    across = (centre < 0) != (after < 0)
    exponential = jnp.exp(-2 * jnp.where(across, 0, jnp.minimum(jnp.abs(centre), jnp.abs(after))))
    both = (1 + jnp.exp(-2 * jnp.abs(centre))) * (1 + jnp.exp(-2 * jnp.abs(after)))
    return 4 * step * expm1_ratio(-2 * jnp.abs(move)) * exponential / both


_DIFFERENCES: dict[str, Callable[[Array, Array, Array], Array]] = {
    "relu": _relu,
    "gelu": _smooth(ACTIVATIONS["gelu"]),
    "gelu_tanh": _smooth(ACTIVATIONS["gelu_tanh"]),
    "tanh": _tanh,
    "silu": _smooth(ACTIVATIONS["silu"]),
}

NORMS: dict[str, Callable[[NormParams, MeanResidual, float], MeanResidual]] = {"layer": layer_norm, "rms": rms_norm}
