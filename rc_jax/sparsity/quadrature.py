"""Sparsity of any kernel under Gaussian keys, by quadrature that is split where the kernel has kinks."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from rc_jax import _checks
from rc_jax.sparsity import _inputs

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def _kernel(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"`{name}` must be a function of an array, got {_checks.describe(value)}")


@_checks.guard(f=_kernel, beta=_checks.real, gamma=_checks.positive, kinks=_checks.real)
def from_kernel(
    f: Callable[[Array], Array], beta: ArrayLike, gamma: ArrayLike, *, kinks: ArrayLike | Sequence[float] = ()
) -> Float[Array, "..."]:
    r"""Sparsity of attention with weights a_j ∝ f(q·k_j), for any elementwise f: S = E|f(β+γε)| / √E f(β+γε)².

    Both integrals run over ε in [−40, 40] ([−20, 20] in float32) in panels of width 1 with 24 Gauss–Legendre nodes,
    split again at every declared kink, and are summed relative to their largest term. Smooth and kinked kernels alike
    come out to about 1e-12 in float64 as long as f does not change abruptly within a panel, that is within Δx = γ.

    f must be finite for |x − β| ≤ 40γ (20γ in float32), and should not be zero on all of it; otherwise S is NaN.

    Args:
        f: The kernel, elementwise; it receives an array of the working dtype with extra axes.
        beta: Mean β = q·μ of the logits of one row; any shape that broadcasts with `gamma`.
        gamma: Their standard deviation γ = σ‖q‖ > 0.
        kinks: Points x where f, or |f|, or a low derivative of it jumps: (0,) for max(x, 0)² and for |x|.

    Returns:
        S, in the broadcast shape; a pure number.

    Raises:
        TypeError: `f` is not callable, or an argument is not a real number.
        ValueError: `gamma` is not positive, an argument is not finite, or f changes the shape of its argument.

    Source: Su Jianlin, kexue.fm/archives/9889, the definition; the quadrature is this package's own.

    Example:
        >>> import jax
        >>> from rc_jax import sparsity
        >>> print(f"{sparsity.from_kernel(jax.nn.relu, 0.0, 1.0, kinks=(0.0,)):.6f}")
        0.564190
    """
    (beta, gamma), dtype = _inputs.broadcast(beta, gamma)
    limit = 40 if beta.dtype == jnp.float64 else 20
    beta, gamma = beta[..., None], gamma[..., None]
    places = jnp.ravel(jnp.asarray(kinks, beta.dtype))
    points = (jnp.broadcast_to(places, (*beta.shape[:-1], places.size)) - beta) / gamma
    fixed = jnp.broadcast_to(jnp.arange(-limit, limit + 1, dtype=beta.dtype), (*beta.shape[:-1], 2 * limit + 1))
    edges = jnp.sort(jnp.concatenate([fixed, jnp.clip(points, -limit, limit)], axis=-1), axis=-1)
    half = jnp.repeat(jnp.diff(edges) / 2, _NODES.size, axis=-1)
    tiled = functools.partial(_tiled, shape=half.shape, dtype=beta.dtype)
    epsilon = jnp.repeat(edges[..., :-1], _NODES.size, axis=-1) + half * tiled(_NODES + 1)
    x = beta + gamma * epsilon
    values = f(x)
    if jnp.shape(values) != x.shape:
        raise ValueError(f"`f` must be elementwise, got shape {jnp.shape(values)} from {x.shape}")
    magnitude = jnp.abs(values)
    empty = magnitude == 0
    logs = jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1, magnitude)))
    weights = half * tiled(_WEIGHTS)
    first, first_log = _integral(logs - jnp.square(epsilon) / 2, weights)
    second, second_log = _integral(2 * logs - jnp.square(epsilon) / 2, weights)
    scale = jnp.exp(first_log - second_log / 2 - math.log(2 * math.pi) / 4)
    return (first / jnp.sqrt(second) * scale).astype(dtype)


def _tiled(rule: np.ndarray, shape: tuple[int, ...], dtype: Any) -> Array:
    """The 24 numbers of a rule repeated for every panel on the last axis of `shape`."""
    return jnp.broadcast_to(jnp.asarray(np.tile(rule, shape[-1] // rule.size), dtype), shape)


def _integral(logs: Array, weights: Array) -> tuple[Array, Array]:
    """Σ weights·e^{logs − top} over the last axis, and top."""
    top = lax.stop_gradient(jnp.max(logs, axis=-1, keepdims=True))
    return jnp.sum(weights * jnp.exp(logs - top), axis=-1), top[..., 0]
