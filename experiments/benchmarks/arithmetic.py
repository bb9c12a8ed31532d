"""What exactness costs: mean-residual arithmetic against the plain forward pass and the norm of what is left."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.contest import Contest
from experiments.benchmarks.initialisations import SPEC, TOKENS, multiplications_and_additions, tokens
from experiments.benchmarks.machine import Roofline
from rc_jax import collapse, ensemble, network

AGREED = 2  # depths at which float32 still sees the residual in plain arithmetic
BATCH = 32


def plain(params: network.Layers, x: jax.Array) -> jax.Array:
    """The logarithms of ‖X − mean(X)‖_F after every layer; noise from the third on."""
    states = network.hidden_states(params, x, SPEC)
    return jnp.log(jnp.linalg.norm(states - states.mean(axis=1, keepdims=True), axis=(1, 2)))


def exact(params: network.Layers, x: jax.Array) -> jax.Array:
    """The same logarithms at any depth."""
    return collapse.log_residuals(params, x, SPEC)


def contests(count: int, machine: Roofline) -> list[Contest]:
    """With the weights drawn on the way, as in an ensemble, and with the weights given."""
    x, key = 0.3 * tokens(), jax.random.key(0)

    def ensemble_of(measure: Callable) -> Callable[[], np.ndarray]:
        def observe(key: jax.Array) -> jax.Array:
            return measure(network.random_layers(key, SPEC), x)

        return lambda: ensemble.run(observe, key, count).mean[:AGREED]

    given = max(BATCH, count // 4)
    networks = jax.jit(jax.vmap(lambda key: network.init(key, SPEC)))(jax.random.split(key, given))

    def batch_of(measure: Callable) -> Callable[[], np.ndarray]:
        mapped = jax.jit(lambda networks: jax.lax.map(lambda p: measure(p, x), networks, batch_size=BATCH))
        return lambda: np.asarray(mapped(networks)).mean(0)[:AGREED]

    return [
        Contest(
            title=f"Exact against plain arithmetic, {words}, d={SPEC.attention.d_model}, L={SPEC.depth}, n={TOKENS}",
            unit="networks/s",
            work=work,
            sides={"plain: apply, then the norm": side(plain), "exact: log_residuals": side(exact)},
            baseline="plain: apply, then the norm",
            tolerance=1e-3,
            floor=floor,
            note=note,
        )
        for words, work, side, floor, note in (
            ("weights drawn", count, ensemble_of, None, ""),
            (
                "weights given",
                given,
                batch_of,
                given * multiplications_and_additions() / machine.matmul_flops,
                "floor: the plain forward pass's operations at the best matrix-product rate",
            ),
        )
    ]
