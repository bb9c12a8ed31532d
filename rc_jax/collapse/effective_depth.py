"""Effective depth: the layers of pure attention after which tokens cannot be told apart in a floating-point type."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from numpy.typing import NDArray
from scipy.special import digamma

from rc_jax._numerics import arguments

_COUNT, _FACTOR = arguments.integer(), arguments.positive


@arguments.guard(
    tokens=arguments.integer(2), d_model=_COUNT, heads=_COUNT, depth=_COUNT, gain=_FACTOR, multiple=_FACTOR
)
def log_relative_residuals(
    *, tokens: int, d_model: int, heads: int, depth: int, gain: float = 1.0, multiple: float = 1.0
) -> NDArray[np.float64]:
    """The logarithm of the tokens' root-mean-square difference over that of their mean, by layer, for Gaussian weights.

    log(u_l √n g^(−2l)),   u₁ = g²√((e^{σ²} − 1)/n),   u_(l+1) = m g⁴ u_l³/√k_l,   σ = m g²

    k₁ = 1/(2/n + 3/d) is the number of directions that the differences have after the first layer. From the second
    layer on there is one, and −½ log k_l = ½(ψ(H/2) − log(H/2)) with ψ the digamma function. This package's own form;
    it is of first order in σ, the standard deviation of the first logits, and fails for σ > 1, where softmax saturates.

    Args:
        tokens: n ≥ 2, N(0, I) tokens.
        d_model: d.
        heads: H.
        depth: the number of layers.
        gain: g, the factor of all weight matrices.
        multiple: m, the logits' scale over 1/√d_head.

    Returns:
        depth + 1 logarithms (nats); the first is ½ log n, which stands for the tokens themselves.

    Raises:
        TypeError: an argument that is not a number of its kind.
        ValueError: a count below its least value, or a factor that is not positive.

    Example:
        >>> logs = log_relative_residuals(tokens=32, d_model=64, heads=4, depth=4)
        >>> round(float(crossing(logs, -24 * np.log(2))), 2)  # of float32
        3.05
    """
    # log u_l of the first layer, then the cube with the number of directions of each layer.
    log_size = 0.5 * np.log(np.expm1((multiple * gain**2) ** 2) / tokens) + 2 * np.log(gain)
    logs = [0.0, log_size]
    for layer in range(1, depth):
        one_direction = 0.5 * float(digamma(heads / 2) - np.log(heads / 2))
        log_directions = 0.5 * np.log(2 / tokens + 3 / d_model) if layer == 1 else one_direction
        logs.append(3 * logs[-1] + np.log(multiple * gain**4) + log_directions)
    # The mean token has size g^{2l}/√n.
    return np.array(logs) + 0.5 * np.log(tokens) - 2 * np.log(gain) * np.arange(depth + 1)


@arguments.guard(logs=arguments.float_array("layer", minimum={"layer": 2}), threshold=arguments.real)
def crossing(logs: Float[Array, " layer"] | NDArray[np.floating], threshold: ArrayLike) -> Float[Array, ""]:
    """The layer at which a falling curve crosses a threshold, linear between layers.

    Args:
        logs: one number per layer, from layer 0 on.
        threshold: the number to fall below.

    Returns:
        The layer: 0 where the curve starts below, infinite where it stays above, NaN where one comes before it.

    Raises:
        TypeError, ValueError: `logs` is not a vector of at least two floating-point numbers.

    Example:
        >>> float(crossing(jnp.array([0.0, -1.0, -3.0]), -2.0))
        1.5
    """
    logs = jnp.asarray(logs)
    below = logs < threshold
    crosses = jnp.any(below)
    after = jnp.maximum(jnp.argmax(below), 1)
    part = (logs[after - 1] - threshold) / (logs[after - 1] - logs[after])
    layer = jnp.where(crosses, (after - 1).astype(logs.dtype) + part, jnp.inf)
    layer = jnp.where(below[0], 0, layer)
    last = jnp.where(crosses, jnp.argmax(below), logs.size - 1)
    return jnp.where(jnp.any(jnp.isnan(logs) & (jnp.arange(logs.size) <= last)), jnp.nan, layer)
