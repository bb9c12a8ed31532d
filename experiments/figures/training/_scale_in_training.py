"""Small transformers trained at many logit scales: tasks, functions of a training, and measures."""

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.tree_util import Partial

from experiments.figures import _replicates
from experiments.lib import figure
from rc_jax import attention, network, scale, training
from rc_jax.training import tasks

TASKS, SCORES = ("digits", "characters", "sorting"), ("dot", "cosine")
PAIRS = tuple((task, scores) for task in TASKS for scores in SCORES)
MODES = ("fixed", "learned")
METRICS = ("held_out", "gradient", "query_key_gradient", "alpha")


class Spec(figure.Spec):
    """Tasks with their scores, sizes of the tasks and of the network, its training, and the scales it is trained at.

    `ratios` are scales in units of the layer's default, 1/√d_head on products and √d_head on cosines; the annealed and
    the typical optimum are added to them. The optimum of a decoder is that of half its longest row. `scikit_learn`: it
    is installed, which the digits need.
    """

    pairs: tuple[tuple[str, str], ...] = PAIRS
    d_model: int = 16
    heads: int = 1
    depth: int = 2
    patch: int = 2
    window: int = 24
    vocabulary: int = 40
    length: int = 16
    symbols: int = 10
    ratios: tuple[float, ...] = (0.25, 1.0, 4.0, 16.0)
    seeds: int = 3
    steps: int = 160
    every: int = 16
    batch: int = 16
    held_out: int = 96
    optimiser: str = "adam"
    rate: float = 1e-2
    scikit_learn: bool = importlib.util.find_spec("sklearn") is not None


class Task(NamedTuple):
    """Sizes of the model, number of keys in a row, whether it is a decoder, batches, held-out examples."""

    sizes: dict[str, Any]
    keys: int
    decoder: bool
    batches: Callable[[jax.Array, jax.Array], Any]
    held_out: tuple[jax.Array, jax.Array]


