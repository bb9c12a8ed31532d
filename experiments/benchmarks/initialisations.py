"""Random initialisations per second: where are the weights drawn?"""

import jax
import numpy as np

from experiments.benchmarks.contest import Contest
from experiments.benchmarks.machine import Roofline
from rc_jax import attention, collapse, ensemble, network

SPEC = network.StackSpec(attention=attention.AttentionSpec(d_model=64, heads=4), depth=12)
TOKENS = 32


def tokens() -> jax.Array:
    """The input that every network gets."""
    return jax.random.normal(jax.random.key(1), (TOKENS, SPEC.attention.d_model))


def normals() -> int:
    """Gaussian numbers in one initialisation."""
    return SPEC.depth * 4 * SPEC.attention.d_model**2


def multiplications_and_additions() -> int:
    """Operations of one forward pass in plain arithmetic: four projections, QKᵀ and PV in every layer."""
    width = SPEC.attention.d_model
    return SPEC.depth * (8 * TOKENS * width**2 + 4 * TOKENS**2 * width)


def contests(count: int, machine: Roofline) -> list[Contest]:
    """The exact log-residuals of `count` networks, in three ways."""
    x, key = tokens(), jax.random.key(0)

    def drawn(key: jax.Array) -> jax.Array:
        return collapse.log_residuals(network.random_layers(key, SPEC), x, SPEC)

    def stored(key: jax.Array) -> jax.Array:
        return collapse.log_residuals(network.init(key, SPEC), x, SPEC)

    everything = jax.jit(lambda key: jax.vmap(lambda i: stored(jax.random.fold_in(key, i)))(np.arange(count)).mean(0))
    return [
        Contest(
            title=f"Initialisations, d={SPEC.attention.d_model}, H={SPEC.attention.heads}, L={SPEC.depth}, n={TOKENS}",
            unit="initialisations/s",
            work=count,
            sides={
                "all weights at once, one vmap": lambda: np.asarray(everything(key)),
                "ensemble.run, network.init": lambda: ensemble.run(stored, key, count).mean,
                "ensemble.run, network.random_layers": lambda: ensemble.run(drawn, key, count).mean,
            },
            baseline="all weights at once, one vmap",
            tolerance=1e-4,
            floor=count * (normals() / machine.normals + multiplications_and_additions() / machine.matmul_flops),
            note="floor: the normals and the plain forward pass's operations at the machine's best rates",
        )
    ]
