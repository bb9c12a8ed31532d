"""Networks that differ in what stands before their branches, drawn at random: size and gradient by layer; one head."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lib import figure
from rc_jax import attention, network
from rc_jax.network import LayerParams, StackSpec
from rc_jax.network.stack import block, plain_arithmetic

NETWORKS = ("pre", "scaled", "tanh", "none", "post", "aligned")
JACOBIANS, GRADIENTS = ("pre", "scaled", "tanh"), ("pre", "scaled", "post")  # of which networks they are measured


class Spec(figure.Spec):
    """Shape, depth and number of the networks; correlations of tokens, width, tokens and draws of the single head."""

    d_model: int = 128
    heads: int = 4
    tokens: int = 32
    depth: int = 64
    count: int = 32
    correlations: tuple[float, ...] = (0.0, 1 / 3, 2 / 3)
    query_gains: tuple[float, ...] = (0.1, 0.6)
    head_d_model: int = 512
    head_tokens: int = 320
    head_draws: int = 32


def network_by_layer(key: jax.Array, name: str, spec: Spec) -> dict[str, jax.Array]:
    """One initialisation: log variance before the first layer and after each, log ‖∂X^l/∂X^0‖²/nd, and gradients.

    Of the network scaled by 1/√l too: the correlation by layer of what its branches add with the tokens.

    The norm of the Jacobian is the root mean square of its product with a normal matrix. The loss is ⟨U, X^L⟩ with U
    normal. Gradients are of the four matrices of attention together, over the last layer's.
    """
    norm = {"none": None, "post": "post"}.get(name, "pre")
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads)
    stack = StackSpec(
        attention=layer, depth=spec.depth, skip=True, norm=norm, mlp=network.MLPSpec(width=4 * spec.d_model)
    )
    of_weights, of_tokens, of_loss = jax.random.split(key, 3)
    params = _xavier(network.init(of_weights, stack, dtype=spec.dtype))
    x = jax.random.normal(of_tokens, (spec.tokens, spec.d_model), spec.dtype)
    numbers = jnp.arange(spec.depth).astype(spec.dtype) + 1

    def step(x: jax.Array, params: LayerParams, number: jax.Array) -> jax.Array:
        plain = plain_arithmetic(stack, None, None)
        norms = {"tanh": lambda _, x: jnp.tanh(x), "scaled": lambda p, x: plain.norm(p, x) / jnp.sqrt(number)}
        wiring: Any = {"norm": norms.get(name, plain.norm)}
        if name == "aligned":
            wiring |= {"attend": lambda _, x: x, "mlp": lambda _, x: x}
        kept = {field: getattr(plain, field) for field in ("attend", "mlp", "norm", "add")}
        return block(params, x, stack, type(plain)(**kept | wiring))

    def ahead(carry: tuple[jax.Array, jax.Array, jax.Array], of: Any) -> Any:
        x, direction, log = carry
        out, change = jax.jvp(lambda x: step(x, *of), (x,), (direction,))
        square = _log_square(change)
        sizes = jnp.linalg.norm(out - x) * jnp.linalg.norm(x)
        kept = x, _log_square(out), log + square, jnp.sum((out - x) * x) / sizes
        return (out, change * jnp.exp(-square / 2), log + square), kept

    def back(carry: tuple[jax.Array, jax.Array], of: Any) -> Any:
        (gradient, log), (x, (params, number)) = carry, of
        by_x, by_params = jax.vjp(lambda x, params: step(x, params, number), x, params)[1](gradient)
        square = _log_square(by_x)
        matrices = [getattr(by_params.attention, each) for each in ("query", "key", "value", "output")]
        of_weights = jnp.log(sum(jnp.sum(jnp.square(each)) for each in matrices)) + log
        return (by_x * jnp.exp(-square / 2), log + square), of_weights

    zero = jnp.zeros((), spec.dtype)
    direction, loss = jax.random.normal(of_loss, (2, *x.shape), spec.dtype)
    _, (inputs, squares, jacobian, correlation) = jax.lax.scan(ahead, (x, direction, zero), (params, numbers))
    found = {"variance": jnp.concatenate([_log_square(x)[None], squares])}
    if name == "scaled":
        found["correlation"] = correlation
    if name in JACOBIANS:
        found["jacobian"] = jacobian
    if name in GRADIENTS:
        weights = jax.lax.scan(back, (loss, zero), (inputs, (params, numbers)), reverse=True)[1]
        found["gradient"] = (weights - weights[-1]) / 2
    return found


def _xavier(params: LayerParams) -> LayerParams:
    """Matrices of the MLP with variance 2/(fan_in + fan_out) in place of 1/fan_in; those of attention have it."""
    assert params.mlp is not None
    mlp = params.mlp._replace(
        weight_in=params.mlp.weight_in * (2 / 5) ** 0.5, weight_out=params.mlp.weight_out * (8 / 5) ** 0.5
    )
    return params._replace(mlp=mlp)


def _log_square(x: jax.Array) -> jax.Array:
    """Log of the mean square, which neither overflows nor underflows."""
    top = jnp.max(jnp.abs(x))
    return 2 * jnp.log(top) + jnp.log(jnp.mean(jnp.square(x / top)))


def head(spec: Spec) -> dict[str, np.ndarray]:
    """Variance and covariance of the outputs of one head over the closed forms, by (correlation, gain, draw)."""
    key, n, d = jax.random.fold_in(jax.random.key(spec.seed), 1), spec.head_tokens, spec.head_d_model
    layer = attention.AttentionSpec(d_model=d, heads=1, d_head=64)

    @jax.jit
    def moments(key: jax.Array, r: jax.Array, gain: jax.Array) -> tuple[jax.Array, jax.Array]:
        of_tokens, of_weights = jax.random.split(key)
        drawn = jax.random.normal(of_tokens, (n + 1, d), spec.dtype)
        x = jnp.sqrt(r) * drawn[:1] + jnp.sqrt(1 - r) * drawn[1:]
        params = attention.init(of_weights, layer, dtype=spec.dtype)
        params = params._replace(query=gain * params.query, key=gain * params.key)
        out = attention.attention_weights(params, x, layer)[0] @ x  # the mean over W_V has the moments of P X
        total, own = jnp.sum(out, axis=0), jnp.sum(jnp.square(out)) / d
        return own / n, (jnp.mean(jnp.square(total)) - own) / (n * (n - 1))

    draws = jax.random.split(key, spec.head_draws)
    pairs = [(r, gain) for r in spec.correlations for gain in spec.query_gains]
    found = np.array([[np.array(moments(each, jnp.asarray(r), jnp.asarray(g))) for each in draws] for r, g in pairs])
    predicted = np.array([head_moments(r, gain, n, d) for r, gain in pairs])
    return {"head": np.array(pairs), "head_measured": found, "head_predicted": predicted}


def head_moments(r: float, gain: float, n: int, d: int) -> tuple[float, float]:
    """Variance and covariance of the outputs of a head by Kedia et al. 2024's code, for tokens of variance 1.

    Tokens have correlation r, W_V has variance 1/d, W_Q and W_K have gain²/d, and there are no dropouts.
    """
    product = gain**4 / d**2  # of the variances of W_Q and W_K
    square = d * product
    rest = np.exp((1 - r) * d * square) * ((1 - r) ** 2 * 4 * square + 1 - r)
    variance = ((1 - r) ** 2 * (n - 1) * square + rest) / n + r
    return variance, r + (2 * (1 - r) ** 2 * d * product + 1 - r) / n
