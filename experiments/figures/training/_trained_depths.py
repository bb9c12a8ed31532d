"""Networks of attention alone, trained at several depths in one program."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

from experiments.figures import _replicates
from experiments.lib import figure
from rc_jax import attention, study, training
from rc_jax.attention import KINDS
from rc_jax.network import LayerParams, StackSpec
from rc_jax.training import tasks

Setting = dict[str, jax.Array]
# Kinds that need a causal mask cannot sort: the first answer depends on all symbols.
SORTING = tuple(name for name in KINDS if name not in ("channel_decay", "gated_decay"))


class Spec(figure.Spec):
    """Kinds and depths; sizes of the network and of the task; its training; initialisations of the table."""

    kinds: tuple[str, ...] = SORTING
    depths: tuple[int, ...] = (2, 4, 6, 8)
    d_model: int = 16
    heads: int = 2
    length: int = 6
    symbols: int = 6
    seeds: int = 10
    steps: int = 600
    batch: int = 16
    held_out: int = 256
    rate: float = 3e-3
    samples: int = 10

    def stack(self, kind: str) -> StackSpec:
        """The deepest network with weights of this kind: no skips, MLPs or norms."""
        layer = attention.AttentionSpec(d_model=self.d_model, heads=self.heads, weights=kind)
        return StackSpec(attention=layer, depth=max(self.depths))


@dataclass(frozen=True)
class Functions:
    """The functions of a training; its setting is a depth, and layers from there on do nothing."""

    model: training.ModelSpec

    def build(self, key: jax.Array, setting: Setting) -> training.Transformer:
        """A model of the largest depth; all depths of a seed have the same first layers."""
        del setting
        return training.Transformer(key, self.model)

    def answers(self, model: Any, tokens: jax.Array, depth: jax.Array) -> jax.Array:
        """Logits (sequence, token, symbol) of the first `depth` layers."""
        layers, spec = model.layers(), self.model.stack

        def step(x: jax.Array, layer: tuple[jax.Array, LayerParams]) -> tuple[jax.Array, None]:
            out = attention.attend(layer[1].attention, x, spec.attention)
            return jnp.where(layer[0] < depth, out, x), None

        def one(tokens: jax.Array) -> jax.Array:
            return model.read(jax.lax.scan(step, model.embed(tokens), (jnp.arange(spec.depth), layers))[0])

        return jax.vmap(one)(tokens)

    def loss(self, model: Any, batch: tuple[jax.Array, jax.Array], setting: Setting) -> jax.Array:
        """Cross-entropy in nats."""
        return training.cross_entropy(self.answers(model, batch[0], setting["depth"]), batch[1])

    def observe(self, held_out: tuple[jax.Array, jax.Array], model: Any, setting: Setting) -> dict[str, jax.Array]:
        """Accuracy on held-out sequences."""
        return {"accuracy": training.accuracy(self.answers(model, held_out[0], setting["depth"]), held_out[1])}


def train(kind: str, spec: Spec) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy after training (seed, depth), 0 where a replicate stopped, and the step at which it did, or −1."""
    key = jax.random.fold_in(jax.random.key(spec.seed), 0)

    def sequences(key: jax.Array, step: jax.Array | int, count: int = spec.batch) -> tuple[jax.Array, jax.Array]:
        return tasks.sorting(jax.random.fold_in(key, step), count, length=spec.length, symbols=spec.symbols)

    stack, count = spec.stack(kind), spec.symbols
    functions = Functions(training.ModelSpec(stack=stack, inputs=count, outputs=count, tokens=spec.length))
    held_out = sequences(jax.random.fold_in(key, 1), 0, spec.held_out)
    done = _replicates.train(
        jax.random.fold_in(key, 0), functions.build, functions.loss, sequences,
        settings={"depth": jnp.asarray(spec.depths)}, seeds=spec.seeds, steps=spec.steps, every=spec.steps,
        optimiser=optax.adam(spec.rate), observe=Partial(functions.observe, held_out),
    )  # fmt: skip
    return np.where(done.failed < 0, done.metrics["accuracy"][..., -1], 0), done.failed


def table(kind: str, spec: Spec) -> tuple[np.ndarray, float]:
    """What `study.architecture` says before training, in medians over initialisations.

    Log ‖res(X)‖/‖X‖ after as many layers as each depth has, and the log of the gradient at the first layer's input over
    that at the last layer's, in the deepest network. −inf where it is not known in one of the initialisations.
    """
    key = jax.random.fold_in(jax.random.key(spec.seed), 1)
    found = study.architecture(spec.stack(kind), tokens=spec.length, samples=spec.samples, key=key)
    known = lambda logs: np.nan_to_num(logs, nan=-np.inf, neginf=-np.inf)  # noqa: E731
    return known(found["residual"][list(spec.depths)]), float(known(found["gradient_input"][0]))
