"""The distance of the tokens from each other after every layer, as a logarithm that is right at any depth.

Every result is computed three times, twice with all weights and all roundings moved
(`rc_jax.collapse.exact.roundings`). A residual can depend on digits that no floating-point number stores: on weights of
a saturated softmax below the smallest number, or on what tells tokens of one cluster apart beside the distance between
clusters. Such a result moves by far more than a rounding, and NaN is returned in its place and at all later layers.
Tokens of one cluster may have rounded to the same numbers, which move alike. So after every layer each token moves by
a few roundings of its own; only those that are equal in truth move together.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, UInt

from rc_jax._numerics import arguments
from rc_jax.attention import masks
from rc_jax.collapse.exact import attention, choices, mlp_and_norms, roundings
from rc_jax.collapse.exact import state as mean_residual
from rc_jax.collapse.exact.choices import Tokens
from rc_jax.collapse.exact.scaled import Scaled
from rc_jax.collapse.exact.state import MeanResidual
from rc_jax.collapse.requirements import check_split
from rc_jax.network import LayerParams, Layers, NormParams, StackSpec
from rc_jax.network.specification import check_stack
from rc_jax.network.stack import Arithmetic, block, check_every_mask, scan_kinds

# A logarithm is known when roundings that are moved move it by no more than this many nats, or than as many roundings
# of itself: cubing a residual triples its logarithm, and the error in it.
_NATS = 0.01
_ROUNDINGS = 1024
# The differences of tokens move by four times as many roundings as results do, and by 256 times where the mean hides
# the token but for 1024 roundings. A choice that rests on what a rounding has left comes out alike three times where
# that is larger than both moves: beside a token 1e26 times as large, in 104 of 2000 networks by one time as many, in 18
# by four, in 2 by 256. Eight for all tokens would make residuals unknown that are right.
_APART, _APART_LOST, _LOST = 4.0, 256.0, 1024.0


@arguments.guard(x=arguments.tokens, scale=arguments.positive, mask=masks.check_mask)
def log_residuals(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
    mask: Bool[Array, "row column"] | None = None,
    relative: bool = False,
    check: bool = True,
) -> Float[Array, " layer"]:
    """The logarithms log ‖res(X^l)‖_F (nats) before the first layer and after each one, exact at any depth.

    Plain arithmetic subtracts the mean from tokens that agree in all their digits: float32 has no digit left after 2 to
    3 layers and float64 after 3 or 4. Here the tokens are carried as a mean and a scaled difference, and every sublayer
    maps the difference without a cancellation: full attention to its cube, the others to first order
    (`rc_jax.collapse.exact.attention`, `rc_jax.collapse.exact.mlp_and_norms`; this package's own result). The relative
    error is a few roundings times the conditioning of the network itself, however small the residual, and it is
    differentiable.

    With `relative=True` the logarithms are log ‖res(X^l)‖_F/‖X^l‖_F, at most 0, where ‖X‖_F² = n ‖x̄‖² + ‖res(X)‖_F².
    That is the size which DCL21's figures show, there in the norm of `norm_1inf`. With skip connections the tokens
    themselves grow, and so does ‖res‖; the relative residual says whether they become alike.

    Covers softmax attention on dot products or cosines with any heads, biases, masks, `top_k` and `rank`, rotary
    positions, `qk_norm` and `scale_law`, with or without skip connections, MLPs (gated ones, and `parallel` ones),
    LayerNorm or RMSNorm at any place, and layers of two kinds. Rotary positions are of first order like the masks
    (`rc_jax.collapse.exact.positions`). A `soft_cap`, an `output_gate` and the weights `softmax_plus_one`,
    `softmax_sink`, `sigmoid`, `differential` and `sinkhorn` are covered too (`rc_jax.collapse.exact.normalisers`).

    A residual that this dtype cannot decide is NaN, and so are those of all later layers. It is one whose logarithm
    moves by more than 0.01 nats (or 1024 roundings of itself) when every weight and every rounding moves by a few
    roundings. That is evidence and no proof: in float64 beside a token 1e26 times as large, three computations agreed
    on a wrong number in 2 of 2000 networks. It happens where softmax is saturated and tokens fall into clusters, where
    a norm subtracts a common part that is far larger than the rest, and where terms cancel for this one set of weights,
    as those of `differential` with λ = 1 under a mask do. It also happens where `top_k` has to choose among logits that
    are equal to rounding, unless their tokens are equal, in `x` or by what they kept: those it keeps together
    (`rc_jax.collapse.exact.choices`).
    It is also NaN where a number on the way has no place in the dtype: logits, or squares of the tokens' size, above
    its largest number (tokens of about 1e19 in float32, without a norm), and cosines of tokens below its smallest
    normal number over its rounding (1e-31), or of a zero token beside others, which have no direction. Where the
    tokens' own size counts, it is NaN once they have shrunk below that (gates do it, in float32 after about 100 layers
    without skip connections, norms and biases). At `gain=1` and tokens of ordinary size nothing else of this occurs.

    Args:
        params: from `network.init` or `network.random_layers`.
        x: at least two tokens.
        spec: the network; scores of dot products or cosines, and weights as above.
        scale: α of every layer, a number or one per head; 1/√d_head by default; may be traced.
        mask: of every layer, True where row i may see column j.
        relative: whether to divide each residual by the size of its tokens.
        check: whether to compute a result three times, so that unknown ones are NaN. Without it one computation is
            returned as it is, right where `x` and the network are well-conditioned. It takes about a third of the
            time, and half of the compilation.

    Returns:
        depth + 1 numbers; −inf where all tokens are equal, NaN where the residual is not known in this dtype.

    Raises:
        ValueError: other weights than those above, or scores than products and cosines, for which no form without
            cancellation is built in, or cosines with a rank.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=2), depth=6)
        >>> params = network.init(jax.random.key(0), spec)
        >>> log_norm = log_residuals(params, 0.3 * jax.random.normal(jax.random.key(1), (8, 16)), spec)
        >>> bool(log_norm[-1] < -500)
        True
        >>> import dataclasses, math
        >>> from rc_jax import collapse
        >>> shallow, x = dataclasses.replace(spec, depth=1, skip=True), jax.random.normal(jax.random.key(1), (8, 16))
        >>> params = network.init(jax.random.key(0), shallow)
        >>> share = math.exp(log_residuals(params, x, shallow, relative=True)[-1])  # ‖res‖/‖X‖ of the output
        >>> out = network.apply(params, x, shallow)
        >>> print(abs(share - collapse.frobenius(collapse.residual(out)) / collapse.frobenius(out)) < 1e-5)
        True
    """
    check_split(spec, {}, mixed=True)
    check_stack(params, x, spec)
    check_every_mask(scale, mask, x, spec)
    return _log_residuals(params, x, spec, scale, mask, relative, check)


@functools.partial(jax.jit, static_argnames=("spec", "relative", "check"))
def _log_residuals(
    params: Layers, x: Array, spec: StackSpec, scale: ArrayLike | None, mask: Array | None, relative: bool, check: bool
) -> Array:
    # Copies of the tokens pass through the layers, all but the first with every rounding moved.
    amounts = jnp.asarray(roundings.AMOUNTS if check else (0.0,), x.dtype)
    fades = any(_fades(kind) for kind in spec.kinds)

    def step_of(kind: StackSpec) -> Callable[[tuple[Tokens, Array], LayerParams], tuple[Any, Array]]:
        arithmetic = split_arithmetic(kind, x.shape[0], scale, mask)

        def through(weights: LayerParams, tokens: Tokens) -> Tokens:
            return block(weights, tokens, kind, arithmetic)

        def step(carry: tuple[Tokens, Array], weights: LayerParams) -> tuple[Any, Array]:
            def one(tokens: Tokens, amount: Array) -> Tokens:
                if not check:
                    return through(weights, tokens)
                out = roundings.move(through, amount)(roundings.move_entries(weights, amount), tokens)
                own = apart if out.equal is None else jnp.take(apart, jnp.argmax(out.equal, axis=-1), axis=0)
                own *= _times(out.state)
                difference = out.state.difference.map(lambda rows: rows * (1 + amount * own))
                return out._replace(state=out.state._replace(difference=difference))

            copies, known = carry
            out = jax.vmap(one, axis_name=roundings.COPY)(copies, amounts)
            logs = jax.vmap(lambda state: state.log_norm)(out.state)
            known &= agree(logs)
            if out.choice is not None:
                known &= jnp.all(out.choice == out.choice[0])
            shown = jax.vmap(_log_share)(out.state) if relative else logs
            # A product: the derivative of a number that is not known is NaN too.
            results = shown[0] * jnp.where(known & agree(shown), 1, jnp.nan).astype(shown.dtype)
            # A mean that has faded is not known to the next layer.
            return (out, known & ~jnp.any(jax.vmap(faded)(out.state)) if fades else known), results

        return step

    apart = perturbations(x, _places(spec, x.shape[0], mask))[1]
    tokens, changes = mean_residual.decompose(x), amounts[:, None, None] * perturbations(x)[1][None]
    log_sizes = jnp.broadcast_to(tokens.log_size, amounts.shape)
    mean, direction = (
        tokens.mean[None] * (1 + changes[:, 0]),
        tokens.direction[None] * (1 + _times(tokens)[None] * changes),
    )
    states = MeanResidual(mean, Scaled(direction, log_sizes))
    start = jax.vmap(lambda state: choices.start(x, state, spec))(states)
    logs = scan_kinds(step_of, (start, jnp.asarray(True)), params, spec)[1]
    return jnp.concatenate([(_log_share(tokens) if relative else tokens.log_norm)[None], logs])


def _times(state: MeanResidual) -> Float[Array, "token 1"]:
    """How many times as far as results the differences of tokens move: farther where nothing but a rounding is left."""
    rows, mean = state.direction, state.mean[None] * jnp.exp(-state.log_size).astype(state.mean.dtype)
    left, size = (jnp.max(jnp.abs(each), axis=1, keepdims=True) for each in (mean + rows, rows))
    limits = jnp.finfo(rows.dtype)
    farther = _APART_LOST if limits.bits >= 32 else _APART  # 256 roundings of 16 bits are the number itself
    return jnp.where(left < float(_LOST * limits.eps) * size, farther, _APART).astype(rows.dtype)


def _log_share(state: MeanResidual) -> Float[Array, ""]:
    """Log ‖res(X)‖_F/‖X‖_F = −½ log(1 + n ‖x̄‖² e^(−2ℓ)); NaN where the mean has no place in the dtype."""
    tokens = state.direction.shape[0]
    log_mean = mean_residual.normalise(jnp.broadcast_to(state.mean, (1, *state.mean.shape))).log_size
    gap = log_mean + 0.5 * math.log(tokens) - state.log_norm
    # Where all tokens are equal the gap is ∞, also for tokens of 0; derivatives do not pass there.
    equal = jnp.isneginf(state.log_norm)
    share = -0.5 * jax.nn.softplus(2 * jnp.where(equal, 0, gap))
    unknown = faded(state) | ~jnp.all(jnp.isfinite(state.mean))
    return jnp.where(unknown, jnp.nan, jnp.where(equal, -jnp.inf, share))


def _fades(spec: StackSpec) -> bool:
    """Whether the size of the tokens' mean counts: gates multiply by it, and hidden units of relu tell its sign."""
    layer = spec.attention
    relu = spec.mlp is not None and spec.mlp.activation == "relu"
    return relu or layer.output_gate is not None or layer.kind.row_sum == "any"


