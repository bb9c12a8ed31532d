"""A network layer by layer in NumPy, from the formula of each wiring; attention itself is tested elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import erf

from rc_jax import attention, network

SIGMA = {
    "relu": lambda h: np.maximum(h, 0),
    "tanh": np.tanh,
    "gelu": lambda h: h * (1 + erf(h / np.sqrt(2))) / 2,
    "gelu_tanh": lambda h: h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))),
    "silu": lambda h: h / (1 + np.exp(-h)),
}


def draw(spec, dtype="float64"):
    """Parameters whose gains and shifts are away from 1 and 0, which would hide a mix-up, and five tokens.

    Their shapes are the package's. NumPy draws the entries: matrices as Xavier has them, others with deviations
    near 1/3.
    """
    random = np.random.default_rng(0)

    def entries(path, leaf):
        name = jax.tree_util.keystr(path[-1:]).strip(".")
        deviation = np.sqrt(2 / sum(leaf.shape[-2:])) if "bias" not in name and name not in ("scale", "shift") else 0.35
        return jnp.asarray((name == "scale") + deviation * random.normal(size=leaf.shape), dtype)

    shapes = jax.eval_shape(lambda: network.init(jax.random.key(0), spec, bias_std=0.3, dtype=dtype))
    params = jax.tree_util.tree_map_with_path(entries, shapes)
    return params, jnp.asarray(random.normal(size=(5, spec.attention.d_model)), dtype)


def normalised(x, weights, spec):
    """LayerNorm or RMSNorm of every token."""
    centred = x - x.mean(axis=1, keepdims=True) if spec.norm_kind == "layer" else x
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + spec.norm_epsilon)
    return scaled * weights.scale + (0 if weights.shift is None else weights.shift)


def mlp(x, weights, spec):
    """The token-wise sublayer, gated or not."""
    straight, sigma = x @ weights.weight_in + weights.bias_in, SIGMA[spec.mlp.activation]
    hidden = sigma(x @ weights.weight_gate + weights.bias_gate) * straight if spec.mlp.gated else sigma(straight)
    return hidden @ weights.weight_out + weights.bias_out


def sublayer(f, x, skip, norm, before, behind):
    """X after one branch f, for each place of its norms."""
    if norm is None:
        return skip * x + f(x)
    if norm == "pre":
        return skip * x + f(before(x))
    if norm == "post":
        return before(skip * x + f(x))
    if norm == "branch":
        return skip * x + behind(f(x))
    return skip * x + behind(f(before(x)))


def hidden_states(params, x, spec):
    """The tokens before the first layer and after each one."""
    states = [np.asarray(x)]
    for index in range(spec.depth):
        weights, x = jax.tree.map(lambda w, index=index: np.asarray(w[index]), params), states[-1]
        layer = spec.local if index in spec.local_layers else spec.attention

        def attend(y, weights=weights, layer=layer):
            return np.asarray(attention.attend(jax.tree.map(jnp.asarray, weights.attention), jnp.asarray(y), layer))

        branches = [(attend, weights.attention_norm, weights.attention_out_norm)]
        if spec.mlp:
            branches.append((lambda y, w=weights: mlp(y, w.mlp, spec), weights.mlp_norm, weights.mlp_out_norm))

        def after(branch, x, skip):
            f, *norms = branch
            before, behind = (lambda y, norm=norm: normalised(y, norm, spec) for norm in norms)
            return sublayer(f, x, skip, spec.norm, before, behind)

        if spec.parallel:
            x = spec.skip * x + sum(after(branch, x, 0) for branch in branches)
        else:
            for branch in branches:
                x = after(branch, x, spec.skip)
        states.append(x)
    return np.stack(states)
