"""Layers of Gaussian weights in coordinates, one after the other: what `rc_jax.collapse.width_free.sampling` draws.

Pure attention collapses within a few layers. Where all logits of a row are equal to rounding, softmax is
1/n + (1/n)(s_ij − mean_j s_ij) to rounding, and a layer without masks or skip connections maps the differences R by a
product (this package's own result), n × d_model like the tokens:

    R' = R Z W_O,   Z = [α W_Q K, head by head],   K = (R W_K)ᵀ(R W_V)/n.

The tokens' mean has no part in it, and no n × n weights are left. With Gaussian weights the law of R' depends on the
inner products R Rᵀ alone, so that R may be any matrix with these. With R Z = T Q, T lower triangular and the rows of Q
orthonormal, the new R is T B, where B stands for Q W_O as in `rc_jax.collapse.width_free.sampling`.

A token has one of two kinds of coordinates, in all layers the same. Where `in_features` is true, they are its d
features. Otherwise they are along as many orthonormal directions as there are tokens. These directions contain the
tokens' span, and are chosen anew after every layer.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from rc_jax._numerics.linear_algebra import gram_factor
from rc_jax._numerics.performance import any_in_batch
from rc_jax.attention import AttentionParams, AttentionSpec, masks
from rc_jax.attention.layer import default_scale
from rc_jax.attention.parameters import split_normals
from rc_jax.collapse.exact import attention
from rc_jax.collapse.exact import state as mean_residual
from rc_jax.collapse.exact.state import MeanResidual, normalise
from rc_jax.collapse.width_free.gaussian_matrices import (
    append_last,
    compress,
    extend,
    folded_shape,
    gaussian_diagonal,
    gaussian_rows,
)
from rc_jax.network import StackSpec

# Where logits deviate by no more than this, softmax is not near saturation, and a regularised factor of the tokens is
# enough.
UNSATURATED = 2.0


@functools.partial(jax.jit, static_argnames=("spec", "in_features"))
def log_norms(
    key: Array,
    start: MeanResidual,
    spec: StackSpec,
    in_features: bool,
    gain: ArrayLike,
    scale: ArrayLike | None,
    mask: Array | None,
    size: Float[Array, ""],
    log_unit: ArrayLike,
) -> Float[Array, " layer"]:
    """Log ‖res‖ before the first layer and after each, at width d = `size`, for tokens in units of e^log_unit.

    The d_model of `spec` is the number of coordinates of a token.
    """
    layer, dtype = spec.attention, start.mean.dtype
    gain = jnp.asarray(gain, dtype)
    seen = masks.combine(start.direction.shape[0], causal_mask=layer.causal, radius=layer.window, extra=mask)
    scale = attention.known_scale(layer, scale, mask, seen)
    alpha = jnp.broadcast_to(jnp.asarray(default_scale(layer) if scale is None else scale, dtype), (layer.heads,))

    def step(state: MeanResidual, index: Array) -> tuple[MeanResidual, Array]:
        layer_key = jax.random.fold_in(key, index)
        inner, output = draw_weights(layer_key, gain, size, state.direction.shape, spec, in_features)

        def general(unsaturated: Array | None = None) -> MeanResidual:
            return general_layer(state, inner, output, alpha, spec, seen, unsaturated)

        def by_logits() -> MeanResidual:
            """The short form where all logits of a row are equal; a batch takes the general one if one member does."""
            log_deviation = log_logit_deviation(state, alpha, gain, layer)
            needs_general = any_in_batch(~has_collapsed(state, log_deviation))
            unsaturated = ~any_in_batch(log_deviation > math.log(UNSATURATED))
            collapsed = functools.partial(collapsed_layer, state, inner, output, alpha, layer)
            return jax.lax.cond(needs_general, lambda: general(unsaturated), collapsed)

        out = general() if in_features or spec.skip or seen is not None else by_logits()
        return out, out.log_norm

    logs = jax.lax.scan(step, start, jnp.arange(spec.depth))[1]
    return jnp.concatenate([start.log_norm[None], logs]) + log_unit


def draw_weights(
    key: Array,
    gain: Float[Array, ""],
    size: Float[Array, ""],
    shape: tuple[int, ...],
    spec: StackSpec,
    in_features: bool,
) -> tuple[Float[Array, "3 head width coordinate"], Float[Array, "row column"]]:
    """Draw W_Q, W_K, W_V of a layer, transposed, and Q W_O: W_O in an orthonormal basis Q of the heads' outputs.

    Products of transposed weights have longer rows, which is faster (`collapsed_layer`).
    """
    layer, (n, coordinates) = spec.attention, shape
    columns = layer.heads * layer.head_width
    rows = min(n, columns)  # of Q
    # Columns of Q W_O along directions that are fixed beforehand: all features, or where a skip connection adds the
    # input, its n directions. The rest of Q W_O is along directions of its own, lower triangular.
    fixed = coordinates if in_features or spec.skip else 0
    shapes = {"inner": (3, layer.heads, layer.head_width, coordinates), "fixed": (rows, fixed)}
    if not in_features:
        shapes["folded"] = folded_shape(rows)
    of_normals, of_diagonal = (jax.random.fold_in(key, role) for role in range(2))
    normals = split_normals(of_normals, shapes, size.dtype)
    if in_features:
        output = normals["fixed"] / jnp.sqrt(size)
    else:
        diagonal = gaussian_diagonal(of_diagonal, rows, size - fixed, size)
        output = gaussian_rows(normals["fixed"], normals["folded"], diagonal, size)
    return gain * normals["inner"], gain * jnp.asarray(columns**-0.5, output.dtype) * output


def general_layer(
    state: MeanResidual,
    inner: Float[Array, "3 head width coordinate"],
    output: Float[Array, "row column"],
    alpha: Float[Array, " head"],
    spec: StackSpec,
    seen: Bool[Array, "token key"] | None,
    unsaturated: Bool[Array, ""] | None = None,
) -> MeanResidual:
    """One layer in coordinates; where `unsaturated` is true, the factor of the heads' outputs is regularised."""
    n, coordinates = state.direction.shape
    query, key, value = jnp.swapaxes(inner, -1, -2)
    params = AttentionParams(query, key, value, output)
    heads = attention.side_by_side(attention.heads(params, state, spec.attention, alpha, seen))
    # The heads' outputs A = T Q: where they have more columns than tokens, n coordinates T take their place.
    heads = compress(heads, unsaturated) if n < heads.direction.shape[1] else heads
    out = mean_residual.transform(heads, output, spec.attention.precision)
    # The output has as many coordinates as its input again. With a skip connection it has directions beyond those of
    # the input, and is compressed; without one it may have fewer, for few and narrow heads.
    beyond = output.shape[1] - coordinates
    if spec.skip:
        out = mean_residual.add(extend(state, beyond), out)
    return compress(out) if beyond > 0 else extend(out, -beyond)


