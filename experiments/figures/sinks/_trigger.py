"""The model of the trigger task: attention alone, with three kinds of rows.

All kinds are one program with a traced switch, so that networks of one seed differ in nothing else. There are no
positions, norms or MLPs; every head is as wide as a token, and networks of more than one layer have skip connections,
as in the code of Ran-Milo (2026).
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from rc_jax import attention
from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.training import tasks
from rc_jax.training.tasks import Triggered

Setting = dict[str, jax.Array]
KINDS = ("softmax", "ReLU", "softmax with one more logit")


@dataclass(frozen=True)
class Task:
    """Tokens of a sequence and features of a token; layers of the network and heads of a layer."""

    tokens: int = 8
    features: int = 8
    layers: int = 1
    heads: int = 1

    def draw(self, count: int, key: jax.Array, step: jax.Array | int) -> Triggered:
        """The sequences of one step."""
        return tasks.trigger(jax.random.fold_in(key, step), count, tokens=self.tokens, features=self.features)

    def build(self, key: jax.Array, setting: Setting) -> "Network":
        """A network before training, the same for every setting."""
        del setting
        return Network(self, key)


class Network(nnx.Module):
    """Layers of attention with rows of one of `KINDS`."""

    task: Task
    parts: Any

    def __init__(self, task: Task, key: jax.Array):
        self.task = task
        self.spec = AttentionSpec(d_model=task.features, heads=task.heads, d_head=task.features, causal=True)
        keys = jax.random.split(key, task.layers)
        self.parts = nnx.data([jax.tree.map(nnx.Param, attention.init(each, self.spec)) for each in keys])

    def layers(self) -> list[AttentionParams]:
        """The weights of every layer as plain arrays."""
        bare = lambda part: part[...]  # noqa: E731
        return [jax.tree.map(bare, part, is_leaf=lambda x: isinstance(x, nnx.Variable)) for part in self.parts]

    def __call__(self, x: jax.Array, kind: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The answers of one sequence, the rows (layer, head, token, token), and sizes of outputs of single tokens.

        The last is ‖x_j W_V W_O‖ (layer, head, token) of the tokens that each layer reads.
        """
        rows, sizes, skip = [], [], self.task.layers > 1
        for part in self.layers():
            weights = row_weights(attention.scores(part, x, self.spec), kind)
            outputs = jnp.einsum("nd,hdk,hke->hne", x, part.value, part.output, precision="highest")
            rows.append(weights)
            sizes.append(jnp.linalg.norm(outputs, axis=-1))
            out = jnp.einsum("hij,hje->ie", weights, outputs, precision="highest")
            x = x + out if skip else out
        return x, jnp.stack(rows), jnp.stack(sizes)


def row_weights(scores: jax.Array, kind: jax.Array) -> jax.Array:
    """Causal rows of scores (head, token, token), by index in `KINDS`.

    0: e^s/Σe^s. 1: max(s, 0) over the number of tokens seen. 2: e^s/(1 + Σe^s).
    """
    n = scores.shape[-1]
    seen = jnp.tri(n, dtype=bool)[None]
    hidden = jnp.where(seen, scores, -jnp.inf)
    relu = jnp.where(seen, jax.nn.relu(scores), 0) / (jnp.arange(n)[None, :, None] + 1).astype(scores.dtype)
    padded = jnp.concatenate([hidden, jnp.zeros_like(hidden[..., :1])], axis=-1)
    rows = [jax.nn.softmax(hidden, axis=-1), relu, jax.nn.softmax(padded, axis=-1)[..., :-1]]
    return jnp.take(jnp.stack(rows), kind, axis=0)


def _answers(model: Network, drawn: Triggered, setting: Setting) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Answers less what was asked, with the rows and sizes of every sequence; skip connections keep the token."""
    answers, rows, sizes = jax.vmap(lambda x: model(x, setting["kind"]))(drawn.tokens)
    asked = drawn.targets + drawn.tokens if model.task.layers > 1 else drawn.targets
    return answers - asked, rows, sizes


def loss(model: Network, drawn: Triggered, setting: Setting) -> jax.Array:
    """Mean square of the error."""
    return jnp.mean(jnp.square(_answers(model, drawn, setting)[0]))


def observe(held_out: Triggered, model: Network, setting: Setting) -> dict[str, jax.Array]:
    """Errors on held-out sequences, and what is given to the first token, by layer and head.

    `error` is the mean square of the error over that of answering 0. `sink` is the weight of the first token in the
    rows of all tokens but the first and the trigger, and `value` the size of the first token's output over the mean of
    the others. `map` has the mean rows of the sequences whose trigger is the middle token.
    """
    wrong, rows, sizes = _answers(model, held_out, setting)
    index = jnp.arange(rows.shape[-1])[None]
    asks = index == held_out.trigger[:, None]
    idle = (index > 0) & ~asks

    middle = (held_out.trigger == rows.shape[-1] // 2).astype(rows.dtype)
    return {
        "error": jnp.mean(jnp.square(wrong)) / jnp.mean(jnp.square(held_out.targets)),
        "sink": jnp.einsum("bi,blhi->lh", idle.astype(rows.dtype), rows[..., 0]) / jnp.sum(idle).astype(rows.dtype),
        "value": jnp.mean(sizes[..., 0], axis=0) / jnp.mean(sizes[..., 1:], axis=(0, 3)),
        "map": jnp.einsum("b,blhij->lhij", middle, rows) / jnp.sum(middle),
    }


def optimiser(setting: Setting) -> optax.GradientTransformation:
    """Adam at the learning rate of the setting."""
    return optax.adam(setting["rate"])
