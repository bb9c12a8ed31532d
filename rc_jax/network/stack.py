"""Depth: a network of equal layers as one `lax.scan`, so that compile time does not grow with depth."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from rc_jax import attention
from rc_jax._numerics import arguments
from rc_jax.attention import AttentionParams, masks
from rc_jax.attention.layer import check_scale_and_mask, scale_of
from rc_jax.attention.parameters import standardised
from rc_jax.network.parameters import LayerParams, MLPParams, NormParams
from rc_jax.network.specification import Experts, Layers, RandomLayers, StackSpec, check_stack, draw_layer

Carry = TypeVar("Carry")
Out = TypeVar("Out")
Tokens = TypeVar("Tokens")

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": jax.nn.gelu,
    "tanh": jnp.tanh,
    "silu": jax.nn.silu,
}


def scan_layers(
    step: Callable[[Carry, LayerParams], tuple[Carry, Out]], carry: Carry, layers: Layers, spec: StackSpec
) -> tuple[Carry, Out]:
    """Run `step` over the layers in order, drawing each one first where `layers` is `RandomLayers`."""
    if isinstance(layers, RandomLayers):
        drawn = layers
        return jax.lax.scan(lambda c, key: step(c, draw_layer(drawn, key, spec)), carry, drawn.keys)
    return jax.lax.scan(step, carry, layers)


def scan_kinds(
    step_of: Callable[[StackSpec], Callable[[Carry, LayerParams], tuple[Carry, Out]]],
    carry: Carry,
    layers: Layers,
    spec: StackSpec,
) -> tuple[Carry, Out]:
    """`scan_layers` with the step that `step_of` makes for each of the `kinds` of layers that the network has.

    Both steps of a network with local layers are compiled once, and a layer runs the one of its kind.
    """
    steps = [step_of(kind) for kind in spec.kinds]
    if len(steps) == 1:
        return scan_layers(steps[0], carry, layers, spec)
    kinds = jnp.asarray([spec.kind_of(index) for index in range(spec.depth)], jnp.int32)

    def step(state: tuple[Array, Carry], layer: LayerParams) -> tuple[tuple[Array, Carry], Out]:
        index, carry = state
        carry, out = jax.lax.switch(kinds[index], steps, carry, layer)
        return (index + 1, carry), out

    (_, carry), out = scan_layers(step, (jnp.asarray(0, jnp.int32), carry), layers, spec)
    return carry, out


def layer_norm(x: Float[Array, "token feature"], params: NormParams, epsilon: float) -> Float[Array, "token feature"]:
    """(x − mean)/√(variance + ε) · scale + shift, per token (Ba et al. 2016, eq. 4)."""
    out = standardised(x, epsilon, centred=True) * params.scale[None]
    return out if params.shift is None else out + params.shift[None]


def rms_norm(x: Float[Array, "token feature"], params: NormParams, epsilon: float) -> Float[Array, "token feature"]:
    """x/√(mean x² + ε) · scale, per token (Zhang & Sennrich 2019, eq. 4)."""
    return standardised(x, epsilon) * params.scale[None]


NORMS: dict[str, Callable[[Array, NormParams, float], Array]] = {"layer": layer_norm, "rms": rms_norm}


def mlp(x: Float[Array, "token feature"], params: MLPParams, spec: StackSpec) -> Float[Array, "token feature"]:
    """σ(x W₁ + b₁) W₂ + b₂, token by token; where it is gated (σ(x W_g + b_g) ⊙ (x W₁ + b₁)) W₂ + b₂.

    Of experts it is the sum over those that a token takes.
    """
    assert spec.mlp is not None
    if spec.mlp.experts is None:
        return _mlp(x, params, spec)
    assert params.weight_router is not None
    given = shares(jnp.matmul(x, params.weight_router, precision=spec.attention.precision), spec.mlp.experts)

    def add(total: Array, expert: tuple[MLPParams, Array]) -> tuple[Array, None]:
        weights, share = expert
        # An expert that a token does not take adds nothing, whatever it would give.
        return total + jnp.where(share[:, None] > 0, share[:, None] * _mlp(x, weights, spec), 0), None

    return jax.lax.scan(add, jnp.zeros_like(x), (params._replace(weight_router=None), given.T))[0]


def shares(logits: Float[Array, "token expert"], experts: Experts) -> Float[Array, "token expert"]:
    """What each token takes of each expert: its softmax, 0 beyond the top k; divided by its sum where normalised."""
    p = jax.nn.softmax(logits, axis=-1)
    values, index = jax.lax.top_k(p, experts.active)
    if experts.normalised:
        values = values / jnp.sum(values, axis=-1, keepdims=True)
    return jnp.zeros_like(p).at[jnp.arange(len(p))[:, None], index].set(values)


def _mlp(x: Float[Array, "token feature"], params: MLPParams, spec: StackSpec) -> Float[Array, "token feature"]:
    """One map."""
    assert spec.mlp is not None
    precision = spec.attention.precision
    hidden = jnp.matmul(x, params.weight_in, precision=precision) + params.bias_in[None]
    if spec.mlp.gated:
        assert params.weight_gate is not None and params.bias_gate is not None
        gate = jnp.matmul(x, params.weight_gate, precision=precision) + params.bias_gate[None]
        hidden = ACTIVATIONS[spec.mlp.activation](gate) * hidden
    else:
        hidden = ACTIVATIONS[spec.mlp.activation](hidden)
    return jnp.matmul(hidden, params.weight_out, precision=precision) + params.bias_out[None]


@dataclasses.dataclass(frozen=True)
class Arithmetic(Generic[Tokens]):
    """The four operations that a layer is wired from, on whatever represents the tokens."""

    attend: Callable[[AttentionParams, Tokens], Tokens]
    mlp: Callable[[MLPParams, Tokens], Tokens]
    norm: Callable[[NormParams, Tokens], Tokens]
    add: Callable[[Tokens, Tokens], Tokens]


def block(params: LayerParams, x: Tokens, spec: StackSpec, arithmetic: Arithmetic[Tokens]) -> Tokens:
    """One layer: attention, then the MLP where there is one, each with skip and LayerNorm as the switches say."""

    def normed(x: Tokens, norm: NormParams | None, *, here: bool) -> Tokens:
        if not here:
            return x
        assert norm is not None
        return arithmetic.norm(norm, x)

    def added(x: Tokens, out: Tokens, norm: NormParams | None) -> Tokens:
        return normed(arithmetic.add(x, out) if spec.skip else out, norm, here=spec.norm == "post")

    def branch(f: Callable[[Tokens], Tokens], x: Tokens, norm: NormParams | None, out: NormParams | None) -> Tokens:
        read = normed(x, norm, here=spec.norm in ("pre", "peri"))
        return normed(f(read), out, here=spec.norm in ("branch", "peri"))

    # X ← attention, then X ← MLP, each with its own norms; or both of the same X.
    attended = branch(
        lambda y: arithmetic.attend(params.attention, y), x, params.attention_norm, params.attention_out_norm
    )
    if spec.mlp is None:
        return added(x, attended, params.attention_norm)
    weights = params.mlp
    assert weights is not None
    read = x if spec.parallel else added(x, attended, params.attention_norm)
    passed = branch(lambda y: arithmetic.mlp(weights, y), read, params.mlp_norm, params.mlp_out_norm)
    if spec.parallel:
        return added(x, arithmetic.add(attended, passed), None)
    return added(read, passed, params.mlp_norm)


def plain_arithmetic(spec: StackSpec, scale: ArrayLike | None, mask: Array | None) -> Arithmetic[Array]:
    """The operations on token matrices themselves; a scale is that of the layers which read scores."""
    scale = scale_of(spec.attention, scale)
    return Arithmetic(
        attend=lambda params, x: attention.attend(params, x, spec.attention, scale=scale, mask=mask),
        mlp=lambda params, x: mlp(x, params, spec),
        norm=lambda params, x: NORMS[spec.norm_kind](x, params, spec.norm_epsilon),
        add=jnp.add,
    )


@arguments.guard(scale=arguments.positive, mask=masks.check_mask)
def apply(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
) -> Float[Array, "token feature"]:
    """The output of the whole network.

    Pure attention (no skip, MLP or norm) unrolls to X^L = Σ over head choices (P^L_{h_L}···P^1_{h_1}) X
    (W^1_{h_1}···W^L_{h_L}) + 1bᵀ, later layers on the left (Dong et al. 2021, eq. 3).

    Args:
        params: from `init` or `random_layers`. Parts that `spec` does not have are not used.
        x: tokens.
        spec: the network.
        scale: α of every layer that reads scores, as in `rc_jax.attention.scores`; may be traced.
        mask: of every layer, as in `rc_jax.attention.attention_weights`.

    Raises:
        ValueError: a row of `mask` sees nobody.

    Example:
        >>> import jax
        >>> from rc_jax import network
        >>> from rc_jax.attention import AttentionSpec
        >>> spec = network.StackSpec(attention=AttentionSpec(d_model=8, heads=2), depth=3, skip=True)
        >>> params = network.init(jax.random.key(0), spec)
        >>> apply(params, jax.random.normal(jax.random.key(1), (5, 8)), spec).shape
        (5, 8)
    """
    check_stack(params, x, spec)
    check_every_mask(scale, mask, x, spec)
    return _apply(params, x, spec, scale, mask)


@functools.partial(jax.jit, static_argnames="spec")
def _apply(params: Layers, x: Array, spec: StackSpec, scale: ArrayLike | None, mask: Array | None) -> Array:
    def step_of(kind: StackSpec) -> Callable[[Array, LayerParams], tuple[Array, None]]:
        arithmetic = plain_arithmetic(kind, scale, mask)
        return lambda x, layer: (block(layer, x, kind, arithmetic), None)

    return scan_kinds(step_of, x, params, spec)[0]


def check_every_mask(scale: ArrayLike | None, mask: Array | None, x: Array, spec: StackSpec) -> None:
    """Raise unless scale and mask fit the attention of every kind of layer."""
    layers = [kind.attention for kind in spec.kinds]
    some = any(layer.kind.reads == "scores" for layer in layers)  # beside them others have no scale
    for layer in layers:
        check_scale_and_mask(scale_of(layer, scale) if some else scale, mask, x, layer)


@arguments.guard(scale=arguments.positive, mask=masks.check_mask)
def hidden_states(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
) -> Float[Array, "layer token feature"]:
    """The tokens before the first layer and after each one: depth + 1 of them, the last being `apply`'s.

    Args and errors as in `apply`.

    Example:
        >>> import jax
        >>> from rc_jax import network
        >>> from rc_jax.attention import AttentionSpec
        >>> spec = network.StackSpec(attention=AttentionSpec(d_model=8, heads=2), depth=3)
        >>> params = network.init(jax.random.key(0), spec)
        >>> hidden_states(params, jax.random.normal(jax.random.key(1), (5, 8)), spec).shape
        (4, 5, 8)
    """
    check_stack(params, x, spec)
    check_every_mask(scale, mask, x, spec)
    return _hidden_states(params, x, spec, scale, mask)


@functools.partial(jax.jit, static_argnames="spec")
def _hidden_states(params: Layers, x: Array, spec: StackSpec, scale: ArrayLike | None, mask: Array | None) -> Array:
    def step_of(kind: StackSpec) -> Callable[[Array, LayerParams], tuple[Array, Array]]:
        arithmetic = plain_arithmetic(kind, scale, mask)

        def step(x: Array, layer: LayerParams) -> tuple[Array, Array]:
            out = block(layer, x, kind, arithmetic)
            return out, out

        return step

    states = scan_kinds(step_of, x, params, spec)[1]
    return jnp.concatenate([x[None], states])