def faded(state: MeanResidual) -> Bool[Array, ""]:
    """True where the mean is so small that it may be the rounded form of many others, and no difference hides it.

    A mean of 0 counts as well, because a product below the smallest number is 0.
    """
    limits, mean = jnp.finfo(state.mean.dtype), jnp.max(jnp.abs(state.mean))
    smallest = float(limits.tiny / limits.eps)
    return (mean < smallest) & (state.log_norm < math.log(smallest)) & jnp.any(state.direction != 0)


def split_arithmetic(spec: StackSpec, count: int, scale: ArrayLike | None, mask: Array | None) -> Arithmetic[Tokens]:
    """The four operations that `network` wires a layer from, on `count` split tokens in place of token matrices."""
    layer = spec.attention
    seen = masks.combine(count, causal_mask=layer.causal, radius=layer.window, extra=mask)

    def norm(weights: NormParams, state: MeanResidual) -> MeanResidual:
        return mlp_and_norms.norm(weights, state, spec.norm_epsilon, centred=spec.norm_kind == "layer")

    return Arithmetic(
        attend=lambda weights, tokens: attention.attend_tokens(weights, tokens, layer, scale, seen),
        mlp=lambda weights, tokens: tokens._replace(state=mlp_and_norms.mlp(weights, tokens.state, spec)),
        norm=lambda weights, tokens: tokens._replace(state=norm(weights, tokens.state)),
        add=lambda a, b: choices.both(a, b, mean_residual.add(a.state, b.state)),
    )


