"""How sparse the rows of any kind of attention weights are, and how much of a row its largest weight keeps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Key

from rc_jax._numerics import arguments
from rc_jax.attention import Kind, own_parts

_guard = arguments.guard(n=arguments.integer(2), gamma=arguments.scalar(arguments.positive), rows=arguments.integer(2))


@_guard
def kind_sparsity(
    key: Key[Array, ""], kind: Kind, gamma: ArrayLike, n: int, rows: int = 64, parts: dict[str, Array] | None = None
) -> tuple[float, float]:
    """Mean over random rows of S(a) = (Σ|a|/n)/√(Σa²/n), and its standard error: 1 is even, 0 is focused.

    Args:
        key: of the scores, which are normal with deviation γ.
        kind: its rows may depend on each other; they are drawn as square matrices then.
        gamma: γ > 0.
        n: scores of a row.
        rows: how many.
        parts: the kind's own arrays, for one head.

    Returns:
        The mean over rows that are not all 0, and its standard error; NaN without such rows.

    Raises:
        TypeError: it is called inside `jit`, `vmap` or `grad`.
        ValueError: `parts` lacks an array that the kind reads.

    Source: the measure is that of kexue.fm/archives/9889.

    Example:
        >>> import jax
        >>> from rc_jax.attention import KINDS
        >>> from rc_jax.sparsity.kinds import kind_sparsity
        >>> mean, error = kind_sparsity(jax.random.key(0), KINDS["softmax"], 1.0, 4096)  # e^(−1/2) at n → ∞
        >>> print(abs(mean - 0.6065) < 0.01)
        True
    """
    arguments.outside_traces("kind_sparsity", key, gamma, parts)
    weights = _rows(kind, rows, n, key, gamma, parts or {})
    square = np.sqrt(np.mean(np.square(weights), axis=-1))
    kept = square > 0
    values = np.mean(np.abs(weights), axis=-1)[kept] / square[kept]
    return _mean(values)


@_guard
def kind_largest_weight(
    key: Key[Array, ""], kind: Kind, gamma: ArrayLike, n: int, rows: int = 64, parts: dict[str, Array] | None = None
) -> tuple[float, float]:
    """Mean over random rows of the largest |a| as a share of Σ|a|, and its standard error: does it fade with n?

    Arguments and errors are those of `kind_sparsity`.

    Returns:
        The mean share over rows that are not all 0, and its standard error; NaN without such rows.

    Source: the question is that of Nakanishi 2025, "Scalable-Softmax".

    Example:
        >>> import jax
        >>> from rc_jax.attention import KINDS
        >>> from rc_jax.sparsity.kinds import kind_largest_weight
        >>> few, many = (kind_largest_weight(jax.random.key(0), KINDS["softmax"], 1.0, n)[0] for n in (16, 1024))
        >>> few > 10 * many
        True
    """
    arguments.outside_traces("kind_largest_weight", key, gamma, parts)
    weights = np.abs(_rows(kind, rows, n, key, gamma, parts or {}))
    total = weights.sum(axis=-1)
    return _mean(weights.max(axis=-1)[total > 0] / total[total > 0])


def rows_are_independent(kind: Kind, parts: dict[str, Array] | None = None) -> bool:
    """Whether a row of weights depends on its own scores alone, as four random rows show.

    Example:
        >>> from rc_jax.attention import KINDS
        >>> from rc_jax.sparsity.kinds import rows_are_independent
        >>> rows_are_independent(KINDS["softmax"]), rows_are_independent(KINDS["sinkhorn"])
        (True, False)
    """
    arguments.outside_traces("rows_are_independent", parts)
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(kind.maps, 4, 4)), jnp.float32)
    moved = scores.at[:, 1:].add(jnp.linspace(0.5, 1.5, 4, dtype=scores.dtype))
    with own_parts.named(kind, parts):
        return bool(jnp.allclose(kind(scores, None, parts)[:, 0], kind(moved, None, parts)[:, 0], atol=1e-5))


def _rows(kind: Kind, rows: int, n: int, key: Array, gamma: ArrayLike, parts: dict[str, Array]) -> np.ndarray:
    count = rows if rows_are_independent(kind, parts) else n
    return np.asarray(_weights(kind, count, n, key, jnp.asarray(gamma, float), parts), float)


@functools.partial(jax.jit, static_argnames=("kind", "rows", "n"))
def _weights(kind: Kind, rows: int, n: int, key: Array, gamma: Array, parts: dict[str, Array]) -> Array:
    return kind(gamma * jax.random.normal(key, (kind.maps, rows, n)), None, parts)[0]


def _mean(values: Float[np.ndarray, " row"]) -> tuple[float, float]:
    if len(values) < 2:
        return float("nan"), float("nan")
    return float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5)
