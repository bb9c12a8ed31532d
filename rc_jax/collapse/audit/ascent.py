"""Gradient ascent against the inequalities of the proof: tokens and weights that bring left/right close to 1.

Every ratio is left/right of a function of `collapse.audit`, in logarithms: 0 means that the bound is attained, and a
positive number would refute it. Adam climbs from many random starts at once.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rc_jax import attention, network
from rc_jax.attention.specification import assemble
from rc_jax.collapse.audit.lemma import LEMMA_LIMIT, lemma_upper, repaired_step
from rc_jax.collapse.audit.norms import layer
from rc_jax.collapse.audit.tanh import total_variation
from rc_jax.collapse.bounds.tanh import tanh_bound
from rc_jax.collapse.measures import diameter

Point = dict[str, Array]

_TOKENS, _WIDTH = 4, 3
_SPEC = network.StackSpec(attention=attention.AttentionSpec(d_model=_WIDTH), depth=1)
_WEIGHTS = ("query", "key", "value", "output")


def _climb(log_ratio: Callable[[Point], Array], starts: Point, steps: int) -> Float[Array, "start step"]:
    """The log ratio at every step of Adam, from every start (leading axis), with a step that shrinks tenfold."""
    import optax  # a tenth of a second, which only this needs

    optimiser = optax.adam(optax.exponential_decay(0.03, steps, 0.1))

    def from_start(start: Point) -> Array:
        def step(carry: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], Array]:
            point, state = carry
            value, slope = jax.value_and_grad(log_ratio)(point)
            slope = jax.tree.map(lambda s: jnp.where(jnp.isfinite(s), -s, 0), slope)
            update, state = optimiser.update(slope, state)
            return (optax.apply_updates(point, update), state), value

        return jax.lax.scan(step, (start, optimiser.init(start)), None, length=steps)[1]

    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
        return jax.jit(jax.vmap(from_start))(starts)


def _at_limit(move: Array) -> Array:
    """E = `move`, shifted and scaled in every row so that max E − min E is exactly the lemma's limit."""
    low, high = jnp.min(move, axis=-1, keepdims=True), jnp.max(move, axis=-1, keepdims=True)
    return LEMMA_LIMIT * (move - low) / (high - low)


def _lemma(point: Point) -> Array:
    """Log P − log((1 + 2D)P̃) at its largest, D at the lemma's limit: 0 is approached as a weight vanishes."""
    return -jnp.min(lemma_upper(point["base"], _at_limit(point["move"])).slack)


def _repair(point: Point) -> Array:
    """Log |(P − P̃)R| − log(2DP̃|R|) at its largest entry, D at the lemma's limit."""
    step = repaired_step(point["base"], _at_limit(point["move"]), point["rest"])
    return jnp.max(jnp.log(jnp.maximum(step.left, 1e-30)) - jnp.log(jnp.maximum(step.right, 1e-30)))


def _variation(point: Point) -> Array:
    """Log TV − log tanh(osc/4) of two softmaxes."""
    step = total_variation(point["a"], point["b"])
    return jnp.log(step.left) - jnp.log(step.right)


def _params(point: Point) -> network.LayerParams:
    """The weights of a point as those of a network with one head."""
    return network.LayerParams(assemble({name: point[name] for name in _WEIGHTS}))


def _layer(point: Point) -> Array:
    """Log ‖res(SA(X))‖_{1,∞} less its bound with measured γ, one layer."""
    return -layer(_params(point), point["x"], _SPEC).slack[0]


def _tanh_layer(point: Point) -> Array:
    """Log diam(SA(X)) less the bound of the tanh theorem, one layer, SA(X) in plain arithmetic."""
    out = network.apply(_params(point), point["x"], _SPEC)
    return jnp.log(diameter(out)) - tanh_bound(_params(point), point["x"], _SPEC)[1]


_ROW = (1, _TOKENS)
_LAYER_SHAPES: dict[str, tuple[int, ...]] = {"x": (_TOKENS, _WIDTH), **dict.fromkeys(_WEIGHTS, (1, 1, _WIDTH, _WIDTH))}
RATIOS: dict[str, tuple[Callable[[Point], Array], dict[str, tuple[int, ...]]]] = {
    "lemma": (_lemma, {"base": _ROW, "move": _ROW}),
    "repair": (_repair, {"base": _ROW, "move": _ROW, "rest": (_TOKENS, _WIDTH)}),
    "variation": (_variation, {"a": (_TOKENS,), "b": (_TOKENS,)}),
    "layer": (_layer, _LAYER_SHAPES),
    "tanh_layer": (_tanh_layer, _LAYER_SHAPES),
}


def ascend(name: str, key: Array, count: int, steps: int) -> np.ndarray:
    """Log ratios (start, step) of one of `RATIOS`, from so many random starts."""
    log_ratio, shapes = RATIOS[name]
    starts = {
        part: jax.random.normal(jax.random.fold_in(key, index), (count, *shape))
        for index, (part, shape) in enumerate(shapes.items())
    }
    return np.asarray(_climb(log_ratio, starts, steps))
