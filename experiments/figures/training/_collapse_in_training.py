"""Networks with and without skip, MLP and LayerNorm learn to answer with the mirrored token; measures inside them."""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

from experiments.figures import _replicates
from rc_jax import attention, collapse, network, scale, sparsity, training
from rc_jax.network import plain_arithmetic
from rc_jax.network.switches import OFF, switched_apply, switched_layer

VARIANTS: dict[str, dict[str, bool]] = {
    "attention": {},
    "LN": {"pre": True},
    "MLP": {"mlp": True},
    "skip": {"skip": True},
    "skip, MLP": {"skip": True, "mlp": True},
    "skip, MLP, pre-LN": {"skip": True, "mlp": True, "pre": True},
    "skip, MLP, post-LN": {"skip": True, "mlp": True, "post": True},
}
SKIPPING = [name for name, on in VARIANTS.items() if on.get("skip")]
# The variant of each setting, and whether its tokens start nearly equal.
SETTINGS = [(name, False) for name in VARIANTS] + [(name, True) for name in SKIPPING]
_FEW = 8  # held-out sequences whose paths are summed


def build(spec: Any, key: jax.Array, setting: Any) -> training.Transformer:
    """A model with every part that a variant may use; `setting["spread"]` is the relative difference of its tokens."""
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=2)
    mlp = network.MLPSpec(width=2 * spec.d_model, activation="gelu")
    stack = network.StackSpec(attention=layer, depth=spec.depth, mlp=mlp, norm="pre")
    sizes = {"inputs": spec.symbols, "outputs": spec.symbols, "tokens": spec.tokens}
    model = training.Transformer(key, training.ModelSpec(stack=stack, **sizes))
    spread = setting["spread"]
    common = jnp.where(jnp.arange(spec.d_model) % 2 == 0, 1.0, -1.0)
    model.embedding[...] = spread * model.embedding[...] + jnp.where(spread < 1, common, 0)[None]
    assert model.positions is not None
    model.positions[...] = spread * model.positions[...]
    return model


def loss(model: training.Transformer, batch: jax.Array, setting: Any) -> jax.Array:
    """Cross-entropy (nats) of the mirrored token, for every token."""

    def logits(x: jax.Array) -> jax.Array:
        return model.read(switched_apply(model.layers(), model.embed(x), model.spec.stack, setting))

    return training.cross_entropy(jax.vmap(logits)(batch), jnp.flip(batch, axis=1))


def inside(model: training.Transformer, setting: Any, x: jax.Array) -> dict[str, jax.Array]:
    """Accuracy; ‖res(X^l)‖/‖X^l‖ before the first layer and after each; means over all rows of S and of entropy/log n.

    The arithmetic is plain: where tokens agree in all digits, a relative residual of about 1e-7 is an upper bound.
    """
    stack = model.spec.stack
    arithmetic = plain_arithmetic(stack, None, None)

    def relative(x: jax.Array) -> jax.Array:
        return collapse.frobenius(collapse.residual(x)) / collapse.frobenius(x)

    def step(x: jax.Array, layer: network.LayerParams) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        # The scores of the layer's input, normalised if the setting has a norm before attention.
        assert layer.attention_norm is not None
        read = jnp.where((OFF | setting)["pre"], arithmetic.norm(layer.attention_norm, x), x)
        scores = attention.scores(layer.attention, read, stack.attention)
        entropy = jnp.mean(scale.softmax_entropy(scores, 1.0)) / math.log(scores.shape[-1])
        out = switched_layer(layer, x, arithmetic, setting)
        return out, (relative(out), jnp.mean(sparsity.sparsity(jax.nn.softmax(scores))), entropy)

    start = model.embed(x)
    end, (residuals, sparse, entropy) = network.scan_layers(step, start, model.layers(), stack)
    return {
        "accuracy": training.accuracy(model.read(end), jnp.flip(x)),
        "residual": jnp.concatenate([relative(start)[None], residuals]),
        "sparsity": jnp.mean(sparse),
        "entropy": jnp.mean(entropy),
    }


def shares(model: training.Transformer, x: jax.Array) -> jax.Array:
    """⟨Y_k, X^L⟩/‖X^L‖² by length k of the path, of the network with skip connections and nothing else."""
    spec = dataclasses.replace(model.spec.stack, skip=True, mlp=None, norm=None)
    sums = collapse.path_length_sums(model.layers(), model.embed(x), spec)
    total = sums.sum(axis=0)
    return jnp.einsum("knd,nd->k", sums, total) / jnp.sum(jnp.square(total))


def _observe(held_out: jax.Array, model: training.Transformer, setting: Any) -> dict[str, jax.Array]:
    measured = jax.vmap(lambda x: inside(model, setting, x))(held_out)
    measured["share"] = jax.vmap(lambda x: shares(model, x))(held_out[:_FEW])
    return jax.tree.map(lambda values: jnp.mean(values, axis=0), measured)


def _next(sequences: jax.Array, key: jax.Array, step: jax.Array) -> jax.Array:
    """The batch of a step: the same for all seeds, so that they differ in their weights alone."""
    return sequences[step % len(sequences)]


def trained(spec: Any) -> tuple[training.Training, np.ndarray]:
    """All variants and starts, paired by seed, in one program; and the held-out sequences."""
    count = spec.steps * spec.batch
    # Independent, equally likely symbols: a batch for every step, and the sequences held out.
    drawn = jax.random.randint(jax.random.key(spec.seed), (count + spec.held_out, spec.tokens), 0, spec.symbols)
    batches, held_out = drawn[:count].reshape(spec.steps, spec.batch, spec.tokens), drawn[count:]
    settings = {switch: np.array([(OFF | VARIANTS[name])[switch] for name, _ in SETTINGS]) for switch in OFF}
    settings["spread"] = np.array([spec.collapsed if equal else 1.0 for _, equal in SETTINGS], np.float32)
    done = _replicates.train(
        "all",
        jax.random.key(spec.seed),
        partial(build, spec),
        loss,
        Partial(_next, batches),
        settings=settings,
        seeds=spec.seeds,
        steps=spec.steps,
        optimiser=optax.chain(optax.clip_by_global_norm(1.0), optax.adam(spec.rate)),
        every=spec.every,
        observe=Partial(_observe, held_out),
    )
    return done, np.asarray(held_out)


def one_answer(x: np.ndarray) -> np.ndarray:
    """Accuracy of the best single answer per sequence: all that a network can give whose tokens have become one."""
    return np.asarray(np.mean([np.bincount(row).max() / row.size for row in x]))
