"""The model that is trained: an embedding, a stack of `rc_jax.network`, and a readout."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float, Key

from rc_jax import network
from rc_jax._numerics import arguments
from rc_jax.attention import sinusoidal
from rc_jax.attention.parameters import split_normals
from rc_jax.network import LayerParams, NormParams, StackSpec
from rc_jax.network.stack import NORMS

Positions = Literal["learned", "sinusoidal"]

_ENDS, _LAYERS = range(2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The static shape of a model: its inputs, its network and its outputs.

    Encoder or decoder is `stack.attention.causal`.

    Attributes:
        stack: the network; its `attention.d_model` is the width of a token.
        inputs: symbols of the vocabulary, or numbers that make up a token where `symbols` is off.
        outputs: numbers returned for each token, or for the sequence where `pooled` is on.
        tokens: length of the longest sequence.
        symbols: whether a token is an integer, which indexes a table, or a vector, which is multiplied by a matrix.
        positions: code added to the embedding: one vector per position that is learned, sines and cosines (Vaswani et
            al. 2017, section 3.5), or none.
        pooled: whether the mean over tokens is read out, one answer per sequence, instead of every token.
        final_norm: a norm before the readout, of the kind that `stack.norm_kind` says.

    Example:
        >>> from rc_jax.attention import AttentionSpec
        >>> stack = StackSpec(attention=AttentionSpec(d_model=8, heads=2), depth=3, skip=True)
        >>> ModelSpec(stack=stack, inputs=10, outputs=2, tokens=5).positions
        'learned'
    """

    stack: StackSpec
    inputs: int
    outputs: int
    tokens: int
    symbols: bool = True
    positions: Positions | None = "learned"
    pooled: bool = False
    final_norm: bool = False

    def __post_init__(self) -> None:
        arguments.check_fields(self)
        if self.positions == "sinusoidal" and self.stack.attention.d_model % 2:
            raise ValueError(
                f"`positions` must not be 'sinusoidal' where d_model={self.stack.attention.d_model} is odd"
            )
        fixed = self.stack.attention.tokens
        if fixed is not None and fixed != self.tokens:
            raise ValueError(f"`tokens` must be the {fixed} that the attention's low rank fixes, got {self.tokens}")


class Transformer(nnx.Module):
    """Embedding, a stack of `rc_jax.network` layers, and a linear readout; one sequence in, `jax.vmap` for more.

        H⁰ = E(x) + positions,   H^L = network.apply(layers, H⁰),   logits = N(H^L) W + b,

    with N the final norm or nothing, of every token or of their mean. Layers are drawn as `network.init` draws them; an
    embedding and its position code have variance 1 per entry together, the readout N(0, gain²/d_model) and bias 0.
    Rates of decay are trained as log λ/(1 − λ), so that they stay between 0 and 1.

    Args:
        key: a typed key.
        spec: the model.
        gain: factor on the standard deviation of the layers' and the readout's matrices; may be traced.
        scale: where given, the logit scale α is trained from there on, one for each head and common to all layers, as
            the parameter `log_scale`; positive, one number or one per head; may be traced.

    Attributes:
        log_scale: log α of every head, or None.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from rc_jax.attention import AttentionSpec
        >>> stack = StackSpec(attention=AttentionSpec(d_model=8, heads=2), depth=3, skip=True)
        >>> model = Transformer(jax.random.key(0), ModelSpec(stack=stack, inputs=10, outputs=2, tokens=5))
        >>> batch = jnp.array([[1, 2, 3, 4, 5], [0, 9, 0, 9, 0]])
        >>> jax.vmap(model)(batch).shape
        (2, 5, 2)
    """

    spec: ModelSpec
    embedding: nnx.Param[Any]
    positions: nnx.Param[Any] | None
    readout: nnx.Param[Any]
    readout_bias: nnx.Param[Any]
    parts: Any  # the layers' parameters, a tree
    norm: Any  # of the final norm, or None
    log_scale: nnx.Param[Any] | None

    @arguments.guard(gain=arguments.scalar(arguments.positive), scale=arguments.positive)
    def __init__(self, key: Key[Array, ""], spec: ModelSpec, *, gain: ArrayLike = 1.0, scale: ArrayLike | None = None):
        heads, d = spec.stack.attention.heads, spec.stack.attention.d_model
        if scale is not None and jnp.shape(scale) not in ((), (heads,)):
            raise ValueError(f"`scale` must be one number or one for each of {heads} heads, got {jnp.shape(scale)}")
        self.spec = spec

        # The two ends: an embedding with variance 1 per entry, positions included, and a readout.
        learned = spec.positions == "learned"
        shapes = {"embedding": (spec.inputs, d), "readout": (d, spec.outputs)}
        drawn = split_normals(
            jax.random.fold_in(key, _ENDS), shapes | ({"positions": (spec.tokens, d)} if learned else {}), float
        )
        share = 1.0 if spec.positions is None else 0.5  # sines and cosines have mean square 1/2
        std = (share if spec.symbols else share / spec.inputs) ** 0.5
        self.embedding = nnx.Param(std * drawn["embedding"])
        self.positions = nnx.Param(share**0.5 * drawn["positions"]) if learned else None
        self.readout = nnx.Param(jnp.asarray(gain, float) * d**-0.5 * drawn["readout"])
        self.readout_bias = nnx.Param(jnp.zeros(spec.outputs))

        # The layers, the final norm, and the logit scale if it is trained.
        layers = _free(network.init(jax.random.fold_in(key, _LAYERS), spec.stack, gain=gain))
        self.parts = nnx.data(jax.tree.map(nnx.Param, layers))
        shift = jnp.zeros(d) if spec.stack.norm_kind == "layer" else None
        norm = NormParams(jnp.ones(d), shift) if spec.final_norm else None
        self.norm = nnx.data(jax.tree.map(nnx.Param, norm))
        log_scale = None if scale is None else jnp.broadcast_to(jnp.log(jnp.asarray(scale, float)), (heads,))
        self.log_scale = None if log_scale is None else nnx.Param(log_scale)

    def __call__(self, x: Array, *, scale: ArrayLike | None = None) -> Float[Array, "*token output"]:
        """The logits of one sequence: of every token, or one row where the model is pooled.

        Args:
            x: integers (token,), or vectors (token, inputs) where `spec.symbols` is off.
            scale: α of every layer, fixed: it takes the place of a trained one. One number or one per head.

        Raises:
            ValueError: a token outside the vocabulary, where it is known (where it is traced, the logits are NaN); more
                tokens than `spec.tokens` (or fewer, where an attention of low rank fixes their number).
        """
        return self.read(network.apply(self.layers(), self.embed(x), self.spec.stack, scale=self.scale(scale)))

    def scale(self, given: ArrayLike | None = None) -> ArrayLike | None:
        """The logit scale in use: the given one, else the trained one, else None for the layer's own."""
        if given is not None or self.log_scale is None:
            return given
        return jnp.exp(self.log_scale[...])

    def embed(self, x: Array) -> Float[Array, "token feature"]:
        """The tokens before the first layer, positions included."""
        _check_tokens(x, self.spec, self.embedding[...].dtype)
        table, precision = self.embedding[...], self.spec.stack.attention.precision
        if self.spec.symbols:
            hidden = jnp.where(arguments.among(x, self.spec.inputs)[:, None], table[x], jnp.nan)
        else:
            hidden = jnp.matmul(x, table, precision=precision)
        if self.positions is not None:
            hidden = hidden + self.positions[: x.shape[0]]
        elif self.spec.positions == "sinusoidal":
            hidden = hidden + sinusoidal(jnp.arange(x.shape[0]), hidden.shape[-1], dtype=hidden.dtype)
        return hidden

    def layers(self) -> LayerParams:
        """The network's weights as plain arrays, for every function that takes `network` parameters."""
        return _bound(_values(self.parts))

    def read(self, hidden: Float[Array, "token feature"]) -> Float[Array, "*token output"]:
        """The logits of tokens that have left the last layer. Linear in them unless there is a final norm."""
        if self.spec.pooled:
            hidden = jnp.mean(hidden, axis=0, keepdims=True)
        if self.spec.final_norm:
            stack = self.spec.stack
            hidden = NORMS[stack.norm_kind](hidden, _values(self.norm), stack.norm_epsilon)
        logits = jnp.matmul(hidden, self.readout[...], precision=self.spec.stack.attention.precision)
        logits = logits + self.readout_bias[...][None]
        return logits[0] if self.spec.pooled else logits


