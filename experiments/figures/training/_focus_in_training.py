"""Associative recall by one layer of attention: its training with any kind of weights, and measures of its rows.

A pair is the sum of the embeddings of its key and of its value; the question is the embedding of a key. The network is
one layer with one head, without skip connection, MLP, norm or positions: the readout sees the pairs only through the
question's row of weights.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial
from scipy import stats

from experiments.figures import _replicates
from rc_jax import attention, network, sparsity, training
from rc_jax.attention import AttentionSpec
from rc_jax.training import tasks
from rc_jax.training.tasks import Pairs

Setting = dict[str, jax.Array]
KINDS: dict[str, dict[str, Any]] = {
    "softmax": {"weights": "softmax"},
    "l2": {"weights": "l2"},
    "signed": {"weights": "signed"},
    "relu²/Σ": {"weights": "relu_squared"},
    "relu²/n": {"weights": "relu_squared_mean"},
    "identity": {"weights": "identity"},
    "linear": {"weights": "linear"},  # its features are elu + 1
    "decay": {"weights": "decay", "causal": True},
    "gated decay": {"weights": "gated_decay", "causal": True},
    "channel decay": {"weights": "channel_decay", "causal": True},
} | {
    f"linear, {name}": {"weights": "linear", "feature_map": name}
    for name in ("softplus", "exp", "relu", "squared_relu")
}


@dataclass(frozen=True)
class Task:
    """Pairs in the longest sequence, keys, values; width of a token and of a head."""

    pairs: int = 32
    keys: int = 64
    values: int = 16
    d_model: int = 32
    d_head: int = 16

    def draw(self, count: int, key: jax.Array, step: jax.Array | int) -> Pairs:
        """The sequences of one step."""
        sizes = {"pairs": self.pairs, "keys": self.keys, "values": self.values}
        return tasks.recall(jax.random.fold_in(key, step), count, **sizes)

    def build(self, kind: str, key: jax.Array, setting: Setting) -> training.Transformer:
        """One layer with weights of this kind."""
        del setting
        layer = AttentionSpec(d_model=self.d_model, d_head=self.d_head, **KINDS[kind])
        stack = network.StackSpec(attention=layer, depth=1)
        inputs, tokens = self.keys + self.values, self.pairs + 1
        spec = training.ModelSpec(stack=stack, inputs=inputs, outputs=self.values, tokens=tokens, positions=None)
        return training.Transformer(key, spec)

    def embed(self, model: training.Transformer, drawn: Pairs, question: jax.Array) -> jax.Array:
        """Tokens (sequence, pair and question, feature)."""

        def one(keys: jax.Array, values: jax.Array, asked: jax.Array) -> jax.Array:
            tokens = model.embed(jnp.concatenate([keys, asked[None]]))
            return tokens.at[: self.pairs].add(model.embed(values + self.keys))

        return jax.vmap(one)(drawn.keys, drawn.values, question)


def answers(model: training.Transformer, tokens: jax.Array, mask: jax.Array) -> jax.Array:
    """Logits of the values (sequence, value), read from the question."""
    weights, stack = model.layers(), model.spec.stack
    return jax.vmap(lambda x: model.read(network.apply(weights, x, stack, mask=mask))[-1])(tokens)


def loss(task: Task, model: training.Transformer, drawn: Pairs, setting: Setting) -> jax.Array:
    """Cross-entropy of the answers about the last `length` pairs."""
    question = tasks.recall_question(drawn, length=setting["length"])
    mask = tasks.recall_mask(task.pairs, length=setting["length"])
    return training.cross_entropy(answers(model, task.embed(model, drawn, question.key), mask), question.answer)


def observe(task: Task, held_out: Pairs, model: training.Transformer, setting: Setting) -> dict[str, jax.Array]:
    """Accuracy on held-out sequences, and measures of the question's row of weights.

    `validation` is the accuracy on the first quarter, `accuracy` that on the rest, `chance` the same with the answers
    of other sequences. `sparsity` is S over the pairs, and `seen` the number n S² of pairs in the row.
    """
    length, first = setting["length"], len(held_out.place) // 4
    question = tasks.recall_question(held_out, length=length)
    mask = tasks.recall_mask(task.pairs, length=length)
    tokens = task.embed(model, held_out, question.key)
    logits = answers(model, tokens, mask)
    part, layer = jax.tree.map(lambda leaf: leaf[0], model.layers().attention), model.spec.stack.attention
    rows = jax.vmap(lambda x: attention.attention_weights(part, x, layer, mask=mask)[0, -1])(tokens)
    s = focus(rows, length)
    return {
        "validation": training.accuracy(logits[:first], question.answer[:first]),
        "accuracy": training.accuracy(logits[first:], question.answer[first:]),
        "chance": training.accuracy(logits[first:], jnp.roll(question.answer[first:], 1)),
        "sparsity": jnp.mean(s),
        "seen": jnp.mean(length.astype(s.dtype) * jnp.square(s)),
    }


def focus(rows: jax.Array, length: jax.Array) -> jax.Array:
    """S of rows in which `length` entries count and the others are 0; 1 where all are 0."""
    share = rows.shape[-1] / length.astype(rows.dtype)
    return jnp.minimum(sparsity.sparsity(rows) * jnp.sqrt(share), 1)


def train(kind: str, spec: Any, key: jax.Array, held_out: Pairs) -> dict[str, np.ndarray]:
    """The metrics (seed, length, record) of one kind of weights at its best rate, and where replicates stopped."""
    lengths, rates = (grid.ravel() for grid in np.meshgrid(spec.lengths, spec.rates, indexing="ij"))
    done = _replicates.train(
        key,
        partial(spec.task.build, kind),
        partial(loss, spec.task),
        partial(spec.task.draw, spec.batch),
        settings={"length": jnp.asarray(lengths), "rate": jnp.asarray(rates, float)},
        seeds=spec.seeds,
        steps=spec.steps,
        every=spec.every,
        optimiser=lambda setting: optax.adam(setting["rate"]),
        observe=Partial(partial(observe, spec.task), held_out),
    )
    # For each length the rate with the best last accuracy on validation sequences, one for all seeds. The accuracy that
    # is reported is measured on other sequences, so this choice does not raise it.
    shape = (spec.seeds, len(spec.lengths), len(spec.rates))
    metrics = {name: values.reshape(*shape, -1) for name, values in done.metrics.items()}
    best = best_rate(metrics["validation"][..., -1])[None, :, None]
    of_best = {name: np.take_along_axis(values, best[..., None], 2)[:, :, 0] for name, values in metrics.items()}
    failed = np.take_along_axis(done.failed.reshape(shape), best, axis=2)[..., 0]
    return of_best | {"failed": failed, "step": done.step}


def best_rate(validation: np.ndarray) -> np.ndarray:
    """Index of the rate with the best mean over seeds, by length: (seed, length, rate) → (length,).

    A replicate that stopped counts as 0.
    """
    return np.argmax(np.nan_to_num(validation).mean(axis=0), axis=1)


def commonest(held_out: Pairs, lengths: tuple[int, ...]) -> np.ndarray:
    """By length, how often the commonest value of the pairs is the answer: the best accuracy without the question.

    Of equally common values the smallest is answered. It is over the sequences that `accuracy` is over.
    """
    values, first, shares = np.asarray(held_out.values), len(held_out.place) // 4, []
    for length in lengths:
        right = np.asarray(tasks.recall_question(held_out, length=length).answer)[first:]
        shares.append(np.mean([np.bincount(row[-length:]).argmax() for row in values[first:]] == right))
    return np.array(shares)


def rank_correlation(s: np.ndarray, accuracy: np.ndarray) -> float:
    """Spearman's ρ over all points; NaN where a training did not finish, or one of the two does not vary."""
    if not np.isfinite([s, accuracy]).all() or np.ptp(s) == 0 or np.ptp(accuracy) == 0:
        return float("nan")
    return float(np.corrcoef(stats.rankdata(s), stats.rankdata(accuracy))[0, 1])
