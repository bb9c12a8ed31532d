"""The three tasks of the path study, the training of a network on one, and the accuracy of its paths."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

from experiments.figures import _replicates
from rc_jax import attention, collapse, network, training
from rc_jax.collapse import draw_paths

RECORDS = 12  # in a training
GUESSES = 64  # random guesses at every test label
TOGETHER = 5  # paths whose outputs the released code adds up
AT_ONCE, MOST = 25, 500  # examples measured side by side, and in all
CLIP, GAIN, WARM_UP = 1.0, 0.5, 0.05

Data = dict[str, np.ndarray]
Pair = tuple[jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class Task:
    """One task and the network for it. With `test` = 0 the training examples are asked for again."""

    name: str
    train: int
    test: int
    tokens: int
    outputs: int
    heads: int
    d_model: int
    epochs: int
    depth: int = 6
    batch_size: int = 25
    rate: float = 2e-3
    symbols: int = 0  # size of the vocabulary; 0: tokens are points of the plane
    stated: bool = True  # whether sizes and epochs are those of the source

    @property
    def steps(self) -> int:
        """Of the optimiser."""
        return self.epochs * (self.train // self.batch_size)

    def model(self) -> training.ModelSpec:
        """Attention and skip connections, no MLP, no LayerNorm, no biases: a sum over paths."""
        layer = attention.AttentionSpec(d_model=self.d_model, heads=self.heads)
        return training.ModelSpec(
            stack=network.StackSpec(attention=layer, depth=self.depth, skip=True),
            inputs=self.symbols or 2, outputs=self.outputs, tokens=self.tokens, symbols=self.symbols > 0,
        )  # fmt: skip

    def examples(self, key: jax.Array) -> tuple[Pair, Pair]:
        """Training and test examples, each (inputs, labels)."""
        count, tasks = self.train + self.test, training.tasks
        if self.name == "memorisation":
            x, labels = tasks.memorisation(key, count, length=self.tokens, symbols=self.symbols)
        elif self.name == "sorting":
            x, labels = tasks.sorting(key, count, length=self.tokens, symbols=self.symbols)
        else:
            x, labels = tasks.convex_hull(key, count, points=self.tokens)
        train = x[: self.train], labels[: self.train]
        return train, (x[self.train :], labels[self.train :]) if self.test else train


def study(task: Task, key: jax.Array, seeds: int) -> Data:
    """Train `seeds` networks; their curves, the accuracies of their paths, and the baselines."""
    train, test = task.examples(jax.random.fold_in(key, 0))
    schedule = optax.warmup_cosine_decay_schedule(0.0, task.rate, max(1, int(WARM_UP * task.steps)), task.steps)
    done = _replicates.train(
        jax.random.fold_in(key, 1),
        functools.partial(_build, task.model()),
        _loss,
        training.shuffled(train, task.batch_size),
        steps=task.steps,
        every=-(-task.steps // RECORDS),
        seeds=seeds,
        optimiser=optax.chain(optax.clip_by_global_norm(CLIP), optax.adam(schedule)),
        observe=Partial(_observe, *test),
    )
    data = {"loss": done.metrics["loss"][:, 0, 1:], "accuracy": done.metrics["accuracy"][:, 0]}
    data |= {"step": done.step, "failed": done.failed[:, 0], "stated": np.asarray(task.stated)}
    measured = done.map(Partial(_measure, *test, _draw(jax.random.fold_in(key, 2), task, test[0].shape[0])))
    # Accuracies of paths, NaN for networks whose training stopped; then the baselines.
    lost = data["failed"] >= 0
    for name, values in measured.items():
        data[name] = np.where(lost.reshape((-1,) + (1,) * (values.ndim - 2)), np.nan, values[:, 0])
    data |= baselines(np.asarray(train[1]), np.asarray(test[1]), task.outputs)
    return data | ({"symbol": by_symbol(train, test, task.outputs)} if task.symbols else {})


def by_symbol(train: Pair, test: Pair, labels: int) -> np.ndarray:
    """Accuracy of answering each test token with the most frequent label that its symbol has in training."""
    (x, label), (asked, right) = (tuple(map(np.asarray, pair)) for pair in (train, test))
    counts = np.zeros((1 + max(x.max(), asked.max()), labels), int)
    np.add.at(counts, (x.ravel(), label.ravel()), 1)
    counts += np.eye(labels, dtype=int)[counts.sum(axis=0).argmax()] * (counts.sum(axis=1, keepdims=True) == 0)
    return np.asarray((counts[asked].argmax(axis=-1) == right).mean())


def baselines(train: np.ndarray, test: np.ndarray, labels: int) -> Data:
    """Accuracies on the test labels of answers that do not depend on the input.

    `chance`: guesses drawn at random; `majority`: the most frequent label of the training examples; `place`: the most
    frequent label at each position of the sequence. Arrays of labels are (sequence, token).
    """
    counts = np.stack([(train == label).sum(axis=0) for label in range(labels)])
    guesses = np.random.default_rng(0).integers(labels, size=(GUESSES, *test.shape))
    return {
        "chance": np.asarray((guesses == test[None]).mean()),
        "majority": np.asarray((test == counts.sum(axis=1).argmax()).mean()),
        "place": np.asarray((test == counts.argmax(axis=0)[None]).mean()),
    }


def _build(spec: training.ModelSpec, key: jax.Array, setting: Any) -> training.Transformer:
    return training.Transformer(key, spec, gain=GAIN)


def _loss(model: training.Transformer, batch: tuple[jax.Array, jax.Array], setting: Any) -> jax.Array:
    return training.cross_entropy(jax.vmap(model)(batch[0]), batch[1])


def _observe(x: jax.Array, labels: jax.Array, model: training.Transformer, setting: Any) -> dict[str, jax.Array]:
    return {"accuracy": training.accuracy(jax.vmap(model)(x), labels)}


def _draw(key: jax.Array, task: Task, examples: int) -> jax.Array:
    """`TOGETHER` paths of every length for each example: (example, length, path, layer)."""
    drawn = [
        draw_paths(jax.random.fold_in(key, length), task.depth, task.heads, jnp.asarray(length), MOST * TOGETHER)
        for length in range(task.depth + 1)
    ]
    paths = np.stack(drawn)[:, : examples * TOGETHER]
    return jnp.asarray(paths.reshape(task.depth + 1, examples, TOGETHER, task.depth).swapaxes(0, 1))


def _measure(
    x: jax.Array, labels: jax.Array, paths: jax.Array, model: training.Transformer, setting: Any
) -> dict[str, jax.Array]:
    """Means over the examples of the measures of `_one`; of `error`, the largest."""
    measured = jax.lax.map(lambda example: _one(model, *example), (x, labels, paths), batch_size=AT_ONCE)
    return {name: values.max() if name == "error" else values.mean(axis=0) for name, values in measured.items()}


def _one(model: training.Transformer, x: jax.Array, labels: jax.Array, paths: jax.Array) -> dict[str, jax.Array]:
    """Accuracies on one example, by length of the paths that remain.

    `exact`: all paths of a length; `cumulative`: all up to a length; `network`: all. `alone` and `alone_plain`: single
    paths run again, with and without LayerNorm after each head, a mean over paths drawn for this example; `together`:
    the sum of the former, normalised, as the released code has it. `size` is ‖Y_k‖ over that of the output.
    """
    stack, layers, start = model.spec.stack, model.layers(), model.embed(x)
    sums = collapse.path_length_sums(layers, start, stack)
    out = network.apply(layers, start, stack)

    def again(normalise: bool) -> jax.Array:
        outputs = collapse.path_reruns(layers, start, stack, paths.reshape(-1, stack.depth), normalise=normalise)
        return outputs.reshape(*paths.shape[:2], *start.shape)

    # Hidden states (length, path, token, feature) of every sense, and the share of right answers that they give.
    alone, plain = again(True), again(False)
    together = jax.nn.standardize(alone.sum(axis=1), epsilon=stack.norm_epsilon)
    hidden = {
        "exact": sums[:, None],
        "cumulative": jnp.cumsum(sums, axis=0)[:, None],
        "alone": alone,
        "alone_plain": plain,
        "together": together[:, None],
        "network": out[None, None],
    }
    right = {name: _right(model, states, labels).mean(axis=1) for name, states in hidden.items()}
    return right | {
        "network": right["network"][0],
        "size": jnp.linalg.norm(sums, axis=(1, 2)) / jnp.linalg.norm(out),
        "error": jnp.linalg.norm(sums.sum(axis=0) - out) / jnp.linalg.norm(out),
    }


def _right(model: training.Transformer, hidden: jax.Array, labels: jax.Array) -> jax.Array:
    """The share of right answers of each (length, path) of hidden states (length, path, token, feature)."""
    return jax.vmap(jax.vmap(lambda tokens: training.accuracy(model.read(tokens), labels)))(hidden)