def _free(layers: LayerParams) -> LayerParams:
    """Layers as they are trained, with log λ/(1 − λ) in place of a rate λ of decay."""
    return _with_decay(layers, lambda rate: jnp.log(rate) - jnp.log1p(-rate))


def _bound(layers: LayerParams) -> LayerParams:
    """Layers as the network takes them, with rates of decay in (0, 1]."""
    return _with_decay(layers, lambda logit: jnp.maximum(jax.nn.sigmoid(logit), jnp.finfo(logit.dtype).tiny))


def _with_decay(layers: LayerParams, change: Callable[[Array], Array]) -> LayerParams:
    parts = layers.attention.parts
    if "decay" not in parts:
        return layers
    return layers._replace(attention=layers.attention._replace(parts=parts | {"decay": change(parts["decay"])}))


def _values(parts: Any) -> Any:
    """A tree of parameters as the tree of their arrays."""
    return jax.tree.map(lambda part: part[...], parts, is_leaf=lambda part: isinstance(part, nnx.Variable))


def _check_tokens(x: Array, spec: ModelSpec, dtype: DTypeLike) -> None:
    if spec.symbols:
        arguments.integer_array("token")("x", x)
        known = arguments.on_host(x)
        if known is not None and known.size and not (known.min() >= 0 and known.max() < spec.inputs):
            wrong = np.asarray(known)[(known < 0) | (known >= spec.inputs)][0]
            raise ValueError(f"`x` must hold symbols 0 … {spec.inputs - 1}, got {wrong}")
    else:
        arguments.float_array("token", "input")("x", x)
        if x.shape[1] != spec.inputs:
            raise ValueError(f"`x` must have {spec.inputs} numbers per token, got {arguments.describe(x)}")
        if x.dtype != dtype:
            raise TypeError(f"`x` must have the dtype of the model, {dtype}, got {arguments.describe(x)}")
    fixed = spec.stack.attention.tokens is not None  # by an attention of low rank
    if x.shape[0] > spec.tokens or (fixed and x.shape[0] < spec.tokens):
        words = f"{spec.tokens} tokens" if fixed else f"at most {spec.tokens} tokens"
        raise ValueError(f"`x` must have {words}, got {arguments.describe(x)}")
