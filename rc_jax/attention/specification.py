"""The static specification of an attention layer, its parameters, and the check that they fit."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.text import perhaps
from rc_jax.attention.kinds import KINDS, Kind
from rc_jax.attention.kinds.check import check_kind
from rc_jax.attention.positions import Rotary

Scores = Literal["dot", "cosine", "additive"]
FeatureMap = Literal["elu", "relu", "softplus", "exp", "squared_relu"]
Precision = Literal["default", "high", "highest"]
"""The precision of matrix products, as `jax.lax.Precision` names it."""
QKNorm = Literal["rms", "rms_joint", "layer", "unit"]
ScaleLaw = Literal["constant", "log_tokens"]
OutputGate = Literal["elementwise", "headwise"]

# What belongs together: what a logit is, beside the kind of product; which columns a row sees; options of some kinds.
_LOGITS = ("rotary", "qk_norm", "scale_law", "soft_cap")
_SEES = ("causal", "window", "top_k")
_of_decays = arguments.bounded(0, 1, open_low=True)
_OF_KINDS = sorted({option for kind in KINDS.values() for option in kind.options})


_known_kind = arguments.must(
    f"an attention.Kind or one of {', '.join(map(repr, KINDS))}",
    lambda value: isinstance(value, Kind) or (isinstance(value, str) and value in KINDS),
    hint=lambda value: perhaps(value, KINDS),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """The static shape of one attention layer; hashable, so it can be a static argument of `jit`.

    Attributes:
        d_model: width of a token.
        heads: number of heads H.
        d_head: width of one head's queries, keys and values; `d_model / heads` where it is not given.
        scores: of a query and a key. `dot`: q·k; `cosine`: q·k / (|q||k|); `additive`: vᵀtanh(q + k).
        weights: how a row of scores becomes a row of weights: a name of `attention.KINDS`, which
            `rc_jax.attention.kinds` lists, or a `Kind` of your own.
        feature_map: φ of `linear` and `channel_decay` weights. `elu` is elu + 1, `squared_relu` max(x, 0)².
        causal: token i sees tokens j ≤ i only.
        window: token i sees tokens with |i − j| ≤ window only.
        top_k: token i sees, of the tokens that the masks leave it, only those with the `top_k` largest scores (Zhao et
            al. 2019, "Explicit sparse transformer", eq. 5); a score equal to the last of them, to the bit, stays in.
        rank: token i sees `rank` sums over all tokens instead of the tokens: every head has a matrix E (rank, tokens)
            by which its keys and values are multiplied (Wang et al. 2020, "Linformer", eq. 7, with one E for both).
        tokens: number of tokens, which E fixes; given with `rank` and only then.
        bias: whether the queries, keys, values and the output carry a bias.
        precision: of the matrix products, as `jax.lax.Precision` names it.
        rotary: queries and keys are rotated by their positions 0, 1, 2, …, so that scores depend on distances.
        qk_norm: queries and keys of every head are normalised and multiplied by gains, one for each feature.
            `rms`: q/√(mean q² + ε) (Henry et al. 2020's idea as Qwen3 has it), `rms_joint`: the same with the mean over
            the features of all heads together (as OLMo 2 has it), `layer`: LayerNorm without a shift (Dehghani et
            al. 2023, "ViT-22B"), all before the rotation; `unit`: q/|q| after it (Loshchilov et al. 2024, "nGPT").
        qk_norm_epsilon: ε of `rms`, `rms_joint` and `layer`.
        scale_law: `constant`, or `log_tokens`: row i's logits are multiplied by log n_i as well, n_i the number of
            tokens that the masks let it see, `top_k` left aside (Nakanishi 2025, "Scalable-Softmax", whose s is √d_head
            times the `scale`).
        scale: α of a call that gives none; where it is not given either, the one that `attention.scores` states.
        soft_cap: c, above which no logit gets: l becomes c tanh(l/c) before the mask (Gemma team 2024, "Gemma 2",
            section 2).
        sinkhorn_steps: of `sinkhorn` weights: how often rows and columns in turn are divided by their sums. Odd, so
            that the last are rows; 1 is softmax.
        output_gate: every head's output at token x is multiplied by sigmoid(x G) before the output matrix, with one
            number for each feature (`elementwise`) or one for the head (`headwise`) (Qiu et al. 2025, "Gated
            attention").

    Raises:
        ValueError: switches that have no meaning together.

    Example:
        >>> AttentionSpec(d_model=64, heads=4).head_width
        16
    """

    d_model: int
    heads: int = 1
    d_head: int | None = None
    scores: Scores = "dot"
    weights: str | Kind = "softmax"
    causal: bool = False
    window: int | None = None
    top_k: int | None = None
    rank: int | None = None
    tokens: int | None = None
    bias: bool = False
    precision: Precision = "highest"
    feature_map: FeatureMap = "elu"
    rotary: Rotary | None = None
    qk_norm: QKNorm | None = None
    qk_norm_epsilon: int | float = 1e-6
    scale_law: ScaleLaw = "constant"
    scale: int | float | None = None
    soft_cap: int | float | None = None
    sinkhorn_steps: int = 5
    output_gate: OutputGate | None = None

    def __post_init__(self) -> None:
        if isinstance(self.weights, Kind) and KINDS.get(self.weights.name) == self.weights:
            object.__setattr__(self, "weights", self.weights.name)  # one spelling of a layer, so one program
        positive = dict.fromkeys(("qk_norm_epsilon", "scale", "soft_cap"), arguments.scalar(arguments.positive))
        arguments.check_fields(self, weights=_known_kind, window=arguments.integer(0), **positive)
        if self.d_head is None and self.d_model % self.heads:
            raise ValueError(f"`heads` must divide d_model={self.d_model}, got heads={self.heads}")
        for holds, name, expected in self._rules():
            if not holds:
                raise ValueError(f"`{name}` must {expected}, got {getattr(self, name)!r}")
        if isinstance(self.weights, Kind):
            check_kind(self.weights, self)

    def _rules(self) -> Iterator[tuple[bool, str, str]]:
        """What options must be together: whether it holds, the argument to change where it does not, and the rule."""
        changed = {field.name for field in dataclasses.fields(self) if getattr(self, field.name) != field.default}
        kind, when = self.kind, f"when weights={self.kind.name!r}"
        # Options of other kinds, and options of logits for kinds that make scores of their own.
        for name in _OF_KINDS:
            yield name not in changed or name in kind.options, name, f"be left alone {when}, which do not read it"
        if kind.reads != "scores":
            yield self.scores == "dot", "scores", f"be 'dot' {when}"
            for name in (*_LOGITS, "scale"):
                yield name not in changed, name, f"be left alone {when}, which read {kind.reads} and no scores"
        # A rank mixes all tokens, so rows cannot see some of them, and positions are lost.
        together = (self.rank is None) == (self.tokens is None)
        yield together, "tokens", f"be given with rank and only then, with rank={self.rank}"
        if self.rank is not None:
            for name in (*_SEES, *_LOGITS):
                yield name not in changed, name, f"be left alone when rank={self.rank}: E mixes all tokens"
            yield kind.reads != "distance", "weights", "depend on the scores when rank is given, not on distances"
        yield self.top_k is None or kind.increasing, "weights", "grow with the score when top_k is given"
        yield self.qk_norm is None or self.scores == "dot", "scores", f"be 'dot' when qk_norm={self.qk_norm!r}"
        alone = self.qk_norm is None or kind.maps == 1
        yield alone, "qk_norm", f"be None {when}: its gains are those of whole heads, which make {kind.maps} products"
        if reason := kind.refuses(self):
            yield False, *reason
        yield self.head_width % kind.maps == 0, "d_head", f"be a multiple of {kind.maps} {when}"
        if self.rotary is not None:
            yield self.scores != "additive", "rotary", "be None when scores='additive', which no rotation leaves alone"
            rotated, width = self.rotary.rotated_width(self.score_width), self.score_width
            fits = width % 2 == 0 and rotated <= width
            yield fits, "rotary", f"rotate an even number of features, at most the {width} of a head, not {rotated}"

    @property
    def kind(self) -> Kind:
        """The record of the weights, also where they are given by name."""
        return self.weights if isinstance(self.weights, Kind) else KINDS[self.weights]

    @property
    def head_width(self) -> int:
        """Width of one head: `d_head`, or `d_model / heads` where that is not given."""
        return self.d_head if self.d_head is not None else self.d_model // self.heads

    @property
    def score_width(self) -> int:
        """Features in one product of a query and a key: those of a head over the score matrices that it has."""
        return self.head_width // self.kind.maps


class AttentionParams(NamedTuple):
    """The weights of one attention layer; H heads of width k on tokens of width d. Absent biases are `None`.

    `parts` holds all that not every layer has, by name: `score_vector` (head, width) of additive scores, `pool`
    (head, rank, token), the gains `query_norm` and `key_norm` (head, width), `output_gate` (head, feature, width) or
    (head, feature), and what the kind of weights names (`attention.Kind.shapes`). A layer reads what its specification
    names, and no other part.
    """

    query: Float[Array, "*layers head feature width"]
    key: Float[Array, "*layers head feature width"]
    value: Float[Array, "*layers head feature width"]
    output: Float[Array, "*layers head width feature"]
    query_bias: Float[Array, "*layers head width"] | None = None
    key_bias: Float[Array, "*layers head width"] | None = None
    value_bias: Float[Array, "*layers head width"] | None = None
    output_bias: Float[Array, "*layers feature"] | None = None
    parts: dict[str, Array] = {}  # noqa: RUF012 (a default that nothing changes)

    def with_parts(self, **parts: Array) -> "AttentionParams":
        """The same parameters with these parts added or replaced."""
        return self._replace(parts=self.parts | parts)


FIELDS = frozenset(AttentionParams._fields) - {"parts"}


def assemble(arrays: dict[str, Any]) -> AttentionParams:
    """Parameters of arrays by name, as `shapes` names them."""
    own = {name: array for name, array in arrays.items() if name in FIELDS}
    return AttentionParams(**own, parts={name: array for name, array in arrays.items() if name not in FIELDS})


def is_bias(name: str) -> bool:
    """Whether a parameter of a layer of attention is a bias or a sink, which is 0 where no deviation is given."""
    return name.endswith("bias") or name == "sink"


def own_parts(params: AttentionParams, spec: "AttentionSpec") -> dict[str, Array]:
    """The arrays that the kind of weights has by its own `shapes`, and no others."""
    parts = {name: params.parts[name] for name in spec.kind.shapes(spec)}
    if "decay" in parts and isinstance(spec.weights, str):
        parts["decay"] = _of_decays.nan_outside(parts["decay"], parts["decay"].dtype)
    return parts


def shapes(spec: AttentionSpec) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter that a layer of this specification has, by name."""
    d, heads, width = spec.d_model, spec.heads, spec.head_width
    # Always: three projections and the output; the rest by what the specification switches on.
    needed: dict[str, tuple[int, ...]] = dict.fromkeys(("query", "key", "value"), (heads, d, width))
    needed["output"] = (heads, width, d)
    if spec.bias:
        needed |= dict.fromkeys(("query_bias", "key_bias", "value_bias"), (heads, width))
        needed["output_bias"] = (d,)
    if spec.scores == "additive":
        needed["score_vector"] = (heads, width)
    if spec.rank is not None and spec.tokens is not None:
        needed["pool"] = (heads, spec.rank, spec.tokens)
    if spec.qk_norm is not None:
        needed |= dict.fromkeys(("query_norm", "key_norm"), (heads, width))
    needed |= spec.kind.shapes(spec)
    if spec.output_gate is not None:
        needed["output_gate"] = (heads, d, width) if spec.output_gate == "elementwise" else (heads, d)
    return needed


def check_layer(params: AttentionParams, x: Array, spec: AttentionSpec, layers: tuple[int, ...] = ()) -> None:
    """Raise one clear error unless `params` and the tokens `x` fit the specification; `layers` is a leading axis.

    Parameters that the specification has no use for are not checked.
    """
    if not isinstance(params, AttentionParams):
        raise TypeError(f"`params` must be AttentionParams, got {type(params).__name__}")
    if x.shape[-1] != spec.d_model:
        raise ValueError(f"`x` must have d_model={spec.d_model} features, got {arguments.describe(x)}")
    if not x.shape[0]:
        raise ValueError(f"`x` must have at least one token, got {arguments.describe(x)}")
    if spec.tokens is not None and x.shape[0] != spec.tokens:
        raise ValueError(f"`x` must have the {spec.tokens} tokens that `spec` fixes, got {arguments.describe(x)}")
    # Every parameter that the specification has: its shape, its dtype, and the range of decays.
    for name, shape in shapes(spec).items():
        value = getattr(params, name) if name in FIELDS else params.parts.get(name)
        name = name if name in FIELDS else f"parts[{name!r}]"
        if value is None or value.shape != layers + shape:
            given = "None" if value is None else arguments.describe(value)
            raise ValueError(f"`params.{name}` must have shape {layers + shape}, got {given}")
        if value.dtype != x.dtype:
            raise TypeError(f"`x` must have the dtype of `params.{name}`, {value.dtype}, got {x.dtype}")
        if name == "parts['decay']" and isinstance(spec.weights, str):
            _of_decays("params.parts['decay']", value)