def collapsed_layer(
    state: MeanResidual,
    inner: Float[Array, "3 head width coordinate"],
    output: Float[Array, "row column"],
    alpha: Float[Array, " head"],
    spec: AttentionSpec,
) -> MeanResidual:
    """The differences R' = R Z W_O after a layer of collapsed tokens; the mean has no part in them and is set to 0."""
    direction, (n, coordinates) = state.direction, state.direction.shape
    query, key, value = inner

    def product(which: str, *factors: Array) -> Array:
        return jnp.einsum(which, *factors, precision=spec.precision)

    # `core` is αKᵀ and `stacked` is Zᵀ, a head at a time; then R Z.
    keys, values = (product("hkd,nd->hkn", weights, direction) for weights in (key, value))
    core = product("hln,hkn->hlk", values, keys) * (alpha / n)[:, None, None]
    stacked = product("hlk,hkd->hld", core, query).reshape(-1, coordinates)
    mapped = normalise(product("cd,nd->nc", stacked, direction))
    rows = mapped.rows
    # R Z = T Q, and the new R = T B. Only R Rᵀ matters from here on, and smoothly: the regularised factor is enough.
    # Rows add up to 0, so that T of the first n − 1 gives the last.
    if rows.shape[1] > n:
        rows = append_last(jnp.pad(gram_factor(rows[:-1], regularised=True), ((0, 0), (0, 1))))
    out = normalise(product("nr,rc->nc", rows, output)).times_exp(3 * state.log_size + mapped.log_size)
    out = out.map(lambda rows: jnp.pad(rows, ((0, 0), (0, coordinates - rows.shape[1]))))
    return MeanResidual(jnp.zeros_like(state.mean), out)


def has_collapsed(state: MeanResidual, log_deviation: Float[Array, ""]) -> Bool[Array, ""]:
    """Whether each row's logits are equal to rounding, by `log_logit_deviation`; False where all tokens are equal."""
    return (log_deviation <= jnp.log(2 * jnp.finfo(state.direction.dtype).eps)) & jnp.any(state.direction != 0)


def log_logit_deviation(
    state: MeanResidual, alpha: Float[Array, " head"], gain: Float[Array, ""], spec: AttentionSpec
) -> Float[Array, ""]:
    """Log of an estimate of the largest standard deviation by which two logits of a row differ, now or in later layers.

    W_Q and W_K of normals times `gain` give a logit x_iᵀW_Q W_Kᵀx_j the deviation α gain² √d_head |x_i| |x_j|. Rows
    differ through differences from the mean, so |x_j| is the longest of these, and |x_i| that or the mean. Later
    layers multiply each by a few gain² at most; where gain > 1, a factor gain⁴ allows for this.
    """
    longest = jnp.max(jnp.linalg.norm(state.direction, axis=1))
    log_length = state.log_size + jnp.log(longest)  # of the longest difference, whose length itself may underflow
    log_unit = jnp.log(jnp.max(alpha) * gain**2 * spec.head_width**0.5) + 4 * jnp.maximum(jnp.log(gain), 0)
    with_mean = log_length + jnp.log(jnp.linalg.norm(state.mean))
    return log_unit + jnp.maximum(with_mean, 2 * log_length)
