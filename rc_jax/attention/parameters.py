"""Parameters of one attention layer: how they are drawn, and the queries, keys and values that they make of tokens."""

import itertools
import math

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float, Key

from rc_jax._numerics import arguments
from rc_jax._numerics.jax_names import canonical_dtype
from rc_jax.attention.positions import rotate
from rc_jax.attention.specification import AttentionParams, AttentionSpec, assemble, is_bias, shapes
from rc_jax.special import normals


@arguments.guard(gain=arguments.scalar(arguments.positive), bias_std=arguments.scalar(arguments.bounded(0)))
def init(
    key: Key[Array, ""],
    spec: AttentionSpec,
    *,
    gain: ArrayLike = 1.0,
    bias_std: ArrayLike = 0.0,
    dtype: DTypeLike | None = None,
) -> AttentionParams:
    """Draw the parameters of one layer: Gaussian weights that keep the variance of a token.

    Every matrix has entries N(0, gain²/fan_in): fan_in is d_model for queries, keys, values and gates, heads·d_head for
    the output, d_head for the additive score vector and the number of tokens for E. Biases and the sinks of
    `"softmax_sink"` are N(0, bias_std²), and λ of `"differential"` weights is 0.8. The
    decays of `weights="decay"` start at 1 − 2^(−5−h) for head h = 0, 1, … (Sun et al. 2023, "Retentive network", eq.
    8), or at the last number below 1, and so do those of `"gated_decay"` where x·w = 0. The decays of `"channel_decay"`
    start, in every head, at 1 − 2^(−1−7u) with u from 0 to 1 over its channels. The gains of `qk_norm` start at 1.

    Args:
        key: a typed key. The same key gives the same numbers.
        spec: the layer.
        gain: factor on the standard deviation of every matrix; may be traced.
        bias_std: standard deviation of the biases; may be traced.
        dtype: of the parameters; JAX's default floating type where it is not given.

    Returns:
        The parameters; shapes as in `AttentionParams`.

    Example:
        >>> import jax
        >>> spec = AttentionSpec(d_model=8, heads=2)
        >>> init(jax.random.key(0), spec).query.shape
        (2, 8, 4)
    """
    # `fixed` holds the decays, λ and the gains of queries and keys. The rest is drawn: normals, all from one stream,
    # times a deviation, by fan-in for matrices.
    kind = canonical_dtype(jnp.dtype(dtype if dtype is not None else float))
    fixed = dict(spec.kind.start(spec, kind))
    if spec.qk_norm is not None:
        fixed |= dict.fromkeys(("query_norm", "key_norm"), jnp.ones((spec.heads, spec.head_width), kind))
    drawn = split_normals(key, {name: shape for name, shape in shapes(spec).items() if name not in fixed}, kind)
    for name, normal in drawn.items():
        if is_bias(name):
            std = jnp.asarray(bias_std, kind)
        else:
            fan_ins = {"output": spec.heads * spec.head_width, "score_vector": spec.head_width, "pool": spec.tokens}
            fan_in = fan_ins.get(name) or spec.d_model
            std = jnp.asarray(gain, kind) * jnp.asarray(fan_in**-0.5, kind)
        drawn[name] = std * normal
    return assemble(drawn | fixed)


def split_normals(key: Array, shapes: dict[str, tuple[int, ...]], dtype: DTypeLike) -> dict[str, Array]:
    """Standard normals of the given shapes, split in order from one stream: one call of the generator in all."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    stream = normals(key, (sum(sizes),), dtype)
    ends = list(itertools.accumulate(sizes))
    return {
        name: stream[end - size : end].reshape(shape)
        for (name, shape), size, end in zip(shapes.items(), sizes, ends, strict=True)
    }


def project(
    x: Float[Array, "token feature"],
    weight: Float[Array, "head feature width"],
    bias: Float[Array, "head width"] | None,
    spec: AttentionSpec,
) -> Float[Array, "head token width"]:
    """The linear map x W_h + b_h of every head and token."""
    out = jnp.einsum("nd,hdk->hnk", x, weight, precision=spec.precision)
    return out if bias is None else out + bias[:, None]


def pool(
    rows: Float[Array, "head token width"], params: AttentionParams, spec: AttentionSpec
) -> Float[Array, "head column width"]:
    """The rows of keys or values: one for each token, or, with a rank, E times those."""
    if spec.rank is None:
        return rows
    return jnp.einsum("hrj,hjk->hrk", params.parts["pool"], rows, precision=spec.precision)


def queries_and_keys(
    params: AttentionParams, x: Float[Array, "token feature"], spec: AttentionSpec
) -> tuple[Float[Array, "head token width"], Float[Array, "head column width"]]:
    """Queries and keys of every head: normalised, then rotated by their positions (in nGPT: rotated first)."""
    query = project(x, params.query, params.query_bias if spec.bias else None, spec)
    key = pool(project(x, params.key, params.key_bias if spec.bias else None, spec), params, spec)
    query, key = shares(query, spec), shares(key, spec)
    if spec.qk_norm in ("rms", "rms_joint", "layer"):
        query, key = normalise(query, params.parts["query_norm"], spec), normalise(key, params.parts["key_norm"], spec)
    if spec.rotary is not None:
        query, key = rotate(query, spec.rotary), rotate(key, spec.rotary)
    if spec.qk_norm == "unit":
        query, key = normalise(query, params.parts["query_norm"], spec), normalise(key, params.parts["key_norm"], spec)
    return query, key


def shares(rows: Float[Array, "head token width"], spec: AttentionSpec) -> Float[Array, "heads token share"]:
    """The first shares of all heads' features, then the second ones, each as a head of its own."""
    return rows if spec.kind.maps == 1 else jnp.concatenate(jnp.split(rows, spec.kind.maps, axis=-1))


def normalise(
    x: Float[Array, "head token width"], gain: Float[Array, "head width"], spec: AttentionSpec
) -> Float[Array, "head token width"]:
    """Queries or keys normalised as `qk_norm` says, times their gains."""
    if spec.qk_norm == "unit":
        return unit(x) * gain[:, None]
    heads_too = (0, -1) if spec.qk_norm == "rms_joint" else (-1,)
    return standardised(x, spec.qk_norm_epsilon, heads_too, centred=spec.qk_norm == "layer") * gain[:, None]


def standardised(x: Array, epsilon: float, axes: tuple[int, ...] = (-1,), *, centred: bool = False) -> Array:
    """x/√(mean x² + ε), the mean over these axes; first less its mean over the last one if `centred`.

    Rows whose squares, and the cubes in derivatives, are far from overflow keep every bit. The others are multiplied by
    a power of two that makes theirs so: in float32 2⁻⁷² from 2³⁶ on.
    """
    last = jnp.finfo(x.dtype).maxexp
    large = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=axes, keepdims=True)) > 2.0 ** (9 * last // 32)
    factor = jnp.where(large, jnp.asarray(2.0 ** (-9 * last // 16), x.dtype), 1)
    x = x * factor
    if centred:
        x = x - jnp.mean(x, axis=-1, keepdims=True)
    square = jnp.mean(jnp.square(x), axis=axes, keepdims=True)
    return x * jax.lax.rsqrt(square + jnp.asarray(epsilon, x.dtype) * factor * factor)


def unit(x: Array) -> Array:
    """Vectors of length 1, whatever their size; a zero vector stays zero."""
    limits = jnp.finfo(x.dtype)
    x = x / jax.lax.stop_gradient(jnp.clip(jnp.max(jnp.abs(x), axis=-1, keepdims=True), limits.tiny, limits.max / 16))
    square = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.where(square > 0, square, 1))
