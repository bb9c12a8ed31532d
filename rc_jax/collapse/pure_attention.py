"""What the bounds on collapse share: which networks they are about, one walk through the layers, weight norms."""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float

from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.attention.layer import default_scale
from rc_jax.collapse import mean_residual
from rc_jax.collapse.mean_residual import MeanResidual
from rc_jax.network import LayerParams, Layers, StackSpec, scan_layers
from rc_jax.network.spec import check_stack

Out = TypeVar("Out")


def check_bounded(params: Layers, x: Array, spec: StackSpec, mask: Array | None) -> None:
    """Raise unless the network is pure softmax attention over all tokens, and say why a bound needs that."""
    layer, reason = spec.attention, None
    if spec.skip:
        reason = "skip=False: X + SA(X) keeps the differences of X, so no power of them bounds it"
    elif spec.mlp is not None:
        reason = "mlp=None: the differences an MLP passes on depend on its own Lipschitz constant, which is not known"
    elif spec.norm is not None:
        reason = "norm=None: LayerNorm divides by the tokens' own spread and can stretch their differences at will"
    elif layer.weights != "softmax":
        reason = f"weights='softmax': the proofs compare exponentials over one normaliser, got {layer.weights!r}"
    elif layer.scores != "dot":
        reason = f"scores='dot': the proofs need logits bilinear in the tokens, got {layer.scores!r}"
    elif layer.causal or (layer.window is not None and layer.window < x.shape[0] - 1):
        hidden = "causal=True" if layer.causal else f"window={layer.window}"
        reason = f"no mask, for rows that see different tokens share no weights to compare, got {hidden}"
    if reason:
        raise ValueError(f"`spec` must have {reason}")
    if mask is not None:
        raise ValueError("`mask` must be None: rows that see different tokens share no weights to compare")
    check_stack(params, x, spec)


def walk(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    scale: ArrayLike | None,
    look: Callable[[AttentionParams, MeanResidual, MeanResidual], Out],
) -> Out:
    """`look(weights, tokens before, tokens after)` at every layer, stacked; the tokens in exact arithmetic."""
    kind = working_dtype(x.dtype)

    def step(state: MeanResidual, layer: LayerParams) -> tuple[MeanResidual, Out]:
        weights = jax.tree.map(lambda w: w.astype(kind), layer.attention)
        after = mean_residual.attend(weights, state, spec.attention, scale, None)
        return after, look(weights, state, after)

    return scan_layers(step, mean_residual.decompose(x.astype(kind)), params, spec)[1]


def working_dtype(dtype: DTypeLike) -> DTypeLike:
    """The dtype a bound is computed in: that of the tokens, but not below float32, where no decomposition exists."""
    return jnp.promote_types(dtype, jnp.float32)


def logit_scale(scale: ArrayLike | None, spec: AttentionSpec, dtype: DTypeLike) -> Float[Array, " head"]:
    """α of every head."""
    return jnp.broadcast_to(jnp.asarray(default_scale(spec) if scale is None else scale, dtype), (spec.heads,))


def product_matrix(
    left: Float[Array, "head feature width"], right: Float[Array, "head width feature"]
) -> Float[Array, "head feature feature"]:
    """A head's pair of factors as one matrix: W_V W_O, or W_Q W_Kᵀ."""
    return jnp.matmul(left, right, precision="highest")


def column_norm(x: Float[Array, "*heads row column"]) -> Float[Array, "*heads"]:
    """‖·‖₁: the largest column sum of magnitudes."""
    return jnp.max(jnp.sum(jnp.abs(x), axis=-2), axis=-1)


def row_norm(x: Float[Array, "*heads row column"]) -> Float[Array, "*heads"]:
    """‖·‖_∞: the largest row sum of magnitudes."""
    return jnp.max(jnp.sum(jnp.abs(x), axis=-1), axis=-1)


def spectral_norm(
    left: Float[Array, "head feature width"], right: Float[Array, "head width feature"]
) -> Float[Array, " head"]:
    """‖left·right‖₂ of every head; through the triangular factors where the heads are narrow, which is far cheaper."""
    if left.shape[-1] < left.shape[-2]:
        upper = functools.partial(jnp.linalg.qr, mode="reduced")
        left, right = upper(left)[1], jnp.swapaxes(upper(jnp.swapaxes(right, -1, -2))[1], -1, -2)
    return jnp.linalg.svd(jnp.matmul(left, right, precision="highest"), compute_uv=False)[..., 0]


def log_or_zero(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The logarithm, −inf at 0, where the gradient is 0."""
    return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1)), -jnp.inf)


def cubed(log_constants: Float[Array, " depth"], log_start: Float[Array, ""]) -> Float[Array, " layer"]:
    """Entry l: the log of C^((3^l − 1)/2) s^(3^l), with C the largest of the first l constants; entry 0: log s."""
    constant = jax.lax.cummax(log_constants)
    power = 3 ** jnp.arange(1, constant.size + 1).astype(constant.dtype)
    half = jnp.where(constant == -jnp.inf, 0, constant) / 2
    base = half + log_start
    later = jnp.where(base == 0, 0, power) * base - half  # 3^l is infinite in float32 from l = 81
    return jnp.concatenate([log_start[None], jnp.where(constant == -jnp.inf, -jnp.inf, later)])
