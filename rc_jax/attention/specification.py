"""The static specification of an attention layer, its parameters, and the check that they fit."""

import dataclasses
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax.attention.positions import Rotary

Scores = Literal["dot", "cosine", "additive"]
Weights = Literal[
    "softmax",
    "relu_squared",
    "power6",
    "identity",
    "linear",
    "decay",
    "l2",
    "signed",
    "relu_squared_mean",
    "gated_decay",
    "channel_decay",
    "softmax_plus_one",
    "softmax_sink",
    "sigmoid",
    "differential",
    "sinkhorn",
]
FeatureMap = Literal["elu", "relu", "softplus", "exp", "squared_relu"]
Precision = Literal["default", "high", "highest"]
"""The precision of matrix products, as `jax.lax.Precision` names it."""
QKNorm = Literal["rms", "rms_joint", "layer", "unit"]
ScaleLaw = Literal["constant", "log_tokens"]
OutputGate = Literal["elementwise", "headwise"]

# Weights whose size never falls with the score, those made of features of queries and keys, those that fade with
# distance.
_INCREASING = (
    "softmax", "relu_squared", "relu_squared_mean", "l2", "linear", "softmax_plus_one", "softmax_sink", "sigmoid",
)  # fmt: skip
FEATURED = ("linear", "channel_decay")
DECAYING = ("decay", "gated_decay", "channel_decay")
# What else may happen to queries, keys and their logits, and what it is when nothing does.
_QUERY_AND_KEY_OPTIONS = {"rotary": None, "qk_norm": None, "scale_law": "constant", "soft_cap": None}
# What an argument must be by itself.
_CHECKS: dict[str, arguments.Check] = {
    **dict.fromkeys(("d_model", "heads", "d_head", "top_k", "rank", "tokens", "sinkhorn_steps"), arguments.integer(1)),
    "window": arguments.integer(0),
    **dict.fromkeys(("causal", "bias"), arguments.instance(bool)),
    "scores": arguments.one_of(get_args(Scores)),
    "weights": arguments.one_of(get_args(Weights)),
    "precision": arguments.one_of(get_args(Precision)),
    "feature_map": arguments.one_of(get_args(FeatureMap)),
    "rotary": arguments.instance(Rotary),
    "qk_norm": arguments.one_of((None, *get_args(QKNorm))),
    "scale_law": arguments.one_of(get_args(ScaleLaw)),
    **dict.fromkeys(("qk_norm_epsilon", "scale", "soft_cap"), arguments.scalar(arguments.positive)),
    "output_gate": arguments.one_of((None, *get_args(OutputGate))),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """The static shape of one attention layer; hashable, so it can be a static argument of `jit`.

    Attributes:
        d_model: width of a token.
        heads: number of heads H.
        d_head: width of one head's queries, keys and values; `d_model / heads` where it is not given.
        scores: of a query and a key. `dot`: q·k; `cosine`: q·k / (|q||k|); `additive`: vᵀtanh(q + k).
        weights: how a row of scores becomes a row of weights; see `rc_jax.attention.kernels`.
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
            tokens that it sees (Nakanishi 2025, "Scalable-Softmax", whose s is √d_head times the `scale`).
        scale: α of a call that gives none; where it is not given either, the one that `attention.scores` states.
        soft_cap: c, above which no logit gets: l becomes c tanh(l/c) before the mask (Gemma team 2024, "Gemma 2",
            section 2).
        sinkhorn_steps: of `sinkhorn` weights: how often rows and columns in turn are divided by their sums. Odd, so
            that the last are rows; 1 is softmax.
        output_gate: every head's output at token x is multiplied by sigmoid(x G) before the output matrix, with one
            number for each feature (`elementwise`) or one for the head (`headwise`) (Qiu et al. 2025, "Gated
            attention").

    Raises:
        ValueError: `heads` does not divide `d_model` (and no `d_head` is given), an unknown name, a size below 1, or
            switches that have no meaning together.
        TypeError: a size that is not an integer.

    Example:
        >>> AttentionSpec(d_model=64, heads=4).head_width
        16
    """

    d_model: int
    heads: int = 1
    d_head: int | None = None
    scores: Scores = "dot"
    weights: Weights = "softmax"
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
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                _CHECKS[field.name](field.name, value)
        if self.d_head is None and self.d_model % self.heads:
            raise ValueError(f"`heads` must divide d_model={self.d_model}, got heads={self.heads}")
        for wrong, name, expected in (*self._column_rules(), *self._query_and_key_rules(), *self._normaliser_rules()):
            if wrong:
                raise ValueError(f"`{name}` must {expected}, got {getattr(self, name)!r}")

    def _column_rules(self) -> Iterator[tuple[bool, str, str]]:
        """What has no meaning together: whether it is given, the argument to change, and what that must be."""
        when = f"when weights={self.weights!r}"
        yield self.scores != "dot" and self.weights in (*FEATURED, *DECAYING), "scores", f"be 'dot' {when}"
        unfeatured = self.feature_map != "elu" and self.weights not in FEATURED
        yield unfeatured, "feature_map", f"be left alone unless weights are one of {FEATURED}, not {when}"
        falling = self.top_k is not None and self.weights not in _INCREASING
        yield falling, "weights", f"grow with the score when top_k is given, one of {_INCREASING}"
        alone = (self.rank is None) != (self.tokens is None)
        yield alone, "tokens", f"be given with rank and only then, with rank={self.rank}"
        # A rank mixes all tokens, so it excludes every mask.
        pooled = self.rank is not None
        for name, off in (("causal", False), ("window", None), ("top_k", None)):
            yield pooled and getattr(self, name) != off, name, f"be {off} when rank is given: E mixes all tokens"
        fading = pooled and self.weights in DECAYING
        yield fading, "weights", "depend on the scores when rank is given, not on distances"
        yield not self.causal and self.weights in ("gated_decay", "channel_decay"), "causal", f"be True {when}"

    def _query_and_key_rules(self) -> Iterator[tuple[bool, str, str]]:
        # Options of queries and keys have no meaning for features, decays and pooled tokens.
        for name, off in _QUERY_AND_KEY_OPTIONS.items():
            on = getattr(self, name) != off
            unread = on and self.weights in (*FEATURED, *DECAYING)
            yield unread, name, f"be left alone when weights={self.weights!r}"
            yield on and self.rank is not None, name, f"be left alone when rank={self.rank}"
        normed = self.qk_norm is not None and self.scores != "dot"
        yield normed, "scores", f"be 'dot' when qk_norm={self.qk_norm!r}"
        if self.rotary is None:
            return
        yield self.scores == "additive", "rotary", "be None when scores='additive', which no rotation leaves alone"
        rotated, width = self.rotary.rotated_width(self.score_width), self.score_width
        uneven = width % 2 != 0 or rotated > width
        yield uneven, "rotary", f"rotate an even number of features, at most the {width} of a head, not {rotated}"

    def _normaliser_rules(self) -> Iterator[tuple[bool, str, str]]:
        steps, plan, halved = self.sinkhorn_steps, self.weights == "sinkhorn", self.weights == "differential"
        yield steps % 2 == 0, "sinkhorn_steps", "be odd: rows are divided first and last"
        yield steps != 5 and not plan, "sinkhorn_steps", f"be left alone when weights={self.weights!r}"
        # What has no meaning for rows and columns that both sum to 1, and for heads of two halves.
        only = "the only triangular matrix whose rows and columns sum to 1 is the identity"
        yield plan and self.causal, "causal", f"be False when weights='sinkhorn': {only}"
        yield plan and self.rank is not None, "rank", "be None when weights='sinkhorn', whose matrix is square"
        when = "when weights='differential'"
        yield halved and self.scores == "additive", "scores", f"be 'dot' or 'cosine' {when}"
        yield halved and self.qk_norm is not None, "qk_norm", f"be None {when}"
        uneven = halved and self.head_width % 2 != 0
        yield uneven, "d_head", f"be even {when}, whose heads have two halves, not {self.head_width}"

    @property
    def bilinear(self) -> bool:
        """True where every logit is α (x_i W_Q + b_Q)·(x_j W_K + b_K) with one α, as in the theory of collapse."""
        plain = all(getattr(self, name) == off for name, off in _QUERY_AND_KEY_OPTIONS.items())
        return plain and self.scores == "dot" and self.weights not in (*FEATURED, "differential")

    @property
    def head_width(self) -> int:
        """Width of one head: `d_head`, or `d_model / heads` where that is not given."""
        return self.d_head if self.d_head is not None else self.d_model // self.heads

    @property
    def score_width(self) -> int:
        """Features in one product of a query and a key: those of a head, or of one of its halves (`differential`)."""
        return self.head_width // 2 if self.weights == "differential" else self.head_width


class AttentionParams(NamedTuple):
    """The weights of one attention layer; H heads of width k on tokens of width d. Absent parts are `None`."""

    query: Float[Array, "*layers head feature width"]
    key: Float[Array, "*layers head feature width"]
    value: Float[Array, "*layers head feature width"]
    output: Float[Array, "*layers head width feature"]
    query_bias: Float[Array, "*layers head width"] | None = None
    key_bias: Float[Array, "*layers head width"] | None = None
    value_bias: Float[Array, "*layers head width"] | None = None
    output_bias: Float[Array, "*layers feature"] | None = None
    score_vector: Float[Array, "*layers head width"] | None = None
    decay: Float[Array, "*layers head"] | Float[Array, "*layers head width"] | None = None
    pool: Float[Array, "*layers head rank token"] | None = None
    gate: Float[Array, "*layers head feature"] | None = None
    gate_bias: Float[Array, "*layers head"] | None = None
    query_norm: Float[Array, "*layers head width"] | None = None
    key_norm: Float[Array, "*layers head width"] | None = None
    sink: Float[Array, "*layers head"] | None = None
    subtracted: Float[Array, "*layers head"] | None = None
    output_gate: Float[Array, "*layers head feature width"] | Float[Array, "*layers head feature"] | None = None


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
    if spec.weights == "decay":
        needed["decay"] = (heads,)
    if spec.weights == "channel_decay":
        needed["decay"] = (heads, width)
    if spec.weights == "gated_decay":
        needed["gate"], needed["gate_bias"] = (heads, d), (heads,)
    if spec.rank is not None and spec.tokens is not None:
        needed["pool"] = (heads, spec.rank, spec.tokens)
    if spec.qk_norm is not None:
        needed |= dict.fromkeys(("query_norm", "key_norm"), (heads, width))
    for kind, name in (("softmax_sink", "sink"), ("differential", "subtracted")):
        if spec.weights == kind:
            needed[name] = (heads,)
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
        value = getattr(params, name)
        if value is None or value.shape != layers + shape:
            given = "None" if value is None else arguments.describe(value)
            raise ValueError(f"`params.{name}` must have shape {layers + shape}, got {given}")
        if value.dtype != x.dtype:
            raise TypeError(f"`x` must have the dtype of `params.{name}`, {value.dtype}, got {x.dtype}")
        if name == "decay":
            arguments.bounded(0, 1, open_low=True)("params.decay", value)
