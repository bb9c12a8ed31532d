"""Common to the layouts of all families: the description of a layout, and the parts that recur in them.

A linear layer is stored as (out, in) and applied as x Wᵀ + b; here matrices multiply from the right, heads apart.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Float

from rc_jax.network import LayerParams, NormParams, StackSpec
from rc_jax.network.specification import Activation
from rc_jax.pretrained.config import Config
from rc_jax.pretrained.tensor_source import Stored, Tensors

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


class Embeddings(NamedTuple):
    """The tables that turn token ids into the first hidden state; absent parts are `None`.

    The rows of the tables are added, normed, and multiplied by `projection` where they are narrower than the layers.
    """

    word: Float[Array, "vocabulary narrow"]
    position: Float[Array, "position narrow"] | None = None
    token_type: Float[Array, "kind narrow"] | None = None
    norm: NormParams | None = None
    projection: Float[Array, "narrow feature"] | None = None
    projection_bias: Float[Array, " feature"] | None = None


class Scope(NamedTuple):
    """The tensors whose names start alike."""

    tensors: Tensors
    prefix: str = ""

    def under(self, name: str) -> "Scope":
        """The tensors of one part."""
        return Scope(self.tensors, f"{self.prefix}{name}.")

    def take(self, name: str, *shape: int) -> Stored:
        """One tensor."""
        return self.tensors.take(f"{self.prefix}{name}", *shape)

    def linear(self, name: str, inputs: int, outputs: int) -> tuple[Stored, Stored]:
        """The matrix as (in, out), and the bias."""
        return self.take(f"{name}.weight", outputs, inputs).T, self.take(f"{name}.bias", outputs)

    def norm(self, name: str, width: int) -> NormParams:
        """The scale and shift of a LayerNorm."""
        return NormParams(scale=self.take(f"{name}.weight", width), shift=self.take(f"{name}.bias", width))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The settings and tensors of a family's files, as this package's.

    Attributes:
        spec: the stack that the settings describe.
        embeddings: reads the tables.
        layer: reads the stored layer of that number.
        final_norm: reads the norm after the last layer, where there is one.
        root: the prefix that names carry in a model with a head for a task; the first of several that is found.
        heads: patterns of the tensors of such heads, beside the root.
        unused: patterns of the tensors under the root that hidden states do not depend on.
        most_tokens: the longest sequence.
        key_heads: number of heads whose keys and values differ, each repeated for the queries that read it; all heads
            where it is `None`.
        shared: the number of the stored layer that each layer is; its own where it is `None`.
        padding: the token that has no position of its own; the positions of the others then start after its number.
        embedding_factor: by which the rows of the tables are multiplied.
    """

    spec: StackSpec
    embeddings: Callable[[Scope], Embeddings]
    layer: Callable[[Scope, int], LayerParams]
    final_norm: Callable[[Scope], NormParams] | None = None
    root: str | tuple[str, ...]
    heads: tuple[str, ...]
    unused: tuple[str, ...]
    most_tokens: int
    key_heads: int | None = None
    shared: tuple[int, ...] | None = None
    padding: int | None = None
    embedding_factor: float = 1.0

    @property
    def key_value_heads(self) -> int:
        """Number of heads whose keys and values differ."""
        return self.spec.attention.heads if self.key_heads is None else self.key_heads

    @property
    def shared_layers(self) -> tuple[int, ...]:
        """The number of the stored layer that each layer is."""
        return tuple(range(self.spec.depth)) if self.shared is None else self.shared


def activation(config: Config, name: str, default: str) -> Activation:
    """The activation that a setting names."""
    return ACTIVATIONS[config.choice(name, tuple(ACTIVATIONS), default)]


def split_heads(weight: Stored, heads: int) -> Stored:
    """(in, head · width) as (head, in, width)."""
    return weight.reshape(weight.shape[0], heads, -1).transpose(1, 0, 2)