def make(name: str, spec: Spec, key: jax.Array) -> Task:
    """One of `TASKS`. Held-out pictures and text are never trained on; sequences to sort are drawn anew each time."""
    # Digits: an encoder reads a picture as patches and answers once, from the mean of its tokens.
    if name == "digits":
        data = tasks.digits(patch=spec.patch)
        _, tokens, features = data.train_x.shape
        batches = training.shuffled((data.train_x, data.train_labels), spec.batch)
        held_out = (data.test_x[: spec.held_out], data.test_labels[: spec.held_out])
        sizes = {"inputs": features, "outputs": 10, "tokens": tokens, "symbols": False, "pooled": True}
        return Task(sizes, tokens, False, batches, held_out)
    # Characters: a decoder predicts the next one. Its rows see 1 to n tokens, half of n in the mean: α* is that of n/2.
    if name == "characters":
        text = tasks.characters(vocabulary=spec.vocabulary)

        def windows(text: jax.Array, key: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
            return tasks.windows(jax.random.fold_in(key, step), text, spec.batch, spec.window)

        held_out = tasks.windows(key, text.test, spec.held_out, spec.window)
        symbols = len(text.symbols) + 1  # one for every other character
        sizes = {"inputs": symbols, "outputs": symbols, "tokens": spec.window}
        return Task(sizes, spec.window // 2, True, Partial(windows, text.train), held_out)

    # Sorting: an encoder answers at every position, on sequences drawn anew at every step.
    def sequences(key: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        return tasks.sorting(jax.random.fold_in(key, step), spec.batch, length=spec.length, symbols=spec.symbols)

    held_out = tasks.sorting(key, spec.held_out, length=spec.length, symbols=spec.symbols)
    sizes = {"inputs": spec.symbols, "outputs": spec.symbols, "tokens": spec.length}
    return Task(sizes, spec.length, False, sequences, held_out)


def model_spec(task: Task, scores: Any, spec: Spec) -> training.ModelSpec:
    """The network for a task: skips, MLPs and LayerNorm before each sublayer, encoder or decoder."""
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads, scores=scores, causal=task.decoder)
    mlp = network.MLPSpec(width=2 * spec.d_model)
    stack = network.StackSpec(attention=layer, depth=spec.depth, skip=True, mlp=mlp, norm="pre")
    return training.ModelSpec(stack=stack, final_norm=True, **task.sizes)


@dataclasses.dataclass(frozen=True)
class Functions:
    """The functions of one training.

    α multiplies scores of variance one (`dot`) or cosines; `unit` is the layer's factor at α = 1. Whether α is trained
    or stays is a traced setting, like α itself.
    """

    model: training.ModelSpec
    unit: float

    def build(self, key: jax.Array, setting: dict[str, jax.Array]) -> training.Transformer:
        """A model whose `log_scale` starts at the setting's α."""
        return training.Transformer(key, self.model, scale=self.unit * setting["alpha"])

    def loss(self, model: Any, batch: tuple[jax.Array, jax.Array], setting: dict[str, jax.Array]) -> jax.Array:
        """Cross-entropy in nats. Where α is fixed no gradient reaches `log_scale`."""
        x, labels = batch
        used = jnp.where(setting["learned"], jnp.exp(model.log_scale[...]), self.unit * setting["alpha"])
        return training.cross_entropy(jax.vmap(lambda one: model(one, scale=used))(x), labels)

    def observe(
        self, held_out: tuple[jax.Array, jax.Array], model: Any, setting: dict[str, jax.Array]
    ) -> dict[str, jax.Array]:
        """Held-out loss, norms of its gradient, and α."""
        graph, weights, rest = nnx.split(model, nnx.Param, ...)
        value, gradient = jax.value_and_grad(
            lambda weights: self.loss(nnx.merge(graph, weights, rest), held_out, setting)
        )(weights)
        layers = nnx.merge(graph, gradient, rest).layers().attention
        return {
            "held_out": value,
            "gradient": optax.tree.norm(gradient),
            "query_key_gradient": optax.tree.norm((layers.query, layers.key)),
            "alpha": jnp.exp(jnp.mean(model.log_scale[...])) / self.unit,
        }


def marks(scores: str, keys: int, spec: Spec) -> dict[str, float]:
    """α of the annealed optimum, of the typical one and of the layer's default; on cosines also α = 1."""
    width = spec.d_model // spec.heads
    dim = None if scores == "dot" else float(width)
    alphas = {
        "annealed": float(scale.optimal_scale(float(keys), dim)),
        "typical": float(scale.typical_scale(jax.random.key(0), keys, dim, 256)),
        "default": 1.0 if scores == "dot" else width**0.5,
    }
    return alphas if scores == "dot" else alphas | {"one": 1.0}


def train(name: str, scores: str, spec: Spec) -> dict[str, np.ndarray]:
    """One program: all scales, fixed and learned, all seeds. Metrics are (mode, seed, scale, record)."""
    key = jax.random.key(spec.seed)
    task = make(name, spec, jax.random.fold_in(key, 0))
    mark = marks(scores, task.keys, spec)
    alphas = np.array(sorted({mark["default"] * ratio for ratio in spec.ratios} | set(mark.values())))
    unit = 1.0 if scores == "cosine" else (spec.d_model // spec.heads) ** -0.5
    functions = Functions(model_spec(task, scores, spec), unit)
    # Settings are modes × scales; the metrics are (seed, setting, record) and are split by mode afterwards.
    done = _replicates.train(
        jax.random.fold_in(key, 1),
        functions.build,
        functions.loss,
        task.batches,
        settings={
            "alpha": jnp.asarray(np.tile(alphas, len(MODES)), float),
            "learned": jnp.repeat(jnp.array([False, True]), alphas.size),
        },
        seeds=spec.seeds,
        steps=spec.steps,
        every=spec.every,
        optimiser=getattr(optax, spec.optimiser)(spec.rate),
        observe=Partial(functions.observe, task.held_out),
    )

    def by_mode(values: np.ndarray) -> np.ndarray:
        return np.moveaxis(values.reshape(spec.seeds, len(MODES), alphas.size, *values.shape[2:]), 1, 0)

    data = {metric: by_mode(done.metrics[metric]) for metric in METRICS}
    data |= {"step": done.step, "failed": by_mode(done.failed), "alphas": alphas, "keys": np.array(task.keys)}
    return data | {f"mark_{name}": np.array(value) for name, value in mark.items()}
