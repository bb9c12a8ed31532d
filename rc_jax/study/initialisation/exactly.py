"""Residuals below float32's digits: those of `collapse.log_residuals`, on the same networks."""

import math

import jax
import numpy as np
from jaxtyping import Array

from rc_jax import collapse
from rc_jax.attention.layer import default_scale
from rc_jax.network import LayerParams, StackSpec
from rc_jax.study.initialisation import nothing, passes
from rc_jax.study.initialisation.design import Design
from rc_jax.study.initialisation.passes import Network, Numbers, complete, draw_layer, draw_tokens

ROUNDED = 1e-5  # a relative residual of which float32 has two digits left
CANCELLED = 1e-3  # below it gradients of the order of its square, at W_Q and W_K, are lost where nothing is centred
LOST = "Where the last layer's gradient at W_Q or W_K is lost in rounding, no ratio to it is known."
AGREE = 0.1  # of a logarithm: how far float32's residual may be off where its rows and gradients count


def replace(
    samples: list[dict[str, np.ndarray]], key: Array, design: Design, network: Network, numbers: Numbers
) -> tuple[str, ...]:
    """Write exact residuals in the place of rounded ones; what depends on rounded differences is not known.

    Later layers make their differences of those of earlier ones. So from the first rounded residual on all are exact
    ones, also where float32's own have grown again: then they may have grown from noise. Where they have, that
    network's rows and gradients are noise, too.
    """
    refused = ""
    for index, sample in enumerate(samples):
        below = sample["residual"] < math.log(ROUNDED)
        rounded = np.logical_or.accumulate(below)
        exact = np.full(rounded.shape, np.nan)
        if not refused and rounded.any():
            try:
                exact = residuals(jax.random.fold_in(key, index), design, network, numbers)
            except ValueError as error:
                refused = str(error)
        noise = rounded & ~below & ~(np.abs(exact - sample["residual"]) < AGREE)
        sample["residual"] = np.where(rounded, exact, sample["residual"])
        for name in ("evenness", "largest", "even", "saturated"):
            sample[name] = np.where(noise[:-1], np.nan, sample[name])
        if noise[:-1].any():
            for name in ("gradient_input", "gradient_value", "gradient_output"):
                sample[name] = np.full_like(sample[name], np.nan)
        for name in ("gradient_query", "gradient_key"):
            lost = (rounded[:-1] | rounded[-2]) & (sample[name] != -np.inf)  # what is exactly 0 stays
            sample[name] = np.where(lost, np.nan, sample[name])
    if refused:
        said = f"Residuals from the first below {ROUNDED:g} on are lost in float32's digits: {refused}."
    else:
        said = (
            f"Residuals from the first below {ROUNDED:g} on are those of cancellation-free arithmetic "
            "(collapse.log_residuals)."
        )
    logs = [sample[name] for sample in samples for name in ("gradient_query", "gradient_key")]
    if not any(np.isnan(each).any() and each[-1] != -np.inf for each in logs):
        return (said,)
    return (said, LOST)


def forget_cancelled(samples: list[dict[str, np.ndarray]], spec: StackSpec) -> tuple[str, ...]:
    """Write NaN in the place of gradients at W_Q and W_K that keys less their mean would need, and have not got."""
    small = [sample["residual"][:-1] < math.log(CANCELLED) for sample in samples]
    plain, last = ~nothing.of_layers(spec, passes.centred), False
    if not np.any(small & plain):
        return ()
    plain &= nothing.cancelling(spec)
    for sample, below in zip(samples, small & plain, strict=True):
        for name in ("gradient_query", "gradient_key"):
            lost = (below | below[-1]) & (sample[name] != -np.inf)
            sample[name] = np.where(lost, np.nan, sample[name])
            last |= bool(lost[-1])
    return (LOST,) if last else ()


def residuals(key: Array, design: Design, network: Network, numbers: Numbers) -> np.ndarray:
    """Log ‖res‖/‖X‖ of the network that `passes.measure` draws with this key."""
    if design.skip != 1:
        raise ValueError("a skip connection times λ has no form without cancellation here")
    spec, sharpness = network.spec, float(numbers.sharpness)
    if sharpness != 1 and len({default_scale(kind.attention) for kind in spec.kinds}) > 1:
        raise ValueError("layers have two scales")
    params, x = drawn(key, network, numbers)
    scale = None if sharpness == 1 else sharpness * default_scale(spec.attention)
    return np.asarray(collapse.log_residuals(params, x, spec, scale=scale, relative=True), float)


@jax.jit(static_argnames="network")
def drawn(key: Array, network: Network, numbers: Numbers) -> tuple[LayerParams, Array]:
    """All layers of a network at once, and its tokens."""
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(
        jax.random.fold_in(key, 0), np.asarray(network.shared, np.int32)
    )

    def layer(key: Array, norm: Array) -> LayerParams:
        return complete(draw_layer(key, network, numbers), network, numbers, norm)

    return jax.vmap(layer)(keys, numbers.norms), draw_tokens(jax.random.fold_in(key, 1), network, numbers)
