"""One random initialisation forwards and backwards: what is measured at every layer.

Layers are drawn where they are used, once on the way forwards and once more on the way back, so that no more than one
layer's weights exist at a time. The loss is ⟨U, X^L⟩ with U normal, so that E‖∂L/∂X^l‖² = ‖J‖_F² of the Jacobian J
from layer l to the last. The gradient is scaled to norm 1 between layers and its logarithm carried along: it does not
underflow at any depth.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rc_jax import attention
from rc_jax.attention import AttentionParams, AttentionSpec, masks
from rc_jax.attention.layer import default_scale, from_heads, scale_of
from rc_jax.attention.parameters import project, split_normals
from rc_jax.attention.specification import assemble, is_bias, shapes
from rc_jax.network import LayerParams, MLPParams, NormParams, StackSpec, block, layer_norm
from rc_jax.network.parameters import scale_layer
from rc_jax.network.specification import mlp_shapes, norm_names
from rc_jax.network.stack import Arithmetic, plain_arithmetic
from rc_jax.special import normals
from rc_jax.study.initialisation.design import Design, fan_in, resized

MATRICES = ("query", "key", "value", "output")
EVEN = 0.9  # of log n_i: the entropy of a row that is called even
SATURATED = 0.5  # of its sum: the largest weight of a row that is called saturated
FEW = 4  # tokens: of fewer, one easily has half


class Network(NamedTuple):
    """What a program is compiled for: a network of some width, and the form of what enters it."""

    spec: StackSpec
    key_heads: int
    shared: tuple[int, ...]
    tokens: int
    sinusoids: bool
    normed: bool
    narrow: int | None


class Numbers(NamedTuple):
    """What a compiled program takes as numbers: the deviations of what is drawn, and strengths."""

    factors: dict[str, Array]
    branch: Array
    skip: Array
    norms: Array
    sharpness: Array
    own: Array
    common: Array
    projection: Array
    first: Array


class Sample(NamedTuple):
    """Logarithms and shares of one initialisation: before the first layer and after each, or of each layer.

    Attributes:
        residual: log ‖res(X)‖/‖X‖, layers + 1.
        size: log ‖X‖/√(nd), layers + 1.
        evenness: mean H/log n_i of rows.
        largest: mean largest share of a row's sum.
        even: share of rows with evenness of 0.9 and more.
        saturated: share of rows of which one weight has 0.5 of the sum and more, among those that see four tokens.
        gradients: log of the gradient's norm at a layer's input and at its matrices, by name.
    """

    residual: Array
    size: Array
    evenness: Array
    largest: Array
    even: Array
    saturated: Array
    gradients: dict[str, Array]


def prepared(design: Design, d_model: int, d_head: int, count: int) -> tuple[Network, Numbers]:
    """A design at some width: every matrix' deviation times √fan_in is that of the full width."""
    spec, full = resized(design.spec, d_model, d_head), design.spec
    network = Network(
        spec,
        design.key_heads or spec.attention.heads,
        design.shared or tuple(range(spec.depth)),
        count,
        design.tokens.sinusoids,
        design.tokens.normed,
        design.tokens.narrow,
    )
    last = ("output", "weight_out")
    names = [*shapes(spec.attention), *(mlp_shapes(spec.mlp, d_model) if spec.mlp else ())]
    factors = {
        name: jnp.float32(design.start.factor(fan_in(name, full)) * (design.start.branches if name in last else 1))
        for name in names
    }
    number = jnp.float32
    numbers = Numbers(
        factors=factors,
        branch=number(design.branch),
        skip=number(design.skip),
        norms=jnp.asarray(design.norms or (1.0,) * spec.depth, jnp.float32),
        sharpness=number(design.sharpness),
        own=number(design.tokens.own),
        common=number(design.tokens.common),
        projection=number(design.tokens.projection),
        first=number(design.tokens.first),
    )
    return network, numbers


def draw_tokens(key: Array, network: Network, numbers: Numbers) -> Float[Array, "token feature"]:
    """Distinct random words."""
    of_words, of_matrix = jax.random.split(key)
    d, count = network.spec.attention.d_model, network.tokens
    narrow = network.narrow or d
    drawn = normals(of_words, (count + 1, narrow), jnp.float32)
    x = (numbers.own * drawn[1:]).at[0].multiply(numbers.first) + numbers.common * drawn[:1]
    if network.sinusoids:
        x = x + attention.sinusoidal(jnp.arange(count), narrow, dtype=jnp.float32)
    if network.normed:
        x = layer_norm(
            x, NormParams(jnp.ones(narrow, jnp.float32), jnp.zeros(narrow, jnp.float32)), network.spec.norm_epsilon
        )
    if network.narrow is None:
        return x
    matrix = normals(of_matrix, (narrow, d), jnp.float32) * numbers.projection / narrow**0.5
    return jnp.matmul(x, matrix, precision="highest")


