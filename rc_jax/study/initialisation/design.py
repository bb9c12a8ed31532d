"""What is studied: a network, how it is drawn, and what enters it; nothing here is an array."""

import dataclasses
from typing import NamedTuple

from rc_jax.attention import AttentionSpec
from rc_jax.network import StackSpec


class Start(NamedTuple):
    """How weights are drawn: N(0, std²) where `std` is given, N(0, gain²/fan_in) elsewhere.

    Attributes:
        std: deviation of every entry, the `initializer_range` of a config.
        gain: factor on 1/√fan_in.
        branches: factor on the last matrix of every branch, 1/√(2L) in GPT-2.
    """

    std: float | None = None
    gain: float = 1.0
    branches: float = 1.0

    def factor(self, fan_in: int) -> float:
        """The deviation of an entry times √fan_in, which is the same at every width."""
        return self.gain if self.std is None else self.std * fan_in**0.5


class Tokens(NamedTuple):
    """What enters the first layer: distinct random words.

    Attributes:
        own: deviation of what a token has of its own.
        common: deviation of what all tokens share, such as BERT's token type.
        sinusoids: whether sinusoidal positions are added.
        normed: whether LayerNorm follows.
        narrow: width of the tables, where a matrix follows that makes tokens as wide as the layers.
        projection: deviation of that matrix' entries times the root of its fan-in.
        first: factor on what the first token has of its own.
        rooted: whether `own` and `common` grow as the root of the layers' width, as in Gemma.
    """

    own: float = 1.0
    common: float = 0.0
    sinusoids: bool = False
    normed: bool = False
    narrow: int | None = None
    projection: float = 1.0
    first: float = 1.0
    rooted: bool = False


class Design(NamedTuple):
    """A network before it is trained.

    Attributes:
        spec: its layers.
        start: how they are drawn.
        tokens: what enters.
        key_heads: how many heads of keys and values are drawn; each is repeated for the queries that read it.
        shared: the number of the drawn layer that each layer is.
        branch: β, a factor on every branch.
        skip: λ, a factor on what passes by a branch.
        norms: factor on the norms before the branches, of each layer.
        sharpness: factor on the scale of the scores.
        most_tokens: the longest sequence, where there is one.
        words: the size of the vocabulary, where there is one.
    """

    spec: StackSpec
    start: Start = Start()
    tokens: Tokens = Tokens()
    key_heads: int | None = None
    shared: tuple[int, ...] | None = None
    branch: float = 1.0
    skip: float = 1.0
    norms: tuple[float, ...] | None = None
    sharpness: float = 1.0
    most_tokens: int | None = None
    words: int | None = None

    def with_spec(self, spec: StackSpec) -> "Design":
        """Another network, drawn in the same way."""
        tokens, ratio = self.tokens, spec.attention.d_model / self.spec.attention.d_model
        if tokens.rooted and ratio != 1:
            tokens = tokens._replace(own=tokens.own * ratio**0.5, common=tokens.common * ratio**0.5)
        return self._replace(spec=spec, tokens=tokens)


def fan_in(name: str, spec: StackSpec) -> int:
    """How many numbers an output of a matrix adds up."""
    layer = spec.attention
    others = {
        "output": layer.heads * layer.head_width,
        "score_vector": layer.head_width,
        "pool": layer.tokens,
        "weight_out": spec.mlp.width if spec.mlp else None,
    }
    return others.get(name) or layer.d_model


def resized(spec: StackSpec, d_model: int, d_head: int) -> StackSpec:
    """The network with narrower tokens, heads and MLP, and as many heads and layers."""
    local = spec.local and _resized_layer(spec.local, d_model, d_head)
    mlp = spec.mlp
    if mlp is not None:
        mlp = dataclasses.replace(mlp, width=max(1, round(mlp.width * d_model / spec.attention.d_model)))
    return dataclasses.replace(spec, attention=_resized_layer(spec.attention, d_model, d_head), local=local, mlp=mlp)


def _resized_layer(layer: AttentionSpec, d_model: int, d_head: int) -> AttentionSpec:
    """One attention; a product of `d_head` terms deviates by √d_head, a cosine by 1/√d_head: stated scales follow."""
    ratio = d_head / layer.head_width
    scale, rotary = layer.scale, layer.rotary
    if scale is not None and layer.scores != "additive":
        cosines = layer.scores == "cosine" or layer.qk_norm == "unit"
        scale = scale * (ratio**0.5 if cosines else ratio**-0.5)
    if rotary is not None and rotary.width is not None:
        rotary = dataclasses.replace(rotary, width=max(2, 2 * round(rotary.width * ratio / 2)))
    return dataclasses.replace(layer, d_model=d_model, d_head=d_head, scale=scale, rotary=rotary)