def _places(spec: StackSpec, count: int, mask: Array | None) -> UInt[Array, "token column"]:
    """What tells equal tokens apart in a layer: the columns that they see, and their rotary positions."""
    layers = [kind.attention for kind in spec.kinds]
    if any(layer.rotary is not None for layer in layers):
        return jnp.arange(count, dtype=jnp.uint32)[:, None]
    seen = [masks.combine(count, causal_mask=layer.causal, radius=layer.window, extra=mask) for layer in layers]
    shown = [jnp.zeros((count, 0), bool), *(columns for columns in seen if columns is not None)]
    return jnp.concatenate(shown, axis=1).astype(jnp.uint32)


def perturbations(
    x: Float[Array, "token feature"], places: UInt[Array, "token column"] | None = None
) -> Float[Array, "2 token feature"]:
    """Relative amounts by which two computations move the entries of the tokens: zero, then a few roundings.

    The amounts of a token are made of its own bits, and of what else tells it apart. No pair of tokens is compared:
    tokens that are equal move together, so that they stay exactly equal.
    """
    x = jax.lax.stop_gradient(x)
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0, x), jnp.uint16 if x.itemsize == 2 else jnp.uint32)
    bits = bits.reshape(x.shape[0], -1).astype(jnp.uint32)
    bits = bits if places is None else jnp.concatenate([bits, places], axis=1)
    columns, features = (jnp.arange(size, dtype=jnp.uint32)[None] for size in (bits.shape[1], x.shape[1]))
    token = jnp.sum(_hashed(bits + _hashed(columns)), axis=1, keepdims=True, dtype=jnp.uint32)
    # The upper half of the bits becomes a number of variance 1 between −√3 and √3.
    uniform = (_hashed(token + _hashed(features)) >> 16).astype(jnp.float32) / 2**15 - 1
    amounts = roundings.ROUNDINGS * 3**0.5 * float(jnp.finfo(x.dtype).eps) * uniform
    return jnp.stack([jnp.zeros_like(x), amounts.astype(x.dtype)])


