"""The static specification of a stack of layers, and the random initialisation of its parameters."""

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Key

from rc_jax import attention
from rc_jax._numerics import arguments
from rc_jax._numerics.jax_names import canonical_dtype
from rc_jax.attention import AttentionSpec
from rc_jax.attention.parameters import split_normals
from rc_jax.attention.specification import check_layer, shapes
from rc_jax.network.parameters import LayerParams, MLPParams, NormParams, scale_layer

Activation = Literal["relu", "gelu", "gelu_tanh", "tanh", "silu"]
Norm = Literal["pre", "post", "branch", "peri"]
NormKind = Literal["layer", "rms"]

_ATTENTION, _MLP = range(2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experts:
    """Several MLPs of one shape, of which a token takes a few: Σ_{e ∈ top k of p} g_e f_e(x), p = softmax(x R).

    Attributes:
        count: how many there are.
        active: k, how many a token takes.
        normalised: whether the shares g of a token are divided by their sum, as in Mixtral; else g_e = p_e.
    """

    count: int
    active: int
    normalised: bool = True

    def __post_init__(self) -> None:
        arguments.check_fields(self)
        if self.active > self.count:
            raise ValueError(f"`active` must be at most count={self.count}, got {self.active}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLPSpec:
    """The static shape of the token-wise map x → σ(x W₁ + b₁) W₂ + b₂.

    Attributes:
        width: of the hidden layer.
        activation: σ; `gelu` is the exact one, `gelu_tanh` its approximation by a tanh, `silu` is x/(1 + e^−x).
        gated: x → (σ(x W_g + b_g) ⊙ (x W₁ + b₁)) W₂ + b₂ instead (Shazeer 2020, "GLU variants", eq. 6); with
            `silu` that is the SwiGLU of Llama.
        experts: several such maps, of which a router picks some for each token (Shazeer et al. 2017, eqs. 1 to 5,
            without noise); all are computed here. `None` for a single map.
    """

    width: int
    activation: Activation = "relu"
    gated: bool = False
    experts: Experts | None = None

    def __post_init__(self) -> None:
        arguments.check_fields(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackSpec:
    """The static shape of a network of equal layers; `skip`, `mlp` and `norm` are independent switches.

    Attributes:
        attention: every layer's attention; where there are `local_layers`, that of the others.
        depth: number of layers.
        skip: whether each sublayer's input is added to its output. Off means that nothing is added anywhere.
        mlp: the token-wise sublayer after the attention; `None` leaves it out.
        norm: where the norms of a sublayer f stand. `pre`: x + f(N x); `post`: N(x + f x); `branch`: x + N f(x), as in
            OLMo 2; `peri`: x + N′ f(N x), as in Gemma 2 (Kim et al. 2025, "Peri-LN"); `None`: nowhere.
        norm_epsilon: added to the variance in LayerNorm, to the mean square in RMSNorm.
        norm_kind: `layer`, or `rms` for x/√(mean x² + ε) · scale (Zhang & Sennrich 2019, eq. 4).
        parallel: attention and MLP both read the layer's input, x + f(N x) + g(N′ x), instead of one after the other
            (Wang & Komatsuzaki 2021, "GPT-J"). Without an MLP it changes nothing.
        local: the attention of `local_layers`, of another window or rotation than the rest; parameters of one shape.
        local_layers: the numbers of these layers from 0, in order; given with `local` and only then.

    Example:
        >>> StackSpec(attention=AttentionSpec(d_model=8), depth=3, mlp=MLPSpec(width=32)).depth
        3
    """

    attention: AttentionSpec
    depth: int
    skip: bool = False
    mlp: MLPSpec | None = None
    norm: Norm | None = None
    norm_epsilon: float = 1e-5
    norm_kind: NormKind = "layer"
    parallel: bool = False
    local: AttentionSpec | None = None
    local_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        positive, several = arguments.scalar(arguments.positive), arguments.instance(tuple)
        arguments.check_fields(self, norm_epsilon=positive, local_layers=several)
        if self.parallel and self.norm == "post":
            raise ValueError("`norm` must not be 'post' with parallel=True, whose branches have no sum of their own")
        self._check_local()

    def _check_local(self) -> None:
        if (self.local is None) != (not self.local_layers):
            raise ValueError(f"`local_layers` must be given with local and only then, got {self.local_layers!r}")
        if self.local is None:
            return
        if shapes(self.local) != shapes(self.attention):
            raise ValueError(f"`local` must have parameters of the shapes that `attention` has, got {self.local!r}")
        # Numbers of layers, in order and each once.
        for index in self.local_layers:
            arguments.integer(0)("local_layers", index)
        if list(self.local_layers) != sorted(set(self.local_layers)) or self.local_layers[-1] >= self.depth:
            raise ValueError(f"`local_layers` must rise within 0 … {self.depth - 1}, got {self.local_layers}")

    @property
    def kinds(self) -> tuple["StackSpec", ...]:
        """The networks whose layers all are of one of this network's kinds: itself, or two of them."""
        if self.local is None:
            return (self,)
        plain = dataclasses.replace(self, local=None, local_layers=())
        return plain, dataclasses.replace(plain, attention=self.local)

    def kind_of(self, layer: int) -> int:
        """Which of `kinds` a layer is of; layers are numbered from 0."""
        return int(layer in self.local_layers)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RandomLayers:
    """Parameters of a stack that are drawn layer by layer when they are used; accepted wherever parameters are.

    The numbers are those of `init` with the same key, and no more than one layer's weights exist at a time.
    """

    keys: Array
    gain: Array
    bias_std: Array
    dtype: str = dataclasses.field(metadata={"static": True})
    attention_strength: Array | None = None
    mlp_strength: Array | None = None


Layers = LayerParams | RandomLayers


_checked = arguments.guard(gain=arguments.scalar(arguments.positive), bias_std=arguments.scalar(arguments.bounded(0)))


@_checked
def random_layers(
    key: Key[Array, ""],
    spec: StackSpec,
    *,
    gain: ArrayLike = 1.0,
    bias_std: ArrayLike = 0.0,
    dtype: DTypeLike | None = None,
) -> RandomLayers:
    """The parameters that `init` draws, each layer drawn when it is used, without the memory of all.

    Args:
        key: a typed key.
        spec: the network.
        gain: factor on the standard deviation of every matrix; may be traced.
        bias_std: standard deviation of the biases; may be traced.
        dtype: of the parameters; JAX's default floating type where it is not given.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from rc_jax import network
        >>> spec = network.StackSpec(attention=AttentionSpec(d_model=8, heads=2), depth=3)
        >>> key, x = jax.random.key(0), jnp.eye(5, 8)
        >>> stored, drawn = network.init(key, spec), network.random_layers(key, spec)
        >>> bool(jnp.allclose(network.apply(stored, x, spec), network.apply(drawn, x, spec), atol=1e-6))
        True
    """
    kind = canonical_dtype(jnp.dtype(dtype if dtype is not None else float))
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(spec.depth))
    return RandomLayers(keys, jnp.asarray(gain, kind), jnp.asarray(bias_std, kind), kind.name)


@_checked
def init(
    key: Key[Array, ""],
    spec: StackSpec,
    *,
    gain: ArrayLike = 1.0,
    bias_std: ArrayLike = 0.0,
    dtype: DTypeLike | None = None,
) -> LayerParams:
    """Draw the parameters of a stack; every leaf has a leading layer axis.

    Attention as in `rc_jax.attention.init`; the MLP's matrices are N(0, gain²/fan_in), its biases N(0, bias_std²);
    norms start as scale 1 and shift 0. Layer l has the key `fold_in(key, l)`.

    Args:
        key: a typed key.
        spec: the network.
        gain: factor on the standard deviation of every matrix; may be traced.
        bias_std: standard deviation of the biases; may be traced.
        dtype: of the parameters; JAX's default floating type where it is not given.

    Example:
        >>> import jax
        >>> spec = StackSpec(attention=AttentionSpec(d_model=8, heads=2), depth=3)
        >>> init(jax.random.key(0), spec).attention.query.shape
        (3, 2, 8, 4)
    """
    return _draw_layers(random_layers(key, spec, gain=gain, bias_std=bias_std, dtype=dtype), spec)


@functools.partial(jax.jit, static_argnames="spec")
def _draw_layers(layers: RandomLayers, spec: StackSpec) -> LayerParams:
    return jax.vmap(lambda key: draw_layer(layers, key, spec))(layers.keys)


def draw_layer(layers: RandomLayers, key: Array, spec: StackSpec) -> LayerParams:
    """The parameters of the one layer that has this key."""
    gain, bias_std, dtype = layers.gain, layers.bias_std, layers.dtype
    drawn = attention.init(
        jax.random.fold_in(key, _ATTENTION), spec.attention, gain=gain, bias_std=bias_std, dtype=dtype
    )
    d = spec.attention.d_model

    shift = jnp.zeros(d, dtype) if spec.norm_kind == "layer" else None
    norms = dict.fromkeys(norm_names(spec), NormParams(jnp.ones(d, dtype), shift))
    mlp = _draw_mlp(layers, jax.random.fold_in(key, _MLP), spec.mlp, d) if spec.mlp else None
    layer = LayerParams(drawn, mlp, **norms)
    return scale_layer(layer, layers.attention_strength, layers.mlp_strength)


def norm_names(spec: StackSpec) -> tuple[str, ...]:
    """The fields of `LayerParams` that hold the norms of this network: before the branches, or behind them."""
    places = {"pre": ("norm",), "post": ("norm",), "branch": ("out_norm",), "peri": ("norm", "out_norm"), None: ()}
    parts = ("attention", "mlp") if spec.mlp is not None else ("attention",)
    return tuple(f"{part}_{place}" for place in places[spec.norm] for part in parts)


def _draw_mlp(layers: RandomLayers, key: Array, spec: MLPSpec, d: int) -> MLPParams:
    drawn = split_normals(key, mlp_shapes(spec, d), layers.dtype)
    for name, normal in drawn.items():
        fan_in = spec.width if name == "weight_out" else d
        std = layers.gain * jnp.asarray(fan_in**-0.5, layers.dtype) if name.startswith("weight") else layers.bias_std
        drawn[name] = std * normal
    return MLPParams(**drawn)


def mlp_shapes(spec: MLPSpec, d: int) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of the token-wise sublayer, by name."""
    shapes = {"weight_in": (d, spec.width), "bias_in": (spec.width,), "weight_out": (spec.width, d), "bias_out": (d,)}
    shapes |= {"weight_gate": (d, spec.width), "bias_gate": (spec.width,)} if spec.gated else {}
    if spec.experts is None:
        return shapes
    count = spec.experts.count
    return {name: (count, *shape) for name, shape in shapes.items()} | {"weight_router": (d, count)}


def check_stack(params: Layers, x: Array, spec: StackSpec) -> None:
    """Raise one clear error unless the parameters (stored or random) and the tokens fit the specification."""
    if isinstance(params, RandomLayers):
        if params.keys.shape != (spec.depth,):
            raise ValueError(f"`params` must be drawn for depth={spec.depth}, got {params.keys.shape[0]} layers")
        if params.dtype != x.dtype.name:
            raise TypeError(f"`x` must have the dtype of `params`, {params.dtype}, got {x.dtype}")
        if x.shape[-1] != spec.attention.d_model:
            raise ValueError(f"`x` must have d_model={spec.attention.d_model} features, got {arguments.describe(x)}")
        if spec.attention.tokens not in (None, x.shape[0]):
            raise ValueError(
                f"`x` must have the {spec.attention.tokens} tokens that `spec` fixes, got {arguments.describe(x)}"
            )
        return
    check_layer(params.attention, x, spec.attention, (spec.depth,))
    # The shapes that the specification asks for, part by part.
    d = spec.attention.d_model
    required: dict[str, dict[str, tuple[int, ...]]] = {}
    if spec.mlp is not None:
        required["mlp"] = mlp_shapes(spec.mlp, d)
    for part in norm_names(spec):
        required[part] = {"scale": (d,)} | ({"shift": (d,)} if spec.norm_kind == "layer" else {})
    for part, needed in required.items():
        weights = getattr(params, part)
        if weights is None:
            raise ValueError(f"`params.{part}` must be given, because the specification asks for it, got None")
        for name, shape in needed.items():
            value = getattr(weights, name)
            if value is None or value.shape != (spec.depth, *shape):
                raise ValueError(
                    f"`params.{part}.{name}` must have shape {(spec.depth, *shape)}, got {arguments.describe(value)}"
                )
            if value.dtype != x.dtype:
                raise TypeError(f"`x` must have the dtype of `params.{part}.{name}`, {value.dtype}, got {x.dtype}")
