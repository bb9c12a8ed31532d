"""Common parts of the bounds on collapse: the networks they hold for, a scan over exact tokens, norms, powers 3^l."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float

from rc_jax.attention import AttentionParams, AttentionSpec
from rc_jax.attention.layer import default_scale
from rc_jax.collapse.exact import attention, decide
from rc_jax.collapse.exact import state as mean_residual
from rc_jax.collapse.exact.moves import AMOUNTS, COPY, Moves, moved, of_tokens
from rc_jax.collapse.exact.state import MeanResidual
from rc_jax.collapse.requirements import BILINEAR, check_covered
from rc_jax.network import LayerParams, Layers, StackSpec, scan_layers
from rc_jax.network.specification import check_stack

Out = TypeVar("Out")

_ALIKE = "rows that see different tokens share no weights to compare"


def check_bounded(params: Layers, x: Array, spec: StackSpec) -> None:
    """Raise unless the network is pure softmax attention over all tokens, and say why a bound needs that."""
    check_covered(
        spec,
        {
            "skip": "X + SA(X) keeps the differences of X, so no power of them bounds it",
            "mlp": "the differences an MLP passes on depend on its own Lipschitz constant, which is not known",
            "norm": "a norm divides by the tokens' own sizes and can stretch their differences at will",
            **BILINEAR,
            "rank": "E decides how far apart the columns are, not the tokens alone",
        },
    )
    # A window or a top_k as large as the sequence hides nothing.
    layer, n = spec.attention, x.shape[0]
    masks = {
        "causal=True": layer.causal,
        f"window={layer.window}": layer.window is not None and layer.window < n - 1,
        f"top_k={layer.top_k}": layer.top_k is not None and layer.top_k < n,
    }
    for name, hides in masks.items():
        if hides:
            raise ValueError(f"`spec` must have no mask: {_ALIKE}, got {name}")
    check_stack(params, x, spec)


def scan_exact(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    scale: ArrayLike | None,
    measure: Callable[[AttentionParams, MeanResidual, MeanResidual], Out],
) -> Out:
    """`measure(weights, tokens before, tokens after)` at every layer, stacked, of tokens without cancellation.

    What is measured is NaN from the first layer on whose tokens, before or after it, are not known.
    """
    kind = working_dtype(x.dtype)
    x = x.astype(kind)
    tokens, amounts = of_tokens(x), jnp.asarray(AMOUNTS, kind)

    def step(carry: tuple[MeanResidual, Array], layer: LayerParams) -> tuple[tuple[MeanResidual, Array], Out]:
        states, known = carry
        weights = jax.tree.map(lambda w: w.astype(kind), layer.attention)

        def advance(state: MeanResidual, amount: Array) -> MeanResidual:
            moves = Moves(amount, tokens)
            return attention.attend(weights, moved(state, moves, 0), spec.attention, scale, None, moves)

        after = jax.vmap(advance, axis_name=COPY)(states, amounts)
        known &= decide.same(after)
        still = [jax.tree.map(lambda leaf: leaf[0], both) for both in (states, after)]
        unless = jnp.where(known, 1, jnp.nan).astype(kind)
        return (after, known), jax.tree.map(lambda leaf: leaf * unless, measure(weights, *still))

    start = jax.tree.map(lambda leaf: jnp.stack([leaf] * amounts.size), mean_residual.decompose(x))
    return scan_layers(step, (start, jnp.asarray(True)), params, spec)[1]


def working_dtype(dtype: DTypeLike) -> DTypeLike:
    """The dtype a bound is computed in: that of the tokens, but not below float32, where no decomposition exists."""
    return dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32


def logit_scale(scale: ArrayLike | None, spec: AttentionSpec, dtype: DTypeLike) -> Float[Array, " head"]:
    """α of every head."""
    return jnp.broadcast_to(jnp.asarray(default_scale(spec) if scale is None else scale, dtype), (spec.heads,))


def column_norm(x: Float[Array, "*heads row column"]) -> Float[Array, "*heads"]:
    """‖·‖₁: the largest column sum of magnitudes."""
    return jnp.max(jnp.sum(jnp.abs(x), axis=-2), axis=-1)


def row_norm(x: Float[Array, "*heads row column"]) -> Float[Array, "*heads"]:
    """‖·‖_∞: the largest row sum of magnitudes."""
    return jnp.max(jnp.sum(jnp.abs(x), axis=-1), axis=-1)


def safe_log(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Log x, and −inf at x = 0, where the gradient is 0; NaN stays NaN."""
    zero = x == 0
    return jnp.where(zero, -jnp.inf, jnp.log(jnp.where(zero, 1, x)))


def cubed(log_constants: Float[Array, " depth"], log_start: Float[Array, ""]) -> Float[Array, " layer"]:
    """Entry l: the log of C^((3^l − 1)/2) s^(3^l), with C the largest of the first l constants; entry 0: log s."""
    constant = jax.lax.cummax(log_constants)
    power = 3 ** jnp.arange(1, constant.size + 1).astype(constant.dtype)
    half = jnp.where(constant == -jnp.inf, 0, constant) / 2
    base = half + log_start
    later = jnp.where(base == 0, 0, power) * base - half  # 3^l is infinite in float32 from l = 81
    return jnp.concatenate([log_start[None], jnp.where(constant == -jnp.inf, -jnp.inf, later)])
