"""From entries to norms: the rest of DCL21's proof, and its two bounds on a network."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from rc_jax._numerics import arguments
from rc_jax.collapse.audit.inequality import Inequality
from rc_jax.collapse.bounds.cubic import Center, bound_parts, in_depth
from rc_jax.collapse.bounds.pure_attention import check_bounded, column_norm, row_norm
from rc_jax.collapse.measures import norm_1inf, residual
from rc_jax.network import Layers, StackSpec


class Split(NamedTuple):
    """Logits x_iᵀA x_j up to a constant per row: what all rows share, and the rest that the lemma calls E."""

    base: Float[Array, "one token"]
    perturbation: Float[Array, "token token"]
    rest: Float[Array, "token feature"]


@arguments.guard(x=arguments.tokens)
def split(weight: Float[Array, "feature feature"], x: Float[Array, "token feature"], center: Center = "mean") -> Split:
    """With X = 1x̄ᵀ + R: Ã_ij = x̄ᵀA R_j, the same for all i, E = R A Rᵀ, and R (DCL21, section 2).

    Args:
        weight: A = α W_QK.
        x: at least two tokens.
        center: which x̄, as in `residual`.

    Example:
        >>> import jax.numpy as jnp
        >>> parts = split(jnp.eye(1), jnp.array([[3.0], [1.0]]))
        >>> parts.base.tolist(), parts.perturbation.tolist(), parts.rest.tolist()
        ([[2.0, -2.0]], [[1.0, -1.0], [-1.0, 1.0]], [[1.0], [-1.0]])
    """
    check_square(weight, x)
    rest = residual(x, center)
    weighted = jnp.matmul(weight, rest.T, precision="highest")
    common = jnp.matmul(jnp.mean(x - rest, axis=0, keepdims=True), weighted, precision="highest")
    return Split(common, jnp.matmul(rest, weighted, precision="highest"), rest)


@arguments.guard()
def norm_step(
    shared: Float[Array, " token"], perturbation: Float[Array, "row token"], rest: Float[Array, "token feature"]
) -> Inequality:
    """‖2D 1p̃ᵀ|R|‖_{1,∞} ≤ 2 √(‖D1‖₁‖D1‖_∞) ‖R‖_{1,∞}, since p̃ᵀ|R| is an average of the rows of |R|.

    ‖D1‖₁ is a sum over rows, which is why the theorem needs γ.

    Args:
        shared: p̃, weights that sum to 1.
        perturbation: E, from which D_ii = max_{j,j'} |E_ij − E_ij'|.
        rest: R.

    Returns:
        Both sides; slack is right − left.

    Example:
        >>> import jax.numpy as jnp
        >>> rest = jnp.array([[1.0], [-1.0]])
        >>> step = norm_step(jnp.array([0.5, 0.5]), 0.1 * rest @ rest.T, rest)
        >>> round(float(step.left), 4), round(float(step.right), 4)
        (0.5657, 0.8)
    """
    tokens = perturbation.shape[1]
    if shared.shape != (tokens,) or rest.shape[0] != tokens:
        got = f"{arguments.describe(shared)} and {arguments.describe(rest)}"
        raise ValueError(f"`shared` and `rest` must have an entry and a row for each of {tokens} tokens, got {got}")
    spread = jnp.max(perturbation, axis=1) - jnp.min(perturbation, axis=1)
    average = jnp.sum(shared[:, None] * jnp.abs(rest), axis=0)
    left = norm_1inf(2 * spread[:, None] * average[None])
    right = 2 * jnp.sqrt(jnp.sum(spread)) * jnp.sqrt(jnp.max(spread)) * norm_1inf(rest)
    return Inequality(left, right, right - left)


@arguments.guard(rest=arguments.tokens)
def gamma_cap(weight: Float[Array, "feature feature"], rest: Float[Array, "token feature"]) -> Inequality:
    """γ ≤ √(Σ_i max_a |R_ia| / ‖R‖₁) ≤ √min(tokens, d_model), for one head: γ cannot be large.

    γ := √(‖D1‖₁‖D1‖_∞) / (2‖A‖₁‖R‖²_{1,∞}), this package's own definition and bound, for
    D_ii ≤ 2 max_j |R_iᵀA R_j| ≤ 2 max_a |R_ia| ‖A‖₁ ‖R‖_∞.

    Args:
        weight: A = α W_QK.
        rest: R, about any centre.

    Returns:
        γ and its bound; slack is right − left. NaN where A or R is 0.

    Example:
        >>> import jax.numpy as jnp
        >>> step = gamma_cap(jnp.eye(1), jnp.array([[1.0], [-1.0]]))
        >>> round(float(step.left), 4), float(step.right)
        (0.7071, 1.0)
    """
    check_square(weight, rest)
    unit = rest / jnp.max(jnp.abs(rest))
    pair = jnp.matmul(unit, jnp.matmul(weight, unit.T, precision="highest"), precision="highest")
    spread = jnp.max(pair, axis=1) - jnp.min(pair, axis=1)
    top = jnp.sqrt(jnp.sum(spread)) * jnp.sqrt(jnp.max(spread))
    gamma = top / (2 * column_norm(weight) * column_norm(unit) * row_norm(unit))
    cap = jnp.sqrt(jnp.sum(jnp.max(jnp.abs(unit), axis=1)) / column_norm(unit))
    return Inequality(gamma, cap, cap - gamma)


@arguments.guard(x=arguments.tokens, scale=arguments.positive)
def layer(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
    center: Center = "mean",
) -> Inequality:
    """Log ‖res(X^(l+1))‖_{1,∞} against `layer_bound`, at every layer, in cancellation-free arithmetic.

    Args and errors as in `collapse.layer_bound`.

    Returns:
        Two logarithms per layer (nats); slack is their difference.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=2), depth=5)
        >>> x = jax.random.normal(jax.random.key(1), (8, 16))
        >>> bool((layer(network.init(jax.random.key(0), spec), x, spec).slack > 0).all())
        True
    """
    check_bounded(params, x, spec)
    parts = bound_parts(params, x, spec, scale, center)
    return compare(parts.log_after, parts.log_bound, x)


@arguments.guard(x=arguments.tokens, scale=arguments.positive)
def depth(
    params: Layers,
    x: Float[Array, "token feature"],
    spec: StackSpec,
    *,
    scale: ArrayLike | None = None,
    center: Center = "mean",
) -> Inequality:
    """Log ‖res(X^l)‖_{1,∞} against `depth_bound`, before and after each layer, in cancellation-free arithmetic.

    Args and errors as in `collapse.depth_bound`.

    Returns:
        Two logarithms for each of depth + 1 places (nats), equal at the first; slack is their difference.

    Example:
        >>> import jax
        >>> from rc_jax import attention, network
        >>> spec = network.StackSpec(attention=attention.AttentionSpec(d_model=16, heads=2), depth=5)
        >>> x = 0.01 * jax.random.normal(jax.random.key(1), (8, 16))
        >>> bool((depth(network.init(jax.random.key(0), spec), x, spec).slack >= 0).all())
        True
    """
    check_bounded(params, x, spec)
    parts = bound_parts(params, x, spec, scale, center)
    return compare(jnp.concatenate([parts.log_residual[:1], parts.log_after]), in_depth(parts), x)


def compare(left: Array, right: Array, x: Array) -> Inequality:
    """Two logarithms in the dtype of `x`, and their difference; 0 where both are −inf: no residual is left to bound."""
    gone = jnp.isneginf(left)
    slack = jnp.where(gone, jnp.where(jnp.isneginf(right), 0, jnp.inf), right - jnp.where(gone, 0, left))
    return Inequality(left.astype(x.dtype), right.astype(x.dtype), slack.astype(x.dtype))


def check_square(weight: Array, x: Array) -> None:
    """Raise unless A fits the tokens."""
    if weight.shape != (x.shape[1], x.shape[1]):
        raise ValueError(f"`weight` must have shape {(x.shape[1],) * 2}, got {arguments.describe(weight)}")