def draw_layer(key: Array, network: Network, numbers: Numbers) -> tuple[AttentionParams, MLPParams | None]:
    """One stored layer: heads that share keys and values have them once; biases are 0."""
    spec, layer = network.spec, network.spec.attention
    fixed = dict(layer.kind.start(layer, "float32"))
    if layer.qk_norm is not None:
        fixed |= dict.fromkeys(("query_norm", "key_norm"), jnp.ones((layer.heads, layer.head_width), jnp.float32))
    needed = shapes(layer)
    for name in ("key", "value"):
        needed[name] = (network.key_heads, *needed[name][1:])
    of_mlp = mlp_shapes(spec.mlp, layer.d_model) if spec.mlp else {}
    zero = {name: shape for name, shape in needed.items() if is_bias(name)}
    zero |= {name: shape for name, shape in of_mlp.items() if name.startswith("bias")}
    random = {name: shape for name, shape in (needed | of_mlp).items() if name not in fixed and name not in zero}
    arrays = {
        name: normal * (numbers.factors[name] / fan_in(name, spec) ** 0.5)
        for name, normal in split_normals(key, random, "float32").items()
    }
    arrays |= fixed | {name: jnp.zeros(shape, jnp.float32) for name, shape in zero.items()}
    mlp = MLPParams(**{name: arrays.pop(name) for name in of_mlp}) if of_mlp else None
    return assemble(arrays), mlp


def complete(
    stored: tuple[AttentionParams, MLPParams | None], network: Network, numbers: Numbers, norm: Array
) -> LayerParams:
    """The layer as it is used: shared heads repeated, branches β times as strong, norms before them `norm` times."""
    spec, (layer, mlp) = network.spec, stored
    times = spec.attention.heads // network.key_heads
    repeated = {
        name: jnp.repeat(value, times, axis=0)
        for name in ("key", "value")
        if times > 1 and (value := getattr(layer, name)) is not None
    }
    d, shift = spec.attention.d_model, None
    if spec.norm_kind == "layer":
        shift = jnp.zeros(d, jnp.float32)
    norms = {
        name: NormParams(jnp.ones(d, jnp.float32) * (norm if not name.endswith("out_norm") else 1), shift)
        for name in norm_names(spec)
    }
    return scale_layer(LayerParams(layer._replace(**repeated), mlp, **norms), numbers.branch, numbers.branch)


def observed(
    record: dict[str, Array], spec: AttentionSpec, sharpness: Array
) -> Callable[[AttentionParams, Array], Array]:
    """`attention.attend`, which leaves what the rows of its weights are like in `record`."""
    scale = scale_of(spec, sharpness * default_scale(spec))

    def attend(params: AttentionParams, x: Array) -> Array:
        weights = attention.attention_weights(params, x, spec, scale=scale)
        record.update(rows(weights, spec))
        value = project(x, params.value, params.value_bias if spec.bias else None, spec)
        return from_heads(jnp.einsum("hij,hjk->hik", weights, value, precision=spec.precision), params, x, spec)

    return attend


def centred(layer: AttentionSpec) -> bool:
    """Whether keys less their mean have the same weights: where a constant in a row of scores changes none."""
    plain = layer.qk_norm is None and layer.scores == "dot" and layer.soft_cap is None and layer.kind.reads == "scores"
    return plain and layer.kind.shift_invariant and layer.rotary is None and layer.rank is None


def attend_centred(params: AttentionParams, x: Array, layer: AttentionSpec, scale: Any) -> Array:
    """`attention.attend`, with keys less their mean where that changes no weights; other biases are 0 here.

    Where tokens differ by r, gradients at W_Q and W_K are of the order r² (`nothing.cancelling`), of which 10⁻⁷/r² is
    rounding; with keys less their mean 10⁻⁷/r.
    """
    if centred(layer):
        layer = dataclasses.replace(layer, bias=True)
        mean = jnp.einsum("d,hdk->hk", jnp.mean(x, axis=0), params.key, precision=layer.precision)
        zero = {name: jnp.zeros(shapes(layer)[name], x.dtype) for name in ("query_bias", "value_bias", "output_bias")}
        params = params._replace(key_bias=-mean, **zero)
    return attention.attend(params, x, layer, scale=scale)


def rows(weights: Float[Array, "head token token"], spec: AttentionSpec) -> dict[str, Array]:
    """How even rows are: entropy over the logarithm of what they see, and largest shares.

    Both are of magnitudes over their sum, so that a factor on a row, as of kinds whose rows do not sum to 1, changes
    nothing. A row that sees one token, or that sums to 0, is left out, and from the saturated ones those of fewer than
    four: of two tokens one always has half.
    """
    n = weights.shape[-1]
    seen = masks.combine(n, causal_mask=spec.causal, radius=spec.window, extra=None)
    count = jnp.full(n, n) if seen is None else jnp.sum(seen, axis=-1)
    weights, count = jnp.abs(weights), count.astype(weights.dtype)
    total = jnp.sum(weights, axis=-1)
    share = weights / jnp.where(total > 0, total, 1)[..., None]
    entropy = -jnp.sum(share * jnp.log(jnp.where(share > 0, share, 1)), axis=-1)
    several = (count > 1)[None]
    counted = (total > 0) & several
    evenness = entropy / jnp.where(several, jnp.log(count)[None], 1)
    largest = jnp.max(share, axis=-1)

    many = counted & (count >= FEW)[None]

    def mean(values: Array, counted: Array = counted) -> Array:
        of = counted.astype(weights.dtype)
        return jnp.sum(of * values.astype(of.dtype)) / jnp.sum(of)

    return {
        "evenness": mean(evenness),
        "largest": mean(largest),
        "even": mean(evenness >= EVEN),
        "saturated": jnp.where(jnp.any(counted) & ~jnp.any(many), 0, mean(largest >= SATURATED, many)),
    }