def _hashed(x: UInt[Array, "*shape"]) -> UInt[Array, "*shape"]:
    """Irregular bits, a different pattern for every pattern (the finalizer of MurmurHash3, Appleby 2011)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def agree(logs: Float[Array, "copy *shape"]) -> Bool[Array, "*shape"]:
    """Where logarithms that were computed several times are the same but for roundings."""
    first = logs[:1]
    allowed = _NATS + _ROUNDINGS * jnp.finfo(first.dtype).eps * jnp.abs(first)
    return jnp.all((logs == first) | (jnp.isfinite(first) & (jnp.abs(logs - first) <= allowed)), axis=0)


@arguments.guard(x=arguments.tokens)
def product_log_residuals(
    matrices: Float[Array, "depth row column"], x: Float[Array, "token feature"]
) -> Float[Array, "depth+1"]:
    """The logarithms log ‖res(P^l···P¹ X)‖_F (nats) for given row-stochastic matrices, exact at any depth.

    P(1x̄ᵀ + R) = 1x̄ᵀ + PR because rows sum to 1, so the difference is multiplied and its size carried as a logarithm.
    With matrices that do not depend on X the logarithm falls by a constant per layer (their spectral gap): the
    exponential decay against which pure attention's doubly exponential one is measured.

    Args:
        matrices: P¹ first; rows sum to 1.
        x: at least two tokens.

    Raises:
        ValueError: rows that do not sum to 1.

    Example:
        >>> import jax.numpy as jnp
        >>> half = jnp.array([[[0.75, 0.25], [0.25, 0.75]]])
        >>> steps = product_log_residuals(jnp.repeat(half, 3, axis=0), jnp.array([[1.0], [0.0]]))
        >>> [round(float(step), 4) for step in jnp.diff(steps)]
        [-0.6931, -0.6931, -0.6931]
    """
    n = x.shape[0]
    if matrices.shape[1:] != (n, n):
        raise ValueError(f"`matrices` must have shape (depth, {n}, {n}), got {arguments.describe(matrices)}")
    rows = arguments.on_host(matrices)
    if rows is not None:
        error = float(abs(rows.astype(float).sum(axis=-1) - 1).max())
        if not error <= 4 * n * float(jnp.finfo(matrices.dtype).eps):
            raise ValueError(f"`matrices` must have rows that sum to 1, got one that is off by {error:.3g}")
    return _product_log_residuals(matrices, x)


@jax.jit
def _product_log_residuals(matrices: Array, x: Array) -> Array:
    def step(difference: Scaled, matrix: Array) -> tuple[Scaled, Array]:
        product, _ = mean_residual.recenter(jnp.matmul(matrix, difference.rows, precision="highest"))
        out = mean_residual.normalise(product).times_exp(difference.log_size)
        return out, out.log_size

    start = mean_residual.decompose(x)
    logs = jax.lax.scan(step, Scaled(start.direction, start.log_norm), matrices)[1]
    return jnp.concatenate([start.log_norm[None], logs])
