"""The token-wise maps on split tokens: MLPs and norms of 1x̄ᵀ + e^ℓ R̂, without subtracting what is equal.

All of them need (f(x̄ + e^ℓ r) − f(x̄))/e^ℓ for a row r of R̂, right for every e^ℓ from overflow to zero. For activations
σ the functions in `_DIFFERENCES` give it: σ(a + δ) − σ(a) of a = `centre` and δ = `step` = e^ℓ u, over the same e^ℓ.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rc_jax._numerics.stable import expm1_ratio
from rc_jax.collapse.exact.moves import STILL, Moves
from rc_jax.collapse.exact.scaled import Scaled, exponent, power_of_two
from rc_jax.collapse.exact.state import MeanResidual, from_rows
from rc_jax.network import MLPParams, NormParams, StackSpec
from rc_jax.network.stack import ACTIVATIONS

# Nodes of Gauss and Legendre for σ' along a step of length at most 1, by precision: of exact GELU the error over the
# step is 7e-8 with four and 1e-16 with eight.
_COUNTS = {False: 4, True: 8}

_ROUNDED = 32  # roundings of its parts: a sum below has no digit that is known, and may have either sign


def mlp(
    params: MLPParams,
    state: MeanResidual,
    spec: StackSpec,
    moves: Moves = STILL,
    split: Callable[[Scaled], MeanResidual] = from_rows,
) -> MeanResidual:
    """The token-wise sublayer of every token, split into mean and scaled difference, or as `split` does.

    A gate is a product, and f'g' − fg = (f' − f)g' + f(g' − g).
    """
    assert spec.mlp is not None
    precision, activation = spec.attention.precision, spec.mlp.activation

    mean = moves.mean(state.mean, 14)

    def hidden_map(weight: Array, bias: Array, place: int) -> tuple[Array, Scaled]:
        centre = moves.features(jnp.matmul(mean, weight, precision=precision), place) + bias
        step = state.difference.map(lambda rows: jnp.matmul(rows, weight, precision=precision))
        return centre, moves.scaled(step, place)

    linear, linear_step = hidden_map(params.weight_in, params.bias_in, 5)
    if spec.mlp.gated:
        assert params.weight_gate is not None and params.bias_gate is not None
        centre, step = hidden_map(params.weight_gate, params.bias_gate, 6)
    else:
        centre, step = linear, linear_step
    hidden = ACTIVATIONS[activation](centre)
    change = _DIFFERENCES[activation](centre[None], step)
    if spec.mlp.gated:
        product = change.rows * (linear[None] + linear_step.value) + hidden[None] * linear_step.rows
        # The product of two differences that are not zero is not zero: where it is, both factors have underflowed.
        nonzero = jnp.any((change.rows != 0) & (linear_step.rows != 0))
        change = Scaled(_nan_if_underflowed(product, nonzero), change.log_size)
        hidden = hidden * linear
    elif activation != "relu":  # the others are flat at single points alone: slopes that all are 0 have underflowed
        nonzero = jax.lax.stop_gradient(jnp.max(jnp.abs(step.rows))) > 0
        change = change.map(lambda rows: _nan_if_underflowed(rows, nonzero))
    change, hidden = moves.scaled(change, 7), moves.features(hidden, 7)
    out = split(change.map(lambda rows: jnp.matmul(rows, params.weight_out, precision=precision)))
    at_mean = jnp.matmul(hidden, params.weight_out, precision=precision)
    return out._replace(mean=at_mean + params.bias_out + out.mean)


def _nan_if_underflowed(x: Array, nonzero: Array) -> Array:
    """NaN in place of numbers that are not zero but so small that an underflow on the way may have changed them."""
    limits = jnp.finfo(x.dtype)
    return jnp.where(nonzero & (jnp.max(jnp.abs(x)) < limits.tiny / limits.eps), jnp.nan, x)


def norm(params: NormParams, state: MeanResidual, epsilon: float, *, centred: bool) -> MeanResidual:
    """RMSNorm of every token, or LayerNorm, which is that of `centred` tokens, split as they are."""
    mean, rest = over_root_mean_square(*state, epsilon, centred)
    out = from_rows(rest * params.scale[None])
    mean = params.scale * mean
    return out._replace(mean=(mean if params.shift is None else mean + params.shift) + out.mean)


# Vectors as a mean, (*heads, width), and differences from it, (*heads, token, width).
Split = tuple[Float[Array, "*heads width"], Scaled]


def unit(mean: Float[Array, "*heads width"], rest: Scaled) -> Split:
    """Vectors mean + rest over their lengths, split the same way; zero vectors stay zero.

    Where mean and rows are about to underflow, or have, the directions are not known, and the rows are NaN. So is the
    row of a vector that is what a rounding leaves of mean + rest, most often of a zero vector.
    """
    limits = jnp.finfo(mean.dtype)
    centre, value = mean[..., None, :], rest.value
    whole, of_mean, of_rest = (jnp.max(jnp.abs(x), axis=-1, keepdims=True) for x in (centre + value, centre, value))
    rounded = (whole > 0) & (whole < _ROUNDED * float(limits.eps) * jnp.maximum(of_mean, of_rest))
    nonzero = jnp.any(mean != 0, axis=-1) | jnp.any(rest.rows != 0, axis=(-2, -1))
    # A mean so small may be the rounded form of many others.
    lost = nonzero & (_largest(mean, rest) < limits.tiny / limits.eps)
    mean, rest = over_root_mean_square(mean, rest, 0.0)
    root = jnp.sqrt(jnp.asarray(mean.shape[-1], mean.dtype))
    return mean / root, (rest / root).map(lambda rows: jnp.where(lost[..., None, None] | rounded, jnp.nan, rows))


def over_root_mean_square(
    mean: Float[Array, "*heads width"], rest: Scaled, epsilon: float, centred: bool = False
) -> Split:
    """Vectors x = mean + rest over √(|x|²/d + ε), split the same way; first less their means if `centred`.

    With u the mean and v = κu + w, w ⟂ u, a row of the rest over e^ℓ, (1 + τ)u + e^ℓ w, τ = e^ℓ κ, is divided by √s_i,
    s_i = |·|²/d + ε. That all but removes the part along u, so that part is subtracted on paper:
    ((1 + τ)/√s_i − 1/√s)/e^ℓ = (ε κ(2 + τ) − e^ℓ|w|²/d) / (s s_i ((1 + τ)/√s_i + 1/√s)),   s = |u|²/d + ε.

    Vectors far from the size 1 are divided by a power of two first, so that no power of them overflows. Where they have
    one direction to differ in there is no w, whatever its rounding: `_on_a_line`. Vectors around the origin, |u| far
    below e^ℓ|v|, are divided as they are.
    """
    if mean.shape[-1] == 1:
        if centred:
            return 0 * mean, rest * 0
        number, numbers = _on_a_line(mean[..., 0], rest.map(lambda rows: rows[..., 0]), epsilon)
        return number[..., None], numbers.map(lambda rows: rows[..., None])
    if mean.shape[-1] == 2 and centred:  # (h, −h), with h half the difference of the two entries

        def half(vectors: Array) -> Array:
            return (vectors[..., 0] - vectors[..., 1]) / 2

        def opposite(numbers: Array) -> Array:
            return jnp.stack([numbers, -numbers], axis=-1)

        number, numbers = _on_a_line(half(mean), rest.map(half), epsilon)
        return opposite(number), numbers.map(opposite)
    if centred:

        def less_mean(vectors: Array) -> Array:
            return vectors - jnp.mean(vectors, axis=-1, keepdims=True)

        mean, rest = less_mean(mean), rest.map(less_mean)

    # u = `centre`, κ = `along`, w = `across`, ε = `added`, all in units of the power of two.
    rows, power = rest.rows, _power_of_size(mean, rest, epsilon)
    log_size = rest.log_size - math.log(2) * power.astype(rows.dtype)
    size, unit = jnp.exp(log_size)[..., None, None], power_of_two(-power, rows.dtype)[..., None, None]
    centre, added = mean[..., None, :] * unit, epsilon * unit * unit if epsilon else 0
    length = jnp.sum(jnp.square(centre), axis=-1, keepdims=True)
    along = jnp.sum(rows * centre, axis=-1, keepdims=True) / jnp.where(length > 0, length, 1)
    across = rows - along * centre

    # 1 + τ = `factor`, s = `square`, s_i = `row_square`.
    factor = 1 + size * along
    mean_square = jnp.mean(jnp.square(centre), axis=-1, keepdims=True)
    off_axis = jnp.mean(jnp.square(across), axis=-1, keepdims=True)
    square = mean_square + added
    row_square = jnp.square(factor) * mean_square + jnp.square(size) * off_axis + added
    # Zero vectors stay zero.
    square = jnp.where(square > 0, square, 1)
    zero = (jax.lax.stop_gradient(jnp.max(jnp.abs(across), axis=-1, keepdims=True)) == 0) & (row_square == 0)
    row_square = jnp.where(zero, 1, row_square)
    shrink, row_shrink = jax.lax.rsqrt(square), jax.lax.rsqrt(row_square)

    # Beyond the origin (1 + τ < 0) nothing cancels, and the plain difference is taken. At the origin, where
    # a zero token is, a compiler may round 1 + τ to either sign, in each place anew: there both forms hold.
    total = jnp.maximum(factor, 0) * row_shrink + shrink
    on_paper = (added * along * (1 + factor) - size * off_axis) / (square * row_square * total)
    plainly = (factor * row_shrink - shrink) / jnp.where(factor < 0.5, size, 1)
    change = jnp.where(factor > 0, on_paper, plainly)
    mean, near = (centre * shrink)[..., 0, :], row_shrink * across + change * centre

    # Of vectors around the origin u is no direction of its own. They lie on more than one side, so that nothing
    # cancels in x/√s, and all of that is taken as a difference from a mean of 0.
    squares = jnp.square(along) * length + rows.shape[-1] * off_axis  # |v|²
    length, longest = jax.lax.stop_gradient((length, jnp.max(squares, axis=(-2, -1))))
    around = 16 * rows.shape[-2] ** 2 * length[..., 0, 0] < jnp.square(size[..., 0, 0]) * longest
    whole = jnp.where(around[..., None, None], centre + size * rows, 1)
    square = jnp.mean(jnp.square(whole), axis=-1, keepdims=True) + added
    whole = whole * jax.lax.rsqrt(jnp.where(square > 0, square, 1))
    mean, rows = jnp.where(around[..., None], 0, mean), jnp.where(around[..., None, None], whole, near)
    return mean, Scaled(rows, jnp.where(around, 0, log_size))


def _on_a_line(mean: Float[Array, "*heads"], rest: Scaled, epsilon: float) -> tuple[Float[Array, "*heads"], Scaled]:
    """Numbers x over √(x² + ε), split the same way; right also where all results round to 1, or to −1.

    With h the mean, h_i = h + e^ℓ · row_i a number, r = √(h² + ε) and r_i = √(h_i² + ε),
    h_i/r_i − h/r = ε (h_i − h)(h_i + h) / (r r_i (h_i r + h r_i)), and ε goes to the logarithm.
    """
    power = _power_of_size(mean[..., None], rest.map(lambda rows: rows[..., None]), epsilon)
    rows, log_unit = rest.rows, math.log(2) * power.astype(rest.rows.dtype)
    log_size, unit = rest.log_size - log_unit, power_of_two(-power, rows.dtype)
    mean = (mean * unit)[..., None]
    after = mean + jnp.exp(log_size)[..., None] * rows
    if epsilon == 0:
        return jnp.sign(mean)[..., 0], Scaled(jnp.sign(after) - jnp.sign(mean), 0 * log_size)

    # The formula of the docstring in units of the least root, whose powers go to the logarithm.
    small = jnp.maximum(math.sqrt(epsilon) * unit, jnp.finfo(rows.dtype).tiny)[..., None]  # √ε
    root, after_root = jnp.hypot(mean, small), jnp.hypot(after, small)
    least = jax.lax.stop_gradient(jnp.minimum(root, jnp.min(after_root, axis=-1, keepdims=True)))
    both = jnp.abs(after) * root + jnp.abs(mean) * after_root
    sums = jnp.where(both > 0, (jnp.abs(after) + jnp.abs(mean)) / jnp.where(both > 0, both, 1), 1 / root)
    on_paper = rows * (least * sums) * (least / root) * (least / after_root)
    log_paper = log_size + math.log(epsilon) - 2 * log_unit - 3 * jnp.log(least[..., 0])

    # On the other side of the origin nothing cancels.
    same_side = (after >= 0) == (mean >= 0)
    crosses = jnp.any(~same_side, axis=-1)
    factor = jnp.exp(jnp.where(crosses, log_paper, 0))[..., None]
    plainly = jnp.where(same_side, factor * on_paper, after / after_root - mean / root)
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(plainly), axis=-1))
    largest = jnp.where(largest > 0, largest, 1)
    rows = jnp.where(crosses[..., None], plainly / largest[..., None], on_paper)
    return (mean / root)[..., 0], Scaled(rows, jnp.where(crosses, jnp.log(largest), log_paper))


def _largest(mean: Float[Array, "*heads width"], rest: Scaled) -> Float[Array, "*heads"]:
    """The largest entry of the mean or of the rest."""
    root = jnp.exp(rest.log_size / 2)  # e^log_size alone may overflow where its product with a small number does not
    in_rows = root * (root * jnp.max(jnp.abs(rest.rows), axis=(-2, -1)))
    return jax.lax.stop_gradient(jnp.maximum(jnp.max(jnp.abs(mean), axis=-1), in_rows))


def _power_of_size(mean: Float[Array, "*heads width"], rest: Scaled, epsilon: float) -> Int[Array, "*heads"]:
    """The exponent of the power of two next to the vectors' size and √ε; 0 where the dtype holds its fifth powers."""
    size = jnp.maximum(_largest(mean, rest), math.sqrt(epsilon))
    ordinary = float(jnp.finfo(mean.dtype).max) ** (1 / 16)
    return jnp.where((size == 0) | ((1 / ordinary <= size) & (size <= ordinary)), 0, exponent(size))


def _relu(centre: Array, step: Scaled) -> Scaled:
    """max(u, −a/e^ℓ) where a > 0, max(u + a/e^ℓ, 0) elsewhere; |a|/e^ℓ is cut where it is larger than every |u|."""
    log_far = jnp.log(jnp.where(centre == 0, 1, jnp.abs(centre))) - step.log_size
    far = jnp.sign(centre) * jnp.exp(jnp.minimum(log_far, math.log(float(jnp.finfo(centre.dtype).max)) / 2))
    return step.map(lambda rows: jnp.where(centre > 0, jnp.maximum(rows, -far), jnp.maximum(rows + far, 0)))


def _smooth(activation: Callable[[Array], Array]) -> Callable[[Array, Scaled], Scaled]:
    """∫₀¹ σ'(a + te^ℓu) dt · u where |e^ℓu| ≤ 1, the plain difference over e^ℓ elsewhere.

    Where a and a + e^ℓu are so large that σ' is 1 the integral is e^ℓu itself, and a plain difference is rounded.
    """

    def slope(x: Array) -> Array:
        return jax.jvp(activation, (x,), (jnp.ones_like(x),))[1]

    def difference(centre: Array, step: Scaled) -> Scaled:
        size, rows = step.size, step.rows
        move = size * rows
        linear = -math.log(jnp.finfo(rows.dtype).eps) + 4  # beyond it σ' is 1 to rounding, for SiLU too
        small = (jnp.abs(move) <= 1) | (jnp.minimum(centre, centre + move) > linear)
        short = jnp.where(small, move, 0)
        points, doubled = np.polynomial.legendre.leggauss(_COUNTS[jnp.finfo(rows.dtype).bits > 32])
        nodes, weights = (jnp.asarray(part / 2, rows.dtype) for part in (points + 1, doubled))

        # Node by node, so that memory does not grow with nodes.
        def add(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
            return total + node[1] * slope(centre + node[0] * short), None

        average = jax.lax.scan(add, jnp.zeros_like(rows), (nodes, weights))[0]
        long = jnp.where(small, 0, move)
        change = activation(centre + long) - activation(centre)
        return Scaled(jnp.where(small, average * rows, change / jnp.where(small, 1, size)), step.log_size)

    return difference


def _tanh(centre: Array, step: Scaled) -> Scaled:
    """By tanh(a + δ) − tanh(a) = sinh(δ)/(cosh(a) cosh(a + δ)), where saturation costs no digit."""
    move = step.value
    after = centre + move
    # 1/cosh(x) = 2e^{−|x|}/(1 + e^{−2|x|}) and sinh(δ) = δ e^{|δ|} expm1(−2|δ|)/(−2|δ|). The exponentials are
    # multiplied first: |δ| − |a| − |a + δ| is 0 where a and a + δ have opposite signs, else −2 min(|a|, |a + δ|).
    across = (centre < 0) != (after < 0)
    exponential = jnp.exp(-2 * jnp.where(across, 0, jnp.minimum(jnp.abs(centre), jnp.abs(after))))
    both = (1 + jnp.exp(-2 * jnp.abs(centre))) * (1 + jnp.exp(-2 * jnp.abs(after)))
    return step.map(lambda rows: 4 * rows * expm1_ratio(-2 * jnp.abs(move)) * exponential / both)


_DIFFERENCES: dict[str, Callable[[Array, Scaled], Scaled]] = {
    "relu": _relu,
    "gelu": _smooth(ACTIVATIONS["gelu"]),
    "gelu_tanh": _smooth(ACTIVATIONS["gelu_tanh"]),
    "tanh": _tanh,
    "silu": _smooth(ACTIVATIONS["silu"]),
}
