"""Parameters to tell a mix-up by, and the tokens of a network layer by layer, of many digits as float64."""

import jax
import jax.numpy as jnp
import numpy as np

from rc_jax import network
from tests.oracles import many_digits


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


def hidden_states(params, x, spec):
    """The tokens before the first layer and after each one."""
    with many_digits.precision(30):
        return np.stack(many_digits.states(params, many_digits.exactly(x), spec)).astype(float)
