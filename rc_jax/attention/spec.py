"""What an attention layer is made of: the static specification and the parameters that go with it."""

import dataclasses
import itertools
import math
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float

from rc_jax import _checks

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
]
FeatureMap = Literal["elu", "relu", "softplus", "exp", "squared_relu"]
Precision = Literal["default", "high", "highest"]

# Weights whose size never falls with the score, those made of features of queries and keys, those that fade with
# distance.
_INCREASING = ("softmax", "relu_squared", "relu_squared_mean", "l2", "linear")
FEATURED = ("linear", "channel_decay")
DECAYING = ("decay", "gated_decay", "channel_decay")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """The static shape of one attention layer; hashable, so it can be a static argument of `jit`.

    Attributes:
        d_model: width of a token.
        heads: number of heads H.
        d_head: width of one head's queries, keys and values; `d_model / heads` where it is not given.
        scores: how a query meets a key. `dot`: q·k; `cosine`: q·k / (|q||k|); `additive`: vᵀtanh(q + k).
        weights: how a row of scores becomes a row of weights; see `rc_jax.attention.weights`.
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

    def __post_init__(self) -> None:
        _checks.integer(1)("d_model", self.d_model)
        for name in ("causal", "bias"):
            _checks.instance(bool)(name, getattr(self, name))
        _checks.integer(1)("heads", self.heads)
        _checks.one_of(get_args(Scores))("scores", self.scores)
        _checks.one_of(get_args(Weights))("weights", self.weights)
        _checks.one_of(get_args(Precision))("precision", self.precision)
        if self.d_head is not None:
            _checks.integer(1)("d_head", self.d_head)
        elif self.d_model % self.heads:
            raise ValueError(f"`heads` must divide d_model={self.d_model}, got heads={self.heads}")
        if self.window is not None:
            _checks.integer(0)("window", self.window)
        if self.weights in (*FEATURED, *DECAYING) and self.scores != "dot":
            raise ValueError(f"`scores` must be 'dot' when weights={self.weights!r}, got {self.scores!r}")
        _checks.one_of(get_args(FeatureMap))("feature_map", self.feature_map)
        if self.feature_map != "elu" and self.weights not in FEATURED:
            raise ValueError(
                f"`feature_map` must be left alone unless weights are one of {FEATURED}, got {self.feature_map!r} with "
                f"weights={self.weights!r}"
            )
        self._check_sparse()

    def _check_sparse(self) -> None:
        for name in ("top_k", "rank", "tokens"):
            if getattr(self, name) is not None:
                _checks.integer(1)(name, getattr(self, name))
        if self.top_k is not None and self.weights not in _INCREASING:
            raise ValueError(
                f"`weights` must grow with the score when top_k is given, one of {_INCREASING}, got {self.weights!r}"
            )
        if (self.rank is None) != (self.tokens is None):
            raise ValueError(f"`tokens` must be given with rank and only then, got {self.tokens} and rank={self.rank}")
        if self.rank is None:
            if self.weights in ("gated_decay", "channel_decay") and not self.causal:
                raise ValueError(f"`causal` must be True when weights={self.weights!r}, got False")
            return
        for name, off in (("causal", False), ("window", None), ("top_k", None)):
            if (came := getattr(self, name)) != off:
                raise ValueError(f"`{name}` must be {off} when rank is given: E mixes all tokens, got {came!r}")
        if self.weights in DECAYING:
            raise ValueError(
                f"`weights` must depend on the scores when rank is given, not on distances, got {self.weights!r}"
            )

    @property
    def head_width(self) -> int:
        """Width of one head: `d_head`, or `d_model / heads` where that is not given."""
        return self.d_head if self.d_head is not None else self.d_model // self.heads


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


def shapes(spec: AttentionSpec) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter that a layer of this specification has, by name."""
    d, heads, width = spec.d_model, spec.heads, spec.head_width
    found: dict[str, tuple[int, ...]] = dict.fromkeys(("query", "key", "value"), (heads, d, width))
    found["output"] = (heads, width, d)
    if spec.bias:
        found |= dict.fromkeys(("query_bias", "key_bias", "value_bias"), (heads, width))
        found["output_bias"] = (d,)
    if spec.scores == "additive":
        found["score_vector"] = (heads, width)
    if spec.weights == "decay":
        found["decay"] = (heads,)
    if spec.weights == "channel_decay":
        found["decay"] = (heads, width)
    if spec.weights == "gated_decay":
        found["gate"], found["gate_bias"] = (heads, d), (heads,)
    if spec.rank is not None and spec.tokens is not None:
        found["pool"] = (heads, spec.rank, spec.tokens)
    return found