def log_norm(x: Array) -> Float[Array, ""]:
    """Log ‖x‖, whose square has no place in the dtype where x is small."""
    top = jnp.max(jnp.abs(x))
    unit = x / jnp.where(top > 0, top, 1)
    return jnp.log(top) + jnp.log(jnp.maximum(jnp.sum(jnp.square(unit)), 1)) / 2


def state(x: Array) -> tuple[Array, Array]:
    """Log ‖res(X)‖/‖X‖ and log ‖X‖/√(nd)."""
    size = log_norm(x)
    return log_norm(x - jnp.mean(x, axis=0, keepdims=True)) - size, size - jnp.log(x.size) / 2


def arithmetic(
    spec: StackSpec, numbers: Numbers, attend: Callable[[AttentionParams, Array], Array]
) -> Arithmetic[Array]:
    """A layer's operations, where what passes by a branch is multiplied by λ."""
    plain = plain_arithmetic(spec, None, None)
    add = plain.add if spec.parallel else lambda x, out: numbers.skip * x + out
    return Arithmetic(attend=attend, mlp=plain.mlp, norm=plain.norm, add=add)


def per_kind(spec: StackSpec, step_of: Callable[[StackSpec], Callable[..., Any]]) -> Callable[..., Any]:
    """A step over layers of one or two kinds: its first argument is which kind the layer is of."""
    steps = [step_of(kind) for kind in spec.kinds]
    if len(steps) == 1:
        return lambda kind, *operands: steps[0](*operands)
    return lambda kind, *operands: jax.lax.switch(kind, steps, *operands)


@functools.partial(jax.jit, static_argnames="network")
def measure(key: Array, network: Network, numbers: Numbers) -> Sample:
    """Draw a network and its tokens, and follow both passes."""
    spec = network.spec
    kinds = jnp.asarray([spec.kind_of(index) for index in range(spec.depth)], jnp.int32)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.fold_in(key, 0), jnp.asarray(network.shared))
    layers = (kinds, keys, numbers.norms)
    x = draw_tokens(jax.random.fold_in(key, 1), network, numbers)

    def forward_of(kind: StackSpec) -> Callable[..., Any]:
        def forward(x: Array, key: Array, norm: Array) -> Any:
            record: dict[str, Array] = {}
            params = complete(draw_layer(key, network, numbers), network, numbers, norm)
            wiring = arithmetic(kind, numbers, observed(record, kind.attention, numbers.sharpness))
            out = block(params, x, kind, wiring)
            return out, record

        return forward

    forward = per_kind(spec, forward_of)

    def ahead(x: Array, layer: tuple[Array, Array, Array]) -> Any:
        out, record = forward(layer[0], x, *layer[1:])
        return out, (x, record, state(out))

    _, (inputs, record, states) = jax.lax.scan(ahead, x, layers)

    def backward_of(kind: StackSpec) -> Callable[..., Any]:
        scale = scale_of(kind.attention, numbers.sharpness * default_scale(kind.attention))

        def attend(params: AttentionParams, x: Array) -> Array:
            return attend_centred(params, x, kind.attention, scale)

        def backward(x: Array, gradient: Array, key: Array, norm: Array) -> Any:
            stored, mlp = draw_layer(key, network, numbers)
            matrices = {name: getattr(stored, name) for name in MATRICES}

            def layer(x: Array, matrices: Mapping[str, Array]) -> Array:
                params = complete((stored._replace(**matrices), mlp), network, numbers, norm)
                return block(params, x, kind, arithmetic(kind, numbers, attend))

            by_x, by_matrices = jax.vjp(layer, x, matrices)[1](gradient)
            return by_x, {name: log_norm(value) for name, value in by_matrices.items()}

        return backward

    backward = per_kind(spec, backward_of)

    def back(carry: tuple[Array, Array], layer: Any) -> Any:
        (gradient, log_size), (x, (kind, *drawn)) = carry, layer
        by_x, logs = backward(kind, x, gradient, *drawn)
        own = log_norm(by_x)
        logs = {name: value + log_size for name, value in logs.items()} | {"input": own + log_size}
        unit = by_x * jnp.exp(-jnp.where(jnp.isfinite(own), own, 0))
        return (unit, log_size + own), logs

    loss = normals(jax.random.fold_in(key, 2), x.shape, jnp.float32)
    size = log_norm(loss)
    gradients = jax.lax.scan(back, (loss / jnp.exp(size), size), (inputs, layers), reverse=True)[1]
    first = state(x)
    residual, size = (jnp.concatenate([a[None], b]) for a, b in zip(first, states, strict=True))
    return Sample(residual, size, **record, gradients=gradients)