@_checks.guard(
    key=_checks.random_key,
    gain=_checks.scalar(_checks.positive),
    bias_std=_checks.scalar(_checks.bounded(0)),
    dtype=_checks.floating_dtype,
)
def init(
    key: Array, spec: AttentionSpec, *, gain: ArrayLike = 1.0, bias_std: ArrayLike = 0.0, dtype: DTypeLike | None = None
) -> AttentionParams:
    """Draw the parameters of one layer: Gaussian weights that keep the variance of a token.

    Every matrix has entries N(0, gain²/fan_in): fan_in is d_model for queries, keys, values and gates, heads·d_head for
    the output, d_head for the additive score vector and the number of tokens for E. Biases are N(0, bias_std²). The
    decays of `weights="decay"` start at 1 − 2^(−5−h) for head h = 0, 1, … (Sun et al. 2023, "Retentive network", eq.
    8), or at the last number below 1, and so do those of `"gated_decay"` where x·w = 0. The decays of `"channel_decay"`
    start, in every head, at 1 − 2^(−1−7u) with u from 0 to 1 over its channels.

    Args:
        key: a typed key. The same key gives the same numbers.
        spec: the layer.
        gain: factor on the standard deviation of every matrix; may be traced.
        bias_std: standard deviation of the biases; may be traced.
        dtype: of the parameters; JAX's default floating type where it is not given.

    Returns:
        The parameters; shapes as in `AttentionParams`.

    Raises:
        TypeError: `key` is not a typed key, or `dtype` not a floating-point one.
        ValueError: `gain` not positive, `bias_std` negative, or either not one number.

    Example:
        >>> import jax
        >>> spec = AttentionSpec(d_model=8, heads=2)
        >>> init(jax.random.key(0), spec).query.shape
        (2, 8, 4)
    """
    kind = jax.dtypes.canonicalize_dtype(jnp.dtype(dtype if dtype is not None else float))
    fixed = _decays(spec, kind)
    drawn = split_normals(key, {name: shape for name, shape in shapes(spec).items() if name not in fixed}, kind)
    for name, normal in drawn.items():
        if name.endswith("bias"):
            std = jnp.asarray(bias_std, kind)
        else:
            fan_ins = {"output": spec.heads * spec.head_width, "score_vector": spec.head_width, "pool": spec.tokens}
            fan_in = fan_ins.get(name) or spec.d_model
            std = jnp.asarray(gain, kind) * jnp.asarray(fan_in**-0.5, kind)
        drawn[name] = std * normal
    return AttentionParams(**drawn, **fixed)


def _decays(spec: AttentionSpec, dtype: DTypeLike) -> dict[str, Array]:
    """What says how fast weights fade, which is not drawn."""
    log_rate = -5 - jnp.arange(spec.heads).astype(dtype)  # log₂(1 − λ)
    if spec.weights == "decay":
        return {"decay": 1 - jnp.maximum(jnp.exp2(log_rate), jnp.finfo(log_rate.dtype).eps / 2)}
    if spec.weights == "gated_decay":
        return {"gate_bias": jnp.log1p(-jnp.exp2(log_rate)) - math.log(2) * log_rate}
    if spec.weights == "channel_decay":
        spread = 1 - jnp.exp2(-jnp.linspace(1, 8, spec.head_width).astype(dtype))
        return {"decay": jnp.broadcast_to(spread[None], (spec.heads, spec.head_width))}
    return {}


def split_normals(key: Array, shapes: dict[str, tuple[int, ...]], dtype: DTypeLike) -> dict[str, Array]:
    """Standard normals of the given shapes, cut in order from one stream: one call of the generator, not one each."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    stream = jax.random.normal(key, (sum(sizes),), dtype)
    ends = list(itertools.accumulate(sizes))
    return {
        name: stream[end - size : end].reshape(shape)
        for (name, shape), size, end in zip(shapes.items(), sizes, ends, strict=True)
    }


def check_layer(params: AttentionParams, x: Array, spec: AttentionSpec, layers: tuple[int, ...] = ()) -> None:
    """Raise one clear error unless `params` and the tokens `x` fit the specification; `layers` is a leading axis."""
    if not isinstance(params, AttentionParams):
        raise TypeError(f"`params` must be AttentionParams, got {type(params).__name__}")
    if x.shape[-1] != spec.d_model:
        raise ValueError(f"`x` must have d_model={spec.d_model} features, got {_checks.describe(x)}")
    if spec.tokens is not None and x.shape[0] != spec.tokens:
        raise ValueError(f"`x` must have the {spec.tokens} tokens that `spec` fixes, got {_checks.describe(x)}")
    for name, shape in shapes(spec).items():
        value = getattr(params, name)
        if value is None or value.shape != layers + shape:
            came = "None" if value is None else _checks.describe(value)
            raise ValueError(f"`params.{name}` must have shape {layers + shape}, got {came}")
        if value.dtype != x.dtype:
            raise TypeError(f"`x` must have the dtype of `params.{name}`, {value.dtype}, got {x.dtype}")
        if name == "decay":
            _checks.bounded(0, 1, open_low=True)("params.decay", value)
